"""A driver that dies between any two of its steps: another one goes on, and every line is done and written once.

A step is what has an effect outside the process: a script in Redis, an append to the log, an object in the store.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from ulid import ULID

from consumers.sweeper import Sweeper
from gateway import wiring
from gateway.accept import Desk
from gateway.attached import Attached
from gateway.batch_course import Bounds, Tools
from gateway.batch_driver import Driver
from gateway.cancel import Cancel
from gateway.delivery import Delivery
from gateway.settings import Settings
from policies.quota import Quotas
from policies.scripts import Scripts
from router import rebuild, topics
from router.batches import Batch, Batches, BatchState, Created, Order
from router.board import Board
from router.files import Purpose, file_path
from router.outbox import Outbox
from router.shares import Shares
from router.wakeups import Wakeups
from router.webhooks import Webhooks
from tests.builders import until
from tests.integration.test_crash_points import Killed, Life

TENANTS = 250
AT_ONCE = 12
LEASE_S = 0.4
SETTLED_S = 30.0
STRIDE = int(os.environ.get("POINTSMAN_TEST_STRIDE", "5"))  # from one moment to the next
BIG = "b " * 20_000  # its answer goes to the object store

Lines = Sequence[tuple[str, dict[str, Any]]]

COMPLETED: Lines = (
    ("plain", {"content": "hello"}),
    ("big", {"content": BIG}),
    ("failed", {"content": "fail:rejected"}),
    ("refused", {"content": "hello", "temperature": 9}),
    ("last", {"content": "bye"}),
)
CANCELLED: Lines = (
    ("done1", {"content": "hello"}),
    ("done2", {"content": "hello"}),
    *((f"slow{number}", {"content": "wait:60"}) for number in range(4)),
)


@dataclass(slots=True)
class World:
    """What outlives a driver: Redis, the log, the objects, a worker, a sweeper. Each case has a tenant of its own."""

    core: wiring.Core
    scripts: Scripts
    begun: list[str]

    @classmethod
    @asynccontextmanager
    async def open(cls, redis_url: str, folder: Path) -> AsyncGenerator["World"]:
        price = {"input": "0.123457", "output": "0.654321"}
        light = {"backend": "echo", "model": "light", "tier": "light", "window": 100_000, "max_output": 30_000}
        settings = Settings.model_validate(
            {
                "redis": redis_url,
                "data": folder,
                "tenants": {f"case{number}": {} for number in range(TENANTS)},
                "worker": {"concurrency": 500},
                "deployments": {"light": {**light, "price": price, "limits": {"concurrency": 500}}},
            }
        )
        async with wiring.core(settings) as core, asyncio.TaskGroup() as tasks:
            await core.log.create(topics.all_topics(core.deployments))
            await rebuild.begin(core.log, core.board)
            world, stop = cls(core, Scripts(core.redis), []), asyncio.Event()
            sweeper = Sweeper(
                core.board, core.epoch, core.outbox, core.payloads, world.begun,
                lease_s=LEASE_S, every_s=0.2, unpublished_s=1.0, left_behind_s=0.5,
            )  # fmt: skip
            registry = CollectorRegistry()
            async with wiring.open_backend(core, "echo", registry) as backend:
                worker = wiring.worker(core, backend, "echo", registry)
                runs = [tasks.create_task(worker.run(stop)), tasks.create_task(sweeper.run(stop))]
                try:
                    yield world
                finally:
                    stop.set()
                    await asyncio.wait(runs)

    def driver(self, life: Life, tenant: str) -> Driver:
        """One with this life, for this tenant."""
        core, scripts = self.core, life.of(self.scripts)
        board, log, payloads, quotas = Board(scripts), life.of(core.log), life.of(core.payloads), Quotas(scripts)
        wakeups = Wakeups(core.redis, role="batches")
        attached = Attached(core.files, core.settings.http.max_body)
        desk = Desk(board, core.epoch, log, quotas, payloads, core.tenants, core.deployments, Shares(), attached)
        outbox = Outbox(board, log, quotas, core.deployments, Webhooks(scripts, core.tenants), core.replies)
        tools = Tools(
            batches=Batches(scripts, most_unfinished=10),
            board=board,
            desk=desk,
            outbox=outbox,
            cancel=Cancel(board, core.epoch, outbox, lambda job, state: None),
            payloads=payloads,
            delivery=Delivery(board, core.epoch, wakeups, payloads, most=1),
            tenants=core.tenants,
            deployments=core.deployments,
            bounds=Bounds(most_lines=100, longest_line=1_000_000, most_open=4, file_ttl_s=3600),
        )
        shared = Wakeups(core.redis, channel="batches")
        return Driver(tools, wakeups, shared, (tenant,), lease_s=LEASE_S, look_s=0.1)

    async def batch(self, lines: Lines) -> Batch:
        """A new one, of a tenant that nothing has happened to yet."""
        tenant = f"case{len(self.begun)}"
        self.begun.append(tenant)
        content, file_id = b"".join(map(_line, lines)), str(ULID())
        await self.core.payloads.put(file_path(tenant, file_id), content)
        await self.core.files.add(tenant, file_id, name="in.jsonl", purpose=Purpose.BATCH, size=len(content))
        order = Order("/v1/chat/completions", file_id, len(content), 3600.0, {}, "", "")
        made = await self.core.batches.create(tenant, str(ULID()), order, idempotency=None)
        assert isinstance(made, Created)
        return await self.now(tenant, made.id)

    async def now(self, tenant: str, batch_id: str) -> Batch:
        """It as it is."""
        batch = await self.core.batches.view(tenant, batch_id)
        assert batch is not None
        return batch

    async def rows(self, batch: Batch, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of one of its files."""
        if file_id is None:
            return []
        pieces = [piece async for piece in self.core.payloads.stream(file_path(batch.tenant, file_id))]
        return [json.loads(line) for line in b"".join(pieces).splitlines()]


