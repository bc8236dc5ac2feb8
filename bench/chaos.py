"""The drill: three brokers, workers and gateways that die, a board that freezes, and nothing may be lost or done twice.

    python -m bench.chaos [--jobs 10000] [--long 200] [--faults 50] [--seed N] [--markdown docs/reference/chaos.md]

Three real Kafka brokers, one Valkey that writes each change to disk before it answers, two gateways, two to four
workers, a sweeper, and an upstream in a process of its own that records every call. Clients send short jobs (10-50 ms
upstream) and long ones (15-40 s) all the while, each with an idempotency key, and try again until they have a 202.
Faults come at random, in an order that the printed seed repeats:

| fault | what is done |
|---|---|
| `worker_kill` `gateway_kill` `sweeper_kill` | `kill -9`; another one is started |
| `worker_stop` `gateway_stop` | SIGTERM, as a deployment does it; another one is started |
| `worker_joins` | one more worker; where there are four, one of them is told to end |
| `broker_kill` `broker_stop` | `kill -9`, or SIGTERM; it is started again some seconds later |
| `broker_freeze` | a broker, which leads a third of the partitions, stands still (SIGSTOP) for 3-12 s: time-outs |
| `valkey_freeze` | Valkey stands still for 1-8 s |

One broker at a time, as two of three must hold each record; everything else overlaps as it comes.

When all is over, three records are compared, none of which knows of the others: what the clients were told, what
upstream saw, and what is on board, `jobs.events` and `ledger.charges`. The last line is one JSON object:

- `jobs` `faults`: accepted, and injected
- `lost`: accepted, and not completed on the board, without event or without charge
- `completed_twice`: jobs with two terminal events or two completed attempts; orders that became two completed jobs
- `dollars_off`: the largest difference between three sums: the lines on the ledger (repeats dropped by id), the
  rollups, the lines of the jobs
- `duplicate_calls`: calls beyond one for each job, from upstream's own record
- `duplicate_calls_allowed`: those that upstream still had open when their worker was killed, and those whose answer was
  on its way to the board just then; both are told apart in the table. A drain that closes a call allows nothing
- `calls_off_ledger` `charged_unseen` `misquoted`: calls without exactly one attempt on the ledger, attempts that were
  never sent, attempts with other quantities than upstream counted
- `seed` `seconds`

Exit code 1 when something was lost or done twice, a dollar is off, or calls were repeated beyond what is allowed.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from bench.audit import Audit, audit, settled
from bench.crew import Crew, Member, crew, freeze
from bench.provider_double import Call, Running, provider
from bench.servers import LIMITS, TENANT, Stage, stage
from tests.acceptance.contents import leaks_of
from tests.acceptance.refusals import Refused
from tools.kafka.broker import HOST, KafkaToolError, free_ports

GATEWAYS, WORKERS, MOST_WORKERS = 2, 3, 4
SLOTS = 40  # of a worker, for each of the two deployments
LEASE_S = 15
DRAIN_S = 60  # longer than the longest call, as `pointsman check` asks for: a deploy closes none
SHORT_MS, LONG_MS = (10, 50), (15_000, 40_000)
CLIENTS = 32
ASK_S = 40.0  # one try of a client
KEEP_TRYING_S = 300.0
SETTLE_S = 300.0
CLUSTER_S = 120.0
NEAR_S = 2.0  # before a death, or before a freeze that lasted until then
WARM_UP_S = 3.0
PATH = "/v1/chat/completions"

FAULTS: Mapping[str, int] = {
    "worker_kill": 5,
    "worker_stop": 3,
    "worker_joins": 3,
    "gateway_kill": 3,
    "gateway_stop": 2,
    "sweeper_kill": 1,
    "broker_kill": 2,
    "broker_stop": 1,
    "broker_freeze": 2,
    "valkey_freeze": 4,
}


@dataclass(frozen=True, slots=True)
class Death:
    """A worker is gone, at this moment (seconds since the epoch)."""

    at: float
    killed: bool


@dataclass(slots=True)
class Clients:
    """Those who send jobs, each until it has its 202, whoever answers it."""

    urls: Sequence[str]
    key: str
    draw: random.Random
    accepted: dict[str, str] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    told: list[Refused] = field(default_factory=list)
    gave_up: int = 0
    slowest_s: float = 0.0

    async def send(self, bodies: Mapping[str, dict[str, object]], rate: Callable[[], float]) -> None:
        """All of these, about `rate()` a second."""
        waiting = iter(bodies.items())
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        headers = {"authorization": f"Bearer {self.key}"}
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as http, asyncio.TaskGroup() as tasks:
            room = asyncio.Semaphore(CLIENTS * 8)  # while nothing is accepted, no more than these wait
            for number, body in waiting:
                await room.acquire()
                task = tasks.create_task(self._submit(http, number, body))
                task.add_done_callback(lambda _: room.release())
                await asyncio.sleep(self.draw.expovariate(rate()))

    async def _submit(self, http: aiohttp.ClientSession, number: str, body: Mapping[str, object]) -> None:
        began = time.monotonic()
        wait = 0.1
        while time.monotonic() - began < KEEP_TRYING_S:
            url = self.draw.choice(self.urls)
            try:
                headers = {"idempotency-key": f"order-{number}"}
                async with http.post(f"{url}{PATH}", json=body, headers=headers) as answer:
                    if answer.status == 202:
                        self.accepted[number] = str((await answer.json())["id"]).removeprefix("job_")
                        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                        return
                    self.refused[str(answer.status)] += 1
                    self.told.append(Refused("", self.key, await answer.text()))
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.refused[type(error).__name__] += 1
            await asyncio.sleep(wait * (0.5 + self.draw.random()))
            wait = min(wait * 2, 3.0)
        self.gave_up += 1


@dataclass(slots=True)
class Chaos:
    """Injects faults. What it did is in `done`, `deaths` and `freezes` (from, to)."""

    place: Stage
    ours: Crew
    ports: Sequence[int]
    valkey_pid: int
    draw: random.Random
    done: Counter[str] = field(default_factory=Counter)
    deaths: list[Death] = field(default_factory=list)
    freezes: list[tuple[float, float]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _broker: asyncio.Lock = field(default_factory=asyncio.Lock)
    _valkey: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    async def run(self, count: int, seconds: float) -> None:
        """So many faults, spread over so long; returns when all of them are over and everything runs again."""
        for name in self._order(count):
            at = asyncio.get_running_loop().time()
            self._say(name)
            await getattr(self, f"_{name}")()
            self.done[name] += 1
            gap = seconds / count * self.draw.uniform(0.3, 1.7)
            await asyncio.sleep(max(0.2, gap - (asyncio.get_running_loop().time() - at)))
        await asyncio.gather(*self._tasks)
        while len(self.ours.alive("worker")) < GATEWAYS:
            await self.ours.worker("gpu")

    def _order(self, count: int) -> list[str]:
        """Every kind where there is room for it, the rest by weight, shuffled."""
        kinds = list(FAULTS)
        chosen = self.draw.sample(kinds, min(count, len(kinds)))
        chosen += self.draw.choices(kinds, list(FAULTS.values()), k=count - len(chosen))
        self.draw.shuffle(chosen)
        return chosen

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {what}", file=sys.stderr, flush=True)

    def _beside(self, act: Awaitable[None]) -> None:
        task = asyncio.ensure_future(act)
        self._tasks.add(task)
        task.add_done_callback(self._look)

    def _look(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)  # one that failed is raised by `run`

    async def _worker_kill(self) -> None:
        await self._kill_worker()
        await self.ours.worker("gpu")

    async def _kill_worker(self) -> None:
        worker = self.draw.choice(self.ours.alive("worker"))
        await worker.kill()
        self.deaths.append(Death(time.time(), killed=True))

    async def _worker_stop(self) -> None:
        self._stop_worker()
        await self.ours.worker("gpu")

    def _stop_worker(self) -> None:
        worker = self.draw.choice(self.ours.alive("worker"))
        worker.terminate()
        self._beside(self._drained(worker))

    async def _drained(self, worker: Member) -> None:
        try:
            async with asyncio.timeout(DRAIN_S + 60):
                await worker.process.wait()
        except TimeoutError:
            self._say(f"a worker did not end within {DRAIN_S + 60} s of SIGTERM: killed")
            self.done["worker_stop_hung"] += 1
            await worker.kill()
            self.deaths.append(Death(time.time(), killed=True))
            return
        self.deaths.append(Death(time.time(), killed=False))

    async def _worker_joins(self) -> None:
        if len(self.ours.alive("worker")) >= MOST_WORKERS:
            self._stop_worker()
            return
        await self.ours.worker("gpu")

    async def _gateway_kill(self) -> None:
        gateway = self.draw.choice(self.ours.alive("http"))
        await gateway.kill()
        await self.ours.http(gateway.port)

    async def _gateway_stop(self) -> None:
        gateway = self.draw.choice(self.ours.alive("http"))
        gateway.terminate()
        self._beside(self._replaced(gateway))

    async def _replaced(self, gateway: Member) -> None:
        await gateway.process.wait()
        await self.ours.http(gateway.port)

    async def _sweeper_kill(self) -> None:
        for sweeper in self.ours.alive("sweeper"):
            await sweeper.kill()
        await self.ours.sweeper()

    async def _broker_kill(self) -> None:
        await self._broker_away(hard=True)

    async def _broker_stop(self) -> None:
        await self._broker_away(hard=False)

    async def _broker_away(self, *, hard: bool) -> None:
        cluster = self.place.cluster
        assert cluster is not None
        await self._broker.acquire()
        index = self.draw.randrange(len(cluster.brokers))
        process = cluster.brokers[index].process
        assert process is not None
        process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
        away_s = self.draw.uniform(3, 8)

        async def back() -> None:
            try:
                await asyncio.to_thread(process.wait, CLUSTER_S)
                cluster.brokers[index].process = None
                await asyncio.sleep(away_s)
                cluster.relaunch(index)
                await self._whole_cluster()
            finally:
                self._broker.release()

        self._beside(back())

    async def _broker_freeze(self) -> None:
        cluster = self.place.cluster
        assert cluster is not None
        await self._broker.acquire()
        process = self.draw.choice(cluster.brokers).process
        assert process is not None
        seconds = self.draw.uniform(3, 12)

        async def thaw() -> None:
            try:
                await freeze(process.pid, seconds)
                await self._whole_cluster()
            finally:
                self._broker.release()

        self._beside(thaw())

    async def _whole_cluster(self) -> None:
        """All brokers answer, and have had a moment to follow again: the next fault may take another one."""
        cluster = self.place.cluster
        assert cluster is not None
        await asyncio.to_thread(cluster.wait_until_ready, CLUSTER_S)
        await asyncio.sleep(5)

    async def _valkey_freeze(self) -> None:
        await self._valkey.acquire()
        seconds = self.draw.uniform(1, 8)

        async def thaw() -> None:
            began = time.time()
            try:
                await freeze(self.valkey_pid, seconds)
            finally:
                self.freezes.append((began, time.time()))
                self._valkey.release()

        self._beside(thaw())


@dataclass(frozen=True, slots=True)
class Repeats:
    """Why calls could be repeated: open upstream at a kill, answered and not yet saved at a kill, closed by a drain."""

    open_at_kill: int
    unsaved_at_kill: int
    closed_by_drain: int

    @classmethod
    def of(cls, chaos: Chaos, found: Audit, seen: Sequence[Call]) -> "Repeats":
        """From upstream's record of how each call ended, and the moments at which workers died."""
        broken_off = [call for call in seen if call.state == "aborted"]
        kills = [death.at for death in chaos.deaths if death.killed]
        at_kill = [call for call in broken_off if call.request not in found.aborted_attempts and _is_near(call, kills)]
        unsaved = [
            call
            for call in seen
            if call.state == "answered"
            and call.request in found.lost_attempts
            and any(chaos_before(at, chaos.freezes) <= (call.ended or 0.0) <= at + NEAR_S for at in kills)
        ]
        drained = [call for call in broken_off if call.request in found.aborted_attempts]
        return cls(len(at_kill), len(unsaved), len(drained))

    @property
    def allowed(self) -> int:
        """What no order of steps could have spared: a call that a drain closes could have been waited for."""
        return self.open_at_kill + self.unsaved_at_kill


