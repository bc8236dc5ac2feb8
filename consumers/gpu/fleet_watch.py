"""Looks after the replicas of one deployment: finds, probes and bills them, tells the other workers, wakes them."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import aiohttp
import structlog

from consumers.gpu.discovery import Discovery, discovery
from consumers.gpu.engines import Facts
from consumers.gpu.fleet_meters import FleetMeters
from consumers.gpu.health import Probe, State
from consumers.gpu.machine_bills import MachineBills
from consumers.gpu.members import Member
from consumers.gpu.places import Places, Seen
from consumers.gpu.probing import Probed, answers, ask
from consumers.gpu.replicas import lowered, raised
from consumers.gpu.speeds import Shown
from consumers.gpu.waking import AFTER_FAILURE_S, wake
from policies.deployments import Deployment, Modality
from policies.fleets import MOST_REPLICAS, Fleet
from policies.scripts import BoardUnavailableError
from router.log import LogUnavailableError

log = structlog.get_logger(__name__)

AT_ONCE = 32  # probes
BILL_S = 10.0  # between two bills of a machine
LEAST_REST_S = 0.1  # between two looks
THERE = frozenset({State.READY, State.WARMING, State.EJECTED, State.PROBING})


class Watched(Protocol):
    """What is asked of whoever calls the replicas."""

    def cap(self, member: Member) -> int:
        """What it may have now."""
        ...

    def is_wanted(self) -> bool:
        """Whether jobs wait."""
        ...


class Watch:
    """Keeps `members` as they are. `soon` asks for a look at once; `has_looked` says that there was one."""

    def __init__(
        self,
        deployment: Deployment,
        fleet: Fleet,
        members: dict[str, Member],
        watched: Watched,
        places: Places,
        session: aiohttp.ClientSession,
        headers: Mapping[str, str],
        *,
        meters: FleetMeters | None,
        bills: MachineBills | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.soon = asyncio.Event()
        self.has_looked = False
        self._deployment = deployment.name
        self._model = deployment.model
        self._chats = Modality.TEXT in deployment.modalities
        self._fleet = fleet
        self._members = members
        self._watched = watched
        self._places = places
        self._session = session
        self._headers = headers
        self._meters = meters
        self._bills = bills
        self._clock = clock
        self._discovery: Discovery = discovery(fleet)
        self._billed_at: float | None = None
        self._board_minus_ours: float | None = None

    async def look(self) -> None:
        """For ever: who is there, how is each, what do the others know?"""
        while True:
            started = self._clock()
            self.soon.clear()
            await self._find()
            await self._probe()
            self.has_looked = True
            try:
                await self._sync()
                await self._wake()
                await self._write_bills()
            except (BoardUnavailableError, LogUnavailableError) as error:
                log.warning("fleet_not_synced", deployment=self._deployment, error=type(error).__name__)
            await self._rest(started)

    async def _rest(self, started: float) -> None:
        """Until the next round is due; after a failed call that is at once, but never without a pause."""
        pause = self._fleet.probe_s - (self._clock() - started)
        await asyncio.sleep(min(self._fleet.probe_s, LEAST_REST_S))
        try:
            async with asyncio.timeout(max(0.0, pause)):
                await self.soon.wait()
        except TimeoutError:
            return

    async def _find(self) -> None:
        found = {each.name: each for each in await self._discovery.find(self._clock())}
        for name, member in list(self._members.items()):
            member.is_listed = name in found
            if member.is_gone and (self._bills is None or member.usd_per_hour(self._fleet) is None):
                del self._members[name]
        for name, replica in list(found.items())[:MOST_REPLICAS]:
            if name in self._members:
                self._members[name].replica = replica
            else:
                self._members[name] = Member(replica, engine=self._fleet.engine)

    async def _probe(self) -> None:
        at_once = asyncio.Semaphore(AT_ONCE)

        async def one(member: Member) -> tuple[Member, Probed, bool | None]:
            async with at_once:
                known, is_out = member.bounds is not None, member.health.state is State.EJECTED
                probed = await ask(
                    self._session, member.replica, self._headers, engine=member.engine, bounds_known=known
                )
                if not is_out or not self._chats or probed.probe is not Probe.WELL:
                    return member, probed, None
                return member, probed, await answers(self._session, member.replica, self._headers, self._model)

        for member, probed, answered in await asyncio.gather(*(one(each) for each in self._members.values())):
            before, now = member.health.state, self._clock()
            if answered is not None:
                member.health.tried(well=answered, now=now)
            member.health.probed(probed.probe, now)
            member.engine = probed.engine or member.engine
            member.bounds = probed.bounds or member.bounds
            member.told(probed.facts, now)
            if member.health.state is State.DOWN:
                member.bounds, member.shown = None, Shown()  # another one may come back in its place
            if before is not State.READY and member.is_open:
                member.begins_anew()
            if member.health.state is not before:
                log.info("replica_changed", **self._named(member), state=member.health.state, why=member.health.why)

    async def _sync(self) -> None:
        members = list(self._members.values())
        seen = {each.replica.name: self._report(each) for each in members}
        if self._meters is not None:
            self._meters.show(self._deployment, seen)
        moment, known = await self._places.sync(
            self._deployment, [self._seen(each, seen[each.replica.name]) for each in members]
        )
        now = self._clock()
        self._board_minus_ours = moment - now
        for member, told in zip(members, known, strict=True):
            member.everyone = told.places
            member.learned = told.learned
            out_until = told.out_until - self._board_minus_ours
            if (
                member.health.state is State.READY
                and told.out_until > moment
                and out_until > member.health.out_until + 0.5
            ):
                member.health.eject(out_until, told.strikes, "another worker saw it fail")
            await self._learn(member, moment)

    async def _learn(self, member: Member, moment: float) -> None:
        """A cap goes down at once when its replica has too much, and up again by one at a time."""
        in_flight, member.congested = member.congested or member.too_many, None
        if in_flight:
            change = lowered(member.learned, in_flight=in_flight, now=moment)
        else:
            ceiling = member.ceiling(self._fleet)
            change = raised(member.learned, in_flight=member.load, ceiling=ceiling, now=moment)
        if change is not None:
            name = member.replica.name
            member.learned = await self._places.learn(self._deployment, name, member.learned, change.cap)

    async def _wake(self) -> None:
        waker = self._fleet.waker
        if waker is None or not self._watched.is_wanted():
            return
        if any(each.health.state in THERE and each.is_listed for each in self._members.values()):
            return
        if not await self._places.may_wake(self._deployment, again_s=waker.again_s):
            return
        if not await wake(self._session, waker, self._deployment):
            await self._places.wake_again(self._deployment, in_s=AFTER_FAILURE_S)

    async def _write_bills(self) -> None:
        if self._bills is None or (self._billed_at is not None and self._clock() - self._billed_at < BILL_S):
            return
        self._billed_at = self._clock()
        name = self._deployment
        for replica, member in list(self._members.items()):
            rate, is_gone = member.usd_per_hour(self._fleet), member.is_gone
            if rate is not None:
                await self._bills.write(name, replica, rate)
            if is_gone:  # that was its last one
                del self._members[replica]
        await self._bills.publish(name)

    def _named(self, member: Member) -> dict[str, str]:
        return {"deployment": self._deployment, "replica": member.replica.name}

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
            phase=member.phase() if member.usd_per_hour(self._fleet) is not None else "",
        )

    def _report(self, member: Member) -> dict[str, object]:
        health, facts, rate = member.health, member.facts, member.usd_per_hour(self._fleet)
        drains = health.state is State.READY and not member.is_open
        return {
            "engine": member.engine,
            "state": "draining" if drains else health.state,
            "why": health.why[:120],
            "running": facts.running,
            "waiting": facts.waiting,
            "ours": member.everyone,
            "cap": self._watched.cap(member),
            "tokens_per_s": None if member.tokens_per_s is None else round(member.tokens_per_s, 1),
            "kv_use": None if facts.kv_use is None else round(facts.kv_use, 3),
            "prefix_hit_rate": _rate_of(facts),
            "usd_per_hour": None if rate is None else str(rate),
            "ejected_until": round(self._out_until(member), 3) or None,
        }


def _rate_of(facts: Facts) -> float | None:
    if facts.prefix_hits is None or not facts.prefix_queries:
        return None
    return round(facts.prefix_hits / facts.prefix_queries, 3)
