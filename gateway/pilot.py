"""A sample of a batch, and what it says of the whole. Pure."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, variance

# Student's t for 95 % on both sides, by degrees of freedom from 1 on; beyond them it is near the normal's.
T_95: tuple[float, ...] = (
    *(12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13),
    *(2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05),
)
T_FAR = 2.0
LEAST = 2  # of a stratum: one alone says nothing of how far the others are from it


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and between what bounds it lies with 95 %."""

    mean: float
    least: float
    most: float

    def times(self, factor: float) -> "Estimate":
        """The same of so many."""
        return Estimate(self.mean * factor, self.least * factor, self.most * factor)


@dataclass(frozen=True, slots=True)
class Stratum:
    """Items that are alike, such as lines of one deployment: `of` of them, and the values of some drawn at random.

    So many of them are here because a score was above or below a threshold, which moves on until they run: `scored`.
    """

    values: Sequence[float]
    of: int
    scored: int = 0


def sample(
    strata: Mapping[str, Sequence[int]], size: int, *, worth: Mapping[str, float], draw: random.Random
) -> dict[int, str]:
    """Some items of each stratum, any as likely as any other of it, in order: two at least, where it has two.

    Half of them go by how many items a stratum has, half by what all of its items are `worth`: where the dollars are,
    the doubt is. So there may be a few more than `size`, or fewer where a stratum has no more.
    """
    count, total = sum(map(len, strata.values())), sum(worth.values())
    drawn: dict[int, str] = {}
    for name, items in strata.items():
        part = len(items) / count
        wanted = max(LEAST, round(size * (part + (worth[name] / total if total else part)) / 2))
        drawn |= dict.fromkeys(draw.sample(items, min(wanted, len(items))), name)
    return dict(sorted(drawn.items()))


def estimate(strata: Collection[Stratum]) -> Estimate:
    """The mean over all items of all strata; each has at least one value, none negative.

    The bounds are Student's, with Welch's and Satterthwaite's degrees of freedom; that scored items may yet go to
    another stratum is in them as well.
    """
    count = sum(stratum.of for stratum in strata)
    middle = sum(mean(stratum.values) * stratum.of for stratum in strata) / count
    if any(len(stratum.values) == 1 < stratum.of for stratum in strata):
        return Estimate(middle, 0.0, float("inf"))
    drawn = [(_variance(stratum) * (stratum.of / count) ** 2, len(stratum.values) - 1) for stratum in strata]
    whole = sum(each for each, _ in drawn) + _of_division(strata) / count**2
    if not whole:
        return Estimate(middle, middle, middle)
    doubt = sum(each**2 / free for each, free in drawn if each)
    freedom = max(1, int(whole**2 / doubt)) if doubt else len(T_95) + 1
    half = (T_95[freedom - 1] if freedom <= len(T_95) else T_FAR) * sqrt(whole)
    return Estimate(middle, max(0.0, middle - half), middle + half)


def _of_division(strata: Collection[Stratum]) -> float:
    """The variance of the sum over all items that comes from how scored ones are divided: each stratum's number of
    them is taken to vary as that of independent events does, at the cost of the stratum that has the most."""
    scored = [stratum for stratum in strata if stratum.scored]
    if not scored:
        return 0.0
    most = max(scored, key=lambda stratum: stratum.scored)
    usual = mean(most.values)
    return sum(each.scored * (mean(each.values) - usual) ** 2 for each in scored if each is not most)


def _variance(stratum: Stratum) -> float:
    """Of the mean of its values, as one of its items' mean."""
    count = len(stratum.values)
    if count == stratum.of:
        return 0.0
    return variance(stratum.values) / count * (stratum.of - count) / stratum.of
