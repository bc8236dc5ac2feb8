"""A lane on a real Kafka, whose workers are the pods of a release: who sends it jobs, and what is seen of them."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.acceptance.processes import Process, pointsman, until
from tests.chart.charts import Values
from tests.chart.releases import Release
from tests.chart.workers import Kubelet
from tools.kafka.broker import HOST, free_ports

WORKER = "worker-echo"
LANE = "echo.text.light"
MOST = 4  # pods, and partitions
AT_ONCE = 1  # calls of a worker
PATIENCE_S = 90.0
LOOK_S = 0.2


@dataclass(slots=True)
class Lane:
    """It runs; see `lane`."""

    release: Release
    kubelet: Kubelet
    sweeper: Process
    http: aiohttp.ClientSession
    began: float = field(default_factory=time.monotonic)
    seen: list[tuple[float, int]] = field(default_factory=list)  # when, and how many replicas were wanted
    _counts: tuple[int, int] = (-1, -1)  # of replicas that are wanted, and that are ready; not known yet

    async def send(self, count: int, seconds: float) -> list[str]:
        """So many jobs, each of which takes so long; one after the other, which spreads them over partitions. Ids."""
        body = {"model": "light", "messages": [{"role": "user", "content": f"wait:{seconds}"}], "async": True}
        jobs = []
        for _ in range(count):
            async with self.http.post("/v1/chat/completions", json=body) as answer:
                assert answer.status == 202, await answer.text()
                jobs.append(str((await answer.json())["id"]))
        return jobs

    async def all_are(self, jobs: Collection[str], state: str) -> None:
        """Wait until they are, at one moment."""
        async with asyncio.timeout(PATIENCE_S):
            while {(await self._job(each))["status"] for each in jobs} != {state}:
                await asyncio.sleep(LOOK_S)

    async def completed(self, jobs: Collection[str]) -> float:
        """Wait until all have, each by its first attempt; the moment at which the last one had."""
        await self.all_are(jobs, "completed")
        last = time.monotonic()
        assert [(await self._job(each))["pointsman"]["attempts"] for each in jobs] == [1] * len(jobs)
        return last

    def least(self, since: float) -> int:
        """The fewest replicas that were wanted since a moment."""
        return min(replicas for at, replicas in self.seen if at >= since)

    async def stepped(self, steps: Sequence[int], since: float) -> None:
        """Wait until so many replicas were wanted, one count after the other, since that moment, and no others."""

        def wanted() -> list[int]:
            return [count for count, _ in groupby(replicas for at, replicas in self.seen if at >= since)]

        async with asyncio.timeout(PATIENCE_S):
            while (found := wanted()) != list(steps):
                assert found == list(steps)[: len(found)], f"the steps were {found}"
                await asyncio.sleep(LOOK_S)

    async def replicas(self, count: int, what: str) -> float:
        """Wait until so many are wanted and a worker runs for each; the moment."""
        await until(lambda: self._has(count), what, within=PATIENCE_S)
        return time.monotonic()

    async def told(self, **wanted: int) -> None:
        """Wait until the sweeper tells this of the lane, as it does to whoever scales it."""
        async with asyncio.timeout(PATIENCE_S):
            while not wanted.items() <= (await self._scale()).items():
                await asyncio.sleep(LOOK_S)

    async def want(self, replicas: int) -> None:
        """Scale the deployment, as an operator would."""
        await asyncio.to_thread(self.release.plane.api.merge, f"{self._path}/scale", {"spec": {"replicas": replicas}})

    async def watch(self) -> None:
        """For ever: the deployment, as the API server has it."""
        while True:
            now = await asyncio.to_thread(self.release.plane.api.get, self._path)
            counts = now["spec"]["replicas"], now["status"].get("readyReplicas", 0)
            if self._counts != counts:
                print(f"{time.monotonic() - self.began:6.1f} s: {counts[0]} wanted, {counts[1]} ready")
            self._counts = counts
            self.seen.append((time.monotonic(), counts[0]))
            await asyncio.sleep(LOOK_S)

    @property
    def _path(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.release.namespace}/deployments/pm-pointsman-{WORKER}"

    def _has(self, count: int) -> bool:
        return (*self._counts, len(self.kubelet.running)) == (count,) * 3

    async def _scale(self) -> dict[str, Any]:
        async with self.http.get(f"{self.sweeper.url}/scale/{LANE}") as answer:
            return dict(await answer.json())

    async def _job(self, job: str) -> dict[str, Any]:
        async with self.http.get(f"/v1/jobs/{job}") as answer:
            assert answer.status == 200, await answer.text()
            return dict(await answer.json())


@asynccontextmanager
async def lane(release: Release, kafka: str, redis: str, folder: Path, worker: Values) -> AsyncIterator[Lane]:
    """As `idle_lane`, and behind each pod there is a worker."""
    async with idle_lane(release, kafka, redis, folder, worker) as opened, opened.kubelet.working():
        yield opened


@asynccontextmanager
async def idle_lane(
    release: Release, kafka: str, redis: str, folder: Path, worker: Values, *, partitions: int = MOST
) -> AsyncIterator[Lane]:
    """The chart is installed with this entry of `workers`; the HTTP door and the sweeper run as processes.

    An entry with `keda` is told where that sweeper is. Nothing runs behind the pods.
    """
    http_port, sweeper_port = free_ports(2)
    if "keda" in worker:
        worker = {**worker, "keda": {**worker["keda"], "sweeperUrl": f"http://{HOST}:{sweeper_port}"}}
    release.install(_values(kafka, redis, worker, partitions))
    [config] = [each for each in release.things("configmaps", group="v1") if each["metadata"]["name"] == "pm-pointsman"]
    settings = yaml.safe_load(config["data"]["pointsman.yaml"])
    with pointsman(folder, settings, POINTSMAN_DATA=str(folder / "data")) as ours:
        ours.command("topics", "--create")
        key = ours.command("keys", "create").split()[-1]
        http, sweeper = ours.http(http_port), ours.sweeper(sweeper_port)
        await asyncio.gather(http.ready(), sweeper.ready())
        kubelet = Kubelet(release, WORKER, ours, "echo")
        headers = {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(http.url, headers=headers) as client:
            opened = Lane(release, kubelet, sweeper, client)
            watching = asyncio.create_task(opened.watch())
            try:
                yield opened
            finally:
                watching.cancel()


def _values(kafka: str, redis: str, worker: Values, partitions: int) -> Values:
    return {
        "config": {
            "log": f"kafka://{kafka}",
            "redis": redis,
            "kafka": {"partitions": partitions, "prefix": f"c{os.urandom(4).hex()}.", "session_s": 6},
            "worker": {"concurrency": AT_ONCE},
            "deployments": {"light": {"backend": "echo", "model": "echo", "tier": "light"}},
        },
        "data": {"create": True, "storageClass": "kwok-volume"},
        "workers": [{"backend": "echo", **worker}],
    }
