"""What a worker promises, on a real Valkey with Redis Streams as its log and the echo backend."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from consumers.backend import Answer, OnChunk, SoFar
from consumers.backend_echo import EchoBackend
from consumers.worker import Bounds, Worker
from policies.deployments import Deployment, Limits
from policies.ending import ended
from policies.quota import deployment_scope
from policies.tenants import Tenant
from router import envelope, topics
from router.job import Estimate, Job, JobClass, JobState
from router.log import Delivery, LogUnavailableError, Record, Subscription
from router.log_streams import StreamsLog
from router.wakeups import Wakeups
from tests.builders import (
    IMPATIENT_S,
    Bench,
    a_bench,
    a_deployment,
    a_job,
    an_event,
    answers,
    entries,
    impatient_client,
    records,
    standing_still,
    until,
)

STOP_S = 20.0  # until a worker that does not stop counts as one that never will
GROUP = "workers.echo"
LANE = "jobs.echo.text.light.standard"


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    deployments = [
        a_deployment(),
        a_deployment("by-size", microbatch_size=4, microbatch_wait_s=600.0),
        a_deployment("by-wait", microbatch_size=100, microbatch_wait_s=1.0),
        a_deployment("single", limits=Limits(concurrency=1)),
        a_deployment("scarce", limits=Limits(tokens_per_minute=60)),
    ]
    async with a_bench(redis, tmp_path, deployments=deployments, tenants=[Tenant("acme"), Tenant("other")]) as bench:
        yield bench


@dataclass
class Counting(EchoBackend):
    """Echo, and how often each job was asked of it."""

    calls: dict[str, int] = field(default_factory=dict)
    open: int = 0
    _delay_s: float = 0.0

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer:
        self.calls[job.id] = self.calls.get(job.id, 0) + 1
        self.open += 1
        try:
            return await super().call(job, deployment, attempt=attempt, on_chunk=on_chunk, so_far=so_far)
        finally:
            self.open -= 1


@asynccontextmanager
async def working(*workers: Worker) -> AsyncGenerator[None]:
    """These work inside the block, and are told to stop at its end."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(worker.run(stop)) for worker in workers]
        try:
            yield
        finally:
            stop.set()
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(*running)


async def nothing_is_open(bench: Bench, *lanes: str) -> bool:
    return not any([await bench.log.backlog(topic, group=GROUP) for topic in lanes or (LANE,)])


async def test_everything_that_is_appended_is_concluded_once_and_done(bench: Bench) -> None:
    jobs = [
        await bench.queued(
            f"number {number}",
            tenant=("acme", "other")[number % 2],
            job_class=tuple(JobClass)[number % 3],
            deployment=("small", "single")[number % 4 == 0],
        )
        for number in range(150)
    ]
    counting = Counting()

    async with working(bench.worker(counting), bench.worker(counting)):
        views = await bench.ended(*jobs)
        await until(lambda: nothing_is_open(bench, *(f"jobs.echo.text.light.{kind}" for kind in JobClass)))

    assert {view.state for view in views} == {JobState.COMPLETED}
    assert counting.calls == {job.id: 1 for job in jobs}
    assert await bench.events() == {f"job_{job.id}": "job.completed" for job in jobs}
    charges = await bench.charges()
    assert sorted(charge["job"] for charge in charges) == sorted(job.id for job in jobs)
    exact = sum((Decimal(charge["usd"]) for charge in charges), Decimal(0))
    for by in ("microbatch", "tenant", "deployment", "lane", "day"):
        rows = await bench.costs(by)
        assert sum(row.jobs for row in rows) == 150, by
        assert sum((row.usd for row in rows), Decimal(0)) == exact, by
    assert await bench.redis.hlen("{t:acme}:outbox") == 0


