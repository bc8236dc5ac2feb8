"""What a worker gets through: jobs on a full log, one worker process, the echo backend, and everything else on.

    python -m bench.worker [--jobs 10000] [--log kafka|streams] [--brokers 1|3]

The jobs are accepted through the real door code, then one `pointsman serve worker` runs them with claims, quotas of
the tenant and of the deployment, charges, events and the ledger on, each of the board's writes on disk (Kafka:
acks=all). Counting starts with the first job that is concluded and ends with the last whose charges and event are
on the log, so that neither the process' start nor its joining of the group counts.

The last line is one JSON object:

- `jobs`: how many were accepted
- `jobs_per_s`: concluded a second; `jobs_per_s_per_core`: for each second of CPU of the worker process
- `lost`: accepted but not completed on the board, or without its charge and event on the log
- `completed_twice`: jobs with two completed attempts on the ledger
- `cpu_share`: of one core, used by the worker meanwhile; `redis_cpu_ms`: CPU of Valkey for each job
- `usd`: what the ledger says they cost in all; `rss_mb`: memory of the worker at the end

Exit code 1 when a job was lost or completed twice.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from decimal import Decimal

import uvloop
from rich.console import Console
from rich.table import Table

from bench import jobs
from bench.fill import fill
from bench.servers import TENANT, Stage, cpu_seconds, rss_mb, stage
from router import topics
from router.job import JobState
from router.log import Record

LIMIT_S = 600.0
QUIET_S = 60.0  # without any progress the run is over
LOOK_S = 0.05
AUDIT_S = 60.0


def main() -> int:
    """Measure, print, and say with the exit code whether every job was completed once."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.worker", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--log", choices=("kafka", "streams"), default="kafka")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    figures = uvloop.run(_measure(parser.parse_args()))
    table = Table("figure", "value", title="Working off jobs")
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console(width=60).print(table)
    print(json.dumps(figures), flush=True)
    return 1 if figures["lost"] or figures["completed_twice"] else 0


async def _measure(given: argparse.Namespace) -> dict[str, object]:
    async with stage(log=given.log, brokers=given.brokers) as place:
        ids = list((await fill(place, given.jobs, jobs.body)).values())
        async with place.process("gateway.cli", "serve", "worker", "--backend", "echo") as worker:
            run = await _watch(place, worker.pid, given.jobs)
            rss = rss_mb(worker.pid)
        ledger = await _read(place, ids)
        states = await _states(place, ids)
    whole = {job_id for job_id in ids if states[job_id] is JobState.COMPLETED} & ledger.charged & ledger.ended
    return {
        "jobs": len(ids),
        "jobs_per_s": round(run.jobs / run.seconds, 1),
        "jobs_per_s_per_core": round(run.jobs / run.cpu_s, 1),
        "lost": len(ids) - len(whole),
        "completed_twice": sum(count > 1 for count in ledger.completed.values()),
        "cpu_share": round(run.cpu_s / run.seconds, 2),
        "redis_cpu_ms": round(run.redis_cpu_s * 1000 / run.jobs, 3),
        "usd": f"{ledger.usd:f}",
        "rss_mb": round(rss),
    }


@dataclass(frozen=True, slots=True)
class _Run:
    """What was concluded between the first look that saw a conclusion and the last."""

    jobs: int
    seconds: float
    cpu_s: float
    redis_cpu_s: float


async def _watch(place: Stage, pid: int, count: int) -> _Run:
    """Return when nothing is unfinished and nothing waits to be published, or nothing goes on any more."""
    loop, redis = asyncio.get_running_loop(), place.core.redis
    ends, quiet_at = loop.time() + LIMIT_S, loop.time() + QUIET_S
    began = first = cpu = redis_cpu = None
    before = count
    while True:
        await asyncio.sleep(LOOK_S)
        left = await redis.zcard(f"{{t:{TENANT}}}:unfinished")
        waiting = await redis.hlen(f"{{t:{TENANT}}}:outbox")
        now = loop.time()
        if first is None and left < count:
            began, first, cpu, redis_cpu = now, left, cpu_seconds(pid), await place.cpu_of_redis()
        if left + waiting < before:
            before, quiet_at = left + waiting, now + QUIET_S
        if (left == 0 and waiting == 0) or now > min(ends, quiet_at):
            if began is None or first is None or cpu is None or redis_cpu is None:
                raise RuntimeError("no job was concluded; what the worker printed says why")
            redis_cpu = await place.cpu_of_redis() - redis_cpu
            return _Run(max(1, first - left), now - began, cpu_seconds(pid) - cpu, redis_cpu)


@dataclass(slots=True)
class _Ledger:
    """What the two topics say about the jobs."""

    charged: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    completed: Counter[str] = field(default_factory=Counter)
    usd: Decimal = Decimal(0)
    _seen: set[str] = field(default_factory=set)

    def add(self, topic: str, record: Record) -> None:
        """Repeats of a record are told by its id."""
        if record.headers["id"] in self._seen:
            return
        self._seen.add(record.headers["id"])
        values = json.loads(record.value)
        if topic == topics.EVENTS:
            self.ended.add(values["data"]["id"].removeprefix("job_"))
        elif values["type"] == "attempt":
            self.charged.add(values["job"])
            self.completed[values["job"]] += any(line["outcome"] == "completed" for line in values["lines"])
            self.usd += Decimal(values["usd"])


async def _read(place: Stage, ids: Collection[str]) -> _Ledger:
    ledger, wanted = _Ledger(), set(ids)
    loop = asyncio.get_running_loop()
    ends = loop.time() + AUDIT_S
    async with place.core.log.subscribe([topics.EVENTS, topics.CHARGES], group="bench.audit") as subscription:
        quiet = 0
        # On after the last expected one: a job that was completed twice has more.
        while loop.time() < ends and (quiet < 5 or not (wanted <= ledger.charged and wanted <= ledger.ended)):
            taken = await subscription.take(1000)
            quiet = 0 if taken else quiet + 1
            for delivery in taken:
                ledger.add(delivery.topic, delivery.record)
                await subscription.done(delivery)
    return ledger


async def _states(place: Stage, ids: Collection[str]) -> dict[str, JobState | None]:
    async def state(job_id: str) -> JobState | None:
        view = await place.core.board.view(TENANT, job_id)
        return None if view is None else view.state

    return dict(zip(ids, await asyncio.gather(*(state(job_id) for job_id in ids)), strict=True))


if __name__ == "__main__":
    sys.exit(main())
