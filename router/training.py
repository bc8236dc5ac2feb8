"""Learns the weights of the score from labelled prompts: the same rows in the same order give the same bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from router.features import BITS, IS_CHOICE, LENGTH, NAMES, Counted, Floats
from router.gain import CLIP, Weights, predict, squeezed

ENOUGH = 300  # rows make a kind of their own
# How strongly a kind's weights of features, and of words, are shrunk. With many rows the words say more.
MANY = 1_000  # rows
RIDGE, MANY_RIDGE = (500.0, 20.0), (3_000.0, 8.0)
SEEN_TWICE = 2  # a word in fewer prompts of its kind has no weight
SOFT = 0.2  # part of a label that other models' answers to the same prompt explain,
TASK = 0.3  # and that other prompts of the same task do
OTHERS_RIDGE, TASK_ROWS = 30.0, 10.0
COMMON = 0.03  # points of gain for a standard deviation of what all kinds have in common
LENGTH_EXTRA = 0.5  # of it again for length alone
OWN_SHAPE, SHARED_SHAPE, ROUND_SHAPE = 0.5, 0.1, 0.1  # what a kind's covariance is made of
REACH = 0.98  # part of a kind's prompts that lie within its radius
# Points of gain for each unit of the logarithm of a count, above the logarithm of so many words: for what public
# exam-type prompts lack. They cost a little there, and a kind that has them corrects them.
BY_HAND = {"words of proof": (0.40, 0), "words of design": (0.30, 1)}
OWN_CLIP = 3.0  # standard deviations within a kind
STEPS, PRECISION = 40, 1e-4
UPPER, DRAWN = 0.2, 4000  # the share above `fifth`, and the rows that it is found from
SLOPE_CLIP = 4.0

Doubles = NDArray[np.float64]


class TooFewError(ValueError):
    """There is too little to learn from: no source has enough rows, or all rows have the same gain."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A prompt, and how well both answered it (0..1). `others` are further models' scores, for training only."""

    counted: Counted
    source: str
    light: float
    heavy: float
    task: str = ""
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """Of heavy over light."""
        return self.heavy - self.light


def train(rows: Sequence[Labelled], *, enough: int = ENOUGH) -> Weights:
    """Fit every kind (a source with enough rows) on its own, shrunk towards what they have in common."""
    sources = np.array([row.source for row in rows])
    names, sizes = np.unique(sources, return_counts=True)
    kinds = [str(name) for name, size in zip(names, sizes, strict=True) if size >= enough]
    if not kinds:
        raise TooFewError(f"no source has {enough} rows")
    raw = np.array([row.counted.features for row in rows])
    gains = np.array([row.gain for row in rows])
    if not gains.std():
        raise TooFewError("heavy is equally better on every row")
    members = [np.flatnonzero(sources == kind) for kind in kinds]
    mean, scale = raw.mean(axis=0, dtype=np.float64), raw.std(axis=0, dtype=np.float64) + 1e-6
    space = np.clip((raw - mean) / scale, -CLIP, CLIP)

    common = _common(raw, scale, gains, members)
    ruled = _by_hand()
    shared = space @ common + _ruled(raw, ruled)
    common_base = float(np.mean([(gains[at] - shared[at]).mean() for at in members]))
    likeness, likeness_base, middle, whitening = _shapes(space, members)
    fitted = [_fit_kind([rows[at] for at in those.tolist()], space[those], shared[those]) for those in members]
    weights = Weights(
        kinds=np.array(kinds),
        mean=_single(mean),
        scale=_single(scale),
        rows=_single([*likeness, *(common + each.features for each in fitted), common]),
        bases=_single([*likeness_base, *(each.base for each in fitted), common_base]),
        middle=_single(middle),
        whitening=_single(whitening),
        by_hand=ruled,
        word_scale=_single([step_of(each.words) for each in fitted]),
        words=np.column_stack([in_bytes(each.words) for each in fitted]),
        fifth=_single([1.0]),
        spread=_single([1.0]),
    )
    return _with_fifth(weights, rows)


def _single(values: object) -> Floats:
    return np.asarray(values, np.float32)


