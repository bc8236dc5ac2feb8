"""What endpoints read from S3 and write there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from consumers.aws.sagemaker_aws import Aws
from consumers.aws.sagemaker_endpoints import place_of
from consumers.aws.sagemaker_payloads import JSON, LARGEST_ANSWER
from consumers.backend import BackendError
from policies.deployments import Deployment, SageMaker
from policies.retries import Failure

log = structlog.get_logger(__name__)

LISTED = 20  # attempts of one job whose numbers begin alike


@dataclass(frozen=True, slots=True)
class Written:
    """An object, and when it was written."""

    data: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Objects:
    """In S3, by `s3://bucket/key`. `denied` is told whose it is that S3 says nothing of, each time."""

    aws: Aws
    denied: Callable[[str], None]

    async def get(self, deployment: Deployment, at: str, *, most: int = LARGEST_ANSWER) -> Written | None:
        """So much of it; None where there is none yet. Raises `BackendError` UNAVAILABLE where that cannot be told."""
        if not at:
            return None
        bucket, key = split(at)
        try:
            given = await self.aws.ask(place_of(deployment), "s3", "get_object", Bucket=bucket, Key=key)
            return Written(await self.aws.read(given["Body"], most), given["LastModified"].timestamp())
        except BackendError as error:
            if error.code in ("NoSuchKey", "404"):
                return None
            raise self._unseen(deployment, bucket, error) from error

    async def find(self, deployment: Deployment, readings: Sequence[str]) -> str:
        """Where one of these is, with whatever ending the service has given it; '' where none is. Raises as `get`."""
        for at in readings:
            bucket, key = split(at)
            named = {"Bucket": bucket, "Prefix": key, "MaxKeys": LISTED}
            try:
                given = await self.aws.ask(place_of(deployment), "s3", "list_objects_v2", **named)
            except BackendError as error:
                raise self._unseen(deployment, bucket, error) from error
            for each in given.get("Contents", []):
                rest = str(each["Key"]).removeprefix(key)
                if not rest or rest.startswith((".", "-error")):
                    return f"s3://{bucket}/{each['Key']}"
        return ""

    async def put(self, place: SageMaker, at: str, body: bytes) -> None:
        """Raises `BackendError`."""
        bucket, key = split(at)
        await self.aws.ask(place, "s3", "put_object", Bucket=bucket, Key=key, Body=body, ContentType=JSON)

    def _unseen(self, deployment: Deployment, bucket: str, error: BackendError) -> BackendError:
        if error.code in ("AccessDenied", "403"):
            # Without s3:ListBucket a missing key is "denied": nobody can tell it from one that is not there yet.
            log.error("result_denied", bucket=bucket, fix=f"grant s3:GetObject and s3:ListBucket on {bucket}")
            self.denied(deployment.name)
        return BackendError(Failure.UNAVAILABLE, f"{error.detail} (result)", code=error.code)


def split(at: str) -> tuple[str, str]:
    """Bucket and key."""
    bucket, _, key = at.removeprefix("s3://").partition("/")
    return bucket, key
