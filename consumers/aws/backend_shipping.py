"""Lets jobs that can wait go out together, as batch jobs of Bedrock at its batch price; all others are called live.

In front of the backend that calls live. A job goes out in its first attempt: what comes back from a batch job, or
waited too long for others, is called live in its next. Videos, which no live call makes, are collected as well.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import structlog

from consumers.asked_jobs import AskedJobs
from consumers.aws import bedrock_records
from consumers.aws.bedrock_jobs import BedrockJobs
from consumers.aws.sagemaker_clients import THREADS
from consumers.aws.shipments import How, Phase, Shipments, record_of
from consumers.aws.shipper import POLL_S, Shipper, Told
from consumers.aws.videos import Videos
from consumers.backend import (
    Answer,
    Backend,
    BackendError,
    Late,
    Notice,
    OnChunk,
    Pending,
    PlacedBackend,
    Returned,
    SoFar,
    Submitted,
)
from policies.deployments import Deployment
from policies.pricing import Usage, cost
from policies.retries import Failure
from policies.scripts import BoardUnavailableError, Scripts
from router.job import Job, JobClass
from router.responses import CHAT

log = structlog.get_logger(__name__)

LOOK_S = 1.0  # between two rounds in which nothing was over
SOONEST_CHECK_S, LATEST_CHECK_S = 1.0, 600.0  # whether a deadline has come near
AWAY_S = 1.0
VIDEOS = "/v1/videos"


class ShippingBackend:
    """See `RecoveringBackend`, `NoticingBackend` and `PlacedBackend`; `live` makes the calls that cannot wait.

    A collector calls nobody and has none.
    """

    def __init__(
        self,
        live: Backend | None,
        shipments: Shipments,
        shipper: Shipper,
        asked: AskedJobs,
        videos: Videos,
        *,
        look_s: float = LOOK_S,
    ) -> None:
        self._live = live
        self._videos = videos
        self._places = live if isinstance(live, PlacedBackend) else None
        self._shipments = shipments
        self._shipper = shipper
        self._asked = asked
        self._look_s = look_s

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        live: Backend | None,
        scripts: Scripts,
        asked: AskedJobs,
        deployments: Mapping[str, Deployment],
        *,
        look_s: float = LOOK_S,
        poll_s: float = POLL_S,
    ) -> AsyncGenerator["ShippingBackend"]:
        """For these deployments. `poll_s` is how often AWS is asked how far a batch job or a video is."""
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="bedrock-jobs")
        shipments = Shipments(scripts)
        jobs, ours = BedrockJobs(threads), tuple(deployments.values())
        shipper = Shipper(shipments, jobs, asked, ours, asked.board.epoch, poll_s=poll_s)
        try:
            videos = Videos(threads, asked, poll_s=poll_s)
            yield cls(live, shipments, shipper, asked, videos, look_s=look_s)
        finally:
            shipper.close()
            threads.shutdown(wait=False, cancel_futures=True)

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer | Submitted:
        """Let it wait for others, if it can; else the live call."""
        if job.endpoint == VIDEOS:
            return await self._videos.call(job, deployment, attempt=attempt)
        if _can_wait(job, deployment, attempt) and await self._joins(job, deployment, attempt):
            return _submitted(job, deployment, attempt)
        if self._live is None:
            raise BackendError(Failure.UNAVAILABLE, "this process only collects", code="collects_only")
        return await self._live.call(job, deployment, attempt=attempt, on_chunk=on_chunk, so_far=so_far)

    async def ping(self, deployment: Deployment) -> str | None:
        """Of the live one."""
        return None if self._live is None else await self._live.ping(deployment)

    async def recover(
        self, job: Job, deployment: Deployment, *, attempt: int, reference: str | None
    ) -> Submitted | None:
        """A job that could wait when its process died: it waits still, or from now on."""
        if job.endpoint == VIDEOS:
            return await self._videos.recover(job, deployment, attempt=attempt, reference=reference)
        if deployment.shipping is None:
            return None
        while True:
            try:
                _, phase = await self._shipments.look(deployment.name, record_of(job.id, attempt))
                if phase is Phase.NOWHERE:
                    asked = await self._asked.of(job)
                    if asked is None or not _can_wait(asked, deployment, attempt):
                        return None
                # A batch job that a lost board had is told whose its record is.
                return _submitted(job, deployment, attempt) if await self._joins(job, deployment, attempt) else None
            except (BackendError, BoardUnavailableError):
                await asyncio.sleep(AWAY_S)

    async def collect(
        self, job: Job, deployment: Deployment, reference: str, *, attempt: int
    ) -> Answer | Pending | Returned:
        """What its batch job made of it; or back with it, where that failed or the deadline is near."""
        if job.endpoint == VIDEOS:
            return await self._videos.collect(job, deployment, reference, attempt=attempt)
        told = self._shipper.told.get(reference)
        if told is None:
            return await self._unless_urgent(job, deployment, reference)
        if told.output is None or told.output.error:
            told.how = How.LIVE if told.output is None else How.FAILED
            return Returned(told.reason)
        try:
            answer = bedrock_records.answer(told.output, job, deployment, created=int(time.time()))
        except BackendError as error:
            told.how = How.FAILED
            return Returned(error.code or "unusable_record", error.usage)
        told.how = How.ANSWERED
        return answer

    async def abandon(self, job: Job, deployment: Deployment, reference: str) -> Usage | None:
        """It leaves; a batch job in which nobody is left is stopped. What is in one already may be billed.

        A video is made to its end, and billed.
        """
        if job.endpoint == VIDEOS:
            return None
        try:
            _, phase = await self._shipments.look(deployment.name, reference)
            await self._shipments.leave(deployment.name, reference, How.CANCELLED)
        except BoardUnavailableError:
            return bedrock_records.owed(job)
        return _owed(job, phase)

    async def listen(self) -> Sequence[Notice]:
        """Send what is to be sent, and tell of what is over. Raises `BackendError`."""
        try:
            notices = await self._shipper.round()
        except BoardUnavailableError as error:
            raise BackendError(Failure.UNAVAILABLE, "the board did not answer", code="board_away") from error
        if not notices:
            await asyncio.sleep(self._look_s)
        return notices

    async def acknowledge(self, notice: Notice) -> None:
        """It is concluded. Raises `BackendError`."""
        name, record = notice.handle
        told = self._shipper.told.get(record)
        if told is None:
            return
        deployment, usage = self._shipper.deployment(name), _billed(told)
        try:
            await self._shipments.leave(
                name,
                record,
                told.how,
                usd=None if usage is None else cost(deployment.price, usage),
                usd_live=None if usage is None else cost(deployment.price, bedrock_records.live(usage)),
            )
        except BoardUnavailableError as error:
            raise BackendError(Failure.UNAVAILABLE, "the board did not answer", code="board_away") from error
        self._shipper.told.pop(record, None)

    async def late(self, job: Job, notice: Notice) -> Late | None:
        """By its record, whose answer nobody gets any more."""
        name, record = notice.handle
        told = self._shipper.told.get(record)
        if told is None or told.output is None or told.output.error:
            return None
        return Late(self._shipper.deployment(name), bedrock_records.usage_of(told.output, job))

    def room(self, deployment: str, begun: int) -> int | None:
        """Of the live one."""
        return None if self._places is None else self._places.room(deployment, begun)

    def is_away(self, deployment: str) -> bool:
        """Of the live one."""
        return self._places is not None and self._places.is_away(deployment)

    def welcomes(self, job: Job) -> bool:
        """Of the live one."""
        return self._places is None or self._places.welcomes(job)

    def warming(self) -> Sequence[str]:
        """Of the live one."""
        return () if self._places is None else self._places.warming()

    async def take_place(self, job: Job, deployment: Deployment, *, attempt: int) -> bool:
        """Of the live one; who can wait needs none."""
        if self._places is None or _can_wait(job, deployment, attempt):
            return True
        return await self._places.take_place(job, deployment, attempt=attempt)

    def leave_place(self, job: Job, deployment: Deployment, *, attempt: int) -> None:
        """Of the live one."""
        if self._places is not None:
            self._places.leave_place(job, deployment, attempt=attempt)

    async def _joins(self, job: Job, deployment: Deployment, attempt: int) -> bool:
        assert deployment.shipping is not None
        try:
            return await self._shipments.join(
                deployment.name,
                record_of(job.id, attempt),
                tenant=job.tenant,
                expires_at=job.expires_at,
                patience_s=deployment.shipping.patience_s,
            )
        except BoardUnavailableError as error:
            raise BackendError(Failure.UNAVAILABLE, "the board did not answer", code="board_away") from error

    async def _unless_urgent(self, job: Job, deployment: Deployment, record: str) -> Pending | Returned:
        if deployment.shipping is None:  # not any more
            return Returned("no_batch_jobs", bedrock_records.owed(job))
        try:
            now, phase = await self._shipments.look(deployment.name, record)
            left_s, live_before_s = job.expires_at - now, deployment.shipping.live_before_s
            if phase is Phase.ENDED:  # it is about to be told
                live_before_s /= 2
            if phase is not Phase.NOWHERE and left_s > live_before_s:
                return Pending(_check_in(left_s, live_before_s), holds_places=False)
            await self._shipments.leave(deployment.name, record, How.LIVE)
        except BoardUnavailableError as error:
            raise BackendError(Failure.UNAVAILABLE, "the board did not answer", code="board_away") from error
        return Returned("deadline_near" if phase is not Phase.NOWHERE else "not_in_a_batch_job", _owed(job, phase))


def _can_wait(job: Job, deployment: Deployment, attempt: int) -> bool:
    is_patient = job.job_class is JobClass.BULK and not job.stream and not job.is_waited_for
    is_chat = job.endpoint == CHAT
    if deployment.shipping is None or attempt != 1 or not is_patient or not is_chat:
        return False
    return bedrock_records.carries(job, deployment)


def _submitted(job: Job, deployment: Deployment, attempt: int) -> Submitted:
    assert deployment.shipping is not None
    check_in_s = _check_in(job.expires_at - time.time(), deployment.shipping.live_before_s)
    return Submitted(record_of(job.id, attempt), check_in_s, holds_places=False)


def _check_in(left_s: float, live_before_s: float) -> float:
    return min(LATEST_CHECK_S, max(SOONEST_CHECK_S, left_s - live_before_s))


def _owed(job: Job, phase: Phase) -> Usage:
    """What a record may be billed that leaves."""
    return Usage() if phase in (Phase.NOWHERE, Phase.WAITS) else bedrock_records.owed(job)


def _billed(told: Told) -> Usage | None:
    """What a record has used; None where nobody says."""
    return Usage() if told.output is None or told.output.error else bedrock_records.reported(told.output)