async def test_a_record_that_cannot_be_decoded_goes_to_the_dead_letters_and_stops_nothing(bench: Bench) -> None:
    good = a_job()
    headers = dict(envelope.to_record(good).headers)
    wrong: list[tuple[str, dict[str, str]]] = [
        ("nothing", {}),
        ("version", {**headers, "version": "99"}),
        ("tenant", {**headers, "tenant": "\udcff"}),
        ("deep", {**headers, "route": "[" * 100_000}),
        ("list", {**headers, "route": "[]"}),
        ("infinite", {**headers, "estimate": '{"input":Infinity,"output":1,"usd":null}'}),
        ("huge", {**headers, "estimate": '{"input":1e30,"output":1,"usd":null}'}),
        ("money", {**headers, "estimate": '{"input":1,"output":1,"usd":"NaN"}'}),
        ("ttl", {**headers, "result-ttl-s": "-1"}),
        ("endless", {**headers, "result-ttl-s": "inf"}),
        ("deadline", {**headers, "deadline-ms": "9" * 5000}),
        ("far", {**headers, "deadline-ms": "9" * 30}),
        ("surrogate", {**headers, "metadata": '{"a":"\\ud800"}'}),
    ]
    for name, values in wrong:
        await bench.log.append(LANE, Record(f"\x00 {name}".encode(), {**values, "authorization": "secret"}))
    job = await bench.queued()

    async with working(bench.worker()):
        [view] = await bench.ended(job)
        await until(lambda: nothing_is_open(bench))

    assert view.state is JobState.COMPLETED
    dead = await entries(bench.redis, topics.DEAD)
    assert sorted(fields[b"v"] for fields in dead) == sorted(f"\x00 {name}".encode() for name, _ in wrong)
    assert {fields[b"h:dead-reason"] for fields in dead} == {b"undecodable"}
    assert {fields[b"h:dead-topic"] for fields in dead} == {LANE.encode()}
    assert all(fields[b"h:dead-detail"] for fields in dead)
    assert not any(b"h:authorization" in fields for fields in dead)


async def test_a_job_that_crashes_the_code_goes_to_the_dead_letters_and_stops_nothing(bench: Bench) -> None:
    class Broken(EchoBackend):
        async def call(self, job: Job, *arguments: Any, **named: Any) -> Answer:
            if b"crash" in job.body:
                raise ZeroDivisionError
            return await super().call(job, *arguments, **named)

    crashing, good = await bench.queued("crash"), await bench.queued()

    async with working(bench.worker(Broken())):
        views = await bench.ended(crashing, good)
        await until(lambda: nothing_is_open(bench))

    assert [view.state for view in views] == [JobState.FAILED, JobState.COMPLETED]
    [dead] = await entries(bench.redis, topics.DEAD)
    assert (dead[b"v"], dead[b"h:dead-reason"], dead[b"h:job"]) == (crashing.body, b"crashed", crashing.id.encode())


async def test_a_worker_holds_no_more_than_its_look_ahead(bench: Bench) -> None:
    jobs = [await bench.queued("wait:0.02 x") for _ in range(40)]
    worker, most = bench.worker(bounds=Bounds(look_ahead=8, slots=4)), 0

    async def all_over() -> bool:
        nonlocal most
        most = max(most, worker.held)
        return len(await bench.redis.xrange(f"log:{topics.EVENTS}") or ()) == len(jobs)

    async with working(worker):
        await until(all_over)

    assert 4 <= most <= 8


async def test_a_worker_holds_no_more_bytes_than_it_may(bench: Bench) -> None:
    text = "wait:0.02 " + "x" * 10_000
    jobs = [await bench.queued(text) for _ in range(20)]
    worker, most = bench.worker(bounds=Bounds(look_ahead_bytes=1, slots=4)), 0

    async def all_over() -> bool:
        nonlocal most
        most = max(most, worker._held_bytes)
        return len(await bench.redis.xrange(f"log:{topics.EVENTS}") or ()) == len(jobs)

    async with working(worker):
        await until(all_over)

    assert most > 0


async def microbatches(bench: Bench) -> list[dict[str, Any]]:
    """Their records on the ledger."""
    return [row for row in await records(bench.redis, topics.CHARGES) if row["type"] == "microbatch"]


async def test_a_microbatch_closes_at_its_size(bench: Bench) -> None:
    jobs = [await bench.queued("a b", deployment="by-size") for _ in range(8)]

    async with working(bench.worker()):
        views = await bench.ended(*jobs)

    found = await microbatches(bench)
    assert [(row["jobs"], row["attempts"], row["retries"], row["tokens"]) for row in found] == [(4, 4, 0, 16)] * 2
    assert {row["usd"] for row in found} == {"0.000006"}
    assert {row["id"] for row in found} == {view.microbatch for view in views}
    assert all(row["items_per_minute"] > 0 for row in found)


