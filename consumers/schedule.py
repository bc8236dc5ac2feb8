"""Whose turn it is among the jobs that a worker holds. Pure, driven step by step; `now` is on a steady clock."""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import fmean

from consumers.expected import Expected
from consumers.fair import FLOORS, FairQueue, Turn
from consumers.gate import PLACES_AGAIN_S, Gate, HeldBack, enforced
from consumers.microbatch import Microbatches
from consumers.outcome import LONGEST_PARK_S
from policies.concurrency import Usual, places
from policies.deployments import Deployment
from policies.quota import Kind, Part, deployment_scope
from router.envelope import to_record
from router.job import NOTHING_EARLIER, Earlier, Job, JobClass
from router.log import Delivery, Record

MOST_APART = 256  # jobs of a deployment that wait for one of its replicas while others go past them
MOVING_ON = 16  # jobs at once that leave a deployment which cannot be called
URGENCY = {band: urgency for urgency, band in enumerate(FLOORS)}


@dataclass(eq=False, slots=True)
class Ticket:
    """A job that this worker holds, with the record that it must say `done` for.

    It needs quota of its tenant's parts and of its deployment's; `has_quota`: the door has reserved its tenant's, for
    all that is known here. `earlier` is what the record says of the job's past, `place` its number if it was held back.
    """

    job: Job
    delivery: Delivery
    size: int
    of_tenant: tuple[Part, ...] = ()
    of_deployment: tuple[Part, ...] = ()
    has_quota: bool = False
    earlier: Earlier = NOTHING_EARLIER
    place: int | None = None

    @property
    def record(self) -> Record:
        """The job as a record: the one that came, or its like with the deployment that the job has moved on to."""
        return to_record(self.job) if self.job.route.tried else self.delivery.record

    @property
    def lacks(self) -> tuple[Part, ...]:
        """The parts of its tenant that it must ask."""
        return () if self.has_quota else self.of_tenant


