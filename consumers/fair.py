"""Which waiting job is next: classes by share, tenants by what they have used. Pure, driven step by step."""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Generic, TypeVar

from router.job import JobClass, Queue

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

# Of 400 grants with everything waiting: 20 for the overflow, and 70, 25 and 5 % of the others. Most urgent first.
FLOORS: Mapping[str, int] = MappingProxyType(
    {JobClass.INTERACTIVE: 266, JobClass.STANDARD: 95, JobClass.BULK: 19, Queue.OVERFLOW: 20}
)
ROUND = sum(FLOORS.values())
MOST_IN_DEBT = 1000  # tenants with nothing here, of whom it is still known that they had more than their share
LEAST_S = 0.001  # no job is free, or the others would never have their turn


@dataclass(frozen=True, slots=True)
class Turn(Generic[Item]):
    """A job that was taken. It holds a slot until `finish`; its tenant was charged these seconds."""

    item: Item
    tenant: str
    band: str
    seconds: float


class FairQueue(Generic[Item]):
    """Waiting jobs of one deployment that runs `slots` at once. A band is a class, or the overflow.

    - The most urgent band that waits is served first; each other one has its floor, and what nobody uses
      goes to the most urgent.
    - In a band, tenants share by deficit round robin: a job costs what its tenant's jobs take (`expected`, in seconds),
      corrected once it has ended, and each round pays in by `weight`. A debt is carried over, credit is not saved up.
      Rounds in which it is nobody's turn are skipped at once, so that a job of hours costs no more steps than another.
    - A tenant that holds half of the slots waits while one that holds less does.
    - A job whose time to age has come goes before its tenant's others.

    `put`, `take` and `finish` take logarithmic time; memory is for what waits or runs.
    """

    def __init__(
        self,
        slots: int,
        *,
        weight: Callable[[str], float] = lambda tenant: 1.0,
        expected: Callable[[str], float] = lambda tenant: 1.0,
    ) -> None:
        self._most_held = max(1, slots // 2)
        self._weight = weight
        self._expected = expected
        self._bands: dict[str, _Band[Item]] = {name: _Band(floor) for name, floor in FLOORS.items()}
        self._held: dict[str, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, item: Item, *, tenant: str, band: str, ages_at: float = math.inf, in_front: bool = False) -> None:
        """Behind this tenant's other jobs of the band, until `ages_at`; or in front of them, as one that comes back."""
        self._bands[band].put(item, tenant, ages_at, aside=self._holds_enough(tenant), in_front=in_front)
        self._length += 1

    def peek(self, now: float) -> Item | None:
        """What `take` would give, left where it is."""
        name, _ = self._next_band()
        if name is None:
            return None
        band = self._bands[name]
        return band.peek(band.next_tenant(), now)

    def take(self, now: float) -> Turn[Item] | None:
        """The next one; None when nothing waits. `now` is on the clock of `ages_at`."""
        name, credits = self._next_band()
        if name is None:
            return None
        for waiting, credit in credits.items():
            self._bands[waiting].credit = credit
        band = self._bands[name]
        tenant = band.next_tenant()
        seconds = max(LEAST_S, self._expected(tenant))
        item = band.take(tenant, now, seconds / self._weight(tenant))
        self._length -= 1
        self._held[tenant] = self._held.get(tenant, 0) + 1
        if self._held[tenant] == self._most_held:
            for each in self._bands.values():
                each.set_aside(tenant)
        return Turn(item, tenant, name, seconds)

    def finish(self, turn: Turn[Item], seconds: float) -> None:
        """Its slot is free again, after so many seconds. Once for each turn."""
        tenant = turn.tenant
        self._held[tenant] -= 1
        if self._held[tenant] == self._most_held - 1:
            for each in self._bands.values():
                each.let_back(tenant)
        if not self._held[tenant]:
            del self._held[tenant]
        more = max(LEAST_S, seconds) - turn.seconds
        self._bands[turn.band].finish(tenant, more / self._weight(tenant))

    def _holds_enough(self, tenant: str) -> bool:
        return self._held.get(tenant, 0) >= self._most_held

    def _next_band(self) -> tuple[str | None, dict[str, int]]:
        """Each band that waits gains its floor with every grant, and pays a round for its own: whose turn, and what
        credits there are after it."""
        waiting = [name for name, band in self._bands.items() if band.ready]
        if not waiting:
            waiting = [name for name, band in self._bands.items() if band.aside]
        if not waiting:
            return None, {}
        credits = {name: self._bands[name].credit + self._bands[name].floor for name in waiting}
        owed = [name for name in waiting if credits[name] >= ROUND]
        chosen = max(owed, key=lambda name: credits[name]) if owed else waiting[0]
        credits[chosen] = max(0, credits[chosen] - ROUND)
        return chosen, credits


class _Band(Generic[Item]):
    """The tenants of one band; those that wait are in `ready`, or in `aside` while they hold enough slots.

    A tenant's `due` is when its turn comes, in seconds of use by weight; `_time` is how far that has come.
    """

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.credit = 0
        self.ready: _Ordered[str] = _Ordered()
        self.aside: _Ordered[str] = _Ordered()
        self._accounts: dict[str, _Account[Item]] = {}
        self._in_debt: _Ordered[str] = _Ordered()
        self._time = 0.0
        self._last_due = 0.0

    def put(self, item: Item, tenant: str, ages_at: float, *, aside: bool, in_front: bool) -> None:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(due=self._time)
        if not account.line:
            account.due = max(account.due, self._time)
            self._in_debt.remove(tenant)
            (self.aside if aside else self.ready).put(tenant, account.due)
        account.line.put(item, ages_at, in_front=in_front)

    def next_tenant(self) -> str:
        """Whose turn it is; somebody must wait."""
        return (self.ready or self.aside).first()

    def peek(self, tenant: str, now: float) -> Item:
        return self._accounts[tenant].line.peek(now)

    def take(self, tenant: str, now: float, cost: float) -> Item:
        account = self._accounts[tenant]
        item = account.line.take(now)
        account.running += 1
        self._time = max(self._time, account.due)
        self._charge(tenant, account, cost)
        if not account.line:
            self.ready.remove(tenant)
            self.aside.remove(tenant)
        if not self.ready and not self.aside:  # nobody is kept waiting by anybody: all debts end
            self._time = max(self._time, self._last_due)
            self.credit = 0
        self._forget()
        return item

    def finish(self, tenant: str, more: float) -> None:
        """The job cost `more` than was charged, or less."""
        account = self._accounts[tenant]
        account.running -= 1
        self._charge(tenant, account, more)
        if not account.line and not account.running:
            self._in_debt.put(tenant, account.due)
            self._forget()

    def set_aside(self, tenant: str) -> None:
        if tenant in self.ready:
            self.ready.remove(tenant)
            self.aside.put(tenant, self._accounts[tenant].due)

    def let_back(self, tenant: str) -> None:
        if tenant in self.aside:
            self.aside.remove(tenant)
            account = self._accounts[tenant]
            account.due = max(account.due, self._time)
            self.ready.put(tenant, account.due)

    def _charge(self, tenant: str, account: "_Account[Item]", cost: float) -> None:
        least = account.due if cost > 0 else min(account.due, self._time)
        account.due = max(account.due + cost, least)
        self._last_due = max(self._last_due, account.due)
        for where in (self.ready, self.aside):
            if tenant in where:
                where.put(tenant, account.due)

    def _forget(self) -> None:
        """Tenants with nothing here, once they owe nothing."""
        gone = self._in_debt
        while gone and (len(gone) > MOST_IN_DEBT or self._accounts[gone.first()].due <= self._time):
            tenant = gone.first()
            gone.remove(tenant)
            del self._accounts[tenant]


class _Line(Generic[Item]):
    """One tenant's waiting jobs: first in, first out, but those that have aged go first."""

    def __init__(self) -> None:
        self._items: OrderedDict[int, Item] = OrderedDict()
        self._ages: _Ordered[int] = _Ordered()
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item, ages_at: float, *, in_front: bool = False) -> None:
        number = next(self._numbers)
        self._items[number] = item
        if in_front:
            self._items.move_to_end(number, last=False)
        if ages_at < math.inf:
            self._ages.put(number, ages_at)

    def peek(self, now: float) -> Item:
        return self._items[self._next(now)]

    def take(self, now: float) -> Item:
        number = self._next(now)
        self._ages.remove(number)
        return self._items.pop(number)

    def _next(self, now: float) -> int:
        has_aged = bool(self._ages) and self._ages.lowest() <= now
        return self._ages.first() if has_aged else next(iter(self._items))


@dataclass(slots=True)
class _Account(Generic[Item]):
    due: float
    line: _Line[Item] = field(default_factory=_Line)
    running: int = 0


class _Ordered(Generic[Key]):
    """Keys by rank, the lowest first, equal ones as they came. Each may move or leave.

    Memory is for about twice of what is in it.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._entries: dict[Key, tuple[float, int, Key]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def put(self, key: Key, rank: float) -> None:
        """Add it, or move it."""
        entry = (rank, next(self._numbers), key)
        self._entries[key] = entry
        heapq.heappush(self._heap, entry)
        self._tidy()

    def remove(self, key: Key) -> None:
        """Take it out, if it is there."""
        if self._entries.pop(key, None) is not None:
            self._tidy()

    def first(self) -> Key:
        """The key with the lowest rank; there must be one."""
        return self._top()[2]

    def lowest(self) -> float:
        """The lowest rank; there must be one."""
        return self._top()[0]

    def _top(self) -> tuple[float, int, Key]:
        while self._entries.get(self._heap[0][2]) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0]

    def _tidy(self) -> None:
        """What has moved or left stays in the heap until it comes up, or until it is more than the rest."""
        if len(self._heap) > 2 * len(self._entries) + 16:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
