"""Token buckets in plain arithmetic: what `quota_functions.lua` does, and the model it is tested against."""

from dataclasses import dataclass
from math import ceil, floor, isfinite

SLACK = 1e-6  # tokens; so that rounding never turns "wait 100 ms" into "100 ms, and then 1 more"
TOO_FAR_AHEAD = 60_000_000  # microseconds; a stamp from so far in the future was made by a clock that was wrong


@dataclass(frozen=True, slots=True)
class Limit:
    """A bucket holds at most `burst` tokens and gains `rate` of them a second.

    Raises ValueError unless both are more than 0.
    """

    rate: float
    burst: float

    def __post_init__(self) -> None:
        if not (isfinite(self.rate) and isfinite(self.burst) and self.rate > 0 and self.burst > 0):
            raise ValueError("a limit and its burst must be more than 0; leave a limit out to have none")


@dataclass(frozen=True, slots=True)
class Level:
    """How many tokens a bucket held, and when that was true. Below 0 it is in debt.

    Moments here are Redis' whole microseconds, so that this model and the script agree to the last bit.
    """

    tokens: float
    at: int


@dataclass(frozen=True, slots=True)
class Taken:
    """`amount` was taken, which left `level`."""

    level: Level
    amount: float


@dataclass(frozen=True, slots=True)
class Short:
    """Too little is there; the same call succeeds in `ms` milliseconds if nobody else takes any."""

    ms: int


def take(limit: Limit, level: Level | None, cost: float, now: int) -> Taken | Short:
    """Take `cost` tokens if they are there; otherwise say how long until they are. No `level` is a full bucket.

    More than a full bucket waits for a full one and leaves it in debt, by one full bucket at most.
    """
    current = refilled(limit, level, now)
    need = min(limit.burst, cost)
    if current.tokens + SLACK < need:
        return Short(ceil((need - current.tokens) / limit.rate * 1000 + (current.at - now) / 1000))
    left = max(-limit.burst, current.tokens - cost)
    return Taken(Level(left, current.at), current.tokens - left)


def settle(limit: Limit, level: Level | None, taken: float, used: float, now: int) -> Level:
    """Give back what was `taken` and not `used`, or take the rest: into debt, by one full bucket at most."""
    current = refilled(limit, level, now)
    return Level(max(-limit.burst, min(limit.burst, current.tokens + taken - used)), current.at)


def refilled(limit: Limit, level: Level | None, now: int) -> Level:
    """What is there now. A clock that stepped back refills nothing twice."""
    if level is None or level.at - now > TOO_FAR_AHEAD:
        return Level(limit.burst, now)
    if now <= level.at:
        return Level(min(limit.burst, level.tokens), level.at)
    return Level(min(limit.burst, level.tokens + (now - level.at) * limit.rate / 1_000_000), now)


def remaining(level: Level) -> int:
    """The largest whole amount that `take` would grant at once, but for what is more than a bucket."""
    return max(0, floor(level.tokens + SLACK))


def full_in_ms(limit: Limit, level: Level, now: int) -> int:
    """How long until the bucket is full, if nobody takes any."""
    return ceil((limit.burst - level.tokens) / limit.rate * 1000 + (level.at - now) / 1000)
