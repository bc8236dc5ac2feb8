"""The replicas of one deployment as a worker knows them: found, probed, chosen, and told to the other workers."""

import asyncio
import json
import random
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import median_low

import aiohttp
import structlog

from consumers.backend import BackendError, SoFar
from consumers.discovery import Discovery, Replica, discovery
from consumers.engines import UNKNOWN, Bounds, Facts
from consumers.fleet_meters import FleetMeters
from consumers.health import Health, State
from consumers.machine_bills import MachineBills
from consumers.places import Ended, Places, Seen
from consumers.probing import Probed, ask
from consumers.replicas import FULL, Candidate, Learned, cap, lowered, prefix_of, raised, ranked
from consumers.waking import wake
from policies.concurrency import Usual
from policies.deployments import Deployment
from policies.ending import ended
from policies.fleets import MOST_REPLICAS, Engine, Fleet
from policies.retries import FINAL, Failure
from policies.scripts import BoardUnavailableError
from router.job import Job
from router.log import LogUnavailableError

log = structlog.get_logger(__name__)

ASKED = 8  # replicas that one call may be offered to at once
AT_ONCE = 32  # probes
WANTED_S = 10.0  # so long after a job was last waiting, jobs are waiting
REMEMBERED = 10_000  # jobs whose failed replicas are known
BILL_S = 10.0  # between two bills of a machine
NOBODY = frozenset({"no_connection", "connect_timeout"})
NEWEST = 0.2  # how much the newest call counts in an average
LATE = 0.5  # of the time that a first token may take


@dataclass(slots=True)
class Member:
    """One replica. `everyone` are the calls there that workers made, as last heard; `ours` those of this process."""

    replica: Replica
    health: Health = field(default_factory=Health)
    engine: Engine | None = None
    facts: Facts = UNKNOWN
    bounds: Bounds | None = None
    everyone: int = 0
    ours: int = 0
    asked: int = 0  # calls that are about to be there
    given: int = 0  # calls that it ever got from here
    foreign: int = 0  # calls there that are not from us
    learned: Learned | None = None
    tokens_per_s: float | None = None
    token_s: float | None = None  # that a token of an answer takes, as a moving average
    is_listed: bool = True
    congested: int | None = None  # with so many calls, since it was last told to the others
    _extra: int = 0
    _generated: tuple[float, float] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it may be called."""
        return self.health.state is State.READY and self.is_listed and not self.replica.drains

    @property
    def load(self) -> int:
        """Calls that are there now."""
        return max(self.everyone, self.ours) + self.asked + self.foreign

    def told(self, facts: Facts, now: float) -> None:
        """What its metrics say now. Calls of others count once two looks in a row have shown them: ours come and go."""
        self.facts = facts
        seen = 0 if facts.running is None else facts.running + (facts.waiting or 0)
        extra = max(0, seen - max(self.everyone, self.ours))
        self.foreign, self._extra = min(extra, self._extra), extra
        if facts.generated is None:
            self._generated = self.tokens_per_s = None
        else:
            if self._generated is not None and now > self._generated[0]:
                made = facts.generated - self._generated[1]
                self.tokens_per_s = None if made < 0 else made / (now - self._generated[0])
            self._generated = (now, facts.generated)


@dataclass(frozen=True, slots=True)
class Place:
    """A call's place on a replica."""

    member: Member
    id: str

    @property
    def replica(self) -> Replica:
        """Where it is."""
        return self.member.replica


