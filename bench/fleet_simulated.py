"""The fleet drill in virtual time: the same jobs, engines and oracle, in seconds and whatever else the machine does.

    python -m bench.fleet_simulated [--traffic chat|extraction] [--seconds 90] [--faster 1] [--seed 1] [--workers 2]

What decides is Pointsman's own code: which replica gets a job and how it is judged (`consumers/gpu`), whose turn it is
(`consumers/schedule.py`), what follows a failure (`policies/retries.py`). The engines are those of the drill without
their HTTP. The board, and what else happens to a job on its way, are doubles in memory: a step to a server takes
`STEP_S`. So the figures are about the choices alone. They mean the same as those of `bench/fleet.py`.
"""

import argparse
import asyncio
import json
import logging
import random
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import aiohttp
import structlog

from bench import engine_double, virtual_time
from bench.fleet import arguments, listed, show
from bench.fleet_doubles import Board, Engine, Http, now
from bench.fleet_figures import Ended, Failing, Well, figures
from bench.fleet_jobs import (
    DIES,
    ENGINES,
    LIAR,
    RESTARTED,
    SLOTS,
    SLOW,
    SLOWNESS,
    Due,
    jobs,
    prompt_of,
    settling,
)
from bench.fleet_oracle import Outage, Server
from consumers.backend import BackendError, SoFar
from consumers.fair import Turn
from consumers.gate import Gate
from consumers.gpu.fleet import Replicas
from consumers.gpu.places import Places
from consumers.schedule import Schedule, Ticket
from policies.deployments import Deployment, Modality, Tier
from policies.fleets import Fleet, Folder
from policies.retries import Again, RetryRule, Tried
from router.job import Estimate, Job, JobClass, Route
from router.log import Delivery, Record

STEP_S = 0.005
START_S = 0.5  # of an engine
LOOK_S = 0.05
DAY_S = 86400.0


@dataclass(slots=True)
class Going:
    """A job on its way."""

    job: Job
    body: dict[str, Any]
    attempts: int = 0
    done_at: float | None = None


class Worker:
    """A DOUBLE of a worker process, around the real schedule and the real replicas."""

    def __init__(self, fleet: "Drill", deployment: Deployment, replicas: Replicas) -> None:
        self._drill = fleet
        self._replicas = replicas
        self._changed = asyncio.Event()
        self._schedule = Schedule({deployment.name: deployment}, Gate(), lambda tenant: 1.0, slots=64)
        self._schedule.room = lambda name, begun: replicas.room(begun)
        self._schedule.is_away = lambda name: replicas.is_away
        self._schedule.welcomes = replicas.welcomes

    def put(self, job: Job) -> None:
        """It has come."""
        self._schedule.put(Ticket(job, Delivery("topic", job.id, Record(b"")), 1), now())
        self._changed.set()

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """For ever."""
        while True:
            self._changed.clear()
            self._schedule.let_back(now())
            self._schedule.fill(now())
            for turns in self._schedule.close(now()):
                for turn in turns:
                    tasks.create_task(self._run(turn))
            moment = self._schedule.next_change()
            try:
                async with asyncio.timeout(None if moment is None else max(0.0, moment - now())):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _run(self, turn: Turn[Ticket]) -> None:
        ticket, began, going = turn.item, now(), self._drill.going[turn.item.job.id]
        parked = await self._attempt(going)
        self._schedule.finish(turn, now() - began, now())
        if parked is not None:
            self._schedule.park(ticket, now() + parked)
        elif going.done_at is not None:
            self._schedule.learn(going.job, now() - began)
        self._changed.set()

    async def _attempt(self, going: Going) -> float | None:
        """None: it is over; else it comes again in so many seconds."""
        await asyncio.sleep(STEP_S)  # claim, quota
        place = await self._replicas.take(going.job, going.attempts + 1)
        if place is None:
            return 0.0
        going.attempts += 1
        await asyncio.sleep(STEP_S)  # start
        so_far, called = SoFar(), now()
        engine = self._drill.engines[place.replica.name]
        try:
            await engine.call(going.body, so_far, lambda: self._replicas.begins(place))
        except BackendError as error:
            self._replicas.failed(place, error)
            return self._after(going, error)
        finally:
            self._replicas.leave(place, tokens=so_far.usage.total)
        self._replicas.succeeded(place, so_far, now() - called)
        await asyncio.sleep(STEP_S)  # finish
        going.done_at = now()
        self._drill.ended()
        return None

    def _after(self, going: Going, error: BackendError) -> float | None:
        tried = Tried(going.attempts, going.attempts, DAY_S, has_replicas=error.another_replica)
        next_step = RetryRule(first_wait=0.1).decide(
            error.failure, tried, retry_after=None, jitter=self._drill.draw.random()
        )
        if isinstance(next_step, Again):
            return next_step.seconds
        self._drill.ended()
        return None


