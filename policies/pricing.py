"""What a call costs: usage times price book, in exact decimals."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType

from policies.values import dataclass

PER_MILLION = Decimal(1_000_000)
IMAGE_TOKENS = 1_600  # of one that is made
SECOND_TOKENS = 25
VIDEO_SECOND_TOKENS = 1_600  # of one that is made
TOKENS_PER_100_CHARACTERS = 30


class Meter(StrEnum):
    """What is counted, and therefore priced. Reasoning tokens are part of OUTPUT.

    The last four are other ways to count a call that makes images or videos, hears or speaks.
    """

    INPUT = "input"
    CACHE_READ = "cache_read"
    CACHE_WRITE = "cache_write"
    CACHE_WRITE_1H = "cache_write_1h"  # kept for an hour, which some providers charge more for
    OUTPUT = "output"
    IMAGES = "images"
    AUDIO_SECONDS = "audio_seconds"
    CHARACTERS = "characters"
    VIDEO_SECONDS = "video_seconds"


UNITS: Mapping[Meter, str] = MappingProxyType(
    {meter: "tokens" for meter in Meter}
    | {Meter.IMAGES: "images", Meter.CHARACTERS: "characters"}
    | {Meter.AUDIO_SECONDS: "seconds", Meter.VIDEO_SECONDS: "seconds"}
)
UNNAMED_TIERS = frozenset({"", "default", "standard"})
BY_UNIT = frozenset({Meter.IMAGES, Meter.AUDIO_SECONDS, Meter.CHARACTERS, Meter.VIDEO_SECONDS})


class Basis(StrEnum):
    """Where a quantity comes from: the provider's usage, a job's share of it where one call did several, our count."""

    METERED = "metered"
    ALLOCATED = "allocated"
    ESTIMATED = "estimated"


_CACHED = (Meter.CACHE_READ, Meter.CACHE_WRITE, Meter.CACHE_WRITE_1H)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one call used, normalised: `input` excludes cached tokens, `output` includes reasoning.

    A started second of audio counts whole. Where there are tokens and units, they are two counts of the same work.
    `tier` is the provider's service tier that served it; empty where it names none.
    """

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    basis: Basis = Basis.METERED
    images: int = 0
    audio_seconds: int = 0
    characters: int = 0
    cache_write_1h: int = 0
    tier: str = ""
    video_seconds: int = 0

    @property
    def total(self) -> int:
        """All tokens, cached ones included."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h + self.output

    def quantities(self) -> Mapping[Meter, int]:
        """The meters that counted anything, in the order of `Meter`."""
        counted: dict[Meter, int] = {}
        if self.input:
            counted[Meter.INPUT] = self.input
        if self.cache_read:
            counted[Meter.CACHE_READ] = self.cache_read
        if self.cache_write:
            counted[Meter.CACHE_WRITE] = self.cache_write
        if self.cache_write_1h:
            counted[Meter.CACHE_WRITE_1H] = self.cache_write_1h
        if self.output:
            counted[Meter.OUTPUT] = self.output
        if self.images:
            counted[Meter.IMAGES] = self.images
        if self.audio_seconds:
            counted[Meter.AUDIO_SECONDS] = self.audio_seconds
        if self.characters:
            counted[Meter.CHARACTERS] = self.characters
        if self.video_seconds:
            counted[Meter.VIDEO_SECONDS] = self.video_seconds
        return counted


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million of each meter, and where that figure is from.

    At most six decimals each, so that one token costs a whole number of picodollars
    and sums kept as integers stay exact. `tiers` are the prices of a provider's other service tiers, each whole.
    `bands` are whole prices as well, for a call whose prompt has more than so many tokens: for all of it.
    """

    per_million: Mapping[Meter, Decimal]
    source: str
    tiers: Mapping[str, Mapping[Meter, Decimal]] = field(default_factory=dict)
    bands: Mapping[int, "Price"] = field(default_factory=dict)

    def of(self, usage: Usage) -> "Price":
        """The price of a call with a prompt of that length, cached tokens included."""
        prompt = usage.total - usage.output
        above = max((most for most in self.bands if prompt > most), default=None)
        return self if above is None else self.bands[above]

    def served(self, tier: str) -> Mapping[Meter, Decimal] | None:
        """What a call costs that was served in that tier; None where the book does not say."""
        found = self.tiers.get(tier)
        return self.per_million if found is None and tier in UNNAMED_TIERS else found

    def asked(self, tier: str) -> "Price | None":
        """The price of calls that ask for that tier, also where none is named; None where the book does not say."""
        rates = self.served(tier)
        if rates is None:
            return None
        bands = {most: band.asked(tier) or Price({}, band.source, band._by_tier) for most, band in self.bands.items()}
        return Price(rates, self.source, self._by_tier, bands)

    @property
    def _by_tier(self) -> Mapping[str, Mapping[Meter, Decimal]]:
        return {"default": self.per_million, **self.tiers}


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
    tier: str = ""

    @property
    def id(self) -> str:
        """The same for a repeat of the same line, so that readers can drop repeats."""
        return f"{self.job}:{self.attempt}:{self.meter}"


