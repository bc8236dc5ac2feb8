"""`kill -9` in the middle of fifty jobs on the embedded engine: all complete once, and every dollar is accounted for."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from gateway import valkey, wiring
from gateway.settings import load
from tests.acceptance import books
from tests.acceptance.processes import Pointsman, Process, is_alive, kill, pointsman, until
from tests.doubles import OpenAIDouble
from tools.kafka.broker import free_ports

JOBS = 50
SLOTS = 3  # of each of the two deployments: no more than six calls are open, or answered and not yet saved
LEASE_S = "2"
DONE_S = 50.0


@pytest.fixture
def ours(tmp_path: Path, upstream: OpenAIDouble) -> Iterator[Pointsman]:
    """Two priced deployments on the upstream double, which takes 300 ms for each answer."""
    with pointsman(tmp_path, settings(upstream), POINTSMAN_WORKER__LEASE_S=LEASE_S) as ours:
        yield ours


def settings(upstream: OpenAIDouble) -> dict[str, Any]:
    def deployment(tier: str, price: Mapping[str, str]) -> dict[str, Any]:
        return {
            "backend": "gpu",
            "url": f"{upstream.url}/v1",
            "model": "delay-300",
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


async def test_all_jobs_complete_once_after_the_whole_of_it_was_killed_but_for_its_valkey(
    ours: Pointsman, upstream: OpenAIDouble
) -> None:
    async def kill_up(up: Process) -> None:
        children = ours.children(up)
        valkey_pid = ours.valkey_pid()
        up.kill()
        # Their standard input has closed: they finish what runs, and end by themselves.
        orphans = [pid for pid in children if pid != valkey_pid]
        assert len(orphans) == 3
        await until(lambda: not any(map(is_alive, orphans)), "the children end", within=20)
        assert is_alive(valkey_pid)

    async with killed_in_the_middle(ours, upstream, kill_up, start_again=True) as (up, after):
        assert "valkey_taken_over" in up.output.read_text(encoding="utf-8")
        assert after["repeated"] == 0  # an orderly end repeats nothing


async def test_all_jobs_complete_once_after_its_worker_was_killed(ours: Pointsman, upstream: OpenAIDouble) -> None:
    async def kill_worker(up: Process) -> None:
        [worker] = [pid for pid, command in ours.children(up).items() if "serve worker" in command]
        kill(worker)

    async with killed_in_the_middle(ours, upstream, kill_worker, start_again=False) as (_, after):
        assert after["repeated"] == after["lost"]


async def test_all_jobs_complete_once_after_everything_was_killed_at_once(
    ours: Pointsman, upstream: OpenAIDouble
) -> None:
    async def kill_all(up: Process) -> None:
        everything = [up.pid, *ours.children(up), ours.valkey_pid()]
        kill(*everything)
        up.popen.wait()
        await until(lambda: not any(map(is_alive, everything)), "everything ends", within=10)

    async with killed_in_the_middle(ours, upstream, kill_all, start_again=True):
        pass


@asynccontextmanager
async def killed_in_the_middle(
    ours: Pointsman,
    upstream: OpenAIDouble,
    strike: Callable[[Process], Awaitable[None]],
    *,
    start_again: bool,
) -> AsyncIterator[tuple[Process, Mapping[str, int]]]:
    """Fifty jobs, the strike when half have completed, and the books when all have."""
    began = time.monotonic()
    [port] = free_ports(1)
    up = await ours.up(port).ready()
    async with openai.AsyncOpenAI(base_url=f"{up.url}/v1", api_key=ours.key) as client, client_of(up, ours) as http:
        ids = await asyncio.gather(*(submit(client, number) for number in range(JOBS)))
        await completed(http, JOBS // 2)
        print(f"half {time.monotonic() - began:.1f}")
        struck = await asyncio.to_thread(upstream.calls)
        await strike(up)
        print(f"struck {time.monotonic() - began:.1f}")
        if start_again:
            up = await ours.up(port).ready()
        print(f"again {time.monotonic() - began:.1f}")
        await completed(http, JOBS)
        print(f"all {time.monotonic() - began:.1f}")

        jobs = [(await http.get(f"/v1/jobs/{job_id}")).json() for job_id in ids]
        for number, job_id in enumerate(ids):
            answer = await client.chat.completions.retrieve(job_id)
            assert answer.choices[0].message.content == text(number)
        listed = (await http.get("/v1/jobs", params={"limit": 100})).json()["data"]
        assert {job["id"] for job in listed} == set(ids)
    after = books.check(
        jobs, await asyncio.to_thread(upstream.calls), await everything_published(ours), most_repeated=2 * SLOTS
    )
    check_costs(ours, jobs)
    print(f"open at the kill {struck.open}; {dict(after)}; {time.monotonic() - began:.1f} s")
    yield up, after


async def submit(client: openai.AsyncOpenAI, number: int) -> str:
    made = await client.chat.completions.create(
        model="light" if number % 2 else "heavy",
        messages=[{"role": "user", "content": text(number)}],
        extra_body={"async": True},
    )
    return made.id


def text(number: int) -> str:
    return " ".join(["word"] * (number + 1))


@asynccontextmanager
async def client_of(up: Process, ours: Pointsman) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {ours.key}"}
    async with httpx2.AsyncClient(base_url=up.url, headers=headers, timeout=30) as client:
        yield client


async def completed(http: httpx2.AsyncClient, least: int) -> None:
    """Return once so many jobs have completed."""
    deadline = time.monotonic() + DONE_S
    while True:
        page = await http.get("/v1/jobs", params={"status": "completed", "limit": 100})
        if len(page.json()["data"]) >= least:
            return
        assert time.monotonic() < deadline, f"only {len(page.json()['data'])} of {least} completed"
        await asyncio.sleep(0.05)


async def everything_published(ours: Pointsman) -> books.Books:
    """The books, once nothing waits in the outbox any more."""
    loaded = load(ours.config, {})
    url = valkey.url_of_running(ours.data / "valkey")
    assert url is not None
    async with wiring.core(loaded.model_copy(update={"redis": url, "data": ours.data})) as core:
        async with asyncio.timeout(30):
            while await core.board.outbox("default"):
                await asyncio.sleep(0.1)
        assert not await core.redis.zcard("{t:default}:quota:leases")
        return await books.Books.read(core.log)


def check_costs(ours: Pointsman, jobs: list[Any]) -> None:
    """The sums of `pointsman costs` are those of the lines, to the last digit."""
    spent = sum((Decimal(line["usd"]) for job in jobs for line in job["pointsman"]["charges"]), Decimal(0))
    for by in ("tenant", "batch"):
        printed = ours.command("costs", "--by", by, "--json", "--data", str(ours.data))
        rows = [json.loads(line) for line in printed.splitlines()]
        assert sum((Decimal(row["usd"]) for row in rows), Decimal(0)) == spent, by
        assert sum(row["jobs"] for row in rows) == JOBS, by
