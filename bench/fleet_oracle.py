"""What a fleet could reach at best: an oracle that knows every queue and cache, but not what will fail. Pure."""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from bench.engine_double import BLOCK


@dataclass(frozen=True, slots=True)
class Work:
    """A job: when it comes, its prompt as names of blocks of 16 tokens, its answer in tokens."""

    at: float
    blocks: Sequence[object]
    output: int


@dataclass(frozen=True, slots=True)
class Outage:
    """Nothing new goes there from `closed` until `until`. What runs at `dies` breaks off, and the cache is gone."""

    closed: float
    dies: float | None
    until: float


@dataclass(frozen=True, slots=True)
class Served:
    """A job that is done: seconds from its coming, and the number of each server that had it, from when to when."""

    seconds: float
    spans: tuple[tuple[int, float, float], ...] = ()


@dataclass(slots=True)
class Server:
    """An engine: rates in tokens a second, and when it is of no use, which nobody knows before."""

    slots: int
    prefill: float
    decode: float
    cache: int
    outages: Sequence[Outage] = ()
    _ends: list[float] = field(default_factory=list)
    _prefilled: float = 0.0
    _blocks: OrderedDict[object, None] = field(default_factory=OrderedDict)

    def warm(self, blocks: Iterable[object]) -> None:
        """It has computed these."""
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.cache:
            self._blocks.popitem(last=False)

    def is_open(self, now: float) -> bool:
        """Whether it takes a job."""
        return not any(each.closed <= now < each.until for each in self.outages)

    def dies(self, since: float, until: float) -> float | None:
        """When, within that time."""
        return next((each.dies for each in self.outages if each.dies is not None and since < each.dies < until), None)

    def lose(self) -> None:
        """What ran and what was cached."""
        self._ends.clear()
        self._prefilled = 0.0
        self._blocks.clear()

    def ends(self, work: Work, now: float) -> float:
        """When this job would be done here."""
        return self._times(work, now)[2]

    def take(self, work: Work, now: float) -> tuple[float, float]:
        """It is done here: from when to when."""
        begins, prefilled, ends = self._times(work, now)
        if len(self._ends) >= self.slots:
            heapq.heappop(self._ends)
        heapq.heappush(self._ends, ends)
        self._prefilled = prefilled
        self.warm(work.blocks)
        return begins, ends

    def _times(self, work: Work, now: float) -> tuple[float, float, float]:
        begins = max(now, self._ends[0]) if len(self._ends) >= self.slots else now
        cached = 0
        for block in work.blocks:
            if block not in self._blocks:
                break
            cached += 1
        prefilled = max(begins, self._prefilled) + (len(work.blocks) - cached) * BLOCK / self.prefill
        return begins, prefilled, prefilled + work.output / self.decode


def served(works: Sequence[Work], servers: Sequence[Server]) -> list[Served]:
    """Each job goes, as it comes, to the server that is done with it first, and again where that one dies under it."""
    found = [Served(0.0)] * len(works)
    order = count()
    deaths = [(each.dies, server) for server in servers for each in server.outages if each.dies is not None]
    waiting: list[tuple[float, int, int | Server]] = [(dies, next(order), server) for dies, server in deaths]
    waiting += [(work.at, next(order), number) for number, work in enumerate(works)]
    heapq.heapify(waiting)
    while waiting:
        now, _, number = heapq.heappop(waiting)
        if isinstance(number, Server):
            number.lose()
            continue
        work, usable = works[number], [each for each in enumerate(servers) if each[1].is_open(now)]
        if not usable:
            again = min(each.until for server in servers for each in server.outages if each.until > now)
            heapq.heappush(waiting, (again, next(order), number))
            continue
        chosen, server = min(usable, key=lambda each: each[1].ends(work, now))
        begins, ends = server.take(work, now)
        dies = server.dies(now, ends)
        until = ends if dies is None else dies
        found[number] = Served(until - work.at, (*found[number].spans, (chosen, begins, max(begins, until))))
        if dies is not None:
            heapq.heappush(waiting, (dies, next(order), number))
    return found
