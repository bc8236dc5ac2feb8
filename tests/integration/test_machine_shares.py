"""What machines cost is on the jobs that ran there, and adds up by microbatch and batch: once, whatever is repeated."""

import asyncio
import json
import time
from decimal import Decimal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from consumers.gpu.machine_bills import MachineBills
from consumers.gpu.places import Ended, Places, Seen
from policies.machine_time import Phase, allocated
from policies.pricing import picodollars
from policies.scripts import Scripts
from router.costs import machines
from router.job import Line
from router.machine_shares import Kind, MachineShares, Window, busy
from tests.builders import Bench, a_bench, a_charge, date_of, until

GPU = "gpu-1:8000"

A_DAY_MS = 1_796_000_000_000
DAY = date_of(A_DAY_MS / 1000)


def a_bill(began: int, *shares: tuple[str, int, str], replica: str = "gpu-1", deployment: str = "small") -> str:
    rows = [{"tenant": "acme", "job": job, "attempt": attempt, "usd": usd} for job, attempt, usd in shares]
    head = {"deployment": deployment, "replica": replica, "from_ms": A_DAY_MS + began, "to_ms": A_DAY_MS + began + 10}
    return json.dumps({**head, "idle_usd": {"warm_up": "0"}, "shares": rows})


async def sums(bench: Bench, kind: Kind, name: str) -> dict[Window, int]:
    [found] = await busy(bench.redis, "acme", kind, [name])
    return dict(found)


async def test_a_job_s_share_is_on_the_job_and_in_its_microbatch_however_often_a_bill_is_told(
    redis: "Redis", tmp_path: Path, scripts: Scripts
) -> None:
    shares = MachineShares(scripts)
    async with a_bench(redis, tmp_path) as bench:
        job = await bench.job()
        assert (await bench.view(job)).machine_usd is None
        await bench.board.claim(job, "owner", lease_s=10)
        await bench.board.start(job, "owner", most_deliveries=3, microbatch="mb_1")
        first, second = a_bill(0, (job.id, 1, "0.000001000001")), a_bill(10, (job.id, 1, "0.5"))
        for bill in (first, first, second, first, second):
            await shares.add(bill)
        await shares.add(a_bill(0, (job.id, 1, "0.25"), replica="gpu-2"))

        assert (await bench.view(job)).machine_usd == Decimal("0.750001000001")
        assert await sums(bench, "microbatch", "mb_1") == {("small", DAY): 750_001_000_001}


async def test_an_earlier_attempt_s_share_is_in_the_microbatch_that_it_was_charged_in(
    redis: "Redis", tmp_path: Path, scripts: Scripts
) -> None:
    async with a_bench(redis, tmp_path) as bench:
        job = await bench.job()
        await bench.board.claim(job, "owner", lease_s=10)
        await bench.board.start(job, "owner", most_deliveries=3, microbatch="mb_1")
        await bench.board.close_attempt(job, a_charge(job, 1, microbatch="mb_1", outcome="failed"))
        await bench.board.release(job, "owner", undo_delivery=False)
        await bench.board.claim(job, "owner", lease_s=10)
        await bench.board.start(job, "owner", most_deliveries=3, microbatch="mb_2")
        await MachineShares(scripts).add(a_bill(0, (job.id, 1, "0.1"), (job.id, 2, "0.02")))

        assert await sums(bench, "microbatch", "mb_1") == {("small", DAY): 100_000_000_000}
        assert await sums(bench, "microbatch", "mb_2") == {("small", DAY): 20_000_000_000}


async def test_a_job_that_the_board_has_forgotten_leaves_nothing_behind(redis: "Redis", scripts: Scripts) -> None:
    await MachineShares(scripts).add(a_bill(0, ("01M8MKNG874AXM83H6QBCYG089", 1, "0.1")))

    assert [key async for key in redis.scan_iter("{t:acme}:job:*")] == []


async def test_microbatches_and_batches_show_busy_allocated_and_all_that_the_machines_cost(
    redis: "Redis", tmp_path: Path, scripts: Scripts
) -> None:
    shares = MachineShares(scripts)

    async def append(id: str, record: str) -> None:
        await shares.add(record)

    places, bills = Places(scripts), MachineBills(scripts, append)
    async with a_bench(redis, tmp_path) as bench:
        await redis.hset("{t:acme}:batch:B", "state", "in_progress")  # what its driver does
        jobs = [await bench.job(), await bench.job(line=Line("B", "c-1")), await bench.job()]
        await places.sync("small", [Seen(GPU, "{}", phase=Phase.WARM_UP)])
        await asyncio.sleep(0.3)
        await places.sync("small", [Seen(GPU, "{}", phase=Phase.UP)])
        for number, job in enumerate(jobs):
            await bench.board.claim(job, "owner", lease_s=10)
            await bench.board.start(job, "owner", most_deliveries=3, microbatch=f"mb_{number}")
            await places.take("small", f"{job.id}.1", [(GPU, 8)], billed_to="acme")
            await asyncio.sleep(0.1)
        await places.keep("small", [], [Ended(GPU, f"{job.id}.1", 10) for job in jobs])
        for number, job in enumerate(jobs):
            await bench.board.close_attempt(job, a_charge(job, 1, microbatch=f"mb_{number}"))
        await until(lambda: _is_billed(bills))
        await bills.publish("small")
        await bills.publish("small")

        rows = await bench.costs("microbatch")
        today = sorted({date_of(time.time()), date_of(time.time() - 3600)})
        machine = await machines(redis, ["small"], days=today)
        [of_batch] = await busy(redis, "acme", "batch", ["B"])

    parts = [part for row in rows for part in row.machines.values()]
    assert [row.name for row in rows] == ["mb_0", "mb_1", "mb_2"]
    assert sum(part.busy for part in parts) == picodollars(machine.busy) > 0
    assert sum(part.allocated for part in parts) == picodollars(machine.usd) > picodollars(machine.busy)
    assert {part.total for part in parts} == {picodollars(machine.usd)}
    assert all(part.busy < part.allocated < part.total for part in parts)
    assert list(of_batch.values()) == [part.busy for part in rows[1].machines.values()]


async def _is_billed(bills: MachineBills) -> bool:
    return await bills.write("small", GPU, Decimal("3.6")) is not None


@pytest.mark.parametrize(("total", "parts"), [(100, [10, 20, 30]), (7, [3, 3, 1]), (1, [1, 1, 1]), (0, [5])])
def test_what_is_allocated_to_everybody_is_all_that_there_was(total: int, parts: list[int]) -> None:
    found = allocated(total, parts, sum(parts))

    assert sum(found) == total
    assert allocated(total, [0, 0], 0) == [0, 0]