def step_of(words: Doubles) -> float:
    """What one of 127 steps of the largest weight is worth."""
    return max(1e-9, float(np.abs(words).max())) / 127


def in_bytes(words: Doubles) -> NDArray[np.int8]:
    """Weights in 127 steps to either side."""
    return np.rint(words / step_of(words)).astype(np.int8)


def _with_fifth(weights: Weights, rows: Sequence[Labelled]) -> Weights:
    """Note the score that a fifth of the rows exceed, and how far the scores spread."""
    drawn = np.linspace(0, len(rows) - 1, min(len(rows), DRAWN)).astype(np.int64).tolist()
    scores = [squeezed(predict(rows[at].counted, weights).gain) for at in drawn]
    return replace(weights, fifth=_single([np.quantile(scores, 1 - UPPER)]), spread=_single([np.std(scores)]))


def _ruled(features: Floats, rule: Floats) -> Doubles:
    """`gain.by_hand` of many rows."""
    points, floor = rule
    return np.asarray(np.maximum(features - floor, 0) @ points * (1 - features[:, IS_CHOICE]), np.float64)


def _by_hand() -> Floats:
    rule = np.zeros((2, len(NAMES)), np.float32)
    for name, (points, words) in BY_HAND.items():
        rule[:, NAMES.index(name)] = points, np.log1p(words)
    return rule


def _common(raw: Floats, scale: Doubles, gains: Doubles, members: Sequence[NDArray[np.int64]]) -> Doubles:
    """Every feature votes with its mean slope within the kinds, and length once more.

    No joint fit: on kinds that were left out of the training, every joint fit was worse than this.
    """
    within = np.sqrt(np.mean([raw[at].var(axis=0, dtype=np.float64) for at in members], axis=0)) + 1e-2
    slopes, spread = [], []
    for at in members:
        space = np.clip((raw[at] - raw[at].mean(axis=0, dtype=np.float64)) / within, -SLOPE_CLIP, SLOPE_CLIP)
        slopes.append(space.T @ (gains[at] - gains[at].mean()) / len(at))
        spread.append(space)
    votes = np.mean(slopes, axis=0)
    deviation = float(np.sqrt(np.mean([(space @ votes).var() for space in spread]))) or 1.0
    common = COMMON * votes / deviation * scale / within
    common[LENGTH] += COMMON * LENGTH_EXTRA
    return np.asarray(common)


def _shapes(space: Doubles, members: Sequence[NDArray[np.int64]]) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """What tells the kinds apart (a linear discriminant), and how far each spreads in which direction."""
    covariances = [np.cov(space[at], rowvar=False) for at in members]
    round_ = ROUND_SHAPE * np.eye(len(NAMES))
    pooled = np.mean(covariances, axis=0)
    means = np.array([space[at].mean(axis=0) for at in members])
    likeness = np.linalg.solve(pooled + round_, means.T).T
    whitening = []
    for at, mean, covariance in zip(members, means, covariances, strict=True):
        values, vectors = np.linalg.eigh(OWN_SHAPE * covariance + SHARED_SHAPE * pooled + round_)
        own = vectors / np.sqrt(values)
        distances = (((space[at] - mean) @ own) ** 2).sum(axis=1)
        whitening.append(own / np.sqrt(np.quantile(distances, REACH)))
    return likeness, -(likeness * means).sum(axis=1) / 2, means, np.array(whitening)


@dataclass(frozen=True, slots=True)
class _Kind:
    features: Doubles
    base: float
    words: Doubles


def _fit_kind(rows: Sequence[Labelled], space: Doubles, shared: Doubles) -> _Kind:
    """In units of the kind's own spread: what hardly differs within it gets little weight."""
    mean, scale = space.mean(axis=0), space.std(axis=0) + 0.1
    own = np.clip((space - mean) / scale, -OWN_CLIP, OWN_CLIP)
    ridges = RIDGE if len(rows) < MANY else MANY_RIDGE
    found, words, base = ridge(own, words_of([row.counted for row in rows]), _softened(rows) - shared, ridges)
    features = found / scale
    return _Kind(features, base - float(features @ mean), words)


