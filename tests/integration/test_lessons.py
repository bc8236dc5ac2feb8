"""What a worker keeps for the router: bounded, without text unless allowed, with outcomes; and escalation."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis.asyncio import Redis

from consumers.learning import Learning
from consumers.shadows import Shadows, agreement
from policies.deployments import Fallback, Modality, Tier
from policies.pricing import Usage
from policies.retries import Failure
from policies.scripts import Scripts
from policies.tenants import Learn, RoutingPolicy, Tenant
from router import fitting
from router.features import BITS, NAMES, count
from router.gain import Correction
from router.job import Alternative, Estimate, JobClass, JobState, Line, Queue, Route
from router.lessons import Lesson, Lessons, Outcome
from router.shares import Shares
from router.sharing import Sharing
from router.versions import Versions
from tests.builders import Bench, a_bench, a_body, a_deployment, a_job, until
from tests.integration.test_worker import working

BIG = a_deployment("big", tier=Tier.HEAVY)
SCORED = Route("small", "echo", Modality.TEXT, Tier.LIGHT, ("short",), 0.25, threshold=0.6, rule="score")


def a_tenant(**fields: Any) -> Tenant:
    return Tenant("acme", routing=RoutingPolicy(**fields))


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(redis, tmp_path, deployments=[a_deployment(), BIG], tenants=[a_tenant(lessons=3)]) as bench:
        yield bench


async def run(bench: Bench, text: str, *, tenant: Tenant | None = None, route: Route = SCORED, **fields: Any) -> str:
    """A job through a worker that learns; its id."""
    if tenant is not None:
        bench.tenants["acme"] = tenant
    job = await bench.queued(text, route=route, body=fields.pop("body", a_body(text)), **fields)
    async with working(bench.worker(learning=Learning(Lessons(bench.scripts), bench.tenants))):
        await bench.ended(job)
    return job.id


async def kept(bench: Bench) -> list[Lesson]:
    return [lesson async for lesson in Lessons(bench.scripts).read("acme")]


async def test_a_scored_job_leaves_its_features_and_no_text(bench: Bench, redis: "Redis") -> None:
    job = await run(bench, "Zanzibar is where?")

    [lesson] = await kept(bench)
    assert (lesson.job_id, lesson.tier, lesson.score, lesson.threshold) == (job, Tier.LIGHT, 0.25, 0.6)
    assert lesson.counted.places.tolist() == count("Zanzibar is where?").places.tolist()
    assert lesson.counted.features == pytest.approx(count("Zanzibar is where?").features, rel=2e-3, abs=1e-3)
    assert lesson.output_tokens > 0
    everything = str([await redis.hgetall(key) for key in await redis.keys("*lessons*") if b":at" not in key])
    assert "zanzibar" not in everything.lower()


async def test_the_text_is_kept_where_the_tenant_allows_it_and_nothing_where_it_says_off(bench: Bench) -> None:
    await run(bench, "Zanzibar is where?", tenant=a_tenant(learn=Learn.TEXT))
    await run(bench, "And Pemba?", tenant=a_tenant(learn=Learn.OFF))

    assert [lesson.text for lesson in await kept(bench)] == ["Zanzibar is where?"]


async def test_what_a_rule_decided_leaves_nothing(bench: Bench) -> None:
    await run(bench, "Hello", route=Route("small", "echo", Modality.TEXT, Tier.LIGHT, ("asked",), rule="named"))

    assert await kept(bench) == []


async def test_the_oldest_lessons_go_with_all_that_belongs_to_them(bench: Bench, redis: "Redis") -> None:
    for at in range(5):
        await run(bench, f"I'm sorry, but I can't {at} {'x' * at}")

    assert len(await kept(bench)) == 3
    assert await redis.hlen("{t:acme}:lessons:asked") == 3
    assert await redis.hlen("{t:acme}:lessons:outcomes") == 3


async def test_a_refusal_and_the_same_question_again_are_seen(bench: Bench) -> None:
    await run(bench, "I'm sorry, but I can't")
    await run(bench, "Where is Pemba?")
    await run(bench, "Where is Pemba?")

    seen = [lesson.outcomes.get(Tier.LIGHT) for lesson in await kept(bench)]
    assert seen == [Outcome(0.0, "refused"), Outcome(0.0, "retried"), None]


async def test_a_line_of_a_batch_that_runs_a_second_time_is_no_retry(bench: Bench) -> None:
    learning, asked = Learning(Lessons(bench.scripts), bench.tenants), json.loads(a_body("Where is Pemba?"))
    for line in (Line("pilot", "a"), Line("whole", "a"), None):
        await learning.keep(a_job("Where is Pemba?", route=SCORED, line=line), asked, Usage(3, output=3), None)

    assert [lesson.outcomes for lesson in await kept(bench)] == [{}, {}, {}]


async def test_of_more_jobs_than_a_worker_keeps_lessons_of_there_is_a_sample(bench: Bench) -> None:
    now = 100.0
    learning = Learning(Lessons(bench.scripts), bench.tenants, clock=lambda: now)
    job = a_job("Where is Pemba?", route=SCORED)

    at_once = sum(learning.takes(job) for _ in range(10_000))
    now += 10
    later = sum(learning.takes(job) for _ in range(10_000))

    assert (at_once, later) == (500, 200)


async def test_the_last_outcome_counts_and_an_unknown_job_has_none(bench: Bench) -> None:
    job = await run(bench, "Where is Pemba?")
    lessons = Lessons(bench.scripts)

    assert await lessons.outcome("acme", job, Tier.LIGHT, Outcome(0.25, "client"))
    assert await lessons.outcome("acme", job, Tier.LIGHT, Outcome(0.75, "client"))
    assert not await lessons.outcome("acme", "01KB7M4Q3M7C9V2W6T8X0Y1Z2A", Tier.LIGHT, Outcome(1, "client"))
    assert not await lessons.outcome("other", job, Tier.LIGHT, Outcome(1, "client"))

    [lesson] = await kept(bench)
    assert lesson.outcomes == {Tier.LIGHT: Outcome(0.75, "client")}


async def test_an_outcome_that_is_told_before_the_answer_waits_for_it(bench: Bench, redis: "Redis") -> None:
    learning, asked = Learning(Lessons(bench.scripts), bench.tenants), json.loads(a_body("Where is Pemba?"))
    job, told = a_job("Where is Pemba?", route=SCORED), Outcome(0.75, "client")

    assert not await learning.lessons.outcome("acme", job.id, Tier.LIGHT, told)
    assert await learning.lessons.outcome("acme", job.id, Tier.LIGHT, told, early_s=60)
    [name] = await redis.keys("*early*")
    assert 0 < await redis.pttl(name) <= 60_000
    await learning.keep(job, asked, Usage(3, output=3), "refused")

    [lesson] = await kept(bench)
    assert lesson.outcomes == {Tier.LIGHT: told}
    assert await redis.keys("*early*") == []


async def test_a_version_is_used_by_all_processes_and_can_be_rolled_back(redis: "Redis") -> None:
    scripts = Scripts(redis)
    versions, sharing = Versions(scripts), Sharing(scripts, Versions(scripts), Shares())
    sharing.shares.sessions.note("acme", "s", "small", is_heavy=True, now=sharing.shares.clock())
    first = await versions.put("acme", fitting.dump(a_correction(0.5)), {"rows": 60})
    second = await versions.put("acme", fitting.dump(a_correction(-0.5)), {"rows": 80})
    await sharing.merge()
    low = sharing.shares.score(a_tenant(), QUESTION).value

    assert await versions.use("acme", first) and not await versions.use("acme", 9)
    sharing.shares.sessions.note("acme", "s2", "small", is_heavy=True, now=sharing.shares.clock())
    await sharing.merge()

    assert sharing.shares.score(a_tenant(), QUESTION).value > low + 0.3
    assert [(each.number, each.is_used) for each in await versions.all("acme")] == [(second, False), (first, True)]
    assert await versions.use("acme", 0)
    sharing.shares.sessions.note("acme", "s3", "small", is_heavy=True, now=sharing.shares.clock())
    await sharing.merge()
    assert sharing.shares.scorers == {}


QUESTION = {"messages": [{"role": "user", "content": "Where is Pemba?"}]}


def a_correction(base: float) -> Correction:
    return Correction(np.zeros(len(NAMES), np.float32), base, np.zeros(1 << BITS, np.int8), 1.0)


# Escalation

TO_BIG = Alternative(Fallback("big", frozenset({Failure.UNUSABLE})), Estimate(10, 20, Decimal("0.01")))


async def test_an_unusable_answer_goes_once_to_heavy_and_both_attempts_are_charged(bench: Bench) -> None:
    job = await bench.queued("I'm sorry, but I can't", route=replace(SCORED, left=(TO_BIG,)))
    async with working(bench.worker(learning=Learning(Lessons(bench.scripts), bench.tenants))):
        [view] = await bench.ended(job)

    assert view.state is JobState.COMPLETED
    assert (view.job.route.deployment, view.job.route.tried) == ("big", ("small",))
    assert view.job.route.reasons[-1] == "fallback: small unusable: refused"
    assert [(line["attempt"], line["deployment"]) for line in await bench.charges()] == [(1, "small"), (2, "big")]
    [lesson] = await kept(bench)
    assert lesson.outcomes == {Tier.LIGHT: Outcome(0.0, "refused")}


@pytest.mark.parametrize("fields", [{"stream": True}, {"route": SCORED}])
async def test_a_stream_and_a_job_without_consent_stay_as_they_are(bench: Bench, fields: dict[str, Any]) -> None:
    route = replace(SCORED, left=(TO_BIG,))
    job = await bench.queued("I'm sorry, but I can't", **{"route": route, **fields})
    async with working(bench.worker()):
        [view] = await bench.ended(job)

    assert (view.state, view.job.route.deployment, view.attempts) == (JobState.COMPLETED, "small", 1)


# Shadow runs


def shadowing(bench: Bench, **fields: Any) -> Learning:
    bench.tenants["acme"] = a_tenant(shadow_share=1.0, **fields)
    lessons = Lessons(bench.scripts)
    return Learning(lessons, bench.tenants, Shadows(bench.board, bench.log, lessons, bench.tenants, bench.deployments))


async def test_a_shadow_run_asks_heavy_behind_everything_else_and_shows_both_tiers(bench: Bench) -> None:
    learning = shadowing(bench)
    first = await bench.queued("Where is Pemba?", route=SCORED)

    async def is_compared() -> bool:
        return any(len(lesson.outcomes) == 2 for lesson in await kept(bench))

    async with working(bench.worker(learning=learning)):
        await until(is_compared)

    [lesson] = await kept(bench)
    assert lesson.job_id == first.id
    assert lesson.outcomes == {Tier.LIGHT: Outcome(1.0, "shadow"), Tier.HEAVY: Outcome(1.0, "shadow")}
    [shadow] = [
        view.job
        for view in (await bench.board.page("acme", states=[], limit=9, after="")).views
        if view.job.id != first.id
    ]
    assert (shadow.route.deployment, shadow.queue, shadow.job_class) == ("big", Queue.OVERFLOW, JobClass.BULK)
    assert shadow.metadata == {"pointsman_shadow_of": first.id}


async def test_a_shadow_run_stays_within_the_days_budget(bench: Bench) -> None:
    learning = shadowing(bench, shadow_usd_per_day=Decimal(0))
    async with working(bench.worker(learning=learning)):
        await bench.ended(await bench.queued("Where is Pemba?", route=SCORED))

    assert len((await bench.board.page("acme", states=[], limit=9, after="")).views) == 1
    lessons = Lessons(bench.scripts)
    spent = [await lessons.spend("acme", Decimal("0.4"), a_day=Decimal(1)) for _ in range(3)]
    assert spent == [True, True, False]


@pytest.mark.parametrize(
    ("one", "other", "expected"), [("a b", "A, b!", 1), ("a b", "c d", 0), ("a b", "b c", 0.5), ("", "", 0)]
)
def test_answers_agree_as_far_as_they_share_words(one: str, other: str, expected: float) -> None:
    answers = [json.dumps({"choices": [{"message": {"content": text}}]}).encode() for text in (one, other)]

    assert agreement(*answers) == expected
