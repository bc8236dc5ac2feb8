"""Ends background tasks for good."""

import asyncio
from typing import Any

AGAIN_S = 0.2


async def ended(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel these until they have ended.

    Once does not do: before Python 3.12 `asyncio.wait_for`, through which redis-py and aiokafka send, drops a
    cancellation that comes just as it is done. What a task raised is its TaskGroup's to know.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_S)
