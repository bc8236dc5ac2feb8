"""Chats as records of batch jobs, and back: held against botocore's own model of Converse."""

import json
from dataclasses import replace
from typing import Any

import pytest
from botocore.session import Session
from hypothesis import given
from hypothesis import strategies as st

from consumers.aws import bedrock_records
from consumers.aws.bedrock_records import NotCarriedError, Output
from consumers.backend import BackendError
from policies.deployments import Bedrock
from policies.pricing import Basis, Usage
from tests.builders import a_body, a_deployment, a_job
from tests.doubles.aws.shapes import faults

CONVERSE = Session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape
DEPLOYMENT = replace(a_deployment(max_output=500), bedrock=Bedrock(region="us-east-1"))
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def asked(**fields: Any) -> Any:
    """The Converse request of a chat, which botocore's model takes."""
    made = bedrock_records.model_input(a_job(body=a_body(**fields)), DEPLOYMENT)
    assert faults({**made, "modelId": "m"}, CONVERSE) == []
    return made


def turn(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def test_messages_system_and_sampling_are_carried_and_the_output_is_bounded() -> None:
    messages = [turn("system", "Be brief."), turn("user", "Hello"), turn("assistant", "Hi"), turn("user", "And?")]

    made = asked(messages=messages, temperature=0.5, top_p=1, stop="END", max_tokens=9000, user="u", seed=7)

    assert made == {
        "system": [{"text": "Be brief."}],
        "messages": [
            turn("user", [{"text": "Hello"}]),
            turn("assistant", [{"text": "Hi"}]),
            turn("user", [{"text": "And?"}]),
        ],
        "inferenceConfig": {"maxTokens": 500, "temperature": 0.5, "topP": 1, "stopSequences": ["END"]},
    }


def test_images_and_documents_go_along_and_turns_of_one_role_become_one() -> None:
    pdf = {"type": "file", "file": {"filename": "a/b.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}

    made = asked(messages=[turn("user", [{"type": "text", "text": "See"}, picture]), turn("user", [pdf])])

    assert made["messages"] == [
        turn(
            "user",
            [
                {"text": "See"},
                {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}},
                {"document": {"format": "pdf", "name": "document-1", "source": {"bytes": "JVBERi0="}}},
            ],
        )
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"reasoning_effort": "low"},
        {"logprobs": True},
        {"n": 2},
        {"temperature": 1.5},
        {"temperature": True},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"something": "new"},
        {"messages": [turn("assistant", "I begin")]},
        {"messages": [turn("user", "")]},
        {"messages": [turn("user", [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}])]},
        {"messages": [turn("user", [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}])]},
        {"messages": [turn("user", "Hi"), turn("tool", "4", tool_call_id="c")]},
        {"messages": [turn("user", "Hi"), turn("assistant", "x", tool_calls=[{"id": "c"}])]},
        {"messages": "Hello"},
        {"messages": [None]},
    ],
)
def test_what_a_batch_job_cannot_carry_is_not_carried_in_part(fields: dict[str, Any]) -> None:
    with pytest.raises(NotCarriedError):
        asked(**fields)


def test_a_deployment_that_reasons_or_has_a_guardrail_ships_nothing() -> None:
    guarded = replace(DEPLOYMENT, bedrock=Bedrock(region="us-east-1", guardrail="g"))

    assert not bedrock_records.carries(a_job(), replace(DEPLOYMENT, effort="low"))
    assert not bedrock_records.carries(a_job(), guarded)
    assert bedrock_records.carries(a_job(), DEPLOYMENT)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=10), each, max_size=4),
    max_leaves=10,
)
NAMES = st.sampled_from(sorted(bedrock_records.CARRIED)) | st.text(max_size=10)


@given(fields=st.dictionaries(NAMES, JSON_VALUES, max_size=6))
def test_any_body_is_either_carried_as_botocore_takes_it_or_not_at_all(fields: dict[str, Any]) -> None:
    try:
        asked(**fields)
    except NotCarriedError:
        return


def answered(**given: Any) -> Output:
    output = {"message": {"role": "assistant", "content": [{"text": "Four "}, {"text": "words"}]}}
    usage = {"inputTokens": 10, "outputTokens": 4, "totalTokens": 44, "cacheReadInputTokens": 30}
    return Output("r", {"output": output, "stopReason": "end_turn", "usage": usage, **given})


def test_an_answer_is_openais_and_its_usage_is_of_the_batch_tier_with_cached_tokens_apart() -> None:
    job = a_job()

    answer = bedrock_records.answer(answered(), job, DEPLOYMENT, created=7)

    completion = json.loads(answer.body)
    assert completion["choices"][0]["message"]["content"] == "Four words"
    assert (completion["id"], completion["created"]) == (f"chatcmpl-{job.id}", 7)
    assert (completion["usage"]["prompt_tokens"], completion["usage"]["completion_tokens"]) == (40, 4)
    assert answer.usage == Usage(input=10, cache_read=30, output=4, tier="batch")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("content_filtered", "content_filter"), ("new_one", "stop")],
)
def test_why_it_ended_is_told_in_openais_words(theirs: str, ours: str) -> None:
    answer = bedrock_records.answer(answered(stopReason=theirs), a_job(), DEPLOYMENT, created=7)

    assert json.loads(answer.body)["choices"][0]["finish_reason"] == ours


def test_an_answer_without_usage_is_counted_and_says_so() -> None:
    answer = bedrock_records.answer(answered(usage=None), a_job(), DEPLOYMENT, created=7)

    assert answer.usage == Usage(input=10, output=3, basis=Basis.ESTIMATED, tier="batch")


@given(answer=st.dictionaries(st.sampled_from(["output", "stopReason", "usage"]), JSON_VALUES))
def test_nothing_that_an_output_may_hold_is_taken_for_more_than_it_is(answer: dict[str, Any]) -> None:
    line = json.dumps({"recordId": "r", "modelOutput": answer}).encode()
    told = bedrock_records.output(line)
    assert told is not None

    with pytest.raises(BackendError):
        bedrock_records.answer(told, a_job(), DEPLOYMENT, created=7)


@pytest.mark.parametrize("text", [b"", b"\n", b"[]", b"{", b'{"recordId": 7}', b"\xff", b"[" * 100_000])
def test_a_line_that_is_none_is_passed_over(text: bytes) -> None:
    assert bedrock_records.output(text) is None


def test_a_record_that_failed_tells_its_code() -> None:
    text = json.dumps({"recordId": "r", "error": {"errorCode": 400, "errorMessage": "no"}}).encode()

    assert bedrock_records.output(text) == Output("r", {}, "400")
