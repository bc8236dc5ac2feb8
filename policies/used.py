"""What the ledger and open reservations say that budgets and days have used. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from policies.pricing import Usage
from policies.quota import HeldOf, Scope, nanodollars


@dataclass(frozen=True, slots=True)
class PartUsed:
    """What one part has used: dollars of the month, tokens of the day, the numbers that `Quotas.restore` takes."""

    key: str
    nanodollars: int
    tokens: int


@dataclass(slots=True)
class Used:
    """Adds up attempts of the month and the day (UTC) that it is at `now`; of other ones nobody asks."""

    now: float
    _sums: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def month(self) -> str:
        """As the limits call it."""
        return _month(self.now)

    @property
    def day(self) -> int:
        """Since the epoch."""
        return _day(self.now)

    def add(self, scope: Scope, at: float, usage: Usage, usd: Decimal | None) -> None:
        """An attempt that was charged; what has no price counts nothing."""
        is_of_month, is_of_day = _month(at) == self.month, _day(at) == self.day
        for part in scope.parts:
            spent = usd if is_of_month and part.usd_per_month is not None else None
            counts = is_of_day and part.tokens_per_day is not None
            if spent is None and not counts:
                continue
            before = self._sums.get(part.key, (0, 0))
            more = 0 if spent is None else nanodollars(spent), scope.counted(usage) if counts else 0
            self._sums[part.key] = before[0] + more[0], before[1] + more[1]

    def add_held(self, held: HeldOf) -> None:
        """What is reserved for an attempt that is not charged yet."""
        nano = held.nanodollars if held.month == self.month else 0
        tokens = held.tokens if held.day == self.day else 0
        if nano or tokens:
            before = self._sums.get(held.key, (0, 0))
            self._sums[held.key] = before[0] + nano, before[1] + tokens

    def parts(self) -> Iterator[PartUsed]:
        """All that have used something."""
        for key, (spent, tokens) in self._sums.items():
            yield PartUsed(key, spent, tokens)


def _month(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m")


def _day(moment: float) -> int:
    return int(moment // 86_400)
