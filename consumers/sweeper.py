"""Repairs what a died process left behind. Any number may run: each step is safe to repeat."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from policies.pricing import Basis, Usage, charge, total
from policies.quota import Quotas, Scope, tenant_slot
from policies.scripts import BoardUnavailableError
from router import ledger
from router.board import Attempted, Board
from router.epoch import Epoch
from router.job import Job, JobState
from router.log import LogUnavailableError
from router.outbox import Outbox, reservation_id
from router.payloads import Payloads, PayloadUnavailableError

log = structlog.get_logger(__name__)

AT_ONCE = 200
TENANTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Goes round all tenants: rejects what was never confirmed, expires what nobody runs, drains outboxes.

    Its stamp on each tenant, and on all that is `limited`, tells a Redis that stood still from owners that died. `trim`
    shortens the log, where that is ours to do; `look` counts what waits, `ended` hears of jobs that expired.
    `unpublished_s` is longer than any accept waits for the log, `left_behind_s` longer than a living worker takes to
    publish.
    """

    board: Board
    epoch: Epoch
    outbox: Outbox
    payloads: Payloads
    tenants: Collection[str]
    lease_s: float
    limited: Sequence[Scope] = ()
    trim: Callable[[], Awaitable[None]] | None = None
    look: Callable[[], Awaitable[None]] | None = None
    ended: Callable[[Job, JobState], None] = lambda job, state: None
    every_s: float = 1.0
    trim_every: int = 30  # rounds
    look_every: int = 3
    watch_every: int = 3
    unpublished_s: float = 60.0
    left_behind_s: float = 10.0

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until `stop`."""
        rounds = 0
        while not stop.is_set():
            try:
                await self.sweep()
                if rounds % self.watch_every == 0:
                    await asyncio.gather(*map(self.outbox.quotas.watch, self.limited))
                if self.look is not None and rounds % self.look_every == 0:
                    await self.look()
                if self.trim is not None and rounds % self.trim_every == 0:
                    await self.trim()
            except (BoardUnavailableError, LogUnavailableError, PayloadUnavailableError) as error:
                log.warning("sweep_put_off", error=type(error).__name__)
            rounds += 1
            try:
                async with asyncio.timeout(self.every_s):
                    await stop.wait()
            except TimeoutError:
                continue

    async def sweep(self) -> None:
        """One round, some tenants at a time: none waits for long because another has much to repair.

        None on a board that was lost: jobs would end there that have ended otherwise.
        """
        await self.epoch.look()
        if self.epoch.fault is not None:
            return
        await self.board.beat()
        waiting = iter(self.tenants)

        async def some() -> None:
            for tenant in waiting:
                await self._sweep(tenant)

        ended = await asyncio.gather(*(some() for _ in range(TENANTS_AT_ONCE)), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def _sweep(self, tenant: str) -> None:
        swept = await self.board.sweep(tenant, unpublished_s=self.unpublished_s, lease_s=self.lease_s, most=AT_ONCE)
        for job_id in swept.unpublished:
            state = await self.board.reject(tenant, job_id)
            log.warning("unpublished_job_swept", job=job_id, tenant=tenant, state=state)
            await self._give_back(tenant, job_id, state)
        for job_id in swept.overdue:
            await self._expire(tenant, job_id)
        for job_id, deployment in swept.unclaimed:  # their door died before their job was on the board
            log.warning("reservation_given_back", job=job_id, tenant=tenant)
            await self.outbox.give_back(tenant, deployment, job_id)
        if swept.objects:
            await self._forget(tenant, swept.objects)
        drained = await self.outbox.drain(tenant, age_s=self.left_behind_s, most=AT_ONCE)
        if drained:
            log.info("outbox_drained", tenant=tenant, entries=drained)

    async def _give_back(self, tenant: str, job_id: str, state: JobState) -> None:
        view = await self.board.view(tenant, job_id) if state is JobState.REJECTED else None
        if view is not None and view.job.is_reserved:
            await self.outbox.give_back(tenant, view.job.route.deployment, job_id)

    async def _forget(self, tenant: str, paths: Sequence[str]) -> None:
        """Bodies of jobs that are over, and results whose time is over."""
        await asyncio.gather(*(self.payloads.remove(path) for path in paths))
        await self.board.forget_objects(tenant, paths)

    async def _expire(self, tenant: str, job_id: str) -> None:
        view = await self.board.view(tenant, job_id)
        if view is None:
            return
        if view.open_attempt is not None:  # its owner died long ago, and nobody got its record
            await self.board.close_attempt(view.job, self._lost(view.job, view.open_attempt))
            view = await self.board.view(tenant, job_id) or view
        event = ledger.event_text(
            view.job, JobState.EXPIRED, usd=view.usd, attempts=view.attempts, error_code="expired"
        )
        if await self.board.expire(tenant, job_id, event) is JobState.EXPIRED:
            self.ended(view.job, JobState.EXPIRED)
            log.info("job_expired", job=job_id, tenant=tenant)

    def _lost(self, job: Job, attempt: int) -> Attempted:
        deployment = self.outbox.deployments.get(job.route.deployment)
        usage = Usage(input=job.estimate.input_tokens, basis=Basis.ESTIMATED)
        lines = charge(deployment.price if deployment else None, usage, job=job.id, attempt=attempt, outcome="lost")
        rid = reservation_id(job.id, attempt)
        settle = Quotas.settle_anyway(tenant_slot(job.tenant), rid, tokens=usage.total, usd=total(lines))
        return Attempted(attempt, "", lines, usage.total, settle)
