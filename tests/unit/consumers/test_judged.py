"""What is plainly wrong with an answer is seen; what cannot be seen is no fault."""

import json
import time

import pytest

from consumers.judged import fault

SCHEMA = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}


def an_answer(content: object, **message: object) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content, **message}, "finish_reason": "stop"}]}).encode()


def asking(schema: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.mark.parametrize(
    ("asked", "answer", "expected"),
    [
        ({}, an_answer("Paris"), None),
        ({}, an_answer("  "), "empty"),
        ({}, an_answer(None), "empty"),
        ({}, an_answer(None, tool_calls=[{"id": "1"}]), None),
        ({}, an_answer(None, refusal="no"), "refused"),
        ({}, an_answer("I\u2019m sorry, but I can't do that."), "refused"),
        ({}, an_answer("I'm sorry, but I can" + "not see it. " * 100), None),
        ({"response_format": {"type": "json_object"}}, an_answer("{}"), None),
        ({"response_format": {"type": "json_object"}}, an_answer("Sure: {}"), "schema"),
        (asking(SCHEMA), an_answer('{"city": "Paris"}'), None),
        (asking(SCHEMA), an_answer('{"town": "Paris"}'), "schema"),
        (asking({"type": 12}), an_answer("{}"), None),
        (asking({"$ref": "http://127.0.0.1:1/elsewhere"}), an_answer("{}"), None),
        ({}, b"not JSON", None),
        ({}, b'{"choices": []}', None),
    ],
)
def test_an_answer_is_judged_by_what_can_be_seen(asked: dict[str, object], answer: bytes, expected: str | None) -> None:
    assert fault(asked, answer) == expected


def test_a_hostile_pattern_takes_no_time() -> None:
    asked = asking({"type": "string", "pattern": "^(a+)+$"})
    began = time.thread_time()

    assert fault(asked, an_answer(json.dumps("a" * 5_000 + "b"))) == "schema"
    assert time.thread_time() - began < 1  # a pattern that tries all ways would not end this year
