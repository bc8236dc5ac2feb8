"""Clients that send jobs all the while, whatever fails, and remember what they were told."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from tests.acceptance.refusals import Refused

PER_S = 8
LONG_EVERY = 10  # jobs; one that runs when everything stops
KEEP_TRYING_S = 200.0
STILL_S, LATE_S = 0.05, 0.2  # a short sleep, and how late its end may be on a machine that only does much


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that was no 202. `began` and `seconds` are of a steady clock."""

    began: float
    seconds: float
    status: int
    retry_after: str | None
    told: Refused


@dataclass(slots=True)
class Clients:
    """Send a job every now and then, each again with its idempotency key until it has its 202."""

    url: str
    key: str
    accepted: dict[str, str] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    waited: list[tuple[float, float]] = field(default_factory=list)  # when an accept began, and what it took
    stood_still: list[tuple[float, float]] = field(default_factory=list)  # until when this process did, for how long
    _sent: int = 0

    @property
    def refused(self) -> list[Refused]:
        """What came with the refusals."""
        return [each.told for each in self.refusals]

    @asynccontextmanager
    async def sending(self) -> AsyncGenerator[None]:
        """Jobs come for as long as the block runs; all are accepted when this ends."""
        headers = {"authorization": f"Bearer {self.key}"}
        async with aiohttp.ClientSession(headers=headers) as http, asyncio.TaskGroup() as tasks:
            besides = [tasks.create_task(self._send(http, tasks)), tasks.create_task(self._watch())]
            try:
                yield
            finally:
                for each in besides:
                    each.cancel()

    def waited_for_us(self, began: float, seconds: float) -> float:
        """What an answer took, without the seconds in which the machine let nothing run here."""
        return seconds - sum(late for at, late in self.stood_still if began <= at <= began + seconds)

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(STILL_S)
            now = time.monotonic()
            if (late := now - began - STILL_S) > LATE_S:
                self.stood_still.append((now, late))

    async def _send(self, http: aiohttp.ClientSession, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._sent += 1
            tasks.create_task(self._submit(http, str(self._sent)))
            await asyncio.sleep(1 / PER_S)

    async def _submit(self, http: aiohttp.ClientSession, number: str) -> None:
        ms = 5000 if int(number) % LONG_EVERY == 0 else 30
        body = {
            "model": "light",
            "messages": [{"role": "user", "content": f"n={number} ms={ms} out=5 Say hello."}],
            "max_tokens": 16,
            "metadata": {"number": number},
            "async": True,
        }
        first, again_s = time.monotonic(), 1.0
        while time.monotonic() - first < KEEP_TRYING_S:
            began = time.monotonic()
            headers = {"idempotency-key": f"order-{number}"}
            async with http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                seconds = time.monotonic() - began
                if answer.status == 202:
                    self.waited.append((began, seconds))
                    self.accepted[number] = str((await answer.json())["id"]).removeprefix("job_")
                    return
                told = Refused("", self.key, await answer.text())  # what was asked is on the log by the end
                retry_after = answer.headers.get("retry-after")
                self.refusals.append(Refusal(began, seconds, answer.status, retry_after, told))
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, 5.0)
        raise AssertionError(f"order {number} was not accepted within {KEEP_TRYING_S} s")