@dataclass(slots=True)
class Schedule:
    """Tickets that wait, by deployment: in line, held back by the quotas, parked for a while, or in a microbatch.

    `slots` is for a deployment without a limit of its own. `room` says how many more jobs its replicas take, when so
    many have begun; None: it has no replicas. A job that they do not `welcome` as yet stands apart, and others pass it.
    `board_minus_ours`: what to add to `now` for the moments that are on the board's clock.
    """

    deployments: Mapping[str, Deployment]
    gate: Gate
    weight: Callable[[str], float]
    slots: int
    room: Callable[[str, int], int | None] = field(default=lambda name, begun: None)
    is_away: Callable[[str], bool] = field(default=lambda name: False)
    welcomes: Callable[[Job], bool] = field(default=lambda job: True)
    expected: Expected = field(default_factory=Expected)
    board_minus_ours: float = -math.inf  # until the board's clock was read, no job has aged
    _queues: dict[str, FairQueue[Ticket]] = field(default_factory=dict)
    _held_back: HeldBack[Ticket] = field(default_factory=HeldBack)
    _opens_at: dict[str, float] = field(default_factory=dict)
    _usual: dict[str, Usual] = field(default_factory=dict)
    _limits: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    _open: Microbatches[Turn[Ticket]] = field(default_factory=Microbatches)
    _parked: list[tuple[float, int, Ticket]] = field(default_factory=list)
    _apart: dict[str, list[Ticket]] = field(default_factory=dict)
    _order: "count[int]" = field(default_factory=count)
    _running: dict[str, int] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds a slot."""
        return not any(self._running.values())

    def put(self, ticket: Ticket, now: float, *, in_front: bool = False) -> None:
        """Behind its tenant's others of its class; or in front of them, as one that comes back."""
        job = ticket.job
        queue = self._queues.get(job.route.deployment)
        if queue is None:
            queue = self._queues[job.route.deployment] = self._new_queue(job.route.deployment, now)
        queue.put(ticket, tenant=job.tenant, band=job.band, ages_at=job.ages_at, in_front=in_front)

    def park(self, ticket: Ticket, until: float) -> None:
        """Out of all lines until then."""
        heapq.heappush(self._parked, (until, next(self._order), ticket))

    def let_back(self, now: float) -> None:
        """Those whose time to be parked or held back is over are in line again."""
        while self._parked and self._parked[0][0] <= now:
            self.put(heapq.heappop(self._parked)[2], now)
        while (part := self._held_back.due(now)) is not None:
            let = self._held_back.take(part, max(1, self.gate.room(part, 0.0, now)))
            for ticket in reversed(let):
                self.put(ticket, now, in_front=True)

    def fill(self, now: float) -> None:
        """Put into microbatches whose turn it is, while slots are free. Each holds its slot until `finish`."""
        for name in self._queues:
            self._fill(name, now)

    def close(self, now: float) -> Sequence[Sequence[Turn[Ticket]]]:
        """The microbatches that are to be run now."""
        return self._open.close(now)

    def stop(self) -> None:
        """What is not begun is not begun any more."""
        for turns in self._open.close(math.inf):
            for turn in turns:
                self._running[turn.item.job.route.deployment] -= 1

    def finish(self, turn: Turn[Ticket], held_s: float, now: float) -> None:
        """It has ended, or is put off: its slot is free. Once for each turn."""
        ticket = turn.item
        name = ticket.job.route.deployment
        self._queues[name].finish(turn, held_s)
        self._running[name] -= 1
        self.gate.forget(ticket.job.id)
        self._held_back.wake(ticket.of_tenant, now)

    def learn(self, job: Job, held_s: float) -> None:
        """A job that was concluded had held its slot for so long."""
        self.expected.add(job.tenant, job.route.deployment, held_s)
        self._usual.setdefault(job.route.deployment, Usual()).add(held_s, job.estimate.tokens)

    def next_change(self) -> float | None:
        """When to look again, if nothing happens before; None: not until something happens."""
        moments = [self._parked[0][0]] if self._parked else []
        moments += self._opens_at.values()
        moments += [each for each in (self._held_back.next_due(), self._open.next_close()) if each is not None]
        return min(moments, default=None)

    def too_many(self, look_ahead: int, now: float) -> Iterator[Ticket]:
        """Takes out what a tenant's quota holds back for long: it must not fill the look-ahead."""
        part, line = self._held_back.longest()
        if part is None or now + self.board_minus_ours < 0:
            return
        tokens = fmean(ticket.job.estimate.tokens for ticket in line)
        held_s = fmean(self.expected.seconds(ticket.job.tenant, ticket.job.route.deployment) for ticket in line)
        soon = self.gate.within(part, LONGEST_PARK_S, tokens=tokens, held_s=held_s, now=now)
        most = min(len(self._held_back) - look_ahead // 4, len(line) - soon)
        yield from self._held_back.last(part, most, least_urgent=URGENCY[JobClass.BULK])

    def _new_queue(self, deployment: str, now: float) -> FairQueue[Ticket]:
        return FairQueue(
            self._slots(deployment, now),
            weight=self.weight,
            expected=partial(self.expected.seconds, deployment=deployment),
        )

    def _slots(self, name: str, now: float) -> int:
        """As many as the operator says; else as many as its rates can use all the time, and what they have saved up."""
        deployment = self.deployments.get(name)
        if deployment is not None and deployment.limits.concurrency is not None:
            return deployment.limits.concurrency
        usual = self._usual.get(name)
        if deployment is None or usual is None:
            return self.slots
        if name not in self._limits:
            self._limits[name] = enforced(deployment_scope(deployment))
        for part in self._limits[name]:
            steady = places(usual, part.requests, part.tokens)
            if steady is not None:
                saved = self.gate.room(part, usual.tokens or 0.0, now)
                return max(1, min(self.slots, math.ceil(steady) + saved))
        return self.slots

    def _fill(self, name: str, now: float) -> None:
        deployment = self.deployments.get(name)
        self._opens_at.pop(name, None)
        slots = min(self._slots(name, now), self._places(name, now))
        size = deployment.microbatch_size if deployment else 1
        wait_s = deployment.microbatch_wait_s if deployment else 0.0
        if self._running.get(name, 0) < slots:
            self._rejoin(name, now)
        while self._running.get(name, 0) < slots and self._open.count(name) < size:
            turn = self._next_welcome(name, now)
            if turn is None:
                return
            self._running[name] = self._running.get(name, 0) + 1
            most = int(min(size, slots))
            self._open.add(name, turn, size=most, wait_s=wait_s, now=now)
            if self._open.count(name) >= most:
                return

    def _places(self, name: str, now: float) -> float:
        """Jobs that may hold a slot at once, for all that its replicas take. Only asked when some wait."""
        apart = len(self._apart.get(name, ()))
        waiting = apart + len(self._queues[name])
        begun = self._running.get(name, 0)
        room = self.room(name, begun) if waiting else None
        if room is None:
            return math.inf
        if room == 0 and self._may_move_on(name):
            room = max(0, MOVING_ON - begun)
        if room < waiting or apart:
            self._opens_at[name] = now + PLACES_AGAIN_S
        return begun + room

    def _may_move_on(self, name: str) -> bool:
        """Whether its jobs are to be taken up although none can be called: to go on at another deployment."""
        deployment = self.deployments.get(name)
        return deployment is not None and bool(deployment.fallback) and self.is_away(name)

    def _rejoin(self, name: str, now: float) -> None:
        """Those that stand apart and are welcome now are in line again, in front."""
        welcome: list[Ticket] = []
        apart: list[Ticket] = []
        for ticket in self._apart.get(name, ()):
            (welcome if self.welcomes(ticket.job) else apart).append(ticket)
        self._apart[name] = apart
        for ticket in reversed(welcome):
            self.put(ticket, now, in_front=True)

    def _next_welcome(self, name: str, now: float) -> Turn[Ticket] | None:
        apart = self._apart.setdefault(name, [])
        while len(apart) < MOST_APART and (turn := self._next_turn(name, now)) is not None:
            ticket = turn.item
            if self.welcomes(ticket.job):
                return turn
            self._queues[name].finish(turn, 0.0)
            self.gate.forget(ticket.job.id)
            apart.append(ticket)
            self._opens_at[name] = now + PLACES_AGAIN_S
        return None

    def _next_turn(self, name: str, now: float) -> Turn[Ticket] | None:
        """The next job that the quotas are likely to let through. Those that its tenant's would not are held back."""
        queue, gate, board_now = self._queues[name], self.gate, now + self.board_minus_ours
        while (ticket := queue.peek(board_now)) is not None:
            tokens = ticket.job.estimate.tokens
            closed = gate.closed(ticket.lacks, tokens, now) or gate.closed(ticket.of_deployment, tokens, now)
            if closed is not None and closed.part.kind is Kind.DEPLOYMENT:
                self._opens_at[name] = now + closed.seconds
                return None
            turn = queue.take(board_now)
            assert turn is not None
            if closed is None:
                if ticket.lacks or ticket.of_deployment:
                    gate.ask(ticket.job.id, ticket.lacks + ticket.of_deployment, tokens)
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
