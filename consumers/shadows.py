"""Shadow runs: a small part of what light answered is also asked of heavy, behind everything else, within a budget.

What heavy says is taken for the right answer, and how far light's agrees with it for light's quality. That is a guess
which costs no judge; an outcome that the client told stands above it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from zlib import crc32

from ulid import ULID

from consumers.judged import fault
from policies.deployments import Deployment, Tier
from policies.tenants import Tenant
from router import envelope, modality, responses, rules
from router.board import Accepted, Board
from router.job import Job, JobClass, Route
from router.lessons import Lessons, Outcome
from router.log import Log
from router.rules import Option

RULE = "shadow"
OF = "pointsman_shadow_of"  # the key in a shadow's metadata
DEADLINE_S = 3600.0
LONGEST = 4_000  # characters of an answer that are compared
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Shadows:
    """Starts shadow runs, and says what they showed. Raises what board and log raise."""

    board: Board
    log: Log
    lessons: Lessons
    tenants: Mapping[str, Tenant]
    deployments: Mapping[str, Deployment]

    async def start(self, job: Job, asked: Job, values: Mapping[str, object]) -> None:
        """Ask heavy as well, if this job is drawn and the day's budget has room."""
        tenant = self.tenants[job.tenant]
        option = self._heavy(tenant, values) if is_drawn(job.id, tenant.routing.shadow_share) else None
        if option is None or option.estimate.usd is None or job.route.tier is not Tier.LIGHT:
            return
        if not await self.lessons.spend(job.tenant, option.estimate.usd, a_day=tenant.routing.shadow_usd_per_day):
            return
        shadow = _shadow(job, asked, option)
        answer = await self.board.accept(
            shadow,
            headers=envelope.to_headers(shadow),
            deadline_s=DEADLINE_S,
            idempotency=None,
            most_unfinished=tenant.max_unfinished,
            most_in_class=0,  # and so it goes to the overflow
        )
        if isinstance(answer, Accepted):
            placed = replace(shadow, created_at=answer.created_at, expires_at=answer.expires_at, queue=answer.queue)
            await self.log.append(placed.topic, envelope.to_record(placed))
            await self.board.confirm(job.tenant, shadow.id)

    async def ended(self, shadow: Job, values: Mapping[str, object], answer: bytes) -> None:
        """Compare with what light had answered, if that is still there."""
        of = shadow.metadata.get(OF, "")
        first = await self.board.view(shadow.tenant, of)
        if first is None or not first.result:
            return
        is_faulty = fault(values, answer) is not None
        await self.lessons.outcome(shadow.tenant, of, Tier.HEAVY, Outcome(0.0 if is_faulty else 1.0, RULE), first=True)
        if not is_faulty:
            agreed = Outcome(agreement(first.result, answer), RULE)
            await self.lessons.outcome(shadow.tenant, of, Tier.LIGHT, agreed, first=True)

    def _heavy(self, tenant: Tenant, values: Mapping[str, object]) -> Option | None:
        there = [
            each
            for each in self.deployments.values()
            if each.tier is Tier.HEAVY and (tenant.deployments is None or each.name in tenant.deployments)
        ]
        needed = modality.needs(responses.CHAT, values)
        found, needs = rules.options(responses.CHAT, values, there, needed), rules.needs(values)
        fitting = [option for option in found if option.fits and rules.able(option, needs)]
        return min(fitting, key=lambda option: option.by_price, default=None)


def is_drawn(job_id: str, share: float) -> bool:
    """The same for the same job."""
    return crc32(job_id.encode()) % 100_000 < share * 100_000


def agreement(one: bytes, other: bytes) -> float:
    """How far two chat completions say the same, 0 to 1: the words that they share (F1)."""
    words = [_WORD.findall(_text(each).lower()) for each in (one, other)]
    if not all(words):
        return 0.0
    first, second = map(set, words)
    return 2 * len(first & second) / (len(first) + len(second))


def _text(answer: bytes) -> str:
    try:
        text = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
    return text[:LONGEST] if isinstance(text, str) else ""


def _shadow(job: Job, asked: Job, option: Option) -> Job:
    target = option.deployment
    return Job(
        id=str(ULID()),
        tenant=job.tenant,
        endpoint=asked.endpoint,
        model=target.name,
        job_class=JobClass.BULK,
        route=Route(
            target.name,
            target.backend,
            job.route.modality,
            target.tier,
            (f"a shadow of job_{job.id}: what would heavy say?",),
            rule=RULE,
        ),
        estimate=option.estimate,
        body=asked.body,
        created_at=0.0,
        expires_at=0.0,
        result_ttl_s=job.result_ttl_s,
        metadata={OF: job.id},
        key_id=job.key_id,
    )
