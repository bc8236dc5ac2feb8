"""`kill -9` in the middle of fifty jobs on a real Kafka: all complete once, every dollar accounted for."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.fifty import JOBS, Fifty, settings
from tests.acceptance.processes import Pointsman, pointsman, until
from tests.doubles import OpenAIDouble
from tests.servers import DURABLE, a_valkey
from tools.kafka.broker import free_ports

pytestmark = pytest.mark.timeout(200)

SESSION_S = 6  # the shortest that a broker allows by default


@pytest.fixture
def durable_valkey(tmp_path: Path) -> Iterator[str]:
    """A Valkey of the test's own that writes its file before it answers."""
    folder = tmp_path / "valkey"
    folder.mkdir()
    with a_valkey(folder, DURABLE) as server:
        yield server.connection_url


@pytest.fixture
def ours(tmp_path: Path, upstream: OpenAIDouble, kafka_bootstrap: str, durable_valkey: str) -> Iterator[Pointsman]:
    values = settings(upstream) | {
        "log": f"kafka://{kafka_bootstrap}",
        "redis": durable_valkey,
        "data": str(tmp_path / "data"),
        "kafka": {"partitions": 4, "prefix": f"k{os.urandom(4).hex()}.", "session_s": SESSION_S},
    }
    with pointsman(tmp_path, values, POINTSMAN_WORKER__LEASE_S="2") as ours:
        yield ours


async def test_all_jobs_complete_once_though_a_worker_and_the_gateway_were_killed(
    ours: Pointsman, upstream: OpenAIDouble
) -> None:
    ours.command("topics", "--create")
    ours.key = ours.command("keys", "create").split()[-1]
    [port] = free_ports(1)
    http = ours.http(port)
    workers = [ours.worker("gpu"), ours.worker("gpu")]
    sweeper = ours.sweeper()
    await asyncio.gather(*(each.ready() for each in (http, *workers, sweeper)))
    async with Fifty.on(ours, upstream, http.url) as fifty:
        await fifty.submit(*range(JOBS // 2))
        await fifty.completed(JOBS // 4)
        await fifty.calling()

        workers[0].kill()
        killed = time.monotonic()
        later = asyncio.create_task(fifty.submit(*range(JOBS // 2, JOBS)))
        await until(lambda: len(fifty.ids) > JOBS // 2 + 5, "some more are accepted", within=30)
        http.kill()
        http = await ours.http(port).ready()
        await later

        await fifty.submit(*range(JOBS))  # all once more: they are the jobs that they were
        counted = await fifty.all_completed_once()
    print(f"worker killed at {killed - fifty.began:.1f} s; {counted['repeated']} calls were made again")
