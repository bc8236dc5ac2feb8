"""The last user turn is what is asked, unless it only says to go on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.features import SPAN
from router.turns import asked


def a_chat(*turns: str) -> dict[str, object]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns)]}


def test_the_last_user_turn_is_read_in_any_of_the_api_s_shapes() -> None:
    assert asked(a_chat("First?", "Yes.", "Second?")).text == "Second?"
    assert asked({"input": "A question?"}).text == "A question?"
    assert asked({"prompt": "A question?"}).text == "A question?"
    parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "this"}]
    assert asked({"messages": [{"role": "user", "content": parts}]}).text == "See\nthis"


@pytest.mark.parametrize("assent", ["yes", "Ok, continue.", "Please go ahead with the next step", ""])
def test_a_turn_that_only_says_go_on_leads_to_the_one_before(assent: str) -> None:
    found = asked(a_chat("Plan a journey to the sea.", "Step one...", assent))

    assert found.text == "Plan a journey to the sea."
    assert found.is_earlier


def test_a_short_question_stands_for_itself() -> None:
    assert asked(a_chat("Plan a journey.", "Step one...", "Why so?")).text == "Why so?"


def test_only_both_ends_of_a_long_turn_are_read() -> None:
    found = asked(a_chat("a" * SPAN + "b" * SPAN + "c" * SPAN))

    assert len(found.text) <= 2 * SPAN + 1
    assert found.text.startswith("a")
    assert found.text.endswith("c")
    assert found.length == 3 * SPAN


@given(
    st.dictionaries(st.sampled_from(["messages", "input"]), st.none() | st.integers() | st.lists(st.text()), max_size=2)
)
def test_any_shape_is_read(body: dict[str, object]) -> None:
    assert asked(body).length == 0
