"""What a call costs: usage times price book, in exact decimals."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

PER_MILLION = Decimal(1_000_000)


class Meter(StrEnum):
    """What is counted, and therefore priced. Reasoning tokens are part of OUTPUT."""

    INPUT = "input"
    CACHE_READ = "cache_read"
    CACHE_WRITE = "cache_write"
    OUTPUT = "output"


class Basis(StrEnum):
    """Where a quantity comes from: the provider's own usage, or our count."""

    METERED = "metered"
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, normalised: `input` excludes cached tokens, `output` includes reasoning."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    basis: Basis = Basis.METERED

    @property
    def total(self) -> int:
        """All tokens, cached ones included."""
        return self.input + self.cache_read + self.cache_write + self.output

    def quantities(self) -> Mapping[Meter, int]:
        """The meters that counted anything, in the order of `Meter`."""
        counted = {
            Meter.INPUT: self.input,
            Meter.CACHE_READ: self.cache_read,
            Meter.CACHE_WRITE: self.cache_write,
            Meter.OUTPUT: self.output,
        }
        return {meter: quantity for meter, quantity in counted.items() if quantity}


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens of each meter, and where that figure is from.

    At most six decimals each, so that one token costs a whole number of picodollars
    and sums kept as integers stay exact.
    """

    per_million: Mapping[Meter, Decimal]
    source: str


@dataclass(frozen=True, slots=True)
class ChargeLine:
    """One meter of one attempt at one job. `usd` is None when the price is unknown, never 0."""

    job: str
    attempt: int
    meter: Meter
    quantity: int
    usd_per_million: Decimal | None
    usd: Decimal | None
    basis: Basis
    outcome: str
    price_source: str | None

    @property
    def id(self) -> str:
        """The same for a repeat of the same line, so that readers can drop repeats."""
        return f"{self.job}:{self.attempt}:{self.meter}"


def charge(price: Price | None, usage: Usage, *, job: str, attempt: int, outcome: str) -> tuple[ChargeLine, ...]:
    """One line for every meter that counted anything.

    A meter that the price does not name is unpriced, except that cached tokens without a
    price of their own cost what input costs.
    """
    lines = []
    for meter, quantity in usage.quantities().items():
        rate = _rate(price, meter)
        lines.append(
            ChargeLine(
                job=job,
                attempt=attempt,
                meter=meter,
                quantity=quantity,
                usd_per_million=rate,
                usd=None if rate is None else rate * quantity / PER_MILLION,
                basis=usage.basis,
                outcome=outcome,
                price_source=None if price is None else price.source,
            )
        )
    return tuple(lines)


def cost(price: Price | None, usage: Usage) -> Decimal | None:
    """What the lines of `charge` come to; None when the price of any of them is unknown."""
    amount = Decimal(0)
    for meter, quantity in usage.quantities().items():
        rate = _rate(price, meter)
        if rate is None:
            return None
        amount += rate * quantity
    return amount / PER_MILLION


def total(lines: tuple[ChargeLine, ...]) -> Decimal | None:
    """The sum of the lines; None when any of them is unpriced."""
    amount = Decimal(0)
    for line in lines:
        if line.usd is None:
            return None
        amount += line.usd
    return amount


def picodollars(usd: Decimal) -> int:
    """Exact for every line: prices have at most six decimals per million tokens."""
    return int(usd.scaleb(12).to_integral_exact())


def _rate(price: Price | None, meter: Meter) -> Decimal | None:
    if price is None:
        return None
    rate = price.per_million.get(meter)
    if rate is None and meter in (Meter.CACHE_READ, Meter.CACHE_WRITE):
        rate = price.per_million.get(Meter.INPUT)
    return rate
