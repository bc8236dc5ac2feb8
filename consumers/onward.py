"""Whether a job may be called at its deployment, and where it goes on after a failure: asks the pure decisions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from consumers.backend import BackendError
from consumers.outcome import Later
from policies.conditions import Conditions
from policies.cooldown import Condition, Cooling, Probe
from policies.deployments import Deployment
from policies.retries import FINAL, Again, Elsewhere, Failure, GiveUp, RetryRule, Tried
from policies.scripts import BoardUnavailableError
from router.fallback import alternatives
from router.job import Alternative, Job

log = structlog.get_logger(__name__)

NO_BUDGET_S = 5.0
NO_REPLICA_S = 2.0
QUEUED_LOOK_S = 3.0  # queued jobs do not all look each time that the one call may have ended which tests the deployment
LONGEST_HOLD_S = 10.0  # that a caller waits for a deployment to be tested again


@dataclass(slots=True)
class Onward:
    """What a worker knows of its deployments: how they do, and where their jobs go.

    `counted` hears of every call that failed, `alarmed` of a deployment that can do no job at all, or can again.
    """

    deployments: Mapping[str, Deployment]
    retries: RetryRule
    conditions: Conditions
    jitter: Callable[[], float]
    clock: Callable[[], float]
    counted: Callable[[str, Failure], None] = field(default=lambda deployment, failure: None)
    alarmed: Callable[[str, bool], None] = field(default=lambda deployment, stands_still: None)
    _still: dict[str, str] = field(default_factory=dict)

    async def before(self, job: Job, *, here: int) -> Alternative | Later | GiveUp | None:
        """None: it may be called, as far as is known; `here` calls were made there. Raises `BoardUnavailableError`."""
        name = job.route.deployment
        cooling = await self.conditions.cooling(name)
        if cooling is not None:
            return await self.instead(job, cooling)
        if here and not self.conditions.may_retry(name):
            return await self._without_budget(job)
        return None

    async def ask(self, job: Job, call: str, *, here: int) -> Alternative | Later | GiveUp | Probe | None:
        """The last question before a call; `here` calls were made there. `Probe`: it shows whether that is back.

        Then it is to end in `answered`, `after` or `released`. Raises `BoardUnavailableError`.
        """
        name = job.route.deployment
        verdict = await self.conditions.ask(name, call)
        if isinstance(verdict, Cooling):
            return await self.instead(job, verdict)
        if here and not await self.conditions.take_retry(name):
            await self.conditions.released(name, call)
            return await self._without_budget(job)
        return verdict if isinstance(verdict, Probe) else None

    async def instead(self, job: Job, cooling: Cooling) -> Alternative | Later | GiveUp:
        """What a job does while its deployment cools. A queued one waits, a caller not for long."""
        least = 0.0 if job.is_waited_for else QUEUED_LOOK_S * self.jitter()
        wait = Later(max(cooling.seconds, least) + 0.2 * self.jitter(), "cooling")
        if cooling.is_pause and cooling.seconds <= self.retries.patience:
            return wait
        failure = Failure.THROTTLED if cooling.is_pause else Failure.UNAVAILABLE
        to = await self._next(job, failure)
        if to is not None:
            return to
        held = max(cooling.seconds, self.conditions.age_of(job.route.deployment, job.created_at))
        is_told = job.is_waited_for and held > LONGEST_HOLD_S and not cooling.is_pause
        return GiveUp(failure.value) if is_told else wait

    async def without_replicas(self, job: Job) -> Alternative | Later:
        """What a job does whose deployment has no replica that can be called. Raises `BoardUnavailableError`."""
        return await self._next(job, Failure.UNAVAILABLE) or Later(NO_REPLICA_S * (0.5 + self.jitter()), "no_replica")

    def called(self, job: Job, *, is_retry: bool) -> None:
        """A call is made."""
        if not is_retry:  # a retry was counted when it was allowed
            self.conditions.called(job.route.deployment)

    async def patient(self, job: Job, deployment: Deployment) -> Deployment:
        """The deployment with the time-outs of this call: short ones where there is somewhere else to go."""
        try:
            has_next = await self._next(job, Failure.TIMED_OUT) is not None
        except BoardUnavailableError:
            has_next = False
        timeouts = deployment.timeouts.of_call(job.estimate.input_tokens, has_next=has_next)
        return replace(deployment, timeouts=timeouts)

    async def answered(self, job: Job, call: str) -> None:
        """The deployment answers."""
        self._moves(job.route.deployment)
        await self.conditions.succeeded(job.route.deployment, call)

    async def released(self, job: Job, call: str) -> None:
        """A probe that shows nothing."""
        await self.conditions.released(job.route.deployment, call)

    async def after(
        self, job: Job, error: BackendError, call: str, *, attempts: int, seconds_left: float
    ) -> Again | Alternative | GiveUp:
        """What follows a call that failed, the `attempts`-th of the job; those that ended with their process aside."""
        name, here = job.route.deployment, attempts - job.route.spent
        self.counted(name, error.failure)
        try:
            condition = await self._told(job, error, call)
            to = await self._next(job, error.failure)
        except BoardUnavailableError:  # then nobody knows how they do
            condition, to = Condition(), next(iter(alternatives(job, error.failure, self.deployments)), None)
        if error.pause_s is not None:
            self._stands_still(name, error)
            if to is not None:
                return to
            return GiveUp(error.failure.value) if job.is_waited_for else Again(error.pause_s)
        decision = self.retries.decide(
            error.failure,
            Tried(
                attempts=attempts,
                here=here,
                seconds_left=seconds_left,
                has_next=to is not None,
                has_replicas=error.another_replica,
                is_fallback=bool(job.route.tried),
                reruns_allowed=job.reruns_allowed,
                may_retry=self.conditions.may_retry(name),
                is_waited_for=job.is_waited_for,
                most_here=error.most_tries,
            ),
            retry_after=error.retry_after,
            jitter=self.jitter(),
        )
        if to is None or isinstance(decision, GiveUp):
            assert not isinstance(decision, Elsewhere)
            return decision
        is_left_alone = condition.openings > 0 and error.failure not in FINAL
        return to if is_left_alone or isinstance(decision, Elsewhere) else decision

    async def _told(self, job: Job, error: BackendError, call: str) -> Condition:
        if error.another_replica:
            return Condition()
        name = job.route.deployment
        condition = await self.conditions.failed(
            name,
            error.failure,
            job=job.id,
            call=call,
            retry_after=error.retry_after if error.pause_s is None else error.pause_s,
            stands_still=error.pause_s is not None,
        )
        if condition.openings and not condition.probe:
            log.warning("deployment_cooling", deployment=name, openings=condition.openings, failure=error.failure)
        return condition

    async def standstill(self) -> str | None:
        """Which deployment can do no job at all, as far as is known here, and why. Raises `BoardUnavailableError`."""
        for name, why in list(self._still.items()):
            if not await self.conditions.is_well(name):
                return f"{name} can do no job, and its jobs wait: {why}"
            self._moves(name)
        return None

    def _stands_still(self, name: str, error: BackendError) -> None:
        self._still[name] = f"{error.code}: {error.detail}"
        self.alarmed(name, True)
        log.error(
            "deployment_stands_still", deployment=name, code=error.code, detail=error.detail, again_s=error.pause_s
        )

    def _moves(self, name: str) -> None:
        if self._still.pop(name, None) is not None:
            self.alarmed(name, False)

    async def _next(self, job: Job, failure: Failure) -> Alternative | None:
        """The first deployment of the route that takes it, and does well."""
        for each in alternatives(job, failure, self.deployments):
            if await self.conditions.cooling(each.fallback.deployment) is None:
                return each
        return None

    async def _without_budget(self, job: Job) -> Alternative | Later:
        """What a job does that would be one retry too many."""
        return await self._next(job, Failure.UNAVAILABLE) or Later(NO_BUDGET_S, "retry_budget")
