"""What machines cost by day is there again after the board was lost: once, to the last picodollar."""

import time
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

from redis.asyncio import Redis

from consumers.gpu.machine_bills import MachineBills
from consumers.gpu.places import Ended, Places, Seen
from policies.machine_time import Phase
from router import topics
from router.costs import Machine, machines
from router.log import Record
from tests.builders import Bench, a_bench, date_of, records, until

GPU = "gpu-1:8000"
RATE = Decimal("12345.678901")  # dollars an hour


class Fleet:
    """One machine, whose calls are billed onto the bench's log."""

    def __init__(self, bench: Bench) -> None:
        self.is_lost = False
        self._bench = bench
        self._places = Places(bench.scripts)
        self.bills = MachineBills(bench.scripts, self._append, waits=lambda: self.is_lost)

    async def ran(self, *calls: str) -> None:
        """These calls ran there, and are billed."""
        await self._places.sync("small", [Seen(GPU, "{}", phase=Phase.UP)])
        for call in calls:
            await self._places.take("small", call, [(GPU, 8)], billed_to=f"tenant-{call[-3]}")
        await self._places.keep("small", [], [Ended(GPU, call, 7) for call in calls])
        await until(self._is_billed)
        await self.bills.publish("small")

    async def _is_billed(self) -> bool:
        return await self.bills.write("small", GPU, RATE) is not None

    async def _append(self, id: str, record: str) -> None:
        for _ in range(2):  # an id may come twice
            await self._bench.log.append(topics.CHARGES, Record(record.encode(), {"version": "1", "id": id}))


async def seen(bench: Bench) -> tuple[Sequence[Machine], dict[str, Decimal]]:
    now = time.time()
    found = await machines(bench.redis, ["small"], days=sorted({date_of(now), date_of(now - 3600)}))
    return found.each, dict(found.by_tenant)


async def test_the_sums_of_machines_are_there_again_and_what_is_billed_later_comes_on_top(
    redis: "Redis", tmp_path: Path
) -> None:
    async with a_bench(redis, tmp_path) as bench:
        fleet = Fleet(bench)
        await fleet.ran("job-a.1", "job-b.1")
        await fleet.ran("job-a.2")
        before = await seen(bench)
        await bench.wipe()
        assert (await seen(bench))[0] == []

        await bench.rebuild()
        assert await seen(bench) == before
        await bench.rebuild()
        assert await seen(bench) == before

        await fleet.ran("job-c.1")
        [machine], _ = await seen(bench)
        bills = await records(redis, topics.CHARGES)
        assert machine.usd == sum(Decimal(usd) for usd in {bill["id"]: bill["usd"] for bill in bills}.values())
        assert machine.tokens == 4 * 7


async def test_a_lost_board_bills_nothing_before_it_is_made_anew(redis: "Redis", tmp_path: Path) -> None:
    async with a_bench(redis, tmp_path) as bench:
        fleet = Fleet(bench)
        await fleet.ran("job-a.1")
        fleet.is_lost = True

        assert await fleet.bills.write("small", GPU, RATE) is None


async def test_a_board_that_was_set_back_does_not_bill_a_span_again(redis: "Redis", tmp_path: Path) -> None:
    async with a_bench(redis, tmp_path) as bench:
        fleet = Fleet(bench)
        await fleet.ran("job-a.1")
        names = ["{b:small}:" + name for name in ("billed", f"phases:{GPU}")]
        older = [await redis.dump(name) or b"" for name in names]
        await fleet.ran("job-b.1")
        for name, state in zip(names, older, strict=True):
            await redis.restore(name, 0, state, replace=True)
        await bench.rebuild()
        await fleet.ran("job-c.1")

        spans = sorted({(bill["from_ms"], bill["to_ms"]) for bill in await records(redis, topics.CHARGES)})
        assert len(spans) == 3
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