def _is_near(call: Call, moments: Sequence[float]) -> bool:
    return any(abs((call.ended or 0.0) - at) <= NEAR_S for at in moments)


def chaos_before(at: float, freezes: Sequence[tuple[float, float]]) -> float:
    """Since when an answer may have waited to be saved by a worker that died then: since a freeze, if one was on."""
    since = at - NEAR_S
    return min([since, *(began for began, ended in freezes if began <= at and ended >= since)])


@dataclass(frozen=True, slots=True)
class Report:
    """What came out."""

    seed: int
    seconds: float
    chaos: Chaos
    clients: Clients
    found: Audit
    repeats: Repeats
    settled: bool

    @property
    def is_ok(self) -> bool:
        """Nothing lost, nothing done twice, nothing off."""
        within = self.found.duplicate_calls <= self.repeats.allowed
        return self.settled and self.found.is_clean and within and not self.clients.gave_up

    def figures(self) -> dict[str, object]:
        """The JSON."""
        return {
            "jobs": self.found.jobs,
            "faults": sum(self.chaos.done[name] for name in FAULTS),
            "lost": self.found.lost,
            "completed_twice": self.found.completed_twice,
            "dollars_off": f"{self.found.dollars_off.normalize():f}",
            "duplicate_calls": self.found.duplicate_calls,
            "duplicate_calls_allowed": self.repeats.allowed,
            "calls_off_ledger": self.found.calls_off_ledger,
            "charged_unseen": self.found.charged_unseen,
            "misquoted": self.found.misquoted,
            "seed": self.seed,
            "seconds": round(self.seconds),
        }

    def rows(self) -> list[tuple[str, str]]:
        """For people, in order."""
        found, repeats = self.found, self.repeats
        refused = ", ".join(f"{count} x {name}" for name, count in sorted(self.clients.refused.items()))
        return [
            ("jobs accepted", str(found.jobs)),
            ("faults injected", str(sum(self.chaos.done[name] for name in FAULTS))),
            ("lost", str(found.lost)),
            ("completed twice", str(found.completed_twice)),
            ("dollars on the ledger", f"{found.usd_ledger.normalize():f}"),
            ("dollars off (rollups, jobs)", f"{found.dollars_off.normalize():f}"),
            ("calls that upstream saw", str(found.calls)),
            ("calls without exactly one attempt on the ledger", str(found.calls_off_ledger)),
            ("attempts charged that upstream never saw", str(found.charged_unseen)),
            ("attempts with other quantities than upstream's", str(found.misquoted)),
            ("calls made twice", str(found.duplicate_calls)),
            ("allowed: open upstream when their worker was killed", str(repeats.open_at_kill)),
            ("allowed: answered, not yet saved when it was killed", str(repeats.unsaved_at_kill)),
            ("not allowed: closed at the end of a drain", str(repeats.closed_by_drain)),
            ("records that came twice and were dropped by id", str(found.repeats)),
            ("orders that were never accepted", str(self.clients.gave_up)),
            ("tries that clients had to repeat", refused or "none"),
            ("slowest accept, tries included", f"{self.clients.slowest_s:.1f} s"),
            ("seconds from the first job to the last", f"{self.seconds:.0f}"),
        ]


