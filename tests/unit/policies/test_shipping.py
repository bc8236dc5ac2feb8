"""When jobs that wait go out together."""

from hypothesis import given
from hypothesis import strategies as st

from policies.shipping import Close, GiveBack, Shipping, Waiting, decide

RULE = Shipping("role", "s3://bucket", least=3, most=5, quiet_s=10.0, wait_s=100.0)


def waiting(*joined: float) -> list[Waiting]:
    return [Waiting(f"r{n}", moment) for n, moment in enumerate(joined)]


def test_enough_go_out_once_no_more_have_come_for_a_while() -> None:
    assert decide(waiting(0, 1, 2), 11.9, RULE) is None
    assert decide(waiting(0, 1, 2), 12.0, RULE) == Close(("r0", "r1", "r2"))


def test_enough_do_not_wait_for_a_quiet_that_never_comes() -> None:
    assert decide(waiting(0, 50, 99), 100.0, RULE) == Close(("r0", "r1", "r2"))


def test_as_many_as_one_batch_job_takes_go_out_at_once() -> None:
    assert decide(waiting(0, 0, 0, 0, 0), 0.0, RULE) == Close(("r0", "r1", "r2", "r3", "r4"))


def test_too_few_are_given_back_when_they_have_waited_long_enough_and_later_ones_wait_on() -> None:
    assert decide(waiting(0, 50), 99.0, RULE) is None
    assert decide(waiting(0, 50), 100.0, RULE) == GiveBack(("r0",))


@given(
    joined=st.lists(st.floats(0, 1000), max_size=20).map(sorted),
    now=st.floats(0, 2000),
    least=st.integers(1, 10),
    more=st.integers(0, 10),
)
def test_no_batch_job_has_fewer_or_more_records_than_it_may_and_nobody_waits_for_ever(
    joined: list[float], now: float, least: int, more: int
) -> None:
    rule = Shipping("role", "s3://bucket", least=least, most=least + more, quiet_s=10.0, wait_s=100.0)

    verdict = decide(waiting(*joined), now, rule)

    if isinstance(verdict, Close):
        assert rule.least <= len(verdict.records) <= rule.most
    if joined and now - joined[0] >= rule.wait_s:
        assert verdict is not None and "r0" in verdict.records
