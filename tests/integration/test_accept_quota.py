"""Quotas at the door and in the worker: the same parts, reserved once, told exactly."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from math import ceil
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from consumers.sweeper import Sweeper
from gateway import render
from gateway.accept import Acceptance, Desk, OverQuotaError, QueueFullError
from gateway.attached import Attached
from gateway.errors import as_api_error
from gateway.openai import parse_chat
from policies.deployments import Limits
from policies.keys import KeyHolder
from policies.quota import Kind, Quotas, Scope, Shadow, deployment_scope, tenant_scope
from policies.scripts import Script, Scripts, Value
from policies.tenants import Tenant
from router.board import Board
from router.epoch import Epoch
from router.files import Files
from router.job import JobClass
from router.shares import Shares
from tests.builders import Bench, a_bench, a_deployment, a_sweeper, entries, until

CI, WEB = KeyHolder("acme", "0123456789abcdef", "ci"), KeyHolder("acme", "fedcba9876543210", "web")
LANE = "jobs.echo.text.light.interactive"
ACME = Tenant(
    "acme",
    Limits(requests_per_minute=1, burst_s=3600),
    key_limits={"ci": Limits(requests_per_minute=2, burst_s=60, tokens_per_day=10_000)},
    model_limits={"small": Limits(tokens_per_day=10_000)},
)
TENANTS = [
    ACME,
    Tenant("poor", Limits(usd_per_month=Decimal(0))),
    Tenant("small", Limits(concurrency=1), max_unfinished=0),
    Tenant("tried", Limits(concurrency=1, shadow=True), key_limits={"ci": Limits(requests_per_minute=1, shadow=True)}),
]


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(redis, tmp_path, deployments=[a_deployment()], tenants=TENANTS) as bench:
        yield bench


async def ask(bench: Bench, holder: KeyHolder, *, waits: bool = True, scripts: Scripts | None = None) -> Acceptance:
    """A request at the door, of a process that has these scripts."""
    desk = Desk(
        board=Board(scripts) if scripts else bench.board,
        epoch=Epoch(bench.board),
        log=bench.log,
        quotas=Quotas(scripts) if scripts else bench.quotas,
        payloads=bench.payloads,
        tenants=bench.tenants,
        deployments=bench.deployments,
        shares=Shares(),
        attached=Attached(Files(bench.scripts, bench.payloads, most_bytes=10**9, ttl_s=60), 10**9),
    )
    values = {"model": "small", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 50}
    return await desk.accept(
        holder,
        parse_chat(values),
        endpoint="/v1/chat/completions",
        raw=json.dumps(values).encode(),
        values=values,
        channel="http:1" if waits else "",
    )


async def test_the_headers_are_those_of_the_tightest_part_and_a_refusal_is_exact(bench: Bench) -> None:
    first = await ask(bench, CI)
    second = await ask(bench, CI)
    with pytest.raises(OverQuotaError) as refused:
        await ask(bench, CI)
    other = await ask(bench, WEB)

    assert render.rate_headers(first.rooms)["x-ratelimit-remaining-requests"] == "1"
    headers = render.rate_headers(second.rooms)
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("2", "0")
    assert headers["x-ratelimit-limit-tokens"] == "10000"
    told = as_api_error(refused.value, request_id="r")
    assert (told.status, told.type) == (429, "requests")
    assert "requests_per_minute of key ci of tenant acme" in told.message
    wait_ms = int(told.all_headers["retry-after-ms"])
    assert 20_000 < wait_ms <= 30_000
    assert int(told.all_headers["retry-after"]) == ceil(wait_ms / 1000)
    assert told.all_headers["x-ratelimit-remaining-requests"] == "0"
    assert render.rate_headers(other.rooms)["x-ratelimit-remaining-requests"] == "57"  # 60, and three were granted


async def test_a_budget_is_no_matter_of_waiting(bench: Bench) -> None:
    with pytest.raises(OverQuotaError) as refused:
        await ask(bench, KeyHolder("poor", "k"))

    told = as_api_error(refused.value, request_id="r")
    assert (told.status, told.code, told.retry) == (429, "insufficient_quota", False)
    assert "retry-after" not in told.all_headers


async def test_what_is_refused_for_another_reason_takes_no_quota(bench: Bench, redis: "Redis") -> None:
    with pytest.raises(QueueFullError):
        await ask(bench, KeyHolder("small", "k"))

    assert await redis.zcard("{t:small}:quota:leases") == 0
    assert await redis.keys("*:held:*") == []


async def test_the_worker_settles_the_parts_that_the_door_reserved(bench: Bench, redis: "Redis") -> None:
    accepted = await ask(bench, CI)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.worker().run(stop))
        [view] = await bench.ended(accepted.view.job)
        stop.set()

    [record] = await entries(redis, LANE)
    assert (record[b"h:key"], record[b"h:limited-key"], record[b"h:reserved"]) == (CI.id.encode(), b"ci", b"1")
    used = sum(line.quantity for line in view.charges)
    for part in tenant_scope(ACME, deployment="small", key="ci").parts[1:]:
        days: Any = await redis.hvals(f"{part.key}:day")
        assert [int(day) for day in days] == [used]
    assert await redis.keys("*:held:*") == []


async def test_a_job_that_nobody_waits_for_has_its_quota_reserved_by_the_worker(bench: Bench, redis: "Redis") -> None:
    accepted = await ask(bench, WEB, waits=False)

    assert not accepted.view.job.is_reserved and accepted.view.job.limited_key == ""
    assert await redis.keys("*:held:*") == []
    for _ in range(5):  # over its own limit, which it waits for on the log
        await ask(bench, CI, waits=False)


async def test_shadows_are_told_and_refuse_nothing(bench: Bench) -> None:
    tried = replace(CI, tenant="tried")

    verdicts = [(await ask(bench, tried)).shadows for _ in range(2)]

    assert verdicts == [
        (),
        (
            Shadow("concurrency", Kind.TENANT, "tenant tried"),
            Shadow("requests_per_minute", Kind.KEY, "key ci of tenant tried"),
        ),
    ]


class Killed(BaseException):
    """The process has ended here. A real one would not even raise."""


class MortalScripts(Scripts):
    """Those of a process that is killed once its quota is reserved: it does nothing any more."""

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Value], *, durable: bool = False) -> object:
        if script.name != "quota_reserve":
            raise Killed
        return await super().run(script, keys, args, durable=durable)


async def reserved(bench: Bench, scope: Scope) -> dict[str, object]:
    """All that is taken of the limits: places, dollars, the day's tokens, and what the buckets lack."""
    redis, taken = bench.redis, dict[str, object]()
    for part in scope.parts:
        taken[f"{part.name}, places"] = await redis.zcard(f"{part.key}:leases")
        for what in ("usd", "day"):
            used = cast("list[bytes]", await redis.hvals(f"{part.key}:{what}"))
            taken[f"{part.name}, {what}"] = sum(int(each) for each in used)
        for bucket, limit in (("requests", part.requests), ("tokens", part.tokens)):
            level = await redis.hget(f"{part.key}:{bucket}", "l")
            taken[f"{part.name}, {bucket}"] = 0 if level is None or limit is None else limit.burst - float(level) > 1e-6
    return taken


