"""The replicas of a deployment, on engines that behave and fail like real ones, and on a real board."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
import pytest
from redis.asyncio import Redis

from consumers.backend import Answer, BackendError, SoFar
from consumers.gpu.backend_gpu import GpuBackend
from consumers.gpu.fleet import Replicas
from consumers.gpu.health import State
from consumers.gpu.places import Places
from consumers.gpu.waking import wake
from policies.deployments import Deployment, Tier, Timeouts
from policies.fleets import Fleet, Folder, Listed, Waker
from policies.retries import Failure
from policies.scripts import Scripts
from router.job import Job
from tests.builders import a_body, a_job, until
from tests.engines import EngineDouble, engine_double

QUICK = {"probe_s": 0.1, "slow_start_s": 0.0}


def a_deployment(*engines: EngineDouble | str, **fleet: Any) -> Deployment:
    urls = tuple(each if isinstance(each, str) else each.url for each in engines)
    source = fleet.pop("source", Listed(urls))
    return Deployment(
        "small",
        "gpu",
        "any",
        Tier.LIGHT,
        timeouts=Timeouts(connect=2.0, first_token=5.0, read=5.0, total=20.0),
        fleet=Fleet(source, **{**QUICK, **fleet}),
    )


@asynccontextmanager
async def a_worker(redis: "Redis", deployment: Deployment) -> AsyncGenerator[GpuBackend]:
    async with GpuBackend.open({}, places=Places(Scripts(redis)), deployments=[deployment]) as backend:
        yield backend


async def ready(backend: GpuBackend, count: int) -> Replicas:
    replicas = backend.replicas["small"]
    await until(lambda: sum(each.is_open for each in replicas.members.values()) == count)
    return replicas


def job(text: str = "Hello", *, words: int = 4, **fields: Any) -> Job:
    return a_job(body=a_body(text, max_tokens=words), **fields)


def cap_of(backend: GpuBackend) -> float:
    [member] = backend.replicas["small"].members.values()
    return member.learned.cap if member.learned is not None else 0.0


def is_down(backend: GpuBackend) -> bool:
    return [each.health.state for each in backend.replicas["small"].members.values()] == [State.DOWN]


async def call(backend: GpuBackend, deployment: Deployment, each: Job, attempt: int = 1) -> Answer:
    return await backend.call(each, deployment, attempt=attempt, on_chunk=None, so_far=SoFar())


async def test_two_workers_together_keep_to_the_cap_and_leave_the_engines_queue_empty(redis: "Redis") -> None:
    with engine_double("--slots", "3", "--decode", "40") as one, engine_double("--slots", "3", "--decode", "40") as two:
        deployment = a_deployment(one, two, cap=3)
        async with AsyncExitStack() as opened:
            workers = [await opened.enter_async_context(a_worker(redis, deployment)) for _ in range(2)]
            for worker in workers:
                await ready(worker, 2)

            async def run(worker: GpuBackend, each: Job) -> None:
                async def has_place() -> bool:
                    return await worker.take_place(each, deployment, attempt=1)

                await until(has_place, within=30)
                await call(worker, deployment, each)

            await asyncio.gather(*(run(worker, job(words=8)) for worker in workers for _ in range(15)))
            seen = [await each.calls() for each in (one, two)]

    assert sum(each["answered"] for each in seen) == 30
    assert all(each["most_running"] <= 3 and each["most_waiting"] <= 1 for each in seen)


async def test_no_room_is_no_attempt_and_room_counts_what_has_begun(redis: "Redis") -> None:
    with engine_double() as one:
        deployment = a_deployment(one, cap=2)
        async with a_worker(redis, deployment) as backend:
            replicas = await ready(backend, 1)
            jobs = [job() for _ in range(3)]
            assert backend.room("small", 0) == 2
            assert backend.room("small", 1) == 1
            assert [await backend.take_place(each, deployment, attempt=1) for each in jobs] == [True, True, False]
            assert backend.room("small", 2) == 0

            backend.leave_place(jobs[0], deployment, attempt=1)
            backend.leave_place(jobs[0], deployment, attempt=1)
            assert await backend.take_place(jobs[2], deployment, attempt=1)
            assert replicas.members[one.url.removeprefix("http://")].ours == 2
        assert (await one.calls())["total"] == 0


async def test_an_engine_with_requests_in_its_own_queue_gets_no_more(redis: "Redis") -> None:
    with engine_double() as one:
        async with a_worker(redis, a_deployment(one)) as backend:
            await ready(backend, 1)
            await until(lambda: backend.room("small", 0) == 32)
            await one.become("busy")
            await until(lambda: backend.room("small", 0) == 0)
            await one.become("well")
            await until(lambda: backend.room("small", 0) == 32)


async def test_an_attempt_after_a_failure_goes_to_another_replica(redis: "Redis") -> None:
    with engine_double() as one, engine_double() as two:
        await one.become("liar")
        deployment = a_deployment(one, two)
        async with a_worker(redis, deployment) as backend:
            await ready(backend, 2)
            for _ in range(6):
                each = job()
                try:
                    await call(backend, deployment, each)
                except BackendError as error:
                    assert error.failure is Failure.BACKEND_ERROR
                    await call(backend, deployment, each, attempt=2)
        assert (await two.calls())["answered"] == 6


async def test_a_replica_whose_health_lies_is_ejected_for_all_workers_but_never_the_last_one(redis: "Redis") -> None:
    with engine_double() as one, engine_double() as two:
        await one.become("liar")
        deployment = a_deployment(one, two)
        async with a_worker(redis, deployment) as backend, a_worker(redis, deployment) as other:
            await ready(other, 2)
            await ready(backend, 2)
            for _ in range(30):
                try:
                    await call(backend, deployment, job())
                except BackendError:
                    continue
            bad = one.url.removeprefix("http://")
            assert backend.replicas["small"].members[bad].health.state is State.EJECTED
            await until(lambda: other.replicas["small"].members[bad].health.state is State.EJECTED)

            await two.become("liar")
            for _ in range(10):
                with pytest.raises(BackendError) as raised:
                    await call(backend, deployment, job())
                assert raised.value.code != "no_replica"
            assert backend.room("small", 0) not in (0, None)


async def test_an_ejected_replica_is_back_as_soon_as_it_answers_and_not_while_only_its_health_is_good(
    redis: "Redis",
) -> None:
    with engine_double() as one, engine_double() as two:
        deployment = a_deployment(one, two)
        async with a_worker(redis, deployment) as backend:
            replicas = await ready(backend, 2)
            ejected = replicas.members[one.url.removeprefix("http://")]
            await one.become("liar")
            ejected.health.eject(asyncio.get_running_loop().time() + 3600, 9, "as if it had failed")
            before = (await one.calls())["failed"]

            async def was_asked() -> bool:
                return (await one.calls())["failed"] >= before + 3

            await until(was_asked)
            assert ejected.health.state is State.EJECTED

            await one.become("well")
            await until(lambda: ejected.is_open)
            assert replicas.cap(ejected) == 1, "on trial"


async def test_one_that_loads_is_warming_gets_nothing_and_is_used_once_it_is_ready(redis: "Redis") -> None:
    with engine_double("--load-s", "1") as one:
        deployment = a_deployment(one)
        async with a_worker(redis, deployment) as backend:
            replicas = backend.replicas["small"]
            await until(lambda: replicas.is_warming)
            assert backend.room("small", 0) == 0
            assert not await backend.take_place(job(), deployment, attempt=1)
            await ready(backend, 1)
            assert not replicas.is_warming
            await call(backend, deployment, job())
        assert (await one.calls())["total"] == 1


async def test_a_throttled_replicas_cap_goes_down_for_all_workers_and_comes_back(redis: "Redis") -> None:
    with engine_double() as one:
        deployment = a_deployment(one, cap=10)
        async with a_worker(redis, deployment) as backend, a_worker(redis, deployment) as other:
            await ready(backend, 1)
            await ready(other, 1)
            await one.become("full")
            with pytest.raises(BackendError):
                await call(backend, deployment, job())
            await until(lambda: backend.room("small", 0) == 1 and other.room("small", 0) == 1)

            await one.become("well")

            async def grows() -> bool:
                taken = [job() for _ in range(3)]
                for each in taken:
                    await backend.take_place(each, deployment, attempt=1)
                await asyncio.sleep(0.2)  # some looks while its cap is used
                for each in taken:
                    backend.leave_place(each, deployment, attempt=1)
                return all(cap_of(each) >= 3 for each in (backend, other))

            await until(grows, within=20)


async def test_files_come_change_drain_and_go_while_it_runs(redis: "Redis", tmp_path: Path) -> None:
    with engine_double("--decode", "10") as one, engine_double() as two:
        deployment = a_deployment(source=Folder(str(tmp_path)))
        async with a_worker(redis, deployment) as backend:
            replicas = backend.replicas["small"]
            assert backend.room("small", 0) == 0
            (tmp_path / "a.yaml").write_text(f"url: {one.url}\ncap: 3\n", encoding="utf-8")
            await ready(backend, 1)
            assert backend.room("small", 0) == 3

            running = asyncio.create_task(call(backend, deployment, job(words=10)))
            await until(lambda: replicas.members["a"].ours == 1)
            (tmp_path / "b.json").write_text(f'{{"url": "{two.url}"}}', encoding="utf-8")
            (tmp_path / "a.yaml").write_text(f"url: {one.url}\ncap: 3\ndrain: true\n", encoding="utf-8")
            await until(lambda: not replicas.members["a"].is_open and "b" in replicas.members)
            await ready(backend, 1)
            (tmp_path / "b.json").write_text("{", encoding="utf-8")
            (tmp_path / "a.yaml").unlink()
            await running
            await until(lambda: set(replicas.members) == {"b"})
            await call(backend, deployment, job())
        assert (await two.calls())["answered"] == 1


async def test_a_call_that_is_cancelled_leaves_its_place(redis: "Redis") -> None:
    with engine_double() as one:
        deployment = a_deployment(one, cap=1)
        async with a_worker(redis, deployment) as backend:
            await ready(backend, 1)
            await one.become("mute")
            running = asyncio.create_task(call(backend, deployment, job()))

            async def seen(what: str) -> bool:
                return (await one.calls())[what] == 1

            await until(lambda: seen("total"))
            assert backend.room("small", 1) == 0
            running.cancel()
            await until(running.done)
            assert backend.room("small", 0) == 1
            await until(lambda: seen("aborted"))


async def test_each_worker_tries_a_replica_that_comes_back_though_another_has_calls_there(redis: "Redis") -> None:
    with engine_double() as one:
        deployment = a_deployment(one, cap=4)
        async with a_worker(redis, deployment) as backend, a_worker(redis, deployment) as other:
            for each in (backend, other):
                [member] = (await ready(each, 1)).members.values()
                member.health.eject(asyncio.get_running_loop().time(), 1, "as if it had failed")
            for each in (backend, other):
                await ready(each, 1)

            assert await backend.take_place(job(), deployment, attempt=1)
            await until(lambda: other.take_place(job(), deployment, attempt=1))
            for each in (backend, other):
                assert not await each.take_place(job(), deployment, attempt=1)


class Scale:
    """The scale of a Kubernetes deployment, as its API server shows and takes it; `tokens` are who was heard."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.refuses = False
        self.tokens: list[str] = []

    async def show(self, request: aiohttp.web.Request) -> aiohttp.web.Response:
        self.tokens.append(request.headers["authorization"])
        spec = {"replicas": self.replicas} if self.replicas else {}
        return aiohttp.web.json_response({"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": spec})

    async def take(self, request: aiohttp.web.Request) -> aiohttp.web.Response:
        if self.refuses:
            return aiohttp.web.json_response({"kind": "Status", "code": 403}, status=403)
        assert request.content_type == "application/merge-patch+json"
        self.replicas = (await request.json())["spec"]["replicas"]
        return await self.show(request)


