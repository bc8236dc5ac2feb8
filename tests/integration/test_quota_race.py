"""Three processes and sixty calls compete for the same quotas, and one process is killed.

Takes POINTSMAN_TEST_RACE_S seconds, 10 without it.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from redis.asyncio import Redis

from policies.quota import Part, Quotas
from policies.scripts import Scripts
from tests.builders import until
from tests.integration.quota_racer import (
    BURST_S,
    CONCURRENCY,
    DEPLOYMENTS_CONCURRENCY,
    HOLD_S,
    PLENTY,
    RPM,
    TPM,
    WEBS_CONCURRENCY,
    scopes,
)

SECONDS = float(os.environ.get("POINTSMAN_TEST_RACE_S", "10"))
WORKERS = 20


@dataclass
class Told:
    """What the processes have said of their calls."""

    granted: dict[str, tuple[float, int]] = field(default_factory=dict)
    ended: dict[str, tuple[float, int]] = field(default_factory=dict)
    refused: int = 0

    def hear(self, line: bytes) -> None:
        said = json.loads(line)
        if "granted" in said:
            self.granted[said["rid"]] = (said["granted"], said["estimate"])
        elif "ended" in said:
            self.ended[said["rid"]] = (said["ended"], said["used"])
        else:
            self.refused += said["refused"]

    def at_once(self, of: str = "", *, since: float = 0.0) -> int:
        """The most calls that ran at once, of those whose names begin so."""
        mine = [(rid, at) for rid, (at, _) in self.granted.items() if rid.startswith(of) and rid in self.ended]
        steps = sorted([(at, 1) for _, at in mine] + [(self.ended[rid][0], -1) for rid, _ in mine])
        running = most = 0
        for at, step in steps:
            running += step
            most = max(most, running) if at >= since else most
        return most


@pytest.mark.timeout(SECONDS + 60)
async def test_three_processes_keep_to_every_limit_and_one_that_dies_takes_nothing_with_it(
    redis_url: str, redis: "Redis"
) -> None:
    told, began = Told(), monotonic()
    racers = [await _a_racer(redis_url, name) for name in "012"]
    listening = [asyncio.create_task(_listen(racer, told)) for racer in racers]

    await until(lambda: monotonic() - began > SECONDS / 2, within=SECONDS)
    racers[1].kill()
    killed = monotonic()
    await asyncio.gather(*listening)
    elapsed = max(at for at, _ in told.ended.values()) - min(at for at, _ in told.granted.values())

    assert told.refused > 0
    assert [await racer.wait() for racer in racers] == [0, -9, 0]
    # As many at once as may be, with the dead one's places as soon as its leases are over.
    assert told.at_once() == min(CONCURRENCY, DEPLOYMENTS_CONCURRENCY)
    assert told.at_once("2") == WEBS_CONCURRENCY
    assert told.at_once(since=killed + HOLD_S + 0.5) == min(CONCURRENCY, DEPLOYMENTS_CONCURRENCY)
    # Never more than the buckets held and gained; what was used beyond an estimate is the debt of the last ones.
    assert len(told.granted) <= RPM / 60 * (BURST_S + elapsed) + 1
    used = sum(tokens for _, tokens in told.ended.values())
    assert used <= TPM / 60 * (2 * BURST_S + elapsed)


@pytest.mark.timeout(SECONDS + 60)
async def test_what_is_counted_is_what_was_used_to_the_last_token(redis_url: str, redis: "Redis") -> None:
    told = Told()
    racers = [await _a_racer(redis_url, name, seconds=SECONDS / 4) for name in "012"]
    listening = [asyncio.create_task(_listen(racer, told)) for racer in racers]
    await until(lambda: len(told.ended) > 20, within=SECONDS)
    racers[1].kill()
    await asyncio.gather(*listening)
    for racer in racers:
        await racer.wait()

    parts = [part for scope in scopes("ci") for part in scope.parts]
    held = [await _held(redis, slot) for slot in ("{t:acme}", "{b:small}")]
    for part, open_calls in [(parts[1], held[0]), (parts[3], held[1])]:
        assert await _of_today(redis, part) == _spent(told, open_calls)
    assert await _dollars(redis, parts[0]) == Decimal(_spent(told, held[0])).scaleb(-6)
    assert told.refused > 0
    for slot, open_calls in zip(("{t:acme}", "{b:small}"), held, strict=True):
        for rid in open_calls:
            await Quotas(Scripts(redis)).release(slot, rid)
    assert not any([await redis.zcard(f"{part.key}:leases") for part in parts])
    assert not [key async for key in redis.scan_iter("*:held:*")]


@pytest.mark.timeout(60)
async def test_three_processes_spend_one_budget_and_not_one_each(redis_url: str, redis: "Redis") -> None:
    told, budget = Told(), Decimal("0.02")
    racers = [await _a_racer(redis_url, name, seconds=4.0, budget=budget) for name in "012"]
    await asyncio.gather(*(_listen(racer, told) for racer in racers))
    assert [await racer.wait() for racer in racers] == [0, 0, 0]

    spent = Decimal(sum(used for _, used in told.ended.values())).scaleb(-6)
    assert told.ended.keys() == told.granted.keys()
    assert told.refused > 0
    assert budget - Decimal("0.0006") <= spent <= budget  # nothing is left that the largest call would fit into
    assert await _dollars(redis, scopes("ci", budget)[0].parts[0]) == spent


async def _a_racer(
    url: str, name: str, *, seconds: float = SECONDS, budget: Decimal = PLENTY
) -> asyncio.subprocess.Process:
    arguments = (url, name, str(WORKERS), str(seconds), str(budget))
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.quota_racer",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )


async def _listen(racer: asyncio.subprocess.Process, told: Told) -> None:
    assert racer.stdout is not None
    async for line in racer.stdout:
        if line.endswith(b"\n"):  # a killed process' last one may be cut
            told.hear(line)


async def _held(redis: "Redis", slot: str) -> dict[str, int]:
    """The reservations that nobody has settled, and their tokens."""
    found: dict[str, int] = {}
    async for key in redis.scan_iter(f"{slot}:quota:held:*"):
        parts: Any = await redis.hgetall(key)
        words = [value.split() for name, value in parts.items() if name != b"at"]
        found[key.decode().partition(":held:")[2]] = max(int(word[7]) for word in words)
    return found


def _spent(told: Told, reserved: Mapping[str, int]) -> int:
    return sum(reserved.values()) + sum(tokens for rid, (_, tokens) in told.ended.items() if rid not in reserved)


async def _of_today(redis: "Redis", part: Part) -> int:
    days: Any = await redis.hvals(f"{part.key}:day")
    return sum(map(int, days))


async def _dollars(redis: "Redis", part: Part) -> Decimal:
    months: Any = await redis.hvals(f"{part.key}:usd")
    return Decimal(sum(map(int, months))).scaleb(-9)