@pytest.fixture
async def world(redis: Any, redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with World.open(redis_url, tmp_path) as world:
        yield world


async def case(world: World, lines: Lines, moment: int | None, *, cancel: bool) -> tuple[Batch, list[str]]:
    """A batch whose first driver dies at that moment; how it ended, and the steps that the driver had taken."""
    batch, life, stop = await world.batch(lines), Life(moment), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        cancelling = tasks.create_task(_cancelled_once_it_runs(world, batch)) if cancel else None
        first = tasks.create_task(_until_it_dies(world.driver(life, batch.tenant), stop))
        if moment is not None:
            await asyncio.wait([first], timeout=SETTLED_S)
            assert life.is_over, "it has fewer steps than that"
            second = tasks.create_task(_until_it_dies(world.driver(Life(), batch.tenant), stop))
        try:
            await until(lambda: _is_over(world, batch), within=SETTLED_S)
        finally:
            stop.set()
        await asyncio.wait([first] if moment is None else [first, second])
        if cancelling is not None:
            await cancelling
    return await world.now(batch.tenant, batch.id), life.steps


@pytest.mark.parametrize(("lines", "cancel"), [(COMPLETED, False), (CANCELLED, True)], ids=["completed", "cancelled"])
async def test_whenever_its_driver_dies_each_line_is_done_and_written_once(
    world: World, lines: Lines, cancel: bool
) -> None:
    whole, steps = await case(world, lines, None, cancel=cancel)
    at_once = asyncio.Semaphore(AT_ONCE)

    async def at(moment: int) -> Batch | None:
        async with at_once:
            with suppress(AssertionError):  # the steps of one life are not always as many
                return (await case(world, lines, moment, cancel=cancel))[0]
            return None

    died = await asyncio.gather(*(at(moment) for moment in range(0, 2 * len(steps), STRIDE)))

    ended = [batch for batch in died if batch is not None]
    assert len(ended) > len(died) // 2
    good = {custom_id for custom_id, _ in lines if custom_id.startswith(("plain", "big", "last", "done"))}
    for batch in [whole, *ended]:
        output, error = [await world.rows(batch, each) for each in (batch.output, batch.error)]
        assert Counter(row["custom_id"] for row in (*output, *error)) == Counter(custom_id for custom_id, _ in lines)
        if cancel:
            assert (batch.state, batch.failed) == (BatchState.CANCELLED, 0)
            assert {row["custom_id"] for row in output} <= good
        else:
            assert (batch.state, batch.completed, batch.failed) == (BatchState.COMPLETED, 3, 2)
            assert {row["custom_id"] for row in output} == good
            assert batch.attempts == 4, "a line was run twice"
        paid = [Decimal(row["pointsman"]["usd"]) for row in (*output, *error) if row["pointsman"]]
        assert batch.completed == len(output)
        assert batch.usd == sum(paid)
    told = [json.loads(delivery.record.value) async for delivery in world.core.log.read(topics.EVENTS)]
    ends = Counter(event["data"]["id"] for event in told if event["type"].startswith("batch."))
    assert {f"batch_{batch.id}" for batch in [whole, *ended]} <= ends.keys()


async def _until_it_dies(driver: Driver, stop: asyncio.Event) -> None:
    try:
        await driver.run(stop)
    except BaseExceptionGroup as group:
        _, rest = group.split(Killed)
        if rest is not None:
            raise rest from None


async def _is_over(world: World, batch: Batch) -> bool:
    """Whether it has ended, and nothing of it is left behind."""
    redis, prefix = world.core.redis, f"{{t:{batch.tenant}}}:"
    return not await redis.exists(f"{prefix}batches:active", f"{prefix}outbox", f"{prefix}unfinished")


async def _cancelled_once_it_runs(world: World, batch: Batch) -> None:
    """The client cancels it when its first lines are done, or have been for a while."""

    async def is_done() -> bool:
        return (await world.now(batch.tenant, batch.id)).completed == 2

    await until(is_done, within=SETTLED_S)
    await world.core.batches.cancel(batch.tenant, batch.id)


def _line(line: tuple[str, dict[str, Any]]) -> bytes:
    custom_id, fields = line
    message = {"role": "user", "content": fields["content"]}
    body = {"model": "light", "messages": [message], **{name: fields[name] for name in fields if name != "content"}}
    asked = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(asked).encode() + b"\n"
