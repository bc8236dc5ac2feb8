"""What a worker knows of the quotas, so that it does not ask Redis in vain. Pure; the verdict is Redis' alone."""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import ceil, inf
from typing import Generic, TypeVar

from consumers.outcome import LONGEST_PARK_S
from policies.bucket import Limit
from policies.quota import Part, Room, Scope, State, Verdict, Wait

TOKENS_AGAIN_S = 1.0  # others give tokens back as well, which is not heard of here
PLACES_AGAIN_S = 0.25  # and places
ANSWER_S = 0.005  # until Redis will have answered who is asking
LEAST_S = 0.001  # no wait is shorter, or rounding would make one of nothing
ROUNDING_S = 1e-6
MOST_PARTS = 20_000

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Closed:
    """This part has too little for the job, for so many seconds."""

    part: Part
    seconds: float


class Gate:
    """Keeps in step with the buckets and places that the last verdicts showed. Moments are on a steady clock.

    Of a part that was never asked about, one job finds out for the others. What other workers take is met as a
    refusal; what they give back is looked for from time to time, by one job. A job that has to wait for long asks all
    the same: Redis says until when, and it waits elsewhere.
    """

    def __init__(self, *, most_parts: int = MOST_PARTS) -> None:
        self._most_parts = most_parts
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, tuple[Sequence[Part], int]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def closed(self, parts: Iterable[Part], tokens: int, now: float) -> Closed | None:
        """The part that a job of so many tokens would wait for longest. None: it may ask."""
        longest = None
        for part in parts:
            seconds = self._of(part).wait(part, tokens, now)
            if seconds > LONGEST_PARK_S:
                return None
            if seconds > 0 and (longest is None or seconds > longest.seconds):
                longest = Closed(part, seconds)
        return longest

    def room(self, part: Part, tokens: float, now: float) -> int:
        """How many jobs of so many tokens it would take at once now; none before the first verdict."""
        return self._of(part).room(part, tokens, now)

    def within(self, part: Part, seconds: float, *, tokens: float, held_s: float, now: float) -> int:
        """How many jobs it would let through in so long a time, if they are so large and run for so long."""
        most = [inf]
        if part.requests is not None:
            most.append(part.requests.rate * seconds)
        if part.tokens is not None and tokens > 0:
            most.append(part.tokens.rate * seconds / tokens)
        if part.concurrency is not None and held_s > 0:
            most.append(part.concurrency * seconds / held_s)
        return self.room(part, tokens, now) + ceil(min(*most, MOST_PARTS))

    def ask(self, job_id: str, parts: Sequence[Part], tokens: int) -> None:
        """This job goes to ask."""
        self.forget(job_id)
        self._asking[job_id] = (parts, tokens)
        for part in parts:
            self._of(part).asking(1, tokens)

    def told(self, job_id: str, verdict: Verdict, now: float) -> None:
        """What it was told."""
        self.forget(job_id)
        for state in verdict.states:
            if not state.part.shadow:
                self._of(state.part).learn(state, now)
                if isinstance(verdict, Wait) and verdict.limit == "tokens_per_day" and verdict.scope == state.part.name:
                    self._of(state.part).closed_until = now + verdict.seconds

    def forget(self, job_id: str) -> None:
        """It was told nothing."""
        parts, tokens = self._asking.pop(job_id, ((), 0))
        for part in parts:
            self._of(part).asking(-1, -tokens)

    def give_back(self, scope: Scope, *, requests: int, tokens: int, now: float) -> None:
        """A call has ended here, and so much of what it had reserved was not used (or more than that: below 0)."""
        for part in enforced(scope):
            self._of(part).give_back(part, requests, tokens, now)

    def _of(self, part: Part) -> "_Known":
        known = self._known.get(part.key)
        if known is None:
            known = self._known[part.key] = _Known()
            for key in list(self._known)[: max(0, len(self._known) - self._most_parts)]:
                del self._known[key]
        return known


