"""What is checked of a request of the Responses API, and how a fault is named."""

import base64
import copy
import json
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from openai.types.responses import Response

from gateway.asked import Asked, Wishes
from gateway.body import InvalidRequestError
from gateway.openai_responses import UNSTORED_S, parse_responses
from router import responses
from router.board import JobView
from router.conversations import Kept
from router.job import JobState
from router.response_object import response
from tests.builders import a_job

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
PDF = base64.b64encode(b"%PDF-1.7\n" + bytes(20)).decode()
IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}


def a_request(**changes: Any) -> dict[str, Any]:
    return {"model": "auto", "input": "Hello", **changes}


def some_allowed(**changes: Any) -> dict[str, Any]:
    add = {"type": "function", "name": "add"}
    return {"tools": [add], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [add], **changes}}


def with_part(part: object, role: str = "user") -> dict[str, Any]:
    return a_request(input=[{"role": role, "content": [{"type": "input_text", "text": "See:"}, part]}])


def test_a_plain_request_has_the_defaults() -> None:
    assert parse_responses(a_request()) == Asked(model="auto")


def test_in_the_background_nobody_waits_and_it_may_be_streamed() -> None:
    asked = parse_responses(a_request(background=True, stream=True))

    assert (asked.background, asked.stream, asked.waits, asked.is_async) == (True, True, False, False)


def test_what_is_not_to_be_stored_is_there_for_its_caller_only() -> None:
    longer = a_request(store=False, pointsman={"result_ttl_s": 3600})
    shorter = a_request(store=False, pointsman={"result_ttl_s": 5})

    assert parse_responses(longer).wishes == Wishes(result_ttl_s=UNSTORED_S)
    assert parse_responses(shorter).wishes == Wishes(result_ttl_s=5)


@pytest.mark.parametrize(
    "changes",
    [
        {"input": [{"role": "user", "content": "Hi"}, {"type": "reasoning", "id": "rs_1", "summary": []}]},
        {"input": [{"role": "user", "content": [IMAGE]}]},
        {"input": [{"type": "function_call_output", "call_id": "a", "output": [IMAGE]}]},
        {"input": [{"type": "function_call", "call_id": "a", "name": "add", "arguments": ""}]},
        {"input": [{"role": "user", "content": [
            {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}]}]},
        {"tools": [{"type": "function", "name": "add", "parameters": {}}], "tool_choice": "required"},
        some_allowed(mode="required"),
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}, "verbosity": "low"}},
        {"reasoning": {"effort": "high", "summary": "auto"}},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
        {"include": ["reasoning.encrypted_content"], "store": False},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"truncation": "disabled", "stream": True, "stream_options": {"include_obfuscation": False}},
        {"tools": None, "tool_choice": "none", "previous_response_id": None, "temperature": None},
        {"min_p": 0.1},
    ],
)  # fmt: skip
def test_what_can_be_done_is_taken(changes: dict[str, Any]) -> None:
    parse_responses(a_request(**changes))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": 7}, "input"),
        ({"input": []}, "input"),
        ({"input": ["Hi"]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "Hi"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": [{"type": "other"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "assistant", "content": [IMAGE]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
        ({"input": [{"type": {"a": 1}}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "4"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": "Hi", "id": 7}]}, "input[0].id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "a"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        (some_allowed(mode="none"), "tool_choice.mode"),
        (some_allowed(tools=[]), "tool_choice.tools"),
        (some_allowed(tools=[{"type": "mcp"}]), "tool_choice.tools[0].type"),
        (some_allowed(tools=[{"type": "function", "name": "other"}]), "tool_choice.tools[0].name"),
        (some_allowed(tools=[{"type": "function", "name": []}]), "tool_choice.tools[0].name"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"context_management": []}, "context_management"),
        ({"background_options": {}}, "background_options"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"include": [["a"]]}, "include[0]"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"background": True, "store": False}, "background"),
        ({"background": "yes"}, "background"),
        ({"stream": True, "async": True}, "stream"),
        ({"stream_options": "x"}, "stream_options"),
        ({"previous_response_id": ""}, "previous_response_id"),
        ({"instructions": 7}, "instructions"),
        ({"model": None}, "model"),
        ({"pointsman": {"dedline_s": 5}}, "pointsman.dedline_s"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_responses(a_request(**changes))

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_image", "file_id": "file-1", "image_url": "x"}, "file_id"),
        ({"type": "input_file", "file_id": 1}, "file_id"),
        ({"type": "input_image", "image_url": "http://127.0.0.1/cat.png"}, "image_url"),
        ({"type": "input_image", "image_url": f"data:image/jpeg;base64,{PNG}"}, "image_url"),
        ({"type": "input_file", "file_url": "https://example.com/a.pdf"}, "file_url"),
        ({"type": "input_file", "filename": "a.pdf"}, "file_data"),
        ({"type": "input_audio", "input_audio": {"data": "AA", "format": "aiff"}}, "input_audio.format"),
    ],
)
def test_media_that_are_not_what_they_claim_are_refused(part: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_responses(with_part(part))

    assert refused.value.param == f"input[0].content[1].{param}"


def test_more_images_than_one_request_may_have_are_refused() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_responses(a_request(input=[{"role": "user", "content": [IMAGE] * 51}]))

    assert refused.value.code == "too_many_images"


EVERYTHING: dict[str, Any] = {
    "model": "auto",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {**IMAGE, "detail": "low"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "refusal", "refusal": "No"}]},
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": []},
    ],
    "instructions": "Be brief",
    "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True, "description": "d"}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
    **{"top_logprobs": 2, "temperature": 1, "top_p": 0.5, "max_output_tokens": 5, "max_tool_calls": 3},
    **{"store": True, "background": False, "parallel_tool_calls": True, "truncation": "disabled"},
    **{"service_tier": "flex", "user": "u", "prompt_cache_key": "k", "safety_identifier": "s"},
}
JUNK: tuple[Any, ...] = (None, 0, -1, 1.5, True, "", "x", "text", "message", [], {}, [[]], [{}], {"type": "x"})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for name in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, name)
        yield from places(value[name], (*path, name))


def test_whatever_passes_the_door_has_a_chat_form_and_is_a_response_of_the_sdks() -> None:
    passed = 0
    for path in places(EVERYTHING):
        for junk in JUNK:
            values = copy.deepcopy(EVERYTHING)
            inside = reduce(getitem, path[:-1], values)
            inside[path[-1]] = copy.deepcopy(junk)
            try:
                parse_responses(values)
            except InvalidRequestError as error:
                assert error.param, path
                continue
            passed += 1
            items = responses.items_of(values, "J")
            json.dumps(responses.to_chat(values, items))
            asked = json.loads(Kept(responses.echo_of(values), items).packed.asked)
            Response.model_validate(response(JobView.of(a_job(), JobState.QUEUED), asked, None))

    assert passed > 100
