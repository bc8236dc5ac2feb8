"""One replica as a worker knows it, and a call's place on it."""

import math
from dataclasses import dataclass, field
from decimal import Decimal

from consumers.gpu.discovery import Replica
from consumers.gpu.engines import UNKNOWN, Bounds, Facts
from consumers.gpu.health import Health, State
from consumers.gpu.replicas import FULL, Learned, cap
from consumers.gpu.speeds import Shown
from policies.fleets import Engine, Fleet
from policies.machine_time import Phase

UNBOUNDED = Bounds()
LATELY_S = 120.0


@dataclass(slots=True)
class Member:
    """One replica. `everyone` are the calls there that workers made, as last heard; `ours` those of this process."""

    replica: Replica
    health: Health = field(default_factory=Health)
    engine: Engine | None = None
    facts: Facts = UNKNOWN
    bounds: Bounds | None = None
    everyone: int = 0
    ours: int = 0
    asked: int = 0  # calls that are about to be there
    foreign: int = 0  # calls there that are not from us
    learned: Learned | None = None
    tokens_per_s: float | None = None
    shown: Shown = field(default_factory=Shown)
    computes: dict[str, float] = field(default_factory=dict)  # tokens of our calls' prompts, until they are answered
    is_listed: bool = True
    congested: int | None = None  # with so many calls, since it was last told to the others
    _given: tuple[float, float] = (0.0, 0.0)
    _extra: int = 0
    _generated: tuple[float, float] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it may be called."""
        return self.health.state is State.READY and self.is_listed and not self.replica.drains

    @property
    def load(self) -> int:
        """Calls that are there now."""
        return max(self.everyone, self.ours) + self.asked + self.foreign

    @property
    def computing(self) -> float:
        """Tokens of prompts that are being computed there; of calls that others have there as many as of ours."""
        return sum(self.computes.values()) * max(1.0, (self.everyone + self.foreign) / max(1, self.ours))

    @property
    def is_gone(self) -> bool:
        """Whether it is not to be found any more, and has no call of ours."""
        return not self.is_listed and not self.ours

    @property
    def is_full(self) -> bool:
        """Whether its cache is so full that it would soon throw out what runs."""
        return (self.facts.kv_use or 0.0) > FULL

    @property
    def too_many(self) -> int | None:
        """The calls that have filled its cache; None where it is not full, or they still go down to its learned cap."""
        has_come_down = self.learned is None or self.load <= self.learned.cap
        return self.load if self.is_full and has_come_down else None

    def usd_per_hour(self, fleet: Fleet) -> Decimal | None:
        """What its machine costs; None: it has no bill."""
        return fleet.usd_per_hour if self.replica.usd_per_hour is None else self.replica.usd_per_hour

    def ceiling(self, fleet: Fleet) -> int:
        """The most that it may ever have: what is configured, and what its engine takes."""
        return cap(self.replica.cap or fleet.cap, (self.bounds or UNBOUNDED).slots)

    def most(self, fleet: Fleet, usual_tokens: float | None) -> int:
        """The least of that, of what fits into its cache if jobs are as they usually are, and of what was learned."""
        kv_tokens = (self.bounds or UNBOUNDED).kv_tokens
        fits = max(1, int(kv_tokens / usual_tokens)) if kv_tokens is not None and usual_tokens else None
        learned = None if self.learned is None else max(1, int(self.learned.cap))
        return cap(self.ceiling(fleet), fits, learned)

    def phase(self) -> Phase:
        """What its machine does, for the bill: it costs while it answers."""
        if self.is_gone or self.health.state in (State.NEW, State.DOWN):
            return Phase.OFF
        if self.health.state is State.WARMING:
            return Phase.WARM_UP
        return Phase.UP if self.is_listed and not self.replica.drains else Phase.COOL_DOWN

    def gets(self, now: float, seconds: float) -> None:
        """A call from here, which takes so long as a rule; and once it is over, by how much that was wrong."""
        self._given = self.given(now) + seconds, now

    def begins_anew(self) -> None:
        """It was away: what it was given before that is no reason to give it less."""
        self._given = 0.0, 0.0

    def given(self, now: float) -> float:
        """Seconds that the calls which it got from here take; what was `LATELY_S` ago counts a third."""
        seconds, at = self._given
        return seconds * math.exp(-max(0.0, now - at) / LATELY_S)

    def told(self, facts: Facts, now: float) -> None:
        """What its metrics say now. Calls of others count once two looks in a row have shown them: ours come and go."""
        self.facts = facts
        seen = 0 if facts.running is None else facts.running + (facts.waiting or 0)
        extra = max(0, seen - max(self.everyone, self.ours))
        self.foreign, self._extra = min(extra, self._extra), extra
        if facts.generated is None:
            self._generated = self.tokens_per_s = None
        else:
            if self._generated is not None and now > self._generated[0]:
                made = facts.generated - self._generated[1]
                self.tokens_per_s = None if made < 0 else made / (now - self._generated[0])
            self._generated = (now, facts.generated)


@dataclass(frozen=True, slots=True)
class Place:
    """A call's place on a replica, taken `at` a moment for as many seconds as calls there take, `usual_s`.

    `prompt`: tokens that are to be computed there before it begins to be answered; 0 where it finds some of them.
    """

    member: Member
    id: str
    prompt: float = 0.0
    at: float = 0.0
    usual_s: float = 0.0

    @property
    def replica(self) -> Replica:
        """Where it is."""
        return self.member.replica
