"""Own outcomes correct the shipped weights where they are right to, and change nothing where they are not."""

import random

import numpy as np
import pytest

from policies.deployments import Modality, Tier
from policies.tenants import RoutingPolicy, Tenant
from router import fitting
from router.features import BITS, count
from router.fitting import Better, NotBetter, Row, TooFew, fit, rows_of
from router.gain import WeightsError, predict, shipped
from router.lessons import Lesson, Outcome
from router.replay import replay
from tests.unit.router.test_choose import HEAVY, LIGHT
from tests.unit.router.test_training import synthetic


def rows(many: int, seed: int, *, chance: bool = False) -> list[Row]:
    """Light fails on hard words; with `chance` the gains have nothing to do with the prompts."""
    found = [Row(row.counted, row.gain, f"{seed}:{at}") for at, row in enumerate(synthetic(many, seed))]
    if not chance:
        return found
    gains = [row.gain for row in found]
    random.Random(seed).shuffle(gains)
    return [Row(row.counted, gain, row.group) for row, gain in zip(found, gains, strict=True)]


def a_lesson(text: str, tier: Tier = Tier.LIGHT, **outcomes: float) -> Lesson:
    found = {Tier(name): Outcome(quality, "client") for name, quality in outcomes.items()}
    return Lesson(
        "1", text, Modality.TEXT, tier, "small" if tier is Tier.LIGHT else "big", 0.5, 0.6, count(text), 1000, 1000,
        None, outcomes=found,
    )  # fmt: skip


def test_what_outcomes_show_is_learned_and_scores_rows_that_were_not_seen() -> None:
    verdict = fit(rows(300, 1), shipped())

    assert isinstance(verdict, Better)
    assert verdict.more > verdict.least > 0
    unseen = rows(300, 2)
    gains = np.array([row.gain for row in unseen])
    before = [predict(row.counted, shipped()).gain for row in unseen]
    after = [predict(row.counted, shipped(), verdict.correction).gain for row in unseen]
    assert np.corrcoef(after, gains)[0, 1] > np.corrcoef(before, gains)[0, 1] + 0.2


@pytest.mark.parametrize("seed", range(3))
def test_chance_is_not_taken_for_knowledge(seed: int) -> None:
    assert isinstance(fit(rows(200, seed, chance=True), shipped()), NotBetter)


def test_a_few_rows_are_too_few() -> None:
    assert fit(rows(49, 1), shipped()) == TooFew(49)


def test_a_correction_survives_a_round_trip_and_others_are_refused() -> None:
    verdict = fit(rows(300, 1), shipped())
    assert isinstance(verdict, Better)
    raw = fitting.dump(verdict.correction)

    read = fitting.load(raw)

    assert read.base == verdict.correction.base and (read.words == verdict.correction.words).all()
    assert len(read.words) == 1 << BITS and len(raw) < 300_000
    for damaged in (b"", raw[:1000], b"PK\x03\x04nonsense"):
        with pytest.raises(WeightsError):
            fitting.load(damaged)


def test_one_known_tier_counts_half_and_none_not_at_all() -> None:
    both = rows_of([a_lesson("a", light=0.2, heavy=0.9), a_lesson("b", light=0.0)])

    assert [row.weight for row in both] == [1.0, 0.5]
    assert both[0].gain == pytest.approx(0.7)
    assert both[1].gain > 0.5
    assert rows_of([a_lesson("c")]) == []


def test_a_replay_says_what_would_have_gone_where_at_what_price() -> None:
    lessons = [a_lesson(f"prompt {at}", Tier.HEAVY if at % 2 else Tier.LIGHT, light=0.5) for at in range(100)]
    there = {"small": LIGHT, "big": HEAVY}

    found = replay(
        lessons, Tenant("t", routing=RoutingPolicy(heavy_share=0.0)), before=there, after=there, weights=shipped()
    )

    assert (found.was.heavy, found.would_be.heavy, found.moved) == (50, 0, 50)
    assert float(found.was.usd) == pytest.approx(50 * 0.002 + 50 * 0.02)
    assert float(found.would_be.usd) == pytest.approx(100 * 0.002)
    assert (found.would_be.known, found.would_be.quality / found.would_be.known) == (100, 0.5)
