"""What can be seen of an answer without knowing the right one: that it is empty, a refusal, or not what was agreed."""

import json
from collections.abc import Mapping
from typing import Literal, NoReturn

import jsonschema_rs

Fault = Literal["empty", "refused", "schema"]

LARGEST = 256 * 1024  # bytes of an answer or a schema that is looked at
SHORT = 400  # characters of what is a refusal as a whole
REFUSALS = ("i'm sorry, but i can", "i cannot help with", "i can't help with", "i can't assist")


def fault(asked: Mapping[str, object], answer: bytes) -> Fault | None:
    """What is wrong with a chat completion; None where nothing can be seen, or it is too large to be looked at."""
    if len(answer) > LARGEST:
        return None
    try:
        [choice, *_] = json.loads(answer)["choices"]
        message = choice["message"]
        text, says_otherwise = message.get("content"), message.get("tool_calls") or message.get("function_call")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if message.get("refusal") or choice.get("finish_reason") == "content_filter":
        return "refused"
    if says_otherwise:
        return None
    if not isinstance(text, str) or not text.strip():
        return "empty"
    if len(text) <= SHORT and text.strip().lower().replace("\u2019", "'").startswith(REFUSALS):
        return "refused"
    return None if _is_as_agreed(asked.get("response_format"), text) else "schema"


def _is_as_agreed(wanted: object, text: str) -> bool:
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind not in ("json_object", "json_schema"):
        return True
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    assert isinstance(wanted, dict)
    if kind == "json_object":
        return isinstance(value, dict)
    named = wanted.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    return not isinstance(schema, dict) or _fits(schema, value)


def _fits(schema: dict[str, object], value: object) -> bool:
    """A schema that is none, or that is too large, is not the answer's fault. Patterns run in linear time."""
    try:
        if len(json.dumps(schema)) > LARGEST:
            return True
        checks = jsonschema_rs.validator_for(
            schema, retriever=_nothing_from_elsewhere, pattern_options=jsonschema_rs.RegexOptions()
        )
        return checks.is_valid(value)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, RecursionError):
        return True


def _nothing_from_elsewhere(uri: str) -> NoReturn:
    raise ValueError("a schema may not refer to another place")
