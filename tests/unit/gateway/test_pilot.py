"""What a sample says of the whole."""

import random
from statistics import mean

import pytest

from gateway.pilot import Estimate, Stratum, estimate, sample


def test_a_sample_is_in_order_and_of_each_stratum_by_its_items_and_their_worth() -> None:
    strata = {"light": list(range(0, 1000, 2)), "heavy": list(range(1, 1000, 4)), "rare": [3, 7, 11]}
    worth = {"light": 1.0, "heavy": 9.0, "rare": 0.0}

    drawn = sample(strata, 30, worth=worth, draw=random.Random(1))
    unpriced = sample(strata, 30, worth=dict.fromkeys(strata, 0.0), draw=random.Random(1))

    assert list(drawn) == sorted(drawn)
    assert all(number in strata[name] for number, name in drawn.items())
    assert [list(drawn.values()).count(name) for name in strata] == [11, 18, 2]
    assert [list(unpriced.values()).count(name) for name in strata] == [20, 10, 2]


def test_fewer_lines_than_wanted_are_all_of_them() -> None:
    worth = {"a": 1.0, "b": 1.0}

    assert sample({"a": [1, 4], "b": [2]}, 20, worth=worth, draw=random.Random(1)) == {1: "a", 2: "b", 4: "a"}


def test_every_line_is_as_likely_as_any_other() -> None:
    draw, lines = random.Random(1), list(range(10))

    drawn = [line for _ in range(2000) for line in sample({"a": lines}, 3, worth={"a": 1.0}, draw=draw)]

    assert all(500 < drawn.count(line) < 700 for line in lines)


def test_all_items_leave_no_doubt_and_one_leaves_every_doubt() -> None:
    assert estimate([Stratum([1.0, 2.0], 2), Stratum([6.0], 1)]) == Estimate(3.0, 3.0, 3.0)
    assert estimate([Stratum([2.0], 10)]) == Estimate(2.0, 0.0, float("inf"))


def test_the_bounds_are_students() -> None:
    got = estimate([Stratum([1.0, 2.0, 3.0, 4.0, 5.0], 10**9)])

    assert got.mean == 3.0
    assert got.most - got.mean == pytest.approx(2.78 * 2.5**0.5 / 5**0.5, rel=1e-6)
    assert got.times(10).least == pytest.approx(10 * got.least)


def test_a_stratum_counts_by_how_many_it_has_and_not_by_how_many_were_tried() -> None:
    got = estimate([Stratum([1.0, 1.0], 90), Stratum([11.0, 11.0], 10)])

    assert got == Estimate(2.0, 2.0, 2.0)


def test_what_a_score_has_divided_may_be_divided_otherwise() -> None:
    light, heavy = Stratum([1.0, 1.0], 300, scored=200), Stratum([11.0, 11.0], 100, scored=100)

    got = estimate([light, heavy])

    assert got.mean == 3.5
    # A hundred give or take twenty, 10 dearer each, over 400.
    assert got.most - got.mean == pytest.approx(20 * 10 / 400) == got.mean - got.least
    assert estimate([light]) == Estimate(1.0, 1.0, 1.0)


def test_the_bounds_hold_the_truth_about_as_often_as_they_say() -> None:
    draw = random.Random(1)
    light = [draw.expovariate(1.0) + 1.0 for _ in range(400)]
    heavy = [10 * draw.expovariate(1.0) + 10.0 for _ in range(100)]
    truth = mean(light + heavy)

    hits = 0
    for _ in range(1000):
        got = estimate([Stratum(draw.sample(light, 32), 400), Stratum(draw.sample(heavy, 8), 100)])
        hits += got.least <= truth <= got.most

    assert 880 < hits < 990