class Drill:
    """One phase: some engines, some workers, and the jobs that come."""

    def __init__(self, folder: Path, given: argparse.Namespace, *, affinity: bool) -> None:
        self.draw = random.Random(given.seed)
        self.going: dict[str, Going] = {}
        engines = [Engine(number, folder, given.faster) for number in range(ENGINES)]
        self.engines = {each.name: each for each in engines}
        self._given = given
        self._left = 0
        self._over = asyncio.Event()
        self._workers: list[Worker] = []
        fleet = Fleet(Folder(str(folder)), cap=SLOTS, probe_s=0.5, slow_start_s=3.0, affinity=affinity)
        self._deployment = Deployment("chat", "gpu", "any", Tier.LIGHT, window=32768, fleet=fleet)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """With all engines up, and seen by each worker."""
        board, http, clock = Board(), Http(list(self.engines.values())), asyncio.get_running_loop().time
        for each in self.engines.values():
            each.start()
            listed(each.folder, each.name, f"http://{each.name}")
        async with asyncio.TaskGroup() as tasks:
            beside = []
            for _ in range(self._given.workers):
                fleet = self._deployment.fleet
                assert fleet is not None
                replicas = Replicas(
                    self._deployment,
                    fleet,
                    cast("Places", board),
                    cast("aiohttp.ClientSession", http),
                    {},
                    clock=clock,
                    roll=self.draw.random,
                )
                beside.append(tasks.create_task(_for_ever(replicas)))
                self._workers.append(Worker(self, self._deployment, replicas))
                beside.append(tasks.create_task(self._workers[-1].run(tasks)))
            await asyncio.sleep(2.0)
            try:
                yield
            finally:
                for task in beside:
                    task.cancel()

    async def run(self, due: Sequence[Due]) -> list[Ended]:
        """All jobs, until the last one is over."""
        began, going = now(), []
        self._left = len(due)
        self._over.clear()
        for at, body in due:
            await asyncio.sleep(max(0.0, began + at - now()))
            one = Going(self._job(body), body)
            going.append(one)
            self.going[one.job.id] = one
            self.draw.choice(self._workers).put(one.job)
        await self._over.wait()
        return [
            Ended(
                one.job.created_at,
                one.body,
                None if one.done_at is None else one.done_at - one.job.created_at,
                one.attempts,
            )
            for one in going
        ]

    def ended(self) -> None:
        """One job is over."""
        self._left -= 1
        if not self._left:
            self._over.set()

    def _job(self, body: dict[str, Any]) -> Job:
        tokens = len(prompt_of(body)) // engine_double.CHARACTERS
        return Job(
            id=f"{len(self.going):026d}",
            tenant="acme",
            endpoint="/v1/chat/completions",
            model="chat",
            job_class=JobClass.STANDARD,
            route=Route("chat", "gpu", Modality.TEXT, Tier.LIGHT, (), None),
            estimate=Estimate(tokens, body["max_tokens"], Decimal(0)),
            body=json.dumps(body).encode(),
            created_at=now(),
            expires_at=now() + DAY_S,
            result_ttl_s=DAY_S,
        )


async def _for_ever(replicas: Replicas) -> None:
    async with replicas.running():
        await asyncio.Event().wait()