async def test_a_microbatch_closes_when_it_has_waited_long_enough(bench: Bench) -> None:
    jobs = [await bench.queued(deployment="by-wait") for _ in range(3)]

    async with working(bench.worker()):
        await bench.ended(*jobs)

    assert [row["jobs"] for row in await microbatches(bench)] == [3]


async def test_the_record_of_a_microbatch_is_the_sum_of_its_attempts(bench: Bench) -> None:
    texts = ["a b", "fail:cut:1 a b", "fail:rejected", "fail:timed_out:2 a"]
    jobs = [await bench.queued(text, deployment="by-wait") for text in texts]

    async with working(bench.worker()):
        await bench.ended(*jobs)

    by_batch: dict[str, list[dict[str, Any]]] = {}
    for charge in await bench.charges():
        by_batch.setdefault(charge["microbatch"], []).append(charge)
    found = {row["id"]: row for row in await microbatches(bench)}
    assert set(found) == set(by_batch) and len(found) > 1
    for name, charges in by_batch.items():
        row = found[name]
        assert row["attempts"] == len(charges)
        assert row["jobs"] == sum(charge["concluded"] for charge in charges)
        assert row["retries"] == row["attempts"] - row["jobs"]
        assert row["tokens"] == sum(charge["tokens"] for charge in charges)
        assert Decimal(row["usd"]) == sum(Decimal(charge["usd"]) for charge in charges)
    assert {row.name: row.usd for row in await bench.costs("microbatch")} == {
        name: Decimal(row["usd"]) for name, row in found.items()
    }


async def test_a_worker_that_stops_finishes_what_runs_and_leaves_the_rest(bench: Bench) -> None:
    jobs = [await bench.queued("wait:1 x", deployment="single") for _ in range(3)]
    counting = Counting()

    async with working(bench.worker(counting)):
        await until(lambda: counting.open == 1)

    states = [await bench.state(job) for job in jobs]
    assert sorted(states) == [JobState.COMPLETED, JobState.QUEUED, JobState.QUEUED]
    assert await bench.log.backlog(LANE, group=GROUP) == 2
    async with working(bench.worker(counting)):
        await bench.ended(*jobs)
    assert counting.calls == {job.id: 1 for job in jobs}


async def test_a_worker_that_stops_closes_what_runs_for_too_long_and_others_run_it(bench: Bench) -> None:
    job = await bench.queued("wait:2 a")
    counting = Counting()

    async with working(bench.worker(counting, bounds=Bounds(drain_s=0.0), most_deliveries=1)):
        await until(lambda: counting.open == 1)
    given_back = await bench.state(job)

    async with working(bench.worker(counting, most_deliveries=1)):
        [view] = await bench.ended(job)
    assert given_back is JobState.QUEUED
    assert (view.state, view.attempts) == (JobState.COMPLETED, 2)
    assert [{line["outcome"] for line in row["lines"]} for row in await bench.charges()] == [{"aborted"}, {"completed"}]


async def test_a_worker_that_stops_does_not_wait_for_a_microbatch_to_fill(bench: Bench) -> None:
    jobs = [await bench.queued(deployment="by-size") for _ in range(2)]
    worker = bench.worker(bounds=Bounds(drain_s=0.0))

    async with working(worker):
        await until(lambda: worker.held == 2)

    assert [await bench.state(job) for job in jobs] == [JobState.QUEUED] * 2
    assert await bench.log.backlog(LANE, group=GROUP) == 2


