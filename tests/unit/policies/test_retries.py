"""What follows a failed attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.retries import FINAL, MAY_HAVE_RUN, Again, Failure, GiveUp, RetryRule

RULE = RetryRule(attempts=4, first_wait=0.5, longest_wait=30.0)


def decide(
    failure: Failure = Failure.THROTTLED,
    *,
    rule: RetryRule = RULE,
    attempt: int = 1,
    seconds_left: float = 3600.0,
    reruns_allowed: bool = True,
    retry_after: float | None = None,
    jitter: float = 0.0,
) -> Again | GiveUp:
    return rule.decide(
        failure,
        attempt=attempt,
        seconds_left=seconds_left,
        reruns_allowed=reruns_allowed,
        retry_after=retry_after,
        jitter=jitter,
    )


def test_what_the_backend_refuses_for_good_is_not_tried_again() -> None:
    assert decide(Failure.REJECTED) == GiveUp("rejected")


@pytest.mark.parametrize("failure", sorted(set(Failure) - FINAL))
def test_every_other_failure_is_tried_again(failure: Failure) -> None:
    assert decide(failure) == Again(0.25)


@pytest.mark.parametrize("failure", sorted(MAY_HAVE_RUN))
def test_what_may_have_run_is_not_paid_twice_where_the_tenant_forbids_it(failure: Failure) -> None:
    assert decide(failure, reruns_allowed=False) == GiveUp("may_have_run")


@pytest.mark.parametrize("failure", [Failure.THROTTLED, Failure.UNAVAILABLE, Failure.MISCONFIGURED])
def test_what_surely_did_not_run_is_tried_again_even_so(failure: Failure) -> None:
    assert decide(failure, reruns_allowed=False) == Again(0.25)


def test_the_last_attempt_gives_up_with_the_failure_as_its_reason() -> None:
    assert isinstance(decide(Failure.TIMED_OUT, attempt=3), Again)
    assert decide(Failure.TIMED_OUT, attempt=4) == GiveUp("timed_out")


def test_waits_double_and_stay_under_the_longest() -> None:
    rule = RetryRule(attempts=1000, first_wait=1.0, longest_wait=30.0)

    waits = [decide(rule=rule, attempt=attempt, jitter=0.999999) for attempt in (1, 2, 3, 6, 900)]

    assert [round(wait.seconds, 2) for wait in waits if isinstance(wait, Again)] == [1.0, 2.0, 4.0, 30.0, 30.0]


def test_jitter_spreads_a_wait_over_its_upper_half() -> None:
    assert decide(attempt=2, jitter=0.0) == Again(0.5)
    assert decide(attempt=2, jitter=0.5) == Again(0.75)


def test_the_backends_wish_is_never_undercut_and_never_shortens_a_wait() -> None:
    assert decide(retry_after=45.0) == Again(45.0)
    assert decide(retry_after=0.0) == Again(0.25)


def test_a_wait_that_ends_after_the_deadline_is_not_begun() -> None:
    assert decide(retry_after=10.0, seconds_left=10.0) == GiveUp("deadline")
    assert decide(retry_after=10.0, seconds_left=10.1) == Again(10.0)


@given(
    failure=st.sampled_from(Failure),
    attempt=st.integers(1, 1000),
    seconds_left=st.floats(-10, 1e6),
    retry_after=st.none() | st.floats(0, 1e6),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_no_wait_is_endless_negative_or_beyond_the_deadline(
    failure: Failure, attempt: int, seconds_left: float, retry_after: float | None, jitter: float
) -> None:
    after = decide(failure, attempt=attempt, seconds_left=seconds_left, retry_after=retry_after, jitter=jitter)

    if isinstance(after, Again):
        assert attempt < RULE.attempts
        assert max(RULE.first_wait / 2, retry_after or 0.0) <= after.seconds < seconds_left
