"""Runs jobs on SageMaker endpoints: asynchronous ones take them and answer later, synchronous ones at once.

Nothing is retried here, and boto3 retries nothing: an attempt is one call. A submit whose answer was lost may have been
taken; as its name and its places in S3 are known beforehand, its result is found all the same.
"""

import asyncio
import json
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import structlog
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)
from prometheus_client import CollectorRegistry

from consumers.aws.sagemaker_clients import THREADS, AwsClients
from consumers.aws.sagemaker_instances import LOOKED_AT_EVERY, SEEN_EVERY_S, Instances
from consumers.aws.sagemaker_meters import Result, SageMakerMeters
from consumers.aws.sagemaker_notices import CallName, Ending, Told, is_canary, mark, read
from consumers.aws.sagemaker_patience import OpenCalls, Waits, longest, next_look
from consumers.aws.sagemaker_payloads import JSON, LARGEST_ANSWER, answer, request
from consumers.aws.sagemaker_scaling import COLD_S
from consumers.aws.sagemaker_watch import EVERY_S, Watch
from consumers.backend import Answer, BackendError, Late, Notice, OnChunk, Pending, SoFar, Submitted
from policies.deployments import SYNC_BYTES, Deployment, SageMaker
from policies.pricing import Basis, Usage
from policies.retries import Failure
from router.job import Job, Stay

log = structlog.get_logger(__name__)

INLINE_BYTES = 128_000  # of a Body; API reference of InvokeEndpointAsync
LISTEN_S, MESSAGES = 20, 10  # the longest and the most that one receive takes; API reference of ReceiveMessage
UNSEEN_S = 30  # a message that is not acknowledged comes again after that
REMEMBERED = 10_000  # messages whose jobs were not looked at yet
LARGEST_FAILURE = 64 * 1024  # bytes of a container's own error
SHOWN_FAILURE = 500  # characters of it

Got = TypeVar("Got")


