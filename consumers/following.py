"""What follows an answer, a failure or a stop: the job is over, is tried again, or goes on elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from consumers import problems
from consumers.backend import Answer, BackendError
from consumers.concluding import Concluding
from consumers.judged import Fault, fault
from consumers.learning import values_of
from consumers.means import Means
from consumers.outcome import Concluded, Dead, Later, Left, MovedOn, Outcome
from consumers.running import Running, Stop
from policies.deployments import Deployment
from policies.pricing import Usage
from policies.retries import Again, Failure, GiveUp
from router.fallback import moved
from router.job import JSON, Alternative, Job, JobState
from router.payloads import result_path

log = structlog.get_logger(__name__)

INLINE_RESULT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Following:
    """Of one attempt."""

    means: Means
    running: Running
    concluding: Concluding

    async def answered(self, answer: Answer, asked: Job | None = None) -> Outcome:
        """`asked` is the job as its backend was asked, where that is known."""
        learning, job = self.means.learning, self.running.job
        to_heavy = _escalation(job, self.means.deployments) if asked is not None else None
        is_taught = learning is not None and asked is not None and learning.takes(job)
        seen: Fault | None = None
        values: Mapping[str, object] = {}
        if asked is not None and (is_taught or to_heavy is not None):
            values = values_of(asked)
            seen = fault(values, answer.body)
        if learning is not None and is_taught:
            await learning.keep(job, values, answer.usage, seen)
        if seen is not None and to_heavy is not None:
            await self.concluding.close(self.concluding.attempted(answer.usage, "escalated"))
            problem = problems.ours("unusable", f"The answer of {job.route.deployment} was not usable: {seen}.")
            return await self._move(to_heavy, f"{Failure.UNUSABLE}: {seen}", problem, attempts=self.running.number)
        result, result_at = answer.body, None
        if len(result) > INLINE_RESULT or answer.media_type != JSON:
            path = result_path(job.tenant, job.id, self.running.number)
            result_at = await self.means.until_it_works(
                lambda: self.means.payloads.put(path, answer.body, media_type=answer.media_type)
            )
            result = b""
        attempted = self.concluding.attempted(answer.usage, "completed")
        outcome = await self.concluding.conclude(
            JobState.COMPLETED, attempted, result=result, result_at=result_at, usage=answer.usage, stay=answer.stay
        )
        if learning is not None and asked is not None and isinstance(outcome, Concluded):
            await learning.answered(job, asked, answer.body)
        return outcome

    async def failed(self, error: BackendError) -> Outcome:
        """The backend did not answer."""
        running, concluding = self.running, self.concluding
        running.is_probe = False
        seconds_left = running.seconds_left(self.means.clock())
        decision = await self.means.onward.after(
            running.job, error, running.rid, attempts=running.number - running.cut, seconds_left=seconds_left
        )
        log.warning(
            "attempt_failed",
            job=running.job.id,
            tenant=running.job.tenant,
            attempt=running.number,
            deployment=running.deployment.name,
            failure=error.failure,
            code=error.code,
            then=type(decision).__name__.lower(),
        )
        attempted = concluding.attempted(error.usage, "failed")
        match decision:
            case Again(seconds):
                await concluding.close(attempted)
                return await concluding.release(Later(seconds, str(error.failure)), undo_delivery=True)
            case Alternative():
                await concluding.close(attempted)
                problem = problems.of_backend(error, error.failure)
                return await self._move(decision, str(error.failure), problem, attempts=running.number)
            case GiveUp(reason):
                own = problems.of_backend(error, reason)
                told = own if error.failure is Failure.FILTERED else await self._told(own)
                return await concluding.conclude(JobState.FAILED, attempted, usage=error.usage, error=told)

    async def stopped(self, why: Stop, usage: Usage) -> Outcome:
        """Its call was closed before there was an answer."""
        concluding = self.concluding
        match why:
            case Stop.CANCELLED:
                attempted = concluding.attempted(usage, "cancelled")
                return await concluding.conclude(JobState.CANCELLED, attempted, usage=usage)
            case Stop.EXPIRED:
                attempted = concluding.attempted(usage, "expired")
                return await concluding.conclude(JobState.EXPIRED, attempted, usage=usage, error=problems.too_late())
            case Stop.LOST:
                await concluding.close_late(usage)
                return Later(self.means.lease_s, "lost")
            case Stop.DRAIN:
                await concluding.close(concluding.attempted(usage, "aborted"), is_cut=True)
                return await concluding.release(Left(), undo_delivery=True)

    async def not_called(self, instead: Alternative | Later | GiveUp) -> Outcome:
        """Its deployment is left alone, and nothing was called: go on elsewhere, wait, or tell the caller."""
        running = self.running
        await self.concluding.refund()
        match instead:
            case Later():
                return await self.concluding.release(instead, undo_delivery=False)
            case Alternative():
                problem = problems.left_alone(running.deployment.name)
                return await self._move(instead, "left alone", problem, attempts=running.number - 1)
            case GiveUp():
                told = await self._told(problems.left_alone(running.deployment.name))
                return await self.concluding.conclude(JobState.FAILED, None, error=told)

    async def crashed(self, error: Exception) -> Outcome:
        """Our own bug: what may have been used is charged, and the job fails and goes to the dead letters."""
        running, concluding = self.running, self.concluding
        attempted = concluding.attempted(running.job.estimate.owed, "crashed") if running.is_open else None
        if running.is_granted and not running.is_open:
            await concluding.refund()
        problem = problems.ours("internal_error", "The gateway failed while it ran the job.")
        outcome = await concluding.conclude(JobState.FAILED, attempted, error=problem)
        return Dead("crashed", type(error).__name__) if isinstance(outcome, Concluded) else outcome

    async def _move(self, to: Alternative, why: str, problem: Mapping[str, object], *, attempts: int) -> Outcome:
        """Go on at another deployment, after so many attempts."""
        means, running = self.means, self.running
        job = moved(running.job, to, means.deployments, attempts=attempts, why=why)
        is_ours = await means.until_it_works(lambda: means.board.reroute(job, running.owner, problem=problem))
        return MovedOn(job, why) if is_ours else Later(1.0, "lost")

    async def _told(self, problem: Mapping[str, object]) -> Mapping[str, object]:
        """What the client is told: why the deployment failed that its job was meant for, not what a fallback said."""
        means, job = self.means, self.running.job
        if not job.route.tried:
            return problem
        view = await means.until_it_works(lambda: means.board.view(job.tenant, job.id))
        return problem if view is None or view.problem is None else view.problem


def _escalation(job: Job, deployments: Mapping[str, Deployment]) -> Alternative | None:
    """Where a job goes on whose answer cannot be used. A stream has been read already, so it stays as it is."""
    if job.stream:
        return None
    found = (each for each in job.route.left if each.fallback.on is not None and Failure.UNUSABLE in each.fallback.on)
    return next((each for each in found if each.fallback.deployment in deployments), None)
