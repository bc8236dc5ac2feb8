"""Gives calls to endpoints."""

import time
from dataclasses import dataclass, replace

from consumers.aws.sagemaker_aws import Aws
from consumers.aws.sagemaker_endpoints import Endpoints, place_of
from consumers.aws.sagemaker_objects import Objects
from consumers.aws.sagemaker_payloads import JSON, answer
from consumers.aws.sagemaker_reference import Reference, extension_of, filename_of
from consumers.backend import Answer, BackendError
from policies.deployments import SYNC_BYTES, Deployment, SageMaker
from policies.retries import Failure
from router.job import Job

INLINE_BYTES = 128_000  # of a Body; API reference of InvokeEndpointAsync
MAYBE_TAKEN = frozenset({Failure.BACKEND_ERROR, Failure.TIMED_OUT})


@dataclass(frozen=True, slots=True)
class Submits:
    """An attempt is one call, and nothing is tried again here."""

    aws: Aws
    objects: Objects
    endpoints: Endpoints

    async def planned(self, job: Job, deployment: Deployment, attempt: int) -> Reference:
        """The call of an attempt before anybody has made it, or as whoever made it knew it."""
        output, failure = await self.endpoints.paths(deployment)
        place, now = place_of(deployment), time.time()
        return Reference.planned(job, attempt, place, output=output, failure=failure, now=now)

    async def submit(
        self, job: Job, deployment: Deployment, planned: Reference, body: bytes, attempt: int
    ) -> Reference:
        """The call as it is known now. Raises `BackendError` where it was certainly not taken."""
        place = place_of(deployment)
        payload: dict[str, object] = {"Body": body}
        if len(body) > INLINE_BYTES:
            payload = {"InputLocation": await self._put_input(place, job, attempt, body)}
        try:
            taken = await self.aws.ask(
                place,
                "sagemaker-runtime",
                "invoke_endpoint_async",
                EndpointName=deployment.model,
                ContentType=JSON,
                Accept=JSON,
                InferenceId=planned.call,
                S3OutputPathExtension=planned.extension,
                Filename=filename_of(job, attempt),
                RequestTTLSeconds=planned.ttl_s,
                InvocationTimeoutSeconds=planned.timeout_s,
                **payload,
            )
        except BackendError as error:
            if error.failure in MAYBE_TAKEN and (planned.output_at or place.queue):  # where its end is found
                return planned
            raise
        return replace(
            planned,
            output_at=taken.get("OutputLocation", planned.output_at),
            failure_at=taken.get("FailureLocation", planned.failure_at),
            is_sure=True,
        )

    async def invoke(self, job: Job, deployment: Deployment, body: bytes) -> Answer:
        """Of a synchronous endpoint, which answers. Raises `BackendError`."""
        place = place_of(deployment)
        if len(body) > SYNC_BYTES:
            raise BackendError(
                Failure.REJECTED, f"the body is over {SYNC_BYTES} bytes, the most a synchronous endpoint takes"
            )
        given = await self.aws.ask(
            place,
            "sagemaker-runtime",
            "invoke_endpoint",
            EndpointName=deployment.model,
            ContentType=JSON,
            Accept=JSON,
            Body=body,
        )
        data = await self.aws.read(given["Body"], SYNC_BYTES)
        return answer(data, job, deployment, place, created=int(time.time()))

    async def _put_input(self, place: SageMaker, job: Job, attempt: int, body: bytes) -> str:
        if not place.inputs:
            raise BackendError(
                Failure.MISCONFIGURED,
                f"a body over {INLINE_BYTES} bytes needs sagemaker.inputs, a place in S3",
                code="no_input_place",
            )
        at = f"{place.inputs.rstrip('/')}/{extension_of(job)}/{filename_of(job, attempt)}.json"
        await self.objects.put(place, at, body)
        return at
