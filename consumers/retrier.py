"""Brings postponed jobs back to their lane when they are due."""

import asyncio
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import structlog

from consumers.dead import bury
from policies.scripts import BoardUnavailableError
from router import envelope
from router.board import Board
from router.log import Delivery, Log, LogUnavailableError, Subscription, subscribed

log = structlog.get_logger(__name__)

GROUP = "retrier"
HELD = 1000  # behind them the others wait, which are due later
CLOCK_EVERY_S = 30.0
AWAY_S = 1.0


@dataclass(slots=True)
class Retrier:
    """Holds the records of one retry topic until they are due. Any number may run.

    A record is done only once its copy is on the lane's topic; a crash in between makes two copies, which the
    board takes for one job.
    """

    log: Log
    board: Board
    topic: str
    clock: Callable[[], float] = time.monotonic
    _waiting: list[tuple[float, int, Delivery]] = field(default_factory=list)
    _order: "count[int]" = field(default_factory=count)
    _redis_minus_ours: float = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`."""
        async with subscribed(self.log, [self.topic], group=GROUP) as subscription:
            measured = float("-inf")
            while not stop.is_set():
                try:
                    if self.clock() - measured > CLOCK_EVERY_S:
                        self._redis_minus_ours = await self.board.now() - self.clock()
                        measured = self.clock()
                    await self._round(subscription)
                except (LogUnavailableError, BoardUnavailableError) as error:
                    log.warning("retries_put_off", error=type(error).__name__)
                    await asyncio.sleep(AWAY_S)

    async def _round(self, subscription: Subscription) -> None:
        for delivery in await subscription.take(max(0, HELD - len(self._waiting))):
            try:
                due = envelope.due_at(delivery.record)
            except envelope.EnvelopeError as error:
                await bury(self.log, delivery, "undecodable", str(error))
                await subscription.done(delivery)
                continue
            heapq.heappush(self._waiting, (due, next(self._order), delivery))
        now = self.clock() + self._redis_minus_ours
        while self._waiting and self._waiting[0][0] <= now:
            delivery = self._waiting[0][2]
            topic, record = envelope.brought_back(delivery.record)
            await self.log.append(topic, record)
            await subscription.done(delivery)
            heapq.heappop(self._waiting)
