"""Jobs, deployments and what runs them, with everything filled in that a test is not about."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from ulid import ULID

from consumers.attempt import Attempt
from consumers.backend import Backend
from consumers.backend_echo import EchoBackend
from consumers.collector import Collector
from consumers.meters import WorkerMeters
from consumers.onward import Onward
from consumers.sweeper import Sweeper
from consumers.tally import Tally
from consumers.worker import Bounds, Worker
from policies.conditions import Conditions
from policies.cooldown import CooldownRule
from policies.deployments import Deployment, Modality, Tier
from policies.keys import ApiKeys
from policies.pricing import ChargeLine, Meter, Price, Usage, charge
from policies.quota import Quotas, Scopes
from policies.retries import RetryRule
from policies.scripts import BoardUnavailableError, Scripts
from policies.tenants import Tenant
from router import envelope, ledger, rebuild, topics
from router.board import Accepted, Attempted, Board, Conclusion, JobView
from router.costs import Spent, spent
from router.epoch import Epoch
from router.job import Estimate, Job, JobClass, JobState, Route
from router.keyring import Keyring
from router.log_streams import StreamsLog
from router.outbox import Outbox
from router.payloads import Payloads
from router.rebuild import Rebuild
from router.replies import Replies
from router.wakeups import Wakeups
from router.webhooks import Webhooks

# $0.15 and $0.60 per million tokens: a token costs a part of a microdollar, as real ones do.
PRICE = Price({Meter.INPUT: Decimal("0.15"), Meter.OUTPUT: Decimal("0.6")}, "test")
PATIENCE_S = 30.0  # until a broken promise counts as broken, on a machine that stands still now and then as well
IMPATIENT_S = 2.0


def impatient_client(url: str) -> "Redis":
    """One that gives up on a server that stands still for `IMPATIENT_S`, without a second try."""
    waits = dict.fromkeys(("timeout", "socket_timeout", "socket_connect_timeout"), IMPATIENT_S)
    pool = BlockingConnectionPool.from_url(url, **waits, retry=Retry(NoBackoff(), 0))
    return Redis.from_pool(pool)


@asynccontextmanager
async def standing_still(redis: "Redis") -> AsyncGenerator[None]:
    """The server of this client is stopped inside this block, and goes on after it."""
    pid = int((await redis.info("server"))["process_id"])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def until(holds: Callable[[], Awaitable[bool] | bool], *, within: float = PATIENCE_S) -> None:
    """Look every 10 ms; raise `TimeoutError` when it does not come true."""
    async with asyncio.timeout(within):
        while True:
            verdict = holds()
            if verdict if isinstance(verdict, bool) else await verdict:
                return
            await asyncio.sleep(0.01)


async def in_time(within: float, act: Callable[[], Awaitable[float]], *, tries: int = 3) -> None:
    """What `act` measures, in seconds, is no more than that: at one of a few tries.

    A product that is too slow is so each time; a machine that stands still for a moment is not.
    """
    took: list[float] = []
    while not took or took[-1] > within:
        assert len(took) < tries, f"it may take {within} s, and took {took}"
        took.append(await act())


async def answers(board: Board) -> bool:
    """Whether the board can be asked now: after it was away a breaker lets only one look in a while."""
    try:
        await board.ping()
    except BoardUnavailableError:
        return False
    return True


def a_body(text: str = "Hello there", **fields: object) -> bytes:
    """A chat completion's body; echo answers with `text`, and fails or waits where it says so."""
    return json.dumps({"model": "auto", "messages": [{"role": "user", "content": text}], **fields}).encode()


def a_deployment(name: str = "small", **fields: Any) -> Deployment:
    """A priced one on echo."""
    return Deployment(name, "echo", "echo", **{"tier": Tier.LIGHT, "price": PRICE, **fields})


