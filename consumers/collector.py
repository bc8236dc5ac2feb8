"""Concludes jobs that a backend works on while nobody waits."""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

import structlog
from ulid import ULID

from consumers.attempt import Attempt
from consumers.backend import BackendError, Notice, NoticingBackend, WatchedBackend
from consumers.late import charge_late
from consumers.outcome import Dead, Later, Left, MovedOn
from consumers.tally import Tally
from policies.scripts import BoardUnavailableError
from router import envelope, topics
from router.board import Submission
from router.epoch import Epoch
from router.job import Job
from router.log import Log, LogUnavailableError, Record
from router.queues import Queues, Told

log = structlog.get_logger(__name__)

AT_ONCE = 50  # of one tenant
TENANTS_AT_ONCE = 8
TELL_EVERY_S = 5.0
DEAF_S = 5.0  # after a failure to listen
OTHERS_S, LOOK_S = 5.0, 0.1  # for whoever else has the job


@dataclass(slots=True)
class Collector:
    """Goes round the tenants' jobs that its backend has. Any number may run: what one looks at is leased to it.

    While the board is lost or was set back it concludes nothing: what is over may not be known there.
    """

    log: Log
    attempt: Attempt
    backend: str
    tenants: Collection[str]
    epoch: Epoch
    every_s: float = 0.5
    queues: Queues | None = None
    clock: Callable[[], float] = time.monotonic

    async def run(self, stop: asyncio.Event) -> None:
        """Collect until `stop`."""
        async with asyncio.TaskGroup() as beside:
            keepers = [beside.create_task(each) for each in (self.attempt.leases.keep(), self.attempt.leases.heed())]
            keepers += [beside.create_task(each) for each in (self.attempt.wakeups.follow(), self.epoch.follow())]
            if isinstance(self.attempt.backend, NoticingBackend):
                keepers.append(beside.create_task(self._heed(self.attempt.backend)))
            if isinstance(self.attempt.backend, WatchedBackend):
                keepers.append(beside.create_task(self.attempt.backend.watch()))
                keepers.append(beside.create_task(self._tell(self.attempt.backend)))
            while not stop.is_set():
                try:
                    if self.epoch.fault is None:
                        await self.round()
                except BoardUnavailableError as error:
                    log.warning("collecting_put_off", error=type(error).__name__)
                try:
                    async with asyncio.timeout(self.every_s):
                        await stop.wait()
                except TimeoutError:
                    continue
            for keeper in keepers:
                keeper.cancel()

    async def round(self) -> None:
        """Look once at all that are due, of some tenants at a time."""
        waiting = iter(self.tenants)

        async def some() -> None:
            for tenant in waiting:
                await self._of(tenant)

        ended = await asyncio.gather(*(some() for _ in range(TENANTS_AT_ONCE)), return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def _of(self, tenant: str) -> None:
        owner = f"{self.attempt.wakeups.channel}|collector|{ULID()}"
        board, lease_s = self.attempt.board, self.attempt.lease_s
        due = await board.collect(tenant, owner, backend=self.backend, lease_s=lease_s, most=AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for submission in due:
                tasks.create_task(self._one(tenant, owner, submission))

    async def _tell(self, backend: WatchedBackend) -> None:
        """For ever: where nothing runs, for those who are asked when a job begins."""
        while self.queues is not None:
            with suppress(BoardUnavailableError):
                await self.queues.tell(f"{self.attempt.wakeups.channel}|collector", Told(cold=backend.cold()))
            await asyncio.sleep(TELL_EVERY_S)

    async def _heed(self, backend: NoticingBackend) -> None:
        """For ever: conclude what the backend says is over, and only then let it know that this was heard."""
        while True:
            if self.epoch.fault is not None:
                await asyncio.sleep(LOOK_S)
                continue
            try:
                notices = await backend.listen()
            except BackendError as error:
                log.warning("nothing_heard", failure=str(error.failure), code=error.code)
                await asyncio.sleep(DEAF_S)
                continue
            await asyncio.gather(*(self._noticed(backend, notice) for notice in notices))

    async def _noticed(self, backend: NoticingBackend, notice: Notice) -> None:
        try:
            if not await self._is_open(notice):
                await charge_late(self.attempt, backend, notice)
                await backend.acknowledge(notice)
            elif await self._is_done_with(notice):
                await backend.acknowledge(notice)
        except (BoardUnavailableError, LogUnavailableError, BackendError) as error:  # it is said again
            log.warning("notice_put_off", job=notice.job_id, error=type(error).__name__)

    async def _is_done_with(self, notice: Notice) -> bool:
        """Whether its attempt is concluded now. Until then another collector may have it, or still its worker."""
        board, lease_s = self.attempt.board, self.attempt.lease_s
        owner = f"{self.attempt.wakeups.channel}|collector|{ULID()}"
        for _ in range(int(OTHERS_S / LOOK_S)):
            due = await board.collect(
                notice.tenant, owner, backend=self.backend, lease_s=lease_s, most=1, job_id=notice.job_id
            )
            for submission in due:
                await self._one(notice.tenant, owner, submission)
            if not await self._is_open(notice):
                return True
            if due:
                return False
            await asyncio.sleep(LOOK_S)
        return False

    async def _is_open(self, notice: Notice) -> bool:
        view = await self.attempt.board.view(notice.tenant, notice.job_id)
        return view is not None and not view.state.is_terminal and view.open_attempt == notice.attempt

    async def _one(self, tenant: str, owner: str, submission: Submission) -> None:
        view = await self.attempt.board.view(tenant, submission.job_id)
        if view is None:
            return
        job = view.job
        tally = Tally(view.microbatch or f"mb_{ULID()}", job.route.deployment, job.route.lane, started=self.clock())
        outcome = await self.attempt.collect(job, owner, submission, tally)
        match outcome:
            case Later(seconds, reason, due_at):
                await self.attempt.until_it_works(lambda: self._put_back(job, seconds, reason, due_at))
            case MovedOn(moved, _):
                record = envelope.to_record(moved)
                await self.attempt.until_it_works(lambda: self.log.append(moved.topic, record))
            case Dead() | Left():
                log.error("collected_job_given_up", job=job.id, outcome=type(outcome).__name__)
        if tally.attempts:
            id = f"{tally.id}:{job.id}.{submission.attempt}"  # others of its microbatch have records of their own
            record = Record(tally.text(self.clock()).encode(), {"version": "1", "id": id})
            await self.attempt.until_it_works(lambda: self.log.append(topics.CHARGES, record))

    async def _put_back(self, job: Job, seconds: float, reason: str, due_at: float | None) -> None:
        """The record went when the backend took the job; the next attempt needs one."""
        record = envelope.to_record(job)
        if due_at is None:
            due_at = await self.attempt.board.now() + seconds
        postponed = envelope.postponed(record, job.topic, due_at=due_at, reason=reason)
        await self.log.append(topics.retry_topic(seconds), postponed)
