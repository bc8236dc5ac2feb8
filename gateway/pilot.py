"""A sample of a batch, and what it says of the whole. Pure."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

# Student's t for 95 % on both sides, by degrees of freedom from 1 on; beyond them it is near the normal's.
T_95: tuple[float, ...] = (
    *(12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13),
    *(2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05),
)
T_FAR = 2.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and between what bounds it lies with 95 %."""

    mean: float
    least: float
    most: float

    def times(self, factor: float) -> "Estimate":
        """The same of so many."""
        return Estimate(self.mean * factor, self.least * factor, self.most * factor)


def sample(lines: Iterable[bytes], size: int, *, draw: random.Random) -> tuple[list[bytes], int]:
    """So many lines, any as likely as any other, in their order; and how many there are. Holds only the sample."""
    kept: list[tuple[int, bytes]] = []
    count = 0
    for count, line in enumerate(lines, start=1):
        if count <= size:
            kept.append((count, line))
        elif (place := draw.randrange(count)) < size:
            kept[place] = (count, line)
    return [line for _, line in sorted(kept)], count


def estimate(values: Sequence[float], *, of: int) -> Estimate:
    """The mean over all `of` items, of which these are a sample drawn at random; at least one value, none negative."""
    count, middle = len(values), mean(values)
    if count == of:
        return Estimate(middle, middle, middle)
    if count == 1:
        return Estimate(middle, 0.0, float("inf"))
    t = T_95[count - 2] if count - 2 < len(T_95) else T_FAR
    half = t * stdev(values) / sqrt(count) * sqrt((of - count) / (of - 1))
    return Estimate(middle, max(0.0, middle - half), middle + half)
