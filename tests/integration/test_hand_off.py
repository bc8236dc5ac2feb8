"""Jobs that a backend takes and works on while nobody waits, on a real Valkey."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from consumers.backend import Answer, BackendError, Late, Notice, OnChunk, Pending, Returned, SoFar, Submitted
from consumers.retrier import GROUP, Retrier
from consumers.worker import Bounds
from policies.deployments import Deployment, Limits
from policies.pricing import Usage
from policies.quota import deployment_scope, nanodollars
from policies.retries import Failure
from policies.tenants import Tenant
from router import envelope, topics
from router.job import Job, JobState
from tests.builders import Bench, a_bench, a_deployment, entries, until


@dataclass
class TakingBackend:
    """A backend for these tests: it takes jobs and answers once it is told to; it counts what it is asked."""

    verdicts: dict[str, Answer | BackendError | Returned] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    is_away: bool = False
    check_in_s: float = 0.01
    holds_places: bool = True
    owed: Usage | None = None

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer | Submitted:
        """Take it."""
        reference = f"{job.id}.{attempt}"
        self.submitted.append(reference)
        self.bodies.append(job.body)
        return Submitted(reference, self.check_in_s, self.holds_places)

    async def collect(
        self, job: Job, deployment: Deployment, reference: str, *, attempt: int
    ) -> Answer | Pending | Returned:
        """What it was told."""
        if self.is_away:
            raise BackendError(Failure.UNAVAILABLE, "away")
        verdict = self.verdicts.get(reference)
        if isinstance(verdict, BackendError):
            raise verdict
        return verdict or Pending(self.check_in_s, self.holds_places)

    async def abandon(self, job: Job, deployment: Deployment, reference: str) -> Usage | None:
        """End it."""
        self.abandoned.append(reference)
        return self.owed

    async def ping(self, deployment: Deployment) -> str | None:
        """All is well."""
        return None


@dataclass
class HastyBackend(TakingBackend):
    """It says that a call is over, once, before whoever made the call has heard that it was taken."""

    said: asyncio.Queue[Notice] = field(default_factory=asyncio.Queue)

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer | Submitted:
        """Take it."""
        taken = await super().call(job, deployment, attempt=attempt, on_chunk=on_chunk, so_far=so_far)
        self.verdicts[f"{job.id}.{attempt}"] = DONE
        self.said.put_nowait(Notice(job.tenant, job.id, attempt, ("", "")))
        await asyncio.sleep(0.3)
        return taken

    async def listen(self) -> list[Notice]:
        """Each once."""
        return [await self.said.get()]

    async def acknowledge(self, notice: Notice) -> None:
        """That is all."""

    async def late(self, job: Job, notice: Notice) -> Late | None:
        """Nothing is."""
        return None


@dataclass
class RecoveringTakingBackend(TakingBackend):
    """It finds a call again that it has taken."""

    async def recover(
        self, job: Job, deployment: Deployment, *, attempt: int, reference: str | None
    ) -> Submitted | None:
        """By the name that it gave."""
        return None if reference is None else Submitted(reference, self.check_in_s)


DONE = Answer(b'{"object":"chat.completion"}', Usage(input=3, output=5))


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(redis, tmp_path) as bench:
        yield bench


@asynccontextmanager
async def running(
    bench: Bench, backend: TakingBackend, *, collectors: int = 1, handed_off_s: float = 600.0
) -> AsyncGenerator[None]:
    """A worker, the retriers and so many collectors."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        worker = bench.worker(backend, bounds=Bounds(drain_s=5.0, handed_off_s=handed_off_s))
        tasks.create_task(worker.run(stop))
        for topic in topics.RETRIES:
            tasks.create_task(Retrier(bench.log, bench.board, topic).run(stop))
        for _ in range(collectors):
            collector = bench.collector(backend, every_s=0.02)
            tasks.create_task(collector.run(stop))
        try:
            yield
        finally:
            stop.set()


async def taken(bench: Bench, backend: TakingBackend, count: int = 1) -> None:
    await until(lambda: _has(backend, count))


