"""One tenant drops 4,000 jobs on a system that others use: what these notice, with the real queue, in virtual time.

4 consumers of 16 slots share 12 partitions of each topic; 24 quiet tenants send 0.3 jobs a second each (45 % of what
can be done), a job takes about 4 s. After a minute the noisy tenant sends its 4,000 at once.
"""

import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol

import pytest

from consumers.expected import Expected
from consumers.fair import FairQueue, Turn
from router.job import JobClass, Queue

CONSUMERS, SLOTS, PARTITIONS = 4, 16, 12
QUIET, RATE = 24, 0.3
MEAN_S, SIGMA = 4.0, 0.5
BURST_AT, BURST = 60.0, 4000
UNTIL = BURST_AT + 240.0  # whose waits are looked at
MAX_IN_CLASS = 500
LOOK_AHEAD = 1000
SEEDS = (1, 2, 3)
LEFT_OVER_S = BURST * MEAN_S / (CONSUMERS * SLOTS - QUIET * RATE * MEAN_S)  # the burst on what the others leave


@dataclass(eq=False, slots=True)
class Call:
    """A job of the trace."""

    at: float
    tenant: str
    seconds: float
    queue: Queue = Queue.MAIN
    started: float = math.nan

    @property
    def wait(self) -> float:
        return self.started - self.at


def trace(seed: int, *, burst: int = BURST) -> list[Call]:
    dice = random.Random(seed)

    def seconds() -> float:
        return dice.lognormvariate(math.log(MEAN_S) - SIGMA**2 / 2, SIGMA)

    calls = [Call(BURST_AT, "noisy", seconds()) for _ in range(burst)]
    for number in range(QUIET):
        at = dice.expovariate(RATE)
        while at < UNTIL + 300:
            calls.append(Call(at, f"quiet-{number}", seconds()))
            at += dice.expovariate(RATE)
    return sorted(calls, key=lambda call: call.at)


class Waiting(Protocol):
    """What a consumer keeps its jobs in; `take` is None when nothing waits, else a job and how to end it."""

    def put(self, call: Call) -> None: ...
    def take(self, now: float) -> tuple[Call, Callable[[float], None]] | None: ...


class InTurn:
    """First in, first out."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()

    def put(self, call: Call) -> None:
        self._calls.append(call)

    def take(self, now: float) -> tuple[Call, Callable[[float], None]] | None:
        return (self._calls.popleft(), lambda seconds: None) if self._calls else None


class Fairly:
    """The real queue, fed as the worker feeds it."""

    def __init__(self) -> None:
        self._expected = Expected()
        self._queue: FairQueue[Call] = FairQueue(SLOTS, expected=partial(self._expected.seconds, deployment="d"))

    def put(self, call: Call) -> None:
        band = JobClass.STANDARD if call.queue is Queue.MAIN else call.queue
        self._queue.put(call, tenant=call.tenant, band=band, ages_at=call.at + 43_200)

    def take(self, now: float) -> tuple[Call, Callable[[float], None]] | None:
        turn = self._queue.take(now)
        return None if turn is None else (turn.item, partial(self._ended, turn))

    def _ended(self, turn: Turn[Call], seconds: float) -> None:
        self._queue.finish(turn, seconds)
        self._expected.add(turn.tenant, "d", seconds)


@dataclass
class Consumer:
    """Takes what its partitions have while it has room, and runs 16 at once."""

    waiting: Waiting
    main: deque[Call] = field(default_factory=deque)
    overflow: deque[Call] = field(default_factory=deque)
    held: Counter[Queue] = field(default_factory=Counter)
    running: int = 0

    def look(self) -> None:
        while self.main and self.held.total() < LOOK_AHEAD:
            self._hold(self.main.popleft())
        while self.overflow and self.held.total() < LOOK_AHEAD and self.held[Queue.OVERFLOW] < LOOK_AHEAD // 2:
            self._hold(self.overflow.popleft())

    def _hold(self, call: Call) -> None:
        self.held[call.queue] += 1
        self.waiting.put(call)


@dataclass
class System:
    """The whole of it; `max_in_class` mirrors what the accept script counts."""

    waiting: Callable[[], Waiting]
    max_in_class: float = math.inf
    ended: float = 0.0
    noisy_ended: float = 0.0

    def run(self, calls: list[Call]) -> None:
        consumers = [Consumer(self.waiting()) for _ in range(CONSUMERS)]
        unfinished: Counter[str] = Counter()
        partition, order = count(), count()
        ends: list[tuple[float, int, Consumer, Call, Callable[[float], None]]] = []

        def fill(consumer: Consumer, now: float) -> None:
            consumer.look()
            while consumer.running < SLOTS and (taken := consumer.waiting.take(now)) is not None:
                call, end = taken
                call.started = now
                consumer.running += 1
                heapq.heappush(ends, (now + call.seconds, next(order), consumer, call, end))

        def end_one() -> None:
            now, _, consumer, call, end = heapq.heappop(ends)
            end(call.seconds)
            consumer.running -= 1
            consumer.held[call.queue] -= 1
            unfinished[call.tenant] -= call.queue is Queue.MAIN
            if call.tenant == "noisy":
                self.noisy_ended = now
            fill(consumer, now)

        for call in calls:
            while ends and ends[0][0] <= call.at:
                end_one()
            call.queue = Queue.MAIN if unfinished[call.tenant] < self.max_in_class else Queue.OVERFLOW
            unfinished[call.tenant] += call.queue is Queue.MAIN
            consumer = consumers[next(partition) % PARTITIONS % CONSUMERS]
            (consumer.main if call.queue is Queue.MAIN else consumer.overflow).append(call)
            fill(consumer, call.at)
        while ends:
            end_one()


def p95(waits: list[float]) -> float:
    return sorted(waits)[math.ceil(0.95 * len(waits)) - 1]


@dataclass(frozen=True)
class Seen:
    """Seconds."""

    quiet_p95: float
    worst_tenant_p95: float
    drained: float

    @classmethod
    def of(cls, system: System, calls: list[Call]) -> "Seen":
        system.run(calls)
        assert not any(math.isnan(call.started) for call in calls), "every job ran"
        by_tenant: defaultdict[str, list[float]] = defaultdict(list)
        for call in calls:
            if call.tenant != "noisy" and BURST_AT <= call.at < UNTIL:
                by_tenant[call.tenant].append(call.wait)
        waits = [wait for some in by_tenant.values() for wait in some]
        return cls(p95(waits), max(p95(some) for some in by_tenant.values()), system.noisy_ended - BURST_AT)


@pytest.mark.parametrize("seed", SEEDS)
def test_quiet_tenants_hardly_notice_a_tenant_that_drops_4000_jobs(seed: int) -> None:
    fifo = Seen.of(System(InTurn), trace(seed))
    fair = Seen.of(System(Fairly, max_in_class=MAX_IN_CLASS), trace(seed))
    print(f"seed {seed}: first in, first out {fifo}; ours {fair}")

    assert fifo.quiet_p95 > 100
    assert fair.quiet_p95 < 3
    assert fair.worst_tenant_p95 < 10
    assert fair.drained < 2 * fifo.drained
    assert fair.drained < 1.1 * LEFT_OVER_S