async def test_jobs_of_a_worker_that_was_killed_are_run_by_another(bench: Bench) -> None:
    bench.lease_s = 1.0
    jobs = [await bench.queued("wait:1.5 a") for _ in range(5)]
    killed_counting, counting = Counting(), Counting()
    killed = asyncio.create_task(bench.worker(killed_counting).run(asyncio.Event()))
    await until(lambda: killed_counting.open == 5)
    killed.cancel()
    await asyncio.wait([killed])

    async with working(bench.worker(counting)):
        views = await bench.ended(*jobs)

    assert {(view.state, view.attempts) for view in views} == {(JobState.COMPLETED, 2)}
    assert len(await bench.events()) == 5
    charges = await bench.charges()
    assert sorted((charge["attempt"], charge["concluded"]) for charge in charges) == [(1, False)] * 5 + [(2, True)] * 5
    [row] = [row for row in await bench.costs() if row.name == "acme"]
    assert row.usd == sum(Decimal(charge["usd"]) for charge in charges)


async def test_after_redis_was_away_everything_goes_on_by_itself(own_valkey: str, tmp_path: Path) -> None:
    async with impatient_client(own_valkey) as redis, a_bench(redis, tmp_path) as bench:
        running = [await bench.queued("wait:0.5 a") for _ in range(5)]
        waiting = [await bench.queued("a") for _ in range(20)]
        counting = Counting()
        async with working(bench.worker(counting, bounds=Bounds(slots=5))):
            await until(lambda: counting.open >= 1)
            async with standing_still(redis):
                await asyncio.sleep(IMPATIENT_S + 1)
            await until(lambda: answers(bench.board))
            views = await bench.ended(*running, *waiting)
            late = await bench.queued("later")
            views += await bench.ended(late)
            await until(lambda: nothing_is_open(bench))

        assert {view.state for view in views} == {JobState.COMPLETED}
        assert set(await bench.events()) == {f"job_{job.id}" for job in (*running, *waiting, late)}
        [row] = await bench.costs()
        assert row.jobs == 26
        by_attempt = {(charge["job"], charge["attempt"]): Decimal(charge["usd"]) for charge in await bench.charges()}
        assert row.usd == sum(by_attempt.values())


class Flaky(StreamsLog):
    """A log whose first `done`s fail, as when Redis went away just then."""

    failures = 3

    @asynccontextmanager
    async def subscribe(self, topics: Sequence[str], *, group: str) -> AsyncGenerator[Any]:
        async with super().subscribe(topics, group=group) as subscription:
            yield _FlakyDone(self, subscription)


@dataclass(eq=False)
class _FlakyDone:
    log: Flaky
    subscription: Subscription

    async def take(self, at_most: int, *, of: Collection[str] | None = None) -> Sequence[Delivery]:
        return await self.subscription.take(at_most, of=of)

    async def done(self, delivery: Delivery) -> None:
        if self.log.failures:
            self.log.failures -= 1
            raise LogUnavailableError("away")
        await self.subscription.done(delivery)


async def test_a_done_that_fails_is_tried_again(bench: Bench, redis: "Redis") -> None:
    jobs = [await bench.queued() for _ in range(2)]

    async with working(bench.worker(log=Flaky(redis, idle_s=2.0))):
        await bench.ended(*jobs)
        await until(lambda: nothing_is_open(bench))

    assert len(await bench.events()) == 2


class Twice(StreamsLog):
    """Gives each record again, as a log does whose partition went to another member and back."""

    @asynccontextmanager
    async def subscribe(self, topics: Sequence[str], *, group: str) -> AsyncGenerator[Any]:
        async with super().subscribe(topics, group=group) as subscription:
            yield _GivenTwice(subscription)


@dataclass(eq=False)
class _GivenTwice:
    subscription: Subscription
    again: list[Delivery] = field(default_factory=list)

    async def take(self, at_most: int, *, of: Collection[str] | None = None) -> Sequence[Delivery]:
        again, self.again = self.again, []
        self.again = list(await self.subscription.take(at_most, of=of))
        return [*again, *self.again]

    async def done(self, delivery: Delivery) -> None:
        await self.subscription.done(delivery)


async def test_a_record_that_comes_again_to_a_worker_that_runs_its_job_makes_no_second_call(
    bench: Bench, redis: "Redis"
) -> None:
    jobs = [await bench.queued() for _ in range(3)]
    slow = Counting(_delay_s=1.5)

    async with working(bench.worker(slow, log=Twice(redis, idle_s=2.0), lease_s=1.0)):
        await bench.ended(*jobs)
        await until(lambda: nothing_is_open(bench))

    assert slow.calls == {job.id: 1 for job in jobs}
    assert [charge["attempt"] for charge in await bench.charges()] == [1, 1, 1]


