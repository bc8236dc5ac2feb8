"""Six simulated engines behind one deployment: what prefix affinity brings, and what their failures cost.

    python -m bench.fleet [--traffic chat|extraction] [--seconds 90] [--faster 1] [--seed 1] [--workers 2]

The engines (`bench/engine_double.py`) have vLLM's metrics, queue and prefix cache, and the measures of an 8B model in
16 bits on a card of 24 GB: 3,000 tokens of prompts a second, 20 tokens a second of each answer, eight answers side by
side, 2,000 blocks of 16 tokens (the 4 GB that are left, at 128 KiB a token). These are reckoned, not measured: such a
card reads 300 GB a second, and so 16 GB of weights some 20 times; it makes 120 TFLOPS, of which prompts reach 40 %, and
a token takes 16 GFLOP.

Jobs come at random moments (Poisson) through the real gateway and workers. Each belongs to a family that shares a
beginning (instructions, tools, a document); one engine can keep a quarter of these, and all together each. Some 275
tokens of its own follow. There is

- `chat`: prompts of 1,000 tokens and answers of 130 in the middle, 180 on average
- `extraction`: prompts of 2,200 tokens and answers of 25: to compute prompts is most of the work, and a miss costs ten
  times what a hit does

Each phase begins with empty caches. First each family comes twice with a short answer, at two thirds of what the
engines can compute: what they keep by then is what the way of choosing has made of it, and it is not counted. Then
all engines are equal and well, for `--well` seconds each without and with affinity, at half of the rate, which is all
that they can take without. In a third phase one is slow, one lies about its health (200, while every call fails), one
is killed and comes back later, and two are restarted one after the other, drained before, while jobs come for
`--seconds` at a rate that uses most of what is left (`utilisation` says how much it was). The same jobs at the same
moments, those of the beginning included, are then given to an oracle (`bench/fleet_oracle.py`) that knows every queue,
every cache, how long an answer will be and who is of use now, but not what will fail, and both times are compared.
`--faster` is for a machine that has the time of its processors.

The last line is one JSON object:

- `jobs`, `lost`: accepted, and not completed
- `p50_s`, `p95_s`, `oracle_p50_s`, `oracle_p95_s`, `p95_over_oracle`: from accepted to done, with failures
- `utilisation`: of the slots that were of use, as the oracle used them
- `retries_share`: failed attempts over all attempts, with failures
- `uneven`, `uneven_with_affinity`: without failures, an engine's largest difference to the mean of what its slots were
  held for while jobs came, over the mean; `uneven_oracle`: the same, if the oracle had chosen; `uneven_by_chance`: if
  each of these jobs had gone anywhere; `uneven_calls`, `uneven_calls_with_affinity`: the same of calls. Answers differ
  a hundredfold in length, so with few of them all are chance
- `hit_rate`, `random_hit_rate`, `hit_rate_over_random`: prompt tokens that were in a cache, with and without affinity
- `hits_of_best`: with affinity, over those of one cache for all that keeps everything
- `most_waiting`: the most requests that ever waited inside an engine

Exit code 1 when a job was lost.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from bench.audit import settled
from bench.crew import crew
from bench.fleet_figures import Ended, Failing, Well, figures
from bench.fleet_jobs import (
    BLOCKS,
    DECODE,
    DIES,
    ENGINES,
    LIAR,
    PREFILL,
    RESTARTED,
    SLOTS,
    SLOW,
    SLOWNESS,
    TRAFFIC,
    Due,
    jobs,
    settling,
)
from bench.fleet_oracle import Outage, Server
from bench.servers import LIMITS, TENANT, Stage, stage
from router.board import JobView
from router.job import JobState
from tests.acceptance.contents import leaks_of
from tools.kafka.broker import free_ports

PATH = "/v1/chat/completions"
PATIENCE_S = 120.0
LOOK_S = 0.05


@dataclass(slots=True)
class Engine:
    """A simulated one on a port of its own."""

    number: int
    port: int
    folder: Path
    speed: float = 1.0
    outages: list[Outage] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Until it listens."""
        rates = {
            "slots": SLOTS,
            "prefill": PREFILL * self.speed,
            "decode": DECODE * self.speed,
            "kv": BLOCKS,
            "cache": BLOCKS,
        }
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

    async def begin_books(self, client: aiohttp.ClientSession) -> None:
        """What came until now does not count."""
        async with client.post(f"{self.url}/_double/books") as answer:
            answer.raise_for_status()

    async def calls(self, client: aiohttp.ClientSession) -> dict[str, float]:
        """What came to it."""
        async with client.get(f"{self.url}/_double/calls") as answer:
            found: dict[str, float] = await answer.json()
            return found

    def list(self, *, drain: bool = False) -> None:
        """Write its file, where Pointsman finds it."""
        listed(self.folder, f"engine-{self.number}", self.url, drain=drain)

    def server(self, since: float) -> Server:
        """As the oracle knows it, with an empty cache; moments are after `since`."""
        outages = [
            Outage(each.closed - since, None if each.dies is None else each.dies - since, each.until - since)
            for each in self.outages
        ]
        return Server(SLOTS, PREFILL * self.speed, DECODE * self.speed, BLOCKS, outages)


