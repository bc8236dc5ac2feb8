"""Answers that only this process has stay few: new calls wait while they pile up."""

import asyncio
from dataclasses import dataclass

from consumers.unsaved import LetThrough, Unsaved


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def one_call(unsaved: Unsaved, clock: Clock, seconds: float) -> None:
    """Whatever the bound, a call of that length was made and saved."""
    call = LetThrough(unsaved, "small", counts=False)
    call.sent()
    clock.now += seconds
    call.answered()
    call.saved()


async def waits(starting: "asyncio.Task[LetThrough]") -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not starting.done()


async def test_a_call_waits_while_answers_pile_up_and_goes_on_as_one_is_saved() -> None:
    unsaved = Unsaved(Clock(), most=2)
    open_ones = [await unsaved.begin("small") for _ in range(5)]
    for call in open_ones[:2]:
        call.answered()

    starting = asyncio.create_task(unsaved.begin("small"))
    assert await waits(starting)
    open_ones[0].saved()

    assert not await waits(starting)


async def test_where_answers_come_at_once_open_calls_count_as_unsaved() -> None:
    clock = Clock()
    unsaved = Unsaved(clock, most=3)
    one_call(unsaved, clock, 0.001)

    starting = [asyncio.create_task(unsaved.begin("small")) for _ in range(10)]
    begun = [each for each in starting if not await waits(each)]
    assert len(begun) == 3
    for each in begun:
        each.result().saved()

    assert sum([not await waits(each) for each in starting]) == 6
    for each in starting:
        each.cancel()


async def test_slow_calls_do_not_count_while_they_are_open() -> None:
    clock = Clock()
    unsaved = Unsaved(clock, most=3)
    one_call(unsaved, clock, 20.0)

    calls = [await unsaved.begin("small") for _ in range(100)]

    assert (len(calls), unsaved.count) == (100, 0)


async def test_a_call_that_is_cancelled_while_it_waits_leaves_its_turn_to_the_next() -> None:
    unsaved = Unsaved(Clock(), most=1)
    first = await unsaved.begin("small")
    first.answered()
    starting = [asyncio.create_task(unsaved.begin("small")) for _ in range(2)]
    assert await waits(starting[0])

    first.saved()
    starting[0].cancel()

    assert not await waits(starting[1])


async def test_saved_may_be_said_twice() -> None:
    unsaved = Unsaved(Clock(), most=1)
    call = await unsaved.begin("small")
    call.answered()

    call.saved()
    call.saved()

    assert unsaved.count == 0