class Replicas:
    """Runs beside the calls of one deployment. `Places` are shared by all workers; the rest is what this one sees."""

    def __init__(
        self,
        deployment: Deployment,
        fleet: Fleet,
        places: Places,
        session: aiohttp.ClientSession,
        headers: Mapping[str, str],
        *,
        meters: FleetMeters | None = None,
        bills: MachineBills | None = None,
        clock: Callable[[], float] = time.monotonic,
        roll: Callable[[], float] = random.random,
    ) -> None:
        self.deployment = deployment
        self.members: dict[str, Member] = {}
        self._fleet = fleet
        self._places = places
        self._session = session
        self._headers = headers
        self._meters = meters
        self._bills = bills
        self._billed_at: float | None = None
        self._clock = clock
        self._roll = roll
        self._discovery: Discovery = discovery(fleet)
        self._held: dict[str, Place] = {}
        self._ended: list[Ended] = []
        self._failed: OrderedDict[str, set[str]] = OrderedDict()
        self._usual = Usual()
        self._wanted_at: float | None = None
        self._has_looked = False
        self._board_minus_ours: float | None = None
        self._changed = asyncio.Event()
        self._soon = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Replicas"]:
        """With everything that goes on beside the calls."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._look()), tasks.create_task(self._keep())]
            try:
                yield self
            finally:
                await ended(*beside)
                await self._give_back()

    def room(self, begun: int) -> int:
        """How many more jobs may begin here now, when `begun` of this worker have, some without a place as yet.

        To ask says that jobs wait.
        """
        self._wanted_at = self._clock()
        without_place = max(0, begun - len(self._held) - sum(each.asked for each in self.members.values()))
        return max(0, sum(each.room for each in self._candidates()) - without_place)

    async def take(self, job: Job, attempt: int) -> Place | None:
        """A place on the replica that suits the job best. None: none of them has room. Raises `BoardUnavailableError`.

        Asked twice for one attempt it is the same place.
        """
        id = _id(job, attempt)
        if id in self._held:
            return self._held[id]
        prefix = prefix_of(job.body) if self._fleet.affinity and len(self.members) > 1 else None
        wanted = ranked(
            self._candidates(),
            prefix=prefix,
            avoid=self._failed.get(job.id, ()),
            rolls=(self._roll(), self._roll()),
        )[:ASKED]
        if not wanted:
            return None
        members = [self.members[each.name] for each in wanted]
        for_others = [max(0, each.cap - member.foreign) for each, member in zip(wanted, members, strict=True)]
        caps = [(each.name, most) for each, most in zip(wanted, for_others, strict=True)]
        over = self._taken_ended()
        members[0].asked += 1  # until the answer is there: others choose meanwhile
        try:
            index, counts = await self._places.take(
                self.deployment.name, id, caps, ended=over, billed_to=self._billed_to(job)
            )
        except BoardUnavailableError:
            self._ended += over
            raise
        finally:
            members[0].asked -= 1
        for member, count in zip(members, counts, strict=True):
            member.everyone = count
        if index is None:
            return None
        self._usual.add(0.0, job.estimate.tokens)
        member = members[index]
        member.ours += 1
        member.given += 1
        self._held[id] = place = Place(member, id)
        return place

    def leave(self, place: Place, *, tokens: int = 0) -> None:
        """The call is over. Safe to repeat."""
        if self._held.pop(place.id, None) is None:
            return
        member = place.member
        member.ours -= 1
        member.everyone = max(member.ours, member.everyone - 1)
        self._ended.append(Ended(member.replica.name, place.id, tokens))
        self._changed.set()

    def drop(self, job: Job, attempt: int) -> None:
        """The call is not made, or over."""
        place = self._held.get(_id(job, attempt))
        if place is not None:
            self.leave(place)

    def succeeded(self, place: Place, so_far: SoFar, seconds: float) -> None:
        """Its call was answered, `seconds` after it was made."""
        member, first_s = place.member, so_far.first_token_s
        member.health.succeeded(self._clock())
        if first_s is None:
            return
        if first_s > LATE * self.deployment.timeouts.first_token:
            self._congested(member)
        if so_far.usage.output > 1:
            token_s = (seconds - first_s) / so_far.usage.output
            member.token_s = token_s if member.token_s is None else member.token_s + NEWEST * (token_s - member.token_s)

    def failed(self, place: Place, error: BackendError) -> None:
        """Its call failed: whose fault is it, and what does it say about the replica?"""
        member, now = place.member, self._clock()
        if error.failure in FINAL:
            member.health.succeeded(now)
            return
        self._remember(place)
        error.another_replica = self._has_another(place)
        if error.failure is Failure.THROTTLED:
            self._congested(member)
            return
        if error.failure is Failure.UNAVAILABLE and error.code in NOBODY:
            member.health.gone(error.detail)
        else:
            if error.failure is Failure.UNAVAILABLE:
                self._congested(member)
            if member.health.failed(f"{error.failure}: {error.code or error.detail}", now):
                log.warning("replica_ejected", **self._named(member), why=member.health.why)
                if self._meters is not None:
                    self._meters.ejected(self.deployment.name, member.replica.name)
        self._soon.set()

    @property
    def is_away(self) -> bool:
        """Whether none of them can be called, for all that is known after a first look at each."""
        states = {member.health.state for member in self.members.values()}
        return self._has_looked and State.NEW not in states and not self._candidates()

    @property
    def is_warming(self) -> bool:
        """Whether none can be called yet, but one will be: it loads, or was called for."""
        if any(member.is_open for member in self.members.values()):
            return False
        loads = any(member.health.state is State.WARMING for member in self.members.values())
        return loads or (self._fleet.waker is not None and self._is_wanted())

    def _is_wanted(self) -> bool:
        return self._wanted_at is not None and self._clock() - self._wanted_at <= WANTED_S

    def _candidates(self) -> list[Candidate]:
        open_ones = [each for each in self.members.values() if each.is_open] or self._last_resort()
        known = [each.token_s for each in open_ones if each.token_s]
        usual = median_low(known) if known else 0.0
        return [
            Candidate(
                each.replica.name,
                each.load,
                self._cap(each),
                each.given,
                each.token_s / usual if each.token_s else 1.0,
            )
            for each in open_ones
        ]

    def _last_resort(self) -> list[Member]:
        """The last replica is never ejected: of those that are, the one whose time is over first."""
        out = [
            each
            for each in self.members.values()
            if each.health.state in (State.EJECTED, State.PROBING) and each.is_listed and not each.replica.drains
        ]
        return [min(out, key=lambda each: each.health.out_until)] if out else []

    def _has_another(self, place: Place) -> bool:
        """Whether one that has not failed this job could take its next call."""
        failed = self._failed.get(place.id.rpartition(".")[0], set())
        return any(each.is_open and each.replica.name not in failed for each in self.members.values())

    def _cap(self, member: Member) -> int:
        """What it may have now; its load where it is full, so that it has no room."""
        facts = member.facts
        is_full = (facts.waiting or 0) > self._fleet.queue or (facts.kv_use or 0.0) > FULL
        if is_full:
            return max(1, min(member.load, self._most(member)))
        share = member.health.share(self._fleet.slow_start_s, self._clock())
        return cap(self._most(member), share=share)

    def _most(self, member: Member) -> int:
        """The least of what is configured, what the engine says, and what was learned."""
        bounds = member.bounds or Bounds()
        fits = None
        if bounds.kv_tokens is not None and self._usual.tokens:
            fits = max(1, int(bounds.kv_tokens / self._usual.tokens))
        learned = None if member.learned is None else max(1, int(member.learned.cap))
        return cap(member.replica.cap or self._fleet.cap, bounds.slots, fits, learned)

    def _congested(self, member: Member) -> None:
        member.congested = max(1, member.load)
        self._changed.set()

    def _remember(self, place: Place) -> None:
        job_id = place.id.rpartition(".")[0]
        self._failed.setdefault(job_id, set()).add(place.member.replica.name)
        self._failed.move_to_end(job_id)
        while len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)

    def _billed_to(self, job: Job) -> str:
        return job.tenant if any(self._rate(each) is not None for each in self.members.values()) else ""

    def _rate(self, member: Member) -> Decimal | None:
        own = member.replica.usd_per_hour
        return self._fleet.usd_per_hour if own is None else own

    def _named(self, member: Member) -> dict[str, str]:
        return {"deployment": self.deployment.name, "replica": member.replica.name}

    async def _look(self) -> None:
        """For ever: who is there, how is each, what do the others know?"""
        while True:
            started = self._clock()
            self._soon.clear()
            await self._find()
            await self._probe()
            self._has_looked = True
            try:
                await self._sync()
                await self._wake()
                await self._write_bills()
            except (BoardUnavailableError, LogUnavailableError) as error:
                log.warning("fleet_not_synced", deployment=self.deployment.name, error=type(error).__name__)
            await self._rest(started)

    async def _rest(self, started: float) -> None:
        """Until the next round is due; after a failed call that is at once, but never without a pause."""
        pause = self._fleet.probe_s - (self._clock() - started)
        await asyncio.sleep(min(self._fleet.probe_s, 0.1))
        try:
            async with asyncio.timeout(max(0.0, pause)):
                await self._soon.wait()
        except TimeoutError:
            return

    async def _find(self) -> None:
        found = {each.name: each for each in await self._discovery.find(self._clock())}
        for name, member in list(self.members.items()):
            member.is_listed = name in found
            if not member.is_listed and not member.ours:
                del self.members[name]
        for name, replica in list(found.items())[:MOST_REPLICAS]:
            if name in self.members:
                self.members[name].replica = replica
            else:
                self.members[name] = Member(replica, engine=self._fleet.engine)

    async def _probe(self) -> None:
        at_once = asyncio.Semaphore(AT_ONCE)

        async def one(member: Member) -> tuple[Member, Probed]:
            async with at_once:
                known = member.bounds is not None
                return member, await ask(
                    self._session, member.replica, self._headers, engine=member.engine, bounds_known=known
                )

        for member, probed in await asyncio.gather(*(one(each) for each in self.members.values())):
            before, now = member.health.state, self._clock()
            member.health.probed(probed.probe, now)
            member.engine = probed.engine or member.engine
            member.bounds = probed.bounds or member.bounds
            member.told(probed.facts, now)
            if member.health.state is State.DOWN:
                member.bounds = member.token_s = None  # another one may come back in its place
            if member.health.state is not before:
                log.info("replica_changed", **self._named(member), state=member.health.state, why=member.health.why)

    async def _sync(self) -> None:
        members = list(self.members.values())
        seen = {each.replica.name: self._report(each) for each in members}
        if self._meters is not None:
            self._meters.show(self.deployment.name, seen)
        moment, known = await self._places.sync(
            self.deployment.name, [self._seen(each, seen[each.replica.name]) for each in members]
        )
        now = self._clock()
        self._board_minus_ours = moment - now
        for member, told in zip(members, known, strict=True):
            member.everyone = told.places
            member.learned = told.learned
            out_until = told.out_until - self._board_minus_ours
            if told.out_until > moment and out_until > member.health.out_until + 0.5:
                member.health.eject(out_until, told.strikes, "another worker saw it fail")
            await self._learn(member, moment)

    async def _learn(self, member: Member, moment: float) -> None:
        """A cap goes down at once when its replica has too much, and up again by one at a time."""
        in_flight, member.congested = member.congested, None
        if in_flight is not None:
            change = lowered(member.learned, in_flight=in_flight, now=moment)
        else:
            ceiling = cap(member.replica.cap or self._fleet.cap, (member.bounds or Bounds()).slots)
            change = raised(member.learned, in_flight=member.load, ceiling=ceiling, now=moment)
        if change is not None:
            name = member.replica.name
            member.learned = await self._places.learn(self.deployment.name, name, member.learned, change.cap)

    async def _keep(self) -> None:
        """For ever: give back places at once, and renew the leases of the others."""
        while True:
            try:
                async with asyncio.timeout(self._places.hold_s / 3):
                    await self._changed.wait()
                renews = False
            except TimeoutError:
                renews = True
            self._changed.clear()
            await self._give_back(renews=renews)

    async def _give_back(self, *, renews: bool = False) -> None:
        gone = self._taken_ended()
        running = [(place.member.replica.name, id) for id, place in self._held.items()] if renews else []
        if not gone and not running:
            return
        try:
            await self._places.keep(self.deployment.name, running, gone)
        except BoardUnavailableError:  # with the next renewal; at last their leases run out by themselves
            self._ended += gone
            log.warning("places_not_given_back", deployment=self.deployment.name, places=len(gone))

    def _taken_ended(self) -> list[Ended]:
        gone, self._ended = self._ended, []
        return gone

    async def _wake(self) -> None:
        waker = self._fleet.waker
        if waker is None or not self._is_wanted():
            return
        there = {State.READY, State.WARMING, State.EJECTED, State.PROBING}
        if any(each.health.state in there and each.is_listed for each in self.members.values()):
            return
        if await self._places.may_wake(self.deployment.name, again_s=waker.again_s):
            await wake(self._session, waker, self.deployment.name)

    async def _write_bills(self) -> None:
        if self._bills is None or (self._billed_at is not None and self._clock() - self._billed_at < BILL_S):
            return
        self._billed_at = self._clock()
        name = self.deployment.name
        for member in self.members.values():
            rate = self._rate(member)
            if rate is not None:
                await self._bills.write(name, member.replica.name, rate)
        await self._bills.publish(name)

    def _out_until(self, member: Member) -> float:
        """On the board's clock; 0 where it is not ejected."""
        if member.health.state is not State.EJECTED or self._board_minus_ours is None:
            return 0.0
        return member.health.out_until + self._board_minus_ours

    def _seen(self, member: Member, report: Mapping[str, object]) -> Seen:
        health = member.health
        return Seen(
            member.replica.name,
            json.dumps(report, separators=(",", ":")),
            out_until=self._out_until(member),
            strikes=health.strikes,
            phase=self._phase(member) if self._rate(member) is not None else "",
        )

    def _phase(self, member: Member) -> str:
        """What its machine does, for the bill: it costs while it answers."""
        match member.health.state:
            case State.NEW | State.DOWN:
                return "off"
            case State.WARMING:
                return "warm_up"
            case State.READY | State.EJECTED | State.PROBING:
                return "up" if member.is_listed and not member.replica.drains else "cool_down"

    def _report(self, member: Member) -> dict[str, object]:
        health, facts, rate = member.health, member.facts, self._rate(member)
        drains = health.state is State.READY and not member.is_open
        return {
            "engine": member.engine,
            "state": "draining" if drains else health.state,
            "why": health.why[:120],
            "running": facts.running,
            "waiting": facts.waiting,
            "ours": member.everyone,
            "cap": self._cap(member),
            "tokens_per_s": None if member.tokens_per_s is None else round(member.tokens_per_s, 1),
            "kv_use": None if facts.kv_use is None else round(facts.kv_use, 3),
            "prefix_hit_rate": _rate_of(facts),
            "usd_per_hour": None if rate is None else str(rate),
            "ejected_until": round(self._out_until(member), 3) or None,
        }


def _id(job: Job, attempt: int) -> str:
    return f"{job.id}.{attempt}"


def _rate_of(facts: Facts) -> float | None:
    if facts.prefix_hits is None or not facts.prefix_queries:
        return None
    return round(facts.prefix_hits / facts.prefix_queries, 3)