@dataclass(frozen=True, slots=True)
class Ran:
    """Jobs that went through, and when the first could have come."""

    began: float
    bodies: Sequence[dict[str, Any]]
    views: Sequence[JobView]

    @property
    def lost(self) -> int:
        """Jobs that were not completed."""
        return sum(each.seconds is None for each in self.ended())

    def ended(self) -> list[Ended]:
        """What became of each."""
        return [
            Ended(view.job.created_at, body, _seconds(view), view.attempts)
            for body, view in zip(self.bodies, self.views, strict=True)
        ]


def _seconds(view: JobView) -> float | None:
    if view.finished_at is None or view.state is not JobState.COMPLETED:
        return None
    return view.finished_at - view.job.created_at


def listed(folder: Path, name: str, url: str, *, drain: bool = False) -> None:
    """Write a replica's file, whole at once."""
    path = folder / f"{name}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"url": url, "drain": drain}), encoding="utf-8")
    new.replace(path)


def main() -> int:
    """Measure, print, and say with the exit code whether every job was completed."""
    given = arguments("bench.fleet", __doc__)
    return show(uvloop.run(_drill(given)), given)


def show(figures: dict[str, float], given: argparse.Namespace) -> int:
    """Print them, and return the exit code."""
    table = Table(
        "figure",
        "value",
        title=f"{ENGINES} engines, {given.workers} workers, {given.rate:g} jobs a second, {given.name}",
    )
    for name, value in figures.items():
        table.add_row(name, str(value))
    Console(width=100).print(table)
    print(json.dumps(figures), flush=True)
    return 1 if figures["lost"] else 0


async def _drill(given: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="pointsman-fleet-") as name:
        folder = Path(name)
        engines = [Engine(number, port, folder, given.faster) for number, port in enumerate(free_ports(ENGINES))]
        try:
            await asyncio.gather(*(each.start() for each in engines))
            for each in engines:
                each.list()
            async with _gateway(given, folder) as (place, client):
                spread = await _well(place, client, engines, "spread", given)
                near = await _well(place, client, engines, "chat", given)
                failing = await _with_failures(place, client, engines, given)
        finally:
            await asyncio.gather(*(each.kill() for each in engines))
    servers = [each.server(failing.began) for each in engines]
    return figures(spread, near, failing, servers, given.traffic, seconds=given.seconds, faster=given.faster)


async def _settled(
    place: Stage, client: aiohttp.ClientSession, engines: Sequence[Engine], deployment: str, given: argparse.Namespace
) -> Ran:
    """From empty caches to what they keep as a rule, with new books."""
    for each in engines:
        await each.become(client, "fresh")
    ran = await run(place, client, settling(deployment, given.traffic, given.faster, seed=given.seed))
    for each in engines:
        await each.begin_books(client)
    return ran


async def _well(
    place: Stage, client: aiohttp.ClientSession, engines: Sequence[Engine], deployment: str, given: argparse.Namespace
) -> Well:
    settled = await _settled(place, client, engines, deployment, given)
    due = jobs(deployment, given.traffic, given.well, given.rate / 2, seed=given.seed * 1000)
    held = asyncio.create_task(_held(engines, client, due[-1][0]))
    ran = await run(place, client, due)
    seen = [await each.calls(client) for each in engines]
    hits = sum(each["prefix_hits"] for each in seen) / max(1, sum(each["prefix_queries"] for each in seen))
    return Well(settled.began, settled.ended(), ran.ended(), await held, [each["total"] for each in seen], hits)


