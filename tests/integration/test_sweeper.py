"""What the sweeper repairs, on a real Valkey."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from consumers.sweeper import Sweeper
from policies.pricing import Basis, Usage
from policies.tenants import Tenant
from router.board import Conclusion, Finished, Run
from router.job import Job, JobState, Payload
from router.payloads import PayloadLostError
from tests.builders import (
    IMPATIENT_S,
    Bench,
    a_bench,
    a_charge,
    a_conclusion,
    a_job,
    a_sweeper,
    accepted,
    answers,
    impatient_client,
    records,
    standing_still,
    until,
)

ANN = "worker:ann|jobs|1-0|1"


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(redis, tmp_path, tenants=[Tenant("acme"), Tenant("other")]) as bench:
        yield bench


@asynccontextmanager
async def sweeping(*sweepers: Sweeper) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for sweeper in sweepers:
            tasks.create_task(sweeper.run(stop))
        yield
        stop.set()


async def overdue(bench: Bench, **fields: Any) -> Job:
    """A job past its deadline that nobody runs."""
    job = await bench.job(deadline_s=0.001, **fields)
    await until(lambda: _is_overdue(bench, job))
    return job


async def _is_overdue(bench: Bench, job: Job) -> bool:
    return await bench.board.now() > job.expires_at + 0.001


async def test_a_job_that_the_log_never_confirmed_is_rejected_once_its_door_is_surely_gone(bench: Bench) -> None:
    job = await accepted(bench.board, a_job(), confirmed=False)

    await a_sweeper(bench).sweep()
    early = await bench.state(job)
    await a_sweeper(bench, unpublished_s=0).sweep()

    assert early is JobState.ACCEPTING
    assert await bench.board.claim(job, ANN, lease_s=20) == Finished(JobState.REJECTED)


async def test_a_job_that_was_claimed_meanwhile_is_not_rejected(bench: Bench) -> None:
    job = await accepted(bench.board, a_job(), confirmed=False)
    await bench.board.claim(job, ANN, lease_s=20)

    await a_sweeper(bench, unpublished_s=0).sweep()

    assert await bench.state(job) is JobState.QUEUED


async def test_a_job_past_its_deadline_that_nobody_runs_expires_with_its_event(bench: Bench) -> None:
    jobs = [await overdue(bench), await overdue(bench, tenant="other")]

    async with sweeping(a_sweeper(bench, left_behind_s=0)):
        views = await bench.ended(*jobs)
        await until(lambda: _has_events(bench, 2))

    assert [view.state for view in views] == [JobState.EXPIRED] * 2
    assert await bench.events() == {f"job_{job.id}": "job.expired" for job in jobs}


async def _has_events(bench: Bench, count: int) -> bool:
    return len(await bench.events()) == count


async def test_an_expired_job_tells_what_it_cost_until_then(bench: Bench) -> None:
    job = await bench.job(deadline_s=0.2)
    await bench.board.claim(job, ANN, lease_s=20)
    await bench.board.start(job, ANN, most_deliveries=3, microbatch="")
    await bench.board.close_attempt(job, a_charge(job, usage=Usage(input=1_000_000)))
    await bench.board.release(job, ANN, undo_delivery=True)

    async with sweeping(a_sweeper(bench, left_behind_s=0)):
        await until(lambda: _has_events(bench, 1))

    [event] = await records(bench.redis, "jobs.events")
    assert (event["type"], Decimal(event["usd"]), event["error_code"]) == ("job.expired", Decimal("0.15"), "expired")


async def test_a_job_that_runs_past_its_deadline_is_its_owners_to_end(bench: Bench) -> None:
    job = await bench.job(deadline_s=0.05)
    assert isinstance(await bench.board.claim(job, ANN, lease_s=20), Run)
    await until(lambda: _is_overdue(bench, job))

    await a_sweeper(bench).sweep()

    assert await bench.state(job) is JobState.QUEUED
    assert await bench.board.finish(job, ANN, a_conclusion(job)) is not None


async def test_what_a_worker_left_in_the_outbox_is_published_once_it_is_surely_gone(bench: Bench) -> None:
    job = await bench.job()
    await bench.board.claim(job, ANN, lease_s=20)
    await bench.board.start(job, ANN, most_deliveries=3, microbatch="")
    await bench.board.finish(job, ANN, a_conclusion(job, attempted=a_charge(job)))

    await a_sweeper(bench).sweep()
    early = await bench.events()
    await a_sweeper(bench, left_behind_s=0).sweep()

    assert early == {}
    assert await bench.events() == {f"job_{job.id}": "job.completed"}
    assert [charge["job"] for charge in await bench.charges()] == [job.id]
    assert await bench.board.outbox("acme") == []


async def test_many_sweepers_end_each_job_once(bench: Bench) -> None:
    jobs = [await overdue(bench) for _ in range(30)]

    async with sweeping(*(a_sweeper(bench, left_behind_s=0.5) for _ in range(4))):
        await bench.ended(*jobs)
        await until(lambda: _outbox_is_empty(bench))

    ended = [event["data"]["id"] for event in await records(bench.redis, "jobs.events")]
    assert set(ended) == {f"job_{job.id}" for job in jobs}
    states = [event["type"] for event in await records(bench.redis, "jobs.events")]
    assert set(states) == {"job.expired"}  # one may be published twice, with the same id


async def _outbox_is_empty(bench: Bench) -> bool:
    return await bench.board.outbox("acme") == []


async def test_jobs_that_the_sweeper_cannot_end_are_not_in_the_way_of_others(bench: Bench) -> None:
    for _ in range(250):
        running = await bench.job(deadline_s=0.001)
        await bench.board.claim(running, ANN, lease_s=20)
    await bench.redis.zadd("{t:acme}:unfinished", {f"lost-{number}": 0 for number in range(250)})
    jobs = [await overdue(bench) for _ in range(3)]

    async with sweeping(a_sweeper(bench)):
        views = await bench.ended(*jobs)

    assert {view.state for view in views} == {JobState.EXPIRED}


async def test_the_log_is_trimmed_now_and_then(bench: Bench) -> None:
    trims = 0

    async def trim() -> None:
        nonlocal trims
        trims += 1

    async with sweeping(a_sweeper(bench, trim=trim, trim_every=2)):
        await until(lambda: trims >= 3)


async def test_a_redis_that_was_away_is_swept_again_when_it_is_back(own_valkey: str, tmp_path: Path) -> None:
    async with impatient_client(own_valkey) as redis, a_bench(redis, tmp_path) as bench, sweeping(a_sweeper(bench)):
        async with standing_still(redis):
            await asyncio.sleep(IMPATIENT_S + 1)
        await until(lambda: answers(bench.board))
        job = await overdue(bench)
        [view] = await bench.ended(job)

    assert view.state is JobState.EXPIRED


async def test_the_sweeper_shows_that_the_board_lives(bench: Bench) -> None:
    _, before = await bench.board.heartbeat()

    await a_sweeper(bench).sweep()

    _, after = await bench.board.heartbeat()
    assert after == before + 1


async def test_a_body_goes_when_its_job_completed_and_a_result_when_its_time_is_over(bench: Bench) -> None:
    body = await bench.payloads.put("bodies/acme/1", b"a large body")
    result = await bench.payloads.put("results/acme/1", b"a large result")
    job = await bench.job(payload=body, result_ttl_s=0.05)
    await bench.board.claim(job, ANN, lease_s=20)
    await bench.board.finish(job, ANN, Conclusion(JobState.COMPLETED, "{}", result_at=result))

    async with sweeping(a_sweeper(bench)):
        await until(lambda: _is_gone(bench, body))
        await until(lambda: _is_gone(bench, result))


async def test_what_a_video_was_asked_is_kept_for_as_long_as_the_video(bench: Bench) -> None:
    body = await bench.payloads.put("bodies/acme/1", b"a large body")
    video = await bench.job(endpoint="/v1/videos", payload=body)
    other = await bench.payloads.put("bodies/acme/2", b"a large body")
    job = await bench.job(payload=other)
    for each in (video, job):
        await bench.board.claim(each, ANN, lease_s=20)
        await bench.board.finish(each, ANN, Conclusion(JobState.COMPLETED, "{}"))

    async with sweeping(a_sweeper(bench)):
        await until(lambda: _is_gone(bench, other))

    assert await bench.payloads.get(body) == b"a large body"


async def test_a_job_whose_owner_died_and_whose_record_is_lost_ends_at_last(bench: Bench) -> None:
    job = await bench.job(deadline_s=0.02)
    await bench.board.claim(job, ANN, lease_s=0.01)
    await bench.board.start(job, ANN, most_deliveries=3, microbatch="mb_1")
    await bench.redis.hset(f"{{t:{job.tenant}}}:job:{job.id}", "lease", "0")

    async with sweeping(a_sweeper(bench)):
        [view] = await bench.ended(job)

    assert view.state is JobState.EXPIRED
    assert [(line.outcome, line.basis) for line in view.charges] == [("lost", Basis.ESTIMATED)]


async def _is_gone(bench: Bench, payload: Payload) -> bool:
    with suppress(PayloadLostError):
        await bench.payloads.get(payload)
        return False
    return True
