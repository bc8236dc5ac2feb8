"""Takes jobs off the log and runs them: a bounded look-ahead, microbatches, no waiting for a job in the poll loop."""

import asyncio
import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import fmean

import structlog
from ulid import ULID

from consumers import intake
from consumers.attempt import Attempt, Stop
from consumers.breaker import Breaker
from consumers.dead import bury
from consumers.expected import Expected
from consumers.fair import FLOORS, FairQueue, Turn
from consumers.gate import HeldBack, enforced
from consumers.meters import WorkerMeters
from consumers.microbatch import Microbatches
from consumers.outcome import LONGEST_PARK_S, Concluded, Dead, HandedOff, Later, Left, Waiting
from consumers.tally import Tally
from policies.concurrency import Usual, places
from policies.deployments import Deployment
from policies.ending import ended
from policies.quota import Kind, Part, deployment_scope
from policies.scripts import BoardUnavailableError
from router import topics
from router.envelope import EnvelopeError, from_record, postponed
from router.epoch import Epoch
from router.job import Job, JobClass
from router.log import Delivery, Log, LogUnavailableError, Record, Subscription

log = structlog.get_logger(__name__)

AWAY_S = 0.5
GATHER_S = 0.02  # while the look-ahead is nearly full
URGENCY = {band: urgency for urgency, band in enumerate(FLOORS)}
CLOCK_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much one worker holds and for how long. `slots` is for a deployment without a limit of its own.

    Of the look-ahead at most one half is overflow.
    """

    look_ahead: int = 1000
    look_ahead_bytes: int = 64 * 1024 * 1024
    slots: int = 64
    drain_s: float = 30.0


@dataclass(eq=False, slots=True)
class _Ticket:
    """A job that this worker holds, with the record that it must say `done` for.

    It needs quota of its tenant's parts and of its deployment's; `place` is its number if it was held back.
    """

    job: Job
    delivery: Delivery
    size: int
    of_tenant: tuple[Part, ...] = ()
    of_deployment: tuple[Part, ...] = ()
    tries: int = 0
    place: int | None = None

    @property
    def has_quota(self) -> bool:
        """Whether the door has reserved it, for all that is known here."""
        return self.job.is_reserved and self.tries == 0


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
    epoch: Epoch
    clock: Callable[[], float] = time.monotonic
    breaker: Breaker = field(default_factory=Breaker)
    expected: Expected = field(default_factory=Expected)
    _queues: dict[str, FairQueue[_Ticket]] = field(default_factory=dict)
    _with_quota: dict[str, FairQueue[_Ticket]] = field(default_factory=dict)
    _held_back: HeldBack[_Ticket] = field(default_factory=HeldBack)
    _door_was_last: dict[str, bool] = field(default_factory=dict)
    _opens_at: dict[str, float] = field(default_factory=dict)
    _usual: dict[str, Usual] = field(default_factory=dict)
    _limits: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    _open: Microbatches[Turn[_Ticket]] = field(default_factory=Microbatches)
    _parked: list[tuple[float, int, _Ticket]] = field(default_factory=list)
    _order: "count[int]" = field(default_factory=count)
    _running: dict[str, int] = field(default_factory=dict)
    _held: int = 0
    _held_bytes: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _polled_at: float = 0.0
    _board_minus_ours: float = -math.inf  # until the board's clock was read, no job has aged

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
                tasks.create_task(self.attempt.keep_leases()),
                tasks.create_task(self.attempt.heed()),
                tasks.create_task(self.attempt.wakeups.follow()),
                tasks.create_task(self.epoch.follow()),
                tasks.create_task(self._follow_clock()),
            ]
            stopping = asyncio.Event()
            dispatcher = tasks.create_task(self._dispatch(tasks, subscription, stopping))
            await self._poll(tasks, subscription, stop)
            stopping.set()
            self._changed.set()
            await dispatcher
            await self._drain(subscription)
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
            if 0 < self._room() < self.bounds.look_ahead // 4:
                await asyncio.sleep(GATHER_S)  # to ask for each record alone costs as much as to run a job
            for delivery in await self._take(subscription, self._room()):
                self._receive(tasks, subscription, delivery)
            if self._held >= self.bounds.look_ahead:
                self._make_room(tasks, subscription)
            self._changed.set()

    async def _take(self, subscription: Subscription, at_most: int) -> Sequence[Delivery]:
        try:
            taken = await subscription.take(at_most)
        except LogUnavailableError as error:
            log.warning("log_away", error=str(error))
            await asyncio.sleep(AWAY_S)
            return ()
        self._polled_at = self.clock()
        return taken

    def _room(self) -> int:
        if self.breaker.is_open or self.epoch.fault is not None or self._held_bytes >= self.bounds.look_ahead_bytes:
            return 0
        return max(0, self.bounds.look_ahead - self._held)

    def _receive(self, tasks: asyncio.TaskGroup, subscription: Subscription, delivery: Delivery) -> None:
        size = len(delivery.record.value)
        self._held += 1
        self._held_bytes += size
        try:
            job = from_record(delivery.record)
        except EnvelopeError as error:
            log.error("record_undecodable", topic=delivery.topic, position=delivery.position, error=str(error))
            self.breaker.add(dead=True)
            tasks.create_task(self._bury(subscription, delivery, size, Dead("undecodable", str(error))))
            return
        of_tenant, of_deployment = self.attempt.scopes(job)
        self._queue(_Ticket(job, delivery, size, enforced(of_tenant), enforced(of_deployment)))

    def _make_room(self, tasks: asyncio.TaskGroup, subscription: Subscription) -> None:
        """What a tenant's quota holds back for long must not fill the look-ahead: it waits on a retry topic."""
        now, seconds = self.clock() + self._board_minus_ours, LONGEST_PARK_S
        part, line = self._held_back.longest()
        if part is None or now < 0:
            return
        tokens = fmean(ticket.job.estimate.tokens for ticket in line)
        held_s = fmean(self.expected.seconds(ticket.job.tenant, ticket.job.route.deployment) for ticket in line)
        soon = self.attempt.gate.within(part, seconds, tokens=tokens, held_s=held_s, now=self.clock())
        most = min(len(self._held_back) - self.bounds.look_ahead // 4, len(line) - soon)
        for ticket in self._held_back.last(part, most, least_urgent=URGENCY[JobClass.BULK]):
            self.meters.outcome(later := Later(seconds, "quota_queue", now + seconds))
            tasks.create_task(self._postpone(subscription, ticket, seconds, now + seconds, later.reason))

    def _queue(self, ticket: _Ticket, *, in_front: bool = False) -> None:
        job = ticket.job
        queues = self._with_quota if ticket.has_quota else self._queues
        queue = queues.get(job.route.deployment)
        if queue is None:
            queue = queues[job.route.deployment] = self._new_queue(job.route.deployment)
        queue.put(ticket, tenant=job.tenant, band=job.band, ages_at=job.ages_at, in_front=in_front)
        self._changed.set()

    def _new_queue(self, deployment: str) -> FairQueue[_Ticket]:
        return FairQueue(
            self._slots(deployment, self.clock()),
            weight=self._weight,
            expected=partial(self.expected.seconds, deployment=deployment),
        )

    def _weight(self, tenant: str) -> float:
        known = self.attempt.tenants.get(tenant)
        return known.weight if known else 1.0

    def _slots(self, name: str, now: float) -> int:
        """As many as the operator says; else as many as its rates can use all the time, and what they have saved up."""
        deployment = self.deployments.get(name)
        if deployment is not None and deployment.limits.concurrency is not None:
            return deployment.limits.concurrency
        usual = self._usual.get(name)
        if deployment is None or usual is None:
            return self.bounds.slots
        if name not in self._limits:
            self._limits[name] = enforced(deployment_scope(deployment))
        for part in self._limits[name]:
            steady = places(usual, part.requests, part.tokens)
            if steady is not None:
                saved = self.attempt.gate.room(part, usual.tokens or 0.0, now)
                return max(1, min(self.bounds.slots, math.ceil(steady) + saved))
        return self.bounds.slots

    async def _dispatch(self, tasks: asyncio.TaskGroup, subscription: Subscription, stopping: asyncio.Event) -> None:
        """Fill microbatches while slots are free, and run each as it closes."""
        while not stopping.is_set():
            self._changed.clear()
            now = self.clock()
            while self._parked and self._parked[0][0] <= now:
                self._queue(heapq.heappop(self._parked)[2])
            while (part := self._held_back.due(now)) is not None:
                let = self._held_back.take(part, max(1, self.attempt.gate.room(part, 0.0, now)))
                for ticket in reversed(let):
                    self._queue(ticket, in_front=True)
            if self.epoch.fault is None:
                for name in self._queues.keys() | self._with_quota.keys():
                    self._fill(name, now)
            for turns in self._open.close(now):
                tasks.create_task(self._run_microbatch(tasks, subscription, turns))
            await self._next_change()
        for turns in self._open.close(math.inf):  # these are not begun any more: others get their records
            for turn in turns:
                self._running[turn.item.job.route.deployment] -= 1

    def _fill(self, name: str, now: float) -> None:
        deployment = self.deployments.get(name)
        slots = self._slots(name, now)
        self._opens_at.pop(name, None)
        size = deployment.microbatch_size if deployment else 1
        wait_s = deployment.microbatch_wait_s if deployment else 0.0
        while self._running.get(name, 0) < slots and self._open.count(name) < size:
            turn = self._next_turn(name, now)
            if turn is None:
                return
            self._running[name] = self._running.get(name, 0) + 1
            self._open.add(name, turn, size=min(size, slots), wait_s=wait_s, now=now)
            if self._open.count(name) >= min(size, slots):
                return

    def _next_turn(self, name: str, now: float) -> Turn[_Ticket] | None:
        """Jobs that have their quota from the door and those that have not, by turns."""
        door_first = not self._door_was_last.get(name, False)
        for from_door in (door_first, not door_first):
            turn = self._from_door(name, now) if from_door else self._let(name, now)
            if turn is not None:
                self._door_was_last[name] = from_door
                return turn
        return None

    def _from_door(self, name: str, now: float) -> Turn[_Ticket] | None:
        queue = self._with_quota.get(name)
        return None if queue is None else queue.take(now + self._board_minus_ours)

    def _let(self, name: str, now: float) -> Turn[_Ticket] | None:
        """The next job that the quotas are likely to let through. Those that its tenant's would not are held back."""
        queue, gate, board_now = self._queues.get(name), self.attempt.gate, now + self._board_minus_ours
        while queue is not None and (ticket := queue.peek(board_now)) is not None:
            tokens = ticket.job.estimate.tokens
            closed = gate.closed(ticket.of_tenant, tokens, now) or gate.closed(ticket.of_deployment, tokens, now)
            if closed is not None and closed.part.kind is Kind.DEPLOYMENT:
                self._opens_at[name] = now + closed.seconds
                return None
            turn = queue.take(board_now)
            assert turn is not None
            if closed is None:
                if ticket.of_tenant or ticket.of_deployment:
                    gate.ask(ticket.job.id, ticket.of_tenant + ticket.of_deployment, tokens)
                if ticket.place is not None:
                    self._held_back.wake(ticket.of_tenant, now)
                return turn
            queue.finish(turn, 0.0)
            ticket.place = self._held_back.put(
                closed.part,
                ticket,
                urgency=URGENCY[ticket.job.band],
                until=now + closed.seconds,
                number=ticket.place,
            )
        return None

    async def _next_change(self) -> None:
        moments = [self._parked[0][0]] if self._parked else []
        moments += self._opens_at.values()
        due = self._held_back.next_due()
        if due is not None:
            moments.append(due)
        closes = self._open.next_close()
        if closes is not None:
            moments.append(closes)
        wait = max(0.0, min(moments) - self.clock()) if moments else None
        try:
            async with asyncio.timeout(wait):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _run_microbatch(
        self, tasks: asyncio.TaskGroup, subscription: Subscription, turns: Sequence[Turn[_Ticket]]
    ) -> None:
        """Run its jobs side by side; when the last has ended, its record goes to the ledger."""
        self._changed.set()  # another one may fill now
        microbatch = f"mb_{ULID()}"
        route = turns[0].item.job.route
        tally = Tally(microbatch, route.deployment, route.lane, started=self.clock())
        self.meters.microbatch(len(turns))
        async with asyncio.TaskGroup() as jobs:
            for turn in turns:
                jobs.create_task(self._run(tasks, subscription, turn, tally))
        if tally.attempts:
            record = Record(tally.text(self.clock()).encode(), {"version": "1", "id": microbatch})
            await self.attempt.until_it_works(lambda: self.log.append(topics.CHARGES, record))

    async def _run(
        self, tasks: asyncio.TaskGroup, subscription: Subscription, turn: Turn[_Ticket], tally: Tally
    ) -> None:
        ticket, started = turn.item, self.clock()
        job, delivery = ticket.job, ticket.delivery
        queue = (self._with_quota if ticket.has_quota else self._queues)[job.route.deployment]
        ticket.tries += 1
        # No two runs share an owner: a record comes again at the same position when its partition goes to another
        # member and back, and its job may still run here.
        owner = f"{self.attempt.wakeups.channel}|{delivery.topic}|{delivery.position}|{next(self._order)}"
        try:
            outcome = await self.attempt(job, owner, tally)
        except Exception as error:  # even the way out of a crash crashed: the worker goes on
            log.exception("attempt_crashed_twice", job=job.id, tenant=job.tenant, error=type(error).__name__)
            outcome = Dead("crashed", type(error).__name__)
        finally:
            self._running[job.route.deployment] -= 1
            held_s = self.clock() - started
            queue.finish(turn, held_s)
            self.attempt.gate.forget(job.id)
            self._held_back.wake(ticket.of_tenant, self.clock())
            self._changed.set()
        self.meters.outcome(outcome)
        if isinstance(outcome, Concluded):
            self.expected.add(job.tenant, job.route.deployment, held_s)
            self._usual.setdefault(job.route.deployment, Usual()).add(held_s, job.estimate.tokens)
        if isinstance(outcome, Concluded | Dead):
            self.breaker.add(dead=isinstance(outcome, Dead))
        match outcome:
            case Concluded():
                await self._done(subscription, delivery, ticket.size)
            case Later(seconds, reason, due_at):
                if seconds > LONGEST_PARK_S and due_at is not None:
                    tasks.create_task(self._postpone(subscription, ticket, seconds, due_at, reason))
                else:
                    self._park(ticket, seconds)
            case Waiting():
                self._queue(ticket, in_front=True)
            case Dead():
                tasks.create_task(self._bury(subscription, delivery, ticket.size, outcome))
            case HandedOff():
                await self._done(subscription, delivery, ticket.size)
            case Left():
                return

    def _park(self, ticket: _Ticket, seconds: float) -> None:
        """Keep it in memory; its record stays open."""
        heapq.heappush(self._parked, (self.clock() + seconds, next(self._order), ticket))
        self._changed.set()

    async def _postpone(
        self, subscription: Subscription, ticket: _Ticket, seconds: float, due_at: float, reason: str
    ) -> None:
        """Let it wait on a retry topic; only once it is there is this record done."""
        record = postponed(ticket.delivery.record, ticket.job.topic, due_at=due_at, reason=reason)
        topic = topics.retry_topic(seconds)
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

    async def _follow_clock(self) -> None:
        """The board's clock says when jobs were made and when they have aged."""
        while True:
            with suppress(BoardUnavailableError):
                self._board_minus_ours = await self.attempt.board.now() - self.clock()
            await asyncio.sleep(CLOCK_EVERY_S)

    async def _drain(self, subscription: Subscription) -> None:
        """Wait for what runs, keeping the membership; close what is still open after `drain_s`."""
        until = self.clock() + self.bounds.drain_s
        while any(self._running.values()) and self.clock() < until:
            await self._take(subscription, 0)
        for running in list(self.attempt.running.values()):
            running.close(Stop.DRAIN)
        while any(self._running.values()):
            await self._take(subscription, 0)
