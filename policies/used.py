"""What the ledger and open reservations say that budgets and days have used. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from policies.pricing import Usage
from policies.quota import HeldOf, Scope, Spent, nanodollars


@dataclass(slots=True)
class Used:
    """Adds up attempts of the month and the day (UTC) that it is at `now`; of other ones nobody asks."""

    now: float
    _sums: dict[str, Spent] = field(default_factory=dict)

    @property
    def month(self) -> str:
        """As the limits call it."""
        return _month(self.now)

    @property
    def day(self) -> int:
        """Since the epoch."""
        return _day(self.now)

    @property
    def parts(self) -> Mapping[str, Spent]:
        """All that have used something, by their keys."""
        return self._sums

    def copy(self) -> "Used":
        """To add to what the other does not get."""
        return Used(self.now, dict(self._sums))

    def add(self, scope: Scope, at: float, usage: Usage, usd: Decimal | None) -> None:
        """An attempt that was charged; what has no price counts nothing."""
        is_of_month, is_of_day = _month(at) == self.month, _day(at) == self.day
        for part in scope.parts:
            spent = usd if is_of_month and part.usd_per_month is not None else None
            counts = is_of_day and part.tokens_per_day is not None
            if spent is not None or counts:
                self._add(part.key, 0 if spent is None else nanodollars(spent), scope.counted(usage) if counts else 0)

    def add_held(self, held: HeldOf) -> None:
        """What is reserved for an attempt that is not charged yet."""
        nano = held.nanodollars if held.month == self.month else 0
        tokens = held.tokens if held.day == self.day else 0
        if nano or tokens:
            self._add(held.key, nano, tokens)

    def _add(self, key: str, nano: int, tokens: int) -> None:
        self._sums[key] = self._sums.get(key, Spent()).plus(nano, tokens)


def _month(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m")


def _day(moment: float) -> int:
    return int(moment // 86_400)
