"""Nobody starves: a real worker with one tenant's backlog before it, and what others notice."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from consumers.worker import Bounds
from policies.deployments import Limits
from policies.tenants import Tenant
from router import envelope
from router.board import Accepted
from router.job import Job, JobClass, JobState, Queue
from tests.builders import Bench, a_bench, a_deployment, a_job, until

BACKLOG = 150
SLOW = "wait:0.05"


@pytest.fixture
async def bench(redis: Redis, tmp_path: Path) -> AsyncGenerator[Bench]:
    small = a_deployment(limits=Limits(concurrency=4), microbatch_size=1)
    both = [small, a_deployment("other")]
    async with a_bench(redis, tmp_path, deployments=both, tenants=[Tenant("noisy"), Tenant("quiet")]) as bench:
        yield bench


async def queued(
    bench: Bench, tenant: str, number: int, text: str = SLOW, *, most_in_class: int = 10_000, **fields: Any
) -> list[Job]:
    jobs = []
    for _ in range(number):
        job = a_job(text, tenant=tenant, **fields)
        answer = await bench.board.accept(
            job, deadline_s=600, idempotency=None, most_unfinished=10_000, most_in_class=most_in_class
        )
        assert isinstance(answer, Accepted)
        job = replace(job, created_at=answer.created_at, expires_at=answer.expires_at, queue=answer.queue)
        await bench.log.append(job.topic, envelope.to_record(job))
        await bench.board.confirm(job.tenant, job.id)
        jobs.append(job)
    return jobs


@asynccontextmanager
async def working(bench: Bench, bounds: Bounds) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.worker(bounds=bounds).run(stop))
        try:
            yield
        finally:
            stop.set()


async def over(bench: Bench, jobs: Sequence[Job]) -> int:
    return sum([(await bench.state(job)).is_terminal for job in jobs])


async def begun(bench: Bench, jobs: Sequence[Job]) -> bool:
    return await over(bench, jobs[:8]) >= 4


async def all_slots_taken(bench: Bench, jobs: Sequence[Job]) -> bool:
    return sum([await bench.state(job) is JobState.RUNNING for job in jobs]) == 4


async def test_who_comes_behind_a_backlog_does_not_wait_for_it(bench: Bench) -> None:
    noisy = await queued(bench, "noisy", BACKLOG)

    async with working(bench, Bounds(drain_s=0.2)):
        await until(lambda: begun(bench, noisy))
        quiet = await queued(bench, "quiet", 3)
        await bench.ended(*quiet)
        left = BACKLOG - await over(bench, noisy)

    assert left > BACKLOG // 2


async def test_overflow_larger_than_the_look_ahead_does_not_hide_what_has_slots(bench: Bench) -> None:
    noisy = await queued(bench, "noisy", 60, "wait:30", most_in_class=1)
    assert [job.queue for job in noisy] == [Queue.MAIN] + [Queue.OVERFLOW] * 59

    async with working(bench, Bounds(look_ahead=20, drain_s=0.2)):
        await until(lambda: all_slots_taken(bench, noisy))
        quiet = await queued(bench, "quiet", 3, deployment="other")
        await bench.ended(*quiet)

        assert await over(bench, noisy) == 0


async def test_who_waits_in_the_open_is_seen_behind_a_look_ahead_that_others_have_filled(bench: Bench) -> None:
    noisy = await queued(bench, "noisy", 60, "wait:30")

    async with working(bench, Bounds(look_ahead=20, drain_s=0.2)):
        await until(lambda: all_slots_taken(bench, noisy))
        hurried = await queued(bench, "quiet", 1, deployment="other", job_class=JobClass.INTERACTIVE)
        patient = await queued(bench, "quiet", 1, deployment="other")
        await bench.ended(*hurried)

        assert await over(bench, [*noisy, *patient]) == 0


async def test_overflow_is_worked_off_when_nothing_else_waits(bench: Bench) -> None:
    noisy = await queued(bench, "noisy", 40, most_in_class=5)

    async with working(bench, Bounds(look_ahead=20, drain_s=5)):
        views = await bench.ended(*noisy)

    assert {view.state for view in views} == {JobState.COMPLETED}


async def test_a_job_that_has_aged_goes_before_its_tenants_others(bench: Bench) -> None:
    others = await queued(bench, "noisy", 60, job_class=JobClass.BULK)
    job = a_job("soon", tenant="noisy", job_class=JobClass.BULK)
    answer = await bench.board.accept(job, deadline_s=600, idempotency=None, most_unfinished=10_000)
    assert isinstance(answer, Accepted)
    aged = replace(job, created_at=answer.created_at - 1000, expires_at=answer.expires_at)
    await bench.log.append(aged.topic, envelope.to_record(aged))
    await bench.board.confirm(job.tenant, job.id)

    async with working(bench, Bounds(drain_s=0.2)):
        await bench.ended(job)
        left = len(others) - await over(bench, others)

    assert left > len(others) // 2
