"""What a machine cost, split over the calls that ran on it: whole picodollars whose sum is exact. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise

MS_PER_HOUR = 3_600_000


class Phase(StrEnum):
    """What a machine does, as far as its bill goes. OFF costs nothing."""

    OFF = "off"
    WARM_UP = "warm_up"
    UP = "up"
    COOL_DOWN = "cool_down"


class Idle(StrEnum):
    """Why nothing ran on a machine that cost."""

    WARM_UP = "warm_up"  # it loads its model
    GAP = "gap"  # it was ready, and nobody came
    COOL_DOWN = "cool_down"  # it gets nothing more


@dataclass(frozen=True, slots=True)
class Ran:
    """A call on the machine. Moments are whole milliseconds."""

    id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Bill:
    """A span of a machine's time, in picodollars. `shares` are by call, `held_ms` how long each was there.

    `carry` is what is left of a picodollar, for the next span: so the bills of all spans add up to rate x time. Where
    there are several machines `up_ms` and `busy_ms` are those of each of them together.
    """

    total: int
    shares: Mapping[str, int]
    held_ms: Mapping[str, int]
    idle: Mapping[Idle, int]
    up_ms: int
    busy_ms: int
    carry: int

    @property
    def busy(self) -> int:
        """What the calls used."""
        return sum(self.shares.values())


def split(
    usd_per_hour: Decimal,
    phases: Sequence[tuple[int, Phase]],
    ran: Iterable[Ran],
    *,
    since: int,
    until: int,
    carry: int = 0,
    machines: Sequence[tuple[int, int]] = (),
) -> Bill:
    """The span from `since` to `until`. `phases` are moments and what begins then; before the first it was OFF.

    `machines` are moments and how many there are from then on, all at this rate and taken as one; before the first
    there is one. Calls that ran side by side share their time equally; a machine on which calls run costs, whatever its
    phase.
    """
    rate = int(usd_per_hour.scaleb(12).to_integral_exact())
    running = [call for call in ran if call.start < until and call.end > since]
    order = sorted(phases, key=lambda phase: phase[0])
    moments = {since, until}
    moments |= {at for call in running for at in (call.start, call.end)} | {at for at, _ in (*order, *machines)}
    inside = sorted(at for at in moments if since <= at <= until)
    starts, ends = _by(running, lambda call: max(since, call.start)), _by(running, lambda call: min(until, call.end))
    shares, held = dict.fromkeys((call.id for call in running), 0), dict.fromkeys((call.id for call in running), 0)
    idle = dict.fromkeys(Idle, 0)
    there: dict[str, None] = {}
    total = up_ms = busy_ms = 0
    for begin, end in pairwise(inside):
        for call in ends.get(begin, ()):
            there.pop(call.id, None)
        there |= dict.fromkeys(call.id for call in starts.get(begin, ()) if call.end > begin)
        phase = next((phase for at, phase in reversed(order) if at <= begin), Phase.OFF)
        if not there and phase is Phase.OFF:
            continue
        machine_ms = _number(machines, begin) * (end - begin)
        piece, carry = divmod(carry + rate * machine_ms, MS_PER_HOUR)
        total += piece
        up_ms += machine_ms
        if not there:
            idle[_idle(phase)] += piece
            continue
        busy_ms += machine_ms
        part, rest = divmod(piece, len(there))
        for id in there:
            shares[id] += part
            held[id] += end - begin
        shares[id] += rest  # to the last one, so that nothing is lost
    return Bill(total, shares, held, idle, up_ms, busy_ms, carry)


def allocated(total: int, busy: Sequence[int], busy_total: int) -> list[int]:
    """Shares of all that machines cost in a time, idle time included, by what each used of them; all in picodollars.

    Those of everybody, whose `busy` is `busy_total`, add up to `total` exactly. The order decides who gets a rest.
    """
    edges = [0]
    for each in busy:
        edges.append(edges[-1] + each)
    return [
        total * end // busy_total - total * start // busy_total if busy_total else 0 for start, end in pairwise(edges)
    ]


def _number(machines: Sequence[tuple[int, int]], moment: int) -> int:
    return max(((at, number) for at, number in machines if at <= moment), default=(0, 1), key=lambda pair: pair[0])[1]


def _by(calls: Iterable[Ran], moment: Callable[[Ran], int]) -> dict[int, list[Ran]]:
    found: dict[int, list[Ran]] = {}
    for call in calls:
        found.setdefault(moment(call), []).append(call)
    return found


def _idle(phase: Phase) -> Idle:
    match phase:
        case Phase.WARM_UP:
            return Idle.WARM_UP
        case Phase.COOL_DOWN:
            return Idle.COOL_DOWN
        case Phase.UP | Phase.OFF:
            return Idle.GAP
