"""AWS' side of a shipment: its input and output in S3, and the one batch job of Bedrock between them."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, BinaryIO, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from consumers.aws.sagemaker_clients import AwsClients, read_most, words
from policies.deployments import Bedrock, Deployment
from policies.shipping import Shipping

Got = TypeVar("Got")
ENDED = frozenset({"Completed", "PartiallyCompleted", "Failed", "Stopped", "Expired"})
# Of the job itself; whatever else is wrong may pass, or an operator mends it.
REFUSED = frozenset({"ValidationException", "ResourceNotFoundException"})
SHOWN = 300  # characters of AWS' own words
OLDEST = timedelta(days=10)  # of a batch job that somebody may still wait for: they run for seven at most
LARGEST_NAMES = 16 * 1024 * 1024  # bytes


class AwsError(Exception):
    """AWS could not be asked, or did not want to: later it may."""


class RefusedError(AwsError):
    """AWS takes no such job, whenever it is asked."""


@dataclass(frozen=True, slots=True)
class Status:
    """What AWS says of a batch job."""

    name: str
    message: str

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more. What it has done by then is in its output, and on the bill."""
        return self.name in ENDED


class BedrockJobs:
    """One call to AWS each, in a thread; raises `AwsError`. A shipment's id is its job's token and in its name."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._clients = AwsClients()

    async def put_names(self, deployment: Deployment, id: str, records: Sequence[str]) -> None:
        """Whose job it is and what is in it, for a board that has lost that; once, as the input."""
        names = json.dumps({"deployment": deployment.name, "records": list(records)}).encode()
        await self._put_once(deployment, id, "names.json", names)

    async def names(self, deployment: Deployment, id: str) -> list[str]:
        """The records of that shipment; none where it is another deployment's, or nobody wrote them down."""
        bucket, key = self._at(deployment, id, "names.json")
        s3 = self._clients.of(_of(deployment)[0], "s3")
        try:
            given = await self._in_thread(
                lambda: read_most(s3.get_object(Bucket=bucket, Key=key)["Body"], LARGEST_NAMES)
            )
            found = json.loads(given)
        except _CodeError as error:
            if error.code in ("NoSuchKey", "404"):
                return []
            raise
        except ValueError:
            return []
        return [str(name) for name in found["records"]] if found.get("deployment") == deployment.name else []

    async def lately(self, deployment: Deployment) -> Mapping[str, str]:
        """The ARNs by shipment of the batch jobs that work at this place, and that somebody may still wait for."""
        since, found, more = datetime.now(UTC) - OLDEST, dict[str, str](), dict[str, str]()
        while True:
            page = await self._call(
                deployment,
                "bedrock",
                "list_model_invocation_jobs",
                nameContains=_name(""),
                submitTimeAfter=since,
                maxResults=100,
                **more,
            )
            for job in page.get("invocationJobSummaries", []):
                id = str(job["jobName"]).removeprefix(_name(""))
                bucket, out = self._at(deployment, id, "out/")
                if job["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"] == f"s3://{bucket}/{out}":
                    found[id] = str(job["jobArn"])
            if not page.get("nextToken"):
                return found
            more = {"nextToken": page["nextToken"]}

    async def put_input(self, deployment: Deployment, id: str, lines: BinaryIO) -> None:
        """Once: what was put first stays, as the job may be reading it."""
        await self._put_once(deployment, id, "in/records.jsonl", lines)

    async def create(self, deployment: Deployment, id: str) -> str:
        """Its ARN. Twice is once: AWS knows the token."""
        place, rule = _of(deployment)
        bucket, key = self._at(deployment, id, "in/records.jsonl")
        _, out = self._at(deployment, id, "out/")
        try:
            made = await self._call(
                deployment,
                "bedrock",
                "create_model_invocation_job",
                jobName=_name(id),
                clientRequestToken=id,
                roleArn=rule.role,
                modelId=place.profile or deployment.model,
                modelInvocationType="Converse",
                inputDataConfig={"s3InputDataConfig": {"s3InputFormat": "JSONL", "s3Uri": f"s3://{bucket}/{key}"}},
                outputDataConfig={"s3OutputDataConfig": {"s3Uri": f"s3://{bucket}/{out}"}},
                timeoutDurationInHours=rule.timeout_h,
                tags=[{"key": "pointsman:deployment", "value": deployment.name}],
            )
        except _CodeError as error:
            if error.code in REFUSED:
                raise RefusedError(str(error)) from error
            raise
        return str(made["jobArn"])

    async def find(self, deployment: Deployment, id: str) -> str | None:
        """The ARN of its job, where AWS has one."""
        found = await self._call(
            deployment, "bedrock", "list_model_invocation_jobs", nameContains=_name(id), maxResults=10
        )
        jobs = found.get("invocationJobSummaries", [])
        return next((str(job["jobArn"]) for job in jobs if job["jobName"] == _name(id)), None)

    async def status(self, deployment: Deployment, arn: str) -> Status:
        """How far it is."""
        found = await self._call(deployment, "bedrock", "get_model_invocation_job", jobIdentifier=arn)
        return Status(str(found["status"]), str(found.get("message", ""))[:SHOWN])

    async def stop(self, deployment: Deployment, arn: str) -> None:
        """Nobody wants it any more."""
        try:
            await self._call(deployment, "bedrock", "stop_model_invocation_job", jobIdentifier=arn)
        except _CodeError as error:
            if error.code != "ConflictException":  # it has ended
                raise

    async def output(self, deployment: Deployment, id: str) -> BinaryIO:
        """All lines of its output, in a file on disk that is gone when it is closed."""
        bucket, prefix = self._at(deployment, id, "out/")
        s3 = self._clients.of(_of(deployment)[0], "s3")
        return await self._in_thread(lambda: _downloaded(s3, bucket, prefix))

    async def _put_once(self, deployment: Deployment, id: str, name: str, body: BinaryIO | bytes) -> None:
        bucket, key = self._at(deployment, id, name)
        try:
            await self._call(deployment, "s3", "put_object", Bucket=bucket, Key=key, Body=body, IfNoneMatch="*")
        except _CodeError as error:
            if error.code not in ("PreconditionFailed", "412"):
                raise

    def _at(self, deployment: Deployment, id: str, name: str) -> tuple[str, str]:
        bucket, _, prefix = _of(deployment)[1].place.removeprefix("s3://").partition("/")
        return bucket, "/".join(part for part in (prefix.strip("/"), id, name) if part)

    async def _call(self, deployment: Deployment, service: str, operation: str, **arguments: object) -> Any:
        client = self._clients.of(_of(deployment)[0], service)
        return await self._in_thread(partial(getattr(client, operation), **arguments))

    async def _in_thread(self, act: Callable[[], Got]) -> Got:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, act)
        except ClientError as error:
            raise _CodeError(str(error.response.get("Error", {}).get("Code", "")), words(error)[:SHOWN]) from error
        except (BotoCoreError, OSError) as error:
            raise AwsError(f"{type(error).__name__}") from error


class _CodeError(AwsError):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _downloaded(s3: Any, bucket: str, prefix: str) -> BinaryIO:
    lines: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  # whoever gets it closes it
    try:
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for found in page.get("Contents", []):
                if found["Key"].endswith(".jsonl.out"):
                    shutil.copyfileobj(s3.get_object(Bucket=bucket, Key=found["Key"])["Body"], lines)
                    lines.write(b"\n")
        lines.seek(0)
    except BaseException:
        lines.close()
        raise
    return lines


def _of(deployment: Deployment) -> tuple[Bedrock, Shipping]:
    assert deployment.bedrock is not None and deployment.shipping is not None
    return deployment.bedrock, deployment.shipping


def _name(id: str) -> str:
    return f"pointsman-{id}"
