"""A process that dies between any two steps of accept or of finish: the job, its charges and its event survive.

A step is what has an effect outside the process: a script in Redis, an append to the log, an object put in the
store, an upstream call. They are reached through collaborators that the test passes in; those of a process that
has died do nothing any more.
"""

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from consumers.attempt import Attempt
from consumers.backend import Answer, Backend, BackendError, OnChunk, SoFar
from consumers.onward import Onward
from consumers.outcome import Later
from consumers.sweeper import Sweeper
from consumers.tally import Tally
from gateway import wiring
from gateway.accept import INLINE_BODY, Acceptance, Desk
from gateway.attached import Attached
from gateway.parsers import PARSERS
from gateway.settings import Settings
from policies.conditions import Conditions
from policies.deployments import Deployment
from policies.keys import KeyHolder
from policies.pricing import ChargeLine, Usage
from policies.quota import Quotas
from policies.retries import Failure
from policies.scripts import Scripts
from router import rebuild, responses, topics
from router.board import Board, JobView
from router.conversations import Conversations
from router.costs import spent
from router.envelope import from_record, to_record
from router.job import Job, JobState
from router.log import Log, LogUnavailableError, Record
from router.outbox import Outbox
from router.replies import Replies
from router.shares import Shares
from router.wakeups import Wakeups
from router.webhooks import Webhooks
from tests.acceptance.books import Books

TENANTS = 400
MOST_STEPS = 60
FIRST_STEPS, PAIRED_STEPS = 11, 22
LEASE_S = 1.0
SETTLED_S = 40.0
BIG = 70_000  # characters of an answer: it goes to the object store

Part = TypeVar("Part")


class Killed(BaseException):
    """The process has ended here. A real one would not even raise."""


class Life:
    """The life of one process. It ends before or after one of its steps, or never."""

    def __init__(self, moment: int | None = None) -> None:
        """Moment 0 is before the first step, 1 after it, 2 before the second one, and so on."""
        self.steps: list[str] = []
        self.is_over = False
        self._moment = moment

    def of(self, part: Part) -> Part:
        """This collaborator, as a process with this life has it."""
        return cast(Part, _Mortal(part, self))

    async def step(self, name: str, act: Callable[[], Awaitable[object]]) -> object:
        """Do it, unless the process has died or dies now."""
        self._look(2 * len(self.steps))
        self.steps.append(name)
        moment = 2 * len(self.steps) - 1
        try:
            return await act()
        finally:
            self._look(moment)

    def _look(self, moment: int) -> None:
        self.is_over = self.is_over or moment == self._moment
        if self.is_over:
            raise Killed


class _Mortal:
    def __init__(self, part: object, life: Life) -> None:
        self._part = part
        self._life = life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def step(*arguments: Any, **named: Any) -> object:
            about = getattr(arguments[0], "name", "") if arguments else ""
            return await self._life.step(f"{name} {about}".strip(), lambda: found(*arguments, **named))

        return step


