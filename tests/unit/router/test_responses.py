"""What a request of the Responses API becomes for a backend, and what its answer becomes for the client."""

import json
from dataclasses import replace
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from router import responses
from router.board import JobView
from router.job import JobState
from router.response_events import ResponseEvents
from router.response_object import output_of, response
from tests.builders import a_job

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def in_chat(**values: Any) -> dict[str, Any]:
    asked = {"model": "auto", "input": "Hi", **values}
    return responses.to_chat(asked, responses.items_of(asked, "J"))


def messages(*items: dict[str, Any], **values: Any) -> list[Any]:
    found = in_chat(input=list(items), **values)["messages"]
    assert isinstance(found, list)
    return found


def test_a_text_is_a_users_message_after_the_instructions() -> None:
    assert in_chat(instructions="Be brief")["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hi"},
    ]


def test_of_the_tools_a_model_sees_those_that_are_allowed() -> None:
    tools = [{"type": "function", "name": name} for name in ("add", "take", "look")]
    allowed = [{"type": "function", "name": "take"}, {"type": "function", "name": "add"}]

    chat = in_chat(tools=tools, tool_choice={"type": "allowed_tools", "mode": "required", "tools": allowed})

    assert [tool["function"]["name"] for tool in chat["tools"]] == ["add", "take"]
    assert chat["tool_choice"] == "required"


def test_a_turn_with_calls_is_one_message_and_each_output_is_its_own() -> None:
    call = {"type": "function_call", "name": "add", "arguments": "{}"}

    found = messages(
        {"role": "developer", "content": "Add."},
        {"role": "user", "content": [{"type": "input_text", "text": "2+2, 3+3"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see"}]},
        {**call, "call_id": "a"},
        {**call, "call_id": "b"},
        {"type": "function_call_output", "call_id": "a", "output": "4"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "6"}]},
        {**call, "call_id": "c"},
    )

    function = {"name": "add", "arguments": "{}"}
    assert found == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "2+2, 3+3"},
        {
            "role": "assistant",
            "content": "Let me see",
            "tool_calls": [{"id": each, "type": "function", "function": function} for each in "ab"],
        },
        {"role": "tool", "tool_call_id": "a", "content": "4"},
        {"role": "tool", "tool_call_id": "b", "content": "6"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]},
    ]


def test_media_become_the_parts_that_chat_has() -> None:
    [message] = messages(
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "See"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"},
                {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            ],
        }
    )

    assert message["content"] == [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    ]


