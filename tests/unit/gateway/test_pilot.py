"""What a sample says of the whole."""

import random
from statistics import mean

import pytest

from gateway.pilot import Estimate, estimate, sample


def test_a_sample_is_of_the_size_in_order_and_knows_how_many_there_were() -> None:
    lines = [str(number).encode() for number in range(1000)]

    drawn, count = sample(lines, 20, draw=random.Random(1))

    assert count == 1000
    assert len(set(drawn)) == 20
    assert drawn == sorted(drawn, key=int)


def test_fewer_lines_than_wanted_are_all_of_them() -> None:
    assert sample([b"a", b"b"], 20, draw=random.Random(1)) == ([b"a", b"b"], 2)
    assert sample([], 20, draw=random.Random(1)) == ([], 0)


def test_every_line_is_as_likely_as_any_other() -> None:
    draw, lines = random.Random(1), [bytes([number]) for number in range(10)]

    drawn = [line for _ in range(2000) for line in sample(lines, 3, draw=draw)[0]]

    assert all(500 < drawn.count(line) < 700 for line in lines)


def test_all_items_leave_no_doubt_and_one_leaves_every_doubt() -> None:
    assert estimate([1.0, 2.0, 3.0], of=3) == Estimate(2.0, 2.0, 2.0)
    assert estimate([2.0], of=10) == Estimate(2.0, 0.0, float("inf"))


def test_the_bounds_are_students() -> None:
    got = estimate([1.0, 2.0, 3.0, 4.0, 5.0], of=10**9)

    assert got.mean == 3.0
    assert got.most - got.mean == pytest.approx(2.78 * 2.5**0.5 / 5**0.5, rel=1e-6)
    assert got.times(10).least == pytest.approx(10 * got.least)


def test_the_bounds_hold_the_truth_about_as_often_as_they_say() -> None:
    draw = random.Random(1)
    everything = [draw.expovariate(1.0) + 1.0 for _ in range(500)]
    truth = mean(everything)

    hits = 0
    for _ in range(1000):
        got = estimate(draw.sample(everything, 40), of=len(everything))
        hits += got.least <= truth <= got.most

    assert 900 < hits < 990
