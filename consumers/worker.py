"""Takes jobs off the log and runs them: a bounded look-ahead, microbatches, no waiting for a job in the poll loop."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import ceil

import structlog
from ulid import ULID

from consumers import intake
from consumers.attempt import Attempt
from consumers.breaker import Breaker
from consumers.dead import bury
from consumers.fair import Turn
from consumers.gate import enforced
from consumers.gpu.pace import Pace
from consumers.meters import WorkerMeters
from consumers.outcome import LONGEST_PARK_S, Concluded, Dead, HandedOff, Later, Left, MovedOn, Waiting
from consumers.running import Stop
from consumers.schedule import Schedule, Ticket
from consumers.tally import Tally
from consumers.together import Together
from policies.deployments import Deployment, Modality
from policies.ending import ended
from policies.scripts import BoardUnavailableError
from router import topics
from router.envelope import EnvelopeError, earlier, from_record, kept, postponed, to_record
from router.job import AtBackend, Job, JobClass
from router.log import Delivery, Log, LogUnavailableError, Record, Subscription
from router.queues import Queues, Told, Working

log = structlog.get_logger(__name__)

AWAY_S = 0.5
GATHER_S = 0.02  # while the look-ahead is nearly full
CLOCK_EVERY_S = 30.0
TELL_EVERY_S = 1.0
PATIENT = 7 / 8  # of the look-ahead for all classes; the rest is for interactive, or nobody would see it behind others


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much one worker holds and for how long. `slots` is for a deployment without a limit of its own.

    The record of a job that a backend has taken is looked at again after `handed_off_s`.
    Of the look-ahead at most one half is overflow, and the last eighth is for interactive.
    """

    look_ahead: int = 1000
    look_ahead_bytes: int = 64 * 1024 * 1024
    slots: int = 64
    drain_s: float = 30.0
    handed_off_s: float = 600.0


