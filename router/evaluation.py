"""What a two-model router is worth on labelled prompts, beside random routing and an oracle."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

GRID = np.linspace(0, 1, 2001)


@dataclass(frozen=True, slots=True)
class Answers:
    """How well both models answered the prompts of one source (0..1)."""

    light: Doubles
    heavy: Doubles


@dataclass(frozen=True, slots=True)
class Worth:
    """`lift`: of what an oracle gains over random at the budget, the part gained (random 0). `pgr`: of the gap
    between the models, the part closed at the budget (random: the budget), and `apgr` over all budgets (random 0.5).
    `cpt50`, `cpt80`: the least heavy share that closes half, and 80 %, of the gap."""

    lift: float
    pgr: float
    apgr: float
    cpt50: float
    cpt80: float


def worth(scores: Sequence[Doubles], answers: Sequence[Answers], budget: float = 0.2) -> Worth:
    """Of the mean over sources, each with its own threshold. The highest scores go to heavy."""
    curves = [_curve(score, each.heavy - each.light) for score, each in zip(scores, answers, strict=True)]
    gains = np.mean([np.interp(GRID, *curve) for curve in curves], axis=0)
    best = [np.maximum(each.heavy - each.light, 0) for each in answers]
    oracle = float(np.mean([np.interp(budget, *_curve(each, each)) for each in best]))
    area = float(np.mean([((x[1:] - x[:-1]) * (y[1:] + y[:-1])).sum() / 2 for x, y in curves]))
    gap = float(gains[-1])
    at = float(np.interp(budget, GRID, gains))
    closed = gains / gap
    return Worth(
        lift=(at - budget * gap) / (oracle - budget * gap),
        pgr=at / gap,
        apgr=area / gap,
        cpt50=_crossing(closed, 0.5),
        cpt80=_crossing(closed, 0.8),
    )


def _curve(score: Doubles, gain: Doubles) -> tuple[Doubles, Doubles]:
    """Heavy share and mean gain; equal scores are split in expectation."""
    order = np.argsort(-score, kind="stable")
    ranked = score[order]
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    gained = np.cumsum(gain[order])[ends] / len(score)
    return np.append(0.0, (ends + 1) / len(score)), np.append(0.0, gained)


def _crossing(closed: Doubles, part: float) -> float:
    at = int(np.argmax(closed >= part - 1e-12))
    if at == 0:
        return float(GRID[0] if closed[0] >= part else GRID[-1])
    below, above = closed[at - 1], closed[at]
    return float(GRID[at - 1] + (part - below) / (above - below) * (GRID[at] - GRID[at - 1]))


def lift_difference(
    ours: Sequence[Doubles],
    theirs: Sequence[Doubles],
    answers: Sequence[Answers],
    groups: Sequence[NDArray[np.int64]],
    *,
    budget: float = 0.2,
    draws: int = 300,
    seed: int = 0,
) -> tuple[float, float]:
    """The 95 % interval of our lift less theirs: a paired bootstrap over groups of prompts that belong together."""
    dice = np.random.default_rng(seed)
    differences = []
    for _ in range(draws):
        picked = [_resampled(each, dice) for each in groups]
        drawn = [Answers(each.light[at], each.heavy[at]) for each, at in zip(answers, picked, strict=True)]
        values = [
            worth([score[at] for score, at in zip(scores, picked, strict=True)], drawn, budget).lift
            for scores in (ours, theirs)
        ]
        differences.append(values[0] - values[1])
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    return float(low), float(high)


def _resampled(group: NDArray[np.int64], dice: np.random.Generator) -> NDArray[np.int64]:
    size = int(group.max()) + 1
    times = np.bincount(dice.integers(0, size, size), minlength=size)[group]
    return np.repeat(np.arange(len(group)), times)
