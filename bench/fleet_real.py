"""Two real llama.cpp servers behind one deployment: what prefix affinity saves there, and one that dies.

    python -m bench.fleet_real [--families 4] [--turns 6] [--log streams|kafka]

Each is `examples/model_server.py`, SmolLM2-135M on one thread, with two slots that keep one prompt each and no other
cache: both together keep the beginnings of all four families, one of them half. A beginning has some 200 tokens, which
take seconds to compute and next to nothing when the server has them. First each job goes to any server, then, with
other families, to the one that its beginning belongs to. Then one server is killed while jobs run. The first turn of
each family has to be computed in any case.

The last line is one JSON object:

- `jobs`, `lost`: accepted, and not completed
- `hit_rate`, `random_hit_rate`, `hit_rate_over_random`: prompt tokens that the servers had in their caches, with and
  without affinity
- `computed_again`, `random_computed_again`: prompt tokens that were computed after the first turn
- `computed_s`, `cached_s`: seconds in the middle of jobs whose prompt was computed, and of those that had most of it
- `later_s`, `random_later_s`: seconds of a job after the first turn, on average, with and without affinity
- `seconds`, `random_seconds`: until all were done, with and without affinity
- `attempts_after_kill`: attempts over jobs when one server died

Exit code 1 when a job was lost. Needs the packages of requirements/demo.txt and requirements/model.txt.
"""

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from bench.crew import crew
from bench.fleet import Ran, run
from bench.fleet_jobs import Due
from bench.jobs import FILLER
from bench.servers import LIMITS, TENANT, Stage, stage
from policies.pricing import Meter
from router.board import JobView

ROOT = Path(__file__).resolve().parents[1]
BEGINNING_CHARACTERS = 900
SLOTS = 2
KILL_S = 0.5  # after the last jobs began to come
PATIENCE_S = 300.0
MOSTLY = 0.5


def main() -> int:
    """Measure, print, and say with the exit code whether every job was completed."""
    given = _arguments()
    figures = uvloop.run(_drill(given))
    table = Table("figure", "value", title="Two real llama.cpp servers")
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console(width=100).print(table)
    print(json.dumps(figures), flush=True)
    return 1 if figures["lost"] else 0


async def _drill(given: argparse.Namespace) -> dict[str, float | None]:
    async with _server() as one, _server() as other, _gateway(given, [one[1], other[1]]) as (place, client):
        by_chance = await _turns(place, client, "spread", "harbour", given)
        by_affinity = await _turns(place, client, "chat", "station", given)
        dying = asyncio.create_task(_killed(one[0], KILL_S))
        after = await run(place, client, _jobs("chat", "station", given, given.turns), patience_s=PATIENCE_S)
        await dying
    every = [by_chance, by_affinity, after]
    computed = [_seconds(view) for each in every[:2] for view in each.views if _hit(view) < MOSTLY]
    cached = [_seconds(view) for each in every[:2] for view in each.views if _hit(view) >= MOSTLY]
    return {
        "jobs": sum(len(each.views) for each in every),
        "lost": sum(each.lost for each in every),
        "hit_rate": round(_hits(by_affinity), 3),
        "random_hit_rate": round(_hits(by_chance), 3),
        "hit_rate_over_random": round(_hits(by_affinity) / max(_hits(by_chance), 0.001), 2),
        "computed_again": _computed(by_affinity, given.families),
        "random_computed_again": _computed(by_chance, given.families),
        "computed_s": round(statistics.median(computed), 3) if computed else None,
        "cached_s": round(statistics.median(cached), 3) if cached else None,
        "later_s": round(statistics.fmean(map(_seconds, by_affinity.views[given.families :])), 3),
        "random_later_s": round(statistics.fmean(map(_seconds, by_chance.views[given.families :])), 3),
        "seconds": round(_last(by_affinity), 1),
        "random_seconds": round(_last(by_chance), 1),
        "attempts_after_kill": round(sum(view.attempts for view in after.views) / len(after.views), 2),
    }


