"""When a queued job is likely to begin, out of what was last heard: no job's answer waits for it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

import structlog

from policies.scripts import BoardUnavailableError
from router.board import JobView
from router.job import JobState
from router.queues import KEPT_S, Heard, Queues

log = structlog.get_logger(__name__)

HEAR_EVERY_S = 2.0
WAITING = (JobState.ACCEPTING, JobState.QUEUED)


@dataclass(frozen=True, slots=True)
class Quote:
    """What a waiting job is told; None is not known. `warming`: its model is being loaded.

    `wake_usd` is what the machine costs until it runs, where one has to be started for it.
    """

    starts_in_s: float | None = None
    warming: bool = False
    wake_usd: Decimal | None = None


NOTHING = Quote()


@dataclass(slots=True)
class Quotes:
    """Follows the queues."""

    queues: Queues
    clock: Callable[[], float] = time.monotonic
    _heard: Heard = field(default_factory=Heard)
    _at: float | None = None

    async def follow(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                await self.hear()
            except BoardUnavailableError:
                log.warning("queues_unknown")
            await asyncio.sleep(HEAR_EVERY_S)

    async def hear(self) -> None:
        """Listen now. Raises `BoardUnavailableError`."""
        self._heard, self._at = await self.queues.hear(), self.clock()

    def of(self, view: JobView) -> Quote:
        """For this job, as it is."""
        if self._at is None or self.clock() - self._at > KEPT_S:
            return NOTHING
        cold = self._heard.cold(view.job.route.deployment)
        now = self._heard.now + self.clock() - self._at
        if view.state is JobState.RUNNING and cold is not None and view.started_at is not None:
            left_s = max(0.0, cold.seconds - (now - view.started_at))
            return Quote(round(left_s, 1), wake_usd=cold.usd)  # it waits there
        if view.state not in WAITING:
            return NOTHING
        if self._heard.is_warming(view.job.route.deployment):
            return Quote(None, warming=True)
        seconds = self._heard.starts_in(view.job.topic, view.job.created_at, now)
        if seconds is None:
            return NOTHING
        return Quote(round(seconds, 1)) if cold is None else Quote(round(seconds + cold.seconds, 1), wake_usd=cold.usd)
