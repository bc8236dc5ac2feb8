"""Learns from a tenant's own outcomes: a correction of the shipped weights.

It is taken only if such corrections were better on rows that they had not seen.
"""

import io
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.deployments import Tier
from router.features import BITS, NAMES, Counted
from router.gain import Correction, Weights, WeightsError, predict, standardised
from router.lessons import Lesson
from router.training import Doubles, in_bytes, ridge, step_of, words_of

LEAST = 50  # rows; with fewer nothing is learned
FOLDS = 5
RIDGES = (800.0, 40.0)  # how strongly features, and words, are held to the shipped weights
DRAWS = 1_000
SURE = 0.05  # a correction that is as good or worse in more of the draws is not taken
LARGEST = 2 * 1024 * 1024  # bytes of a correction that is read


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt, the gain of heavy over light that was seen, and how much that counts. A `group` is kept together."""

    counted: Counted
    gain: float
    group: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Better:
    """Taken: over all heavy shares it gains `more` a call than before, at least `least` with 95 % certainty."""

    correction: Correction
    rows: int
    before: float
    more: float
    least: float


@dataclass(frozen=True, slots=True)
class NotBetter:
    """Not taken. `least` is what it gains more a call with 95 % certainty: not above 0."""

    rows: int
    before: float
    more: float
    least: float


@dataclass(frozen=True, slots=True)
class TooFew:
    """There are not enough outcomes to learn from."""

    rows: int


def rows_of(lessons: Sequence[Lesson]) -> list[Row]:
    """A gain for each lesson with an outcome.

    Where one tier's outcome is not known it is taken to be that tier's mean over all lessons, and the row counts half.
    """
    known: dict[Tier, list[float]] = {tier: [] for tier in Tier}
    for lesson in lessons:
        for tier, outcome in lesson.outcomes.items():
            known[tier].append(outcome.quality)
    mean = {Tier.LIGHT: _mean(known[Tier.LIGHT], 0.7), Tier.HEAVY: _mean(known[Tier.HEAVY], 0.9)}
    rows = []
    for lesson in lessons:
        if lesson.outcomes:
            quality = {tier: lesson.outcomes[tier].quality if tier in lesson.outcomes else mean[tier] for tier in Tier}
            weight = 1.0 if len(lesson.outcomes) == len(Tier) else 0.5
            rows.append(Row(lesson.counted, quality[Tier.HEAVY] - quality[Tier.LIGHT], lesson.digest, weight))
    return rows


def _mean(values: Sequence[float], otherwise: float) -> float:
    """Shrunk to what is usual, as a few outcomes say little."""
    return (sum(values) + 10 * otherwise) / (len(values) + 10)


def fit(rows: Sequence[Row], weights: Weights, *, seed: int = 0) -> Better | NotBetter | TooFew:
    """A correction from all rows, judged by corrections that had not seen the rows they are judged on."""
    if len(rows) < LEAST:
        return TooFew(len(rows))
    space = np.array([standardised(row.counted.features, weights) for row in rows], np.float64)
    prior = np.array([predict(row.counted, weights).gain for row in rows])
    gains, counts = np.array([row.gain for row in rows]), np.array([row.weight for row in rows])
    groups = np.unique([row.group for row in rows], return_inverse=True)[1]
    fold = np.random.default_rng(seed).integers(0, FOLDS, int(groups.max()) + 1)[groups]
    corrected = prior.copy()
    for which in range(FOLDS):
        seen, tested = np.flatnonzero(fold != which), np.flatnonzero(fold == which)
        if len(seen) and len(tested):
            found = _corrected(rows, space, gains - prior, counts, seen)
            corrected[tested] += [found.of(space[at], rows[at].counted.places) for at in tested.tolist()]
    before, after = _worth(prior, gains, counts), _worth(corrected, gains, counts)
    least = _surely(prior, corrected, gains, counts, groups, seed)
    if least <= 0:
        return NotBetter(len(rows), before, after - before, least)
    return Better(learned(rows, weights), len(rows), before, after - before, least)


def learned(rows: Sequence[Row], weights: Weights) -> Correction:
    """What all rows teach, whether it is better or not."""
    space = np.array([standardised(row.counted.features, weights) for row in rows], np.float64)
    missed = np.array([row.gain - predict(row.counted, weights).gain for row in rows])
    return _corrected(rows, space, missed, np.array([row.weight for row in rows]), np.arange(len(rows)))


def _corrected(
    rows: Sequence[Row], space: Doubles, wanted: Doubles, counts: Doubles, at: NDArray[np.int64]
) -> Correction:
    words = words_of([rows[each].counted for each in at.tolist()])
    features, of_words, base = ridge(space[at], words, wanted[at], RIDGES, counts[at])
    return Correction(np.asarray(features, np.float32), base, in_bytes(of_words), step_of(of_words))


def _worth(score: Doubles, gains: Doubles, counts: Doubles) -> float:
    """The gain a call, over all heavy shares, when the highest scores go to heavy, less that of a random order."""
    order = np.argsort(-score, kind="stable")
    gained = np.cumsum(gains[order] * counts[order]) / counts.sum()
    share = np.cumsum(counts[order]) / counts.sum()
    return float(np.trapezoid(np.append(0, gained), np.append(0, share)) - gained[-1] / 2)


def _surely(
    prior: Doubles, corrected: Doubles, gains: Doubles, counts: Doubles, groups: NDArray[np.int64], seed: int
) -> float:
    """A paired bootstrap over groups: what is gained more in all but `SURE` of the draws."""
    dice, size = np.random.default_rng(seed), int(groups.max()) + 1
    more = []
    for _ in range(DRAWS):
        drawn = counts * np.bincount(dice.integers(0, size, size), minlength=size)[groups]
        if drawn.sum():
            more.append(_worth(corrected, gains, drawn) - _worth(prior, gains, drawn))
    return float(np.quantile(more, SURE))


def dump(correction: Correction) -> bytes:
    """As it is kept."""
    file = io.BytesIO()
    np.savez_compressed(
        file,
        names=np.array(NAMES),
        features=correction.features,
        base=np.array(correction.base),
        words=correction.words,
        word_scale=np.array(correction.word_scale),
    )
    return file.getvalue()


def load(raw: bytes) -> Correction:
    """What `dump` made. Raises `WeightsError`."""
    if len(raw) > LARGEST:
        raise WeightsError("the correction is too large")
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as found:
            if found["names"].tolist() != [*NAMES]:
                raise WeightsError("the correction is of another version: fit again")
            made = Correction(
                found["features"].astype(np.float32),
                float(found["base"]),
                found["words"].astype(np.int8),
                float(found["word_scale"]),
            )
    except (ValueError, OSError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise WeightsError("this is not a correction") from error
    is_sound = np.isfinite(made.features).all() and math.isfinite(made.base) and math.isfinite(made.word_scale)
    if made.features.shape != (len(NAMES),) or made.words.shape != (1 << BITS,) or not is_sound:
        raise WeightsError("the correction is not what it should be: fit again")
    return made
