"""What is counted is counted right, of any text, and of no more than a bounded part of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.features import NAMES, READ, SPAN, Counted, count

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
    assert len(counted.pairs) == max(0, len(counted.words) - 1)
    assert (counted.ends > counted.starts).all()


@given(st.text(alphabet="ab1 .\n(é", max_size=60))
def test_words_are_runs_of_letters_or_digits_and_single_marks(text: str) -> None:
    counted = count(text)

    spans = [counted.read[start:end] for start, end in zip(counted.starts, counted.ends, strict=True)]
    assert b"".join(spans) == "".join(text.split()).encode()
    for span in spans:
        assert len(span) == 1 or span.isdigit() or not set(span) & set(b"0123456789 .\n(")


def test_the_same_word_has_the_same_hash_anywhere_and_in_any_case() -> None:
    first, second = count("energy of a ball"), count("What is ENERGY?")

    assert first.words[0] == second.words[2]
    assert len(set(first.words.tolist())) == 4


def test_numbers_are_alike_by_their_length() -> None:
    assert count("add 12").words[1] == count("add 57").words[1]
    assert count("add 12").words[1] != count("add 125").words[1]


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
    counted = count("start " + "x" * 10 * SPAN + " finish")

    assert len(counted.read) <= READ
    assert number(counted, "characters") == pytest.approx(10 * SPAN + 13, rel=1e-4)
    assert counted.shown(0) == "start"
    assert counted.shown(len(counted.words) - 1) == "finish"


def test_words_and_pairs_can_be_shown() -> None:
    counted = count("Solve the EQUATION")

    assert [counted.shown(at) for at in range(5)] == ["solve", "the", "equation", "solve the", "the equation"]


@pytest.mark.parametrize("text", ["", " ", "\n", "?", "\ud800", "é" * 9_000, "(" * 9_000, "\nA. " * 3_000, "\x00"])
def test_odd_texts_are_counted_too(text: str) -> None:
    assert np.isfinite(count(text).features).all()
