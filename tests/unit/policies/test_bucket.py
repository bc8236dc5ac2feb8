"""What a bucket promises. The script that does the same in Redis is held to this model in tests/integration."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import bucket
from policies.bucket import Level, Limit, Short, Taken

SECOND = 1_000_000
LIMIT = Limit(rate=10, burst=100)

limits = st.builds(Limit, rate=st.floats(0.01, 1e5), burst=st.floats(0.5, 1e6))
moments = st.integers(0, 10**9 * SECOND)


def test_what_is_there_is_granted_and_gone() -> None:
    assert bucket.take(LIMIT, Level(50, 0), 30, now=0) == Taken(Level(20, 0), 30)


def test_a_bucket_nobody_used_is_full() -> None:
    assert bucket.take(LIMIT, None, 100, now=5) == Taken(Level(0, 5), 100)


def test_a_bucket_refills_continuously_and_never_above_its_burst() -> None:
    assert bucket.refilled(LIMIT, Level(0, 0), now=SECOND // 4) == Level(2.5, SECOND // 4)
    assert bucket.refilled(LIMIT, Level(0, 0), now=60 * SECOND) == Level(100, 60 * SECOND)


def test_too_little_says_how_long_to_wait() -> None:
    assert bucket.take(LIMIT, Level(5, 0), 30, now=0) == Short(2500)


def test_a_job_larger_than_the_bucket_drains_it_instead_of_waiting_for_ever() -> None:
    assert bucket.take(LIMIT, None, 101, now=0) == Taken(Level(-1, 0), 101)
    assert bucket.take(LIMIT, Level(99, 0), 101, now=0) == Short(100)


def test_a_job_far_larger_than_the_bucket_leaves_it_one_bucket_in_debt_at_most() -> None:
    assert bucket.take(LIMIT, None, 1_000_000, now=0) == Taken(Level(-100, 0), 200)


def test_nothing_passes_a_bucket_in_debt_not_even_an_estimate_of_nothing() -> None:
    assert bucket.take(LIMIT, Level(-20, 0), 0, now=0) == Short(2000)


def test_settling_gives_back_what_was_not_used_and_takes_what_was_used_beyond() -> None:
    assert bucket.settle(LIMIT, Level(10, 0), taken=40, used=15, now=0) == Level(35, 0)
    assert bucket.settle(LIMIT, Level(10, 0), taken=40, used=60, now=0) == Level(-10, 0)


def test_settling_stays_between_one_bucket_of_debt_and_a_full_bucket() -> None:
    assert bucket.settle(LIMIT, Level(10, 0), taken=40, used=10_000, now=0) == Level(-100, 0)
    assert bucket.settle(LIMIT, Level(90, 0), taken=40, used=0, now=0) == Level(100, 0)


def test_a_clock_that_steps_back_refills_nothing_twice() -> None:
    assert bucket.refilled(LIMIT, Level(5, 10 * SECOND), now=8 * SECOND) == Level(5, 10 * SECOND)
    assert bucket.take(LIMIT, Level(5, 10 * SECOND), 10, now=8 * SECOND) == Short(2500)


def test_a_stamp_from_the_far_future_does_not_block_a_bucket_until_then() -> None:
    assert bucket.refilled(LIMIT, Level(5, 3600 * SECOND), now=0) == Level(100, 0)


@pytest.mark.parametrize("rate, burst", [(0, 1), (-1, 1), (1, 0), (float("inf"), 1), (1, float("nan"))])
def test_a_limit_that_never_refills_or_holds_nothing_is_refused(rate: float, burst: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Limit(rate, burst)


@given(limits, st.floats(-1, 1), st.floats(0, 2e6), moments)
def test_whoever_waits_as_long_as_told_is_granted(limit: Limit, filled: float, cost: float, now: int) -> None:
    level = Level(limit.burst * filled, now)

    verdict = bucket.take(limit, level, cost, now)

    if isinstance(verdict, Short):
        assert verdict.ms > 0
        assert isinstance(bucket.take(limit, level, cost, now + verdict.ms * 1000), Taken)


@given(limits, st.floats(-1, 1), moments)
def test_what_is_said_to_remain_is_granted_and_one_more_is_not(limit: Limit, filled: float, now: int) -> None:
    level = Level(limit.burst * filled, now)

    remains = bucket.remaining(level)

    if remains:
        assert isinstance(bucket.take(limit, level, remains, now), Taken)
    if remains + 1 <= limit.burst:
        assert isinstance(bucket.take(limit, level, remains + 1, now), Short)


@given(limits, st.lists(st.tuples(st.integers(0, 30 * SECOND), st.floats(0, 1)), max_size=60))
def test_no_more_is_granted_than_a_full_bucket_and_what_was_refilled(
    limit: Limit, asks: list[tuple[int, float]]
) -> None:
    level, granted = None, 0.0
    moments = list(accumulate(pause for pause, _ in asks))
    for now, (_, part) in zip(moments, asks, strict=True):
        verdict = bucket.take(limit, level, part * limit.burst, now)
        if isinstance(verdict, Taken):
            level, granted = verdict.level, granted + verdict.amount

    passed = moments[-1] / SECOND if moments else 0.0
    assert granted <= (limit.burst + limit.rate * passed) * (1 + 1e-9) + bucket.SLACK


@given(limits, st.floats(-1, 1), st.floats(0, 2e6), moments)
def test_a_refund_restores_the_bucket(limit: Limit, filled: float, cost: float, now: int) -> None:
    before = Level(limit.burst * filled, now)

    verdict = bucket.take(limit, before, cost, now)

    if isinstance(verdict, Taken):
        after = bucket.settle(limit, verdict.level, verdict.amount, 0, now)
        assert after.tokens == pytest.approx(before.tokens, rel=1e-9, abs=1e-6)