async def test_whoever_waits_for_a_job_is_woken_when_it_is_over(bench: Bench) -> None:
    wakeups, woken = Wakeups(bench.redis, role="http"), asyncio.Event()
    async with asyncio.TaskGroup() as tasks, working(bench.worker()):
        following = tasks.create_task(wakeups.follow())
        await until(lambda: _listens(bench, wakeups))
        job = a_job()
        with wakeups.on(f"acme {job.id}", woken.set):
            await bench.board.accept(job, deadline_s=60, idempotency=None, most_unfinished=10, channel=wakeups.channel)
            await bench.log.append(job.topic, envelope.to_record(job))
            async with asyncio.timeout(10):
                while (await bench.state(job)) is not JobState.COMPLETED:
                    await woken.wait()
                    woken.clear()
        following.cancel()


async def _listens(bench: Bench, wakeups: Wakeups) -> bool:
    [(_, count)] = await bench.redis.pubsub_numsub(wakeups.channel)
    return int(count) == 1


async def test_a_worker_with_nothing_to_do_asks_little(own_valkey: str, tmp_path: Path) -> None:
    async with impatient_client(own_valkey) as redis, a_bench(redis, tmp_path) as bench, working(bench.worker()):
        [_] = await bench.ended(await bench.queued())
        before = (await redis.info("stats"))["total_commands_processed"]
        await asyncio.sleep(2.0)
        asked = (await redis.info("stats"))["total_commands_processed"] - before

    assert asked < 200  # a hundred a second


async def test_a_running_job_is_cancelled(bench: Bench) -> None:
    job, counting = await bench.queued("wait:60"), Counting()
    async with working(bench.worker(counting)):
        await until(lambda: counting.open == 1)
        await bench.board.cancel("acme", job.id, an_event(job, JobState.CANCELLED))
        [view] = await bench.ended(job)
        await until(lambda: nothing_is_open(bench))

    assert view.state is JobState.CANCELLED


async def _quota_is_far_away(bench: Bench) -> None:
    scope = deployment_scope(bench.deployments["scarce"])
    for rid in ("one", "two"):  # the second one takes the bucket into its debt
        await bench.quotas.reserve(scope, rid, tokens=60, usd=None, hold_s=60, ttl_s=60)


async def test_a_job_whose_quota_is_far_away_waits_on_a_retry_topic(bench: Bench) -> None:
    await _quota_is_far_away(bench)
    job = await bench.queued(deployment="scarce", estimate=Estimate(40, 20))

    async with working(bench.worker()):
        await until(lambda: nothing_is_open(bench))

    [waiting] = [fields for topic in topics.RETRIES for fields in await entries(bench.redis, topic)]
    assert waiting[b"v"] == job.body and json.loads(waiting[b"h:route"])["deployment"] == "scarce"
    assert await bench.state(job) is JobState.QUEUED


@pytest.mark.parametrize("goes_to", [[topics.DEAD], topics.RETRIES], ids=["dead letters", "retries"])
async def test_a_record_is_done_only_once_it_is_where_it_goes_on(bench: Bench, goes_to: Sequence[str]) -> None:
    if goes_to == [topics.DEAD]:
        await bench.log.append(LANE, Record(b"nothing"))
    else:
        await _quota_is_far_away(bench)
        await bench.queued(deployment="scarce", estimate=Estimate(40, 20))
    await bench.redis.delete(*(f"log:{topic}" for topic in goes_to))

    with capture_logs() as logs:
        running = asyncio.create_task(bench.worker().run(asyncio.Event()))
        await until(lambda: any(each["event"] == "waiting_for_what_is_away" for each in logs))
        await ended(running)

    assert await bench.log.backlog(LANE, group=GROUP) == 1


async def test_a_worker_that_is_cut_short_at_any_moment_ends(bench: Bench) -> None:
    for moment in range(40):
        running = asyncio.create_task(bench.worker().run(asyncio.Event()))
        for _ in range(moment):
            await asyncio.sleep(0)

        async with asyncio.timeout(STOP_S):
            await ended(running)
