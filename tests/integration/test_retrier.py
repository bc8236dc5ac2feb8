"""Postponed jobs come back when they are due, on a real Valkey."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from consumers.retrier import Retrier
from router import envelope, topics
from router.board import Busy
from router.log import Record
from tests.builders import Bench, a_bench, a_job, entries, records, until

SOON, LATER = "jobs.retry.30s", "jobs.retry.10m"


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(redis, tmp_path) as bench:
        yield bench


@asynccontextmanager
async def retrying(bench: Bench, *retry_topics: str) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for topic in retry_topics:
            tasks.create_task(Retrier(bench.log, bench.board, topic).run(stop))
        try:
            yield
        finally:
            stop.set()


async def postponed(bench: Bench, topic: str, in_s: float) -> str:
    """A job on a retry topic; returns its id."""
    job = a_job()
    due_at = await bench.board.now() + in_s
    await bench.log.append(topic, envelope.postponed(envelope.to_record(job), job.topic, due_at=due_at, reason="x"))
    return job.id


async def back(bench: Bench) -> list[str]:
    """The ids on the lane, as they came."""
    return [fields[b"h:job"].decode() for fields in await entries(bench.redis, a_job().topic)]


async def test_a_record_comes_back_as_it_was_once_it_is_due_and_not_before(bench: Bench) -> None:
    late = await postponed(bench, SOON, 60)
    first, second = await postponed(bench, SOON, 0.6), await postponed(bench, SOON, 0.3)
    async with retrying(bench, SOON):
        await until(lambda: _count(bench, 2))

    assert await back(bench) == [second, first]
    assert late not in await back(bench)
    [fields, _] = await entries(bench.redis, a_job().topic)
    assert not [name for name in fields if name.startswith(b"h:retry-")]


async def _count(bench: Bench, count: int) -> bool:
    return len(await back(bench)) == count


async def test_one_that_is_not_due_waits_for_the_next_retrier(bench: Bench) -> None:
    job = await postponed(bench, LATER, 1.0)
    async with retrying(bench, LATER):
        await until(lambda: _is_held(bench))
    before = await back(bench)
    async with retrying(bench, LATER):
        await until(lambda: _count(bench, 1), within=30)

    assert (before, await back(bench)) == ([], [job])


async def _is_held(bench: Bench) -> bool:
    return await bench.log.backlog(LATER, group="retrier") == 1


async def test_a_record_without_a_due_time_is_kept_among_the_dead_letters(bench: Bench) -> None:
    await bench.log.append(SOON, Record(b"{}", {"retry-topic": "jobs.echo.text.light.standard"}))
    due = await postponed(bench, SOON, 0.0)
    async with retrying(bench, SOON):
        await until(lambda: _count(bench, 1))

    assert await back(bench) == [due]
    assert len(await records(bench.redis, topics.DEAD)) == 1


async def test_a_job_held_back_by_the_board_is_not_run_before_it_is_due_even_from_its_first_record(
    bench: Bench,
) -> None:
    job = await bench.job()
    await bench.board.claim(job, "ann|1", lease_s=20)
    await bench.board.release(job, "ann|1", undo_delivery=True, wait_s=30)

    claim = await bench.board.claim(job, "bob|1", lease_s=20)

    assert isinstance(claim, Busy) and claim.seconds > 20


@pytest.mark.parametrize(("seconds", "topic"), [(31, "jobs.retry.2m"), (120, "jobs.retry.2m"), (5000, LATER)])
def test_what_waits_long_waits_on_the_topic_of_that_length(seconds: float, topic: str) -> None:
    assert topics.retry_topic(seconds) == topic
