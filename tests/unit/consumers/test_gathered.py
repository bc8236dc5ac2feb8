"""A whole answer out of its chunks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from consumers.gathered import Gathered, MalformedChunkError, as_chunk, compact, reported
from policies.pricing import Basis, Usage


def gather(*chunks: dict[str, object], choices: int = 1, done: bool = True) -> Gathered:
    gathered = Gathered("job_1", "light", choices=choices, input_estimate=7, created=5)
    for chunk in chunks:
        gathered.add(chunk)
    gathered.is_done = done
    return gathered


def chunk(delta: object = None, *, index: int = 0, finish: str | None = None, **more: object) -> dict[str, object]:
    choice = {"index": index, "delta": delta if delta is not None else {}, "finish_reason": finish, **more}
    return {"id": "theirs", "object": "chat.completion.chunk", "created": 1796000000, "model": "m", "choices": [choice]}


def whole(gathered: Gathered) -> ChatCompletion:
    return ChatCompletion.model_validate_json(gathered.completion(), strict=True)


STOP = chunk(finish="stop")


def usage(prompt: object, completion: object, **more: object) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


def test_pieces_of_text_become_one_message_under_our_names() -> None:
    answer = whole(
        gather(chunk({"role": "assistant", "content": ""}), chunk({"content": "Hel"}), chunk({"content": "lo"}), STOP)
    )

    assert answer.id == "chatcmpl-job_1"
    assert answer.model == "light"
    assert answer.created == 1796000000
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"


def test_choices_are_kept_apart() -> None:
    gathered = gather(
        chunk({"content": "b"}, index=1),
        chunk({"content": "a"}),
        chunk(index=1, finish="length"),
        STOP,
        choices=2,
        done=False,
    )

    assert gathered.is_whole
    assert [(c.index, c.message.content, c.finish_reason) for c in whole(gathered).choices] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]


def test_tool_calls_are_put_together_by_their_index() -> None:
    def piece(index: int, **function: str) -> dict[str, object]:
        return {"index": index, "function": function}

    answer = whole(
        gather(
            chunk(
                {"content": None, "tool_calls": [{"id": "a", "type": "function", **piece(0, name="f", arguments="")}]}
            ),
            chunk({"tool_calls": [piece(0, arguments='{"x"')]}),
            chunk({"tool_calls": [{"id": "b", "type": "function", **piece(1, name="g", arguments="{}")}]}),
            chunk({"tool_calls": [piece(0, name="f", arguments=": 1}")]}),
            chunk(finish="tool_calls"),
        )
    )

    calls = answer.choices[0].message.tool_calls or []
    assert [(c.id, c.type == "function" and (c.function.name, c.function.arguments)) for c in calls] == [
        ("a", ("f", '{"x": 1}')),
        ("b", ("g", "{}")),
    ]
    assert answer.choices[0].message.content is None


def test_tool_calls_without_an_index_are_told_apart_by_their_id() -> None:
    answer = whole(
        gather(
            chunk({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]}),
            chunk({"tool_calls": [{"function": {"arguments": "}"}}]}),
            chunk({"tool_calls": [{"id": "b", "function": {"name": "g", "arguments": {"y": 2}}}]}),
            chunk(finish="tool_calls"),
        )
    )

    calls = answer.choices[0].message.tool_calls or []
    assert [c.type == "function" and c.function.arguments for c in calls] == ["{}", '{"y": 2}']


def test_logprobs_refusal_reasoning_and_what_a_backend_adds_are_kept() -> None:
    entry = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
    body = json.loads(
        gather(
            chunk({"reasoning_content": "hm"}, logprobs={"content": [entry]}),
            chunk({"reasoning_content": "m", "refusal": "I "}, logprobs={"content": [entry], "refusal": None}),
            chunk({"refusal": "won't", "annotations": [1]}),
            chunk(finish="stop", stop_reason="</s>"),
        ).completion()
    )

    [choice] = body["choices"]
    assert choice["message"]["reasoning_content"] == "hmm"
    assert choice["message"]["refusal"] == "I won't"
    assert choice["message"]["content"] is None
    assert choice["message"]["annotations"] == [1]
    assert choice["logprobs"] == {"content": [entry, entry], "refusal": []}
    assert choice["stop_reason"] == "</s>"


def test_a_character_cut_in_two_is_put_together() -> None:
    answer = whole(gather(chunk({"content": "\ud83d"}), chunk({"content": "\ude80"}), STOP))

    assert answer.choices[0].message.content == "\U0001f680"
    assert compact("\ud83d") == b'"\\ud83d"'


@pytest.mark.parametrize(
    ("given", "counted", "expected"),
    [
        (None, 3, None),
        ({"prompt_tokens": 10, "completion_tokens": 3}, 3, Usage(input=10, output=3)),
        (
            {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
            3,
            Usage(input=6, cache_read=4, output=3),
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 99}},
            3,
            Usage(input=0, cache_read=10, output=3),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": None}, 3, Usage(input=10, output=3)),
        ({"prompt_tokens": 10}, 0, Usage(input=10)),
        ({"prompt_tokens": 10, "completion_tokens": 0}, 3, None),
        ({"prompt_tokens": -1, "completion_tokens": 3}, 3, None),
        ({"prompt_tokens": "10", "completion_tokens": 3}, 3, None),
        ({"prompt_tokens": True, "completion_tokens": 3}, 3, None),
        ({"prompt_tokens": 10**12, "completion_tokens": 3}, 3, None),
        ({}, 0, None),
    ],
)
def test_usage_is_normalised_or_not_believed(
    given: dict[str, object] | None, counted: int, expected: Usage | None
) -> None:
    assert reported(given, counted) == expected


def test_without_a_report_the_pieces_are_counted_and_marked() -> None:
    gathered = gather(chunk({"content": ""}), chunk({"content": "a"}), chunk({"content": "x" * 400}), STOP)

    assert gathered.usage == Usage(input=7, output=101, basis=Basis.ESTIMATED)
    assert (whole(gathered).usage or pytest.fail()).total_tokens == 108


def test_the_object_says_what_is_charged() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}
    answer = whole(gather(chunk({"content": "a"}), STOP, usage(10, 3, **details)))

    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (10, 3, 13)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 2


@pytest.mark.parametrize(
    ("chunks", "choices", "done", "is_whole"),
    [
        ([], 1, False, False),
        ([], 1, True, False),
        ([chunk({"content": "a"})], 1, False, False),
        ([chunk({"content": "a"})], 1, True, True),
        ([chunk({"content": "a"}), STOP], 1, False, True),
        ([STOP, STOP], 2, False, False),
        ([STOP, chunk(index=1, finish="stop")], 2, False, True),
    ],
)
def test_an_answer_is_whole_when_finished_or_done(
    chunks: list[dict[str, object]], choices: int, done: bool, is_whole: bool
) -> None:
    assert gather(*chunks, choices=choices, done=done).is_whole is is_whole


@pytest.mark.parametrize(
    "bad",
    [
        {"choices": "none"},
        {"choices": [1]},
        {"choices": [{"index": -1, "delta": {}}]},
        {"choices": [{"index": "0", "delta": {}}]},
        {"choices": [{"delta": "text"}]},
        {"choices": [{"delta": {"content": 5}}]},
        {"choices": [{"delta": {"tool_calls": [1]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": "f"}]}}]},
        {"choices": [{"delta": {}, "finish_reason": 1}]},
        {"choices": [{"delta": {"content": "half"}}, {"delta": 1}]},
    ],
)
def test_a_malformed_chunk_is_refused_and_leaves_no_trace(bad: dict[str, object]) -> None:
    gathered = gather(chunk({"content": "a"}))
    before = gathered.completion()

    with pytest.raises(MalformedChunkError):
        gathered.add(bad)

    assert gathered.completion() == before


def test_a_chunk_is_passed_on_under_our_names_and_usage_comes_once() -> None:
    gathered = gather(chunk({"content": "é"}), STOP, usage(10, 3))

    plain = ChatCompletionChunk.model_validate_json(gathered.passed_on(chunk({"content": "é"}), with_usage=False))
    asked = json.loads(gathered.passed_on({**STOP, "usage": {"prompt_tokens": 1}}, with_usage=True))
    last = ChatCompletionChunk.model_validate_json(gathered.usage_chunk(), strict=True)

    assert (plain.id, plain.model, plain.choices[0].delta.content) == ("chatcmpl-job_1", "light", "é")
    assert asked["usage"] is None
    assert last.choices == []
    assert (last.usage or pytest.fail()).total_tokens == 13


def test_the_first_chunk_of_each_choice_says_whose_words_they_are_and_no_other_does() -> None:
    chunks = [chunk({"content": "a"}), chunk({"content": "b"}, index=1), chunk({"content": "c"}), STOP]
    gathered = gather()

    roles = []
    for each in chunks:
        gathered.add(each)
        [choice] = json.loads(gathered.passed_on(each, with_usage=False))["choices"]
        roles.append(choice["delta"].get("role"))

    assert roles == ["assistant", "assistant", None, None]


def test_a_chunk_without_choices_has_nothing_for_the_client() -> None:
    gathered = gather()

    assert not gathered.add(usage(1, 1))
    assert gathered.add(STOP)


def test_a_whole_object_is_one_chunk() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "hi", "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}

    gathered = gather(as_chunk({"choices": [choice], "usage": usage(3, 2)["usage"]}))

    answer = whole(gathered)
    assert answer.choices[0].message.content == "hi"
    assert len(answer.choices[0].message.tool_calls or []) == 1
    assert gathered.usage == Usage(input=3, output=2)


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{"message": None}]}, {"choices": "x"}])
def test_what_is_no_completion_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(MalformedChunkError):
        as_chunk(body)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FUNCTIONS = st.fixed_dictionaries({}, optional={"name": ANYTHING, "arguments": ANYTHING})
CALLS = st.fixed_dictionaries({}, optional={"index": ANYTHING, "id": ANYTHING, "function": FUNCTIONS | ANYTHING})
DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "role": ANYTHING,
        "content": ANYTHING,
        "reasoning": ANYTHING,
        "tool_calls": st.lists(CALLS, max_size=3) | ANYTHING,
        "function_call": FUNCTIONS | ANYTHING,
        "message": ANYTHING,
    },
)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(0, 2) | ANYTHING,
        "delta": DELTAS | ANYTHING,
        "finish_reason": st.text(max_size=3) | ANYTHING,
        "logprobs": st.dictionaries(st.text(max_size=3), ANYTHING, max_size=2) | ANYTHING,
        "message": ANYTHING,
    },
)
USAGES = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": ANYTHING,
        "completion_tokens": ANYTHING,
        "prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": ANYTHING}) | ANYTHING,
    },
)
CHUNKS = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(CHOICES, max_size=3) | ANYTHING, "usage": USAGES | ANYTHING, "created": ANYTHING}
)


@given(st.lists(CHUNKS, max_size=5))
def test_whatever_a_server_sends_it_is_taken_or_refused_and_usage_is_never_negative(
    chunks: list[dict[str, object]],
) -> None:
    gathered = gather(done=False)
    for some in chunks:
        try:
            gathered.add(some)
            json.loads(gathered.passed_on(some, with_usage=True))
        except MalformedChunkError:
            continue

    body = json.loads(gathered.completion())
    assert body["object"] == "chat.completion"
    assert all(isinstance(choice["message"]["role"], str) for choice in body["choices"])
    assert min(gathered.usage.input, gathered.usage.cache_read, gathered.usage.output) >= 0
