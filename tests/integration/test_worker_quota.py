"""How a worker lives with quotas, on a real Valkey: it waits without asking, and nobody waits for another's."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from redis.asyncio import Redis

from consumers.backend import Answer, OnChunk, SoFar
from consumers.backend_echo import EchoBackend
from consumers.worker import Bounds
from policies.deployments import Deployment, Limits
from policies.quota import Granted, Wait, deployment_scope, tenant_scope
from policies.tenants import Tenant
from router import envelope, topics
from router.job import Estimate, Job, JobClass, JobState
from router.outbox import reservation_id
from tests.builders import Bench, a_bench, a_conclusion, a_deployment, entries, until

ONE_AT_ONCE = Limits(concurrency=1)


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    deployments = [
        a_deployment(),
        a_deployment("paced", limits=Limits(requests_per_minute=3000, burst_s=0.2)),
        a_deployment("single", limits=ONE_AT_ONCE),
        a_deployment("scarce", limits=Limits(tokens_per_minute=30_000, burst_s=1)),
    ]
    tenants = [
        Tenant("acme"),
        Tenant("narrow", ONE_AT_ONCE),
        Tenant("slow", Limits(requests_per_minute=1)),
        Tenant("keyed", key_limits={"ci": ONE_AT_ONCE}),
        Tenant("modelled", model_limits={"small": ONE_AT_ONCE}),
    ]
    async with a_bench(redis, tmp_path, deployments=deployments, tenants=tenants) as bench:
        yield bench


@dataclass
class Noting(EchoBackend):
    """Echo, and the order in which jobs were asked of it."""

    asked: list[str] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    _delay_s: float = 0.0

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer:
        self.asked.append(job.id)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await super().call(job, deployment, attempt=attempt, on_chunk=on_chunk, so_far=so_far)
        finally:
            self.open -= 1


@asynccontextmanager
async def working(bench: Bench, *backends: Noting, look_ahead: int = 1000) -> AsyncGenerator[None]:
    """A worker for each of these."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for backend in backends:
            worker = bench.worker(backend, bounds=Bounds(look_ahead=look_ahead, drain_s=1.0))
            tasks.create_task(worker.run(stop))
        try:
            yield
        finally:
            stop.set()


async def scripts_run(redis: "Redis") -> int:
    stats = await redis.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


# What it costs


async def test_a_backlog_is_worked_off_as_fast_as_the_rate_allows_and_each_job_asks_once(bench: Bench) -> None:
    jobs = [await bench.queued(str(number), deployment="paced") for number in range(120)]
    backend, before, began = Noting(), await scripts_run(bench.redis), monotonic()

    async with working(bench, backend):
        await until(lambda: len(backend.asked) >= len(jobs), within=20)  # looks at no script's count
        await bench.ended(jobs[-1], within=20)
        elapsed = monotonic() - began
    calls = await scripts_run(bench.redis) - before

    # 120 jobs of which 9 may come at once, then 50 a second.
    assert elapsed > 110 / 50 - 0.1
    assert sorted(backend.asked) == sorted(job.id for job in jobs)
    # Several ask for the same room at once, so that neighbours may change places; nobody is left behind.
    assert max(abs(at - backend.asked.index(job.id)) for at, job in enumerate(jobs)) < len(jobs) / 4
    # Claim, reserve, start, finish, settle, published, and a half for what is looked at from time to time.
    assert calls < 120 * 8


async def test_several_workers_keep_to_one_limit(bench: Bench) -> None:
    jobs = [await bench.queued(str(number), deployment="paced") for number in range(100)]
    backend, began = Noting(), monotonic()

    async with working(bench, backend, backend, backend, look_ahead=10):
        await bench.ended(*jobs, within=20)
        elapsed = monotonic() - began

    assert sorted(backend.asked) == sorted(job.id for job in jobs)
    assert elapsed > 90 / 50 - 0.1


# Who waits for whom


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        ({"tenant": "narrow"}, {"tenant": "acme"}),
        ({"tenant": "keyed", "limited_key": "ci"}, {"tenant": "keyed"}),
        ({"tenant": "modelled"}, {"tenant": "modelled", "deployment": "paced"}),
    ],
    ids=["tenant", "key", "model"],
)
async def test_only_whose_quota_is_used_up_waits(bench: Bench, mine: dict[str, Any], others: dict[str, Any]) -> None:
    held = [await bench.queued("wait:0.05", **mine) for _ in range(8)]
    free = [await bench.queued("free", **others) for _ in range(8)]
    backend = Noting()

    async with working(bench, backend):
        await bench.ended(*held, *free)

    in_order = [job.id for job in held]
    assert [each for each in backend.asked if each in in_order] == in_order
    assert set(backend.asked[:10]) >= {job.id for job in free}


async def test_a_place_that_another_worker_gave_back_is_found(bench: Bench) -> None:
    jobs = [await bench.queued("wait:0.02", tenant="narrow") for _ in range(12)]
    backend = Noting()

    async with working(bench, backend, backend, look_ahead=6):
        await bench.ended(*jobs)

    assert (len(backend.asked), backend.most_open) == (12, 1)


