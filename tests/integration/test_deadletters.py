"""Dead letters are listed, run again and dropped, on a real Valkey."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from consumers.backend import Answer, OnChunk, SoFar
from consumers.backend_echo import EchoBackend
from consumers.breaker import IN_A_ROW, WINDOW, Breaker
from consumers.worker import Bounds, Worker
from policies.deployments import Deployment
from router import envelope, topics
from router.deadletters import DeadLetter, DeadLetters, NotReplayableError, Wanted
from router.job import Job, JobState
from router.log import Record
from tests.builders import Bench, a_bench, a_job, entries, until


class Broken:
    """A backend whose code has a bug until it is mended."""

    def __init__(self) -> None:
        self.is_mended = False
        self._echo = EchoBackend()

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer:
        """Raise what nobody expects."""
        if not self.is_mended:
            raise KeyError("a bug")
        return await self._echo.call(job, deployment, attempt=attempt, on_chunk=on_chunk, so_far=so_far)

    async def ping(self, deployment: Deployment) -> str | None:
        """All is well."""
        return None


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(redis, tmp_path) as bench:
        yield bench


@asynccontextmanager
async def working(worker: Worker) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run(stop))
        try:
            yield
        finally:
            stop.set()


async def letters(bench: Bench, **wanted: Any) -> list[DeadLetter]:
    return [letter async for letter in DeadLetters(bench.log, bench.board).open(Wanted(**wanted))]


async def crashed(bench: Bench, backend: Broken, count: int = 1) -> list[Job]:
    jobs = [await bench.queued(f"number {number}") for number in range(count)]
    async with working(bench.worker(backend)):
        await bench.ended(*jobs)
        await until(lambda: _are_buried(bench, count))
    return jobs


async def _are_buried(bench: Bench, count: int) -> bool:
    return len(await letters(bench)) == count


async def test_a_job_that_our_own_bug_ended_fails_charged_and_is_kept(bench: Bench) -> None:
    [job] = await crashed(bench, Broken())

    [letter] = await letters(bench)
    view = await bench.view(job)
    assert (letter.reason, letter.tenant, letter.job_id) == ("crashed", "acme", job.id)
    assert letter.record.value == job.body
    assert view.state is JobState.FAILED
    assert [line.outcome for line in view.charges] == ["crashed"]


async def test_a_replayed_one_completes_under_its_id_with_its_ledger_and_is_closed(bench: Bench) -> None:
    backend = Broken()
    [job] = await crashed(bench, backend)
    backend.is_mended = True
    [letter] = await letters(bench)
    async with working(bench.worker(backend)):
        await DeadLetters(bench.log, bench.board).replay(letter)
        await until(lambda: _is(bench, job, JobState.COMPLETED))

    view = await bench.view(job)
    assert [line.outcome for line in view.charges] == ["crashed", "completed", "completed"]
    assert await letters(bench) == []
    with pytest.raises(NotReplayableError, match="completed"):
        await DeadLetters(bench.log, bench.board).replay(letter)


async def test_after_the_board_was_lost_one_is_run_again_all_the_same(bench: Bench) -> None:
    backend = Broken()
    [job] = await crashed(bench, backend)
    backend.is_mended = True
    [letter] = await letters(bench)
    await bench.wipe()
    await bench.rebuild()
    async with working(bench.worker(backend)):
        await DeadLetters(bench.log, bench.board).replay(letter)
        await until(lambda: _has_completed(bench, job))
    charged = sorted((row["attempt"], row["concluded"]) for row in await bench.charges())
    await bench.wipe()
    await bench.rebuild()

    assert charged == [(1, True), (2, True)]
    assert await bench.board.state(job.tenant, job.id) is JobState.COMPLETED


@pytest.mark.parametrize("is_wiped", [True, False])
async def test_one_that_was_queued_again_when_the_board_was_lost_is_run_once(bench: Bench, is_wiped: bool) -> None:
    backend = Broken()
    [job] = await crashed(bench, backend)
    backend.is_mended, copy = True, await bench.copied()
    [letter] = await letters(bench)
    await DeadLetters(bench.log, bench.board).replay(letter)
    await (bench.wipe() if is_wiped else bench.set_back(copy))
    await bench.rebuild()
    async with working(bench.worker(backend)):
        await until(lambda: _has_completed(bench, job))

    assert sorted((row["attempt"], row["concluded"]) for row in await bench.charges()) == [(1, True), (2, True)]


async def test_one_that_failed_again_is_not_run_a_third_time_after_the_board_was_lost(bench: Bench) -> None:
    backend = Broken()
    [job] = await crashed(bench, backend)
    [letter] = await letters(bench)
    async with working(bench.worker(backend)):
        again = await DeadLetters(bench.log, bench.board).replay(letter)
        await until(lambda: _are_buried(bench, 1))
        await until(lambda: _is_other(bench, letter))
    await bench.wipe()
    await bench.rebuild()
    await bench.log.append(job.topic, envelope.replayed(envelope.to_record(again), at=again.created_at))
    other = await bench.queued("another")
    async with working(bench.worker()):
        await bench.ended(other)

    assert await bench.board.state(job.tenant, job.id) is JobState.FAILED
    assert sorted(row["attempt"] for row in await bench.charges() if row["job"] == job.id) == [1, 2]


async def test_a_rebuild_of_a_whole_board_leaves_one_that_is_queued_again(bench: Bench) -> None:
    backend = Broken()
    [job] = await crashed(bench, backend)
    [letter] = await letters(bench)
    await DeadLetters(bench.log, bench.board).replay(letter)
    await bench.rebuild()
    backend.is_mended = True
    state = await bench.state(job)
    async with working(bench.worker(backend)):
        await until(lambda: _has_completed(bench, job))

    assert state is JobState.QUEUED


async def _is_other(bench: Bench, letter: DeadLetter) -> bool:
    return [each.id for each in await letters(bench)] != [letter.id]


async def _has_completed(bench: Bench, job: Job) -> bool:
    return await bench.board.state(job.tenant, job.id) is JobState.COMPLETED


async def _is(bench: Bench, job: Job, state: JobState) -> bool:
    return await bench.state(job) is state


async def test_a_replay_that_died_half_way_may_be_made_again(bench: Bench) -> None:
    backend = Broken()
    [job] = await crashed(bench, backend)
    [letter] = await letters(bench)
    await bench.board.revive(job, letter.id)  # and then the operator's process died

    backend.is_mended = True
    async with working(bench.worker(backend)):
        await DeadLetters(bench.log, bench.board).replay(letter)
        await until(lambda: _is(bench, job, JobState.COMPLETED))


async def test_undecodable_records_are_kept_byte_for_byte_and_cannot_run_again(bench: Bench) -> None:
    raw = b"\x00\xffnot a job"
    async with working(bench.worker()):
        await bench.log.append("jobs.echo.text.light.standard", Record(raw, {"tenant": "acme", "authorization": "x"}))
        await until(lambda: _are_buried(bench, 1))

    [letter] = await letters(bench)
    assert letter.record == Record(raw, {"tenant": "acme"})
    assert letter.reason == "undecodable"
    with pytest.raises(NotReplayableError):
        await DeadLetters(bench.log, bench.board).replay(letter)


async def test_they_are_chosen_by_id_job_reason_tenant_and_time_and_dropped(bench: Bench) -> None:
    jobs = await crashed(bench, Broken(), 3)
    first = (await letters(bench))[0]

    assert await letters(bench, ids=(first.id,)) == [first]
    assert [letter.job_id for letter in await letters(bench, ids=(f"job_{jobs[1].id}",))] == [jobs[1].id]
    assert len(await letters(bench, reason="crashed", tenant="acme")) == 3
    assert await letters(bench, reason="undecodable") == await letters(bench, tenant="other") == []
    moments = [letter.at for letter in await letters(bench)]  # they may be equal, and come in another order
    assert await letters(bench, until=min(moments)) == await letters(bench, since=max(moments) + 0.001) == []
    assert len(await letters(bench, since=min(moments), until=max(moments) + 0.001)) == 3
    await DeadLetters(bench.log, bench.board).drop(first)
    assert first not in await letters(bench)


def test_the_breaker_opens_after_50_in_a_row() -> None:
    breaker = Breaker()
    for _ in range(IN_A_ROW - 1):
        breaker.add(dead=True)
    before = breaker.is_open
    breaker.add(dead=True)

    assert (before, breaker.is_open) == (False, True)


def test_the_breaker_opens_above_a_fifth_of_the_last_200_and_stays_open() -> None:
    breaker = Breaker()
    for number in range(WINDOW):
        breaker.add(dead=number % 5 == 0)
    at_a_fifth = breaker.is_open
    breaker.add(dead=True)
    breaker.add(dead=True)
    above = breaker.is_open
    for _ in range(WINDOW):
        breaker.add(dead=False)

    assert (at_a_fifth, above, breaker.is_open) == (False, True, True)


@pytest.mark.parametrize("how", ["undecodable", "crashed"])
async def test_a_worker_that_would_send_a_whole_backlog_there_stops_taking(bench: Bench, how: str) -> None:
    lane = a_job().topic
    for number in range(80):
        if how == "crashed":
            await bench.queued(f"number {number}")
        else:
            await bench.log.append(lane, Record(b"nothing"))
    worker = bench.worker(Broken() if how == "crashed" else None, bounds=Bounds(look_ahead=10, drain_s=5.0))

    async with working(worker):
        await until(lambda: worker.breaker.is_open and worker.held == 0)
    dead = len(await entries(bench.redis, topics.DEAD))
    left = await bench.log.backlog(lane, group="workers.echo")

    assert IN_A_ROW <= dead <= IN_A_ROW + 10
    assert left == 80 - dead


async def test_a_worker_whose_breaker_is_open_takes_nothing_more(bench: Bench) -> None:
    worker = bench.worker(Broken())
    worker.breaker.is_open = True
    job = await bench.queued()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run(stop))
        other = await bench.queued("for the second worker")
        tasks.create_task(bench.worker().run(stop))
        await bench.ended(job, other)
        stop.set()

    assert worker.held == 0
