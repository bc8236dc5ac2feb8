"""Fifty async jobs through the official SDK, and what must be true of them and of their dollars at the end."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import httpx2
import openai

from gateway import valkey, wiring
from gateway.settings import load
from tests.acceptance import books
from tests.acceptance.processes import Pointsman
from tests.doubles import OpenAIDouble

JOBS = 50
SLOTS = 3  # of each of the two deployments
IN_FLIGHT = 2 * SLOTS  # the most calls that can be open, or answered and not yet saved
CALLERS = 4  # requests at once
ANSWER_MS = 300
DONE_S = 60.0
LOOK_S = 0.05


def settings(upstream: OpenAIDouble) -> dict[str, Any]:
    """Two priced deployments on the upstream double, and a tenant with every limit there is, none of them reached."""

    def deployment(tier: str, price: Mapping[str, str]) -> dict[str, Any]:
        return {
            "backend": "gpu",
            "url": f"{upstream.url}/v1",
            "model": f"delay-{ANSWER_MS}",
            "tier": tier,
            "limits": {"concurrency": SLOTS},
            "price": price,
        }

    limits = {"requests_per_minute": 60000, "tokens_per_minute": 10000000, "concurrency": 20, "usd_per_month": "50"}
    return {
        "tenants": {"default": {"limits": limits}},
        "deployments": {
            "light": deployment("light", {"input": "0.123457", "output": "0.654321"}),
            "heavy": deployment("heavy", {"input": "3.000001", "output": "15.1"}),
        },
    }


@dataclass(slots=True)
class Fifty:
    """The jobs of one test, by number."""

    ours: Pointsman
    upstream: OpenAIDouble
    sdk: openai.AsyncOpenAI
    http: httpx2.AsyncClient
    ids: dict[int, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @classmethod
    @asynccontextmanager
    async def on(cls, ours: Pointsman, upstream: OpenAIDouble, url: str) -> AsyncIterator["Fifty"]:
        """A client of the gateway at this address."""
        headers = {"authorization": f"Bearer {ours.key}"}
        async with (
            ours.refusals.async_sdk(url, ours.key, max_retries=12, timeout=20) as sdk,
            ours.refusals.http(url, headers=headers, timeout=30) as http,
        ):
            yield cls(ours, upstream, sdk, http)

    async def submit(self, *numbers: int) -> None:
        """Make these jobs, or learn which ones they are; the SDK tries again while the gateway is away."""
        waiting = list(numbers)

        async def some() -> None:
            while waiting:
                await self._submit(waiting.pop(0))

        await asyncio.gather(*(some() for _ in range(CALLERS)))

    async def _submit(self, number: int) -> None:
        made = await self.sdk.chat.completions.create(
            model="light" if number % 2 else "heavy",
            messages=[{"role": "user", "content": _text(number)}],
            extra_body={"async": True},
            extra_headers={"Idempotency-Key": f"job number {number}"},
        )
        assert self.ids.setdefault(number, made.id) == made.id, "a repeated request made a second job"

    async def completed(self, least: int) -> None:
        """Return once so many of them have completed."""
        deadline = time.monotonic() + DONE_S
        while True:
            page = await self.http.get("/v1/jobs", params={"status": "completed", "limit": 100})
            count = len(page.json()["data"])
            if count >= least:
                return
            assert time.monotonic() < deadline, f"only {count} of {least} completed"
            await asyncio.sleep(LOOK_S)

    async def calling(self) -> None:
        """Return at a moment in which upstream works on several calls."""
        await self.upstream.until(lambda seen: seen.open >= SLOTS, within=DONE_S)

    async def all_completed_once(self) -> Mapping[str, int]:
        """Wait for all, and check their answers, the ledger and the sums; returns what was counted."""
        await self.completed(JOBS)
        seconds = time.monotonic() - self.began
        jobs = [(await self.http.get(f"/v1/jobs/{job_id}")).json() for job_id in self.ids.values()]
        for number, job_id in self.ids.items():
            answer = await self.sdk.chat.completions.retrieve(job_id)
            assert answer.choices[0].message.content == _text(number)
        listed = (await self.http.get("/v1/jobs", params={"limit": 100})).json()["data"]
        assert {job["id"] for job in listed} == set(self.ids.values())
        assert len(listed) == JOBS
        seen = await asyncio.to_thread(self.upstream.calls)
        counted = books.check(jobs, seen, await self._books(), most_repeated=IN_FLIGHT)
        self._check_costs(jobs)
        print(f"{dict(counted)}, all completed {seconds:.1f} s after the start")
        return counted

    async def _books(self) -> books.Books:
        """The books, once nothing waits in the outbox any more and no quota is held."""
        loaded = load(self.ours.config, {})
        if loaded.is_embedded:
            loaded = loaded.model_copy(update={"redis": valkey.url_of_running(self.ours.data / "valkey")})
        async with wiring.core(loaded.model_copy(update={"data": self.ours.data})) as core:
            async with asyncio.timeout(30):
                while await core.board.outbox("default"):
                    await asyncio.sleep(LOOK_S)
            for slot in ("{t:default}", "{b:light}", "{b:heavy}"):
                assert not await core.redis.zcard(f"{slot}:quota:leases"), slot
            return await books.Books.read(core.log)

    def _check_costs(self, jobs: list[Any]) -> None:
        """The sums of `pointsman costs` are those of the lines, to the last digit."""
        spent = sum((Decimal(line["usd"]) for job in jobs for line in job["pointsman"]["charges"]), Decimal(0))
        for by in ("tenant", "microbatch"):
            printed = self.ours.command("costs", "--by", by, "--json", "--data", str(self.ours.data))
            rows = [json.loads(line) for line in printed.splitlines()]
            assert sum((Decimal(row["usd"]) for row in rows), Decimal(0)) == spent, by
            assert sum(row["jobs"] for row in rows) == JOBS, by


def _text(number: int) -> str:
    """Each job has a length, and so a price, of its own."""
    return " ".join(["word"] * (number + 1))
