"""What became of a call: from its message where one came, else from where its result lies."""

import time
from collections import defaultdict
from dataclasses import dataclass, field, replace

from consumers.aws.sagemaker_endpoints import Endpoints, place_of
from consumers.aws.sagemaker_instances import NEVER, Span
from consumers.aws.sagemaker_meters import Result, SageMakerMeters
from consumers.aws.sagemaker_notices import CallName, Ending, Told
from consumers.aws.sagemaker_objects import Objects
from consumers.aws.sagemaker_patience import OpenCalls, Waits, next_look, unsure
from consumers.aws.sagemaker_payloads import answer, refused
from consumers.aws.sagemaker_reference import Reference
from consumers.backend import Answer, BackendError, Late, Pending
from policies.deployments import Deployment
from policies.pricing import Basis, Usage
from policies.retries import Failure
from router.job import Job, Stay

LARGEST_FAILURE = 64 * 1024  # bytes of a container's own error
SHOWN_FAILURE = 4000  # characters of it
TRIES_OF_LOST = 2  # calls of a job one of which was lost: it may have run, and be paid for


@dataclass(frozen=True, slots=True)
class Results:
    """Of all endpoints. What S3 or AWS does not let be known is a `BackendError` UNAVAILABLE."""

    objects: Objects
    endpoints: Endpoints
    meters: SageMakerMeters
    open_calls: OpenCalls
    _waits: defaultdict[str, Waits] = field(default_factory=lambda: defaultdict(Waits))

    def heard(self, told: Told) -> None:
        """How long another call of its endpoint took is what those are waited for that may not have been taken."""
        if told.waited_s is not None:
            self._waits[told.endpoint].add(told.waited_s)

    async def looked(self, deployment: Deployment, known: Reference) -> Told | None:
        """What lies in S3 says of a call as a message would; None where nothing is there yet."""
        name = CallName.parse(known.call)
        assert name is not None
        for ending, named in ((Ending.COMPLETED, known.output_at), (Ending.FAILED, known.failure_at)):
            at = named if known.is_sure else await self.objects.find(deployment, known.readings(named))
            written = await self.objects.get(deployment, at)
            if written is None:
                continue
            return Told(
                call=name,
                endpoint=deployment.model,
                ending=ending,
                output_at=at if ending is Ending.COMPLETED else "",
                failure_at=at if ending is Ending.FAILED else "",
                reason="",
                waited_s=max(0.0, written.at - known.submitted_at),
                answer=written.data if ending is Ending.COMPLETED else None,
                ended_at=written.at,
                is_message=False,
            )
        return None

    async def conclude(self, job: Job, deployment: Deployment, known: Reference, told: Told) -> Answer | None:
        """Its answer; None where it is not there yet. How it failed otherwise is a `BackendError`."""
        match told.ending:
            case Ending.COMPLETED:
                made = await self._answer(job, deployment, told, at=told.output_at or known.output_at)
                if made is not None:
                    self.meters.result(deployment.name, self._way(deployment, known, told))
                return made
            case Ending.FAILED:
                at = told.failure_at or known.failure_at
                failure = await self.objects.get(deployment, at, most=LARGEST_FAILURE)
                self.meters.result(deployment.name, self._way(deployment, known, told))
                raise _failed(job, failure.data if failure else b"", told.reason)
            case Ending.EXPIRED:
                self.meters.result(deployment.name, Result.EXPIRED)
                raise BackendError(
                    Failure.THROTTLED, "it waited at the endpoint longer than its time to live", code="expired"
                )

    async def late(self, job: Job, deployment: Deployment, told: Told) -> Late | None:
        """What it used, whose attempt was given up. None: it came to nothing."""
        if told.ending is not Ending.COMPLETED:
            return None
        try:
            made = await self._answer(job, deployment, told, at=told.output_at)
        except BackendError as error:
            if error.failure is Failure.UNAVAILABLE:
                raise
            return Late(deployment, error.usage)
        return None if made is None else Late(deployment, made.usage)

    def ran(self, deployment: Deployment, told: Told) -> Span | None:
        """When it ran at its endpoint, about; None where not even its end is known."""
        if told.ended_at is None:
            return None
        if told.ending is Ending.EXPIRED:
            return NEVER
        stay_s = told.waited_s or 0.0
        running_s = self.endpoints.running_s(deployment.name, stay_s)
        return Span(told.ended_at - (stay_s if running_s is None else running_s), told.ended_at)

    def waiting(self, job: Job, deployment: Deployment, known: Reference) -> Pending:
        """It has no result yet. Raises `BackendError` where it will not get one."""
        now = time.time()
        age_s = now - known.submitted_at
        if age_s > known.over_after_s or (not known.is_sure and self._is_lost(deployment, known, now)):
            self.meters.result(deployment.name, Result.LOST)
            usage = Usage(input=job.estimate.input_tokens, basis=Basis.ESTIMATED) if known.is_sure else Usage()
            detail = f"no result after {age_s:.0f} s"
            raise BackendError(Failure.TIMED_OUT, detail, code="lost", usage=usage, most_tries=TRIES_OF_LOST)
        self.open_calls.note(deployment.name, known.call, known.submitted_at)
        has_messages = bool(place_of(deployment).queue) and known.is_sure
        return Pending(next_look(age_s, has_messages=has_messages))

    def _is_lost(self, deployment: Deployment, known: Reference, now: float) -> bool:
        """Whether one that may not have been taken would have a result by now. Without an instance none is begun."""
        waits = self._waits.get(deployment.model)
        since = max(known.submitted_at, self.endpoints.last_cold(deployment.name))
        return now - since > unsure(waits.longest if waits else None)

    async def _answer(self, job: Job, deployment: Deployment, told: Told, *, at: str) -> Answer | None:
        place, data = place_of(deployment), told.answer
        if data is None:
            written = await self.objects.get(deployment, at)
            if written is None:
                return None
            data = written.data
        made = answer(data, job, deployment, place, created=int(told.ended_at or time.time()))
        if told.waited_s is None:
            return made
        running_s = self.endpoints.running_s(deployment.name, told.waited_s)
        return replace(made, stay=Stay(told.waited_s, None if running_s is None else round(running_s, 3)))

    @staticmethod
    def _way(deployment: Deployment, known: Reference, told: Told) -> Result:
        """A message that was to come, and whose result was found by looking, is lost or will be late."""
        if told.is_message:
            return Result.MESSAGE
        return Result.FOUND_LATE if place_of(deployment).queue and known.is_sure else Result.LOOKING


def _failed(job: Job, failure: bytes, reason: str) -> BackendError:
    """A container's own error, which is in no fixed form: shown, bounded, never needed."""
    shown = failure.decode("utf-8", "replace").strip()
    detail = " ".join(each for each in (reason, shown[:SHOWN_FAILURE]) if each) or "the call failed"
    usage = Usage(input=job.estimate.input_tokens, basis=Basis.ESTIMATED)
    return BackendError(refused(failure, reason), detail, code="failed", usage=usage)
