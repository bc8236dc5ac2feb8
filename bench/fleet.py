"""Six simulated engines behind one deployment: what prefix affinity brings, and what their failures cost.

    python -m bench.fleet [--seconds 36] [--rate 3] [--workers 2] [--log streams|kafka]

The engines (`bench/engine_double.py`) have vLLM's metrics, queue and prefix cache. Jobs of mixed size from two dozen
families that share a beginning come at random moments (Poisson) through the real gateway and workers.

First all engines are equal and well, for a third of `--seconds` each without and with prefix affinity. Then one is
slow, one lies about its health (200, while every call fails), one is killed and comes back later, and two are restarted
one after the other, drained before, while jobs come for `--seconds`. The same jobs at the same moments are then given
to an oracle (`bench/fleet_oracle.py`) that knows every queue, cache and outage, and both times are compared.

The last line is one JSON object:

- `jobs`, `lost`: accepted, and not completed
- `p50_s`, `p95_s`, `oracle_p50_s`, `oracle_p95_s`, `p95_over_oracle`: from accepted to done, with failures
- `retries_share`: failed attempts over all attempts, with failures
- `uneven`: without failures and affinity, the largest difference of an engine's calls to the mean, over the mean
- `hit_rate`, `random_hit_rate`, `hit_rate_over_random`: prompt tokens that were in a cache, with and without affinity
- `most_waiting`: the most requests that ever waited inside an engine

Exit code 1 when a job was lost.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from bench.audit import settled
from bench.crew import crew
from bench.engine_double import BLOCK, CHARACTERS
from bench.fleet_oracle import Server, Work, latencies
from bench.jobs import FILLER
from bench.servers import LIMITS, TENANT, Stage, stage
from router.board import JobView
from router.job import JobState
from tools.kafka.broker import free_ports

ENGINES = 6
SLOW, LIAR, DIES, RESTARTED = 5, 4, 3, (0, 1)
SLOTS, PREFILL, DECODE, CACHE = 8, 3000.0, 20.0, 300
SLOWNESS = 0.5
FAMILIES = 24
FAMILY_CHARACTERS = 3200
PATH = "/v1/chat/completions"
PATIENCE_S = 60.0
LOOK_S = 0.05
Due = tuple[float, dict[str, Any]]  # when a job comes, and its body
WELL = 6  # times as many jobs come while nothing fails, and they are a third as long


@dataclass(slots=True)
class Engine:
    """A simulated one on a port of its own. `outages` are moments from when until when it was of no use."""

    number: int
    port: int
    folder: Path
    speed: float = 1.0
    outages: list[tuple[float, float]] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Until it listens."""
        rates = {"slots": SLOTS, "prefill": PREFILL * self.speed, "decode": DECODE * self.speed, "cache": CACHE}
        options = [word for name, value in rates.items() for word in (f"--{name}", str(value))]
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.engine_double", "--port", str(self.port), *options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        await self.process.stdout.readline()

    async def kill(self) -> None:
        """`kill -9`."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def become(self, client: aiohttp.ClientSession, mode: str) -> None:
        """What it does from now on."""
        async with client.post(f"{self.url}/_double/mode", json={"mode": mode}) as answer:
            answer.raise_for_status()

    async def calls(self, client: aiohttp.ClientSession) -> dict[str, int]:
        """What came to it."""
        async with client.get(f"{self.url}/_double/calls") as answer:
            found: dict[str, int] = await answer.json()
            return found

    def list(self, *, drain: bool = False) -> None:
        """Write its file, where Pointsman finds it."""
        path = self.folder / f"engine-{self.number}.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"url": self.url, "drain": drain}), encoding="utf-8")
        new.replace(path)

    def server(self, since: float) -> Server:
        """As the oracle knows it; moments are after `since`."""
        outages = [(start - since, stop - since) for start, stop in self.outages]
        return Server(SLOTS, PREFILL * self.speed, DECODE * self.speed, CACHE, outages)


@dataclass(frozen=True, slots=True)
class Ran:
    """Jobs that went through, and when the first could have come."""

    began: float
    bodies: Sequence[dict[str, Any]]
    views: Sequence[JobView]

    @property
    def lost(self) -> int:
        """Jobs that were not completed."""
        return sum(view.state is not JobState.COMPLETED for view in self.views)

    @property
    def seconds(self) -> list[float]:
        """From accepted to done, of those that were."""
        return [view.finished_at - view.job.created_at for view in self.views if view.finished_at is not None]

    def works(self) -> list[Work]:
        """The same jobs for the oracle."""
        pairs = zip(self.bodies, self.views, strict=True)
        return [
            Work(view.job.created_at - self.began, _blocks(body), body["max_tokens"])
            for body, view in sorted(pairs, key=lambda pair: pair[1].job.created_at)
        ]


def main() -> int:
    """Measure, print, and say with the exit code whether every job was completed."""
    given = _arguments()
    figures = uvloop.run(_drill(given))
    table = Table("figure", "value", title=f"{ENGINES} engines, {given.workers} workers, {given.rate:g} jobs a second")
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console(width=100).print(table)
    print(json.dumps(figures), flush=True)
    return 1 if figures["lost"] else 0


async def _drill(given: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="pointsman-fleet-") as name:
        folder = Path(name)
        engines = [Engine(number, port, folder) for number, port in enumerate(free_ports(ENGINES))]
        try:
            await asyncio.gather(*(each.start() for each in engines))
            for each in engines:
                each.list()
            async with _gateway(given, folder) as (place, client):
                part, rate = given.seconds / 3, WELL * given.rate
                spread, uneven, by_chance = await _well(place, client, engines, "spread", part, rate)
                near, _, by_affinity = await _well(place, client, engines, "chat", part, rate)
                ran, waiting = await _with_failures(place, client, engines, given)
        finally:
            await asyncio.gather(*(each.kill() for each in engines))
    return _figures(ran, engines, [spread, near, ran], uneven, by_chance, by_affinity, waiting)


def _figures(
    ran: Ran,
    engines: Sequence[Engine],
    all_ran: Sequence[Ran],
    uneven: float,
    by_chance: float,
    by_affinity: float,
    waiting: int,
) -> dict[str, float]:
    ours, at_best = ran.seconds, latencies(ran.works(), [each.server(ran.began) for each in engines])
    attempts = sum(view.attempts for view in ran.views)
    return {
        "jobs": sum(len(each.views) for each in all_ran),
        "lost": sum(each.lost for each in all_ran),
        "p50_s": round(statistics.median(ours), 3),
        "oracle_p50_s": round(statistics.median(at_best), 3),
        "p95_s": round(_p95(ours), 3),
        "oracle_p95_s": round(_p95(at_best), 3),
        "p95_over_oracle": round(_p95(ours) / _p95(at_best), 3),
        "retries_share": round((attempts - len(ran.views)) / attempts, 4),
        "uneven": round(uneven, 3),
        "hit_rate": round(by_affinity, 3),
        "random_hit_rate": round(by_chance, 3),
        "hit_rate_over_random": round(by_affinity / max(by_chance, 0.001), 2),
        "most_waiting": waiting,
    }


async def _well(
    place: Stage,
    client: aiohttp.ClientSession,
    engines: Sequence[Engine],
    deployment: str,
    seconds: float,
    rate: float,
) -> tuple[Ran, float, float]:
    """Nothing fails: what came of it, how uneven the load was, and the share of prompt tokens from a cache."""
    for each in engines:
        await each.become(client, "fresh")
    ran = await run(place, client, _jobs(deployment, seconds, rate, seed=7, words=1 / 3))
    seen = [await each.calls(client) for each in engines]
    totals = [each["total"] for each in seen]
    mean = statistics.fmean(totals)
    hits = sum(each["prefix_hits"] for each in seen) / max(1, sum(each["prefix_queries"] for each in seen))
    return ran, max(abs(total - mean) for total in totals) / mean, hits


async def _with_failures(
    place: Stage, client: aiohttp.ClientSession, engines: Sequence[Engine], given: argparse.Namespace
) -> tuple[Ran, int]:
    engines[SLOW].speed = SLOWNESS
    await engines[SLOW].kill()
    await engines[SLOW].start()
    for each in engines:
        await each.become(client, "fresh")
    await asyncio.sleep(2.0)  # until the slow one has been seen again
    await run(place, client, _jobs("chat", given.seconds / 4, given.rate, seed=9))  # it has been slow for some time
    for each in engines:
        await each.become(client, "fresh")
    acts = [
        _lying(engines[LIAR], client, given.seconds * 0.05, given.seconds * 0.25),
        _dying(engines[DIES], given.seconds * 0.35, given.seconds * 0.5),
        *(
            _restarted(engines[number], client, given.seconds * at)
            for number, at in zip(RESTARTED, (0.6, 0.8), strict=True)
        ),
    ]
    failing = [asyncio.create_task(act) for act in acts]
    ran = await run(place, client, _jobs("chat", given.seconds, given.rate, seed=8))
    await asyncio.gather(*failing)
    waiting = [(await each.calls(client))["most_waiting"] for each in engines]
    return ran, max(waiting)


async def _lying(engine: Engine, client: aiohttp.ClientSession, after: float, until: float) -> None:
    await asyncio.sleep(after)
    await engine.become(client, "liar")
    began = time.time()
    await asyncio.sleep(until - after)
    await engine.become(client, "well")
    engine.outages.append((began, time.time()))


async def _dying(engine: Engine, after: float, until: float) -> None:
    await asyncio.sleep(after)
    began = time.time()
    await engine.kill()
    await asyncio.sleep(until - after)
    await engine.start()
    engine.outages.append((began, time.time()))


async def _restarted(engine: Engine, client: aiohttp.ClientSession, after: float) -> None:
    """As a rolling update does it: first no new calls, then an end, then a new one."""
    await asyncio.sleep(after)
    engine.list(drain=True)
    await asyncio.sleep(1.0)
    while True:
        seen = await engine.calls(client)
        if seen["answered"] + seen["failed"] + seen["aborted"] == seen["total"]:
            break
        await asyncio.sleep(LOOK_S)
    began = time.time()
    await engine.kill()
    await asyncio.sleep(2.0)
    await engine.start()
    engine.list()
    engine.outages.append((began, time.time()))


async def run(
    place: Stage, client: aiohttp.ClientSession, jobs: Sequence[Due], *, patience_s: float = PATIENCE_S
) -> Ran:
    """Submit each when it is due; return once all have ended, or `patience_s` after the last."""
    began = time.time()
    url = f"http://127.0.0.1:{place.settings.http.port}{PATH}"
    key = await place.new_key()

    async def submit(at: float, body: dict[str, Any]) -> str:
        await asyncio.sleep(max(0.0, began + at - time.time()))
        headers = {"authorization": f"Bearer {key}"}
        async with client.post(url, json={**body, "async": True}, headers=headers) as answer:
            answer.raise_for_status()
            id: str = (await answer.json())["id"]
            return id.removeprefix("job_")

    ids = await asyncio.gather(*(submit(at, body) for at, body in jobs))
    await settled(place, patience_s)
    views = await asyncio.gather(*(place.core.board.view(TENANT, job) for job in ids))
    return Ran(began, [body for _, body in jobs], [view for view in views if view is not None])


def _jobs(
    deployment: str, seconds: float, rate: float, *, seed: int, words: float = 1.0
) -> list[tuple[float, dict[str, Any]]]:
    """When each comes, and its body. The same seed, the same jobs."""
    draw = random.Random(seed)
    found: list[Due] = []
    at = 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        family, number = draw.randrange(FAMILIES), len(found)
        asked = min(8000, round(draw.lognormvariate(6.6, 0.9)))  # characters: 735 in the middle
        messages = [
            {"role": "system", "content": _text(f"Family {family}. ", FAMILY_CHARACTERS)},
            {"role": "user", "content": _text(f"Job {seed}-{number}. ", asked)},
        ]
        output = min(120, max(4, round(words * draw.lognormvariate(3.2, 0.6))))
        found.append((at, {"model": deployment, "messages": messages, "max_tokens": output}))
    return found


def _text(beginning: str, characters: int) -> str:
    return (beginning * 5 + FILLER * (characters // len(FILLER) + 1))[:characters]


def _blocks(body: dict[str, Any]) -> list[object]:
    """The prompt's blocks, each named by all of the prompt up to its end."""
    prompt, size = "\n".join(each["content"] for each in body["messages"]), BLOCK * CHARACTERS
    return [hash(prompt[: start + size]) for start in range(0, len(prompt) - size + 1, size)]