@dataclass(frozen=True, slots=True)
class Reference:
    """A submitted call, as the board keeps it. `is_sure`: the service said that it took it."""

    call: str
    output_at: str
    failure_at: str
    submitted_at: float
    is_sure: bool = True

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Of the board's text."""
        return cls(**json.loads(text))

    def __str__(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


class SageMakerBackend:
    """See `HandOffBackend`, `RecoveringBackend`, `NoticingBackend` and `WatchedBackend`."""

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        deployments: Mapping[str, Deployment],
        tenants: Sequence[str],
        meters: SageMakerMeters,
        instances: Mapping[str, Instances],
    ) -> None:
        self._instances = instances
        self._meters = meters
        self._open = OpenCalls()
        self._watches: Mapping[str, Watch] = {}
        self._has_none: dict[str, bool] = {}
        self._threads = threads
        self._deployments = deployments
        self._endpoints = {each.model for each in deployments.values()}
        self._tenants = {mark(tenant): tenant for tenant in tenants}
        self._clients = AwsClients()
        self._outputs: dict[str, tuple[str, str]] = {}
        self._told: OrderedDict[str, Told] = OrderedDict()
        self._waits: dict[str, Waits] = defaultdict(Waits)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        deployments: Mapping[str, Deployment],
        tenants: Sequence[str],
        meters: SageMakerMeters | None = None,
        instances: Mapping[str, Instances] = MappingProxyType({}),
    ) -> AsyncGenerator["SageMakerBackend"]:
        """For these deployments; messages are about jobs of these tenants. `instances` have a price."""
        ours = {name: each for name, each in deployments.items() if each.sagemaker is not None}
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sagemaker")
        try:
            yield cls(threads, ours, tenants, meters or SageMakerMeters(CollectorRegistry()), instances)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer | Submitted:
        """Submit it; a synchronous endpoint answers. Streams nothing: `on_chunk` is not called."""
        place = _place(deployment)
        body = request(job, deployment, place)
        if place.is_realtime:
            await self._begun(job, deployment, attempt)
            try:
                return await self._invoke(job, deployment, place, body)
            finally:
                await self._ended(job, deployment, attempt)
        taken = await self._submit(job, deployment, place, body, attempt)
        await self._begun(job, deployment, attempt)
        return taken

    async def recover(self, job: Job, deployment: Deployment, *, attempt: int) -> Submitted | None:
        """The call of an attempt whose process died in it: taken or not, its result would lie in a known place."""
        place = _place(deployment)
        if place.is_realtime:
            return None
        reference = await self._predicted(job, deployment, place, attempt)
        await self._begun(job, deployment, attempt)
        return Submitted(str(reference), next_look(0.0, has_messages=False)) if reference.output_at else None

    async def _begun(self, job: Job, deployment: Deployment, attempt: int) -> None:
        if deployment.name in self._instances:
            await self._instances[deployment.name].begun(f"{job.id}.{attempt}", job.tenant)

    async def _ended(self, job: Job, deployment: Deployment, attempt: int, usage: Usage | None = None) -> None:
        if deployment.name in self._instances:
            tokens = 0 if usage is None else usage.total
            await self._instances[deployment.name].ended(f"{job.id}.{attempt}", tokens)

    async def collect(self, job: Job, deployment: Deployment, reference: str, *, attempt: int) -> Answer | Pending:
        """From the message where one came, else from where the result would lie."""
        try:
            got = await self._collect(job, deployment, reference)
        except BackendError as error:
            if error.failure is not Failure.UNAVAILABLE:  # then it could be asked
                await self._ended(job, deployment, attempt, error.usage)
            raise
        if isinstance(got, Answer):
            await self._ended(job, deployment, attempt, got.usage)
        return got

    async def _collect(self, job: Job, deployment: Deployment, reference: str) -> Answer | Pending:
        known, place = Reference.parse(reference), _place(deployment)
        told = self._told.pop(known.call, None)
        self._open.forget(deployment.name, known.call)
        if told is not None:
            known = replace(known, output_at=told.output_at or known.output_at)
            known = replace(known, failure_at=told.failure_at or known.failure_at)
            match told.ending:
                case Ending.COMPLETED:
                    data = told.answer if told.answer is not None else await self._object(place, known.output_at)
                    if data is not None:
                        self._meters.result(deployment.name, Result.MESSAGE)
                        made = answer(data, job, deployment, place, created=int(known.submitted_at))
                        return replace(made, stay=self._stay(deployment, told))
                case Ending.FAILED:
                    self._meters.result(deployment.name, Result.MESSAGE)
                    raise self._failed(job, await self._object(place, known.failure_at), told.reason)
                case Ending.EXPIRED:
                    self._meters.result(deployment.name, Result.EXPIRED)
                    raise BackendError(
                        Failure.THROTTLED, "it waited at the endpoint longer than its time to live", code="expired"
                    )
        elif (data := await self._object(place, known.output_at)) is not None:
            self._found(deployment, place, known)
            return answer(data, job, deployment, place, created=int(known.submitted_at))
        elif (failure := await self._object(place, known.failure_at)) is not None:
            self._found(deployment, place, known)
            raise self._failed(job, failure, "")
        return self._still_waiting(job, deployment, known, place)

    def _stay(self, deployment: Deployment, told: Told) -> Stay | None:
        if told.waited_s is None:
            return None
        watch = self._watches.get(deployment.name)
        latency = None if watch is None else watch.latency
        return Stay(told.waited_s, None if latency is None else round(min(latency, told.waited_s), 3))

    def _found(self, deployment: Deployment, place: SageMaker, known: Reference) -> None:
        """Without a message. One that was to come is lost, or will be late."""
        is_late = bool(place.queue) and known.is_sure
        self._meters.result(deployment.name, Result.FOUND_LATE if is_late else Result.LOOKING)

    async def abandon(self, job: Job, deployment: Deployment, reference: str) -> None:
        """The service cannot take a call back; what it still answers is late."""
        call = CallName.parse(Reference.parse(reference).call)
        if call is not None:
            await self._ended(job, deployment, call.attempt)

    async def ping(self, deployment: Deployment) -> str | None:
        """Whether the endpoint is there and in service."""
        try:
            found = await self._described(deployment)
        except BackendError as error:
            return f"{deployment.model}: {error.detail}"
        status = found["EndpointStatus"]
        return None if status == "InService" else f"the endpoint {deployment.model} is {status}, not InService"

    async def listen(self) -> Sequence[Notice]:
        """Wait for messages, 20 s at most. Those about no call of ours stay for whoever they are for."""
        queues = {each.sagemaker.queue: each.sagemaker for each in self._deployments.values() if each.sagemaker}
        queues.pop("", None)
        if not queues:
            await asyncio.sleep(LISTEN_S)
            return ()
        heard = await asyncio.gather(*(self._hear(queue, place) for queue, place in queues.items()))
        return [notice for each in heard for notice in each]

    async def acknowledge(self, notice: Notice) -> None:
        """Take its message from the queue."""
        queue, handle = notice.handle
        place = next(
            each.sagemaker for each in self._deployments.values() if each.sagemaker and each.sagemaker.queue == queue
        )
        await self._aws(self._clients.of(place, "sqs").delete_message, QueueUrl=queue, ReceiptHandle=handle)

    async def late(self, job: Job, notice: Notice) -> Late | None:
        """By its answer, which nobody gets any more."""
        told = self._told.pop(str(CallName.of(notice.tenant, notice.job_id, notice.attempt)), None)
        deployment = next((each for each in self._deployments.values() if told and each.model == told.endpoint), None)
        if told is None or deployment is None:
            return None
        self._meters.result(deployment.name, Result.LATE)
        if told.ending is not Ending.COMPLETED:
            return None
        place = _place(deployment)
        data = told.answer if told.answer is not None else await self._object(place, told.output_at)
        if data is None:
            return None
        try:
            return Late(deployment, answer(data, job, deployment, place, created=0).usage)
        except BackendError as error:
            return Late(deployment, error.usage)

    async def watch(self) -> None:
        """The endpoints' own figures and their instances, once a minute."""
        await asyncio.gather(self._watch_figures(), self._watch_instances())

    async def _watch_instances(self) -> None:
        while self._instances:
            for name, instances in self._instances.items():
                try:
                    await instances.looked(await self._described(self._deployments[name]))
                except BackendError as error:
                    log.warning("instances_not_seen", deployment=name, code=error.code)
            for _ in range(LOOKED_AT_EVERY):
                await asyncio.sleep(SEEN_EVERY_S)
                for instances in self._instances.values():
                    await instances.seen()

    async def _described(self, deployment: Deployment) -> Mapping[str, Any]:
        control = self._clients.of(_place(deployment), "sagemaker")
        described: Mapping[str, Any] = await self._aws(control.describe_endpoint, EndpointName=deployment.model)
        counts = [each.get("CurrentInstanceCount") for each in described.get("ProductionVariants", [])]
        self._has_none[deployment.name] = bool(counts) and not any(count != 0 for count in counts)
        return described

    def cold(self) -> Mapping[str, float]:
        """The endpoints without an instance, as they were when they were looked at last."""
        return {name: COLD_S for name, has_none in self._has_none.items() if has_none}

    async def _watch_figures(self) -> None:
        ours = [(each, each.sagemaker) for each in self._deployments.values() if each.sagemaker]
        self._watches = {each.name: self._watch(each, place) for each, place in ours if not place.is_realtime}
        while True:
            for each in self._watches.values():
                try:
                    await each.look(datetime.now(UTC))
                except BackendError as error:
                    log.warning("endpoint_not_watched", deployment=each.name, code=error.code)
            await asyncio.sleep(EVERY_S)

    def _watch(self, deployment: Deployment, place: SageMaker) -> Watch:
        self._meters.oldest(deployment.name, partial(self._open.oldest, deployment.name))
        cloudwatch = self._clients.of(place, "cloudwatch")

        async def variants() -> list[str]:
            found = await self._described(deployment)
            return [each["VariantName"] for each in found.get("ProductionVariants", [])]

        ask = partial(self._aws, cloudwatch.get_metric_statistics)
        return Watch(deployment, ask, variants, self._meters, since=datetime.now(UTC))

    async def _hear(self, queue: str, place: SageMaker) -> list[Notice]:
        given = await self._aws(
            self._clients.of(place, "sqs").receive_message,
            QueueUrl=queue,
            MaxNumberOfMessages=MESSAGES,
            WaitTimeSeconds=LISTEN_S,
            VisibilityTimeout=UNSEEN_S,
            MessageSystemAttributeNames=["SentTimestamp"],
        )
        notices = []
        for message in given.get("Messages", []):
            told = read(message["Body"])
            tenant = self._tenants.get(told.call.tenant_mark) if told else None
            if told is None and is_canary(message["Body"]):
                await self._leave_canary(queue, place, message)
                continue
            if told is None or tenant is None:
                log.warning("foreign_message", queue=queue.rpartition("/")[2], message=message["MessageId"])
                continue
            self._remember(told)
            notices.append(Notice(tenant, told.call.job_id, told.call.attempt, (queue, message["ReceiptHandle"])))
        return notices

    async def _leave_canary(self, queue: str, place: SageMaker, message: Mapping[str, Any]) -> None:
        """Whoever checks the way to the queue waits for it; an old one is waited for by nobody."""
        named = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"]}
        sqs = self._clients.of(place, "sqs")
        if time.time() - int(message["Attributes"]["SentTimestamp"]) / 1000 > UNSEEN_S:
            await self._aws(sqs.delete_message, **named)
        else:
            await self._aws(sqs.change_message_visibility, **named, VisibilityTimeout=1)

    def _remember(self, told: Told) -> None:
        self._told[str(told.call)] = told
        if told.waited_s is not None and told.endpoint in self._endpoints:
            self._waits[told.endpoint].add(told.waited_s)
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    async def _submit(self, job: Job, deployment: Deployment, place: SageMaker, body: bytes, attempt: int) -> Submitted:
        planned = await self._predicted(job, deployment, place, attempt)
        payload: dict[str, object] = {"Body": body}
        if len(body) > INLINE_BYTES:
            payload = {"InputLocation": await self._put_input(place, job, attempt, body)}
        try:
            taken = await self._aws(
                self._clients.of(place, "sagemaker-runtime").invoke_endpoint_async,
                EndpointName=deployment.model,
                ContentType=JSON,
                Accept=JSON,
                InferenceId=planned.call,
                S3OutputPathExtension=_extension(job),
                Filename=f"{job.id}-{attempt}",
                RequestTTLSeconds=place.request_ttl_s,
                InvocationTimeoutSeconds=place.invocation_timeout_s,
                **payload,
            )
        except BackendError as error:
            if error.failure in (Failure.BACKEND_ERROR, Failure.TIMED_OUT) and planned.output_at:
                return Submitted(str(planned), next_look(0.0, has_messages=False))  # it may have been taken
            raise
        sure = replace(
            planned,
            output_at=taken.get("OutputLocation", planned.output_at),
            failure_at=taken.get("FailureLocation", planned.failure_at),
            is_sure=True,
        )
        return Submitted(str(sure), next_look(0.0, has_messages=bool(place.queue)))

    async def _invoke(self, job: Job, deployment: Deployment, place: SageMaker, body: bytes) -> Answer:
        if len(body) > SYNC_BYTES:
            raise BackendError(
                Failure.REJECTED, f"the body is over {SYNC_BYTES} bytes, the most a synchronous endpoint takes"
            )
        given = await self._aws(
            self._clients.of(place, "sagemaker-runtime").invoke_endpoint,
            EndpointName=deployment.model,
            ContentType=JSON,
            Accept=JSON,
            Body=body,
        )
        data = await self._in_thread(given["Body"].read)
        return answer(data, job, deployment, place, created=int(time.time()))

    async def _predicted(self, job: Job, deployment: Deployment, place: SageMaker, attempt: int) -> Reference:
        """Where the result of an attempt would lie: path, extension and file name, in this order."""
        call = str(CallName.of(job.tenant, job.id, attempt))
        output, failure = await self._paths(deployment, place)
        end = f"{_extension(job)}/{job.id}-{attempt}"
        return Reference(
            call=call,
            output_at=f"{output}/{end}" if output else "",
            failure_at=f"{failure}/{end}" if failure else "",
            submitted_at=time.time(),
            is_sure=False,
        )

    async def _paths(self, deployment: Deployment, place: SageMaker) -> tuple[str, str]:
        """The endpoint's own places; '' where they are not to be had."""
        if deployment.model not in self._outputs:
            control = self._clients.of(place, "sagemaker")
            try:
                endpoint = await self._aws(control.describe_endpoint, EndpointName=deployment.model)
                config = await self._aws(
                    control.describe_endpoint_config, EndpointConfigName=endpoint["EndpointConfigName"]
                )
            except BackendError as error:
                log.warning("endpoint_not_described", endpoint=deployment.model, error=error.code)
                return "", ""
            output = config.get("AsyncInferenceConfig", {}).get("OutputConfig", {})
            paths = output.get("S3OutputPath", "").rstrip("/"), output.get("S3FailurePath", "").rstrip("/")
            self._outputs[deployment.model] = paths
        return self._outputs[deployment.model]

    async def _put_input(self, place: SageMaker, job: Job, attempt: int, body: bytes) -> str:
        if not place.inputs:
            raise BackendError(
                Failure.MISCONFIGURED,
                f"a body over {INLINE_BYTES} bytes needs sagemaker.inputs, a place in S3",
                code="no_input_place",
            )
        bucket, key = _split(f"{place.inputs.rstrip('/')}/{_extension(job)}/{job.id}-{attempt}.json")
        await self._aws(self._clients.of(place, "s3").put_object, Bucket=bucket, Key=key, Body=body, ContentType=JSON)
        return f"s3://{bucket}/{key}"

    async def _object(self, place: SageMaker, at: str) -> bytes | None:
        """None where there is none yet. Raises `BackendError` UNAVAILABLE where that cannot be told."""
        if not at:
            return None
        bucket, key = _split(at)
        try:
            given = await self._aws(self._clients.of(place, "s3").get_object, Bucket=bucket, Key=key)
        except BackendError as error:
            if error.code in ("NoSuchKey", "404"):
                return None
            if error.code in ("AccessDenied", "403"):
                self._deny(at)
            # Without s3:ListBucket a missing key is "denied": nobody can tell it from one that is not there yet.
            raise BackendError(Failure.UNAVAILABLE, f"{error.detail} (result)", code=error.code) from error
        return await self._in_thread(lambda: bytes(given["Body"].read(LARGEST_ANSWER)))

    def _deny(self, at: str) -> None:
        """The object may be there or not."""
        bucket, _ = _split(at)
        log.error("result_denied", bucket=bucket, fix=f"grant s3:GetObject and s3:ListBucket on {bucket}")

    def _failed(self, job: Job, failure: bytes | None, reason: str) -> BackendError:
        """A container's own error, which is in no fixed form: shown, bounded, never needed."""
        shown = (failure or b"")[:LARGEST_FAILURE].decode("utf-8", "replace").strip()
        detail = " ".join(each for each in (reason, shown[:SHOWN_FAILURE]) if each) or "the call failed"
        usage = Usage(input=job.estimate.input_tokens, basis=Basis.ESTIMATED)
        status = next((code for code in ("400", "413", "422") if f"({code})" in reason), "")
        return BackendError(
            Failure.REJECTED if status else Failure.BACKEND_ERROR, detail, code=status or "failed", usage=usage
        )

    def _still_waiting(self, job: Job, deployment: Deployment, known: Reference, place: SageMaker) -> Pending:
        age_s = time.time() - known.submitted_at
        waits = self._waits.get(deployment.model)
        if age_s > longest(place, is_sure=known.is_sure, others=waits.longest if waits else None):
            self._meters.result(deployment.name, Result.LOST)
            usage = Usage(input=job.estimate.input_tokens, basis=Basis.ESTIMATED) if known.is_sure else Usage()
            raise BackendError(Failure.TIMED_OUT, f"no result after {age_s:.0f} s", code="lost", usage=usage)
        self._open.note(deployment.name, known.call, known.submitted_at)
        return Pending(next_look(age_s, has_messages=bool(place.queue) and known.is_sure))

    async def _in_thread(self, act: Callable[[], Got]) -> Got:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def _aws(self, operation: Callable[..., Any], **arguments: object) -> Any:
        """One call, with its errors as ours."""
        try:
            return await self._in_thread(lambda: operation(**arguments))
        except ClientError as error:
            raise _of_code(error) from error
        except (ConnectTimeoutError, EndpointConnectionError) as error:
            raise BackendError(Failure.UNAVAILABLE, "AWS could not be reached", code=type(error).__name__) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise BackendError(Failure.MISCONFIGURED, "there are no AWS credentials", code="credentials") from error
        except BotoCoreError as error:  # a connection that broke, an answer that did not come
            raise BackendError(Failure.TIMED_OUT, "AWS did not answer", code=type(error).__name__) from error


