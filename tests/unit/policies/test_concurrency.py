"""What is promised about the concurrency that follows from rates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.bucket import Limit
from policies.concurrency import Usual, places


def per_minute(amount: float) -> Limit:
    return Limit(amount / 60, amount)


@pytest.mark.parametrize(
    ("seconds", "tokens", "expected"),
    [(23, 33_000, 4.6), (60, 20_000, 20.0), (60, 1, 100.0), (3, 400, 5.0)],
)
def test_the_scarcer_of_the_two_rates_decides(seconds: float, tokens: int, expected: float) -> None:
    usual = Usual()
    usual.add(seconds, tokens)

    assert places(usual, per_minute(100), per_minute(400_000)) == pytest.approx(expected, abs=0.05)


def test_what_is_not_known_or_not_limited_is_not_said() -> None:
    known = Usual(1.0, 10.0)

    assert places(Usual(), per_minute(100), None) is None
    assert places(known, None, None) is None
    assert places(known, None, per_minute(600)) == pytest.approx(1.0)
    assert places(Usual(1.0, 0.0), None, per_minute(600)) is None


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 10**7)), min_size=1))
def test_an_average_stays_between_the_least_and_the_most(calls: list[tuple[float, int]]) -> None:
    usual = Usual()
    for seconds, tokens in calls:
        usual.add(seconds, tokens)

    assert usual.seconds is not None and usual.tokens is not None
    assert min(s for s, _ in calls) - 1e-6 <= usual.seconds <= max(s for s, _ in calls) + 1e-6
    assert min(t for _, t in calls) - 1e-6 <= usual.tokens <= max(t for _, t in calls) + 1e-6


def test_an_average_follows_a_change() -> None:
    usual = Usual(10.0, 1000.0)
    for _ in range(50):
        usual.add(1.0, 100)

    assert usual.seconds == pytest.approx(1.0, abs=0.1)
    assert usual.tokens == pytest.approx(100, abs=10)
