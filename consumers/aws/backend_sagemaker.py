"""Runs jobs on SageMaker endpoints: asynchronous ones take them and answer later, synchronous ones at once.

Nothing is retried here, and boto3 retries nothing: an attempt is one call. A submit whose answer was lost may have been
taken; as its name and its places in S3 are known beforehand, its result is found all the same.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import structlog
from prometheus_client import CollectorRegistry

from consumers.aws.sagemaker_aws import Aws
from consumers.aws.sagemaker_clients import THREADS
from consumers.aws.sagemaker_endpoints import Endpoints, place_of
from consumers.aws.sagemaker_instances import NEVER, Instances, Span
from consumers.aws.sagemaker_messages import Messages
from consumers.aws.sagemaker_meters import Result, SageMakerMeters
from consumers.aws.sagemaker_notices import CallName, Told
from consumers.aws.sagemaker_objects import Objects
from consumers.aws.sagemaker_patience import OpenCalls, next_look
from consumers.aws.sagemaker_payloads import request
from consumers.aws.sagemaker_reference import Reference
from consumers.aws.sagemaker_results import Results
from consumers.aws.sagemaker_submits import Submits
from consumers.aws.sagemaker_unheard import Unheard, UnheardCalls
from consumers.backend import Answer, BackendError, Late, Notice, OnChunk, Pending, SoFar, Submitted
from policies.deployments import Deployment
from policies.pricing import Usage
from policies.retries import Failure
from policies.scripts import BoardUnavailableError, Scripts
from router.job import Job
from router.queues import Cold

log = structlog.get_logger(__name__)

UNHEARD_EVERY_S = 5.0
UNHEARD_AT_ONCE = 20  # of one tenant
LONGER_S = 10.0  # than its job has time, before a call's result is looked for that is not told of
FOUND = ""  # in the place of a queue: no message said it


class SageMakerBackend:
    """See `HandOffBackend`, `RecoveringBackend`, `NoticingBackend` and `WatchedBackend`."""

    def __init__(
        self,
        aws: Aws,
        scripts: Scripts,
        deployments: Mapping[str, Deployment],
        tenants: Sequence[str],
        meters: SageMakerMeters,
        instances: Mapping[str, Instances],
    ) -> None:
        self._deployments = deployments
        self._tenants = tenants
        self._meters = meters
        self._instances = instances
        self._objects = Objects(aws, meters.denied)
        open_calls = OpenCalls()
        self._endpoints = Endpoints(aws, deployments, meters, instances, open_calls)
        self._submits = Submits(aws, self._objects, self._endpoints)
        self._results = Results(self._objects, self._endpoints, meters, open_calls)
        self._messages = Messages(aws, [place_of(each) for each in deployments.values()], tenants, self._results.heard)
        self._unheard = UnheardCalls(scripts)
        self._looked_at = 0.0
        for name in deployments:
            meters.oldest(name, partial(open_calls.oldest, name))

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        deployments: Mapping[str, Deployment],
        tenants: Sequence[str],
        scripts: Scripts,
        meters: SageMakerMeters | None = None,
        instances: Mapping[str, Instances] = MappingProxyType({}),
    ) -> AsyncGenerator["SageMakerBackend"]:
        """For these deployments; messages are about jobs of these tenants. `instances` have a price."""
        ours = {name: each for name, each in deployments.items() if each.sagemaker is not None}
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sagemaker")
        try:
            shown = meters or SageMakerMeters(CollectorRegistry())
            yield cls(Aws(threads), scripts, ours, tenants, shown, instances)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer | Submitted:
        """Submit it; a synchronous endpoint answers. Streams nothing: `on_chunk` is not called."""
        place = place_of(deployment)
        body = request(job, deployment, place)
        if place.is_realtime:
            await self._begun(job, deployment, attempt)
            try:
                return await self._submits.invoke(job, deployment, body)
            finally:
                await self._ended(deployment, job.id, attempt)
        planned = await self._submits.planned(job, deployment, attempt)
        look_in_s = min(planned.over_after_s, max(0.0, job.expires_at - planned.submitted_at) + LONGER_S)
        await self._note(job.tenant, deployment, planned, look_in_s=look_in_s)
        await self._begun(job, deployment, attempt)
        try:
            known = await self._submits.submit(job, deployment, planned, body, attempt)
        except BackendError:
            await self._ended(deployment, job.id, attempt, NEVER)
            raise
        return Submitted(str(known), next_look(0.0, has_messages=bool(place.queue) and known.is_sure))

    async def recover(
        self, job: Job, deployment: Deployment, *, attempt: int, reference: str | None
    ) -> Submitted | None:
        """The call of an attempt whose process died in it: taken or not, its result would lie in a known place."""
        place = place_of(deployment)
        if place.is_realtime:
            return None
        if reference is not None:
            known = Reference.parse(reference)
            await self._look_soon(job.tenant, deployment, known)
        else:
            known = await self._submits.planned(job, deployment, attempt)
            if not known.output_at and not place.queue:
                return None
        await self._begun(job, deployment, attempt)
        return Submitted(str(known), next_look(0.0, has_messages=False))

    async def collect(self, job: Job, deployment: Deployment, reference: str, *, attempt: int) -> Answer | Pending:
        """From the message where one came, else from where the result would lie."""
        known = Reference.parse(reference)
        self._results.open_calls.forget(deployment.name, known.call)
        told = self._messages.take(known.call) or await self._results.looked(deployment, known)
        if told is None:
            return await self._waiting(job, deployment, known)
        try:
            made = await self._results.conclude(job, deployment, known, told)
        except BackendError as error:
            if error.failure is not Failure.UNAVAILABLE:  # then it could be asked
                await self._over(job, deployment, attempt, told, error.usage)
            raise
        if made is None:
            return await self._waiting(job, deployment, known)
        await self._over(job, deployment, attempt, told, made.usage)
        return made

    async def abandon(self, job: Job, deployment: Deployment, reference: str) -> None:
        """The service cannot take a call back; what it still answers is late, and looked for."""
        known = Reference.parse(reference)
        self._results.open_calls.forget(deployment.name, known.call)
        await self._look_soon(job.tenant, deployment, known)

    async def ping(self, deployment: Deployment) -> str | None:
        """Whether the endpoint is there and in service."""
        try:
            found = await self._endpoints.described(deployment)
        except BackendError as error:
            return f"{deployment.model}: {error.detail}"
        status = found["EndpointStatus"]
        return None if status == "InService" else f"the endpoint {deployment.model} is {status}, not InService"

    async def listen(self) -> Sequence[Notice]:
        """Messages, and results that no message told of and no job waits for. 20 s at most."""
        return await self._found() or await self._messages.listen()

    async def acknowledge(self, notice: Notice) -> None:
        """It need not be looked for any more, and its message leaves the queue."""
        call = str(CallName.of(notice.tenant, notice.job_id, notice.attempt))
        self._messages.take(call)  # of a repeat nobody has
        await self._unheard.heard(notice.tenant, call)
        queue, handle = notice.handle
        if queue != FOUND:
            await self._messages.acknowledge(queue, handle)

    async def late(self, job: Job, notice: Notice) -> Late | None:
        """By its answer, which nobody gets any more."""
        told = self._messages.take(str(CallName.of(notice.tenant, notice.job_id, notice.attempt)))
        deployment = next((each for each in self._deployments.values() if told and each.model == told.endpoint), None)
        if told is None or deployment is None:
            return None
        try:
            late = await self._results.late(job, deployment, told)
        except BackendError:
            self._messages.remember(told)
            raise
        self._meters.result(deployment.name, Result.LATE)
        usage = None if late is None else late.usage
        await self._ended(deployment, job.id, notice.attempt, self._results.ran(deployment, told), usage)
        return late

    async def watch(self) -> None:
        """The endpoints' own figures and their instances, once a minute."""
        await self._endpoints.watch()

    def cold(self) -> Mapping[str, Cold]:
        """The endpoints without an instance, as they were when they were looked at last."""
        return self._endpoints.cold()

    async def _waiting(self, job: Job, deployment: Deployment, known: Reference) -> Pending:
        try:
            return self._results.waiting(job, deployment, known)
        except BackendError:  # it is lost, but what may have been taken may still come
            await self._look_soon(job.tenant, deployment, known)
            raise

    async def _found(self) -> list[Notice]:
        """Results that lie there of calls that nobody waits for."""
        if time.monotonic() - self._looked_at < UNHEARD_EVERY_S:
            return []
        self._looked_at = time.monotonic()
        found = await asyncio.gather(*(self._found_of(tenant) for tenant in self._tenants))
        return [notice for each in found for notice in each]

    async def _found_of(self, tenant: str) -> list[Notice]:
        notices = []
        try:
            for call in await self._unheard.due(tenant, UNHEARD_AT_ONCE):
                if await self._is_there(tenant, call):
                    notices.append(Notice(tenant, call.name.job_id, call.name.attempt, (FOUND, "")))
        except (BoardUnavailableError, BackendError) as error:  # it is looked for again
            log.warning("unheard_put_off", tenant=tenant, error=type(error).__name__)
        return notices

    async def _is_there(self, tenant: str, call: Unheard) -> bool:
        known, deployment = call.reference, self._deployments.get(call.deployment)
        if deployment is None:
            await self._unheard.heard(tenant, known.call)
            return False
        told = await self._results.looked(deployment, known)
        if told is not None:
            self._messages.remember(replace(told, answer=None))  # it may be large, and is read when it is its turn
        elif time.time() - known.submitted_at > known.over_after_s:
            await self._ended(deployment, call.name.job_id, call.name.attempt, NEVER)
            await self._unheard.heard(tenant, known.call)
        else:
            await self._look_soon(tenant, deployment, known)
        return told is not None

    async def _look_soon(self, tenant: str, deployment: Deployment, known: Reference) -> None:
        age_s = max(0.0, time.time() - known.submitted_at)
        await self._note(tenant, deployment, known, look_in_s=next_look(age_s, has_messages=True))

    async def _note(self, tenant: str, deployment: Deployment, known: Reference, *, look_in_s: float) -> None:
        try:
            await self._unheard.note(tenant, deployment.name, known, look_in_s=look_in_s)
        except BoardUnavailableError as error:  # its message says it, if it comes
            log.warning("call_not_noted", deployment=deployment.name, error=type(error).__name__)

    async def _over(self, job: Job, deployment: Deployment, attempt: int, told: Told, usage: Usage) -> None:
        """Its end is known, and is about to be written down; if that fails, it is collected again."""
        await self._ended(deployment, job.id, attempt, self._results.ran(deployment, told), usage)
        try:
            await self._unheard.heard(job.tenant, str(told.call))
        except BoardUnavailableError:  # it is looked for once more, and found to be concluded
            log.warning("call_not_struck", deployment=deployment.name)

    async def _begun(self, job: Job, deployment: Deployment, attempt: int) -> None:
        if deployment.name in self._instances:
            await self._instances[deployment.name].begun(f"{job.id}.{attempt}", job.tenant)

    async def _ended(
        self,
        deployment: Deployment,
        job_id: str,
        attempt: int,
        ran: Span | None = None,
        usage: Usage | None = None,
    ) -> None:
        if deployment.name in self._instances:
            tokens = 0 if usage is None else usage.total
            await self._instances[deployment.name].ended(f"{job_id}.{attempt}", tokens, ran)
