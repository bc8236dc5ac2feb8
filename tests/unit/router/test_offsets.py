"""What is committed is never past a record that still runs."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.offsets import Offsets


def test_nothing_started_commits_where_the_reader_began() -> None:
    assert Offsets(7).first_incomplete == 7


def test_a_record_that_finishes_early_waits_for_the_ones_before_it() -> None:
    offsets = Offsets(0)
    for offset in (0, 1, 2):
        offsets.start(offset)

    offsets.finish(2)
    offsets.finish(1)

    assert offsets.first_incomplete == 0
    assert offsets.window == 3
    assert len(offsets) == 1


def test_the_last_one_to_finish_frees_all_of_them() -> None:
    offsets = Offsets(0)
    for offset in (0, 1, 2):
        offsets.start(offset)

    for offset in (2, 1, 0):
        offsets.finish(offset)

    assert offsets.first_incomplete == 3
    assert offsets.window == 0


def test_a_gap_left_by_compaction_does_not_hold_anything_up() -> None:
    offsets = Offsets(0)
    offsets.start(0)
    offsets.start(10)

    offsets.finish(0)

    assert offsets.first_incomplete == 10


def test_what_runs_and_what_is_finished_is_known_and_the_rest_is_not() -> None:
    offsets = Offsets(5)
    offsets.start(5)
    offsets.start(6)
    offsets.finish(5)

    assert [offsets.is_known(offset) for offset in (4, 5, 6, 7)] == [True, True, True, False]


def test_a_record_cannot_be_started_twice() -> None:
    offsets = Offsets(0)
    offsets.start(0)

    with pytest.raises(ValueError, match="offset 0"):
        offsets.start(0)


def test_finishing_what_does_not_run_changes_nothing() -> None:
    offsets = Offsets(0)
    offsets.start(0)

    assert not offsets.finish(3)
    assert offsets.finish(0)
    assert not offsets.finish(0)
    assert offsets.first_incomplete == 1


def test_an_unreadable_record_is_passed_over_but_not_the_one_that_runs_before_it() -> None:
    offsets = Offsets(0)
    offsets.start(0)

    offsets.skip(1)

    assert offsets.first_incomplete == 0
    assert offsets.is_known(1)
    offsets.finish(0)
    assert offsets.first_incomplete == 2


@given(
    first=st.integers(0, 100),
    gaps=st.lists(st.integers(0, 3), max_size=40),
    order=st.randoms(use_true_random=False),
)
def test_whatever_the_order_it_commits_exactly_up_to_the_oldest_that_runs(
    first: int, gaps: list[int], order: Random
) -> None:
    offsets = Offsets(first)
    started: list[int] = []
    finished: set[int] = set()
    following = first
    for gap in gaps:
        following += gap
        offsets.start(following)
        started.append(following)
        following += 1
        if order.random() < 0.6:
            done = order.choice(started)
            offsets.finish(done)
            finished.add(done)

        running = [offset for offset in started if offset not in finished]
        assert offsets.first_incomplete == min(running, default=following)
        assert offsets.window == following - offsets.first_incomplete
        assert len(offsets) == len(running)
