"""The share is held through drift, by one process and by replicas, and forced calls are paid from it."""

import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.tracker import Level, Target, absorbed, forced, moved, scored, share_for, start

TARGET = Target(0.2)
WINDOW = 500
# Mean and deviation of the scores in four phases of traffic: chat, exam questions, maths and code, a mixture.
PHASES = ((0.45, 0.10), (0.50, 0.12), (0.62, 0.08), (0.52, 0.14))


def drifting(calls: int, seed: int) -> Iterator[float]:
    dice = random.Random(seed)
    for mean, deviation in PHASES:
        for _ in range(calls // len(PHASES)):
            yield min(1.0, max(0.0, dice.gauss(mean, deviation)))


def a_start() -> Level:
    return start(TARGET, fifth=0.534, deviation=0.1)


def shares(decisions: Sequence[bool]) -> list[float]:
    """Of each window."""
    return [sum(decisions[at : at + WINDOW]) / WINDOW for at in range(0, len(decisions) - WINDOW + 1, WINDOW)]


@pytest.mark.parametrize("seed", range(3))
def test_every_window_keeps_near_the_share_while_traffic_drifts(seed: int) -> None:
    level, decisions = a_start(), []
    for score in drifting(24_000, seed):
        decided = scored(TARGET, level, score)
        level = decided.level
        decisions.append(decided.is_heavy)

    assert all(0.15 <= share <= 0.25 for share in shares(decisions))
    assert sum(decisions) / len(decisions) == pytest.approx(0.2, abs=0.01)
    assert level.heavy_share == sum(decisions) / len(decisions)


@pytest.mark.parametrize("every", [5, 30, 400])
@pytest.mark.parametrize("replicas", [4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_replicas_that_tell_each_other_now_and_then_keep_the_share_together(
    seed: int, replicas: int, every: int
) -> None:
    common, decisions = a_start(), []
    bases, levels = [common] * replicas, [common] * replicas
    own = TARGET.of_one(replicas)
    dice = random.Random(seed)
    for score in drifting(24_000, seed):
        which = dice.randrange(replicas)
        decided = scored(own, levels[which], score)
        levels[which] = decided.level
        decisions.append(decided.is_heavy)
        if dice.randrange(every) == 0:
            common = absorbed(TARGET, common, moved(bases[which], levels[which]), replicas=replicas)
            bases[which] = levels[which] = common

    assert all(0.15 <= share <= 0.25 for share in shares(decisions))
    assert common.scored + sum(level.scored - base.scored for level, base in zip(levels, bases, strict=True)) == 24_000


def test_forced_heavy_calls_are_paid_from_the_same_budget() -> None:
    level, heavy = a_start(), 0
    dice = random.Random(1)
    for score in drifting(12_000, 1):
        if dice.random() < 0.1:
            level = forced(TARGET, level, is_heavy=True)
            heavy += 1
        else:
            decided = scored(TARGET, level, score)
            level, heavy = decided.level, heavy + decided.is_heavy

    assert heavy / 12_000 == pytest.approx(0.2, abs=0.015)


def test_a_forced_call_does_not_move_the_threshold() -> None:
    before = a_start()

    after = forced(TARGET, before, is_heavy=True)

    assert after.threshold == before.threshold
    assert (after.mean, after.variance, after.scored) == (before.mean, before.variance, before.scored)
    assert (after.forced, after.forced_heavy) == (1, 1)


def test_an_attack_with_hard_prompts_cannot_pass_the_cap() -> None:
    level, heavy = a_start(), 0
    for _ in range(WINDOW):
        decided = scored(TARGET, level, 1.0)
        level, heavy = decided.level, heavy + decided.is_heavy

    assert heavy <= 0.25 * WINDOW


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (1.0, 1000)])
def test_no_share_is_never_heavy_and_all_of_it_always(share: float, expected: int) -> None:
    target = Target(share)
    level, heavy = start(target, fifth=0.5, deviation=0.1), 0
    for score in drifting(1_000, 2):
        decided = scored(target, level, score)
        level, heavy = decided.level, heavy + decided.is_heavy

    assert heavy == expected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=600), st.floats(0.01, 0.99))
def test_whatever_the_scores_the_cap_holds_and_the_level_stays_sound(values: list[float], share: float) -> None:
    target = Target(share)
    level, heavy = start(target, fifth=0.5, deviation=0.0), 0
    for value in values:
        decided = scored(target, level, value)
        level, heavy = decided.level, heavy + decided.is_heavy

    assert heavy <= target.burst + (1 + target.slack) * share * len(values)
    assert 0 <= level.threshold <= 1
    assert level.variance >= 0


def test_learning_nothing_changes_nothing_and_one_replica_alone_keeps_what_it_learned() -> None:
    base = a_start()
    alone = base
    for score in drifting(400, 3):
        alone = scored(TARGET, alone, score).level

    assert absorbed(TARGET, base, moved(base, base), replicas=2) == base
    assert absorbed(TARGET, base, moved(base, alone), replicas=1).threshold == pytest.approx(alone.threshold)


def test_another_share_begins_at_another_threshold() -> None:
    fifth, tenth, most = (start(Target(share), fifth=0.6, deviation=0.1).threshold for share in (0.2, 0.1, 0.9))

    assert fifth == pytest.approx(0.6)
    assert most < fifth < tenth


def test_a_mean_price_is_a_share() -> None:
    assert share_for(0.0028, light_usd=0.001, heavy_usd=0.01) == pytest.approx(0.2)
    assert share_for(0.0005, light_usd=0.001, heavy_usd=0.01) == 0
    assert share_for(1, light_usd=0.001, heavy_usd=0.01) == 1
    assert share_for(0.001, light_usd=0.01, heavy_usd=0.01) == 1


@pytest.mark.parametrize("wrong", [{"share": 1.2}, {"share": -0.1}, {"step": 0.0}, {"burst": 0.0}, {"memory": 0.0}])
def test_a_target_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="share"):
        Target(**wrong)
