"""Repairs what a died process left behind. Any number may run: each step is safe to repeat."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import structlog

from policies.scripts import BoardUnavailableError
from router import ledger
from router.board import Board
from router.job import JobState
from router.log import LogUnavailableError
from router.outbox import Outbox

log = structlog.get_logger(__name__)

AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Goes round all tenants: rejects what was never confirmed, expires what nobody runs, drains outboxes.

    Its stamp on each tenant tells a Redis that stood still from owners that died. `trim` shortens the log,
    where that is ours to do. `unpublished_s` is longer than any accept waits for the log, `left_behind_s`
    longer than a living worker takes to publish.
    """

    board: Board
    outbox: Outbox
    tenants: Collection[str]
    lease_s: float
    trim: Callable[[], Awaitable[None]] | None = None
    every_s: float = 1.0
    trim_every: int = 30  # rounds
    unpublished_s: float = 60.0
    left_behind_s: float = 10.0

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until `stop`."""
        rounds = 0
        while not stop.is_set():
            try:
                await self.sweep()
                if self.trim is not None and rounds % self.trim_every == 0:
                    await self.trim()
            except (BoardUnavailableError, LogUnavailableError) as error:
                log.warning("sweep_put_off", error=type(error).__name__)
            rounds += 1
            try:
                async with asyncio.timeout(self.every_s):
                    await stop.wait()
            except TimeoutError:
                continue

    async def sweep(self) -> None:
        """One round."""
        await self.board.beat()
        for tenant in self.tenants:
            unpublished, overdue = await self.board.sweep(
                tenant, unpublished_s=self.unpublished_s, lease_s=self.lease_s, most=AT_ONCE
            )
            for job_id in unpublished:
                state = await self.board.reject(tenant, job_id)
                log.warning("unpublished_job_swept", job=job_id, tenant=tenant, state=state)
            for job_id in overdue:
                await self._expire(tenant, job_id)
            drained = await self.outbox.drain(tenant, age_s=self.left_behind_s, most=AT_ONCE)
            if drained:
                log.info("outbox_drained", tenant=tenant, entries=drained)

    async def _expire(self, tenant: str, job_id: str) -> None:
        view = await self.board.view(tenant, job_id)
        if view is None:
            return
        event = ledger.event_text(
            view.job, JobState.EXPIRED, usd=view.usd, attempts=view.attempts, error_code="expired"
        )
        if await self.board.expire(tenant, job_id, event) is JobState.EXPIRED:
            log.info("job_expired", job=job_id, tenant=tenant)
