"""Retries never become the load."""

from hypothesis import given
from hypothesis import strategies as st

from policies.retrybudget import SPARE, SPARE_S, RetryBudget


def test_a_few_retries_need_no_calls_before_them() -> None:
    budget = RetryBudget()

    for _ in range(int(SPARE)):
        assert budget.has_room(0.0)
        budget.called(0.0, is_retry=True)

    assert not budget.has_room(0.0)


def test_five_calls_make_room_for_a_retry_and_so_does_time() -> None:
    budget = RetryBudget(_room=0.0)

    for _ in range(5):
        assert not budget.has_room(0.0)
        budget.called(0.0, is_retry=False)
    assert budget.has_room(0.0)
    budget.called(0.0, is_retry=True)
    assert not budget.has_room(0.99 * SPARE_S)
    assert budget.has_room(SPARE_S)


@given(steps=st.lists(st.tuples(st.integers(0, 5), st.floats(0, 5)), max_size=300))
def test_over_any_time_retries_keep_under_their_share_of_the_calls(steps: list[tuple[int, float]]) -> None:
    """Each step: so many calls, all of which fail and want to be tried again at once, then some time."""
    budget, now, calls, retries = RetryBudget(), 0.0, 0, 0
    for many, later in steps:
        now += later
        for _ in range(many):
            budget.called(now, is_retry=False)
            calls += 1
            while budget.has_room(now):
                budget.called(now, is_retry=True)
                retries += 1

    assert retries <= 0.2 * calls + SPARE + now / SPARE_S + 1e-6
