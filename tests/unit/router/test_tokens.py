"""An estimate is never zero, bounded, and does not take data for text."""

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.deployments import Deployment, Tier
from router import tokens

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12), inner, max_size=5),
    max_leaves=20,
)


def a_chat(content: object, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}], **more}


def a_deployment(max_output: int = 500) -> Deployment:
    return Deployment(name="d", backend="gpu", model="m", tier=Tier.LIGHT, max_output=max_output)


@given(st.dictionaries(st.sampled_from(["messages", "input", "tools", "prompt", "n"]), JSON))
def test_whatever_the_body_the_estimate_is_between_one_and_the_ceiling(body: dict[str, object]) -> None:
    assert 1 <= tokens.estimate_input(body) <= tokens.CEILING
    assert 1 <= tokens.longest_input(body) <= tokens.CEILING
    assert 1 <= tokens.max_output(body, a_deployment()) <= tokens.CEILING


@pytest.mark.parametrize(
    ("text", "counted"),
    [  # counted by the tokeniser of SmolLM2, with 49,000 words
        ("Which of these factors increases the risk for cancer of the oesophagus?", 14),
        ("Die Geschwindigkeitsbegrenzung auf Autobahnen wird seit Jahrzehnten leidenschaftlich diskutiert", 31),
        ("北京是中华人民共和国的首都,也是全国的政治中心、文化中心。请用三句话介绍这座城市的历史。", 76),
        ('{"id": "routellm_mmlu:0a1b2c3d", "weak_score": 0.0, "strong_score": 1.0}', 43),
    ],
)
def test_text_is_estimated_from_just_under_to_twice_what_a_small_vocabulary_counts(text: str, counted: int) -> None:
    grown = tokens.estimate_input(a_chat(text * 11)) - tokens.estimate_input(a_chat(text))

    assert 0.8 <= grown / (10 * counted) <= 2


def test_a_lone_surrogate_is_counted() -> None:
    assert tokens.estimate_input(a_chat("\ud800" * 100)) > 50


def test_image_data_is_not_counted_as_text() -> None:
    url = "data:image/png;base64," + "A" * 1_000_000
    one = a_chat([{"type": "image_url", "image_url": {"url": url}}])
    low = a_chat([{"type": "image_url", "image_url": {"url": url, "detail": "low"}}])

    assert 1_600 <= tokens.estimate_input(one) < 1_700
    assert 256 <= tokens.estimate_input(low) < 350


def test_every_image_counts() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}

    assert tokens.estimate_input(a_chat([part] * 100)) > 160_000


@pytest.mark.parametrize(("kind", "key", "least"), [("file", "file_data", 1_650), ("input_audio", "data", 25)])
def test_media_grow_with_their_size_from_a_least(kind: str, key: str, least: int) -> None:
    small = tokens.estimate_input(a_chat([{"type": kind, kind: {key: "A" * 10}}]))
    large = tokens.estimate_input(a_chat([{"type": kind, kind: {key: "A" * 2_000_000}}]))

    assert least <= small < least + 100
    assert small < large < 150_000


def test_an_images_own_size_counts_and_not_that_of_its_file() -> None:
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (300).to_bytes(4) + (250).to_bytes(4)
    urls = [f"data:image/png;base64,{b64encode(head + bytes(rest)).decode()}" for rest in (10, 1_000_000)]

    guesses = [tokens.estimate_input(a_chat([{"type": "image_url", "image_url": {"url": url}}])) for url in urls]

    assert guesses[0] == guesses[1] < 150


def test_what_is_only_linked_to_counts_for_a_usual_one() -> None:
    part = {"type": "file", "file": {"file_url": "https://example.com/report.pdf"}}

    assert 30_000 < tokens.estimate_input(a_chat([part])) < 40_000


def test_text_beside_media_still_counts() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}, "text": "word " * 10_000}

    assert tokens.estimate_input(a_chat([part])) > 10_000


def test_tools_and_schemas_count() -> None:
    schema = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(100)}}
    plain = tokens.estimate_input(a_chat("hi"))
    with_tools = tokens.estimate_input(a_chat("hi", tools=[{"type": "function", "function": {"parameters": schema}}]))
    with_format = tokens.estimate_input(a_chat("hi", response_format={"type": "json_schema", "json_schema": schema}))

    assert min(with_tools, with_format) - plain > len(json.dumps(schema)) / 5


def test_a_body_of_very_many_pieces_fills_any_window() -> None:
    assert tokens.estimate_input({"messages": [[]] * (tokens.NODES + 1)}) == tokens.CEILING


def test_a_deep_body_is_walked_without_recursion() -> None:
    deep: list[object] = []
    for _ in range(50_000):
        deep = [deep]

    assert tokens.estimate_input({"messages": deep}) >= 50_000


def test_token_numbers_of_an_embedding_call_count_one_each() -> None:
    assert 300_000 <= tokens.estimate_input({"input": [7] * 300_000}) < 300_100


def test_each_input_of_an_embedding_call_has_a_window_of_its_own() -> None:
    body: dict[str, object] = {"input": ["word " * 100] * 50}

    assert tokens.longest_input(body) * 40 < tokens.estimate_input(body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 500),
        ({"max_tokens": 20}, 20),
        ({"max_completion_tokens": 30, "max_tokens": 20}, 30),
        ({"max_output_tokens": 40}, 40),
        ({"max_tokens": 20, "n": 3}, 60),
        ({"n": 2}, 1_000),
        ({"max_tokens": None, "n": None}, 500),
        ({"max_tokens": -1, "n": -1}, 500),
        ({"max_tokens": True, "n": True}, 500),
        ({"max_tokens": "20", "n": 2.5}, 500),
        ({"max_tokens": 10**30, "n": 10**30}, tokens.CEILING),
    ],
)
def test_output_is_the_callers_limit_times_its_answers(body: dict[str, object], expected: int) -> None:
    assert tokens.max_output(body, a_deployment(max_output=500)) == expected
