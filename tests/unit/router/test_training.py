"""Training finds what there is to find, gives the same bytes each time, and the shipped weights hold their figures."""

import random
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from router import labels
from router.evaluation import Answers, worth
from router.features import count
from router.gain import Weights, dump, load, predict
from router.training import Labelled, TooFewError, train

DATA = Path(__file__).parents[4] / "shared/data/routing/dev.jsonl.gz"
EASY = ["colour", "fruit", "river", "bread", "garden"]
HARD = ["tensor", "manifold", "enthalpy", "lemma", "stochastic"]


def synthetic(rows: int, seed: int) -> list[Labelled]:
    """Two sources. Light fails on hard words; heavy never does. A tenth of the labels are chance."""
    dice = random.Random(seed)
    made = []
    for at in range(rows):
        is_hard = dice.random() < 0.4
        words = [dice.choice(HARD if is_hard and dice.random() < 0.5 else EASY) for _ in range(dice.randint(6, 14))]
        is_choice = at % 2 == 0
        text = (
            f"Which is it, {' '.join(words)}?\nA. yes\nB. no\nC. both\nAnswer:"
            if is_choice
            else f"Say {' '.join(words)}."
        )
        fails = is_hard if dice.random() < 0.9 else dice.random() < 0.5
        light = 0.0 if fails else 1.0
        others = {"another": light if dice.random() < 0.8 else 1 - light} if dice.random() < 0.9 else {}
        made.append(
            Labelled(count(text), "exam" if is_choice else "chat", light, 1.0, task=f"t{at % 3}", others=others)
        )
    return made


def apgr(weights: Weights, rows: Sequence[Labelled]) -> float:
    scores = np.array([predict(row.counted, weights).gain for row in rows])
    answers = Answers(np.array([row.light for row in rows]), np.array([row.heavy for row in rows]))
    return worth([scores], [answers]).apgr


def test_it_finds_where_heavy_pays_on_rows_it_has_not_seen() -> None:
    weights = train(synthetic(800, 1))

    assert apgr(weights, synthetic(400, 2)) > 0.75
    assert set(weights.kinds.tolist()) == {"chat", "exam"}


def test_the_same_rows_give_the_same_bytes() -> None:
    assert dump(train(synthetic(700, 3))) == dump(train(synthetic(700, 3)))


def test_what_is_written_predicts_the_same_when_read() -> None:
    weights = train(synthetic(700, 4))
    read = load(BytesIO(dump(weights)))

    for row in synthetic(50, 5):
        assert predict(row.counted, read).gain == predict(row.counted, weights).gain


def test_a_source_with_few_rows_is_no_kind_of_its_own() -> None:
    rows = [row for at, row in enumerate(synthetic(1_200, 6)) if row.source == "exam" or at < 120]

    assert train(rows).kinds.tolist() == ["exam"]


def test_too_little_to_learn_from_is_refused() -> None:
    with pytest.raises(TooFewError, match="300 rows"):
        train(synthetic(100, 7))
    alike = [Labelled(row.counted, row.source, 1.0, 1.0) for row in synthetic(700, 8)]
    with pytest.raises(TooFewError, match="equally"):
        train(alike)


@pytest.mark.timeout(300)
@pytest.mark.skipif(not DATA.exists(), reason="the routing data does not lie beside the project")
def test_on_public_exam_type_prompts_it_beats_random_and_length_on_a_fold_it_has_not_seen() -> None:
    """A quarter of the rows, one fold: the whole is `bench/routing.py`."""
    read = [row for at, (_, row) in enumerate(labels.rows(DATA)) if at % 4 == 0]
    tested = [int(str(row["group"]), 16) % 5 == 0 for row in read]
    rows = [labels.labelled(row) for row in read]
    weights = train([row for row, is_tested in zip(rows, tested, strict=True) if not is_tested], enough=80)
    held = [(row, len(str(raw["prompt"]))) for row, raw, is_tested in zip(rows, read, tested, strict=True) if is_tested]

    found = []
    for by_length in (False, True):
        scores, answers = [], []
        for source in ("routellm_mmlu", "mmlu_pro", "llmrouter_qa"):
            mine = [(row, length) for row, length in held if row.source == source]
            scores.append(
                np.array([float(size) if by_length else predict(row.counted, weights).gain for row, size in mine])
            )
            answers.append(Answers(*(np.array([getattr(row, key) for row, _ in mine]) for key in ("light", "heavy"))))
        found.append(worth(scores, answers))

    ours, length = found
    assert ours.apgr > 0.57
    assert ours.lift > 0.08
    assert ours.apgr > length.apgr - 0.01