def main() -> int:
    """Run the drill, print the report, and say with the exit code whether everything held."""
    given = _arguments()
    print(f"seed {given.seed}", file=sys.stderr, flush=True)
    with provider() as upstream:
        report = uvloop.run(_drill(given, upstream))
    _print(report)
    if given.markdown is not None:
        given.markdown.write_text(_markdown(report, given), encoding="utf-8")
    print(json.dumps(report.figures()), flush=True)
    return 0 if report.is_ok else 1


async def _drill(given: argparse.Namespace, upstream: Running) -> Report:
    draw = random.Random(given.seed)
    async with stage(log="kafka", brokers=3, changed=_settings(upstream)) as place, crew(place) as ours:
        ports = free_ports(GATEWAYS)
        members = [await ours.http(port) for port in ports]
        members += [await ours.worker("gpu") for _ in range(WORKERS)]
        members.append(await ours.sweeper())
        await asyncio.gather(*(member.ready() for member in members))
        valkey_pid = (await place.core.redis.info("server"))["process_id"]
        chaos = Chaos(place, ours, ports, valkey_pid, random.Random(given.seed + 1))
        clients = Clients([f"http://{HOST}:{port}" for port in ports], await place.new_key(), random.Random(given.seed))
        bodies = _bodies(given, draw)
        began = time.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(
                    clients.send(bodies, lambda: len(bodies) / given.seconds * draw.choice((0.5, 1.5, 3)))
                )
                await asyncio.sleep(WARM_UP_S)
                await chaos.run(given.faults, given.seconds)
            is_settled = await settled(place, SETTLE_S)
            seconds = time.monotonic() - began
            await asyncio.sleep(2)  # calls that nobody waits for any more come to their end
            seen = await asyncio.to_thread(upstream.record)
            found = await audit(place, clients.accepted, seen)
            assert await leaks_of(ours, clients.told) == []
        finally:
            if given.keep is not None:
                shutil.copytree(ours.folder, given.keep, dirs_exist_ok=True)
        if given.keep is not None:
            (given.keep / "calls.json").write_text(json.dumps([[c.request, c.state, c.started, c.ended] for c in seen]))
        return Report(given.seed, seconds, chaos, clients, found, Repeats.of(chaos, found, seen), is_settled)


