"""Holds the heavy share while traffic drifts: a threshold that follows the scores, under a hard cap.

One level for a tenant and a modality: a shared one would let one tenant's hard prompts spend another's heavy
calls. Replicas decide on a level of their own and add up, now and then, what each has learned since.
"""

import math
from dataclasses import astuple, replace
from statistics import NormalDist

from policies.values import dataclass

LEAST_DEVIATION = 0.01  # of the scores; so that the threshold also moves where all are alike
MOST_REPLICAS = 8  # that make a replica move faster: by more it would waver


@dataclass(frozen=True, slots=True)
class Target:
    """The part of all calls that may go to heavy, 0 to 1, and how it is held.

    Of any n calls at most `burst + (1 + slack) * share * n` are scored heavy: with a share of 0.2, at most 125 of 500.
    """

    share: float = 0.2
    step: float = 0.05  # of the scores' standard deviation, at each decision; more follows faster and wavers more
    slack: float = 0.05
    burst: float = 20.0
    memory: float = 500.0  # calls over which the share of forced ones and the spread of the scores are remembered

    def __post_init__(self) -> None:
        if not (
            0 <= self.share <= 1 and 0 < self.step <= 1 and self.slack >= 0 and self.burst >= 1 and self.memory >= 1
        ):
            raise ValueError("a share is 0 to 1, a step above 0, a burst and a memory at least 1 call")

    def of_one(self, replicas: int) -> "Target":
        """For one of so many replicas: it sees a part of the calls and moves so many times as far at each.

        All together then follow drift as one process would, however seldom they tell each other what they learned.
        """
        times = min(replicas, MOST_REPLICAS)
        return replace(self, step=min(1.0, self.step * times), memory=max(1.0, self.memory / times))


@dataclass(frozen=True, slots=True)
class Level:
    """What is remembered. The counts are of all time, for metrics; the rest is of late."""

    threshold: float
    mean: float
    variance: float
    tokens: float  # heavy calls that the cap still allows; below 0 after forced ones
    forced_heavy_rate: float = 0.0  # of all calls
    scored_rate: float = 1.0
    scored: int = 0
    scored_heavy: int = 0
    forced: int = 0
    forced_heavy: int = 0
    capped: int = 0

    @property
    def heavy_share(self) -> float:
        """Of all calls so far, forced ones included."""
        return (self.scored_heavy + self.forced_heavy) / max(1, self.scored + self.forced)


@dataclass(frozen=True, slots=True)
class Decided:
    """Whether a scored call goes to heavy, and the level after it."""

    is_heavy: bool
    is_capped: bool  # its score was above the threshold, and the cap kept it light
    level: Level


def start(target: Target, *, fifth: float, deviation: float) -> Level:
    """Where a tenant begins: from the score that a fifth exceeded in training, and their standard deviation there."""
    off = 0.0
    if 0 < target.share < 1:
        off = (NormalDist().inv_cdf(1 - target.share) - NormalDist().inv_cdf(0.8)) * deviation
    threshold = min(1.0, max(0.0, fifth + off))
    return Level(threshold, threshold, max(LEAST_DEVIATION, deviation) ** 2, target.burst)


def share_for(usd: float, *, light_usd: float, heavy_usd: float) -> float:
    """The heavy share that keeps the mean price of a call at `usd`, as far as any can."""
    if heavy_usd <= light_usd:
        return 1.0
    return min(1.0, max(0.0, (usd - light_usd) / (heavy_usd - light_usd)))


def scored(target: Target, level: Level, score: float) -> Decided:
    """Decide by the score, and let the threshold follow it."""
    aim = _aim(target, level)
    is_above = score > level.threshold
    if aim <= 0 or aim >= 1:
        is_above = aim >= 1
    tokens = min(target.burst, level.tokens + (1 + target.slack) * target.share)
    is_heavy = is_above and (tokens >= 1 or target.share >= 1)
    is_capped = is_above and not is_heavy
    deviation = max(LEAST_DEVIATION, math.sqrt(level.variance))
    off = score - level.mean
    after = Level(  # written out: `replace` takes longer than all the rest
        min(1.0, max(0.0, level.threshold + target.step * deviation * (is_above - aim))),
        level.mean + off / target.memory,
        level.variance + (off * off - level.variance) / target.memory,
        tokens - is_heavy,
        level.forced_heavy_rate - level.forced_heavy_rate / target.memory,
        level.scored_rate + (1 - level.scored_rate) / target.memory,
        level.scored + 1,
        level.scored_heavy + is_heavy,
        level.forced,
        level.forced_heavy,
        level.capped + is_capped,
    )
    return Decided(is_heavy, is_capped, after)


def forced(target: Target, level: Level, *, is_heavy: bool) -> Level:
    """Count a call that a rule decided. It uses up the budget, and tells nothing of the scores."""
    tokens = min(target.burst, level.tokens + (1 + target.slack) * target.share)
    return Level(
        level.threshold,
        level.mean,
        level.variance,
        max(-target.burst, tokens - is_heavy),
        level.forced_heavy_rate + (is_heavy - level.forced_heavy_rate) / target.memory,
        level.scored_rate - level.scored_rate / target.memory,
        level.scored,
        level.scored_heavy,
        level.forced + 1,
        level.forced_heavy + is_heavy,
        level.capped,
    )


def moved(base: Level, level: Level) -> Level:
    """What was learned since `base`, as differences."""
    return Level(*(after - before for before, after in zip(astuple(base), astuple(level), strict=True)))


def absorbed(target: Target, level: Level, by: Level, *, replicas: int) -> Level:
    """A level after one of so many replicas has told what it learned since it last took the common level over.

    Each has learned with `of_one`, and their mean counts; what was counted and spent counts in full.
    `shares_merge.lua` does the same.
    """
    pace = 1 / replicas
    return Level(
        threshold=min(1.0, max(0.0, level.threshold + pace * by.threshold)),
        mean=level.mean + pace * by.mean,
        variance=max(0.0, level.variance + pace * by.variance),
        tokens=min(target.burst, max(-target.burst, level.tokens + by.tokens)),
        forced_heavy_rate=min(1.0, max(0.0, level.forced_heavy_rate + pace * by.forced_heavy_rate)),
        scored_rate=min(1.0, max(0.0, level.scored_rate + pace * by.scored_rate)),
        scored=level.scored + by.scored,
        scored_heavy=level.scored_heavy + by.scored_heavy,
        forced=level.forced + by.forced,
        forced_heavy=level.forced_heavy + by.forced_heavy,
        capped=level.capped + by.capped,
    )


def _aim(target: Target, level: Level) -> float:
    """The share of scored calls that leaves room for the forced ones."""
    return min(1.0, max(0.0, (target.share - level.forced_heavy_rate) / max(level.scored_rate, 1e-6)))