async def _well(folder: Path, given: argparse.Namespace, *, affinity: bool) -> Well:
    drill = Drill(folder, given, affinity=affinity)
    async with drill.running(), asyncio.TaskGroup() as tasks:
        began = now()
        settled = await drill.run(settling("chat", given.traffic, given.faster, seed=given.seed))
        engines = [each.engine for each in drill.engines.values()]
        for each in engines:
            each.begin_books()
        due = jobs("chat", given.traffic, given.well, given.rate / 2, seed=given.seed * 1000)
        held = tasks.create_task(_held(engines, due[-1][0]))
        ended = await drill.run(due)
        found = [each.metrics_text() for each in engines]
        calls = [each.calls.total for each in engines]
    hits, queries = (sum(_value(each, f"prefix_cache_{name}_total") for each in found) for name in ("hits", "queries"))
    return Well(began, settled, ended, held.result(), calls, hits / max(1.0, queries))


async def _held(engines: Sequence[engine_double.Engine], after: float) -> list[float]:
    """Seconds of slots until then."""
    await asyncio.sleep(after)
    for each in engines:
        each.count()
    return [each.calls.held_s for each in engines]


def _value(metrics: str, name: str) -> float:
    return next(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(f"vllm:{name}"))


async def _with_failures(folder: Path, given: argparse.Namespace) -> tuple[Failing, list[Server]]:
    drill, seconds = Drill(folder, given, affinity=True), given.seconds
    engines = list(drill.engines.values())
    engines[SLOW].speed *= SLOWNESS
    async with drill.running(), asyncio.TaskGroup() as tasks:
        began = now()
        settled = await drill.run(settling("chat", given.traffic, given.faster, seed=given.seed))
        tasks.create_task(_lying(engines[LIAR], seconds * 0.05, seconds * 0.25))
        tasks.create_task(_dying(engines[DIES], seconds * 0.35, seconds * 0.5))
        for number, at in zip(RESTARTED, (0.6, 0.8), strict=True):
            tasks.create_task(_restarted(engines[number], seconds * at))
        ended = await drill.run(jobs("chat", given.traffic, seconds, given.rate, seed=given.seed * 1000 + 1))
    waiting = max(each.engine.calls.most_waiting for each in engines)
    return Failing(began, settled, ended, waiting), [each.server(began) for each in engines]


async def _lying(engine: Engine, after: float, until: float) -> None:
    await asyncio.sleep(after)
    engine.engine.mode = "liar"
    await asyncio.sleep(until - after)
    engine.engine.mode = "well"
    engine.outages.append(Outage(now() - (until - after), None, now()))


async def _dying(engine: Engine, after: float, until: float) -> None:
    await asyncio.sleep(after)
    died = now()
    engine.kill()
    await asyncio.sleep(until - after + START_S)
    engine.start()
    engine.outages.append(Outage(died, died, now()))


async def _restarted(engine: Engine, after: float) -> None:
    await asyncio.sleep(after)
    closed = now()
    listed(engine.folder, engine.name, f"http://{engine.name}", drain=True)
    await asyncio.sleep(1.0)
    while True:
        if not engine.engine.is_busy:
            break
        await asyncio.sleep(LOOK_S)
    died = now()
    engine.kill()
    await asyncio.sleep(2.0 + START_S)
    engine.start()
    listed(engine.folder, engine.name, f"http://{engine.name}")
    engine.outages.append(Outage(closed, died, now()))


def simulated(given: argparse.Namespace) -> dict[str, float]:
    """All phases."""
    with tempfile.TemporaryDirectory(prefix="pointsman-fleet-") as name:
        folder = Path(name)
        spread = virtual_time.run(_well(folder, given, affinity=False))
        near = virtual_time.run(_well(folder, given, affinity=True))
        failing, servers = virtual_time.run(_with_failures(folder, given))
    return figures(spread, near, failing, servers, given.traffic, seconds=given.seconds, faster=given.faster)


def main() -> int:
    """As the drill's."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    given = arguments("bench.fleet_simulated", __doc__)
    return show(simulated(given), given)


if __name__ == "__main__":
    sys.exit(main())