async def _turns(
    place: Stage, client: aiohttp.ClientSession, deployment: str, about: str, given: argparse.Namespace
) -> Ran:
    """Turn after turn of all families, each when the one before is over."""
    ran = [
        await run(place, client, _jobs(deployment, about, given, turn), patience_s=PATIENCE_S)
        for turn in range(given.turns)
    ]
    bodies = [body for each in ran for body in each.bodies]
    return Ran(ran[0].began, bodies, [view for each in ran for view in each.views])


def _jobs(deployment: str, about: str, given: argparse.Namespace, turn: int) -> list[Due]:
    """One of each family; what these share differs from one `about` to another."""
    found: list[Due] = []
    for family in range(given.families):
        beginning = (f"The {about} number {family}. " * 4 + FILLER * 8)[:BEGINNING_CHARACTERS]
        messages = [
            {"role": "system", "content": beginning},
            {"role": "user", "content": f"Question {turn}: what happened?"},
        ]
        found.append((0.0, {"model": deployment, "messages": messages, "max_tokens": 8}))
    return found


def _hit(view: JobView) -> float:
    """The part of its prompt that was in a cache."""
    cached, computed = _prompt(view)
    return cached / max(1, cached + computed)


def _hits(ran: Ran) -> float:
    sums = [_prompt(view) for view in ran.views]
    cached, computed = sum(each[0] for each in sums), sum(each[1] for each in sums)
    return cached / max(1, cached + computed)


def _computed(ran: Ran, families: int) -> int:
    """Prompt tokens after the first turn that were in no cache."""
    return sum(_prompt(view)[1] for view in ran.views[families:])


def _prompt(view: JobView) -> tuple[int, int]:
    by_meter = {meter: 0 for meter in Meter}
    for line in view.charges:
        by_meter[line.meter] += line.quantity
    return by_meter[Meter.CACHE_READ], by_meter[Meter.INPUT]


def _seconds(view: JobView) -> float:
    """From its first attempt to its end."""
    return (view.finished_at or 0.0) - (view.started_at or 0.0)


def _last(ran: Ran) -> float:
    return max(view.finished_at or 0.0 for view in ran.views) - ran.began


async def _killed(server: asyncio.subprocess.Process, after: float) -> None:
    await asyncio.sleep(after)
    server.kill()
    await server.wait()


@asynccontextmanager
async def _server() -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """The process and its URL; it ends with the block, or when this process dies."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "model_server.py"),
        *("--port", "0", "--slots", str(SLOTS), "--prompt-cache", "0"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        yield process, (await process.stdout.readline()).decode().split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def _gateway(
    given: argparse.Namespace, urls: Sequence[str]
) -> AsyncGenerator[tuple[Stage, aiohttp.ClientSession]]:
    replicas = {"urls": list(urls), "cap": SLOTS, "probe_s": 0.5, "slow_start_s": 0}
    free = {"input": "0", "output": "0", "cache_read": "0"}
    deployment = {
        "backend": "gpu",
        "model": "smollm2",
        "tier": "light",
        "window": 2048,
        "price": free,
        "timeouts": {"first_token_s": 250, "read_s": 280, "total_s": 300},  # a busy machine is not a full server
    }
    tenant = {"limits": dict(LIMITS), "max_unfinished": 100_000, "max_in_class": 100_000}
    changed: dict[str, object] = {
        "deployments": {
            "chat": {**deployment, "replicas": replicas},
            "spread": {**deployment, "replicas": {**replicas, "affinity": False}},
        },
        "tenants": {TENANT: tenant},
        "worker": {"health_port": 0, "first_wait_s": 0.1},
    }
    async with stage(log=given.log, changed=changed) as place, crew(place) as ours:
        api = await ours.http(place.settings.http.port)
        started = [api, await ours.sweeper(), await ours.worker("gpu")]
        await asyncio.gather(*(each.ready() for each in started))
        async with aiohttp.ClientSession() as client:
            await asyncio.sleep(2.0)  # the worker looks at the servers first
            yield place, client


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet_real", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--families", type=int, default=4)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--log", choices=("kafka", "streams"), default="streams")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