def a_job(text: str = "Hello there", *, deployment: str = "small", deadline_s: float = 60.0, **fields: Any) -> Job:
    """A job with an id of its own, made just now."""
    now = time.time()
    defaults: dict[str, Any] = {
        "id": str(ULID()),
        "tenant": "acme",
        "endpoint": "/v1/chat/completions",
        "model": "auto",
        "job_class": JobClass.STANDARD,
        "route": Route(deployment, "echo", Modality.TEXT, Tier.LIGHT, ("asked for small",), 0.25),
        "estimate": Estimate(10, 20, Decimal("0.0000135")),
        "body": a_body(text),
        "created_at": round(now, 3),
        "expires_at": round(now + deadline_s, 3),
        "result_ttl_s": 3600.0,
    }
    return Job(**{**defaults, **fields})


def a_charge(
    job: Job,
    attempt: int = 1,
    *,
    microbatch: str = "mb_1",
    usage: Usage | None = None,
    price: Price | None = PRICE,
    outcome: str = "completed",
) -> Attempted:
    """What one attempt used."""
    used = usage or Usage(input=7, output=3)
    lines: tuple[ChargeLine, ...] = charge(price, used, job=job.id, attempt=attempt, outcome=outcome)
    return Attempted(attempt, microbatch, lines, used.total)


def an_event(job: Job, state: JobState, *, attempts: int = 0) -> str:
    """The terminal event of a job that was tried so often."""
    return ledger.event_text(job, state, usd=None, attempts=attempts)


def a_conclusion(
    job: Job, state: JobState = JobState.COMPLETED, *, attempted: Attempted | None = None, **fields: Any
) -> Conclusion:
    """One that charges nothing, unless `attempted` is given."""
    event = an_event(job, state, attempts=attempted.attempt if attempted else 0)
    return Conclusion(state, event, attempted, **fields)


async def accepted(board: Board, job: Job, *, deadline_s: float = 60.0, confirmed: bool = True) -> Job:
    """The job as the door has it after the board took it."""
    answer = await board.accept(job, deadline_s=deadline_s, idempotency=None, most_unfinished=1000)
    assert isinstance(answer, Accepted)
    if confirmed:
        await board.confirm(job.tenant, job.id)
    return replace(job, created_at=answer.created_at, expires_at=answer.expires_at, queue=answer.queue)


async def records(redis: "Redis", topic: str, prefix: str = "") -> list[dict[str, Any]]:
    """What is on a topic of a log on Redis Streams, oldest first, read as JSON."""
    return [json.loads(fields[b"v"]) for fields in await entries(redis, topic, prefix)]


async def entries(redis: "Redis", topic: str, prefix: str = "") -> list[dict[bytes, bytes]]:
    """What is on a topic of a log on Redis Streams, oldest first: the value under `v`, each header under `h:name`."""
    found: Any = await redis.xrange(f"{prefix}log:{topic}")
    return [fields for _, fields in found]


async def costs(redis: "Redis", board: Board, by: Any = "tenant", tenants: Sequence[str] = ("acme",)) -> list[Spent]:
    """What was spent today, and yesterday: midnight may pass under a test."""
    now = await board.now()
    days = sorted({date_of(now), date_of(now - 3600)})
    return await spent(redis, tenants, by=by, days=days)


def date_of(moment: float) -> date:
    """The day of a moment in UTC."""
    return datetime.fromtimestamp(moment, UTC).date()


Copy = Sequence[bytes | int]  # the name of each key, its time to live in ms, 0 for none, and its value

# At one moment, as a replica or a backup is: others write all the while.
COPY = """
local found = {}
for _, name in ipairs(redis.call('KEYS', '*')) do
  if ARGV[1] == '' or name:sub(1, #ARGV[1]) ~= ARGV[1] then
    for _, part in ipairs({name, math.max(0, redis.call('PTTL', name)), redis.call('DUMP', name)}) do
      found[#found + 1] = part
    end
  end
end
return found
"""
SET_BACK = """
for _, name in ipairs(redis.call('KEYS', '*')) do
  if ARGV[1] == '' or name:sub(1, #ARGV[1]) ~= ARGV[1] then redis.call('DEL', name) end
end
for i = 2, #ARGV, 3 do redis.call('RESTORE', ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
"""