async def test_small_jobs_do_not_starve_a_large_one(bench: Bench) -> None:
    small = [await bench.queued("s", deployment="scarce", estimate=Estimate(25, 25)) for _ in range(10)]
    large = await bench.queued("l", deployment="scarce", tenant="keyed", estimate=Estimate(250, 225))
    small += [await bench.queued("s", deployment="scarce", estimate=Estimate(25, 25)) for _ in range(60)]
    backend = Noting()

    async with working(bench, backend):
        await bench.ended(large, *small, within=20)

    assert backend.asked.index(large.id) <= 3


async def test_whoever_has_a_quota_from_the_door_does_not_wait_for_those_who_have_none(bench: Bench) -> None:
    mine = await bench.job("mine", tenant="slow", is_reserved=True)
    asks: Any = {"tokens": 21, "usd": None, "hold_s": 60.0, "ttl_s": 600.0}
    await bench.quotas.reserve(tenant_scope(bench.tenants["slow"]), reservation_id(mine.id, 1), **asks)
    for _ in range(5):
        await bench.queued("other", tenant="slow")
    backend, before = Noting(), await scripts_run(bench.redis)

    async with working(bench, backend):
        await until(lambda: _looked(bench, before, times=3))
        await bench.log.append(mine.topic, envelope.to_record(mine))
        await bench.ended(mine)

    assert backend.asked == [mine.id]


async def test_what_the_door_reserved_stays_while_its_deployment_has_no_place(bench: Bench) -> None:
    own, deployment = tenant_scope(bench.tenants["slow"]), deployment_scope(bench.deployments["single"])
    mine = await bench.job("mine", tenant="slow", deployment="single", is_reserved=True)
    asks: Any = {"tokens": 21, "usd": None, "hold_s": 60.0, "ttl_s": 600.0}
    await bench.quotas.reserve(own, reservation_id(mine.id, 1), **asks)
    await bench.quotas.reserve(deployment, "somebody", **asks)
    backend, before = Noting(), await scripts_run(bench.redis)

    async with working(bench, backend):
        await bench.log.append(mine.topic, envelope.to_record(mine))
        await until(lambda: _looked(bench, before, times=10))
        others = await bench.quotas.reserve(own, "another", **asks)
        assert backend.asked == []
        await bench.quotas.refund(deployment, "somebody")
        await bench.ended(mine)

    assert isinstance(others, Wait)
    assert backend.asked == [mine.id]


async def _looked(bench: Bench, before: int, *, times: int) -> bool:
    return await scripts_run(bench.redis) - before >= times


async def test_who_is_waited_for_goes_before_a_backlog_that_holds_all_places(bench: Bench) -> None:
    backlog = [await bench.queued("wait:0.02", deployment="single") for _ in range(40)]
    backend = Noting()

    async with working(bench, backend):
        await until(lambda: _has_begun(backend))
        mine = await bench.queued("mine", deployment="single", job_class=JobClass.INTERACTIVE)
        await bench.ended(mine, *backlog)

    assert backend.asked.index(mine.id) < 20
    assert backend.most_open == 1


async def _has_begun(backend: Noting) -> bool:
    return len(backend.asked) > 0


async def test_what_a_quota_holds_back_does_not_fill_the_look_ahead(bench: Bench) -> None:
    backlog = [await bench.queued("b", tenant="slow") for _ in range(60)]
    late = [await bench.queued("l") for _ in range(3)]

    async with working(bench, Noting(), look_ahead=20):
        await bench.ended(*late)

    waiting = [fields for topic in topics.RETRIES for fields in await entries(bench.redis, topic)]
    assert 20 < len(waiting) < 60
    assert {await bench.state(job) for job in backlog} == {JobState.QUEUED, JobState.COMPLETED}


# What the door reserved


@pytest.mark.parametrize("how", ["cancel", "expire"])
async def test_what_was_reserved_for_a_job_that_never_ran_is_given_back(bench: Bench, how: str) -> None:
    tenant, deployment = tenant_scope(bench.tenants["narrow"]), deployment_scope(bench.deployments["scarce"])
    job = await bench.job(tenant="narrow", deployment="scarce", is_reserved=True, deadline_s=0.05)
    asks = {"tokens": 475, "usd": None, "hold_s": 60.0, "ttl_s": 600.0}
    await bench.quotas.reserve_both(tenant, deployment, reservation_id(job.id, 1), **asks)  # type: ignore[arg-type]
    before = await bench.quotas.reserve(tenant, "next", **asks)  # type: ignore[arg-type]

    if how == "cancel":
        await bench.board.cancel("narrow", job.id, a_conclusion(job, JobState.CANCELLED).event)
    else:
        await until(lambda: _expired(bench, job))
    await bench.outbox.drain("narrow", job_id=job.id)

    assert isinstance(before, Wait)
    after = await bench.quotas.reserve_both(tenant, deployment, "next", **asks)  # type: ignore[arg-type]
    assert isinstance(after, Granted)


async def _expired(bench: Bench, job: Job) -> bool:
    return await bench.board.expire(job.tenant, job.id, a_conclusion(job, JobState.EXPIRED).event) is JobState.EXPIRED
