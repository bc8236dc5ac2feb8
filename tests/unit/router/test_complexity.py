"""The score counts features, says which, and looks at the conversation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.complexity import PARTS, REASONS, SPAN, THRESHOLD, read, score

PLAN = (
    "Plan a migration of a 2 TB PostgreSQL database to a new region with at most 5 minutes of downtime."
    " Compare three strategies, justify the choice, and include a rollback plan."
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["role", "content", "text", "type"]) | st.text(), inner, max_size=5)
    ),
    max_leaves=20,
)


def a_chat(*turns: str) -> dict[str, object]:
    """Turns of the user and the assistant in alternation; the last one is the user's."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns)]}


@pytest.mark.parametrize(
    "prompt",
    [
        "What is the capital of France?",
        "Say hello",
        "Translate 'good morning' into French",
        "Who wrote Hamlet?",
        "What is 17 * 23?",
        "Give me three synonyms for happy.",
        "Write a haiku about rain.",
        "Write a Python function that reverses a string.",
        "Explain what an API is in one sentence.",
        "Is a tomato a fruit or a vegetable? Explain briefly.",
    ],
)
def test_everyday_requests_are_light(prompt: str) -> None:
    assert score(a_chat(prompt)).value < THRESHOLD / 2


@pytest.mark.parametrize(
    "prompt",
    [
        "Prove that the square root of 2 is irrational, then discuss why the argument fails for 4.",
        "Prove that there are infinitely many primes",
        "Design a rate limiter for an API: compare three algorithms, give complexity, code in Python and tests.",
        "Compare the economic causes of the French and Russian revolutions and evaluate which mattered most.",
        "Plan a five-day trip to Japan for a family of four with a budget of $4,000. We must visit Kyoto and Tokyo,"
        " avoid flights within the country, include one vegetarian restaurant each day, and keep every walk under"
        " 2 km. Explain the trade-offs and give a table of costs.",
        PLAN,
    ],
)
def test_proofs_designs_and_plans_with_constraints_are_heavy(prompt: str) -> None:
    assert score(a_chat(prompt)).value > THRESHOLD


def test_the_reasons_name_what_counted() -> None:
    assert score(a_chat("What is the capital of France?")).reasons == ("short", "one question", "a look-up")
    assert score(a_chat("Prove that the square root of 2 is irrational.")).reasons[0] == "asks for a proof"
    assert "several constraints" in score(a_chat(PLAN + " It must avoid locks, without exception.")).reasons


@pytest.mark.parametrize("word", ["yes", "ok continue", "Yes, please go ahead.", "weiter", "はい", "👍"])
def test_a_word_of_assent_is_scored_as_the_turn_that_it_continues(word: str) -> None:
    alone, continued = score(a_chat(word)), score(a_chat(PLAN, "Shall I write step 1?", word))

    assert alone.value < THRESHOLD / 2
    assert continued.value > THRESHOLD
    assert continued.reasons[0] == "continues an earlier turn"


def test_assent_after_assent_goes_back_to_what_was_asked() -> None:
    assert score(a_chat(PLAN, "Step 1 ...", "continue", "Step 2 ...", "ok")).value > THRESHOLD


def test_assent_to_a_plan_of_the_models_own_is_scored_as_that_plan() -> None:
    assert score(a_chat("hi", PLAN, "yes")).value > THRESHOLD


def test_a_new_simple_question_after_a_hard_turn_is_still_light() -> None:
    assert score(a_chat(PLAN, "Step 1 ...", "Thanks! What is the capital of France?")).value < THRESHOLD


def test_a_question_that_follows_a_hard_turn_inherits_some_of_its_need() -> None:
    question = "And if the replica lags, how long must we wait before we switch?"
    alone, following = score(a_chat(question)), score(a_chat(PLAN, "Step 1 ...", question))

    assert following.value > alone.value + 0.1
    assert following.reasons[-1] == "follows a harder turn"


def test_a_long_conversation_and_many_tools_add_a_little() -> None:
    short = score(a_chat("Tell me more about it please"))
    turns = ["Tell me more about it please", "Fine."] * 30
    long = score({**a_chat(*turns, "Tell me more about it please"), "tools": [{}] * 20})

    assert short.value < long.value < THRESHOLD
    assert "long conversation" in long.reasons


def test_options_to_choose_from_are_not_things_asked() -> None:
    question = "Which comes first?\nA. design\nB. compare\nC. prove\nD. plan"

    assert score(a_chat(question)).value < THRESHOLD
    assert "asks for a proof" not in score(a_chat(question)).reasons


def test_text_in_parts_scores_as_text_in_one_piece() -> None:
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": PLAN}, {"type": "image_url"}]}]}

    assert score(parts) == score(a_chat(PLAN))


def test_only_both_ends_of_a_huge_turn_are_read() -> None:
    text = read("a" * 1_000_000 + " prove")
    parts = read([{"type": "text", "text": "word"}] * 100_000)

    assert len(text.read) == 2 * SPAN + 1
    assert text.words["prove"] == 1
    assert text.length == 1_000_006
    assert parts.words["word"] == 2 * PARTS


@given(st.dictionaries(st.sampled_from(["messages", "input", "tools", "prompt"]), JSON))
def test_whatever_the_body_there_is_a_score_in_range(body: dict[str, object]) -> None:
    result = score(body)

    assert 0 <= result.value <= 1
    assert len(result.reasons) <= REASONS


@given(st.text(alphabet="aA1 \n.(){};=`?-*é好", max_size=300), st.integers(1, 30))
def test_a_score_is_repeatable_and_bounded_on_odd_text(text: str, times: int) -> None:
    assert score(a_chat(text * times)) == score(a_chat(text * times))
    assert 0 <= score(a_chat(text * times)).value <= 1
