"""How long jobs are expected to take is learnt per tenant and deployment, in bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.expected import FIRST_S, Expected


def test_a_deployment_that_has_finished_nothing_has_a_first_guess() -> None:
    assert Expected().seconds("acme", "small") == FIRST_S


def test_the_first_job_counts_whole_and_the_next_ones_a_fifth() -> None:
    expected = Expected()

    expected.add("acme", "small", 10)
    first = expected.seconds("acme", "small")
    expected.add("acme", "small", 20)

    assert first == 10
    assert expected.seconds("acme", "small") == pytest.approx(12)


def test_a_new_tenant_is_expected_to_be_like_the_others_of_the_deployment() -> None:
    expected = Expected()
    expected.add("acme", "small", 3)
    expected.add("acme", "large", 90)

    assert expected.seconds("other", "small") == 3
    assert expected.seconds("other", "large") == 90


def test_tenants_and_deployments_are_told_apart() -> None:
    expected = Expected()
    expected.add("acme", "small", 3)
    expected.add("other", "small", 5)
    expected.add("acme", "large", 90)

    assert expected.seconds("acme", "small") == 3
    assert expected.seconds("other", "small") == 5


def test_a_changed_behaviour_is_learnt() -> None:
    expected = Expected()
    expected.add("acme", "small", 1)
    for _ in range(30):
        expected.add("acme", "small", 60)

    assert expected.seconds("acme", "small") == pytest.approx(60, rel=0.01)


def test_those_longest_without_a_job_are_forgotten() -> None:
    expected = Expected(most=3)  # two tenants, and the deployment itself
    expected.add("a", "small", 1)
    expected.add("b", "small", 2)
    expected.add("a", "small", 1)
    expected.add("c", "small", 7)

    assert len(expected) == 3
    assert expected.seconds("a", "small") == 1
    assert expected.seconds("c", "small") == 7
    assert expected.seconds("b", "small") == expected.seconds("nobody", "small")


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_an_average_lies_between_what_was_seen(seconds: list[float]) -> None:
    expected = Expected()
    for each in seconds:
        expected.add("acme", "small", each)

    average = expected.seconds("acme", "small")

    assert min(seconds) - 1e-6 <= average <= max(seconds) + 1e-6