class Upstream:
    """A backend that counts its calls, in a world of its own: it outlives every process."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer:
        """What the prompt asks for: `big`, `cut once`, `refused`, or anything."""
        self.calls[f"{job.id}.{attempt}"] += 1
        prompt = json.loads(job.body)["messages"][0]["content"]
        if prompt == "cut once" and attempt == 1:
            raise BackendError(Failure.CUT, "as asked", usage=Usage(input=9, output=2))
        if prompt == "refused":
            raise BackendError(Failure.REJECTED, "as asked")
        content = "x" * BIG if prompt == "big" else "hello"
        return Answer(json.dumps({"content": content}).encode(), Usage(input=11, output=7))

    async def ping(self, deployment: Deployment) -> str | None:
        """It is there."""
        return None


@dataclass(slots=True)
class World:
    """What outlives a process: Redis, the log, the objects, upstream. Each case has a tenant of its own."""

    core: wiring.Core
    scripts: Scripts
    upstream: Upstream = field(default_factory=Upstream)
    _begun: list[str] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def open(cls, redis_url: str, folder: Path) -> AsyncGenerator["World"]:
        limits = {"requests_per_minute": 6000, "tokens_per_minute": 600000, "concurrency": 4, "usd_per_month": "9"}
        numbers = range(TENANTS)  # each has a deployment of its own, which is not left alone because of others' calls
        light = {
            "backend": "echo",
            "model": "light",
            "tier": "light",
            "window": 1_000_000,
            "limits": {"requests_per_minute": 60000, "concurrency": 64, "usd_per_month": "900"},
            "price": {"input": "0.123457", "output": "0.654321"},
        }
        settings = Settings.model_validate(
            {
                "redis": redis_url,
                "data": folder,
                "kafka": {"prefix": f"c{uuid4().hex[:8]}."},
                "tenants": {
                    f"case{each}": {"limits": limits, "aliases": {"light": f"light{each}"}} for each in numbers
                },
                "worker": {"lease_s": LEASE_S, "first_wait_s": 0.01, "max_deliveries": 3},
                "deployments": {f"light{each}": light for each in numbers},
            }
        )
        async with wiring.core(settings) as core:
            await core.log.create(topics.all_topics(core.deployments))
            await rebuild.begin(core.log, core.board)
            yield cls(core, Scripts(core.redis))

    def tenant(self) -> str:
        """One that nothing has happened to yet."""
        self._begun.append(f"case{len(self._begun)}")
        return self._begun[-1]

    def desk(self, life: Life) -> Desk:
        """The door of a process with this life."""
        core = self.core
        scripts = life.of(self.scripts)
        return Desk(
            board=Board(scripts),
            epoch=core.epoch,
            log=life.of(core.log),
            quotas=Quotas(scripts),
            payloads=life.of(core.payloads),
            tenants=core.tenants,
            deployments=core.deployments,
            shares=Shares(),
            attached=Attached(core.files, core.settings.http.max_body),
        )

    def attempt(self, life: Life) -> Attempt:
        """What a worker with this life does with one delivery."""
        core = self.core
        scripts = life.of(self.scripts)
        board, quotas = Board(scripts), Quotas(scripts)
        return Attempt(
            board=board,
            epoch=core.epoch,
            outbox=Outbox(
                board,
                life.of(core.log),
                quotas,
                core.deployments,
                Webhooks(scripts, core.tenants),
                Replies(board, life.of(core.log), life.of(core.payloads)),
            ),
            quotas=quotas,
            payloads=life.of(core.payloads),
            wakeups=Wakeups(core.redis, role="worker"),
            backend=cast(Backend, life.of(self.upstream)),
            deployments=core.deployments,
            tenants=core.tenants,
            onward=Onward(
                deployments=core.deployments,
                retries=core.settings.worker.retry_rule(),
                conditions=Conditions(scripts, core.settings.worker.cooldown_rule(), time.monotonic),
                jitter=random.random,
                clock=time.monotonic,
            ),
            lease_s=LEASE_S,
            most_deliveries=core.settings.worker.max_deliveries,
        )

    @asynccontextmanager
    async def restarted(self, *, unpublished_s: float = 1.0) -> AsyncGenerator[None]:
        """With a worker and a sweeper that live."""
        stop = asyncio.Event()
        worker = wiring.worker(self.core, self.upstream, "echo", CollectorRegistry())
        async with asyncio.TaskGroup() as tasks, self.swept(unpublished_s=unpublished_s, left_behind_s=0.5):
            tasks.create_task(worker.run(stop))
            try:
                yield
            finally:
                stop.set()

    @asynccontextmanager
    async def swept(self, *, unpublished_s: float, left_behind_s: float) -> AsyncGenerator[None]:
        """With a sweeper that goes round the tenants that there are by now."""
        core, stop = self.core, asyncio.Event()
        sweeper = Sweeper(
            core.board,
            core.epoch,
            core.outbox,
            core.payloads,
            self._begun,
            lease_s=LEASE_S,
            every_s=0.2,
            unpublished_s=unpublished_s,
            left_behind_s=left_behind_s,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sweeper.run(stop))
            try:
                yield
            finally:
                stop.set()

    async def settled(self, tenants: Sequence[str]) -> None:
        """Return once nothing of theirs waits any more."""
        deadline = time.monotonic() + SETTLED_S
        redis = self.core.redis
        for tenant in tenants:
            names = [f"{{t:{tenant}}}:{name}" for name in ("unfinished", "unpublished", "running", "outbox")]
            while left := [name for name in names if await redis.exists(name)]:
                assert time.monotonic() < deadline, left
                await asyncio.sleep(0.02)

    async def jobs(self, tenant: str) -> list[JobView]:
        """Its jobs, with their results."""
        found = (await self.core.board.page(tenant, states=[], limit=100, after="")).views
        return [view for each in found if (view := await self.core.board.view(tenant, each.job.id)) is not None]


@pytest.fixture
async def world(redis_url: str, redis: object, tmp_path: Path) -> AsyncGenerator[World]:
    async with World.open(redis_url, tmp_path) as world:
        yield world


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and how it is made."""

    prompt: str = "hello"
    key: str | None = None
    waits: bool = False
    endpoint: str = "/v1/chat/completions"

    async def at(self, desk: Desk, tenant: str) -> Acceptance:
        """Bring it to the door."""
        messages = [{"role": "user", "content": self.prompt}]
        values = {"model": "light", "input" if self.endpoint == responses.ENDPOINT else "messages": messages}
        return await desk.accept(
            KeyHolder(tenant, "key"),
            PARSERS[self.endpoint](values),
            endpoint=self.endpoint,
            raw=json.dumps(values).encode(),
            values=values,
            idempotency_key=self.key,
            channel="http:gone" if self.waits else "",
        )


