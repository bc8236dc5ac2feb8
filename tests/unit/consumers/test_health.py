"""When a replica may be called: probes, ejection, the way back. Nothing here reads a clock."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.gpu.health import FAILURES, FIRST_OUT_S, LONGEST_OUT_S, MISSED, PROBES, WINDOW_S, Health, Probe, State


def a_ready_one() -> Health:
    health = Health()
    health.probed(Probe.WELL, 0.0)
    return health


def is_in(health: Health, state: State) -> bool:
    return health.state is state


def ejected(health: Health, now: float) -> float:
    """Eject it; how long it is out."""
    while not health.failed("backend_error: 500", now):
        continue
    return health.out_until - now


def test_nobody_is_called_before_it_has_answered_a_probe() -> None:
    assert Health().state is State.NEW
    assert a_ready_one().state is State.READY


def test_one_that_loads_is_warming_and_has_not_failed() -> None:
    health = Health()
    health.probed(Probe.LOADING, 0.0)
    assert is_in(health, State.WARMING)

    health.probed(Probe.WELL, 1.0)
    assert is_in(health, State.READY)
    assert health.strikes == 0
    assert 0 < health.share(30.0, 1.0) < health.share(30.0, 16.0) < health.share(30.0, 31.0) == 1.0


def test_one_that_was_ready_and_says_503_is_down_until_it_was_gone() -> None:
    health = a_ready_one()
    health.probed(Probe.LOADING, 1.0)
    health.probed(Probe.LOADING, 2.0)
    assert is_in(health, State.DOWN)

    health.probed(Probe.REFUSED, 3.0)
    health.probed(Probe.LOADING, 4.0)
    assert is_in(health, State.WARMING)


def test_three_failures_in_half_a_minute_eject_and_older_ones_do_not_count() -> None:
    health = a_ready_one()
    for number in range(FAILURES - 1):
        assert not health.failed("cut", float(number))
    assert not health.failed("cut", WINDOW_S + FAILURES)
    assert health.failed("cut", WINDOW_S + FAILURES + 1) is False
    assert health.failed("cut", WINDOW_S + FAILURES + 2) is True
    assert is_in(health, State.EJECTED)


def test_a_busy_replica_is_not_ejected_for_a_few_bad_calls_among_many() -> None:
    health = a_ready_one()
    for number in range(100):
        health.succeeded(number / 10)
    assert not any(health.failed("cut", 10.0) for _ in range(FAILURES))


def test_each_ejection_in_a_row_is_twice_as_long() -> None:
    health, now = a_ready_one(), 0.0
    lengths = []
    for _ in range(7):
        lengths.append(ejected(health, now))
        now = health.out_until
        for _ in range(PROBES):
            health.probed(Probe.WELL, now)
        assert is_in(health, State.READY)
    assert lengths[:3] == [FIRST_OUT_S, 2 * FIRST_OUT_S, 4 * FIRST_OUT_S]
    assert lengths[-1] == LONGEST_OUT_S


def test_it_comes_back_only_after_its_time_and_after_its_probes_and_then_on_trial() -> None:
    health = a_ready_one()
    ejected(health, 0.0)
    health.probed(Probe.WELL, FIRST_OUT_S - 0.1)
    assert is_in(health, State.EJECTED)

    health.probed(Probe.WELL, FIRST_OUT_S)
    assert is_in(health, State.PROBING)
    health.probed(Probe.WELL, FIRST_OUT_S + 1)
    assert is_in(health, State.READY)
    assert health.share(0.0, 1e9) == 0.0

    assert health.failed("cut", FIRST_OUT_S + 2)
    assert health.strikes == 2


def test_the_first_token_of_one_call_ends_a_trial_however_long_the_answer_takes() -> None:
    health = a_ready_one()
    ejected(health, 0.0)
    back = FIRST_OUT_S + 1
    for at in (FIRST_OUT_S, back):
        health.probed(Probe.WELL, at)
    assert health.share(10.0, 1e9) == 0.0

    health.begins(back + 5)

    assert health.share(10.0, back + 5) == 0.1
    assert health.share(10.0, back + 15) == 1.0
    health.begins(back + 20)
    assert health.share(10.0, back + 20) == 1.0, "that of another call begins nothing anew"


def asked_for_a_token(health: Health, *, well: bool, now: float) -> None:
    for _ in range(PROBES):
        health.tried(well=well, now=now)


def test_an_ejection_ends_early_once_small_calls_are_answered_and_only_then() -> None:
    health = a_ready_one()
    ejected(health, 0.0)
    health.probed(Probe.WELL, 1.0)
    asked_for_a_token(health, well=False, now=1.0)
    health.tried(well=True, now=2.0)
    health.tried(well=False, now=2.5)
    health.tried(well=True, now=3.0)
    assert is_in(health, State.EJECTED), "not in a row"

    health.tried(well=True, now=3.5)

    assert is_in(health, State.READY)
    assert health.share(30.0, 1e9) == 0.0, "on trial"


def test_who_answers_small_calls_and_fails_the_others_is_out_for_all_of_its_time() -> None:
    health = a_ready_one()
    ejected(health, 0.0)
    asked_for_a_token(health, well=True, now=1.0)
    assert health.failed("backend_error: 500", 2.0)
    assert health.out_until == 2.0 + 2 * FIRST_OUT_S

    asked_for_a_token(health, well=True, now=3.0)
    assert is_in(health, State.EJECTED)

    back = health.out_until
    for _ in range(PROBES):
        health.probed(Probe.WELL, back)
    health.succeeded(back + 1)
    ejected(health, back + 2)
    asked_for_a_token(health, well=True, now=back + 3)
    assert is_in(health, State.EJECTED), "one good call is not trust"

    back = health.out_until
    for _ in range(PROBES):
        health.probed(Probe.WELL, back)
    health.succeeded(back + LONGEST_OUT_S)
    ejected(health, back + LONGEST_OUT_S + 1)
    asked_for_a_token(health, well=True, now=back + LONGEST_OUT_S + 2)
    assert is_in(health, State.READY), "it had been well for longer than it was out"


def test_who_answers_and_breaks_off_is_called_back_early_once_and_no_more() -> None:
    health = a_ready_one()
    ejected(health, 0.0)
    asked_for_a_token(health, well=True, now=1.0)
    health.begins(2.0)
    ejected(health, 3.0)

    asked_for_a_token(health, well=True, now=4.0)

    assert is_in(health, State.EJECTED)


def test_who_stays_well_for_longer_than_he_was_out_begins_anew() -> None:
    health = a_ready_one()
    ejected(health, 0.0)
    for _ in range(PROBES):
        health.probed(Probe.WELL, 20.0)
    health.succeeded(21.0)
    assert health.strikes == 1
    health.succeeded(20.1 + FIRST_OUT_S)
    assert health.strikes == 0
    assert health.share(30.0, 1e9) == 1.0


def test_one_probe_without_an_answer_changes_nothing_and_some_in_a_row_do() -> None:
    health = a_ready_one()
    for number in range(MISSED - 1):
        health.probed(Probe.SILENT, float(number))
    health.succeeded(5.0)
    for number in range(MISSED - 1):
        health.probed(Probe.SILENT, 6.0 + number)
        assert is_in(health, State.READY)
    health.probed(Probe.SILENT, 9.0)
    assert is_in(health, State.DOWN)


events = st.lists(
    st.tuples(
        st.one_of(st.sampled_from(list(Probe)), st.sampled_from(["well", "bad", "gone", "token", "no token"])),
        st.floats(0, 20),
    ),
    max_size=80,
)


@given(events)
def test_whatever_happens_it_is_ready_only_after_a_good_answer_and_out_for_bounded_times(
    happened: list[tuple[Probe | str, float]],
) -> None:
    health, now = Health(), 0.0
    for event, seconds in happened:
        now += seconds
        before, out_until = health.state, health.out_until
        match event:
            case Probe():
                health.probed(event, now)
            case "well":
                health.succeeded(now)
            case "bad":
                health.failed("cut", now)
            case "token" | "no token":
                health.tried(well=event == "token", now=now)
            case _:
                health.gone("no connection")
        if health.state is State.READY and before is not State.READY:
            assert event in (Probe.WELL, "token")
        if before is State.EJECTED and health.state not in (State.EJECTED, State.DOWN):
            assert now >= out_until or event == "token"
        if health.state is State.EJECTED and before is not State.EJECTED:
            assert FIRST_OUT_S - 1e-6 <= health.out_until - now <= LONGEST_OUT_S + 1e-6
        assert 0.0 <= health.share(30.0, now) <= 1.0
