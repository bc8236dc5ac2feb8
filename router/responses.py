"""A request of the Responses API in its chat form, which is what every backend understands. Pure.

The door has checked what it gets here; what came another way and cannot be read raises `UntranslatableError`.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

ENDPOINT, CHAT = "/v1/responses", "/v1/chat/completions"
LOGPROBS = "message.output_text.logprobs"  # under `include`
ALLOWED_TOOLS = "allowed_tools"  # a tool choice that names some of the tools
REFERENCE = "item_reference"  # an item of the input that is named in place of being sent

Object = dict[str, Any]

# Said again in every Response, with what holds where the client said nothing.
ECHOED: Mapping[str, object] = MappingProxyType(
    {
        "background": False,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": None,
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": MappingProxyType({"format": {"type": "text"}}),
        "tool_choice": "auto",
        "tools": (),
        "top_logprobs": None,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": None,
    }
)

# Chat has no such field, or has it under another name.
_NOT_CHAT = frozenset(
    {"background", "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "parallel_tool_calls"}
    | {"previous_response_id"}
    | {"reasoning", "store", "text", "tool_choice", "tools", "top_logprobs", "truncation"}
)
_ROLES: Mapping[str, str] = MappingProxyType({"developer": "system"})  # which templates of open models do not know
_PREFIXES: Mapping[str, str] = MappingProxyType(
    {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
)


class UntranslatableError(ValueError):
    """This is no request of the Responses API that has a chat form."""


def items_of(values: Mapping[str, Any], job_id: str, *, first: int = 0) -> list[Object]:
    """The request's input as items, each with an id; `first` is how many came before them in the conversation."""
    given = values["input"]
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_item(item, f"{job_id}_{first + index}") for index, item in enumerate(given)]


def echo_of(values: Mapping[str, Any]) -> Object:
    """What every Response of this request says of it again."""
    echo = {name: values[name] for name in ECHOED if values.get(name) is not None}
    if isinstance(echo.get("text"), dict):
        echo["text"] = {**ECHOED["text"], **echo["text"]}  # type: ignore[dict-item]
    if "tools" in echo:
        echo["tools"] = [{"parameters": None, "strict": None, **tool} for tool in echo["tools"]]
    return echo


def to_chat(values: Mapping[str, Any], items: Sequence[Object]) -> Object:
    """The chat request that asks for the same. `items` is the whole conversation. Raises `UntranslatableError`."""
    try:
        chat = {name: value for name, value in values.items() if name not in _NOT_CHAT}
        chat["messages"] = [*_instructions(values), *_messages(items)]
        chat |= _settings(values)
        return chat
    except (AttributeError, KeyError, TypeError) as error:
        raise UntranslatableError("this is no request that has a chat form") from error


def _item(item: Object, suffix: str) -> Object:
    kind = item.get("type") or "message"
    whole = {**item, "id": item.get("id") or f"{_PREFIXES.get(kind, 'item')}_{suffix}", "type": kind}
    if kind == "message":
        of_model = item["role"] == "assistant"
        if isinstance(item["content"], str):
            text = {"type": "output_text", "annotations": []} if of_model else {"type": "input_text"}
            whole["content"] = [{**text, "text": item["content"]}]
    return {**whole, "status": item.get("status") or "completed"} if kind != "reasoning" else whole


def _instructions(values: Mapping[str, Any]) -> Iterator[Object]:
    if values.get("instructions"):
        yield {"role": "system", "content": values["instructions"]}


def _messages(items: Sequence[Object]) -> list[Object]:
    messages: list[Object] = []
    for item in items:
        match item["type"]:
            case "message":
                messages.append({"role": _ROLES.get(item["role"], item["role"]), "content": _content(item["content"])})
            case "function_call":
                # Chat wants all calls of one turn in one message.
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                messages[-1].setdefault("tool_calls", []).append(_call(item))
            case "function_call_output":
                content = _content(item["output"])
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
    return messages


def _content(content: str | list[Object]) -> str | list[Object]:
    """One text as itself: servers without multimodal models take nothing else."""
    if isinstance(content, str):
        return content
    if len(content) == 1 and "text" in content[0]:
        return str(content[0]["text"])
    return [_part(part) for part in content]


def _part(part: Object) -> Object:
    match part["type"]:
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": part["text"]}
        case "input_image":
            detail = {"detail": part["detail"]} if part.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
        case "input_file":
            return {"type": "file", "file": {k: part[k] for k in ("filename", "file_data", "file_id") if part.get(k)}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case "refusal":
            return {"type": "refusal", "refusal": part["refusal"]}
    raise KeyError("a part of an unknown type")


def _call(item: Object) -> Object:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _settings(values: Mapping[str, Any]) -> Object:
    chat: Object = {}
    if values.get("max_output_tokens") is not None:
        chat["max_tokens"] = values["max_output_tokens"]
    if values.get("tools"):
        tools, choice = _allowed(values["tools"], values.get("tool_choice"))
        chat["tools"] = [_tool(tool) for tool in tools]
        if values.get("parallel_tool_calls") is not None:  # which servers refuse where there are no tools
            chat["parallel_tool_calls"] = values["parallel_tool_calls"]
        if choice is not None:
            named = isinstance(choice, dict)
            chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}} if named else choice
    if (effort := (values.get("reasoning") or {}).get("effort")) is not None:
        chat["reasoning_effort"] = effort
    text = values.get("text") or {}
    if text.get("verbosity") is not None:
        chat["verbosity"] = text["verbosity"]
    shape = text.get("format") or {"type": "text"}
    if shape["type"] == "json_schema":
        chat["response_format"] = {
            "type": "json_schema",
            "json_schema": {k: v for k, v in shape.items() if k != "type"},
        }
    elif shape["type"] == "json_object":
        chat["response_format"] = {"type": "json_object"}
    if LOGPROBS in (values.get("include") or ()) or values.get("top_logprobs"):
        chat |= {"logprobs": True, "top_logprobs": values.get("top_logprobs") or 0}
    return chat


def _allowed(tools: Sequence[Object], choice: Any) -> tuple[Sequence[Object], Any]:
    """Servers of open models do not know a choice of some tools: to them, what is not allowed is not there."""
    if not isinstance(choice, dict) or choice["type"] != ALLOWED_TOOLS:
        return tools, choice
    names = {tool["name"] for tool in choice["tools"]}
    return [tool for tool in tools if tool["name"] in names], choice["mode"]


def _tool(tool: Object) -> Object:
    function = {k: tool[k] for k in ("name", "description", "parameters", "strict") if tool.get(k) is not None}
    return {"type": "function", "function": function}
