"""Videos that models of Bedrock make: asked for by StartAsyncInvoke, and looked for until they lie in S3."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)

from consumers.asked_jobs import AskedJobs
from consumers.aws import bedrock_videos
from consumers.aws.bedrock_errors import BY_CODE, Meaning, as_error, meaning, waiting
from consumers.aws.sagemaker_clients import AwsClients, words
from consumers.backend import Answer, BackendError, Pending, Submitted
from policies.deployments import Bedrock, Deployment
from policies.pricing import Usage
from policies.retries import FINAL, MAY_HAVE_RUN, Failure
from policies.scripts import BoardUnavailableError
from router import sounds
from router.job import Job
from router.payloads import PayloadUnavailableError

log = structlog.get_logger(__name__)

POLL_S = 10.0
SOON_S = 1.0
UNSURE = "unsure"  # in place of AWS' name for it: the answer that said it was lost
MP4 = "video/mp4"
LARGEST = 256 * 1024 * 1024  # bytes of a video
SHOWN = 500  # characters of AWS' own words


class Videos:
    """Takes jobs and collects them: see `HandOffBackend` and `RecoveringBackend`.

    The name of an attempt is the token of its call. One whose answer was lost is made again, and is the same to AWS.
    """

    def __init__(self, threads: ThreadPoolExecutor, asked: AskedJobs, *, poll_s: float = POLL_S) -> None:
        self._threads = threads
        self._clients = AwsClients()
        self._asked = asked
        self._poll_s = poll_s
        self._one_at_a_time = asyncio.Lock()  # a video is held in memory

    async def call(self, job: Job, deployment: Deployment, *, attempt: int) -> Submitted:
        """Let Bedrock have it."""
        try:
            return Submitted(await self._start(job, deployment, attempt), self._poll_s)
        except BackendError as error:
            if error.failure in MAY_HAVE_RUN:
                return Submitted(UNSURE, SOON_S)
            raise

    async def recover(
        self, job: Job, deployment: Deployment, *, attempt: int, reference: str | None
    ) -> Submitted | None:
        """Whether or not it was asked for when its process died: from now on it is, once."""
        return Submitted(reference or UNSURE, SOON_S)

    async def collect(self, job: Job, deployment: Deployment, reference: str, *, attempt: int) -> Answer | Pending:
        """The video, once it lies there."""
        if reference == UNSURE:
            reference = await self._again(job, deployment, attempt)
        runtime = self._clients.of(_place(deployment), "bedrock-runtime")
        try:
            found = await self._aws(runtime.get_async_invoke, invocationArn=reference)
        except BackendError as error:
            if error.failure is Failure.REJECTED:
                raise _lost(job, "Bedrock does not know the video any more") from error
            raise _not_asked(error) from error
        match found["status"]:
            case "Completed":
                return await self._made(job, deployment, attempt)
            case "Failed":
                raise _failed(str(found.get("failureMessage", "")))
        return Pending(self._poll_s)

    async def _start(self, job: Job, deployment: Deployment, attempt: int) -> str:
        place, name = _place(deployment), _name(job, attempt)
        bucket, prefix = _at(place, name)
        started = await self._aws(
            self._clients.of(place, "bedrock-runtime").start_async_invoke,
            clientRequestToken=name,
            modelId=place.profile or deployment.model,
            modelInput=bedrock_videos.model_input(job, deployment),
            outputDataConfig={"s3OutputDataConfig": {"s3Uri": f"s3://{bucket}/{prefix}"}},
            tags=[{"key": "pointsman:job", "value": job.id}],
        )
        return str(started["invocationArn"])

    async def _again(self, job: Job, deployment: Deployment, attempt: int) -> str:
        """By the same token: AWS says the name of the one that it has, or begins it now."""
        try:
            asked = await self._asked.of(job)
        except (BoardUnavailableError, PayloadUnavailableError) as error:
            raise BackendError(Failure.UNAVAILABLE, "the job's body is not to be had", code="body_away") from error
        if asked is None:
            raise _lost(job, "the job's body is lost")
        try:
            return await self._start(asked, deployment, attempt)
        except BackendError as error:
            if error.failure in FINAL:
                raise
            raise _not_asked(error) from error  # it may be under way: another attempt would make another video

    async def _made(self, job: Job, deployment: Deployment, attempt: int) -> Answer:
        place = _place(deployment)
        bucket, prefix = _at(place, _name(job, attempt))
        s3 = self._clients.of(place, "s3")
        try:
            listed = await self._aws(s3.list_objects_v2, Bucket=bucket, Prefix=f"{prefix}/")
            videos = [each for each in listed.get("Contents", []) if each["Key"].endswith(".mp4")]
            if not videos:
                raise _lost(job, "Bedrock says that the video is there, and it is not in its place")
            if videos[0]["Size"] > LARGEST:
                raise _lost(job, f"the video has more than {LARGEST} bytes")
            async with self._one_at_a_time:
                given = await self._aws(s3.get_object, Bucket=bucket, Key=videos[0]["Key"])
                data = await self._aws(given["Body"].read)
        except BackendError as error:
            raise error if error.code == "lost" else _not_asked(error) from error
        head, length = data[: sounds.HEAD], job.estimate.video_seconds
        if b"mvhd" in head and abs(sounds.seconds(head, len(data)) - length) > 1:
            log.warning("video_of_other_length", job=job.id, asked_s=length, is_s=sounds.seconds(head, len(data)))
        return Answer(data, Usage(video_seconds=length), MP4)

    async def _aws(self, operation: Callable[..., Any], **arguments: object) -> Any:
        """One call, with its errors as ours."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(operation, **arguments))
        except ClientError as error:
            raise _of_code(error) from error
        except (ConnectTimeoutError, EndpointConnectionError) as error:
            found = Meaning(Failure.UNAVAILABLE, "AWS could not be reached")
            raise as_error(found, type(error).__name__) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise as_error(BY_CODE["NoCredentials"], "no_credentials") from error
        except (BotoCoreError, OSError) as error:  # a connection that broke, an answer that did not come
            found = Meaning(Failure.TIMED_OUT, "AWS did not answer")
            raise as_error(found, type(error).__name__) from error