def _p95(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


@asynccontextmanager
async def _gateway(given: argparse.Namespace, folder: Path) -> AsyncGenerator[tuple[Stage, aiohttp.ClientSession]]:
    async with stage(log=given.log, changed=_settings(folder)) as place, crew(place) as ours:
        api = await ours.http(place.settings.http.port)
        started = [api, await ours.sweeper(), *[await ours.worker("gpu") for _ in range(given.workers)]]
        await asyncio.gather(*(each.ready() for each in started))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            await asyncio.sleep(2.0)  # the workers look at the engines first
            yield place, client


def _settings(folder: Path) -> dict[str, object]:
    replicas = {"folder": str(folder), "cap": SLOTS, "probe_s": 0.5, "slow_start_s": 3}
    deployment = {
        "backend": "gpu",
        "model": "any",
        "tier": "light",
        "window": 32768,
        "price": {"input": "0", "output": "0"},
    }
    tenant = {"limits": dict(LIMITS), "max_unfinished": 1_000_000, "max_in_class": 100_000}
    return {
        "deployments": {
            "chat": {**deployment, "replicas": replicas},
            "spread": {**deployment, "replicas": {**replicas, "affinity": False}},
        },
        "tenants": {TENANT: tenant},
        "worker": {"health_port": 0, "first_wait_s": 0.1},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--seconds", type=float, default=36.0, help="how long jobs come while engines fail")
    parser.add_argument(
        "--rate",
        type=float,
        default=3.0,
        help="jobs a second while engines fail",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--log", choices=("kafka", "streams"), default="streams")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
