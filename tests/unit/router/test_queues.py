"""When a job is likely to begin: from what is ahead of it and how fast that goes; nothing where nobody knows."""

from hypothesis import given
from hypothesis import strategies as st

from router.queues import Cold, Heard, Told, Working

TOPIC = "jobs.gpu.text.light.standard"


def heard(backlog: int | None, *working: Working, at: float = 1000.0) -> Heard:
    return Heard(at, [Told({TOPIC: each}) for each in working], {} if backlog is None else {TOPIC: (at, backlog)})


def test_what_is_ahead_over_how_fast_it_goes_on_all_workers() -> None:
    two = heard(110, Working(4, 2.0, 990.0), Working(6, 3.0, 991.0))

    assert two.starts_in(TOPIC, 1000.0, 1000.0) == 20.0
    assert two.starts_in(TOPIC, 1000.0, 1004.0) == 16.0
    assert two.starts_in(TOPIC, 1000.0, 1100.0) == 0.0


def test_a_job_that_came_earlier_has_less_before_it() -> None:
    one = heard(104, Working(4, 2.0, 900.0))

    assert one.starts_in(TOPIC, 950.0, 1000.0) == 25.0
    assert one.starts_in(TOPIC, 900.0, 1000.0) == 0.0


def test_an_empty_lane_begins_at_once() -> None:
    assert heard(0, Working(0, None, None)).starts_in(TOPIC, 1001.0, 1001.0) == 0.0
    assert heard(3, Working(3, None, None)).starts_in(TOPIC, 1001.0, 1001.0) == 0.0


def test_what_nobody_knows_is_not_guessed() -> None:
    assert Heard().starts_in(TOPIC, 1.0, 1.0) is None
    assert heard(5).starts_in(TOPIC, 1000.0, 1000.0) is None  # no worker
    assert heard(None, Working(0, 1.0, None)).starts_in(TOPIC, 1000.0, 1000.0) is None  # nobody counted
    assert heard(5, Working(0, None, None)).starts_in(TOPIC, 1000.0, 1000.0) is None  # none has begun while some waited


@given(
    st.integers(0, 10_000),
    st.lists(
        st.builds(Working, st.integers(0, 100), st.none() | st.floats(0.01, 1e4), st.none() | st.floats(0, 2000)),
        max_size=4,
    ),
    st.floats(0, 2000),
    st.floats(0, 100),
)
def test_an_estimate_is_never_negative_and_never_more_than_for_who_comes_last(
    backlog: int, working: list[Working], accepted_at: float, later: float
) -> None:
    known = heard(backlog, *working)
    found = known.starts_in(TOPIC, accepted_at, 1000.0 + later)
    last = known.starts_in(TOPIC, 1e9, 1000.0 + later)

    if found is not None and last is not None:
        assert 0 <= found <= last


def test_a_deployment_is_warming_when_any_worker_says_so() -> None:
    assert Heard(0.0, [Told(), Told(warming=["small"])]).is_warming("small")
    assert not Heard(0.0, [Told()]).is_warming("small")


def test_a_deployment_without_an_instance_is_cold_for_as_long_as_the_most_patient_says() -> None:
    told = Heard(
        0.0, [Told(), Told(cold={"patient": Cold(300.0)}), Told(cold={"patient": Cold(420.0), "other": Cold(1.0)})]
    )

    assert (told.cold("patient"), told.cold("small")) == (Cold(420.0), None)
