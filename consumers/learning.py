"""What the worker keeps of a scored job for the router, once it is answered. Never in the way of the job."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from consumers import shadows
from consumers.judged import Fault
from consumers.shadows import Shadows
from policies.bucket import Level, Limit, Taken, take
from policies.pricing import Usage
from policies.scripts import BoardUnavailableError
from policies.tenants import Learn, Tenant
from router import turns
from router.features import count
from router.job import Job
from router.lessons import Lesson, Lessons, Outcome, digest_of
from router.log import LogUnavailableError

log = structlog.get_logger(__name__)

SCORED = ("score", "cap")
MOST = Limit(rate=20, burst=500)  # lessons a second of a tenant: each costs as much as a fifth of running a job


@dataclass(frozen=True, slots=True)
class Learning:
    """Keeps lessons of jobs that were decided by score: of all, or of a sample where there are many."""

    lessons: Lessons
    tenants: Mapping[str, Tenant]
    shadows: Shadows | None = None
    clock: Callable[[], float] = time.monotonic
    _room: dict[str, Level] = field(default_factory=dict)

    def wants(self, job: Job) -> bool:
        """Whether anything is to be kept of this job."""
        tenant = self.tenants.get(job.tenant)
        return tenant is not None and is_taught(job, tenant)

    def takes(self, job: Job) -> bool:
        """Whether a lesson of this job is to be kept now: what is above the rate is left out."""
        if not self.wants(job):
            return False
        room = take(MOST, self._room.get(job.tenant), 1, int(self.clock() * 1e6))
        if isinstance(room, Taken):
            self._room[job.tenant] = room.level
        return isinstance(room, Taken)

    async def keep(self, job: Job, asked: Mapping[str, object], usage: Usage, seen: Fault | None) -> None:
        """Keep what the job was like, and what was seen of its answer."""
        policy = self.tenants[job.tenant].routing
        route, question = job.route, turns.asked(asked)
        assert route.score is not None
        lesson = Lesson(
            job_id=job.id,
            digest=digest_of(question.text),
            modality=route.modality,
            tier=route.tier,
            deployment=route.deployment,
            score=route.score,
            threshold=route.threshold or 0.0,
            counted=count(question.text, question.length),
            input_tokens=usage.input + usage.cache_read + usage.cache_write,
            output_tokens=usage.output,
            usd=None,
            text=question.text if policy.learn is Learn.TEXT else "",
        )
        try:
            await self.lessons.keep(
                job.tenant,
                lesson,
                most=policy.lessons,
                seen=None if seen is None else Outcome(0.0, seen),
                in_batch=job.line is not None,
            )
        except BoardUnavailableError:
            log.debug("lesson_not_kept", job=job.id)

    async def answered(self, job: Job, asked: Job, answer: bytes) -> None:
        """The job is over: a shadow is compared, and one may be started of what light answered."""
        is_shadow = job.route.rule == shadows.RULE
        if self.shadows is None or not (is_shadow or self.wants(job)):
            return
        try:
            if is_shadow:
                await self.shadows.ended(job, values_of(asked), answer)
            elif self.tenants[job.tenant].routing.shadow_share:
                await self.shadows.start(job, asked, values_of(asked))
        except (BoardUnavailableError, LogUnavailableError):
            log.debug("shadow_left_out", job=job.id)


def is_taught(job: Job, tenant: Tenant) -> bool:
    """Whether the router learns from a job as it is now: a score decided, and its tenant wants it so."""
    is_scored = job.route.rule in SCORED and job.route.score is not None and not job.route.tried
    return is_scored and tenant.routing.learn is not Learn.OFF


def values_of(asked: Job) -> Mapping[str, object]:
    """The body as it was asked; nothing for one that is no JSON object."""
    try:
        values = json.loads(asked.body)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
