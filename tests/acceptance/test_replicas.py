"""Many servers behind one deployment, through the real processes: one comes late, one dies, a worker is killed."""

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.acceptance.processes import Pointsman, kill, pointsman, until
from tests.engines import EngineDouble, engine_double
from tools.kafka.broker import free_ports

pytestmark = pytest.mark.timeout(150)

JOBS = 40


def settings(*engines: EngineDouble) -> dict[str, Any]:
    return {
        "worker": {"lease_s": 2, "health_port": 0, "first_wait_s": 0.1},
        "sweeper": {"health_port": 0},
        "tenants": {"default": {}},
        "deployments": {
            "chat": {
                "backend": "gpu",
                "model": "any",
                "tier": "light",
                "price": {"input": "0", "output": "0"},
                "replicas": {
                    "urls": [each.url for each in engines],
                    "cap": 4,
                    "probe_s": 0.2,
                    "slow_start_s": 0,
                    "usd_per_hour": "3.60",
                },
            }
        },
    }


def fleet(ours: Pointsman) -> dict[str, dict[str, Any]]:
    lines = ours.command("fleet", "--json", "--data", str(ours.data)).splitlines()
    return {row["replica"]: row for row in map(json.loads, lines)}


async def test_no_job_is_lost_when_a_server_dies_and_a_worker_is_killed(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with ExitStack() as opened:
        stays = opened.enter_context(engine_double("--slots", "4", "--decode", "20"))
        late = opened.enter_context(engine_double("--slots", "4", "--decode", "20", "--load-s", "6"))
        dying = ExitStack()
        opened.enter_context(dying)
        dies = dying.enter_context(engine_double("--slots", "4", "--decode", "20"))
        ours = opened.enter_context(pointsman(tmp_path, settings(stays, late, dies)))
        up = await ours.up(port).ready()
        [worker] = [pid for pid, command in ours.children(up).items() if "serve worker" in command]
        name = {each: each.url.removeprefix("http://") for each in (stays, late, dies)}
        await until(lambda: set(fleet(ours)) == set(name.values()), "the fleet is shown", within=20)
        async with ours.refusals.async_sdk(up.url, ours.key, max_retries=0) as client:
            jobs = [await _submit(client, number) for number in range(JOBS)]
            seen = fleet(ours)
            assert seen[name[stays]]["state"] == "ready"
            assert seen[name[stays]]["engine"] == "vllm"
            assert seen[name[stays]]["usd_per_hour"] == "3.60"
            assert sum(row["ours"] for row in seen.values()) <= 12

            assert "3.60" in ours.command("fleet", "--once", "--data", str(ours.data))

            dying.close()
            kill(worker)
            await until(lambda: fleet(ours)[name[dies]]["state"] == "down", "the dead one is down", within=20)

            states = await asyncio.gather(*(_ended(client, job) for job in jobs))
        calls = [await each.calls() for each in (stays, late)]
    assert states == ["completed"] * JOBS
    assert all(each["answered"] > 0 for each in calls)
    assert all(each["most_running"] <= 4 and each["most_waiting"] <= 1 for each in calls)


async def test_a_queued_job_is_told_that_its_model_is_warming_and_then_when_it_begins(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with ExitStack() as opened:
        late = opened.enter_context(engine_double("--slots", "4", "--decode", "4", "--mode", "loading"))
        ours = opened.enter_context(pointsman(tmp_path, settings(late)))
        up = await ours.up(port).ready()
        async with ours.refusals.async_sdk(up.url, ours.key, max_retries=0) as client:
            jobs = [await _submit(client, number) for number in range(JOBS)]

            warming = await _told(client, jobs[-1], "warming", within=20)
            assert warming["starts_in_s"] is None
            assert warming["attempts"] == 0
            await late.become("well")
            assert (await _told(client, jobs[-1], "starts_in_s", within=40))["starts_in_s"] < 60

            assert await asyncio.gather(*(_ended(client, job) for job in jobs)) == ["completed"] * JOBS
        bills = ours.command("costs", "--by", "replica", "--json", "--data", str(ours.data)).splitlines()
    [machine] = map(json.loads, bills)
    assert machine["tokens"] > 0
    assert 0 < float(machine["busy_usd"]) < float(machine["usd"])
    assert float(machine["idle_usd"]["warm_up"]) > 0


async def _told(client: AsyncOpenAI, job: str, name: str, *, within: float) -> Any:
    """What the job says of itself once it has that figure."""
    async with asyncio.timeout(within):
        while True:
            view: Any = await client.get(f"/jobs/{job}", cast_to=object)
            assert view["status"] == "queued", view
            if view["pointsman"][name]:
                return view["pointsman"]
            await asyncio.sleep(0.2)


async def _submit(client: AsyncOpenAI, number: int) -> str:
    answer = await client.chat.completions.with_raw_response.create(
        model="chat",
        messages=[{"role": "user", "content": f"Job {number}"}],
        max_tokens=10,
        extra_body={"async": True},
    )
    id: str = json.loads(answer.content)["id"]
    return id


async def _ended(client: AsyncOpenAI, job: str) -> str:
    async with asyncio.timeout(90):
        while True:
            view: Any = await client.get(f"/jobs/{job}?wait=20", cast_to=object)
            if view["status"] in ("completed", "failed", "cancelled", "expired"):
                return str(view["status"])