def test_settings_have_chats_names_and_what_is_unknown_stays() -> None:
    schema = {"type": "object"}

    found = in_chat(
        max_output_tokens=9,
        temperature=0.5,
        tools=[{"type": "function", "name": "add", "parameters": schema, "strict": True}],
        tool_choice={"type": "function", "name": "add"},
        reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "sum", "schema": schema}, "verbosity": "low"},
        include=[responses.LOGPROBS],
        store=False,
        previous_response_id="resp_1",
        min_p=0.1,
    )

    del found["messages"]
    assert found == {
        "model": "auto",
        "max_tokens": 9,
        "temperature": 0.5,
        "tools": [{"type": "function", "function": {"name": "add", "parameters": schema, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "reasoning_effort": "low",
        "verbosity": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}},
        "logprobs": True,
        "top_logprobs": 0,
        "min_p": 0.1,
    }


@pytest.mark.parametrize("item", [{"type": "message"}, {"role": "user", "content": [{"type": "other"}]}])
def test_what_the_door_never_lets_through_is_refused_here_as_well(item: dict[str, Any]) -> None:
    with pytest.raises((responses.UntranslatableError, KeyError)):
        messages(item)


# And back


def a_view(state: JobState = JobState.COMPLETED, **fields: Any) -> JobView:
    job = a_job(endpoint=responses.ENDPOINT, stream=True)
    return replace(JobView.of(job, state), **{"finished_at": 1796000001.0, **fields})


def a_completion(finish: str = "stop", usage: object = None, **message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


def told(view: JobView, deltas: list[dict[str, Any]], completion: dict[str, Any] | None) -> list[dict[str, Any]]:
    events = ResponseEvents(view.job.id)
    first = response(replace(view, state=JobState.QUEUED, finished_at=None), {}, None)
    found = [*events.begin(first), *events.run(first)]
    for delta in deltas:
        found += events.add({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    return [*found, *events.end(response(view, {}, completion))]


CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
# The pieces of an answer, and the answer.
ANSWERS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "text": (
        [{"role": "assistant", "content": ""}, {"content": "Good "}, {"content": "day"}],
        a_completion(content="Good day"),
    ),
    "cut short": ([{"content": "Good"}], a_completion("length", content="Good")),
    "refusal": ([{"refusal": "No"}], a_completion(content=None, refusal="No")),
    "thoughts": (
        [{"reasoning_content": "Hm. "}, {"reasoning_content": "So."}, {"content": "4"}],
        a_completion(content="4", reasoning_content="Hm. So."),
    ),
    "calls": (
        [
            {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "look"}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"at"'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": ': "it"}'}}]},
            {"tool_calls": [{"index": 1, "id": "call_2", "function": {"name": "go", "arguments": "{}"}}]},
        ],
        a_completion(
            "tool_calls",
            content=None,
            tool_calls=[CALL, {"id": "call_2", "type": "function", "function": {"name": "go", "arguments": "{}"}}],
        ),
    ),
    "text before a call": (
        [{"content": "See"}, {"tool_calls": [{"index": 0, **CALL}]}],
        a_completion(content="See", tool_calls=[CALL]),
    ),
    "nothing": ([], a_completion(content="")),
}


@pytest.mark.parametrize("has_pieces", [True, False], ids=["as it came", "all at once"])
@pytest.mark.parametrize("name", ANSWERS)
def test_every_event_is_one_of_the_sdks_and_together_they_make_the_response(name: str, has_pieces: bool) -> None:
    deltas, completion = ANSWERS[name]
    view = a_view()

    events = told(view, deltas if has_pieces else [], completion)

    parsed = [EVENT.validate_python(json.loads(json.dumps(event))) for event in events]
    assert [each.type for each in parsed] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == ("response.incomplete" if name == "cut short" else "response.completed")
    final = events[-1]["response"]
    Response.model_validate(final)
    assert _from_deltas(events) == _texts(final["output"])
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    assert [item["type"] for item in done] == [item["type"] for item in output_of(completion, view.job.id)]


def _from_deltas(events: list[dict[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            found[event["item_id"]] = found.get(event["item_id"], "") + event["delta"]
    return found


def _texts(output: list[dict[str, Any]]) -> dict[str, str]:
    return {
        item["id"]: item["arguments"]
        if item["type"] == "function_call"
        else "".join(part.get("text", part.get("refusal", "")) for part in item["content"])
        for item in output
    }


def test_who_comes_back_when_the_pieces_are_gone_gets_the_rest_under_higher_numbers() -> None:
    view = a_view()
    events = ResponseEvents(view.job.id)
    list(events.begin(response(view, {}, None)))

    found = list(events.close(response(view, {}, a_completion(content="Good day")), after=40))

    assert [event["sequence_number"] for event in found] == [41, 42, 43, 44]
    assert [event["type"] for event in found] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert found[0]["text"] == "Good day"
    assert [EVENT.validate_python(event) for event in found]


@pytest.mark.parametrize(
    ("state", "error", "status", "code"),
    [
        (JobState.QUEUED, None, "queued", None),
        (JobState.RUNNING, None, "in_progress", None),
        (JobState.CANCELLED, None, "cancelled", None),
        (JobState.EXPIRED, None, "failed", "server_error"),
        (JobState.FAILED, {"type": "invalid_request_error", "code": "x", "message": "No"}, "failed", "invalid_prompt"),
        (JobState.FAILED, {"code": "throttled", "message": "No"}, "failed", "rate_limit_exceeded"),
        (JobState.FAILED, {"type": "upstream_error", "code": "cut", "message": "No"}, "failed", "server_error"),
    ],
)  # fmt: skip
def test_every_state_of_a_job_is_a_response_of_the_sdks(
    state: JobState, error: dict[str, Any] | None, status: str, code: str | None
) -> None:
    found = Response.model_validate(response(a_view(state, error=error), {"tools": []}, None))

    assert found.status == status
    assert (found.error.code if found.error else None) == code


def test_log_probabilities_and_usage_are_in_their_new_places() -> None:
    entry = {
        "token": "A",
        "logprob": -0.5,
        "bytes": None,
        "top_logprobs": [{"token": "B", "logprob": -1.5, "bytes": [66]}],
    }
    completion = a_completion(
        content="A",
        usage={
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    )
    completion["choices"][0]["logprobs"] = {"content": [entry]}

    found = Response.model_validate(response(a_view(), {}, completion))

    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.input_tokens_details.cached_tokens) == (7, 2)
    assert (found.usage.output_tokens, found.usage.output_tokens_details.reasoning_tokens) == (3, 1)
    [message] = found.output
    assert message.type == "message" and message.content[0].type == "output_text"
    assert message.content[0].logprobs is not None
    assert [(each.token, each.bytes) for each in message.content[0].logprobs] == [("A", [65])]


def test_an_item_has_the_id_that_it_came_with_or_one_of_its_own() -> None:
    given = [
        {"role": "user", "content": "Hello", "id": None},
        {"role": "user", "content": "Hello"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc_mine"},
    ]

    items = responses.items_of({"input": given}, "J", first=3)

    assert [item["id"] for item in items] == ["msg_J_3", "msg_J_4", "fc_mine"]