class HeldBack(Generic[Item]):
    """Jobs that wait for a part of a tenant's quota, outside of all queues: the most urgent first, as they came.

    A job has a number, its place among the equally urgent, which it keeps when it is held back again.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line[Item]] = {}
        self._due: list[tuple[float, str]] = []
        self._numbers = count()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, part: Part, item: Item, *, urgency: int, until: float, number: int | None = None) -> int:
        """Hold it back; returns its number."""
        line = self._lines.setdefault(part.key, _Line(part))
        place = next(self._numbers) if number is None else number
        heapq.heappush(line.items, (urgency, place, item))
        self._length += 1
        self._look(part.key, line, until)
        return place

    def wake(self, parts: Iterable[Part], now: float) -> None:
        """Something has changed there."""
        for part in parts:
            line = self._lines.get(part.key)
            if line is not None:
                self._look(part.key, line, now)

    def due(self, now: float) -> Part | None:
        """A part that it is time to look at."""
        while self._due and self._due[0][0] <= now:
            until, key = heapq.heappop(self._due)
            line = self._lines.get(key)
            if line is not None and line.until == until:
                line.until = inf
                return line.part
        return None

    def next_due(self) -> float | None:
        """When the next one is due, or a moment before that."""
        return self._due[0][0] if self._due else None

    def take(self, part: Part, most: int) -> list[Item]:
        """Up to so many of its jobs, in order. The others are due when one is held back again, or at a `wake`."""
        line = self._lines[part.key]
        taken = [heapq.heappop(line.items)[2] for _ in range(min(most, len(line.items)))]
        self._taken(part.key, line, len(taken))
        return taken

    def longest(self) -> tuple[Part | None, list[Item]]:
        """The part that holds back the most jobs, and these, in no order."""
        line = max(self._lines.values(), key=lambda each: len(each.items), default=None)
        return (None, []) if line is None else (line.part, [entry[2] for entry in line.items])

    def last(self, part: Part, most: int, *, least_urgent: int) -> list[Item]:
        """Up to so many jobs of a part, the last first, none less urgent than that."""
        line = self._lines[part.key]
        some = heapq.nlargest(most, (entry for entry in line.items if entry[0] <= least_urgent))
        gone = {entry[1] for entry in some}
        line.items = [entry for entry in line.items if entry[1] not in gone]
        heapq.heapify(line.items)
        self._taken(part.key, line, len(some))
        return [entry[2] for entry in some]

    def _taken(self, key: str, line: "_Line[Item]", number: int) -> None:
        self._length -= number
        if not line.items:
            del self._lines[key]

    def _look(self, key: str, line: "_Line[Item]", until: float) -> None:
        if until < line.until:
            line.until = until
            heapq.heappush(self._due, (until, key))


def enforced(*scopes: Scope) -> tuple[Part, ...]:
    """The parts that may refuse."""
    return tuple(part for scope in scopes for part in scope.parts if not part.shadow)


@dataclass(slots=True)
class _Known:
    """What is known of one part: its levels at `at`, and what those take who are asking just now."""

    at: float | None = None
    requests: float = 0.0
    tokens: float = 0.0
    places: int = 0
    closed_until: float = -inf
    asking_requests: int = 0
    asking_tokens: int = 0

    def learn(self, state: State, now: float) -> None:
        """A verdict is the truth, as of its moment."""
        self.requests = _level(state.part.requests, state.requests)
        self.tokens = _level(state.part.tokens, state.tokens)
        self.places = state.places or 0
        self.at = now
        self.closed_until = -inf

    def asking(self, requests: int, tokens: int) -> None:
        self.asking_requests += requests
        self.asking_tokens += tokens

    def give_back(self, part: Part, requests: int, tokens: int, now: float) -> None:
        if self.at is None:
            return
        self.requests, self.tokens = self._levels(part, now)
        self.at = now
        if part.requests is not None:
            self.requests = min(part.requests.burst, self.requests + requests)
        if part.tokens is not None:
            self.tokens = max(-part.tokens.burst, min(part.tokens.burst, self.tokens + tokens))
        if part.concurrency is not None:
            self.places = min(part.concurrency, self.places + 1)
        self.closed_until = -inf

    def wait(self, part: Part, tokens: int, now: float) -> float:
        """Seconds until the part has what a job needs, or until somebody should look."""
        if self.at is None:
            return ANSWER_S if self.asking_requests else 0.0
        requests_left, tokens_left = self._levels(part, now)
        waits = [self.closed_until - now, _wait(part.requests, 1, requests_left - self.asking_requests)]
        for_tokens = _wait(part.tokens, tokens, tokens_left - self.asking_tokens)
        waits.append(for_tokens if for_tokens > LONGEST_PARK_S else self._or_look(for_tokens, TOKENS_AGAIN_S, now))
        if part.concurrency is not None and self.places - self.asking_requests < 1:
            waits.append(self._or_look(inf, PLACES_AGAIN_S, now))
        longest = max(waits)
        return max(LEAST_S, longest) if longest > ROUNDING_S else 0.0

    def room(self, part: Part, tokens: float, now: float) -> int:
        if self.at is None:
            return 0
        requests_left, tokens_left = self._levels(part, now)
        rooms = []
        if part.requests is not None:
            rooms.append(requests_left - self.asking_requests)
        if part.tokens is not None and tokens > 0:
            rooms.append((tokens_left - self.asking_tokens) / tokens)
        if part.concurrency is not None:
            rooms.append(self.places - self.asking_requests)
        return max(0, int(min(rooms, default=0)))

    def _or_look(self, seconds: float, again_s: float, now: float) -> float:
        """Nobody waits for so long without somebody looking, one at a time."""
        assert self.at is not None
        look = self.at + again_s - now
        if self.asking_requests:
            look = max(look, ANSWER_S)
        return min(seconds, look)

    def _levels(self, part: Part, now: float) -> tuple[float, float]:
        passed = 0.0 if self.at is None else max(0.0, now - self.at)
        return _refilled(part.requests, self.requests, passed), _refilled(part.tokens, self.tokens, passed)


@dataclass(slots=True)
class _Line(Generic[Item]):
    part: Part
    items: list[tuple[int, int, Item]] = field(default_factory=list)
    until: float = inf


def _level(limit: Limit | None, room: Room | None) -> float:
    return 0.0 if limit is None or room is None else limit.burst - room.full_in_s * limit.rate


def _refilled(limit: Limit | None, level: float, seconds: float) -> float:
    return 0.0 if limit is None else min(limit.burst, level + seconds * limit.rate)


def _wait(limit: Limit | None, amount: float, left: float) -> float:
    return 0.0 if limit is None else (min(limit.burst, amount) - left) / limit.rate
