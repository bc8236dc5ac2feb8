"""What a process knows for routing: a level for each tenant and modality, sessions, and what scores a prompt.

Decisions touch memory alone. `router/sharing.py` tells other replicas, and takes over what they have learned.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from decimal import Decimal
from typing import NamedTuple

from policies.deployments import Modality
from policies.tenants import Tenant
from policies.values import dataclass
from router import tracker
from router.gain import GainScore, Score, shipped
from router.sessions import Sessions
from router.tracker import Level, Target

OF_LATE_S = 60.0
OF_PRICES = 200.0  # calls over which the mean prices are remembered

Prices = tuple[Decimal | None, Decimal | None]  # what a call may cost at most on light, and on heavy
Scorer = Callable[[Mapping[str, object]], Score]


class Name(NamedTuple):
    """What a level is for. `axis`: `tier`, or `effort.<tier>` where a tier has deployments of several efforts."""

    tenant: str
    modality: Modality
    axis: str = "tier"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision by score. `rule`: `score`, or `cap` where the cap kept light what was above the threshold."""

    is_heavy: bool
    rule: str
    threshold: float


@dataclass(slots=True)
class _Held:
    """`base`: the common level when this process last took it over; None: it never did."""

    target: Target
    level: Level
    base: Level | None = None
    replicas: int = 1
    used_at: float = 0.0
    light_usd: float = 0.0
    heavy_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """What a process has learned at a level since it last took the common one over. `began`: where it began alone."""

    name: Name
    target: Target
    began: Level
    level: Level

    @property
    def moved(self) -> Level:
        """As differences."""
        return tracker.moved(self.began, self.level)


@dataclass(slots=True)
class Shares:
    """Decides by score. `scorers` are tenants' own ones, once they have learned from their traffic."""

    scorer: Scorer = field(default_factory=GainScore)
    scorers: dict[str, Scorer] = field(default_factory=dict)
    fifth: float = 0.69
    deviation: float = 0.1
    clock: Callable[[], float] = time.monotonic
    decided: Callable[[Modality, str, bool], None] = lambda _modality, _rule, _is_heavy: None
    sessions: Sessions = field(default_factory=Sessions)
    replicas: int = 1  # that decide beside this one, itself included
    _held: dict[Name, _Held] = field(default_factory=dict)

    @classmethod
    def of_shipped_weights(cls) -> "Shares":
        """With the weights in the package, read now."""
        weights = shipped()
        return cls(GainScore(weights), fifth=float(weights.fifth[0]), deviation=float(weights.spread[0]))

    def copy(self) -> "Shares":
        """As it is now: what is decided with the copy moves nothing here."""
        held = {name: replace(each) for name, each in self._held.items()}
        return replace(self, decided=lambda *_: None, sessions=self.sessions.copy(), _held=held)

    def score(self, tenant: Tenant, body: Mapping[str, object]) -> Score:
        """With the tenant's own weights where it has some."""
        return self.scorers.get(tenant.name, self.scorer)(body)

    def decide(self, name: Name, tenant: Tenant, score: float, prices: Prices | None = None) -> Verdict:
        """Light or heavy by score. `prices`, where the share is said in dollars."""
        held = self._of(name, tenant)
        if prices is not None:
            self._follow_prices(held, tenant, prices)
        threshold = held.level.threshold
        found = tracker.scored(self._target(held), held.level, score)
        held.level = found.level
        return Verdict(found.is_heavy, "cap" if found.is_capped else "score", threshold)

    def force(self, name: Name, tenant: Tenant, *, is_heavy: bool) -> None:
        """Count a call that a rule decided."""
        held = self._of(name, tenant)
        held.level = tracker.forced(self._target(held), held.level, is_heavy=is_heavy)

    def levels(self) -> Mapping[Name, Level]:
        """As they are now, for metrics."""
        return {name: held.level for name, held in self._held.items()}

    def changes(self) -> list[Change]:
        """All that was used of late: what others do not know yet, and what they may have learned since."""
        since = self.clock() - OF_LATE_S
        return [
            Change(name, held.target, held.base or self._start(held.target), held.level)
            for name, held in self._held.items()
            if held.used_at >= since
        ]

    def take_over(self, change: Change, common: Level) -> None:
        """The common level, after `change` was told; what was learned meanwhile comes on top."""
        held = self._held[change.name]
        since = tracker.moved(change.level, held.level)
        held.base = common
        held.level = tracker.absorbed(held.target, common, since, replicas=1)

    def _of(self, name: Name, tenant: Tenant) -> _Held:
        held = self._held.get(name)
        if held is None:
            share = tenant.routing.heavy_share if name.axis == "tier" else tenant.routing.effort_share
            target = Target(share)
            held = self._held[name] = _Held(target, self._start(target))
        held.used_at = self.clock()
        return held

    def _target(self, held: _Held) -> Target:
        if held.replicas != self.replicas:
            held.replicas, held.target = self.replicas, Target(held.target.share).of_one(self.replicas)
        return held.target

    def _start(self, target: Target) -> Level:
        return tracker.start(target, fifth=self.fifth, deviation=self.deviation)

    def _follow_prices(self, held: _Held, tenant: Tenant, prices: Prices) -> None:
        """Where the share is said in dollars, it follows what calls cost at most; an unknown price tells nothing."""
        light, heavy = prices
        usd = tenant.routing.mean_usd
        if usd is None or light is None or heavy is None:
            return
        if not held.heavy_usd:
            held.light_usd, held.heavy_usd = float(light), float(heavy)
        held.light_usd += (float(light) - held.light_usd) / OF_PRICES
        held.heavy_usd += (float(heavy) - held.heavy_usd) / OF_PRICES
        share = tracker.share_for(float(usd), light_usd=held.light_usd, heavy_usd=held.heavy_usd)
        held.target = replace(held.target, share=min(share, tenant.routing.heavy_share))