async def copy_of(redis: "Redis", *, but: str = "") -> Copy:
    """All of this database, but for names that begin so."""
    return cast(Copy, await cast(Any, redis.eval(COPY, 0, but)))


async def set_back(redis: "Redis", copy: Copy, *, but: str = "") -> None:
    """The copy takes over."""
    await cast(Any, redis.eval(SET_BACK, 0, but, *copy))


@dataclass
class Bench:
    """All that stands between a record and its conclusion, on one Redis."""

    redis: "Redis"
    scripts: Scripts
    log: StreamsLog
    board: Board
    quotas: Quotas
    payloads: Payloads
    deployments: dict[str, Deployment]
    tenants: dict[str, Tenant]
    retries: RetryRule = field(default_factory=lambda: RetryRule(first_wait=0.02, longest_wait=0.1))
    cooldown: CooldownRule = field(default_factory=lambda: CooldownRule(first=0.2, longest=1.0))
    lease_s: float = 20.0

    @property
    def outbox(self) -> Outbox:
        """Publishes on the bench's log."""
        return Outbox(self.board, self.log, self.quotas, self.deployments, self.webhooks, self.replies)

    @property
    def replies(self) -> Replies:
        """Sends answers on the bench's log."""
        return Replies(self.board, self.log, self.payloads)

    @property
    def webhooks(self) -> Webhooks:
        """What is owed to the bench's tenants."""
        return Webhooks(self.scripts, self.tenants)

    @property
    def keyring(self) -> Keyring:
        """API keys that are on the bench's log as well."""
        return Keyring(ApiKeys(self.redis), self.log)

    @property
    def rebuild(self) -> Rebuild:
        """Makes the board anew."""
        scopes = Scopes(self.tenants, self.deployments)
        return Rebuild(self.log, self.board, self.quotas, scopes, self.keyring, self.scripts)

    def attempt(self, backend: Backend | None = None, **fields: Any) -> Attempt:
        """What a worker process runs deliveries with; each has a channel of its own."""
        return Attempt(
            **{
                "board": self.board,
                "epoch": Epoch(self.board),
                "outbox": self.outbox,
                "quotas": self.quotas,
                "payloads": self.payloads,
                "wakeups": Wakeups(self.redis, role="test"),
                "backend": backend or EchoBackend(),
                "deployments": self.deployments,
                "tenants": self.tenants,
                "onward": Onward(
                    deployments=self.deployments,
                    retries=self.retries,
                    conditions=Conditions(self.scripts, self.cooldown, time.monotonic),
                    jitter=random.Random(1).random,
                    clock=time.monotonic,
                ),
                "lease_s": self.lease_s,
                "most_deliveries": 3,
                "jitter": random.Random(1).random,
                **fields,
            }
        )

    def worker(
        self, backend: Backend | None = None, *, bounds: Bounds | None = None, name: str = "echo", **fields: Any
    ) -> Worker:
        """A worker for all lanes of the backend of that name."""
        return Worker(
            log=fields.pop("log", self.log),
            topics=topics.for_backend(name, self.deployments),
            group=f"workers.{name}",
            attempt=self.attempt(backend, **fields),
            deployments=self.deployments,
            bounds=bounds or Bounds(drain_s=5.0),
            meters=WorkerMeters(CollectorRegistry()),
        )

    def collector(self, backend: Backend, name: str = "echo", **fields: Any) -> Collector:
        """A collector of what the backend of that name has."""
        attempt = self.attempt(backend)
        return Collector(self.log, attempt, name, tuple(self.tenants), Epoch(self.board), **{"every_s": 0.05, **fields})

    async def job(self, text: str = "Hello there", *, deadline_s: float = 60.0, **fields: Any) -> Job:
        """A job on the board, but not on the log."""
        return await accepted(self.board, a_job(text, **fields), deadline_s=deadline_s)

    async def queued(self, text: str = "Hello there", *, deadline_s: float = 60.0, **fields: Any) -> Job:
        """A job on the board and on the log."""
        job = await accepted(self.board, a_job(text, **fields), deadline_s=deadline_s, confirmed=False)
        await self.log.append(job.topic, envelope.to_record(job))
        await self.board.confirm(job.tenant, job.id)
        return job

    async def wipe(self) -> None:
        """Everything but the log, which on a cluster is on Kafka."""
        await self.set_back(())

    async def copied(self) -> Copy:
        """Everything but the log, as a replica or a backup would have it now."""
        return await copy_of(self.redis, but="log")

    async def set_back(self, copy: Copy) -> None:
        """The copy takes over."""
        await set_back(self.redis, copy, but="log")

    async def view(self, job: Job) -> JobView:
        """The job as the board knows it."""
        view = await self.board.view(job.tenant, job.id)
        assert view is not None
        return view

    async def state(self, job: Job) -> JobState:
        """Where the job is."""
        return (await self.view(job)).state

    async def ended(self, *jobs: Job, within: float = PATIENCE_S) -> list[JobView]:
        """These jobs, once all of them are over."""

        async def all_over() -> bool:
            return all([(await self.view(job)).state.is_terminal for job in jobs])

        await until(all_over, within=within)
        return [await self.view(job) for job in jobs]

    async def events(self) -> dict[str, str]:
        """The type of each job's terminal event on the log. Raises AssertionError for a second one."""
        found = [(event["data"]["id"], event["type"]) for event in await records(self.redis, topics.EVENTS)]
        assert len(found) == len(dict(found)), "a job ended twice"
        return dict(found)

    async def charges(self) -> list[dict[str, Any]]:
        """The attempts on the ledger."""
        return [row for row in await records(self.redis, topics.CHARGES) if row["type"] == "attempt"]

    async def costs(self, by: str = "tenant") -> list[Spent]:
        """What all tenants spent."""
        return await costs(self.redis, self.board, by, tuple(self.tenants))