ALL_KINDS = Limits(600, 60_000, concurrency=1, usd_per_month=Decimal(9), tokens_per_day=10_000)


async def test_what_a_door_had_reserved_that_died_before_its_job_was_on_the_board_is_given_back(
    redis: "Redis", tmp_path: Path
) -> None:
    tenant = Tenant("acme", ALL_KINDS, key_limits={"ci": ALL_KINDS})
    scope = tenant_scope(tenant, deployment="small", key="ci")
    async with a_bench(redis, tmp_path, deployments=[a_deployment()], tenants=[tenant]) as bench:
        with suppress(Killed):
            await ask(bench, CI, scripts=MortalScripts(redis))
        before = await reserved(bench, scope)
        await a_sweeper(bench, unpublished_s=60.0).sweep()
        too_soon = await reserved(bench, scope)
        sweeper = a_sweeper(bench, unpublished_s=0.3)
        await until(lambda: _is_given_back(bench, sweeper))

        assert all(before.values()) and len(before) == 10
        assert too_soon == before
        assert not any((await reserved(bench, scope)).values())
        await ask(bench, CI)


async def test_of_a_deployment_the_door_takes_nothing_and_its_places_refuse_nobody(
    redis: "Redis", tmp_path: Path
) -> None:
    deployment = a_deployment(limits=ALL_KINDS)
    async with a_bench(redis, tmp_path, deployments=[deployment], tenants=[Tenant("acme")]) as bench:
        first, second = await ask(bench, CI), await ask(bench, WEB)
        taken = await reserved(bench, deployment_scope(deployment))

    assert not any(taken.values()) and len(taken) == 5
    assert not first.view.job.is_reserved
    for accepted in (first, second):  # as if they were there alone
        # Half a second's are kept back.
        assert render.rate_headers(accepted.rooms)["x-ratelimit-remaining-requests"] == "594"


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        (Limits(requests_per_minute=1.5, burst_s=1), 40),
        (Limits(tokens_per_minute=60, burst_s=50), 47),
    ],
    ids=["requests", "tokens"],
)
async def test_who_would_wait_too_long_for_a_deployment_is_told_at_the_door_how_long(
    redis: "Redis", tmp_path: Path, limits: Limits, seconds: int
) -> None:
    deployment = a_deployment(limits=limits)
    async with a_bench(redis, tmp_path, deployments=[deployment], tenants=[Tenant("acme")]) as bench:
        asks: Any = {"tokens": 50, "usd": None, "hold_s": 60.0, "ttl_s": 600.0}
        await bench.quotas.reserve(deployment_scope(deployment), "somebody", **asks)
        with pytest.raises(OverQuotaError) as refused:
            await ask(bench, CI)

    assert refused.value.seconds == pytest.approx(seconds, abs=3)
    assert refused.value.scope == "deployment small"


async def test_who_waits_a_little_for_a_deployment_waits_its_turn(redis: "Redis", tmp_path: Path) -> None:
    deployment = a_deployment(limits=Limits(requests_per_minute=60, burst_s=1))
    async with a_bench(redis, tmp_path, deployments=[deployment], tenants=[Tenant("acme")]) as bench:
        asks: Any = {"tokens": 50, "usd": None, "hold_s": 60.0, "ttl_s": 600.0}
        await bench.quotas.reserve(deployment_scope(deployment), "somebody", **asks)

        accepted = await ask(bench, CI)

    assert accepted.view.job.job_class is JobClass.INTERACTIVE
    assert render.rate_headers(accepted.rooms)["x-ratelimit-remaining-requests"] == "0"


async def _is_given_back(bench: Bench, sweeper: Sweeper) -> bool:
    await sweeper.sweep()
    return await bench.redis.keys("*:held:*") == [] and await bench.redis.keys("*:unclaimed") == []


async def test_a_reservation_is_claimed_by_its_job_and_forgotten_with_a_refusal(bench: Bench, redis: "Redis") -> None:
    await ask(bench, CI)
    with pytest.raises(QueueFullError):
        await ask(bench, KeyHolder("small", "k"))

    assert await redis.keys("*:unclaimed") == []