@asynccontextmanager
async def serving(*routes: aiohttp.web.RouteDef) -> AsyncGenerator[str]:
    app = aiohttp.web.Application()
    app.router.add_routes(routes)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_kubernetes_deployment_is_scaled_up_with_the_token_of_the_moment_and_never_down(tmp_path: Path) -> None:
    scale, path = Scale(0), "/apis/apps/v1/namespaces/models/deployments/vllm/scale"
    routes = aiohttp.web.get(path, scale.show), aiohttp.web.patch(path, scale.take)
    async with serving(*routes) as url, aiohttp.ClientSession() as session:
        waker = Waker(url, scale=("models", "vllm", 2))
        (tmp_path / "token").write_text("first\n")
        assert await wake(session, waker, "small", account=tmp_path)
        assert (scale.replicas, scale.tokens) == (2, ["Bearer first", "Bearer first"])

        scale.replicas = 5
        (tmp_path / "token").write_text("second")
        assert await wake(session, waker, "small", account=tmp_path)
        assert (scale.replicas, scale.tokens[2:]) == (5, ["Bearer second"])

        scale.replicas, scale.refuses = 0, True
        assert not await wake(session, waker, "small", account=tmp_path)


async def test_the_waker_that_was_not_reached_may_be_called_again_soon_from_any_worker(redis: "Redis") -> None:
    one, other = Places(Scripts(redis)), Places(Scripts(redis))
    assert await one.may_wake("small", again_s=300)

    await one.wake_again("small", in_s=0.05)

    await until(lambda: other.may_wake("small", again_s=300))
    assert not await one.may_wake("small", again_s=300)


async def test_the_waker_is_called_once_when_jobs_wait_and_nobody_is_there(redis: "Redis") -> None:
    called: list[dict[str, object]] = []

    async def hook(request: aiohttp.web.Request) -> aiohttp.web.Response:
        called.append(await request.json())
        return aiohttp.web.Response()

    nobody = "http://127.0.0.1:1"
    async with serving(aiohttp.web.post("/wake", hook)) as url:
        deployment = a_deployment(nobody, waker=Waker(f"{url}/wake"))
        async with a_worker(redis, deployment) as backend, a_worker(redis, deployment) as other:
            for each in (backend, other):
                await until(partial(is_down, each))
            assert called == []
            for _ in range(20):
                assert backend.room("small", 0) == other.room("small", 0) == 0
            await until(lambda: called != [])
            await asyncio.sleep(0.5)
    assert called == [{"deployment": "small", "reason": "jobs_wait"}]
