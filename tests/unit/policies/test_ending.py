import asyncio
from contextlib import suppress

from policies.ending import ended


async def test_a_task_that_drops_a_cancellation_ends_all_the_same() -> None:
    dropped = 0

    async def deaf() -> None:
        nonlocal dropped
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        dropped += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)

    await ended(task)

    assert task.cancelled()
    assert dropped == 1


async def test_tasks_that_have_ended_are_left_as_they_are() -> None:
    async def fine() -> None:
        return

    task = asyncio.create_task(fine())
    await task

    await ended(task)

    assert not task.cancelled()
