"""What a fleet could reach at best: an oracle that knows every queue, every cache and every outage. Pure."""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.engine_double import BLOCK


@dataclass(frozen=True, slots=True)
class Work:
    """A job: when it comes, its prompt as names of blocks of 16 tokens, its answer in tokens."""

    at: float
    blocks: Sequence[object]
    output: int


@dataclass(slots=True)
class Server:
    """An engine: rates in tokens a second, and the times at which it is of no use, from when until when."""

    slots: int
    prefill: float
    decode: float
    cache: int
    outages: Sequence[tuple[float, float]] = ()
    _free_at: list[float] = field(default_factory=list)
    _prefill_free_at: float = 0.0
    _blocks: OrderedDict[object, None] = field(default_factory=OrderedDict)

    def ends(self, work: Work) -> float | None:
        """When this job would be done here; None: an outage would come in between."""
        begins, _, ends = self._times(work)
        return None if any(start < ends and begins < stop for start, stop in self.outages) else ends

    def take(self, work: Work) -> float:
        """It is done here; when."""
        _, prefilled, ends = self._times(work)
        if len(self._free_at) >= self.slots:
            heapq.heappop(self._free_at)
        heapq.heappush(self._free_at, ends)
        self._prefill_free_at = prefilled
        for block in work.blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self.cache:
            self._blocks.popitem(last=False)
        return ends

    def _times(self, work: Work) -> tuple[float, float, float]:
        slot_at = self._free_at[0] if len(self._free_at) >= self.slots else work.at
        begins = max(work.at, slot_at)
        cached = 0
        for block in work.blocks:
            if block not in self._blocks:
                break
            cached += 1
        prefilled = max(begins, self._prefill_free_at) + (len(work.blocks) - cached) * BLOCK / self.prefill
        return begins, prefilled, prefilled + work.output / self.decode


def latencies(works: Sequence[Work], servers: Sequence[Server]) -> list[float]:
    """Each job goes, as it comes, to the server that is done with it first. Seconds from coming to being done."""
    taken = []
    for work in works:
        ends = [(end, number) for number, server in enumerate(servers) if (end := server.ends(work)) is not None]
        assert ends, "the oracle found a moment at which no server is of use"
        taken.append(servers[min(ends)[1]].take(work) - work.at)
    return taken
