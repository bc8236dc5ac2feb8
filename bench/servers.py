"""What a benchmark runs against: its own Valkey, Kafka and processes of Pointsman, all on 127.0.0.1, ended with it."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway import valkey, wiring
from gateway.settings import Settings, load
from gateway.wiring import Core
from router import topics
from router.rebuild import begin
from tools.kafka.broker import HOST, Cluster, fetch, free_ports

TENANT = "bench"
READY_S = 60.0
GOODBYE_S = 20.0
LOOK_S = 0.02
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# High enough never to say no, and all of them on: a limit that is not there would cost nothing.
LIMITS: Mapping[str, object] = {
    "requests_per_minute": 1e8,
    "tokens_per_minute": 1e11,
    "concurrency": 100_000,
    "usd_per_month": "1000000",
}
SLOTS = 128


@dataclass(frozen=True, slots=True)
class Stage:
    """Open servers, the settings that lead to them, and a way to start more processes there."""

    settings: Settings
    core: Core
    cluster: Cluster | None
    environ: Mapping[str, str]

    async def new_key(self) -> str:
        """An API key of the one tenant."""
        return (await self.core.keys.create(TENANT, "bench")).text

    async def cpu_of_redis(self) -> float:
        """What Valkey has used so far, in seconds."""
        return cpu_seconds((await self.core.redis.info("server"))["process_id"])

    def cpu_of_kafka(self) -> float:
        """What all living brokers have used so far, in seconds."""
        processes = [] if self.cluster is None else [broker.process for broker in self.cluster.brokers]
        return sum(cpu_seconds(process.pid) for process in processes if process is not None)

    @asynccontextmanager
    async def process(self, *arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
        """`python -m ...`, until the block ends."""
        started = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *arguments, stdin=asyncio.subprocess.DEVNULL, env=dict(self.environ)
        )
        try:
            yield started
        finally:
            await _end(started)

    @asynccontextmanager
    async def api(self, module: str = "gateway.cli", *arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
        """The HTTP process (or one that stands in for it), once it is ready."""
        async with self.process(module, *(arguments or ("serve", "http"))) as started:
            await _until_ready(started, self.settings.http.port)
            yield started


@asynccontextmanager
async def stage(*, log: str, brokers: int = 1, changed: Mapping[str, object] | None = None) -> AsyncGenerator[Stage]:
    """Everything that the processes need: `log` is kafka or streams, with all topics made.

    Valkey is the embedded one, which has every write on disk before it answers. `changed` are sections of the
    settings, in place of those that are here. SIGTERM ends the block, so that nothing outlives a benchmark whose time
    was over.
    """
    with _ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="pointsman-bench-") as name:
        directory = Path(name)
        async with valkey.running(directory / "valkey") as redis:
            cluster = None
            try:
                if log == "kafka":
                    fetch()
                    cluster = Cluster(directory / "kafka", brokers=brokers)
                    cluster.start()
                environ = _environ(directory, redis.url, cluster, changed or {})
                settings = load(None, environ)
                async with wiring.core(settings) as core:
                    await core.log.create(topics.all_topics(core.deployments))
                    await begin(core.log, core.board)
                    yield Stage(settings, core, cluster, environ)
            finally:
                if cluster is not None:
                    cluster.stop(hard=True)


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    loop, ours = asyncio.get_running_loop(), asyncio.current_task()
    assert ours is not None
    loop.add_signal_handler(signal.SIGTERM, ours.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def is_ready(port: int) -> bool:
    """Whether the process on that port says that it can serve."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    try:
        writer.write(f"GET /readyz HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def rss_mb(pid: int) -> float:
    """The memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1_000_000


def _environ(directory: Path, redis_url: str, cluster: Cluster | None, changed: Mapping[str, object]) -> dict[str, str]:
    [port] = free_ports(1)
    copies = 1 if cluster is None else min(3, len(cluster.brokers))
    deployment = {"backend": "echo", "model": "echo", "limits": {**LIMITS, "concurrency": SLOTS}}
    prices = {"light": {"input": "0.10", "output": "0.40"}, "heavy": {"input": "1.00", "output": "4.00"}}
    config = directory / "pointsman.yaml"
    values = {
        "log": "streams:" if cluster is None else f"kafka://{cluster.bootstrap}",
        "redis": redis_url,
        "data": str(directory / "data"),
        "kafka": {"replication": copies},
        "http": {"port": port},
        "worker": {"health_port": 0},
        "tenants": {TENANT: {"limits": dict(LIMITS), "max_unfinished": 1_000_000, "max_in_class": 100_000}},
        "deployments": {tier: {**deployment, "tier": tier, "price": price} for tier, price in prices.items()},
    }
    config.write_text(json.dumps(values | dict(changed)), encoding="utf-8")  # JSON is YAML
    return {**os.environ, "POINTSMAN_CONFIG": str(config)}


async def _until_ready(process: asyncio.subprocess.Process, port: int) -> None:
    async with asyncio.timeout(READY_S):
        while not await is_ready(port):
            if process.returncode is not None:
                raise RuntimeError(f"the process ended with code {process.returncode}; what it printed says why")
            await asyncio.sleep(LOOK_S)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(GOODBYE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
