"""The measures give what is known beforehand: an oracle 1, chance 0, a case by hand."""

import numpy as np
import pytest

from router.evaluation import Answers, lift_difference, worth

LIGHT, HEAVY = np.array([0.0, 0.0, 1.0, 1.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0, 1.0])
DICE = np.random.default_rng(0)
MANY = Answers((DICE.random(2_000) < 0.6).astype(float), (DICE.random(2_000) < 0.8).astype(float))


def test_an_oracle_has_all_of_the_lift() -> None:
    assert worth([MANY.heavy - MANY.light], [MANY]).lift == pytest.approx(1)


def test_a_constant_score_is_exactly_chance() -> None:
    found = worth([np.zeros(2_000)], [MANY])

    assert (found.lift, found.pgr, found.apgr) == pytest.approx((0, 0.2, 0.5))
    assert (found.cpt50, found.cpt80) == pytest.approx((0.5, 0.8))


def test_a_case_by_hand() -> None:
    # In the order of the score the gains are 1, -1, 1, 0, 0: the curve is 0, .2, 0, .2, .2, .2; the gap is .2.
    found = worth([np.array([5.0, 2.0, 1.0, 4.0, 3.0])], [Answers(LIGHT, HEAVY)])

    assert found.pgr == pytest.approx(1)
    assert found.apgr == pytest.approx((0.5 + 0.5 + 0.5 + 1 + 1) / 5)
    assert found.cpt50 == pytest.approx(0.1)


def test_every_source_counts_the_same() -> None:
    gain = MANY.heavy - MANY.light
    few = Answers(MANY.light[:200], MANY.heavy[:200])

    both = worth([gain, np.zeros(200)], [MANY, few])

    assert both.lift == pytest.approx(0.5, abs=0.05)


def test_the_interval_holds_a_difference_that_is_there_and_zero_where_there_is_none() -> None:
    oracle, chance = [MANY.heavy - MANY.light], [np.random.default_rng(1).random(2_000)]
    groups = [np.arange(2_000)]

    low, high = lift_difference(oracle, chance, [MANY], groups, draws=50)
    same = lift_difference(chance, chance, [MANY], groups, draws=50)

    assert 0.8 < low < high < 1.2
    assert same == (0, 0)
