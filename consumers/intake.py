"""Takes records off the lanes' topics so that the overflow never fills what a worker may hold."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager

from router.job import Queue
from router.log import Delivery, Log, Subscription, subscribed


@asynccontextmanager
async def subscribe(
    log: Log, topics: Sequence[str], *, group: str, most: int, most_bytes: int
) -> AsyncGenerator[Subscription]:
    """A subscription to these topics of which at most `most` records, of `most_bytes` together, are overflow.

    Both kinds are waited for at once. A `take` may bring more than was asked for, by what is overflow.
    """
    overflow = [topic for topic in topics if _is_overflow(topic)]
    main = [topic for topic in topics if topic not in overflow]
    if not overflow or not main:
        async with subscribed(log, topics, group=group) as only:
            yield only
        return
    async with subscribed(log, main, group=group) as first, subscribed(log, overflow, group=group) as second:
        intake = _Intake(first, second, most=most, most_bytes=most_bytes)
        try:
            yield intake
        finally:
            await intake.close()


class _Intake:
    """`router.log.Subscription` over two."""

    def __init__(self, main: Subscription, overflow: Subscription, *, most: int, most_bytes: int) -> None:
        self._main = main
        self._overflow = overflow
        self._most = most
        self._bytes_left = most_bytes
        self._held: dict[tuple[str, str], int] = {}
        self._taking: dict[Subscription, asyncio.Task[Sequence[Delivery]]] = {}

    async def take(self, at_most: int, *, of: Collection[str] | None = None) -> Sequence[Delivery]:
        """As soon as one of the two has something; with `of` the overflow has nothing."""
        room = min(at_most, self._most - len(self._held)) if self._bytes_left > 0 and of is None else 0
        self._start(self._main, at_most, of)
        self._start(self._overflow, max(0, room))
        # One without room answers at once, and would have the worker go round for nothing.
        awaited = self._taking.values() if room > 0 else [self._taking[self._main]]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        ended = {each: task for each, task in self._taking.items() if task.done()}
        for each in ended:
            del self._taking[each]
        failed = [error for task in ended.values() if (error := task.exception()) is not None]
        taken = {each: task.result() for each, task in ended.items() if task.exception() is None}
        for delivery in taken.get(self._overflow, ()):
            if _name(delivery) not in self._held:  # after two rebalances it may come while it is held
                self._held[_name(delivery)] = delivery.record.size
                self._bytes_left -= delivery.record.size
        deliveries = [delivery for some in taken.values() for delivery in some]
        if failed and not deliveries:
            raise failed[0]
        return deliveries

    async def done(self, delivery: Delivery) -> None:
        """See the port."""
        self._bytes_left += self._held.pop(_name(delivery), 0)
        await (self._overflow if _is_overflow(delivery.topic) else self._main).done(delivery)

    async def close(self) -> None:
        """Let what is under way end; what it brings comes again to others."""
        await asyncio.gather(*self._taking.values(), return_exceptions=True)

    def _start(self, subscription: Subscription, at_most: int, of: Collection[str] | None = None) -> None:
        if subscription not in self._taking:
            self._taking[subscription] = asyncio.create_task(subscription.take(at_most, of=of))


def _is_overflow(topic: str) -> bool:
    return topic.endswith(f".{Queue.OVERFLOW}")


def _name(delivery: Delivery) -> tuple[str, str]:
    return delivery.topic, delivery.position
