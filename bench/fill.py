"""Accepts jobs through the real door code, without HTTP: the quickest way to a full queue."""

import asyncio
from collections.abc import Callable

from bench.servers import TENANT, Stage
from gateway import body, wiring
from gateway.openai import parse_chat
from policies.keys import KeyHolder
from router.wakeups import Wakeups

AT_ONCE = 200


async def fill(place: Stage, count: int, make: Callable[[int], bytes]) -> dict[str, str]:
    """Accept that many, the n-th with the body `make(n)`. Returns each one's bare id by its number."""
    desk = wiring.services(place.core, Wakeups(place.core.redis, role="bench")).desk
    holder = KeyHolder(TENANT, "bench")
    numbers = iter(range(count))
    ids: dict[str, str] = {}

    async def accept() -> None:
        for number in numbers:
            raw = make(number)
            values = body.parse(raw)
            accepted = await desk.accept(
                holder, parse_chat(values), endpoint="/v1/chat/completions", raw=raw, values=values
            )
            ids[str(number)] = accepted.view.job.id

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(accept())
    return ids
