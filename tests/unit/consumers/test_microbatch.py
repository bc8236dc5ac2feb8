"""When microbatches close, step by step. Time is passed in."""

import math

from consumers.microbatch import Microbatches


def test_one_closes_when_it_is_full_and_not_before() -> None:
    batches: Microbatches[str] = Microbatches()
    for item in "abc":
        assert batches.close(now=0.0) == []
        batches.add("small", item, size=3, wait_s=10.0, now=0.0)

    assert batches.close(now=0.0) == [["a", "b", "c"]]
    assert batches.count("small") == 0


def test_one_closes_when_its_first_item_has_waited_long_enough() -> None:
    batches: Microbatches[str] = Microbatches()
    batches.add("small", "a", size=3, wait_s=1.0, now=0.0)
    batches.add("small", "b", size=3, wait_s=1.0, now=0.9)

    assert batches.close(now=0.99) == []
    assert batches.next_close() == 1.0
    assert batches.close(now=1.0) == [["a", "b"]]


def test_each_key_has_its_own_and_the_oldest_closes_first() -> None:
    batches: Microbatches[str] = Microbatches()
    batches.add("large", "a", size=9, wait_s=2.0, now=0.0)
    batches.add("small", "b", size=9, wait_s=1.0, now=0.0)
    batches.add("small", "c", size=9, wait_s=1.0, now=0.0)

    assert (batches.count("small"), batches.count("large"), batches.count("none")) == (2, 1, 0)
    assert batches.next_close() == 1.0
    assert batches.close(now=1.0) == [["b", "c"]]
    assert batches.close(now=2.0) == [["a"]]
    assert batches.next_close() is None


def test_the_first_item_sets_the_limits() -> None:
    batches: Microbatches[str] = Microbatches()
    batches.add("small", "a", size=2, wait_s=5.0, now=0.0)
    batches.add("small", "b", size=100, wait_s=500.0, now=0.0)

    assert batches.close(now=0.0) == [["a", "b"]]


def test_without_a_wait_one_closes_at_once() -> None:
    batches: Microbatches[str] = Microbatches()
    batches.add("small", "a", size=100, wait_s=0.0, now=7.0)

    assert batches.close(now=7.0) == [["a"]]


def test_all_of_them_close_at_the_end_of_time() -> None:
    batches: Microbatches[str] = Microbatches()
    batches.add("small", "a", size=100, wait_s=1e9, now=0.0)
    batches.add("large", "b", size=100, wait_s=1e9, now=0.0)

    assert batches.close(now=math.inf) == [["a"], ["b"]]
