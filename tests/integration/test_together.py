"""A worker makes one upstream call for the embeddings of a microbatch; its jobs share nothing else, and no failure."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from consumers.gpu.backend_gpu import GpuBackend
from policies.deployments import Deployment, Limits, Modality
from policies.tenants import Tenant
from router import topics
from router.job import Estimate, Job, JobState, Route
from tests.builders import Bench, a_bench, a_deployment, an_event, records
from tests.doubles import OpenAIDouble, openai_double

ENDPOINT = "/v1/embeddings"


@pytest.fixture(scope="module")
def double() -> Iterator[OpenAIDouble]:
    with openai_double() as running:
        yield running


@dataclass(frozen=True, slots=True)
class Scene:
    """A bench whose embedding deployment is a double that this test alone calls."""

    bench: Bench
    double: OpenAIDouble
    backend: GpuBackend
    before: int

    async def queued(self, given: Any, *, tenant: str = "acme", tokens: int = 5, **fields: Any) -> Job:
        return await self.bench.queued(
            tenant=tenant,
            endpoint=ENDPOINT,
            body=json.dumps({"model": "small", "input": given, **fields}).encode(),
            route=Route("small", "echo", Modality.EMBEDDING, a_deployment().tier),
            estimate=Estimate(tokens, 0, Decimal(0)),
        )

    @asynccontextmanager
    async def working(self, at_once: int | None = None) -> AsyncGenerator[None]:
        """With a worker whose microbatches are of so many jobs, however long they wait for them."""
        if at_once is not None:
            whole = replace(self.bench.deployments["small"], microbatch_size=at_once, microbatch_wait_s=600.0)
            self.bench.deployments["small"] = whole
        stop = asyncio.Event()
        worker = asyncio.create_task(self.bench.worker(self.backend).run(stop))
        try:
            yield
        finally:
            stop.set()
            await worker

    async def calls(self) -> int:
        return (await asyncio.to_thread(self.double.calls)).total - self.before

    async def vectors(self, job: Job) -> list[list[float]]:
        view = await self.bench.view(job)
        assert view.result is not None, view
        return [row["embedding"][:2] for row in json.loads(view.result)["data"]]


def an_embedder(url: str, **fields: Any) -> Deployment:
    return a_deployment(
        url=url,
        **{
            "modalities": frozenset({Modality.EMBEDDING}),
            "microbatch_size": 8,
            "microbatch_wait_s": 0.5,
            **fields,
        },
    )


@pytest.fixture
async def scene(
    redis: "Redis", tmp_path: Path, double: OpenAIDouble, request: pytest.FixtureRequest
) -> AsyncIterator[Scene]:
    fields = getattr(request, "param", {})
    tenants = [Tenant("acme"), Tenant("other")]
    before = (await asyncio.to_thread(double.calls)).total
    async with (
        a_bench(redis, tmp_path, deployments=[an_embedder(double.url, **fields)], tenants=tenants) as bench,
        GpuBackend.open({}) as backend,
    ):
        yield Scene(bench, double, backend, before)


async def test_the_inputs_of_a_microbatch_are_one_call_and_each_job_has_its_own_answer_and_charge(scene: Scene) -> None:
    given: list[Any] = ["one", ["two", "three!"], "four", ["five"]]
    jobs = [await scene.queued(each, tenant=tenant) for each, tenant in zip(given, ["acme", "other"] * 2, strict=True)]

    async with scene.working(4):
        views = await scene.bench.ended(*jobs)

    assert [view.state for view in views] == [JobState.COMPLETED] * 4
    assert await scene.calls() == 1
    assert [await scene.vectors(job) for job in jobs] == [
        [[3.0, ord("o")]],
        [[3.0, ord("t")], [6.0, ord("t")]],
        [[4.0, ord("f")]],
        [[4.0, ord("f")]],
    ]
    lines = [line for view in views for line in view.charges]
    assert sum(line.quantity for line in lines) == sum(map(len, ["one", "two", "three!", "four", "five"]))
    assert {line.basis for line in lines} == {"allocated"}
    assert len({view.microbatch for view in views}) == 1
    [whole] = [row for row in await records(scene.bench.redis, topics.CHARGES) if row["type"] == "microbatch"]
    assert (whole["jobs"], whole["attempts"], Decimal(whole["usd"])) == (
        4,
        4,
        sum(line.usd for line in lines if line.usd is not None),
    )


@pytest.mark.parametrize("guilty", ["double:guilty", "double:guilty-long"])
async def test_only_the_job_with_the_guilty_input_fails(scene: Scene, guilty: str) -> None:
    jobs = [await scene.queued(text) for text in ("good", guilty, "fine")]

    async with scene.working(3):
        views = await scene.bench.ended(*jobs)

    assert [view.state for view in views] == [JobState.COMPLETED, JobState.FAILED, JobState.COMPLETED]
    assert views[1].error is not None and views[1].error["param"] == "input"
    assert [view.attempts for view in views] == [1, 1, 1]
    assert await scene.calls() == 4  # the one for all, then each by itself
    assert not views[1].charges


@pytest.mark.parametrize("scene", [{"microbatch_wait_s": 2.0}], indirect=True)
async def test_an_input_that_fells_the_server_takes_the_others_with_it_once_only(scene: Scene) -> None:
    jobs = [await scene.queued(text) for text in ("good", "double:deadly", "fine")]

    async with scene.working():
        views = await scene.bench.ended(*jobs)

    assert [view.state for view in views] == [JobState.COMPLETED, JobState.FAILED, JobState.COMPLETED]
    assert (views[0].attempts, views[2].attempts) == (2, 2)


@pytest.mark.parametrize("scene", [{"microbatch_inputs": 2}], indirect=True)
async def test_no_call_has_more_inputs_than_the_deployment_takes(scene: Scene) -> None:
    jobs = [await scene.queued(text) for text in ("a", "b", "c", "d", "e")]

    async with scene.working(5):
        await scene.bench.ended(*jobs)

    assert await scene.calls() == 3


async def test_calls_that_ask_for_something_else_are_made_apart(scene: Scene) -> None:
    jobs = [
        await scene.queued("a"),
        await scene.queued("b", dimensions=3),
        await scene.queued([1, 2]),
        await scene.queued("c", dimensions=3),
    ]

    async with scene.working(4):
        views = await scene.bench.ended(*jobs)

    assert {view.state for view in views} == {JobState.COMPLETED}
    assert await scene.calls() == 3
    assert await scene.vectors(jobs[2]) == [[2.0, 1.0]]


async def test_a_cancelled_job_leaves_the_others_call_alone_and_the_last_one_closes_it(scene: Scene) -> None:
    jobs = [await scene.queued("double:delay-4000 a"), await scene.queued("b"), await scene.queued("c")]
    mute = [await scene.queued("double:mute a", dimensions=3), await scene.queued("b", dimensions=3)]

    async with scene.working(5):
        await scene.double.until(lambda calls: calls.open == 2)
        for job in (jobs[1], *mute):
            await scene.bench.board.cancel(job.tenant, job.id, an_event(job, JobState.CANCELLED))
        views = await scene.bench.ended(*jobs, *mute)
        await scene.double.until(lambda calls: calls.open == 0)

    assert [view.state for view in views] == [
        JobState.COMPLETED,
        JobState.CANCELLED,
        JobState.COMPLETED,
        JobState.CANCELLED,
        JobState.CANCELLED,
    ]
    assert await scene.vectors(jobs[2]) == [[1.0, ord("c")]]
    assert all(view.charges for view in views)


@pytest.mark.parametrize("scene", [{"limits": Limits(requests_per_minute=2, burst_s=60)}], indirect=True)
async def test_a_job_that_must_wait_for_quota_does_not_hold_up_the_others(scene: Scene) -> None:
    jobs = [await scene.queued(text) for text in ("a", "b", "c")]

    async with scene.working():
        await scene.bench.ended(*jobs[:2])
        waits = await scene.bench.state(jobs[2])

    assert not waits.is_terminal
