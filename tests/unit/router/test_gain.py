"""The shipped weights give a score in 0..1 with its reasons, and only files of ours are read as weights."""

import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.deployments import Tier
from router.features import NAMES, count
from router.gain import (
    REASONS,
    GainScore,
    Weights,
    WeightsError,
    dump,
    load,
    parts,
    predict,
    shipped,
    squeezed,
)
from router.shares import Shares
from tests.unit.router.test_choose import a_chat, chosen, decide

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "type"]) | st.text(), inner, max_size=5)
    ),
    max_leaves=20,
)
CHOICE = "Which law says that energy is conserved?\nA. Ohm's\nB. The first\nC. The second\nD. Hooke's\nAnswer:"


def test_the_shipped_weights_decide_auto() -> None:
    shares = Shares.of_shipped_weights()

    route = chosen(decide("auto", a_chat(CHOICE), shares=shares)).route

    assert route.score is not None and route.threshold is not None
    assert route.threshold == pytest.approx(shares.fifth)
    assert route.tier is (Tier.HEAVY if route.score > route.threshold else Tier.LIGHT)
    assert route.reasons


@given(st.dictionaries(st.sampled_from(["messages", "input", "prompt"]), JSON, max_size=3))
def test_any_body_has_a_score_and_reasons_without_its_words(body: dict[str, object]) -> None:
    scored = GainScore()(body)

    assert 0 < scored.value < 1
    assert 1 <= len(scored.reasons) <= REASONS


def test_reasons_never_hold_words_of_the_prompt() -> None:
    scored = GainScore()(a_chat("Compare Xanthippe with Zebedee, and name Quetzalcoatl"))

    assert not any(name in " ".join(scored.reasons).lower() for name in ("xanthippe", "zebedee", "quetzalcoatl"))


def test_the_score_of_a_prompt_is_always_the_same() -> None:
    one, other = GainScore()(a_chat(CHOICE)), GainScore()(a_chat(CHOICE))

    assert (one.value, one.reasons) == (other.value, other.reasons)


def test_a_turn_that_only_says_go_on_is_scored_as_the_one_before() -> None:
    alone = GainScore()(a_chat(CHOICE))
    messages = [
        {"role": "user", "content": CHOICE},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "Yes, go on"},
    ]

    after = GainScore()({"messages": messages})

    assert after.value == alone.value
    assert after.reasons[0] == "continues an earlier turn"


def test_the_parts_add_up_to_what_sets_a_prompt_apart() -> None:
    weights = shipped()
    texts = CHOICE, CHOICE.replace("The first", "The third")
    one, other = map(count, texts)
    assert one.features.tolist() == other.features.tolist()

    apart = predict(one, weights).gain - predict(other, weights).gain

    by_parts = [sum(part.added for part in parts(text, count(text), weights)) for text in texts]
    assert apart != 0
    assert by_parts[0] - by_parts[1] == pytest.approx(apart, abs=1e-6)


def test_parts_show_words_and_pairs_as_they_were_written() -> None:
    shown = {part.words for part in parts(CHOICE, count(CHOICE), shipped()) if part.is_text}

    assert {"energy", "which law"} <= shown


def test_a_prompt_like_nothing_seen_is_of_no_known_kind() -> None:
    predicted = predict(count("<<<>>> ||| " * 200), shipped())

    assert predicted.kinds == ()


def test_squeezing_keeps_the_order() -> None:
    values = [squeezed(gain) for gain in (-9, -1, -0.1, 0, 0.1, 0.2, 0.3, 1, 9)]

    assert values == sorted(values)
    assert squeezed(0.2) == 0.5


def test_weights_survive_a_round_trip_bit_for_bit() -> None:
    raw = dump(shipped())

    assert dump(load(io.BytesIO(raw))) == raw


def test_the_shipped_weights_are_small() -> None:
    assert len(dump(shipped())) < 1_000_000


@pytest.mark.parametrize("raw", [b"", b"PK\x03\x04nonsense", b"not weights", dump(shipped())[:5_000]])
def test_other_files_are_refused(raw: bytes) -> None:
    with pytest.raises(WeightsError):
        load(io.BytesIO(raw))


@pytest.mark.parametrize(
    "damaged",
    [
        {"words": np.zeros(3, np.int8)},
        {"rows": np.zeros((2, 5), np.float32)},
        {"mean": np.full(len(NAMES), np.nan, np.float32)},
        {"scale": np.zeros(len(NAMES), np.float32)},
    ],
)
def test_weights_that_do_not_fit_together_are_refused(damaged: dict[str, np.ndarray]) -> None:
    wrong: Weights = replace(shipped(), **damaged)

    with pytest.raises(WeightsError):
        load(io.BytesIO(dump(wrong)))
