"""Jobs whose deployment fails, on a real Valkey: where they go on, what they cost, and what the other workers learn."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from consumers.backend import Answer, BackendError, OnChunk, SoFar
from consumers.backend_echo import EchoBackend
from consumers.gpu.backend_gpu import GpuBackend
from consumers.gpu.places import Places
from consumers.worker import Worker
from policies.conditions import Conditions
from policies.cooldown import CooldownRule, Go, Probe
from policies.deployments import Deployment, Fallback, Limits, Modality, Tier, Timeouts
from policies.fleets import Fleet, Listed
from policies.pricing import Basis, Usage
from policies.quota import Granted, deployment_scope
from policies.retries import Failure, RetryRule
from policies.retrybudget import SPARE, SPARE_S
from policies.scripts import Scripts
from policies.tenants import Tenant
from router import envelope
from router.fallback import alternatives, moved
from router.job import Alternative, Estimate, Job, JobState, Route
from tests.builders import Bench, a_bench, a_body, a_deployment, an_event, until
from tests.engines import engine_double
from tools.kafka.broker import free_ports

SHORT = a_body("Hello", max_tokens=4)
CAREFUL = Tenant("careful", reruns_allowed=False)
ESTIMATE = Estimate(10, 20)
SPENT = Usage(input=5, output=2, basis=Basis.ESTIMATED)


@dataclass
class Flaky:
    """Echo, but for the deployments that fail; `calls` are those that came to each."""

    failing: dict[str, BackendError] = field(default_factory=dict)
    calls: "Counter[str]" = field(default_factory=Counter)
    echo: EchoBackend = field(default_factory=EchoBackend)

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer:
        self.calls[deployment.name] += 1
        if (error := self.failing.get(deployment.name)) is not None:
            raise BackendError(error.failure, error.detail, code=error.code, usage=error.usage)
        return await self.echo.call(job, deployment, attempt=attempt, on_chunk=on_chunk, so_far=so_far)

    async def ping(self, deployment: Deployment) -> str | None:
        return None


def failing(failure: Failure = Failure.UNAVAILABLE, *deployments: str, usage: Usage | None = None) -> Flaky:
    """With these deployments failing so; `first` where none is named."""
    names = deployments or ("first",)
    return Flaky({name: BackendError(failure, f"{name} says no", code=f"{name}_code", usage=usage) for name in names})


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    deployments = [
        a_deployment("first", fallback=(Fallback("second"), Fallback("third"))),
        a_deployment("second", limits=Limits(tokens_per_minute=1000, concurrency=4)),
        a_deployment("third"),
        a_deployment("lone"),
        replace(a_deployment("abroad"), backend="other"),
    ]
    async with a_bench(redis, tmp_path, deployments=deployments, tenants=[Tenant("acme"), CAREFUL]) as bench:
        yield bench


def a_route(*names: str, first: str = "first") -> Route:
    """At `first`, then at these."""
    route = Route(first, "echo", Modality.TEXT, Tier.LIGHT)
    return replace(route, left=tuple(Alternative(Fallback(name), ESTIMATE) for name in names))


@asynccontextmanager
async def working(*workers: Worker) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for worker in workers:
            tasks.create_task(worker.run(stop))
        try:
            yield
        finally:
            stop.set()


async def ran(bench: Bench, backend: Flaky, route: Route, **fields: Any) -> Job:
    """A job that was run to its end by one worker."""
    job = await bench.queued(route=route, **fields)
    async with working(bench.worker(backend)):
        await bench.ended(job)
    return job


async def test_a_job_goes_on_at_the_next_deployment_and_says_who_answered(bench: Bench) -> None:
    backend = failing()
    job = await ran(bench, backend, a_route("second"))

    view = await bench.view(job)
    assert view.state is JobState.COMPLETED
    assert backend.calls == {"first": 2, "second": 1}
    assert (view.job.route.deployment, view.job.route.tried, view.attempts) == ("second", ("first",), 3)
    assert view.job.route.reasons == ("fallback: first unavailable",)
    assert json.loads(view.result or b"")["model"] == "second"
    assert len(await bench.events()) == 1


async def test_each_failed_attempt_is_on_the_ledger_as_what_it_cost(bench: Bench) -> None:
    job = await ran(bench, failing(Failure.CUT, usage=SPENT), a_route("second"))

    rows = [(row["attempt"], row["deployment"], row["concluded"], row["tokens"]) for row in await bench.charges()]
    assert rows == [(1, "first", False, 7), (2, "second", True, 4)]
    view = await bench.view(job)
    assert {(line.attempt, line.outcome) for line in view.charges} == {(1, "failed"), (2, "completed")}
    assert await bench.board.outbox("acme") == []


async def test_what_it_reserves_is_reserved_and_settled_where_it_runs(bench: Bench, redis: "Redis") -> None:
    await ran(bench, failing(), a_route("second"))

    second = deployment_scope(bench.deployments["second"])
    verdict = await bench.quotas.reserve(second, "look", tokens=0, usd=None, hold_s=60, ttl_s=60)
    assert isinstance(verdict, Granted) and verdict.rooms.tokens is not None
    assert verdict.rooms.tokens.remaining > verdict.rooms.tokens.limit - 10, "what it used, not its estimate of 30"
    assert await redis.zcard("{b:second}:quota:leases") == 1, "only this look"


async def test_a_list_is_gone_through_in_its_order(bench: Bench) -> None:
    backend = failing(Failure.TIMED_OUT, "first", "second")
    job = await ran(bench, backend, a_route("second", "third"))

    assert (await bench.view(job)).state is JobState.COMPLETED
    assert backend.calls == {"first": 1, "second": 1, "third": 1}


async def test_a_fallback_for_other_failures_is_passed_by(bench: Bench) -> None:
    backend = failing(Failure.TIMED_OUT)
    route = a_route("second", "third")
    only = Alternative(Fallback("second", frozenset({Failure.TOO_LONG})), ESTIMATE)

    await ran(bench, backend, replace(route, left=(only, route.left[1])))

    assert backend.calls == {"first": 1, "third": 1}


async def test_a_fallback_is_consent_to_a_second_call_where_reruns_are_refused(bench: Bench) -> None:
    backend = failing(Failure.TIMED_OUT)
    job = await ran(bench, backend, a_route("second"), tenant="careful", reruns_allowed=False)

    assert (await bench.view(job)).state is JobState.COMPLETED


async def test_what_only_a_fallback_refuses_never_reaches_the_caller(bench: Bench) -> None:
    backend = failing(Failure.TIMED_OUT)
    backend.failing["second"] = BackendError(Failure.REJECTED, "no prefill here", code="invalid_request_error")
    job = await ran(bench, backend, a_route("second"))

    view = await bench.view(job)
    assert view.state is JobState.FAILED
    assert view.error is not None and (view.error["code"], view.error["message"]) == ("first_code", "first says no")


async def test_what_a_content_filter_says_reaches_the_caller_from_wherever(bench: Bench) -> None:
    backend = failing(Failure.TIMED_OUT)
    backend.failing["second"] = BackendError(Failure.FILTERED, "hate: high", code="content_filter")
    job = await ran(bench, backend, a_route("second", "third"))

    view = await bench.view(job)
    assert view.error is not None and view.error["code"] == "content_filter"
    assert backend.calls["third"] == 0


# Other backends and crashes


def worker_of_the_other_backend(bench: Bench, backend: Flaky) -> Worker:
    return bench.worker(backend, name="other")


async def test_a_job_goes_on_at_another_backend_through_the_log(bench: Bench) -> None:
    here, abroad = failing(Failure.CUT, usage=SPENT), Flaky()
    job = await bench.queued(route=a_route("abroad"))

    async with working(bench.worker(here), worker_of_the_other_backend(bench, abroad)):
        [view] = await bench.ended(job)

    assert view.state is JobState.COMPLETED
    assert (here.calls, abroad.calls) == ({"first": 1}, {"abroad": 1})
    assert view.job.route.lane == "other.text.light"
    assert [(row["attempt"], row["lane"]) for row in await bench.charges()] == [
        (1, "echo.text.light"),
        (2, "other.text.light"),
    ]


@pytest.mark.parametrize("next_one", ["second", "abroad"])
async def test_a_record_with_an_older_route_leads_to_where_the_job_is_now(bench: Bench, next_one: str) -> None:
    """The process died after the board had the new route, and before anything else."""
    job = await bench.queued(route=a_route(next_one))
    await bench.board.claim(job, "dead|1", lease_s=20)
    [to] = alternatives(job, Failure.CUT, bench.deployments)
    assert await bench.board.reroute(moved(job, to, bench.deployments, attempts=1, why="cut"), "dead|1", problem=None)

    here, abroad = Flaky(), Flaky()
    async with working(bench.worker(here), worker_of_the_other_backend(bench, abroad)):
        [view] = await bench.ended(job)

    assert view.state is JobState.COMPLETED
    assert here.calls + abroad.calls == {next_one: 1}


async def test_a_copy_of_the_old_record_runs_nothing_a_second_time(bench: Bench) -> None:
    backend = failing()
    job = await ran(bench, backend, a_route("second"))
    before = Counter(backend.calls)

    await bench.log.append(job.topic, envelope.to_record(job))
    other = await bench.queued(route=a_route(first="third"))
    async with working(bench.worker(backend)):
        await bench.ended(other)

    assert backend.calls == before + Counter({"third": 1})
    assert len(await bench.events()) == 2


async def test_only_the_owner_moves_a_job(bench: Bench) -> None:
    job = await bench.job(route=a_route("second"))
    await bench.board.claim(job, "mine|1", lease_s=20)
    there = moved(job, job.route.left[0], bench.deployments, attempts=1, why="cut")

    assert not await bench.board.reroute(there, "other|1", problem=None)
    assert await bench.board.reroute(there, "mine|1", problem={"code": "a"})
    assert not await bench.board.reroute(there, "mine|1", problem={"code": "b"}), "it gave its lease back with it"
    view = await bench.view(job)
    assert (view.state, view.problem) == (JobState.QUEUED, {"code": "a"})


# What all workers know


def conditions(redis: "Redis", first: float = 60.0) -> Conditions:
    """Those of one worker process."""
    return Conditions(Scripts(redis), CooldownRule(first=first), time.monotonic)


async def test_a_cooldown_holds_for_every_worker(redis: "Redis") -> None:
    one, other = conditions(redis), conditions(redis)
    for number in range(3):
        await one.failed("first", Failure.CUT, job=f"j{number}", call=f"j{number}:1", retry_after=None)

    assert await other.cooling("first") is not None
    assert await other.ask("second", "x:1") == Go()


async def test_of_all_workers_one_call_is_the_probe(redis: "Redis") -> None:
    workers = [conditions(redis, 0.05) for _ in range(5)]
    for number in range(3):
        await workers[0].failed("first", Failure.CUT, job=f"j{number}", call=f"j{number}:1", retry_after=None)
    await asyncio.sleep(0.1)

    verdicts = await asyncio.gather(*(each.ask("first", f"p{n}:1") for n, each in enumerate(workers) for _ in range(3)))

    probes = {verdict.condition.probe for verdict in verdicts if isinstance(verdict, Probe)}
    assert len(probes) == 1
    await workers[int(probes.pop()[1])].succeeded("first", "nobody:1")
    assert await workers[0].cooling("first") is not None, "only the probe ends it"


async def test_failures_that_several_workers_report_at_once_all_count(redis: "Redis") -> None:
    workers = [conditions(redis) for _ in range(3)]

    await asyncio.gather(
        *(
            each.failed("first", Failure.CUT, job=f"j{number}", call=f"j{number}:1", retry_after=None)
            for number, each in enumerate(workers)
        )
    )

    assert await conditions(redis).cooling("first") is not None


async def test_all_workers_have_one_budget_of_retries(redis: "Redis") -> None:
    workers, began = [conditions(redis) for _ in range(3)], time.monotonic()
    for number in range(60):
        workers[number % 3].called("first")
    for each in workers:  # as they do twice a second while jobs come
        assert await each.cooling("first") is None

    taken = await asyncio.gather(*(workers[number % 3].take_retry("first") for number in range(60)))

    by_time = (time.monotonic() - began) / SPARE_S
    assert SPARE <= sum(taken) <= SPARE + by_time, "60 calls bring no more than may be spared at once"
    for number in range(60):
        workers[number % 3].called("first")
    again = [await workers[number % 3].take_retry("first") for number in range(60)]
    by_time = (time.monotonic() - began) / SPARE_S
    assert 0.2 * 60 - 1 <= sum(again) <= 0.2 * 60 + 1 + by_time


async def test_calls_are_told_along_with_what_is_asked_next(redis: "Redis") -> None:
    worker, other = conditions(redis), conditions(redis)
    for _ in range(int(SPARE)):
        assert await worker.take_retry("first")
    for _ in range(10):
        worker.called("first")

    assert await worker.take_retry("first")
    assert await other.take_retry("first")


async def test_while_a_deployment_is_left_alone_jobs_go_past_it_without_an_attempt(bench: Bench) -> None:
    bench.cooldown = CooldownRule(first=60.0, longest=60.0)
    backend = failing()
    async with working(bench.worker(backend)):
        for _ in range(2):
            await bench.ended(await bench.queued(route=a_route("second")))
        calls = backend.calls["first"]
        [view] = await bench.ended(await bench.queued(route=a_route("second")))

    assert calls == 3, "two of the first job, and one of the second"
    assert backend.calls["first"] == calls
    assert (view.attempts, view.job.route.reasons) == (1, ("fallback: first left alone",))


async def test_jobs_of_a_lone_deployment_wait_for_it_uncounted(bench: Bench) -> None:
    bench.cooldown = CooldownRule(first=2.0, longest=2.0)
    bench.retries = RetryRule(attempts=2, first_wait=0.01, longest_wait=0.01)
    backend = failing(Failure.UNAVAILABLE, "lone")
    async with working(bench.worker(backend)):
        lost = [await bench.queued(route=a_route(first="lone")) for _ in range(2)]
        await until(lambda: backend.calls["lone"] >= 3)
        later = [await bench.queued(route=a_route(first="lone")) for _ in range(5)]
        backend.failing.clear()
        views = await bench.ended(*later)
        await bench.ended(*lost)

    assert [(view.state, view.attempts) for view in views] == [(JobState.COMPLETED, 1)] * 5


async def test_a_caller_is_told_soon_when_a_lone_deployment_stays_away(bench: Bench) -> None:
    bench.cooldown = CooldownRule(first=60.0, longest=60.0)
    worker = bench.worker(Flaky())
    for number in range(3):
        told = {"job": f"j{number}", "call": f"j{number}:1", "retry_after": None}
        await worker.attempt.onward.conditions.failed("lone", Failure.CUT, **told)  # type: ignore[arg-type]
    async with working(worker):
        [view] = await bench.ended(await bench.queued(route=a_route(first="lone"), is_waited_for=True))

    assert (view.state, view.attempts) == (JobState.FAILED, 0)
    assert view.error is not None and view.error["code"] == "unavailable"


async def test_a_probe_that_was_broken_off_makes_room_for_another(redis: "Redis") -> None:
    worker = conditions(redis, 0.01)
    for number in range(3):
        await worker.failed("first", Failure.CUT, job=f"j{number}", call=f"j{number}:1", retry_after=None)
    await asyncio.sleep(0.05)
    assert isinstance(await worker.ask("first", "p:1"), Probe)

    await worker.released("first", "p:1")

    assert isinstance(await worker.ask("first", "q:1"), Probe)


async def test_a_probe_whose_job_is_cancelled_makes_room_for_another(bench: Bench) -> None:
    bench.cooldown = CooldownRule(first=0.01)
    worker = bench.worker(Flaky())
    known = worker.attempt.onward.conditions
    for number in range(3):
        await known.failed("lone", Failure.CUT, job=f"j{number}", call=f"j{number}:1", retry_after=None)
    async with working(worker):
        job = await bench.queued("wait:30", route=a_route(first="lone"))
        await until(lambda: _is(bench, job, JobState.RUNNING))
        assert await known.cooling("lone") is not None, "others wait for it"

        await bench.board.cancel("acme", job.id, an_event(job, JobState.CANCELLED))
        await bench.ended(job)

    assert isinstance(await known.ask("lone", "q:1"), Probe)


async def _is(bench: Bench, job: Job, state: JobState) -> bool:
    return await bench.state(job) is state


async def test_retries_keep_within_their_budget_and_the_rest_goes_on(bench: Bench) -> None:
    bench.cooldown = CooldownRule(failures=1000)
    backend = failing(Failure.BACKEND_ERROR)
    jobs = [await bench.queued(route=a_route("second")) for _ in range(100)]
    bench.deployments["second"] = replace(bench.deployments["second"], limits=Limits())
    async with working(bench.worker(backend)):
        views = await bench.ended(*jobs, within=30)

    assert {view.state for view in views} == {JobState.COMPLETED}
    assert backend.calls["first"] - len(jobs) <= 0.2 * len(jobs) + SPARE + 3, "and one more each ten seconds"


# Replicas


def a_fleet(*urls: str, fallback: tuple[Fallback, ...] = ()) -> Deployment:
    fleet = Fleet(Listed(urls), probe_s=0.1, slow_start_s=0.0)
    timeouts = Timeouts(connect=1.0, first_token=5.0, read=5.0, total=20.0)
    return Deployment("first", "gpu", "any", Tier.LIGHT, fleet=fleet, fallback=fallback, timeouts=timeouts)


@asynccontextmanager
async def a_gpu_worker(redis: "Redis", folder: Path, *deployments: Deployment) -> AsyncGenerator[tuple[Bench, Worker]]:
    async with (
        a_bench(redis, folder, deployments=deployments) as bench,
        GpuBackend.open({}, places=Places(Scripts(redis)), deployments=deployments) as backend,
    ):
        worker = bench.worker(backend, name="gpu")
        async with working(worker):
            yield bench, worker


async def test_jobs_of_a_deployment_without_a_replica_go_on(redis: "Redis", tmp_path: Path) -> None:
    [nobody] = free_ports(1)
    with engine_double() as spare:
        first = a_fleet(f"http://127.0.0.1:{nobody}", fallback=(Fallback("second"),))
        second = Deployment("second", "gpu", "any", Tier.LIGHT, url=spare.url)
        async with a_gpu_worker(redis, tmp_path, first, second) as (bench, _):
            jobs = [await bench.queued(route=replace(a_route("second"), backend="gpu"), body=SHORT) for _ in range(20)]
            views = await bench.ended(*jobs)

    assert {(view.state, view.job.route.deployment) for view in views} == {(JobState.COMPLETED, "second")}


async def test_what_one_replica_does_is_not_held_against_the_deployment(redis: "Redis", tmp_path: Path) -> None:
    with engine_double() as good, engine_double() as bad:
        await bad.become("liar")
        first = a_fleet(good.url, bad.url, fallback=(Fallback("second"),))
        second = Deployment("second", "gpu", "any", Tier.LIGHT, url=good.url)
        async with a_gpu_worker(redis, tmp_path, first, second) as (bench, worker):
            jobs = [await bench.queued(route=replace(a_route("second"), backend="gpu"), body=SHORT) for _ in range(30)]
            views = await bench.ended(*jobs, within=30)
            cooling = await worker.attempt.onward.conditions.cooling("first")
        failed = (await bad.calls())["total"]

    assert {(view.state, view.job.route.deployment) for view in views} == {(JobState.COMPLETED, "first")}
    assert failed > 0 and cooling is None