async def _has(backend: TakingBackend, count: int) -> bool:
    return len(backend.submitted) >= count


async def test_a_submitted_job_holds_no_slot_and_no_record_and_is_concluded_by_a_collector(bench: Bench) -> None:
    backend = TakingBackend()
    job = await bench.queued()
    async with running(bench, backend, collectors=2):
        await taken(bench, backend)
        await until(lambda: _is_done(bench, job))
        state = await bench.state(job)
        backend.verdicts[f"{job.id}.1"] = DONE
        [view] = await bench.ended(job)

    assert state is JobState.RUNNING
    assert (view.state, view.result, view.attempts) == (JobState.COMPLETED, DONE.body, 1)
    assert [row["tokens"] for row in await bench.charges()] == [8]
    assert await bench.events() == {f"job_{job.id}": "job.completed"}


async def test_what_is_over_before_its_worker_has_handed_it_off_is_concluded_at_once(bench: Bench) -> None:
    backend = HastyBackend(check_in_s=600)
    job = await bench.queued()
    async with running(bench, backend):
        [view] = await bench.ended(job)

    assert (view.state, view.result) == (JobState.COMPLETED, DONE.body)


async def test_a_collector_of_another_backend_leaves_it_alone(bench: Bench) -> None:
    backend, stop = TakingBackend(check_in_s=0.2), asyncio.Event()
    other = bench.collector(backend, "elsewhere", every_s=0.01)
    async with running(bench, backend, collectors=0), asyncio.TaskGroup() as tasks:
        job = await bench.queued()
        await taken(bench, backend)
        tasks.create_task(other.run(stop))
        await until(lambda: _is_overdue(bench, job))
        state, lease = await bench.redis.hmget(f"{{t:acme}}:job:{job.id}", "state", "lease")
        stop.set()

    assert (state, lease) == (b"running", None)


async def test_a_board_that_was_set_back_concludes_nothing_before_it_is_made_anew(bench: Bench) -> None:
    """At the copy's time it still ran; since then it has failed there, was called again, and is over."""
    backend = TakingBackend(check_in_s=0.2)
    job = await bench.queued()
    async with running(bench, backend):
        await taken(bench, backend)
        older = {name: await bench.redis.dump(name) async for name in bench.redis.scan_iter("{t:acme}*")}
        backend.verdicts[f"{job.id}.1"] = BackendError(Failure.BACKEND_ERROR, "failed")
        backend.verdicts[f"{job.id}.2"] = DONE
        await bench.ended(job)
    epoch = await bench.board.epoch()
    assert epoch is not None
    await bench.board.end_epoch(epoch)
    await bench.redis.delete(*[name async for name in bench.redis.scan_iter("{t:acme}*")])
    for name, value in older.items():
        await bench.redis.restore(name, 0, value or b"")
    charges = await bench.charges()

    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        collector = bench.collector(backend, every_s=0.02)
        await collector.epoch.look()
        tasks.create_task(collector.run(stop))
        await until(lambda: _is_overdue(bench, job))
        waits = await bench.state(job)
        await bench.rebuild()
        await collector.epoch.look()
        await until(lambda: _is_forgotten(bench))
        stop.set()

    assert waits is JobState.RUNNING
    assert await bench.charges() == charges


async def test_a_record_that_comes_again_after_the_hand_off_submits_nothing(bench: Bench) -> None:
    backend = TakingBackend()
    job = await bench.queued()
    async with running(bench, backend):
        await taken(bench, backend)
        await until(lambda: _is_done(bench, job))
        await bench.log.append(job.topic, envelope.to_record(job))
        await until(lambda: _is_done(bench, job))
        backend.verdicts[f"{job.id}.1"] = DONE
        await bench.ended(job)

    assert backend.submitted == [f"{job.id}.1"]