def usual_tokens(usage: Usage) -> int:
    """How many tokens what was counted in units comes to, for quotas: no price follows from it."""
    return (
        usage.images * IMAGE_TOKENS
        + usage.audio_seconds * SECOND_TOKENS
        + usage.video_seconds * VIDEO_SECOND_TOKENS
        + (usage.characters * TOKENS_PER_100_CHARACTERS + 99) // 100
    )


def charge(price: Price | None, usage: Usage, *, job: str, attempt: int, outcome: str) -> tuple[ChargeLine, ...]:
    """One line for every meter that counted anything; of two counts of the same work, for the one that is priced.

    A meter that the price does not name is unpriced, except that cached tokens without a
    price of their own cost what input costs.
    """
    price = None if price is None else price.of(usage)
    rates = None if price is None else price.served(usage.tier)
    lines = []
    for meter, quantity in _charged(rates, usage).items():
        rate = _rate(rates, meter)
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
                tier=usage.tier,
            )
        )
    return tuple(lines)


def beyond(usage: Usage, charged: Sequence[ChargeLine]) -> Usage:
    """What of it these lines have not charged: never less than nothing. Charged input stands for cached input too."""
    left = dict.fromkeys(Meter, 0)
    left.update(usage.quantities())
    for line in charged:
        left[line.meter] -= line.quantity
    for meter in _CACHED:
        spare = max(0, -left[Meter.INPUT])
        taken = min(spare, max(0, left[meter]))
        left[meter] -= taken
        left[Meter.INPUT] += taken
    return Usage(**{meter: max(0, quantity) for meter, quantity in left.items()}, basis=usage.basis, tier=usage.tier)


def cost(price: Price | None, usage: Usage) -> Decimal | None:
    """What the lines of `charge` come to; None when the price of any of them is unknown."""
    if price is None:
        return None if usage.total else Decimal(0)
    amount = Decimal(0)
    rates = price.of(usage).served(usage.tier)
    for meter, quantity in _charged(rates, usage).items():
        rate = _rate(rates, meter)
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


def _charged(rates: Mapping[Meter, Decimal] | None, usage: Usage) -> Mapping[Meter, int]:
    """What is charged: units where the price names one of them, or nothing else was counted; else tokens."""
    counted = usage.quantities()
    units = {meter: quantity for meter, quantity in counted.items() if meter in BY_UNIT}
    priced = {meter: quantity for meter, quantity in units.items() if rates is not None and meter in rates}
    return priced or {meter: quantity for meter, quantity in counted.items() if meter not in units} or units


def _rate(rates: Mapping[Meter, Decimal] | None, meter: Meter) -> Decimal | None:
    if rates is None:
        return None
    rate = rates.get(meter)
    if rate is None and meter in (Meter.CACHE_READ, Meter.CACHE_WRITE):
        rate = rates.get(Meter.INPUT)
    return rate