@asynccontextmanager
async def a_bench(
    redis: "Redis", folder: Path, *, deployments: Sequence[Deployment] = (), tenants: Sequence[Tenant] = ()
) -> AsyncGenerator[Bench]:
    """A bench whose topics are there."""
    scripts = Scripts(redis)
    by_name: Mapping[str, Deployment] = {each.name: each for each in deployments or (a_deployment(),)}
    bench = Bench(
        redis=redis,
        scripts=scripts,
        log=StreamsLog(redis, idle_s=2.0),
        board=Board(scripts),
        quotas=Quotas(scripts),
        payloads=Payloads.open(f"file://{folder / 'objects'}"),
        deployments=dict(by_name),
        tenants={each.name: each for each in tenants or (Tenant("acme"),)},
    )
    await bench.log.create(topics.all_topics(bench.deployments))
    await rebuild.begin(bench.log, bench.board)
    yield bench


def a_sweeper(bench: Bench, **fields: Any) -> Sweeper:
    """One of all tenants that comes round all the time."""
    return Sweeper(
        **{
            "board": bench.board,
            "epoch": Epoch(bench.board),
            "outbox": bench.outbox,
            "payloads": bench.payloads,
            "tenants": tuple(bench.tenants),
            "lease_s": 20.0,
            "every_s": 0.02,
            **fields,
        }
    )


@asynccontextmanager
async def keeping(attempt: Attempt) -> AsyncGenerator[None]:
    """With what a worker does beside its attempts: leases are kept and wake-ups heard."""
    async with asyncio.TaskGroup() as tasks:
        beside = (attempt.leases.keep(), attempt.leases.heed(), attempt.wakeups.follow())
        keepers = [tasks.create_task(each) for each in beside]
        try:
            yield
        finally:
            for keeper in keepers:
                keeper.cancel()


def a_tally(microbatch: str = "mb_1") -> Tally:
    """An empty one."""
    return Tally(microbatch, "small", "echo.text.light", started=0.0)
