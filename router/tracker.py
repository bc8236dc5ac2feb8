"""Holds the heavy share while traffic drifts: a threshold that follows the scores, under a hard cap.

One level for a tenant and a modality: a shared one would let one tenant's hard prompts spend another's heavy
calls. Replicas decide on a level of their own and add up, now and then, what each has learned since.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

LEAST_DEVIATION = 0.01  # of the scores; so that the threshold also moves where all are alike
STALE = 40  # decisions that replicas may sum up as if they had been made one after the other


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


def start(target: Target, *, threshold: float, deviation: float) -> Level:
    """Where a tenant begins: the threshold and the standard deviation that the scores had in training."""
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
    deviation = max(LEAST_DEVIATION, level.variance**0.5)
    off = score - level.mean
    after = replace(
        _remembered(target, level, is_forced=False, is_heavy=is_heavy),
        threshold=min(1.0, max(0.0, level.threshold + target.step * deviation * (is_above - aim))),
        mean=level.mean + off / target.memory,
        variance=level.variance + (off * off - level.variance) / target.memory,
        tokens=tokens - is_heavy,
        scored=level.scored + 1,
        scored_heavy=level.scored_heavy + is_heavy,
        capped=level.capped + (is_above and not is_heavy),
    )
    return Decided(is_heavy, is_above and not is_heavy, after)


def forced(target: Target, level: Level, *, is_heavy: bool) -> Level:
    """Count a call that a rule decided. It uses up the budget, and tells nothing of the scores."""
    tokens = min(target.burst, level.tokens + (1 + target.slack) * target.share)
    return replace(
        _remembered(target, level, is_forced=True, is_heavy=is_heavy),
        tokens=max(-target.burst, tokens - is_heavy),
        forced=level.forced + 1,
        forced_heavy=level.forced_heavy + is_heavy,
    )


def merge(target: Target, base: Level, levels: Sequence[Level]) -> Level:
    """What replicas that all began at `base` know together; they go on from it.

    Few decisions are summed up as if made one after the other. Of many, replicas have each found the same
    threshold, and the sum would overshoot it: the more there are, the nearer it comes to the mean.
    """
    made = [level.scored - base.scored for level in levels]
    calls = [each + level.forced - base.forced for each, level in zip(made, levels, strict=True)]
    active = sum(each > 0 for each in made)
    total, all_calls = sum(made), sum(calls)
    if not all_calls:
        return base
    pace = max(1 / max(1, active), min(1.0, STALE / max(1, total)))
    moved = sum(level.threshold - base.threshold for level in levels)

    def mean(of: Sequence[float], weights: Sequence[int], otherwise: float) -> float:
        weight = sum(weights)
        return sum(each * part for each, part in zip(of, weights, strict=True)) / weight if weight else otherwise

    return Level(
        threshold=min(1.0, max(0.0, base.threshold + pace * moved)),
        mean=mean([level.mean for level in levels], made, base.mean),
        variance=mean([level.variance for level in levels], made, base.variance),
        tokens=min(target.burst, max(-target.burst, base.tokens + sum(level.tokens - base.tokens for level in levels))),
        forced_heavy_rate=mean([level.forced_heavy_rate for level in levels], calls, base.forced_heavy_rate),
        scored_rate=mean([level.scored_rate for level in levels], calls, base.scored_rate),
        scored=base.scored + total,
        scored_heavy=base.scored_heavy + sum(level.scored_heavy - base.scored_heavy for level in levels),
        forced=base.forced + all_calls - total,
        forced_heavy=base.forced_heavy + sum(level.forced_heavy - base.forced_heavy for level in levels),
        capped=base.capped + sum(level.capped - base.capped for level in levels),
    )


def _aim(target: Target, level: Level) -> float:
    """The share of scored calls that leaves room for the forced ones."""
    return min(1.0, max(0.0, (target.share - level.forced_heavy_rate) / max(level.scored_rate, 1e-6)))


def _remembered(target: Target, level: Level, *, is_forced: bool, is_heavy: bool) -> Level:
    rate, scored_rate = level.forced_heavy_rate, level.scored_rate
    return replace(
        level,
        forced_heavy_rate=rate + ((is_forced and is_heavy) - rate) / target.memory,
        scored_rate=scored_rate + ((not is_forced) - scored_rate) / target.memory,
    )