async def test_a_cancelled_one_is_abandoned_at_the_backend_within_a_second(bench: Bench) -> None:
    backend = TakingBackend()
    job = await bench.queued()
    async with running(bench, backend):
        await taken(bench, backend)
        await until(lambda: _is_done(bench, job))
        await bench.board.cancel(job.tenant, job.id, "{}")
        [view] = await bench.ended(job)

    assert view.state is JobState.CANCELLED
    assert backend.abandoned == [f"{job.id}.1"]


async def test_a_cancel_that_comes_just_as_the_backend_takes_the_job_is_not_looked_at_only_minutes_later(
    bench: Bench,
) -> None:
    board, owner = bench.board, "worker:ann|jobs|1-0|1"
    job = await bench.queued()
    await board.claim(job, owner, lease_s=20)
    await board.start(job, owner, most_deliveries=3, microbatch="mb_1")
    await board.cancel(job.tenant, job.id, "{}")
    await board.submit(job, owner, "first", check_in_s=600)
    [first] = await board.collect(job.tenant, "ann|collector|1", backend="echo", lease_s=20, most=9)
    await board.submit(job, "ann|collector|1", "first", check_in_s=600)  # it is still under way, and looked at later
    [again] = await board.collect(job.tenant, "ann|collector|2", backend="echo", lease_s=20, most=9)

    assert first.is_cancelled and again.is_cancelled


async def test_one_past_its_deadline_expires(bench: Bench) -> None:
    backend = TakingBackend()
    job = await bench.queued(deadline_s=0.5)
    async with running(bench, backend):
        [view] = await bench.ended(job)

    assert view.state is JobState.EXPIRED


async def test_a_failed_one_is_submitted_again_from_its_kept_body(bench: Bench) -> None:
    backend = TakingBackend()
    job = await bench.queued("the body is kept")
    backend.verdicts |= {f"{job.id}.1": BackendError(Failure.BACKEND_ERROR, "it broke"), f"{job.id}.2": DONE}
    async with running(bench, backend):
        [view] = await bench.ended(job)

    assert (view.state, view.attempts) == (JobState.COMPLETED, 2)
    assert backend.bodies == [job.body, job.body]


async def test_a_backend_that_cannot_be_asked_keeps_the_job(bench: Bench) -> None:
    bench.lease_s = 1.0
    backend = TakingBackend(is_away=True)
    job = await bench.queued()
    async with running(bench, backend):
        await taken(bench, backend)
        backend.verdicts[f"{job.id}.1"] = DONE
        backend.is_away = False
        [view] = await bench.ended(job)

    assert (view.state, view.attempts) == (JobState.COMPLETED, 1)


@pytest.mark.parametrize("check_in_s", [0.1, 6.0])
async def test_it_keeps_its_place_for_as_long_as_the_backend_works_on_it(
    redis: "Redis", tmp_path: Path, check_in_s: float
) -> None:
    limits = Limits(concurrency=1)
    tenant, deployment = Tenant("acme", limits), a_deployment(limits=limits)
    async with a_bench(redis, tmp_path, deployments=[deployment], tenants=[tenant]) as bench:
        bench.lease_s = 1.5  # a place is held for two of these
        backend = TakingBackend(check_in_s=check_in_s)
        job = await bench.queued()
        async with running(bench, backend):
            await taken(bench, backend)
            ends = asyncio.get_running_loop().time() + 4.5
            while asyncio.get_running_loop().time() < ends:
                assert [await places_taken(bench, slot) for slot in ("{t:acme}", "{b:small}")] == [1, 1]
                await asyncio.sleep(0.05)
            backend.verdicts[f"{job.id}.1"] = DONE
            await bench.ended(job)

        assert [await places_taken(bench, slot) for slot in ("{t:acme}", "{b:small}")] == [0, 0]