@dataclass(slots=True)
class Worker:
    """Works off the topics of one backend until it is told to stop.

    `stalled_for` tells a health check how long the poll loop has not come round, in seconds.
    """

    log: Log
    topics: Sequence[str]
    group: str
    attempt: Attempt
    deployments: Mapping[str, Deployment]
    bounds: Bounds
    meters: WorkerMeters
    clock: Callable[[], float] = time.monotonic
    breaker: Breaker = field(default_factory=Breaker)
    queues: Queues | None = None
    _pace: Pace = field(default_factory=Pace)
    _schedule: Schedule = field(init=False)
    _hurried: frozenset[str] = field(init=False)
    _order: "count[int]" = field(default_factory=count)
    _held: int = 0
    _held_bytes: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _polled_at: float = 0.0

    def __post_init__(self) -> None:
        self._hurried = frozenset(each for each in self.topics if each.endswith(f".{JobClass.INTERACTIVE}"))
        self._schedule = Schedule(self.deployments, self.attempt.gate, self._weight, self.bounds.slots)
        if self.attempt.places is not None:
            self._schedule.room = self.attempt.places.room
            self._schedule.is_away = self.attempt.places.is_away
            self._schedule.welcomes = self.attempt.places.welcomes
        self.meters.watch("dead_letters", lambda: self.breaker.is_open)
        self.meters.watch("board_lost", lambda: self.attempt.epoch.fault is not None)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`; then finish what runs, as far as `drain_s` allows, and give back the rest."""
        self._polled_at = self.clock()
        subscribed = intake.subscribe(
            self.log,
            self.topics,
            group=self.group,
            most=max(1, self.bounds.look_ahead // 2),
            most_bytes=self.bounds.look_ahead_bytes // 2,
        )
        async with subscribed as subscription, asyncio.TaskGroup() as tasks:
            keepers = [
                tasks.create_task(self.attempt.leases.keep()),
                tasks.create_task(self.attempt.leases.heed()),
                tasks.create_task(self.attempt.wakeups.follow()),
                tasks.create_task(self.attempt.epoch.follow()),
                tasks.create_task(self._follow_clock()),
                tasks.create_task(self._tell()),
            ]
            stopping = asyncio.Event()
            dispatcher = tasks.create_task(self._dispatch(tasks, subscription, stopping))
            try:
                await self._poll(tasks, subscription, stop)
                stopping.set()
                self._changed.set()
                await dispatcher
                await self._drain(subscription)
            finally:  # cut short as well: a group cancels its tasks only once, which may not do
                await ended(*keepers)

    @property
    def stalled_for(self) -> float:
        """Seconds since the poll loop last came round."""
        return self.clock() - self._polled_at

    @property
    def held(self) -> int:
        """Jobs taken and not yet done."""
        return self._held

    async def _poll(self, tasks: asyncio.TaskGroup, subscription: Subscription, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if 0 < self._room(PATIENT) < self.bounds.look_ahead // 4:
                await asyncio.sleep(GATHER_S)  # to ask for each record alone costs as much as to run a job
            of = None if self._room(PATIENT) else self._hurried
            for delivery in await self._take(subscription, self._room() if of else self._room(PATIENT), of):
                self._receive(tasks, subscription, delivery)
            if self._held >= ceil(PATIENT * self.bounds.look_ahead):
                self._make_room(tasks, subscription)
            self._changed.set()

    async def _take(
        self, subscription: Subscription, at_most: int, of: Collection[str] | None = None
    ) -> Sequence[Delivery]:
        try:
            taken = await subscription.take(at_most, of=of)
        except LogUnavailableError as error:
            log.warning("log_away", error=str(error))
            await asyncio.sleep(AWAY_S)
            return ()
        self._polled_at = self.clock()
        return taken

    def _room(self, part: float = 1.0) -> int:
        """How many more may be taken until so large a part of the look-ahead is full."""
        bounds, is_shut = self.bounds, self.breaker.is_open or self.attempt.epoch.fault is not None
        if is_shut or self._held_bytes >= part * bounds.look_ahead_bytes:
            return 0
        return max(0, ceil(part * bounds.look_ahead) - self._held)

    def _receive(self, tasks: asyncio.TaskGroup, subscription: Subscription, delivery: Delivery) -> None:
        size = len(delivery.record.value)
        self._held += 1
        self._held_bytes += size
        self._pace.took(delivery.topic)
        try:
            job, past = from_record(delivery.record), earlier(delivery.record)
        except EnvelopeError as error:
            log.error("record_undecodable", topic=delivery.topic, position=delivery.position, error=str(error))
            self.breaker.add(dead=True)
            tasks.create_task(self._bury(subscription, delivery, size, Dead("undecodable", str(error))))
            return
        of_tenant, of_deployment = self.attempt.scopes(job)
        ticket = Ticket(job, delivery, size, enforced(of_tenant), enforced(of_deployment), job.is_reserved, past)
        self._put(ticket)

    def _make_room(self, tasks: asyncio.TaskGroup, subscription: Subscription) -> None:
        """What a tenant's quota holds back for long waits on a retry topic."""
        now, seconds = self.clock(), LONGEST_PARK_S
        for ticket in self._schedule.too_many(self.bounds.look_ahead, now):
            later = Later(seconds, "quota_queue", now + self._schedule.board_minus_ours + seconds)
            self.meters.outcome(later)
            tasks.create_task(self._postpone(subscription, ticket, later))

    def _put(self, ticket: Ticket, *, in_front: bool = False) -> None:
        self._schedule.put(ticket, self.clock(), in_front=in_front)
        self._changed.set()

    def _weight(self, tenant: str) -> float:
        known = self.attempt.tenants.get(tenant)
        return known.weight if known else 1.0

    async def _dispatch(self, tasks: asyncio.TaskGroup, subscription: Subscription, stopping: asyncio.Event) -> None:
        """Fill microbatches while slots are free, and run each as it closes."""
        while not stopping.is_set():
            self._changed.clear()
            now = self.clock()
            self._schedule.let_back(now)
            if self.attempt.epoch.fault is None:
                self._schedule.fill(now)
            for turns in self._schedule.close(now):
                tasks.create_task(self._run_microbatch(tasks, subscription, turns))
            await self._next_change()
        self._schedule.stop()  # others get their records

    async def _next_change(self) -> None:
        moment = self._schedule.next_change()
        try:
            async with asyncio.timeout(None if moment is None else max(0.0, moment - self.clock())):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _run_microbatch(
        self, tasks: asyncio.TaskGroup, subscription: Subscription, turns: Sequence[Turn[Ticket]]
    ) -> None:
        """Run its jobs side by side; when the last has ended, its record goes to the ledger."""
        self._changed.set()  # another one may fill now
        microbatch = f"mb_{ULID()}"
        route = turns[0].item.job.route
        tally = Tally(microbatch, route.deployment, route.lane, started=self.clock())
        self.meters.microbatch(len(turns))
        async with asyncio.TaskGroup() as jobs:
            shared = None
            if route.modality is Modality.EMBEDDING and len(turns) > 1:
                shared = Together(self.attempt.backend, [turn.item.job.id for turn in turns], jobs.create_task)
            for turn in turns:
                jobs.create_task(self._run(tasks, subscription, turn, tally, shared))
        if tally.attempts:
            record = Record(tally.text(self.clock()).encode(), {"version": "1", "id": microbatch})
            await self.attempt.until_it_works(lambda: self.log.append(topics.CHARGES, record))

    async def _run(
        self,
        tasks: asyncio.TaskGroup,
        subscription: Subscription,
        turn: Turn[Ticket],
        tally: Tally,
        shared: Together | None,
    ) -> None:
        ticket, started = turn.item, self.clock()
        job, delivery = ticket.job, ticket.delivery
        # No two runs share an owner: a record comes again at the same position when its partition goes to another
        # member and back, and its job may still run here.
        owner = f"{self.attempt.wakeups.channel}|{delivery.topic}|{delivery.position}|{next(self._order)}"
        self._pace.began(delivery.topic, job.created_at)
        try:
            outcome = await self.attempt(job, owner, tally, shared.call if shared else None, ticket.earlier)
        except Exception as error:  # even the way out of a crash crashed: the worker goes on
            log.exception("attempt_crashed_twice", job=job.id, tenant=job.tenant, error=type(error).__name__)
            outcome = Dead("crashed", type(error).__name__)
        finally:
            if shared is not None:
                shared.leave(job.id)
            now = self.clock()
            held_s = now - started
            self._pace.ended(delivery.topic)
            self._schedule.finish(turn, held_s, now)
            self._changed.set()
        self.meters.outcome(outcome)
        ticket.has_quota = ticket.has_quota and isinstance(outcome, Waiting) and outcome.keeps
        if isinstance(outcome, Concluded):
            self._schedule.learn(job, held_s)
        if isinstance(outcome, Concluded | Dead):
            self.breaker.add(dead=isinstance(outcome, Dead))
        match outcome:
            case Concluded():
                await self._done(subscription, delivery, ticket.size)
            case Later(seconds, _, due_at) as later:
                if seconds > LONGEST_PARK_S and due_at is not None:
                    tasks.create_task(self._postpone(subscription, ticket, later))
                else:  # it is kept in memory, its record stays open
                    self._schedule.park(ticket, self.clock() + seconds)
                    self._changed.set()
            case Waiting():
                self._put(ticket, in_front=True)
            case Dead():
                tasks.create_task(self._bury(subscription, delivery, ticket.size, outcome))
            case HandedOff(at):
                await self._keep_record(subscription, ticket, at)
            case MovedOn():
                await self._move_on(subscription, ticket, outcome.job)
            case Left():
                return

    async def _keep_record(self, subscription: Subscription, ticket: Ticket, at: AtBackend | None) -> None:
        seconds = self.bounds.handed_off_s
        due_at = seconds + await self.attempt.until_it_works(self.attempt.board.now)
        await self._postpone(subscription, ticket, Later(seconds, "handed_off", due_at), at)

    async def _move_on(self, subscription: Subscription, ticket: Ticket, job: Job) -> None:
        """To the other deployment's line: here, where a caller may wait, or on the topic of another backend's lane."""
        if job.topic in self.topics:
            of_tenant, of_deployment = self.attempt.scopes(job)
            again = Ticket(job, ticket.delivery, ticket.size, enforced(of_tenant), enforced(of_deployment))
            self._put(again, in_front=True)
            return
        await self.attempt.until_it_works(lambda: self.log.append(job.topic, to_record(job)))
        await self._done(subscription, ticket.delivery, ticket.size)

    async def _postpone(
        self, subscription: Subscription, ticket: Ticket, later: Later, at: AtBackend | None = None
    ) -> None:
        """Let it wait on a retry topic; only once it is there is this record done."""
        assert later.due_at is not None
        record = ticket.record if at is None else kept(ticket.record, at)
        record = postponed(record, ticket.job.topic, due_at=later.due_at, reason=later.reason)
        topic = topics.retry_topic(later.seconds)
        await self.attempt.until_it_works(lambda: self.log.append(topic, record))
        await self._done(subscription, ticket.delivery, ticket.size)

    async def _bury(self, subscription: Subscription, delivery: Delivery, size: int, dead: Dead) -> None:
        await self.attempt.until_it_works(lambda: bury(self.log, delivery, dead.reason, dead.detail))
        self.meters.dead(dead.reason)
        await self._done(subscription, delivery, size)

    async def _done(self, subscription: Subscription, delivery: Delivery, size: int) -> None:
        await self.attempt.until_it_works(lambda: subscription.done(delivery))
        self._held -= 1
        self._held_bytes -= size
        self._pace.left(delivery.topic)

    async def _follow_clock(self) -> None:
        """The board's clock says when jobs were made and when they have aged."""
        while True:
            with suppress(BoardUnavailableError):
                self._schedule.board_minus_ours = await self.attempt.board.now() - self.clock()
            await asyncio.sleep(CLOCK_EVERY_S)

    async def _tell(self) -> None:
        """How fast jobs go here, for those who are asked when one begins."""
        if self.queues is None:
            return
        while True:
            worked_off = self._pace.look(self.clock())
            idle = {topic: Working(0, None, None) for topic in self.topics}
            warming = self.attempt.places.warming() if self.attempt.places is not None else ()
            with suppress(BoardUnavailableError):
                await self.queues.tell(self.attempt.wakeups.channel, Told(idle | worked_off, warming))
            await asyncio.sleep(TELL_EVERY_S)

    async def _drain(self, subscription: Subscription) -> None:
        """Wait for what runs, keeping the membership; close what is still open after `drain_s`."""
        until = self.clock() + self.bounds.drain_s
        while not self._schedule.is_idle and self.clock() < until:
            await self._take(subscription, 0)
        for running in list(self.attempt.leases.running.values()):
            running.close(Stop.DRAIN)
        while not self._schedule.is_idle:
            await self._take(subscription, 0)
