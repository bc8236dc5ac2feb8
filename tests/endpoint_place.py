"""An endpoint of SageMaker at a DOUBLE of AWS, and a bench whose one deployment it is."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from consumers.aws.backend_sagemaker import SageMakerBackend
from consumers.retrier import Retrier
from consumers.worker import Bounds
from policies.deployments import Deployment
from router import topics
from router.job import Job, JobState
from tests.aws import AwsPlace
from tests.builders import Bench, a_bench, a_deployment, until
from tests.doubles import OpenAIDouble

LONG_S = 40.0  # moto serves a call in tens of milliseconds on a loaded machine


@dataclass(frozen=True)
class Place:
    """A bench whose one deployment is an endpoint at the double."""

    bench: Bench
    at: AwsPlace

    @property
    def deployment(self) -> Deployment:
        return self.bench.deployments["small"]

    @asynccontextmanager
    async def backend(self) -> AsyncGenerator[SageMakerBackend]:
        async with SageMakerBackend.open(
            self.bench.deployments, tuple(self.bench.tenants), self.bench.scripts
        ) as backend:
            yield backend

    @asynccontextmanager
    async def running(self, *, collectors: int = 1, handed_off_s: float = 600.0) -> AsyncGenerator[None]:
        """A worker, the retriers and so many collectors, each with clients of its own."""
        stop = asyncio.Event()
        bench = self.bench
        async with self.backend() as backend, asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.worker(backend, bounds=Bounds(handed_off_s=handed_off_s)).run(stop))
            for topic in topics.RETRIES:
                tasks.create_task(Retrier(bench.log, bench.board, topic).run(stop))
            for _ in range(collectors):
                collector = bench.collector(backend)
                tasks.create_task(collector.run(stop))
            try:
                yield
            finally:
                stop.set()


@asynccontextmanager
async def a_place(redis: "Redis", folder: Path, aws: str, container: OpenAIDouble) -> AsyncGenerator[Place]:
    """An endpoint of its own, whose container is that double."""
    at = await asyncio.to_thread(AwsPlace.made, aws, f"{container.url}/v1/chat/completions")
    async with a_bench(redis, folder, deployments=[at.deployment(a_deployment())]) as bench:
        yield Place(bench, at)


async def ended(place: Place, *jobs: Job) -> list[JobState]:
    return [view.state for view in await place.bench.ended(*jobs, within=LONG_S)]


async def submitted(place: Place, count: int) -> None:
    async def taken() -> bool:
        return len(await place.at.invocations()) >= count

    await until(taken, within=LONG_S)


async def is_empty(place: Place) -> bool:
    return await place.at.messages_left() == 0


async def is_over_there(place: Place) -> bool:
    return all(call["outcome"] != "queued" for call in await place.at.invocations())


async def is_handed_off(place: Place, job: Job) -> bool:
    return await place.bench.log.backlog(job.topic, group="workers.echo") == 0
