"""The replicas of one deployment: which of them takes a call, and what each call tells about them."""

import asyncio
import random
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import aiohttp
import structlog

from consumers.backend import BackendError, SoFar
from consumers.gpu.fleet_meters import FleetMeters
from consumers.gpu.fleet_watch import Watch
from consumers.gpu.health import State
from consumers.gpu.homes import Homes
from consumers.gpu.machine_bills import MachineBills
from consumers.gpu.members import Member, Place
from consumers.gpu.places import Ended, Places, Taken
from consumers.gpu.replicas import UNKNOWN, Candidate, Work, cap, ranked
from consumers.gpu.speeds import Speed, speeds
from policies.concurrency import Usual
from policies.deployments import Deployment
from policies.ending import ended
from policies.fleets import Fleet
from policies.retries import FINAL, Failure
from policies.scripts import BoardUnavailableError
from router.job import Job

log = structlog.get_logger(__name__)

ASKED = 8  # replicas that one call may be offered to at once
HOMES_TOLD = 3  # times that the board may know more of them than we, before a job waits
PROMISED_S = 0.25  # then a job that was welcome does not come
AT_ONCE = 32  # probes
WANTED_S = 10.0  # so long after a job was last waiting, jobs are waiting
REMEMBERED = 10_000  # jobs whose failed replicas are known
BILL_S = 10.0  # between two bills of a machine
NOBODY = frozenset({"no_connection", "connect_timeout"})
ANSWER_NEWEST = 0.05  # how much the newest answer counts in their usual length
LATE = 0.5  # of the time that a first token may take


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
        self._meters = meters
        self._clock = clock
        self._roll = roll
        self._held: dict[str, Place] = {}
        self._ended: list[Ended] = []
        self._failed: OrderedDict[str, set[str]] = OrderedDict()
        self._homes = Homes(clock)
        self._promised: dict[str, tuple[str, float]] = {}
        self._usual = Usual()
        self._answer = UNKNOWN.answer
        self._wanted_at: float | None = None
        self._changed = asyncio.Event()
        self._watch = Watch(
            deployment,
            fleet,
            self.members,
            self,
            places,
            session,
            headers,
            meters=meters,
            bills=bills,
            clock=clock,
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Replicas"]:
        """With everything that goes on beside the calls."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._watch.look()), tasks.create_task(self._keep())]
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
        on_their_way = sum(each.asked for each in self.members.values()) + len(self._promised)
        without_place = max(0, begun - len(self._held) - on_their_way)
        return max(0, sum(each.room for each in self._candidates()) - without_place)

    async def take(self, job: Job, attempt: int) -> Place | None:
        """A place on the replica that suits the job best. Raises `BoardUnavailableError`.

        None: none of them has room, or the job waits for one. Asked twice for one attempt it is the same place.
        """
        id = _id(job, attempt)
        if id in self._held:
            return self._held[id]
        self._promised.pop(job.id, None)
        found = await self._found(job, id)
        if found is None:
            return None
        member, cached = found
        self._usual.add(0.0, job.estimate.tokens)
        member.ours += 1
        now, usual_s = self._clock(), speeds([each.shown for each in (member, *self.members.values())])[0].call_s
        member.gets(now, usual_s)
        member.computes[id] = job.estimate.input_tokens * (1 - cached)
        self._held[id] = place = Place(member, id, 0.0 if cached else member.computing, now, usual_s)
        return place

    def welcomes(self, job: Job) -> bool:
        """Whether it would get a place now, as far as is known; not while it waits for one that has its beginning.

        If so it is to come at once, and the next one that is asked about finds its place taken.
        """
        self._promised.pop(job.id, None)
        wanted = self._ranked(job)
        if wanted:
            self._promised[job.id] = (wanted[0].name, self._clock())
            self._homes.waits_no_more(job.id)
        else:
            self._homes.waits(job)
        return bool(wanted) or not self._candidates()

    def leave(self, place: Place, *, tokens: int = 0) -> None:
        """The call is over. Safe to repeat."""
        if self._held.pop(place.id, None) is None:
            return
        member, now = place.member, self._clock()
        member.gets(now, now - place.at - place.usual_s)
        member.ours -= 1
        member.computes.pop(place.id, None)
        member.everyone = max(member.ours, member.everyone - 1)
        self._ended.append(Ended(member.replica.name, place.id, tokens))
        self._changed.set()

    def drop(self, job: Job, attempt: int) -> None:
        """The call is not made, or over."""
        place = self._held.get(_id(job, attempt))
        if place is not None:
            self.leave(place)

    def begins(self, place: Place) -> None:
        """Its call gets its first token."""
        place.member.computes.pop(place.id, None)
        place.member.health.begins(self._clock())

    def succeeded(self, place: Place, so_far: SoFar, seconds: float) -> None:
        """Its call was answered, `seconds` after it was made."""
        member, first_s = place.member, so_far.first_token_s
        member.health.succeeded(self._clock())
        if first_s is None:
            return
        if first_s > LATE * self.deployment.timeouts.first_token:
            self._congested(member)
        output = so_far.usage.output
        member.shown.answered(seconds=seconds, first_s=first_s, prompt=place.prompt, answer=output)
        self._answer += ANSWER_NEWEST * (output - self._answer)

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
        self._watch.soon.set()

    @property
    def is_away(self) -> bool:
        """Whether none of them can be called, for all that is known after a first look at each."""
        states = {member.health.state for member in self.members.values()}
        return self._watch.has_looked and State.NEW not in states and not self._candidates()

    @property
    def is_warming(self) -> bool:
        """Whether none can be called yet, but one will be: it loads, or was called for."""
        if any(member.is_open for member in self.members.values()):
            return False
        loads = any(member.health.state is State.WARMING for member in self.members.values())
        return loads or (self._fleet.waker is not None and self.is_wanted())

    def is_wanted(self) -> bool:
        """Whether jobs wait, or did a moment ago."""
        return self._wanted_at is not None and self._clock() - self._wanted_at <= WANTED_S

    def cap(self, member: Member) -> int:
        """What it may have now, of all workers together."""
        most = member.most(self._fleet, self._usual.tokens)
        if (
            member.health.is_on_trial
        ):  # one call of ours, or others who have found it well would keep us from finding out
            return min(most, max(0, member.everyone - member.ours) + 1)
        return cap(most, share=member.health.share(self._fleet.slow_start_s, self._clock()))

    async def _found(self, job: Job, id: str) -> tuple[Member, float] | None:
        """Which replica has a place for it, and what part of its prompt it has. Raises `BoardUnavailableError`."""
        for _ in range(HOMES_TOLD):
            beginning = self._homes.beginning(job)
            wanted = self._ranked(job)[:ASKED]
            if not wanted:
                return None
            members = [self.members[each.name] for each in wanted]  # one of them may go meanwhile
            taken = await self._offered(job, id, wanted, members)
            if not self._homes.told(job, taken.homes) or taken.index is not None:
                member = None if taken.index is None else members[taken.index]
                is_home = member is not None and beginning is not None and member.replica.name in beginning.homes
                return None if member is None else (member, beginning.cached if is_home and beginning else 0.0)
        return None

    def _ranked(self, job: Job) -> Sequence[Candidate]:
        has_homes = self._fleet.affinity and len(self.members) > 1
        return ranked(
            self._candidates(),
            work=Work(job.estimate.input_tokens, self._answer),
            beginning=self._homes.beginning(job) if has_homes else None,
            avoid=self._failed.get(job.id, ()),
            rolls=(self._roll(), self._roll()),
        )

    async def _offered(self, job: Job, id: str, wanted: Sequence[Candidate], members: Sequence[Member]) -> Taken:
        """To these replicas, in this order. Raises `BoardUnavailableError`."""
        for_others = [max(0, each.cap - member.foreign) for each, member in zip(wanted, members, strict=True)]
        caps = [(each.name, most) for each, most in zip(wanted, for_others, strict=True)]
        over, (digest, homes) = self._taken_ended(), self._homes.known(job)
        members[0].asked += 1  # until the answer is there: others choose meanwhile
        try:
            taken = await self._places.take(
                self.deployment.name,
                id,
                caps,
                ended=over,
                billed_to=self._billed_to(job),
                beginning=digest,
                homes=homes,
            )
        except BoardUnavailableError:
            self._ended += over
            raise
        finally:
            members[0].asked -= 1
        for member, count in zip(members, taken.counts, strict=True):
            member.everyone = count
        return taken

    def _candidates(self) -> list[Candidate]:
        now = self._clock()
        self._promised = {job: each for job, each in self._promised.items() if now - each[1] < PROMISED_S}
        promised = Counter(name for name, _ in self._promised.values())
        open_ones = [each for each in self.members.values() if each.is_open] or self._last_resort()
        known = zip(open_ones, speeds([each.shown for each in open_ones]), strict=True)
        return [self._candidate(each, speed, promised=promised[each.replica.name]) for each, speed in known]

    def _candidate(self, member: Member, speed: Speed, *, promised: int) -> Candidate:
        """One whose own queue is not empty, or whose cache is full, has no room, whatever its cap."""
        most, load = self.cap(member), member.load + promised
        if member.is_full or (member.facts.waiting or 0) > self._fleet.queue:
            load = max(load, most)
        return Candidate(member.replica.name, load, most, member.given(self._clock()), speed, member.computing)

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
        return job.tenant if any(each.usd_per_hour(self._fleet) is not None for each in self.members.values()) else ""

    def _named(self, member: Member) -> dict[str, str]:
        return {"deployment": self.deployment.name, "replica": member.replica.name}

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


def _id(job: Job, attempt: int) -> str:
    return f"{job.id}.{attempt}"