async def _held(engines: Sequence[Engine], client: aiohttp.ClientSession, after: float) -> list[float]:
    """Seconds of slots until then."""
    await asyncio.sleep(after)
    return [each["held_s"] for each in await asyncio.gather(*(each.calls(client) for each in engines))]


async def _with_failures(
    place: Stage, client: aiohttp.ClientSession, engines: Sequence[Engine], given: argparse.Namespace
) -> Failing:
    engines[SLOW].speed *= SLOWNESS
    await engines[SLOW].kill()
    await engines[SLOW].start()
    await asyncio.sleep(2.0)  # until it has been seen again
    settled, seconds = await _settled(place, client, engines, "chat", given), given.seconds
    acts = [
        _lying(engines[LIAR], client, seconds * 0.05, seconds * 0.25),
        _dying(engines[DIES], seconds * 0.35, seconds * 0.5),
        *(_restarted(engines[number], client, seconds * at) for number, at in zip(RESTARTED, (0.6, 0.8), strict=True)),
    ]
    failing = [asyncio.create_task(act) for act in acts]
    ran = await run(place, client, jobs("chat", given.traffic, seconds, given.rate, seed=given.seed * 1000 + 1))
    await asyncio.gather(*failing)
    waiting = [(await each.calls(client))["most_waiting"] for each in engines]
    return Failing(settled.began, settled.ended(), ran.ended(), max(waiting))


async def _lying(engine: Engine, client: aiohttp.ClientSession, after: float, until: float) -> None:
    await asyncio.sleep(after)
    await engine.become(client, "liar")
    began = time.time()
    await asyncio.sleep(until - after)
    await engine.become(client, "well")
    engine.outages.append(Outage(began, None, time.time()))


async def _dying(engine: Engine, after: float, until: float) -> None:
    await asyncio.sleep(after)
    began = time.time()
    await engine.kill()
    await asyncio.sleep(until - after)
    await engine.start()
    engine.outages.append(Outage(began, began, time.time()))


async def _restarted(engine: Engine, client: aiohttp.ClientSession, after: float) -> None:
    """As a rolling update does it: first no new calls, then an end, then a new one."""
    await asyncio.sleep(after)
    closed = time.time()
    engine.list(drain=True)
    await asyncio.sleep(1.0)
    while True:
        seen = await engine.calls(client)
        if seen["answered"] + seen["failed"] + seen["aborted"] == seen["total"]:
            break
        await asyncio.sleep(LOOK_S)
    dies = time.time()
    await engine.kill()
    await asyncio.sleep(2.0)
    await engine.start()
    engine.list()
    engine.outages.append(Outage(closed, dies, time.time()))


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


@asynccontextmanager
async def _gateway(given: argparse.Namespace, folder: Path) -> AsyncGenerator[tuple[Stage, aiohttp.ClientSession]]:
    async with stage(log=given.log, changed=_settings(folder)) as place, crew(place) as ours:
        api = await ours.http(place.settings.http.port)
        started = [api, await ours.sweeper(), *[await ours.worker("gpu") for _ in range(given.workers)]]
        await asyncio.gather(*(each.ready() for each in started))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            await asyncio.sleep(2.0)  # the workers look at the engines first
            yield place, client
            assert await leaks_of(ours) == []


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


def arguments(program: str, description: str | None, words: Sequence[str] | None = None) -> argparse.Namespace:
    """What the drill is to be."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description.splitlines()[0] if description else ""
    )
    parser.add_argument("--traffic", choices=tuple(TRAFFIC), default="chat")
    parser.add_argument("--seconds", type=float, default=90.0, help="how long jobs come while engines fail")
    parser.add_argument("--well", type=float, default=None, help="while all are well; three times as long")
    parser.add_argument(
        "--rate",
        type=float,
        default=None,
        help="jobs a second while engines fail; as the traffic has it",
    )
    parser.add_argument("--faster", type=float, default=1.0, help="than on the card; and as many more jobs")
    parser.add_argument("--families", type=int, default=None, help="other than the traffic has")
    parser.add_argument("--seed", type=int, default=1, help="which jobs come, and when")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--log", choices=("kafka", "streams"), default="streams")
    given = parser.parse_args(words)
    given.name, traffic = given.traffic, TRAFFIC[given.traffic]
    given.traffic = replace(traffic, families=given.families or traffic.families)
    given.rate = given.rate or traffic.rate * given.faster
    given.well = given.well or 3 * given.seconds
    return given


if __name__ == "__main__":
    sys.exit(main())