def trouble(deployment: Deployment) -> str | None:
    """What keeps Bedrock from being asked, or the place from being used, in one line. No video is made. Blocks."""
    clients, place = AwsClients(), _place(deployment)
    try:
        clients.of(place, "bedrock-runtime").list_async_invokes(maxResults=1)
        clients.of(place, "s3").head_bucket(Bucket=_at(place, "")[0])
    except (ClientError, BotoCoreError) as error:
        return f"{deployment.name}: {words(error)}"
    return None


def _of_code(error: ClientError) -> BackendError:
    told, about = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    code, message = str(told.get("Code", "")), str(told.get("Message", ""))[:SHOWN]
    found = waiting(meaning(code, about.get("HTTPStatusCode"), message), None)
    if found.pause_s is not None:
        log.error("bedrock_refuses_all", code=code, said=message)
    return as_error(found, code, message)


def _failed(message: str) -> BackendError:
    """Videos that were not made are not billed. A filter's words are the client's."""
    found = meaning("ValidationException", None, message)
    if found.failure is not Failure.FILTERED:
        found = replace(BY_CODE["ModelErrorException"], detail="the model made no video")
    return as_error(found, "video_failed", message[:SHOWN])


def _lost(job: Job, detail: str) -> BackendError:
    """It may have been made, and is then billed."""
    return BackendError(Failure.BACKEND_ERROR, detail, code="lost", usage=job.estimate.owed, most_tries=1)


def _not_asked(error: BackendError) -> BackendError:
    """The job goes on there; it is asked again later."""
    return BackendError(Failure.UNAVAILABLE, error.detail, code=error.code)


def _place(deployment: Deployment) -> Bedrock:
    if deployment.bedrock is None or not deployment.bedrock.videos:
        raise BackendError(Failure.MISCONFIGURED, "the deployment has no bedrock.videos", code="no_place_for_videos")
    return deployment.bedrock


def _at(place: Bedrock, name: str) -> tuple[str, str]:
    bucket, _, prefix = place.videos.removeprefix("s3://").partition("/")
    return bucket, "/".join(part for part in (prefix.strip("/"), name) if part)


def _name(job: Job, attempt: int) -> str:
    return f"{job.id}-{attempt}"
