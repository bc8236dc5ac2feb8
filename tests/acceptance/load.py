"""Clients of every kind who do not know that anything changes, and who stand no refusal."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI

from router.log import Log, Record
from tests.acceptance.refusals import Refusals

WORDS = 40
STREAM = f"double:words-{WORDS}+pace-150"  # six seconds
STREAMS, SETTLE_S = 3, 60.0
LINES = 400  # of a batch, which takes longer than any of it
EVERY_S = {"light": 0.25, "patient": 1.0}  # between two jobs
SAY = {"light": "Hello", "patient": "double:delay-2000 Hello"}


@dataclass(slots=True)
class Load:
    """What they were told. `urls` are where a new call may go, as a service would have it."""

    urls: Sequence[str]
    key: str
    refusals: Refusals
    jobs: dict[str, list[str]] = field(default_factory=lambda: {model: [] for model in EVERY_S})
    streams: Counter[int] = field(default_factory=Counter)  # words of each
    records: int = 0
    open: int = 0

    @asynccontextmanager
    async def going_on(self, log: Log) -> AsyncIterator[None]:
        """They come for as long as the block runs; streams that are open at its end are read to theirs."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for model in EVERY_S:
                tasks.create_task(self._submit(model, stop))
            for _ in range(STREAMS):
                tasks.create_task(self._stream(stop))
            tasks.create_task(self._produce(log, stop))
            await self.some_more()
            try:
                yield
            finally:
                stop.set()

    async def some_more(self) -> None:
        """Until jobs were accepted and every stream is open."""
        wanted, until = len(self.jobs["light"]) + 5, time.monotonic() + SETTLE_S
        while len(self.jobs["light"]) < wanted or self.open < STREAMS:
            assert time.monotonic() < until
            await asyncio.sleep(0.02)

    async def _submit(self, model: str, stop: asyncio.Event) -> None:
        while not stop.is_set():
            async with self._sdk() as sdk:
                taken = await sdk.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": SAY[model]}], extra_body={"async": True}
                )
            self.jobs[model].append(taken.id.replace("chatcmpl-", "job_"))
            await asyncio.sleep(EVERY_S[model])

    async def _stream(self, stop: asyncio.Event) -> None:
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

    async def _produce(self, log: Log, stop: asyncio.Event) -> None:
        """Another service, by the inbox."""
        body = json.dumps({"model": "light", "messages": [{"role": "user", "content": "Hello"}]}).encode()
        headers = {"endpoint": "/v1/chat/completions", "authorization": f"Bearer {self.key}"}
        while not stop.is_set():
            await log.append("jobs.inbox", Record(body, headers))
            self.records += 1
            await asyncio.sleep(EVERY_S["light"])

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

    async def states(self, model: str) -> Counter[str]:
        """How its jobs have ended, once all have."""
        async with self._sdk() as sdk, asyncio.timeout(SETTLE_S):
            return Counter([await _ended(sdk, job) for job in self.jobs[model]])

    def _sdk(self) -> AsyncOpenAI:
        return self.refusals.async_sdk(random.choice(self.urls), self.key, max_retries=0, timeout=60)


async def _ended(sdk: AsyncOpenAI, job: str) -> str:
    while True:
        view: Any = await sdk.get(f"/jobs/{job}?wait=20", cast_to=object)
        if view["finished_at"] is not None:
            return str(view["status"])