def _bodies(given: argparse.Namespace, draw: random.Random) -> dict[str, dict[str, object]]:
    """Short and long ones, mixed; the long ones all in the first half, so that they end with the faults."""
    count = given.jobs + given.long
    long = set(draw.sample(range(int(count * 0.8)), given.long))
    return {str(number): _body(number, draw, is_long=number in long) for number in range(count)}


def _body(number: int, draw: random.Random, *, is_long: bool) -> dict[str, object]:
    ms = draw.randint(*(LONG_MS if is_long else SHORT_MS))
    text = f"n={number} ms={ms} out={draw.randint(4, 40)} Say in one line what this parcel may hold."
    return {
        "model": "heavy" if is_long else "light",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 64,
        "metadata": {"number": str(number)},
        "async": True,
    }


def _settings(upstream: Running) -> dict[str, object]:
    def deployment(tier: str, price: Mapping[str, str]) -> dict[str, object]:
        return {
            "backend": "gpu",
            "url": f"{upstream.url}/v1",
            "model": "any",
            "tier": tier,
            "limits": {"requests_per_minute": 1e7, "tokens_per_minute": 1e10, "concurrency": SLOTS * MOST_WORKERS},
            "price": price,
        }

    tenant = {"limits": dict(LIMITS), "max_unfinished": 1_000_000, "max_in_class": 100_000}
    return {
        "kafka": {"replication": 3, "partitions": 4},
        "deployments": {
            "light": deployment("light", {"input": "0.123457", "output": "0.654321"}),
            "heavy": deployment("heavy", {"input": "3.000001", "output": "15.1"}),
        },
        "tenants": {TENANT: tenant},
        "worker": {
            "lease_s": LEASE_S,
            "drain_s": DRAIN_S,
            "health_port": 0,
        },
    }