async def test_one_that_holds_no_places_leaves_them_to_others_and_keeps_its_dollars(
    redis: "Redis", tmp_path: Path
) -> None:
    limits = Limits(concurrency=1, usd_per_month=Decimal(1))
    rated = replace(limits, requests_per_minute=600, burst_s=10, tokens_per_day=100_000)
    tenant, deployment = Tenant("acme", limits), a_deployment(limits=rated)
    async with a_bench(redis, tmp_path, deployments=[deployment], tenants=[tenant]) as bench:
        backend = TakingBackend(holds_places=False)
        jobs = [await bench.queued() for _ in range(3)]
        async with running(bench, backend):
            await taken(bench, backend, 3)
            await until(lambda: _lets_go(bench))
            reserved = await bench.redis.keys("{t:acme}:quota:held:*")
            backend.verdicts |= {f"{job.id}.1": DONE for job in jobs}
            await bench.ended(*jobs)
            await until(lambda: _is_nothing_reserved(bench))
        spent = [await redis.hvals(f"{slot}:quota:usd") for slot in ("{t:acme}", "{b:small}")]
        rates = await redis.hget("{b:small}:quota:requests", "l"), await redis.hvals("{b:small}:quota:day")

    assert len(reserved) == 3
    charged = sum(nanodollars(Decimal(row["usd"])) for row in await bench.charges())
    assert spent == [[f"{charged}".encode()]] * 2
    [part] = deployment_scope(deployment).parts
    assert part.requests is not None
    assert rates == (f"{part.requests.burst:.0f}".encode(), [b"0"])
    assert {row["outcome"] for charge in await bench.charges() for row in charge["lines"]} == {"completed"}


async def _is_nothing_reserved(bench: Bench) -> bool:
    return not await bench.redis.keys("*:quota:held:*")


async def _lets_go(bench: Bench) -> bool:
    return [await places_taken(bench, slot) for slot in ("{t:acme}", "{b:small}")] == [0, 0]


async def test_one_that_the_backend_gives_back_is_called_anew_and_charged_for_both(bench: Bench) -> None:
    backend = TakingBackend()
    job = await bench.queued()
    backend.verdicts |= {f"{job.id}.1": Returned("too few", Usage(input=2)), f"{job.id}.2": DONE}
    async with running(bench, backend):
        [view] = await bench.ended(job)

    assert (view.state, backend.submitted) == (JobState.COMPLETED, [f"{job.id}.1", f"{job.id}.2"])
    charged = {
        row["attempt"]: (row["tokens"], {line["outcome"] for line in row["lines"]}) for row in await bench.charges()
    }
    assert charged == {1: (2, {"returned"}), 2: (8, {"completed"})}


async def test_a_cancelled_one_owes_what_the_backend_says(bench: Bench) -> None:
    backend = TakingBackend(owed=Usage())
    job = await bench.queued()
    async with running(bench, backend):
        await taken(bench, backend)
        await until(lambda: _is_done(bench, job))
        await bench.board.cancel(job.tenant, job.id, "{}")
        await bench.ended(job)

    assert [row["tokens"] for row in await bench.charges()] == [0]


async def places_taken(bench: Bench, slot: str) -> int:
    """Those whose hold has not run out."""
    now_ms = await bench.board.now() * 1000
    return int(await bench.redis.zcount(f"{slot}:quota:leases", now_ms, "+inf"))


async def test_a_collector_that_died_leaves_its_jobs_to_the_next(bench: Bench) -> None:
    backend = TakingBackend()
    job = await bench.queued()
    async with running(bench, backend, collectors=0):
        await taken(bench, backend)
        await until(lambda: _is_done(bench, job))
    await until(lambda: _leased(bench, job))
    backend.verdicts[f"{job.id}.1"] = DONE
    async with running(bench, backend):
        [view] = await bench.ended(job)

    assert (view.state, backend.submitted) == (JobState.COMPLETED, [f"{job.id}.1"])


async def test_the_record_goes_round_until_it_is_over_and_submits_nothing_meanwhile(bench: Bench) -> None:
    backend = TakingBackend()
    job = await bench.queued()
    async with running(bench, backend, handed_off_s=0.05):
        await until(lambda: _went_round(bench, 3))
        backend.verdicts[f"{job.id}.1"] = DONE
        await bench.ended(job)
        await until(lambda: _is_done(bench, job))
        await until(lambda: _waits_nowhere(bench))

    assert backend.submitted == [f"{job.id}.1"]
    assert await bench.events() == {f"job_{job.id}": "job.completed"}


