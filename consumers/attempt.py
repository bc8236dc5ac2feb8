"""One delivery of one job: claim it, and see it through.

Its steps: `calling.py` reserves quota and calls the backend, `hand_off.py` lets a backend keep the job and collects
it, `following.py` decides what follows an answer or a failure, `concluding.py` charges it and ends the job.
"""

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from consumers.calling import Call, Calling
from consumers.concluding import Concluding
from consumers.following import Following
from consumers.hand_off import HandOff
from consumers.means import Means
from consumers.outcome import Concluded, HandedOff, Later, MovedOn, Outcome
from consumers.running import Running
from consumers.tally import Tally
from policies.deployments import Deployment
from router.board import Busy, Finished, Moved, Run, Submission
from router.job import NOTHING_EARLIER, AtBackend, Earlier, Job
from router.outbox import reservation_id

log = structlog.get_logger(__name__)

if TYPE_CHECKING:
    from router.traces import Traces

UNKNOWN_DEPLOYMENT_S = 30.0


class Attempt(Means):
    """Runs deliveries, one call of it for each. `leases.keep` and `leases.heed` run beside them."""

    __slots__ = ()

    async def __call__(
        self, job: Job, owner: str, tally: Tally, call: Call | None = None, earlier: Earlier = NOTHING_EARLIER
    ) -> Outcome:
        """What became of it. Never raises for Redis, the log, the object store or the backend being away.

        `call` stands before the backend's own, which others of its microbatch may share. `earlier`: what its record
        says of its past.
        """
        deployment = self.deployments.get(job.route.deployment)
        if deployment is None:
            return Later(UNKNOWN_DEPLOYMENT_S, "unknown_deployment")
        # The same owner until there is an answer: one that was lost on its way may have left it the lease.
        claiming = partial(self.board.claim, job, owner, lease_s=self.lease_s, earlier=earlier)
        match claim := await self.until_it_works(claiming):
            case Busy(seconds):
                return Later(min(seconds, self.lease_s / 4) + 0.05, "busy")
            case AtBackend() as at:
                return HandedOff(at)
            case Finished():
                self.meters.avoided()
                await self.until_it_works(lambda: self.outbox.drain(job.tenant, job_id=job.id))
                return Concluded()
            case Moved(job):
                return MovedOn(job, "earlier")
        running = self._running(job, owner, tally, deployment, claim)
        following = Following(self, running, Concluding(self, running))
        hand_off = HandOff(self, running, following)
        steps = Calling(self, running, following, hand_off, call, earlier).run(claim)
        return await self._watched(following, steps if self.traces is None else _traced(self.traces, running, steps))

    async def collect(self, job: Job, owner: str, submission: Submission, tally: Tally) -> Outcome:
        """What became of a job that a backend has. `Later` after a failure: its record is to go on the log again."""
        deployment = self.deployments.get(job.route.deployment)
        if deployment is None:
            return HandedOff()  # looked at again when its lease is over
        claim = Run(submission.attempt - 1, None, submission.seconds_left)
        running = self._running(job, owner, tally, deployment, claim)
        running.is_unreserved = submission.is_unreserved
        following = Following(self, running, Concluding(self, running))
        return await self._watched(following, HandOff(self, running, following).collect(submission))

    def _running(self, job: Job, owner: str, tally: Tally, deployment: Deployment, claim: Run) -> Running:
        number, now = claim.attempts + 1, self.clock()
        return Running(
            job=job,
            owner=owner,
            deployment=deployment,
            tally=tally,
            scopes=self.scopes(job),
            number=number,
            ends_at=now + claim.seconds_left,
            rid=reservation_id(job.id, number),
            born_at=now - (job.expires_at - job.created_at - claim.seconds_left),
            is_rerun=claim.attempts > 0,
            cut=claim.cut,
            epoch=self.epoch.name,
        )

    async def _watched(self, following: Following, steps: Awaitable[Outcome]) -> Outcome:
        running = following.running
        with self.leases.of(running):
            try:
                outcome = await steps
            except Exception as error:  # the one place for what nobody expected: people get to look at the job
                job = running.job
                log.exception("attempt_crashed", job=job.id, tenant=job.tenant, error=type(error).__name__)
                outcome = await following.crashed(error)
            finally:
                if self.places is not None:  # it makes no call, or none any more
                    self.places.leave_place(running.job, running.deployment, attempt=running.number)
        if not isinstance(outcome, HandedOff):
            following.concluding.tell_gate()
        return outcome


async def _traced(traces: "Traces", running: Running, steps: Awaitable[Outcome]) -> Outcome:
    with traces.running(running.job, running.number) as span:
        running.traceparent = span.traceparent
        outcome = await steps
        span.note(outcome=type(outcome).__name__.lower())
        return outcome
