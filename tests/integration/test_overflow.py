"""A tenant's jobs beyond its part of a class go to the overflow, which never keeps others from being seen."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis
from ulid import ULID

from consumers import intake
from policies.scripts import Scripts
from router import envelope
from router.board import Accepted, Board, QueueFull, Run
from router.job import Job, JobClass, JobState, Queue
from router.log import Delivery, Log, Record, Subscription
from tests.builders import a_conclusion, a_job, an_event, until

OWNER = "worker:ann|jobs|1-0|1"
MAIN, OVERFLOW = "jobs.gpu.text.light.standard", "jobs.gpu.text.light.overflow"


@pytest.fixture
def board(scripts: Scripts) -> Board:
    return Board(scripts)


async def taken(board: Board, *, deadline_s: float = 60.0, most: int = 2, full: int = 5, **fields: Any) -> Job | None:
    """The job as the board took it; None if the queue is full."""
    job = a_job(**fields)
    answer = await board.accept(job, deadline_s=deadline_s, idempotency=None, most_unfinished=full, most_in_class=most)
    if isinstance(answer, QueueFull):
        return None
    assert isinstance(answer, Accepted)
    return replace(job, created_at=answer.created_at, expires_at=answer.expires_at, queue=answer.queue)


async def a_taken_job(board: Board, **fields: Any) -> Job:
    job = await taken(board, **fields)
    assert job is not None
    return job


async def where(board: Board, **fields: Any) -> Queue:
    return (await a_taken_job(board, **fields)).queue


async def is_past(board: Board, job: Job) -> bool:
    return await board.now() > job.expires_at + 0.002


async def counted(redis: Redis, job_class: str = "standard") -> int:
    found: int = await redis.zcard(f"{{t:acme}}:unfinished:{job_class}")
    return found


async def test_what_is_beyond_a_tenants_part_of_a_class_goes_to_the_overflow_until_the_queue_is_full(
    board: Board,
) -> None:
    jobs = [await taken(board) for _ in range(6)]

    assert [job and job.queue for job in jobs] == ["main", "main", "overflow", "overflow", "overflow", None]


async def test_each_class_and_each_tenant_has_a_part_of_its_own(board: Board) -> None:
    for _ in range(3):
        await taken(board, full=100)

    assert await where(board, full=100) is Queue.OVERFLOW
    assert await where(board, full=100, job_class=JobClass.BULK) is Queue.MAIN
    assert await where(board, full=100, tenant="other") is Queue.MAIN


async def test_a_job_says_where_it_waits_wherever_it_is_read(board: Board) -> None:
    await taken(board, most=1)
    job = await a_taken_job(board, most=1)

    view = await board.view(job.tenant, job.id)
    [first, second] = (await board.page(job.tenant, states=(), limit=10, after="")).views
    travelled = envelope.from_record(envelope.to_record(job))

    assert job.topic == "jobs.echo.text.light.overflow"
    assert view is not None
    assert view.job.queue is Queue.OVERFLOW
    assert {first.job.queue, second.job.queue} == {Queue.MAIN, Queue.OVERFLOW}
    assert (travelled.queue, travelled.topic, travelled.band) == (Queue.OVERFLOW, job.topic, "overflow")


async def test_a_record_that_comes_back_from_a_retry_topic_goes_to_where_it_was(board: Board) -> None:
    await taken(board, most=1)
    job = await a_taken_job(board, most=1)
    record = envelope.to_record(job)

    topic, back = envelope.brought_back(envelope.postponed(record, job.topic, due_at=1.0, reason="quota"))

    assert topic == "jobs.echo.text.light.overflow"
    assert envelope.from_record(back) == envelope.from_record(record)


async def test_a_finished_job_makes_room(board: Board, redis: Redis) -> None:
    job = await a_taken_job(board, most=1)
    assert isinstance(await board.claim(job, OWNER, lease_s=30), Run)
    await board.finish(job, OWNER, a_conclusion(job))

    assert await counted(redis) == 0
    assert await where(board, most=1) is Queue.MAIN


async def test_a_cancelled_job_makes_room(board: Board, redis: Redis) -> None:
    job = await a_taken_job(board, most=1)
    await board.confirm(job.tenant, job.id)
    assert await board.cancel(job.tenant, job.id, an_event(job, JobState.CANCELLED)) is JobState.CANCELLED

    assert await counted(redis) == 0


async def test_a_rejected_job_makes_room(board: Board, redis: Redis) -> None:
    job = await a_taken_job(board, most=1)
    assert await board.reject(job.tenant, job.id) is JobState.REJECTED

    assert await counted(redis) == 0


async def test_an_expired_job_makes_room(board: Board, redis: Redis) -> None:
    job = await a_taken_job(board, most=1, deadline_s=0.001)
    await board.confirm(job.tenant, job.id)
    await until(lambda: is_past(board, job))
    assert await board.expire(job.tenant, job.id, an_event(job, JobState.EXPIRED)) is JobState.EXPIRED

    assert await counted(redis) == 0


async def test_jobs_past_their_deadline_do_not_count_even_before_they_are_swept(board: Board) -> None:
    for _ in range(2):
        job = await a_taken_job(board, deadline_s=0.001)
    await until(lambda: is_past(board, job))

    assert await where(board) is Queue.MAIN


async def test_a_job_that_a_rebuild_finds_over_makes_room(board: Board, redis: Redis) -> None:
    job = await a_taken_job(board, most=1)
    await board.bury(job.tenant, job.id, JobState.COMPLETED, at=await board.now())

    assert await counted(redis) == 0


async def test_what_waits_in_the_overflow_takes_no_place_in_the_main_queue(board: Board, redis: Redis) -> None:
    first = await a_taken_job(board, most=1)
    behind = await a_taken_job(board, most=1)
    await board.confirm(behind.tenant, behind.id)

    await board.cancel(behind.tenant, behind.id, an_event(behind, JobState.CANCELLED))

    assert behind.queue is Queue.OVERFLOW
    assert await counted(redis) == 1
    assert first.queue is Queue.MAIN


async def test_a_job_that_the_board_lost_counts_again_where_its_record_says(board: Board, redis: Redis) -> None:
    main = await a_taken_job(board, most=1)
    behind = await a_taken_job(board, most=1)
    await redis.flushdb()
    await board.begin_epoch(str(ULID()), only_first=True)

    for job in (main, behind):
        claimed = envelope.from_record(envelope.to_record(job))
        assert isinstance(await board.claim(claimed, OWNER, lease_s=30), Run)

    view = await board.view(behind.tenant, behind.id)
    assert view is not None
    assert view.job.queue is Queue.OVERFLOW
    assert await counted(redis) == 1


async def all_of(subscription: Subscription, number: int) -> list[str]:
    """The topics of so many deliveries, in bounded time; all are `done`."""
    found: list[str] = []
    async with asyncio.timeout(30):
        while len(found) < number:
            for delivery in await subscription.take(100):
                found.append(delivery.topic)
                await subscription.done(delivery)
    return found


async def test_overflow_leaves_room_for_the_main_queue(log: Log) -> None:
    await log.create([MAIN, OVERFLOW])
    for _ in range(20):
        await log.append(OVERFLOW, Record(b"{}"))

    async with intake.subscribe(log, [MAIN, OVERFLOW], group="workers", most=4, most_bytes=1000) as subscription:
        held: list[Delivery] = []
        async with asyncio.timeout(30):
            while len(held) < 4:
                held += await subscription.take(100)
            for _ in range(3):
                held += await subscription.take(100)
            await log.append(MAIN, Record(b"{}"))
            while not any(delivery.topic == MAIN for delivery in held):
                held += await subscription.take(100)
        overflow = [delivery for delivery in held if delivery.topic == OVERFLOW]
        assert len(overflow) == 4
        for delivery in held:
            await subscription.done(delivery)
        assert await all_of(subscription, 16) == [OVERFLOW] * 16


async def test_overflow_is_bounded_in_bytes_too(log: Log) -> None:
    await log.create([MAIN, OVERFLOW])
    for _ in range(20):
        await log.append(OVERFLOW, Record(b"x" * 100))

    async with intake.subscribe(log, [MAIN, OVERFLOW], group="workers", most=10, most_bytes=1) as subscription:
        held: list[Delivery] = []
        async with asyncio.timeout(30):
            while not held:
                held += await subscription.take(3)
            for _ in range(3):
                held += await subscription.take(3)

        assert len(held) <= 3


async def test_what_was_not_done_comes_to_the_next_member_and_what_was_does_not(log: Log) -> None:
    await log.create([MAIN, OVERFLOW])
    for topic in (MAIN, OVERFLOW):
        for number in range(3):
            await log.append(topic, Record(str(number).encode()))

    async with intake.subscribe(log, [MAIN, OVERFLOW], group="workers", most=10, most_bytes=1000) as first:
        held: list[Delivery] = []
        async with asyncio.timeout(30):
            while len(held) < 6:
                held += await first.take(100)
        for delivery in held:
            if delivery.record.value != b"2":
                await first.done(delivery)
    async with intake.subscribe(log, [MAIN, OVERFLOW], group="workers", most=10, most_bytes=1000) as second:
        again = sorted(await all_of(second, 2))

    assert again == sorted([MAIN, OVERFLOW])
