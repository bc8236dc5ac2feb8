"""When a deployment is left alone, and when it is tried again. No clock: the moments are given."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cooldown import (
    Condition,
    CooldownRule,
    Cooling,
    Failed,
    Go,
    Probe,
    ask,
    failed,
    released,
    succeeded,
)
from policies.retries import FINAL, Failure

RULE = CooldownRule(failures=3, window=30.0, first=3.0, longest=20.0, probe=90.0)


def after_failures(*calls: tuple[str, float], failure: Failure = Failure.UNAVAILABLE) -> Condition:
    """Of these jobs, one call each, at these moments."""
    condition = Condition()
    for number, (job, at) in enumerate(calls):
        condition = failed(condition, failure, Failed(job, f"{job}:{number}", at), None, RULE)
    return condition


OPEN = after_failures(("a", 0.0), ("a", 1.0), ("b", 2.0))  # until 5.0


def test_three_failures_of_two_jobs_open_a_cooldown() -> None:
    assert ask(OPEN, "c:1", 2.0, RULE) == Cooling(3.0)
    assert ask(OPEN, "c:1", 4.9, RULE) != Go()


def test_one_job_that_always_fails_keeps_nobody_away() -> None:
    condition = after_failures(*[("a", float(second)) for second in range(20)])

    assert ask(condition, "b:1", 20.0, RULE) == Go()


def test_failures_far_apart_or_with_an_answer_in_between_open_nothing() -> None:
    apart = after_failures(("a", 0.0), ("b", 20.0), ("c", 40.0))
    answered = failed(
        succeeded(after_failures(("a", 0.0), ("b", 1.0)), "x:1"),
        Failure.UNAVAILABLE,
        Failed("c", "c:1", 2.0),
        None,
        RULE,
    )

    assert ask(apart, "d:1", 40.0, RULE) == ask(answered, "d:1", 2.0, RULE) == Go()


@pytest.mark.parametrize("failure", sorted(FINAL))
def test_what_is_the_clients_fault_is_an_answer(failure: Failure) -> None:
    condition = after_failures(*[(job, 1.0) for job in "abcdef"], failure=failure)

    assert condition == Condition()


def test_a_failure_that_is_reported_twice_counts_once() -> None:
    one = Failed("a", "a:1", 1.0)
    condition = after_failures(("b", 0.0))
    once = failed(condition, Failure.CUT, one, None, RULE)

    assert failed(once, Failure.CUT, one, None, RULE) == once


def test_what_the_backend_asks_for_is_kept_at_once_and_without_a_probe() -> None:
    condition = failed(Condition(), Failure.THROTTLED, Failed("a", "a:1", 10.0), 2.0, RULE)

    assert ask(condition, "b:1", 10.5, RULE) == Cooling(1.5, is_pause=True)
    assert ask(condition, "b:1", 12.0, RULE) == ask(condition, "c:1", 12.0, RULE) == Go()


def test_after_a_cooldown_one_call_is_the_probe() -> None:
    verdict = ask(OPEN, "c:1", 5.0, RULE)

    assert isinstance(verdict, Probe)
    assert isinstance(ask(verdict.condition, "d:1", 5.1, RULE), Cooling)
    assert ask(verdict.condition, "c:1", 5.1, RULE) == verdict, "asked twice, it is the same"


def test_a_probe_that_nobody_hears_of_makes_room_for_another() -> None:
    verdict = ask(OPEN, "c:1", 5.0, RULE)
    assert isinstance(verdict, Probe)

    assert isinstance(ask(verdict.condition, "d:1", 95.0, RULE), Probe)
    assert isinstance(ask(released(verdict.condition, "c:1"), "d:1", 5.1, RULE), Probe)


def test_a_probe_that_is_answered_ends_the_cooldown() -> None:
    verdict = ask(OPEN, "c:1", 5.0, RULE)
    assert isinstance(verdict, Probe)

    assert succeeded(verdict.condition, "c:1") == Condition()


def test_cooldowns_double_up_to_the_longest() -> None:
    condition, now, waits = OPEN, 5.0, []
    for number in range(6):
        verdict = ask(condition, f"p:{number}", now, RULE)
        assert isinstance(verdict, Probe)
        condition = failed(verdict.condition, Failure.TIMED_OUT, Failed("p", f"p:{number}", now), None, RULE)
        waits.append(condition.until - now)
        now = condition.until

    assert waits == [6.0, 12.0, 20.0, 20.0, 20.0, 20.0]


def test_calls_from_before_the_cooldown_neither_end_nor_lengthen_it() -> None:
    late = failed(OPEN, Failure.CUT, Failed("z", "z:1", 4.0), None, RULE)

    assert late == succeeded(OPEN, "z:1") == OPEN


@dataclass
class _Fleet:
    """Workers that all do as the condition says, against a deployment that is down until `back`."""

    back: float
    condition: Condition = field(default_factory=Condition)
    calls: list[tuple[float, bool]] = field(default_factory=list)

    def job(self, name: str, now: float) -> None:
        verdict = ask(self.condition, f"{name}:1", now, RULE)
        if isinstance(verdict, Cooling):
            return
        if isinstance(verdict, Probe):
            self.condition = verdict.condition
        is_up = now >= self.back
        self.calls.append((now, is_up))
        if is_up:
            self.condition = succeeded(self.condition, f"{name}:1")
        else:
            one = Failed(name, f"{name}:1", now)
            self.condition = failed(self.condition, Failure.UNAVAILABLE, one, None, RULE)


@given(back=st.floats(1, 300), every=st.floats(0.05, 5), late=st.floats(0, 1))
def test_a_deployment_that_is_down_is_hardly_called_and_found_soon_when_it_is_back(
    back: float, every: float, late: float
) -> None:
    fleet = _Fleet(back)
    moments = [late + number * every for number in range(int((back + 60) / every))]
    for number, now in enumerate(moments):
        fleet.job(f"j{number}", now)

    down = [now for now, is_up in fleet.calls if not is_up]
    assert len(down) <= 3 + 4 + back / RULE.longest
    first_up = next(now for now, is_up in fleet.calls if is_up)
    assert first_up - back <= RULE.longest + every
    assert all(is_up for now, is_up in fleet.calls if now >= first_up)


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["ask", "failed", "succeeded", "released"]),
            st.sampled_from("abcd"),
            st.sampled_from(Failure),
            st.none() | st.floats(0, 1e7),
            st.floats(0, 10),
        ),
        max_size=60,
    )
)
def test_whatever_happens_a_deployment_is_tried_again_some_day_and_by_one_at_first(
    events: list[tuple[str, str, Failure, float | None, float]],
) -> None:
    condition, now = Condition(), 0.0
    for number, (what, job, failure, retry_after, later) in enumerate(events):
        now += later
        match what:
            case "ask":
                verdict = ask(condition, job, now, RULE)
                condition = verdict.condition if isinstance(verdict, Probe) else condition
            case "failed":
                condition = failed(condition, failure, Failed(job, f"{job}:{number}", now), retry_after, RULE)
            case "succeeded":
                condition = succeeded(condition, job)
            case "released":
                condition = released(condition, job)

        assert len(condition.failed) <= RULE.failures
        soon = max(now, condition.until, condition.probe_ends)
        assert soon - now <= 3600.0 + RULE.probe
        verdict = ask(condition, "new", soon, RULE)
        assert not isinstance(verdict, Cooling)
        if isinstance(verdict, Probe):
            assert isinstance(ask(verdict.condition, "newer", soon, RULE), Cooling)


def test_a_standstill_opens_at_once_for_as_long_as_it_was_told_and_only_the_probe_ends_it() -> None:
    still = failed(Condition(), Failure.MISCONFIGURED, Failed("a", "a:1", 10.0), 60.0, RULE, stands_still=True)

    assert still.openings == 1
    assert ask(still, "b:1", 69.0, RULE) == Cooling(1.0)
    probing = ask(still, "b:1", 70.0, RULE)
    assert isinstance(probing, Probe)
    again = failed(probing.condition, Failure.MISCONFIGURED, Failed("b", "b:1", 71.0), 60.0, RULE, stands_still=True)
    assert ask(again, "c:1", 130.0, RULE) == Cooling(1.0)
    assert succeeded(replace(again, probe="c:1"), "c:1") == Condition()
