"""What follows a failed attempt."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.retries import FINAL, MAY_HAVE_RUN, TRIES, Again, Elsewhere, Failure, GiveUp, RetryRule, Tried

RULE = RetryRule(attempts=4, first_wait=0.5, longest_wait=30.0)
CLIENTS_FAULT = sorted(FINAL)


def decide(
    failure: Failure = Failure.THROTTLED,
    *,
    rule: RetryRule = RULE,
    attempt: int = 1,
    seconds_left: float = 3600.0,
    reruns_allowed: bool = True,
    retry_after: float | None = None,
    jitter: float = 0.0,
    before: int = 0,
    has_next: bool = False,
    has_replicas: bool = False,
    may_retry: bool = True,
    is_waited_for: bool = False,
) -> Again | Elsewhere | GiveUp:
    """After the `attempt`-th at this deployment, with so many elsewhere `before`."""
    tried = Tried(
        attempts=before + attempt,
        here=attempt,
        seconds_left=seconds_left,
        has_next=has_next,
        has_replicas=has_replicas,
        is_fallback=before > 0,
        reruns_allowed=reruns_allowed,
        may_retry=may_retry,
        is_waited_for=is_waited_for,
    )
    return rule.decide(failure, tried, retry_after=retry_after, jitter=jitter)


@pytest.mark.parametrize("failure", CLIENTS_FAULT)
def test_what_the_backend_refuses_for_good_is_not_tried_again(failure: Failure) -> None:
    assert decide(failure) == GiveUp(failure.value)


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
    rule = RetryRule(attempts=1000, first_wait=1.0, longest_wait=30.0, most=1000)

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


# With another deployment left


@pytest.mark.parametrize("failure", sorted(TRIES))
def test_a_deployment_gets_a_few_tries_and_then_the_next_has_its_turn(failure: Failure) -> None:
    steps = [decide(failure, attempt=attempt, has_next=True) for attempt in range(1, TRIES[failure] + 1)]

    assert all(isinstance(step, Again) for step in steps[:-1])
    assert steps[-1] == Elsewhere()


def test_a_refused_request_is_the_clients_fault_wherever_it_goes() -> None:
    assert decide(Failure.REJECTED, has_next=True) == GiveUp("rejected")
    assert decide(Failure.FILTERED, has_next=True) == GiveUp("filtered")
    assert decide(Failure.FILTERED, has_next=True, before=1) == GiveUp("filtered")


def test_what_only_a_fallback_refuses_goes_on_to_the_next() -> None:
    assert decide(Failure.REJECTED, has_next=True, before=2) == Elsewhere()
    assert decide(Failure.REJECTED, has_next=False, before=2) == GiveUp("rejected")


def test_what_is_too_long_goes_on_at_once() -> None:
    assert decide(Failure.TOO_LONG, has_next=True) == Elsewhere()


def test_a_short_wait_is_waited_for_and_a_long_one_is_not() -> None:
    assert decide(retry_after=2.0, has_next=True) == Again(2.0)
    assert decide(retry_after=RULE.patience + 0.1, has_next=True) == Elsewhere()


def test_a_fallback_is_consent_to_a_second_call() -> None:
    assert decide(Failure.BACKEND_ERROR, reruns_allowed=False, has_next=True) == Elsewhere()


def test_a_spent_budget_sends_a_job_on_and_tells_a_caller() -> None:
    assert decide(Failure.UNAVAILABLE, may_retry=False, has_next=True) == Elsewhere()
    assert decide(Failure.UNAVAILABLE, may_retry=False, is_waited_for=True) == GiveUp("unavailable")
    assert isinstance(decide(Failure.UNAVAILABLE, may_retry=False), Again)


@pytest.mark.parametrize("failure", [Failure.UNAVAILABLE, Failure.TIMED_OUT, Failure.CUT, Failure.BACKEND_ERROR])
def test_another_replica_is_tried_at_once_before_another_deployment(failure: Failure) -> None:
    assert decide(failure, has_replicas=True, has_next=True) == Again(0.0)
    assert decide(failure, has_replicas=True, has_next=True, attempt=2) == Elsewhere()


@given(
    failures=st.lists(st.sampled_from(Failure), min_size=200, max_size=200),
    deployments=st.integers(1, 20),
    retry_after=st.none() | st.floats(0, 1e6),
    has_replicas=st.booleans(),
    reruns_allowed=st.booleans(),
)
def test_no_job_is_tried_for_ever(
    failures: list[Failure], deployments: int, retry_after: float | None, has_replicas: bool, reruns_allowed: bool
) -> None:
    attempts, here, left = 0, 0, deployments - 1
    for failure in failures:
        attempts, here = attempts + 1, here + 1
        tried = Tried(
            attempts,
            here,
            1e9,
            has_next=left > 0,
            has_replicas=has_replicas,
            is_fallback=left < deployments - 1,
            reruns_allowed=reruns_allowed,
        )
        match RULE.decide(failure, tried, retry_after=retry_after, jitter=0.5):
            case GiveUp():
                break
            case Elsewhere():
                left, here = left - 1, 0
        assert left >= 0

    assert attempts <= RULE.most


def test_a_backend_that_says_how_often_is_not_called_more_often() -> None:
    rule = RetryRule(attempts=4)
    tried = Tried(attempts=1, here=1, seconds_left=100.0, most_here=2)

    assert isinstance(rule.decide(Failure.BACKEND_ERROR, tried, retry_after=None, jitter=0.0), Again)
    assert rule.decide(
        Failure.BACKEND_ERROR, replace(tried, attempts=2, here=2), retry_after=None, jitter=0.0
    ) == GiveUp("backend_error")
