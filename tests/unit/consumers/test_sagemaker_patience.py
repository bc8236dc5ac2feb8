"""How long a submitted call is waited for, and how often its result is looked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.aws.sagemaker_patience import (
    LATEST_S,
    REMEMBERED,
    UNSURE_S,
    OpenCalls,
    Waits,
    next_look,
    over_after,
    unsure,
)

AGES = st.floats(0, 100_000)


def looks(until: float, *, has_messages: bool) -> list[float]:
    """At which ages it is looked for."""
    ages = [next_look(0.0, has_messages=has_messages)]
    while ages[-1] < until:
        ages.append(ages[-1] + next_look(ages[-1], has_messages=has_messages))
    return ages


def test_a_result_whose_message_was_lost_is_found_soon() -> None:
    assert looks(100, has_messages=True)[:4] == [10, 20, 30, 45]


def test_without_messages_it_is_looked_for_sooner() -> None:
    assert looks(20, has_messages=False)[:4] == [2, 4, 6, 8]


@given(age=AGES, has_messages=st.booleans())
def test_a_lost_message_makes_no_call_longer_than_half_as_long_again_and_never_by_more_than_a_minute(
    age: float, has_messages: bool
) -> None:
    wait = next_look(age, has_messages=has_messages)

    assert 2 <= wait <= LATEST_S
    assert wait <= max(10, age / 2)


def test_a_call_of_six_hours_costs_some_hundred_looks() -> None:
    assert len(looks(6 * 3600, has_messages=True)) < 400


def test_what_the_endpoint_has_taken_is_waited_for_as_long_as_it_may_take() -> None:
    assert over_after(600, 300) == 600 + 300 + 120


@pytest.mark.parametrize(("others", "seconds"), [(None, UNSURE_S), (0.0, 15), (5.0, 35), (1000.0, UNSURE_S)])
def test_what_it_may_not_have_taken_is_waited_for_by_what_others_took(others: float | None, seconds: float) -> None:
    assert unsure(others) == seconds


def test_waits_are_those_of_the_last_calls() -> None:
    waits = Waits()
    assert waits.longest is None

    for seconds in (900.0, *[2.0] * REMEMBERED):
        waits.add(seconds)

    assert waits.longest == 2.0


def test_the_oldest_open_call_is_one_that_somebody_here_still_looks_for() -> None:
    now = 1000.0
    calls = OpenCalls(lambda: now)
    calls.note("a", "old", 400.0)
    calls.note("a", "new", 900.0)
    calls.note("b", "other", 100.0)
    assert (calls.oldest("a"), calls.oldest("b"), calls.oldest("c")) == (600.0, 900.0, 0.0)

    calls.forget("a", "old")
    assert calls.oldest("a") == 100.0

    now += 200
    assert calls.oldest("b") == 0.0
