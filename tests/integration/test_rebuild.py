"""A board that was wiped or set back is noticed, and made anew from the log, on a real Valkey."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from policies.deployments import Limits
from policies.quota import Exhausted, tenant_scope
from policies.scripts import BoardUnavailableError
from policies.tenants import Tenant
from router.board import Finished
from router.epoch import Epoch
from router.job import Job, JobState
from router.rebuild import begin, rebuild
from tests.builders import Bench, a_bench, until

ANN = "worker:ann|jobs|1-0|1"


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(redis, tmp_path, tenants=[Tenant("acme", Limits(usd_per_month=Decimal("0.0001")))]) as bench:
        yield bench


@asynccontextmanager
async def working(bench: Bench) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.worker().run(stop))
        try:
            yield
        finally:
            stop.set()


async def wipe(bench: Bench) -> None:
    """Everything but the log, which on a cluster is on Kafka."""
    names = [name async for name in bench.redis.scan_iter(count=1000) if not name.startswith(b"log")]
    await bench.redis.delete(*names)


async def some_finished(bench: Bench, count: int = 5) -> list[Job]:
    jobs = [await bench.queued(f"hello number {number}") for number in range(count)]
    async with working(bench):
        await bench.ended(*jobs)
    return jobs


async def test_a_wiped_board_runs_nothing_until_it_is_rebuilt_and_then_repeats_nothing_and_loses_nothing(
    bench: Bench,
) -> None:
    finished = await some_finished(bench)
    queued = [await bench.queued(f"not yet {number}") for number in range(3)]
    spent_before = await bench.costs()
    await wipe(bench)

    async with working(bench):
        await until(lambda: _refuses(bench, queued[0]))
        attempts_before = len(await bench.charges())
        done = await rebuild(bench.log, bench.board)
        await until(lambda: _events(bench, len(finished) + len(queued)))

    assert (done.buried, done.recounted) == (len(finished), attempts_before)
    assert sorted(row["job"] for row in await bench.charges()) == sorted(job.id for job in [*finished, *queued])
    assert len(await bench.events()) == len(finished) + len(queued)
    [before], [after] = spent_before, await bench.costs()
    assert after.jobs == len(finished) + len(queued)
    lines = sum((Decimal(row["usd"]) for row in await bench.charges()), Decimal(0))
    assert after.usd == lines > before.usd


async def _refuses(bench: Bench, job: Job) -> bool:
    return await bench.board.epoch() is None and await bench.board.view(job.tenant, job.id) is None


async def _events(bench: Bench, count: int) -> bool:
    return len(await bench.events()) == count


async def test_rebuilt_tombstones_are_met_by_records_that_come_again(bench: Bench) -> None:
    [job] = await some_finished(bench, 1)
    await wipe(bench)
    await rebuild(bench.log, bench.board)

    assert await bench.board.claim(job, ANN, lease_s=20) == Finished(JobState.COMPLETED)


async def test_a_budget_is_as_used_after_the_rebuild_as_before(bench: Bench) -> None:
    await some_finished(bench, 8)
    scope = tenant_scope(bench.tenants["acme"])
    ask: dict[str, Any] = {"tokens": 1, "usd": Decimal("0.0001"), "hold_s": 1.0, "ttl_s": 60.0}
    before = await bench.quotas.reserve(scope, "before:1", **ask)
    await wipe(bench)
    unknown = await bench.quotas.reserve(scope, "unknown:1", **ask)
    await wipe(bench)
    await rebuild(bench.log, bench.board)

    after = await bench.quotas.reserve(scope, "after:1", **ask)

    assert isinstance(before, Exhausted) and isinstance(after, Exhausted)
    assert not isinstance(unknown, Exhausted), "without the rebuild the budget would be spent twice"


async def test_a_rebuild_may_run_twice_and_on_a_board_that_is_whole(bench: Bench) -> None:
    await some_finished(bench)
    before = await bench.costs()

    first = await rebuild(bench.log, bench.board)
    second = await rebuild(bench.log, bench.board)

    assert (first.buried, first.recounted) == (second.buried, second.recounted) == (0, 0)
    assert await bench.costs() == before


async def test_only_a_board_that_is_new_with_its_log_begins_by_itself(bench: Bench) -> None:
    await some_finished(bench, 1)
    await wipe(bench)
    await begin(bench.log, bench.board)
    lost = await bench.board.epoch()
    await bench.redis.flushdb()
    await bench.log.create(["jobs.events", "ledger.charges"])
    await begin(bench.log, bench.board)

    assert lost is None
    assert await bench.board.epoch() is not None


async def test_a_lost_board_is_not_ready_and_says_what_to_do(bench: Bench) -> None:
    epoch = Epoch(bench.board)
    await epoch.look()
    whole = epoch.fault
    await wipe(bench)
    await epoch.look()

    assert whole is None
    assert epoch.fault is not None and "pointsman board rebuild" in epoch.fault
    with pytest.raises(BoardUnavailableError):
        await bench.board.ping()


async def test_a_board_that_was_set_back_is_noticed_until_it_is_rebuilt(bench: Bench) -> None:
    epoch = Epoch(bench.board)
    for _ in range(10):
        await bench.board.beat()
    await epoch.look()
    await bench.redis.hset("board:epoch", "beat", "2")
    await epoch.look()
    set_back = epoch.fault
    await rebuild(bench.log, bench.board)
    await epoch.look()

    assert set_back is not None and "set back" in set_back
    assert epoch.fault is None