def _print(report: Report) -> None:
    console = Console(width=100)
    table = Table("figure", "value", title="Chaos: " + ("everything held" if report.is_ok else "BROKEN"))
    for name, value in report.rows():
        table.add_row(name, value)
    console.print(table)
    faults = Table("fault", "times")
    for name in [*FAULTS, *(name for name in report.chaos.done if name not in FAULTS)]:
        faults.add_row(name, str(report.chaos.done[name]))
    console.print(faults)


def _markdown(report: Report, given: argparse.Namespace) -> str:
    lines = [
        "# The chaos drill",
        "",
        "Written by `python -m bench.chaos --markdown docs/reference/chaos.md`; do not edit by hand.",
        "",
        f"Three Kafka brokers, one Valkey with `appendfsync always`, {GATEWAYS} gateways, 2 to {MOST_WORKERS} workers, "
        "a sweeper, and an upstream",
        "in a process of its own that records every call, all on one machine with "
        f"{os.cpu_count()} cores. {given.jobs:,} short jobs (10-50 ms) and {given.long}",
        "long ones (15-40 s) came in all the while; clients tried again with their idempotency key until they had a",
        "`202`.",
        f"Seed {report.seed}. The head of `bench/chaos.py` says how each figure is counted.",
        "",
        "| figure | value |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in report.rows()),
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| `{name}` | {report.chaos.done[name]} |" for name in FAULTS),
        "",
        "A call is made twice when it was open upstream as its worker died, or when its answer had come and was not on "
        "the board yet:",
        "nobody can know what became of it. Both calls are on the ledger.",
        "",
    ]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chaos", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--jobs", type=int, default=10_000, help="short ones")
    parser.add_argument("--long", type=int, default=200, help="long ones")
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seconds", type=float, help="over which jobs and faults are spread; 8 for each fault")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--markdown", type=Path, help="where to write the report")
    parser.add_argument("--keep", type=Path, help="a folder for what the processes printed")
    given = parser.parse_args()
    given.seconds = given.seconds or 8.0 * given.faults
    return given


if __name__ == "__main__":
    with suppress(KafkaToolError):
        sys.exit(main())
    sys.exit(2)