def _of_code(error: ClientError) -> BackendError:
    """By the service's own code; its status where that is unknown."""
    told = error.response.get("Error", {})
    code, message = str(told.get("Code", "")), str(told.get("Message", ""))[:SHOWN_FAILURE]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if "Throttl" in code or status == 429:
        failure = Failure.THROTTLED
    elif code == "ModelError":
        original = int(error.response.get("OriginalStatusCode") or 500)
        failure = Failure.REJECTED if original in (400, 413, 422) else Failure.BACKEND_ERROR
    elif code in ("AccessDenied", "AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException"):
        failure = Failure.MISCONFIGURED
    elif status == 503 or code == "ServiceUnavailable":
        failure = Failure.UNAVAILABLE
    elif status >= 500:
        failure = Failure.BACKEND_ERROR
    elif "not found" in message or "takes" in message or status in (401, 403, 404):
        failure = Failure.MISCONFIGURED
    else:
        failure = Failure.REJECTED
    return BackendError(failure, message or code, code=code)


def _place(deployment: Deployment) -> SageMaker:
    if deployment.sagemaker is None:
        raise BackendError(Failure.MISCONFIGURED, "the deployment has no sagemaker section", code="settings")
    return deployment.sagemaker


def _extension(job: Job) -> str:
    """The same for all attempts of a job, whenever they are made."""
    return f"{job.tenant}/{datetime.fromtimestamp(job.created_at, UTC):%Y-%m-%d}"


def _split(at: str) -> tuple[str, str]:
    bucket, _, key = at.removeprefix("s3://").partition("/")
    return bucket, key