LARGE = "word " * (INLINE_BODY // 4)


@dataclass(slots=True)
class Case:
    """A process that died while it accepted, or did not."""

    tenant: str
    life: Life
    accepted: Acceptance | None = None


async def die_accepting(world: World, asked: Asked) -> list[Case]:
    """One case for each moment in which the process may die, and one in which it lives."""
    cases = []
    for moment in range(2 * MOST_STEPS):
        case = Case(world.tenant(), Life(moment))
        with suppress(Killed):
            case.accepted = await asked.at(world.desk(case.life), case.tenant)
        cases.append(case)
        if case.accepted is not None:
            check_all_tried(cases)
            return cases
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize(
    "asked",
    [Asked(), Asked(prompt=LARGE), Asked(waits=True), Asked(prompt=LARGE, waits=True)],
    ids=["async", "large", "waiting", "large-waiting"],
)
async def test_a_job_whose_gateway_dies_while_it_accepts_completes_once_or_never_was(
    world: World, asked: Asked
) -> None:
    cases = await die_accepting(world, asked)

    async with world.restarted():
        await world.settled([case.tenant for case in cases])

    for case in cases:
        jobs = await world.jobs(case.tenant)
        assert len(jobs) == (1 if case.accepted else len(jobs)) <= 1, case.life.steps
        assert all(job.state is JobState.COMPLETED for job in jobs), case.life.steps
    await check_books(world, cases)
    print(f"{len(cases) - 1} moments, {cases[-1].life.steps}; {sum(world.upstream.calls.values())} calls")


@pytest.mark.parametrize(
    "asked",
    [
        Asked(key="k"),
        Asked(prompt=LARGE, key="k"),
        Asked(key="k", waits=True),
        Asked(key="k", endpoint=responses.ENDPOINT),
        Asked(prompt=LARGE, key="k", endpoint=responses.ENDPOINT),
    ],
    ids=["async", "large", "waiting", "response", "large-response"],
)
async def test_a_client_that_got_no_answer_and_asks_again_has_exactly_one_job(world: World, asked: Asked) -> None:
    cases = await die_accepting(world, asked)

    async def again(case: Case) -> Acceptance:
        return await asked.at(world.desk(Life()), case.tenant)

    async with world.restarted(unpublished_s=60.0):
        answers = await asyncio.gather(*map(again, cases))
        await world.settled([case.tenant for case in cases])
    once_more = await asyncio.gather(*map(again, cases))

    for case, first, second in zip(cases, answers, once_more, strict=True):
        [job] = await world.jobs(case.tenant)
        assert job.state is JobState.COMPLETED, case.life.steps
        assert job.job.id == first.view.job.id == second.view.job.id
        assert case.accepted is None or case.accepted.view.job.id == job.job.id
        if asked.endpoint == responses.ENDPOINT:
            kept = await Conversations(world.core.board, world.core.payloads).kept(case.tenant, job.job.id)
            assert kept is not None and kept.items[0]["content"][0]["text"] == asked.prompt
    await check_books(world, cases)


async def test_a_job_that_was_given_up_before_the_log_confirmed_it_is_not_called_accepted(world: World) -> None:
    tenant = world.tenant()

    class SlowLog:
        """Confirms once the sweeper has lost patience."""

        async def append(self, topic: str, record: Record) -> None:
            await world.core.log.append(topic, record)
            while await world.core.redis.zcard(f"{{t:{tenant}}}:unpublished"):
                await asyncio.sleep(0.02)

    async with world.swept(unpublished_s=0.1, left_behind_s=60.0):
        with pytest.raises(LogUnavailableError):
            await Asked().at(replace(world.desk(Life()), log=cast(Log, SlowLog())), tenant)
    async with world.restarted():
        await world.settled([tenant])

    assert await world.jobs(tenant) == []
    assert not world.upstream.calls


@pytest.mark.parametrize("prompt", ["hello", "big", "cut once", "refused"])
@pytest.mark.parametrize("waits", [False, True], ids=["async", "waiting"])
async def test_a_job_whose_worker_dies_is_concluded_once(world: World, prompt: str, waits: bool) -> None:
    cases = []
    for moment in range(2 * MOST_STEPS):
        case = await accepted(world, Asked(prompt, waits=waits))
        case.life = Life(moment)
        cases.append(case)
        if not await died(world, case, "first"):
            break
    check_all_tried(cases)

    async with world.restarted():
        await world.settled([case.tenant for case in cases])

    await check_concluded(world, cases, JobState.FAILED if prompt == "refused" else JobState.COMPLETED)
    print(f"{len(cases) - 1} moments, {cases[-1].life.steps}")


async def test_a_job_whose_second_worker_dies_as_well_is_concluded_once(world: World) -> None:
    # What the first life did last meets what the second one did last. The moment before a step is left to the test
    # of one death: but for steps that go side by side it is the one after the step before.
    moments = [0, *range(1, 2 * PAIRED_STEPS, 2)]
    cases = []
    async with world.swept(unpublished_s=60.0, left_behind_s=60.0):
        for first, second in itertools.product(moments[:FIRST_STEPS], moments):
            case = await accepted(world, Asked("hello"))
            case.life = Life(first)
            await died(world, case, "first")
            case.life = Life(second)
            cases.append(case)
        await asyncio.sleep(LEASE_S)  # until the last of them has lost its lease
        died_again = [await died(world, case, "second") for case in cases]

    async with world.restarted():
        await world.settled([case.tenant for case in cases])

    assert sum(died_again) > len(cases) // 3  # the others had little left to do
    assert not any(died_again[len(moments) - 1 :: len(moments)]), "a second life has more steps than were tried"
    await check_concluded(world, cases, JobState.COMPLETED)
    print(f"{len(cases)} cases, {sum(died_again)} died twice, {sum(world.upstream.calls.values())} calls")


def check_all_tried(cases: Sequence[Case]) -> None:
    """All lives but the last ended early, one at each of its moments."""
    *dead, living = (case.life for case in cases)
    assert not living.is_over
    assert all(life.is_over for life in dead)
    assert len(dead) >= 2 * len(living.steps)


async def accepted(world: World, asked: Asked) -> Case:
    """A job on the log."""
    tenant = world.tenant()
    return Case(tenant, Life(), await asked.at(world.desk(Life()), tenant))


async def died(world: World, case: Case, owner: str) -> bool:
    """Run the job as a worker does that has its record; whether that died of it."""
    assert case.accepted is not None
    job = from_record(to_record(case.accepted.view.job))
    attempt = world.attempt(case.life)
    tally = Tally("mb_of_the_dead", "light", "lane", started=0.0)
    try:
        for again in range(3):
            outcome = await attempt(job, f"worker:{owner}|topic|0|{again}", tally)
            if not isinstance(outcome, Later):
                break
            await asyncio.sleep(outcome.seconds)
    except Killed:
        return True
    return False


async def check_concluded(world: World, cases: Sequence[Case], state: JobState) -> None:
    for case in cases:
        [job] = await world.jobs(case.tenant)
        assert job.state is state, (job.state, job.error, case.life.steps)
        assert case.accepted is not None and case.accepted.view.job.id == job.job.id
        if state is JobState.COMPLETED:
            result = job.result or (job.result_at and await world.core.payloads.get(job.result_at))
            assert result and json.loads(result)["content"]
    await check_books(world, cases)


async def check_books(world: World, cases: Sequence[Case]) -> None:
    """Each attempt charged once, each job's event once, sums that are the lines', and nothing held for ever."""
    core = world.core
    books = await Books.read(core.log)
    calls = {name: count for name, count in world.upstream.calls.items()}
    assert set(calls.values()) <= {1}, "one attempt called twice"
    assert calls.keys() <= books.attempts.keys(), "a call is not on the ledger"
    for name in books.attempts.keys() - calls.keys():
        assert {line["outcome"] for line in books.attempts[name]["lines"]} == {"lost"}, name

    today = datetime.now(UTC).date()
    known: dict[str, Mapping[str, Any]] = {}
    for case in cases:
        jobs = await world.jobs(case.tenant)
        lines: list[ChargeLine] = [line for job in jobs for line in job.charges]
        ours = {name: each for name, each in books.attempts.items() if each["tenant"] == case.tenant}
        known |= ours
        on_ledger = Counter(line["id"] for each in ours.values() for line in each["lines"])
        assert on_ledger == Counter(line.id for line in lines), case.life.steps
        usd = sum((line.usd for line in lines if line.usd is not None), Decimal(0))
        assert sum((Decimal(each["usd"]) for each in ours.values()), Decimal(0)) == usd
        for by in ("tenant", "microbatch"):
            rows = await spent(core.redis, [case.tenant], by=cast(Any, by), days=[today, today - timedelta(days=1)])
            assert sum((row.usd for row in rows), Decimal(0)) == usd, (by, case.life.steps)
            assert sum(row.attempts for row in rows) == len(ours), (by, case.life.steps)
        events = {job for job, event in books.events.items() if event["tenant"] == case.tenant}
        assert events == {job.job.id for job in jobs}
        # What a gateway had reserved that died before its job was known ends by itself.
        assert not await _leased(world, f"{{t:{case.tenant}}}") & events, case.life.steps
    assert known == books.attempts
    for case in cases:
        slot = "{b:" + case.tenant.replace("case", "light") + "}"
        assert not await _leased(world, slot) & books.events.keys()


async def _leased(world: World, slot: str) -> set[str]:
    """The jobs that hold a place among the concurrent ones."""
    reservations: list[Any] = await world.core.redis.zrange(f"{slot}:quota:leases", 0, -1)
    return {reservation.decode().partition(":")[0] for reservation in reservations}