@dataclass(frozen=True, slots=True)
class Sparse:
    """Which words are in which prompt; each counts once, and all of a prompt count as much as those of another."""

    at: NDArray[np.int64]
    row: NDArray[np.int64]
    value: Doubles
    rows: int

    def times(self, weights: Doubles) -> Doubles:
        return np.asarray(np.bincount(self.row, weights[self.at] * self.value, minlength=self.rows), np.float64)

    def transposed(self, values: Doubles, size: int) -> Doubles:
        return np.asarray(np.bincount(self.at, values[self.row] * self.value, minlength=size), np.float64)


def words_of(prompts: Sequence[Counted]) -> Sparse:
    sizes = np.array([len(each.places) for each in prompts])
    at, row = np.concatenate([each.places for each in prompts]), np.repeat(np.arange(len(prompts)), sizes)
    value = np.repeat(1 / np.sqrt(sizes + 1.0), sizes)
    often = np.bincount(at, minlength=1 << BITS)[at] >= SEEN_TWICE
    return Sparse(at[often], row[often], value[often], len(prompts))


def _softened(rows: Sequence[Labelled]) -> Doubles:
    """Labels with less chance in them: one answer of each model says little about its next one."""
    gains = np.array([row.gain for row in rows])
    tasks = np.unique([row.task for row in rows], return_inverse=True)[1]
    often = np.bincount(tasks)
    by_task = (np.bincount(tasks, gains) + TASK_ROWS * gains.mean()) / (often + TASK_ROWS)
    explained = _explained(rows, gains)
    return np.asarray((1 - SOFT - TASK) * gains + SOFT * explained + TASK * by_task[tasks])


def _explained(rows: Sequence[Labelled], gains: Doubles) -> Doubles:
    """What the other models' scores tell of the gain; the gain itself where there are none."""
    models = sorted({name for row in rows for name in row.others})
    if not models:
        return gains
    table = np.array([[row.others.get(name, np.nan) for name in models] for row in rows])
    table = np.where(np.isnan(table), np.nanmean(table, axis=0), table)
    ease = table.mean(axis=1)
    ease = (ease - ease.mean()) / (ease.std() + 1e-9)
    shape = 3 * np.column_stack((ease, ease**2, ease**3, np.exp(-(ease**2))))
    space = np.column_stack((shape, (table - table.mean(axis=0)) / (table.std(axis=0) + 1e-9)))
    space -= space.mean(axis=0)
    square = space.T @ space + OTHERS_RIDGE * np.eye(space.shape[1])
    slopes = np.linalg.solve(square, space.T @ (gains - gains.mean()))
    return np.asarray(gains.mean() + space @ slopes)


def ridge(
    features: Doubles,
    words: Sparse,
    wanted: Doubles,
    ridges: tuple[float, float],
    counts: Doubles | None = None,
) -> tuple[Doubles, Doubles, float]:
    """Least squares, shrunk, by conjugate gradients. The base is not shrunk. `counts`: how much each row counts."""
    counts = np.ones(len(wanted)) if counts is None else counts
    split, size = features.shape[1], 1 << BITS
    feature_ridge, word_ridge = ridges
    ease = np.concatenate((np.full(split, feature_ridge**-0.5), np.full(size, word_ridge**-0.5)))

    def forwards(solution: Doubles) -> Doubles:
        scaled = solution * ease
        made = features @ scaled[:split] + words.times(scaled[split:])
        return np.asarray(made - np.average(made, weights=counts))

    def backwards(values: Doubles) -> Doubles:
        values = values * counts
        values = values - counts * (values.sum() / counts.sum())
        return np.asarray(np.concatenate((features.T @ values, words.transposed(values, size))) * ease)

    solution = np.zeros(split + size)
    residual = backwards(wanted)
    direction, square = residual.copy(), float(residual @ residual)
    goal = square * PRECISION**2
    for _ in range(STEPS):
        if square <= goal:
            break
        image = backwards(forwards(direction)) + direction
        step = square / float(direction @ image)
        solution += step * direction
        residual -= step * image
        before, square = square, float(residual @ residual)
        direction = residual + (square / before) * direction
    scaled = solution * ease
    made = features @ scaled[:split] + words.times(scaled[split:])
    return scaled[:split], scaled[split:], float(np.average(wanted - made, weights=counts))
