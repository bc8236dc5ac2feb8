"""What a tenant's own traffic teaches the router: the features of scored jobs, and how well they were answered.

Bounded, in Redis, without a word of the prompts unless the tenant allows it. Losing it costs nothing but learning.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import blake2b
from typing import cast

import numpy as np

from policies.deployments import Modality, Tier
from policies.scripts import Script, Scripts, Value, unless_away
from router import compact
from router.features import BITS, NAMES, Counted

MOST_PLACES = 2048  # of words and pairs that are kept of a prompt
RETRIED_MS = 600_000  # the same question again within this was not answered well
AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """Quality is 0 to 1. `by`: `client`, or what was seen: `empty`, `refused`, `schema`, `retried`, `shadow`."""

    quality: float
    by: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """A scored job: what it was like, where it went, and what it used."""

    job_id: str
    digest: str  # of what was asked: the same question has the same
    modality: Modality
    tier: Tier
    deployment: str
    score: float
    threshold: float
    counted: Counted
    input_tokens: int
    output_tokens: int
    usd: Decimal | None
    text: str = ""
    at: float = 0.0  # on Redis' clock; set when it is read
    outcomes: Mapping[Tier, Outcome] = field(default_factory=dict)


class Lessons:
    """Raises `BoardUnavailableError`; every method may run twice with the same effect."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._keep = Script.load("router", "lessons_functions", "lessons_keep")
        self._spend = Script.load("router", "lessons_spend")
        self._outcome = Script.load("router", "lessons_functions", "lessons_outcome")

    async def keep(
        self, tenant: str, lesson: Lesson, *, most: int, seen: Outcome | None = None, in_batch: bool = False
    ) -> None:
        """Keep it, and at most so many. An earlier job that asked the same a moment ago counts as badly answered.

        Not so `in_batch`: a file is run twice, for instance as a pilot and then whole, because its owner wants it so.
        """
        within = 0 if in_batch else RETRIED_MS
        arguments: list[Value] = [lesson.job_id, _text(lesson), lesson.digest, str(lesson.tier), most, within]
        arguments += ["", ""] if seen is None else [f"{seen.quality:.4f}", seen.by]
        await self._scripts.run(self._keep, _keys(tenant), arguments)

    async def outcome(
        self, tenant: str, job_id: str, tier: Tier, outcome: Outcome, *, first: bool = False, early_s: float = 0.0
    ) -> bool:
        """How well the job was answered; False when nothing is known of it: no score decided, or it is long ago.

        `first`: what is known already stands. Of a job that is yet to be answered it is kept for `early_s`.
        """
        early_ms = int(early_s * 1000)
        arguments: list[Value] = [job_id, str(tier), f"{outcome.quality:.4f}", outcome.by, int(first), early_ms]
        return bool(await self._scripts.run(self._outcome, _keys(tenant), arguments))

    async def spend(self, tenant: str, usd: Decimal, *, a_day: Decimal) -> bool:
        """Take so much of the (UTC) day's budget for shadow runs; False when it is not there."""
        arguments = [_picodollars(usd), _picodollars(a_day)]
        return bool(await self._scripts.run(self._spend, [f"{_keys(tenant)[0]}:shadows"], arguments))

    async def read(self, tenant: str, *, since: float = 0.0) -> AsyncIterator[Lesson]:
        """The oldest first, from a moment on."""
        lessons, moments, _, outcomes = _keys(tenant)
        redis = self._scripts.redis
        jobs: list[bytes] = cast("list[bytes]", await unless_away(redis.zrangebyscore(moments, since * 1000, "+inf")))
        for begin in range(0, len(jobs), AT_ONCE):
            those = [job.decode() for job in jobs[begin : begin + AT_ONCE]]
            kept = cast("list[bytes | None]", await unless_away(redis.hmget(lessons, those)))
            fields = [f"{job} {tier}" for job in those for tier in Tier]
            said = cast("list[bytes | None]", await unless_away(redis.hmget(outcomes, fields)))
            for at, (job, text) in enumerate(zip(those, kept, strict=True)):
                if text is not None:
                    found = dict(zip(Tier, said[at * len(Tier) : (at + 1) * len(Tier)], strict=True))
                    yield _lesson(job, text.decode(), {tier: _outcome(words) for tier, words in found.items() if words})


def digest_of(text: str) -> str:
    """The same for the same question; the question cannot be read from it."""
    return blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _keys(tenant: str) -> list[str]:
    prefix = f"{{t:{tenant}}}:lessons"
    return [prefix, f"{prefix}:at", f"{prefix}:asked", f"{prefix}:outcomes"]


def _text(lesson: Lesson) -> str:
    values = {
        "modality": lesson.modality,
        "tier": lesson.tier,
        "deployment": lesson.deployment,
        "score": round(lesson.score, 6),
        "threshold": round(lesson.threshold, 6),
        "features": b64encode(lesson.counted.features.astype(np.float16).tobytes()).decode(),
        "places": b64encode(lesson.counted.places[:MOST_PLACES].astype(np.uint32).tobytes()).decode(),
        "input": lesson.input_tokens,
        "output": lesson.output_tokens,
        "usd": None if lesson.usd is None else str(lesson.usd),
    }
    return compact.text(values | ({"text": lesson.text} if lesson.text else {}))


def _lesson(job: str, kept: str, outcomes: Mapping[Tier, Outcome]) -> Lesson:
    digest, at, text = kept.split(" ", 2)
    values = json.loads(text)
    features = np.frombuffer(b64decode(values["features"]), np.float16).astype(np.float32)
    places = np.frombuffer(b64decode(values["places"]), np.uint32).astype(np.int64)
    if len(features) != len(NAMES):  # kept by a version that counted other things
        features = np.zeros(len(NAMES), np.float32)
    return Lesson(
        job_id=job,
        digest=digest,
        modality=Modality(values["modality"]),
        tier=Tier(values["tier"]),
        deployment=values["deployment"],
        score=values["score"],
        threshold=values["threshold"],
        counted=Counted(features, places[places < 1 << BITS]),
        input_tokens=values["input"],
        output_tokens=values["output"],
        usd=None if values["usd"] is None else Decimal(values["usd"]),
        text=values.get("text", ""),
        at=int(at) / 1000,
        outcomes=outcomes,
    )


def _outcome(words: bytes) -> Outcome:
    quality, _, by = words.decode().partition(" ")
    return Outcome(float(quality), by)


def _picodollars(usd: Decimal) -> int:
    return int((usd * 10**12).to_integral_value())
