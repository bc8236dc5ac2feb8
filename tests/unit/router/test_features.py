"""What is counted is counted right, of any text, and of no more than a bounded part of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.features import BITS, NAMES, SPAN, Counted, count, spelled

CHOICE = "Which of the following is not a metal?\nA. Iron\nB. Neon\nC. Copper\nD. Zinc\nAnswer:"
CODE = "def f(text):\n    for c in text:\n        if c.isdigit():\n            return c.upper()\n    return len(text)\n"


def value(counted: Counted, name: str) -> float:
    return float(counted.features[NAMES.index(name)])


def number(counted: Counted, name: str) -> int:
    """A count, which is kept as the logarithm of itself plus 1."""
    return round(float(np.expm1(value(counted, name))))


def test_every_name_is_there_once() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len(count("Hello").features) == len(NAMES)


@given(st.text(max_size=300))
def test_any_text_is_counted(text: str) -> None:
    counted = count(text)

    assert np.isfinite(counted.features).all()
    assert (np.diff(counted.places) > 0).all()
    assert not len(counted.places) or 0 <= counted.places[0] <= counted.places[-1] < 1 << BITS


def test_the_same_word_has_the_same_place_anywhere_and_in_any_case() -> None:
    words, places = spelled("What is ENERGY? The energy of a ball")

    assert words[2] == words[4] == "energy"
    assert places[2] == places[4]
    assert len(set(places[:4].tolist())) == 4


def test_numbers_are_alike_by_their_length() -> None:
    assert count("add 12").places.tolist() == count("add 57").places.tolist()
    assert count("add 12").places.tolist() != count("add 125").places.tolist()


def test_a_multiple_choice_question_is_seen_as_one() -> None:
    counted = count(CHOICE)

    assert value(counted, "multiple choice") == 1
    assert value(counted, "options") == 4
    assert value(counted, "ends its question with a question mark") == 1
    assert value(counted, "ends with 'Answer:'") == 1
    assert value(counted, "starts with which") == 1
    assert number(counted, "negations") == 1
    assert number(counted, "characters of the question before its options") == CHOICE.index("\n")


def test_code_is_seen_as_code() -> None:
    counted = count(CODE)

    assert number(counted, "deepest indent") == 12
    assert number(counted, "lines indented by 8 and more") == 2
    assert number(counted, "methods called") == 2
    assert number(counted, "calls") == 4
    assert number(counted, "loops") == 1
    assert value(counted, "starts with code") == 1
    assert number(counted, "characters of the last line") == len("return len(text)")


def test_only_both_ends_of_a_long_text_are_read_and_its_length_is_known() -> None:
    text = "start " + "x" * 10 * SPAN + " finish"

    assert number(count(text), "characters") == pytest.approx(10 * SPAN + 13, rel=1e-4)
    words, _ = spelled(text)
    assert (words[0], words[3]) == ("start", "finish")
    assert max(map(len, words)) < 3 * SPAN


def test_words_and_pairs_can_be_shown() -> None:
    assert spelled("Solve the EQUATION")[0] == ["solve", "the", "equation", "solve the", "the equation"]


@pytest.mark.parametrize(
    "text", ["", " ", "\n", "?", "\ud800", "é" * 9_000, "(" * 9_000, "\nA. " * 3_000, "\n  a" * 9_000, "\x00"]
)
def test_odd_texts_are_counted_too(text: str) -> None:
    assert np.isfinite(count(text).features).all()