async def test_a_board_that_is_lost_loses_no_job_that_a_backend_has(bench: Bench) -> None:
    """This one cannot say what became of the first call: it may have been billed, and is made again."""
    backend = TakingBackend()
    job = await bench.queued()
    async with running(bench, backend, handed_off_s=0.5):
        await taken(bench, backend)
        await until(lambda: _went_round(bench, 1))
        await bench.wipe()
        await bench.rebuild()
        backend.verdicts[f"{job.id}.2"] = DONE
        await until(lambda: _has_events(bench, 1))

    assert await bench.events() == {f"job_{job.id}": "job.completed"}
    assert {row["attempt"]: row["concluded"] for row in await bench.charges()} == {1: False, 2: True}


@pytest.mark.parametrize("copy_when", ["never", "queued", "called"])
async def test_a_call_that_a_backend_has_is_not_made_again_when_the_board_is_lost_and_charged_once(
    redis: "Redis", tmp_path: Path, copy_when: str
) -> None:
    limits = Limits(usd_per_month=Decimal(9), tokens_per_day=1_000_000, concurrency=1)
    tenant, deployment = Tenant("acme", limits), a_deployment(limits=limits)
    async with a_bench(redis, tmp_path, deployments=[deployment], tenants=[tenant]) as bench:
        bench.lease_s = 0.9
        backend = RecoveringTakingBackend()
        job = await bench.job()
        copy = await bench.copied()
        await bench.log.append(job.topic, envelope.to_record(job))
        async with running(bench, backend, handed_off_s=0.5):
            if copy_when == "called":
                await until(lambda: _runs(bench, job))
                copy = await bench.copied()
            await taken(bench, backend)
            await until(lambda: _went_round(bench, 1))
            await (bench.wipe() if copy_when == "never" else bench.set_back(copy))
            await bench.rebuild()
            await until(lambda: _collected(bench, job))
            backend.verdicts[f"{job.id}.1"] = DONE
            await until(lambda: _has_events(bench, 1))
            await until(lambda: _is_forgotten(bench))
        used = [await redis.hvals(f"{slot}:quota:{what}") for slot in ("{t:acme}", "{b:small}") for what in ("day",)]

    assert backend.submitted == [f"{job.id}.1"]
    [row] = await bench.charges()
    assert (row["attempt"], row["concluded"], row["tokens"]) == (1, True, 8)
    assert used == [[b"8"], [b"8"]]


async def _runs(bench: Bench, job: Job) -> bool:
    return await bench.state(job) is JobState.RUNNING


async def _collected(bench: Bench, job: Job) -> bool:
    """Whether the board knows that a backend has it."""
    return bool(await bench.redis.hexists(f"{{t:acme}}:job:{job.id}", "submitted"))


async def _has_events(bench: Bench, count: int) -> bool:
    return len(await bench.events()) == count


async def _went_round(bench: Bench, times: int) -> bool:
    return len(await entries(bench.redis, "jobs.retry.30s")) >= times


async def _waits_nowhere(bench: Bench) -> bool:
    return await bench.log.backlog("jobs.retry.30s", group=GROUP) == 0


async def _leased(bench: Bench, job: Job) -> bool:
    return bool(await bench.board.collect(job.tenant, "dead|collector|1", backend="echo", lease_s=0.2, most=10))


async def _is_overdue(bench: Bench, job: Job) -> bool:
    """Whether it was to be looked at half a second ago."""
    [due_at] = [await bench.redis.zscore(key, job.id) for key in await bench.redis.keys("{t:acme}:submitted*")] or [
        None
    ]
    return due_at is not None and due_at / 1000 + 0.5 < await bench.board.now()


async def _is_forgotten(bench: Bench) -> bool:
    """Whether no job is with its backend any more."""
    return not await bench.redis.keys("{t:acme}:submitted*")


async def _is_done(bench: Bench, job: Job) -> bool:
    return await bench.log.backlog(job.topic, group="workers.echo") == 0
