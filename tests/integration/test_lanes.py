"""What waits and runs in each lane, as a sweeper tells it to autoscalers and to people."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from consumers.lanes import Lanes, Load
from router.queues import KEPT_S, Queues, Told, Working
from tests.builders import Bench, a_bench

LANE = "echo.text.light"
TOPIC = f"jobs.{LANE}.standard"


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(redis, tmp_path) as bench:
        yield bench


def lanes_of(bench: Bench, clock: list[float]) -> Lanes:
    groups = {f"jobs.{LANE}.{queue}": "workers.echo" for queue in ("interactive", "standard", "bulk", "overflow")}
    return Lanes(bench.log, Queues(bench.scripts), groups, clock=lambda: clock[0])


async def test_a_lane_has_what_waits_what_runs_how_old_the_oldest_is_and_who_works_on_it(bench: Bench) -> None:
    lanes = lanes_of(bench, clock := [100.0])
    for _ in range(3):
        await bench.queued()
    await Queues(bench.scripts).tell("a worker", Told({TOPIC: Working(1, None, None)}))

    await lanes.count()

    clock[0] += 5.0
    load = lanes.of(LANE)
    assert (load.backlog, load.running, load.waiting, load.workers) == (3, 1, 2, 1)
    assert 5.0 <= load.oldest_s < 15.0
    assert lanes.by_queue()[LANE, "standard"] == load
    assert lanes.by_queue()[LANE, "bulk"] == Load()


async def test_jobs_that_all_run_do_not_ask_for_more_workers_however_long_they_take(bench: Bench) -> None:
    lanes = lanes_of(bench, clock := [0.0])
    await bench.queued()
    await Queues(bench.scripts).tell("a worker", Told({TOPIC: Working(1, None, None)}))

    await lanes.count()

    clock[0] += 10.0
    assert lanes.of(LANE) == Load(backlog=1, running=1, oldest_s=0.0, workers=1)


async def test_what_was_counted_too_long_ago_is_not_told(bench: Bench) -> None:
    lanes = lanes_of(bench, clock := [0.0])
    known = [lanes.is_known]
    await lanes.count()
    for later in (0.0, KEPT_S, 1.0):
        clock[0] += later
        known.append(lanes.is_known)

    assert known == [False, True, True, False]
