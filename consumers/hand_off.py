"""Jobs that a backend keeps while nobody waits: given to it, and collected."""

from contextlib import suppress
from dataclasses import dataclass, replace

from consumers.backend import BackendError, HandOffBackend, Pending, RecoveringBackend, Returned, Submitted
from consumers.following import Following
from consumers.means import Means
from consumers.outcome import HandedOff, Later, Outcome
from consumers.running import Running, Stop
from policies.retries import Failure
from policies.scripts import BoardUnavailableError
from router.board import Run, Submission
from router.job import AtBackend, Job
from router.payloads import body_path


@dataclass(frozen=True, slots=True)
class HandOff:
    """Of one attempt."""

    means: Means
    running: Running
    following: Following

    async def recovered(self, claim: Run, attempt: int, at: AtBackend | None) -> Submitted | None:
        """The call of an attempt whose process died in it, or whose board was lost, where its backend can find it."""
        backend = self.means.backend
        if type(claim) is not Run or not isinstance(backend, RecoveringBackend):
            return None
        reference = at.reference if at is not None and at.attempt == attempt else None
        return await backend.recover(self.running.job, self.running.deployment, attempt=attempt, reference=reference)

    async def keep(self, job: Job, submitted: Submitted) -> Outcome:
        """Let the backend keep it. Its body stays where a later attempt finds it, as its record goes now."""
        means = self.means
        if job.payload is None:
            path = body_path(job.tenant, job.id)
            job = replace(job, payload=await means.until_it_works(lambda: means.payloads.put(path, job.body)))
        if not await self._submit(job, submitted.reference, submitted.check_in_s):
            return Later(1.0, "lost")
        await (self._hold(submitted.check_in_s) if submitted.holds_places else self._let_go())
        return HandedOff(AtBackend(self.running.number, submitted.reference))

    async def collect(self, submission: Submission) -> Outcome:
        """Ask the backend, and conclude the job if it is over there, cancelled or past its deadline."""
        running, backend = self.running, self.means.backend
        job, deployment = running.job, running.deployment
        assert isinstance(backend, HandOffBackend)
        running.is_open = True
        if submission.is_cancelled or submission.seconds_left <= 0:
            owed = await backend.abandon(job, deployment, submission.reference)
            why = Stop.CANCELLED if submission.is_cancelled else Stop.EXPIRED
            return await self.following.stopped(why, job.estimate.owed if owed is None else owed)
        try:
            answer = await backend.collect(job, deployment, submission.reference, attempt=submission.attempt)
        except BackendError as error:
            if error.failure is Failure.UNAVAILABLE:  # it could not be asked: the job goes on there
                await self._hold(self.means.lease_s)
                return HandedOff()
            return await self.following.failed(error)
        if isinstance(answer, Pending):
            await self._submit(job, submission.reference, answer.check_in_s)
            if answer.holds_places:
                await self._hold(answer.check_in_s)
            return HandedOff()
        if isinstance(answer, Returned):
            concluding = self.following.concluding
            await concluding.close(concluding.attempted(answer.usage, "returned"))
            return await concluding.release(Later(0.0, answer.reason), undo_delivery=True)
        return await self.following.answered(answer)

    async def _submit(self, job: Job, reference: str, check_in_s: float) -> bool:
        """Write down that the backend has it. Whether it is still ours."""
        board, owner = self.means.board, self.running.owner
        return await self.means.until_it_works(lambda: board.submit(job, owner, reference, check_in_s=check_in_s))

    async def _hold(self, seconds: float) -> None:
        """Keep its places until a collector looks again, and two leases more, in which one does that is late."""
        with suppress(BoardUnavailableError):
            for scope in self.running.scopes:
                hold_s = seconds + 2 * self.means.lease_s
                await self.means.quotas.renew(scope, self.running.rid, hold_s=hold_s)

    async def _let_go(self) -> None:
        """It waits outside of the deployment's rates and of the tenant's running calls; its dollars stay reserved."""
        running, quotas, gate = self.running, self.means.quotas, self.means.gate
        of_tenant, of_deployment = running.scopes
        tokens = running.job.estimate.tokens
        with suppress(BoardUnavailableError):  # both run out by themselves
            await quotas.let_go(of_deployment, running.rid)
            gate.give_back(of_deployment, requests=1, tokens=tokens, now=self.means.clock())
            await quotas.renew(of_tenant, running.rid, hold_s=0.0)
            gate.give_back(of_tenant, requests=0, tokens=0, now=self.means.clock())
