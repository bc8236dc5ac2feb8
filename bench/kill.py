"""What `kill -9` of a worker costs: it is killed at half of its jobs, another one takes over.

    python -m bench.kill [--jobs 2000] [--concurrency 64 1000] [--service-ms 0 500] [--rounds 1]

Each concurrency with each time that an upstream call takes: one `pointsman serve worker` on the real backend for
OpenAI-compatible servers, an upstream in a process of its own that records every call, each of the board's writes on
disk. A call is made again when it was open as the worker died, or when its answer had come and was not saved yet;
nobody can know what became of it. The leases are short here (5 s), which changes nothing but how long the rest waits.

The last line is one JSON object:

- `runs`: for each `concurrency` and `service_ms`
  - `jobs` `lost` `completed_twice`
  - `calls_repeated`: from the upstream's own record; `open_or_unsaved`: attempts that were open on the board when the
    worker was dead, which bounds it; `open_upstream`: those of them that upstream still had open
  - `dollars_off`: the largest difference between the sums of the ledger, of the rollups and of the jobs;
    `charges_wrong`: calls without exactly one attempt on the ledger, and attempts that nobody made
  - `seconds`: from the start of the first worker to the last conclusion, the wait for the leases included
- `ok`: nothing lost, nothing completed twice, every charge there once, no call repeated beyond the bound

Exit code 1 when not.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import cast

import uvloop
from rich.console import Console
from rich.table import Table

from bench.audit import audit, settled
from bench.crew import crew
from bench.fill import fill
from bench.provider_double import Running, provider
from bench.servers import LIMITS, TENANT, Stage, stage

LEASE_S = 5
LOOK_S = 0.002
WAVE_S = 0.3
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Killed:
    """One run; see above."""

    concurrency: int
    service_ms: float
    jobs: int
    lost: int
    completed_twice: int
    calls_repeated: int
    open_or_unsaved: int
    open_upstream: int
    dollars_off: str
    charges_wrong: int
    seconds: float

    @property
    def is_ok(self) -> bool:
        """Nothing lost, nothing done twice, every charge there once."""
        wrong = self.lost or self.completed_twice or self.charges_wrong or self.dollars_off != "0"
        return not wrong and self.calls_repeated <= self.open_or_unsaved <= self.concurrency


def main() -> int:
    """Measure, print, and say with the exit code whether everything held."""
    given = _arguments()
    runs = []
    draw = random.Random(given.seed)
    for concurrency, service_ms, _ in product(given.concurrency, given.service_ms, range(given.rounds)):
        with provider("--service-ms", str(service_ms)) as upstream:
            runs.append(uvloop.run(_run(given, concurrency, service_ms, upstream, draw)))
        print(json.dumps(asdict(runs[-1])), file=sys.stderr, flush=True)
    _print(runs)
    ok = all(run.is_ok for run in runs)
    print(json.dumps({"runs": [asdict(run) for run in runs], "ok": ok}), flush=True)
    return 0 if ok else 1


async def _run(
    given: argparse.Namespace, concurrency: int, service_ms: float, upstream: Running, draw: random.Random
) -> Killed:
    async with stage(log=given.log, changed=_settings(concurrency, upstream)) as place, crew(place) as ours:
        accepted = await fill(place, given.jobs, _body)
        await ours.sweeper()
        began = time.monotonic()
        worker = await ours.worker("gpu")
        await _until_left(place, given.jobs // 2)
        # Jobs end in waves, and half is reached as one ends: anywhere in a wave is as likely from here.
        await asyncio.sleep(draw.uniform(0.0, WAVE_S + service_ms / 1000))
        await worker.kill()
        open_attempts = await _open_attempts(place)
        await ours.worker("gpu")
        done = await settled(place, LIMIT_S)
        seconds = time.monotonic() - began
        seen = await asyncio.to_thread(upstream.record)
        found = await audit(place, accepted, seen)
    return Killed(
        concurrency=concurrency,
        service_ms=service_ms,
        jobs=found.jobs,
        lost=found.lost if done else max(1, found.lost),
        completed_twice=found.completed_twice,
        calls_repeated=found.duplicate_calls,
        open_or_unsaved=open_attempts,
        open_upstream=sum(call.state == "aborted" for call in seen),
        dollars_off=f"{found.dollars_off:f}".rstrip("0").rstrip(".") or "0",
        charges_wrong=found.calls_off_ledger + found.charged_unseen + found.misquoted + found.contradictions,
        seconds=round(seconds, 1),
    )


async def _until_left(place: Stage, most: int) -> None:
    ends = time.monotonic() + LIMIT_S
    while await place.core.redis.zcard(f"{{t:{TENANT}}}:unfinished") > most:
        if time.monotonic() > ends:
            raise RuntimeError(f"half of the jobs were not done after {LIMIT_S:.0f} s")
        await asyncio.sleep(LOOK_S)


async def _open_attempts(place: Stage) -> int:
    """Attempts that were begun and not concluded: the only worker is dead, so that they all were its."""
    redis, prefix = place.core.redis, f"{{t:{TENANT}}}:"
    names = cast("list[bytes]", await redis.zrange(f"{prefix}running", 0, -1))
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.hexists(f"{prefix}job:{name.decode()}", "open")
    return sum(map(bool, await pipeline.execute()))


def _body(number: int) -> bytes:
    message = {"role": "user", "content": f"n={number} out=12 Say in one line what this parcel may hold."}
    metadata = {"number": str(number)}
    return json.dumps(
        {"model": "light", "messages": [message], "max_tokens": 64, "metadata": metadata, "async": True}
    ).encode()


def _settings(concurrency: int, upstream: Running) -> dict[str, object]:
    deployment = {
        "backend": "gpu",
        "url": f"{upstream.url}/v1",
        "model": "any",
        "tier": "light",
        "limits": {"concurrency": concurrency, "requests_per_minute": 1e8, "tokens_per_minute": 1e11},
        "price": {"input": "0.123457", "output": "0.654321"},
    }
    tenant = {"limits": dict(LIMITS), "max_unfinished": 1_000_000, "max_in_class": 100_000}
    return {
        "deployments": {"light": deployment},
        "tenants": {TENANT: tenant},
        "worker": {"lease_s": LEASE_S, "look_ahead": 2000, "health_port": 0},
    }


def _print(runs: Sequence[Killed]) -> None:
    table = Table(*asdict(runs[0]), title="kill -9 of the worker at half of its jobs")
    for run in runs:
        table.add_row(*(str(value) for value in asdict(run).values()))
    Console(width=150).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.kill", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64, 1000])
    parser.add_argument("--service-ms", type=float, nargs="+", default=[0.0, 500.0])
    parser.add_argument("--rounds", type=int, default=1, help="of each combination")
    parser.add_argument("--seed", type=int, default=1, help="of the moment of the kill")
    parser.add_argument("--log", choices=("kafka", "streams"), default="streams")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
