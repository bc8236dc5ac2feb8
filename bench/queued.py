"""Whether a job costs more when many are queued: 200,000 of them against 1,000.

    python -m bench.queued [--many 200000] [--few 1000] [--rounds 8] [--log streams|kafka]

One `pointsman serve worker` on the echo backend, each of the board's writes on disk. While jobs are accepted the worker
stands still (SIGSTOP), so that it works on a full queue and nothing else happens meanwhile. The few are queued and
worked off some times over, before and after the many. Of those, the first are measured, half as many as of the few.
The end of each round, where the worker has not all its slots full, is left out.

The last line is one JSON object:

- `jobs`: how many were measured on either side
- `few` `many`: each with `worker_cpu_ms` `redis_cpu_ms` `cpu_ms` (both) for each job, `jobs_per_s`, and `rss_mb` of the
  worker after it
- `ratio`: `cpu_ms` with many queued over that with few

Exit code 1 when the ratio is over 1.1, or the worker's memory grew by more than a quarter.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import uvloop
from rich.console import Console
from rich.table import Table

from bench import jobs
from bench.crew import Member, crew
from bench.fill import fill
from bench.servers import TENANT, Stage, cpu_seconds, rss_mb, stage

SKIPPED = 0.05  # of a round, at its end
MOST_RATIO, MOST_GROWTH = 1.1, 1.25
LOOK_S = 0.002
LIMIT_S = 300.0


@dataclass(slots=True)
class Spent:
    """What a number of jobs took."""

    jobs: int = 0
    seconds: float = 0.0
    worker_s: float = 0.0
    redis_s: float = 0.0

    def since(self, earlier: "Spent") -> "Spent":
        """What was spent since then."""
        return Spent(
            self.jobs - earlier.jobs,
            self.seconds - earlier.seconds,
            self.worker_s - earlier.worker_s,
            self.redis_s - earlier.redis_s,
        )

    def add(self, more: "Spent") -> None:
        """One more round."""
        self.jobs += more.jobs
        self.seconds += more.seconds
        self.worker_s += more.worker_s
        self.redis_s += more.redis_s


@dataclass(frozen=True, slots=True)
class Cost:
    """For each job."""

    worker_cpu_ms: float
    redis_cpu_ms: float
    cpu_ms: float
    jobs_per_s: float
    rss_mb: int

    @classmethod
    def of(cls, spent: Spent, rss: float) -> "Cost":
        """Rounded for people."""
        each = 1000 / spent.jobs
        return cls(
            worker_cpu_ms=round(spent.worker_s * each, 3),
            redis_cpu_ms=round(spent.redis_s * each, 3),
            cpu_ms=round((spent.worker_s + spent.redis_s) * each, 3),
            jobs_per_s=round(spent.jobs / spent.seconds, 1),
            rss_mb=round(rss),
        )


def main() -> int:
    """Measure, print, and say with the exit code whether a long queue costs nothing."""
    given = _arguments()
    measured, few, many = uvloop.run(_measure(given))
    ratio = round(many.cpu_ms / few.cpu_ms, 3)
    table = Table("queued", *asdict(few), title=f"What a job costs; ratio {ratio}")
    for name, cost in ((given.few, few), (given.many, many)):
        table.add_row(f"{name:,}", *(str(value) for value in asdict(cost).values()))
    Console(width=100).print(table)
    print(json.dumps({"jobs": measured, "few": asdict(few), "many": asdict(many), "ratio": ratio}), flush=True)
    return 0 if ratio <= MOST_RATIO and many.rss_mb <= few.rss_mb * MOST_GROWTH else 1


async def _measure(given: argparse.Namespace) -> tuple[int, Cost, Cost]:
    """The few before and after the many, as a shared machine is not the same from one minute to the next."""
    few, _ = await _with_few(given)
    many, rss_of_many = await _with_many(given)
    again, rss_of_few = await _with_few(given)
    few.add(again)
    return many.jobs, Cost.of(few, rss_of_few), Cost.of(many, rss_of_many)


async def _with_few(given: argparse.Namespace) -> tuple[Spent, float]:
    async with _worker(given) as (place, worker, redis_pid):
        spent = Spent()
        for _ in range(given.rounds):
            async with _standing_still(worker):
                await fill(place, given.few, jobs.body)
            spent.add(await _round(place, worker, redis_pid, given.few, left=0))
        _say(f"{given.few} queued: {Cost.of(spent, rss_mb(worker.pid))}")
        return spent, rss_mb(worker.pid)


async def _with_many(given: argparse.Namespace) -> tuple[Spent, float]:
    async with _worker(given) as (place, worker, redis_pid):
        spent = Spent()
        async with _standing_still(worker):
            await fill(place, given.many, jobs.body)
        left = given.many
        for _ in range(given.rounds):
            spent.add(await _round(place, worker, redis_pid, given.few, left=left - given.few))
            left = await _left(place)
        _say(f"{given.many} queued: {Cost.of(spent, rss_mb(worker.pid))}")
        return spent, rss_mb(worker.pid)


@asynccontextmanager
async def _worker(given: argparse.Namespace) -> AsyncGenerator[tuple[Stage, Member, int]]:
    """Servers and a worker of their own, warm; and the process id of their Valkey."""
    async with stage(log=given.log) as place, crew(place) as ours:
        worker = await (await ours.worker("echo")).ready()
        await fill(place, given.few, jobs.body)
        redis_pid = int((await place.core.redis.info("server"))["process_id"])
        await _until(place, worker, redis_pid, 0)
        yield place, worker, redis_pid


@asynccontextmanager
async def _standing_still(worker: Member) -> AsyncGenerator[None]:
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker.pid, signal.SIGCONT)


async def _round(place: Stage, worker: Member, redis_pid: int, count: int, *, left: int) -> Spent:
    """What the middle of the next `count` jobs takes, down to so many `left`."""
    before = await _until(place, worker, redis_pid, left + count)
    after = await _until(place, worker, redis_pid, left + round(count * SKIPPED))
    await _until(place, worker, redis_pid, left)
    return after.since(before)


async def _until(place: Stage, worker: Member, redis_pid: int, most: int) -> Spent:
    """The figures as soon as at most so many are unfinished. `jobs` counts down from nothing, to be subtracted."""
    ends = time.monotonic() + LIMIT_S
    while (left := await _left(place)) > most:
        if time.monotonic() > ends:
            raise RuntimeError(f"still {left} unfinished after {LIMIT_S:.0f} s:\n{worker.tail()}")
        await asyncio.sleep(LOOK_S)
    return Spent(-left, time.monotonic(), cpu_seconds(worker.pid), cpu_seconds(redis_pid))


async def _left(place: Stage) -> int:
    return int(await place.core.redis.zcard(f"{{t:{TENANT}}}:unfinished"))


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.queued", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--many", type=int, default=200_000)
    parser.add_argument("--few", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=8, help="rounds of the few, and as many jobs of the many")
    parser.add_argument("--log", choices=("kafka", "streams"), default="streams")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
