"""What clients send to the Responses API: checked as chat is, and whatever has no chat form is refused by name."""

from collections.abc import Mapping
from dataclasses import replace

from gateway.asked import Asked, Wishes
from gateway.body import InvalidRequestError
from gateway.fields import (
    MAX_NAME,
    Values,
    a_choice,
    a_text,
    an_array,
    an_object,
    flag,
    integer,
    invalid,
    number,
    required,
    unknown_value,
    wrong_type,
)
from gateway.media import check_base64, check_data_url, check_url
from gateway.openai import FORMATS, MAX_IMAGES, MAX_TOKENS, MAX_TOOLS, check_file_id
from router.responses import ALLOWED_TOOLS, LOGPROBS

UNSTORED_S = 60.0  # how long a result that is not to be stored is there for its waiting caller
MAX_INSTRUCTIONS = 1_000_000  # characters
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")
VERBOSITIES = ("low", "medium", "high")
ROLES = ("user", "assistant", "system", "developer")
# The second has no effect, as no model here reads its thoughts again; many clients ask for it by themselves.
INCLUDED = (LOGPROBS, "reasoning.encrypted_content")

# Parameters of OpenAI's that no backend here has, and what to do instead.
NOT_HERE: Mapping[str, str] = {
    "conversation": "conversations are not there; use 'previous_response_id'",
    "prompt": "prompt templates are not there; send 'instructions' and 'input'",
    "context_management": "contexts are not compacted here; shorten the input",
    "moderation": "there is no moderation here",
    "background_options": "use 'service_tier': \"flex\" and 'pointsman.deadline_s'",
}
OF_CHAT = ("messages", "response_format", "max_tokens", "max_completion_tokens", "functions", "function_call", "n")


def parse_responses(values: Values, *, prefers_async: bool = False) -> Asked:
    """A request of the Responses API. Raises `InvalidRequestError`, which names the parameter."""
    stream, background = flag(values, "stream"), flag(values, "background")
    asked = Asked.read(values, prefers_async=prefers_async, stream=stream)
    if background and values.get("store") is False:
        raise invalid("background", "it needs 'store': true, as its answer is read later")
    _check_not_here(values)
    _check_input(required(values, "input"))
    _check_tools(values)
    _check_settings(values)
    if values.get("store") is False:
        asked = replace(asked, wishes=_unstored(asked.wishes))
    return replace(asked, background=background)


def _unstored(wishes: Wishes) -> Wishes:
    return replace(wishes, result_ttl_s=min(wishes.result_ttl_s or UNSTORED_S, UNSTORED_S))


def _check_not_here(values: Values) -> None:
    for name, why in NOT_HERE.items():
        if values.get(name) is not None:
            raise invalid(name, why)
    for name in OF_CHAT:
        if values.get(name) is not None:
            raise InvalidRequestError(
                f"Unknown parameter: '{name}'. It belongs to chat completions.", name, "unknown_parameter"
            )
    if (
        values.get("truncation") is not None
        and a_choice(values["truncation"], "truncation", ("auto", "disabled")) == "auto"
    ):
        raise invalid("truncation", 'inputs are never truncated here; send "disabled", and shorten the input')
    if (include := values.get("include")) is not None:
        for index, wanted in enumerate(an_array(include, "include")):
            a_choice(wanted, f"include[{index}]", INCLUDED)
    if (options := values.get("stream_options")) is not None:
        flag(an_object(options, "stream_options"), "include_obfuscation", "stream_options")


def _check_input(value: object) -> None:
    if type(value) is str:
        a_text(value, "input")
        return
    if type(value) is not list:
        raise wrong_type("input", "a string or an array of items", value)
    if not value:
        raise InvalidRequestError("Invalid 'input': empty array. Expected at least one item.", "input", "empty_array")
    images = sum(_check_item(item, f"input[{index}]") for index, item in enumerate(value))
    if images > MAX_IMAGES:
        raise InvalidRequestError(
            f"Invalid 'input': at most {MAX_IMAGES} images in one request, but got {images}.",
            "input",
            "too_many_images",
        )


def _check_item(value: object, path: str) -> int:
    """How many images it has."""
    item = an_object(value, path)
    kind = "message" if item.get("type") is None else item["type"]
    for name in ("id", "status"):
        if item.get(name) is not None:
            a_text(item[name], f"{path}.{name}", most=MAX_NAME)
    match kind:
        case "message":
            role = a_choice(required(item, "role", path), f"{path}.role", ROLES)
            return _check_content(required(item, "content", path), role, f"{path}.content")
        case "function_call":
            for name in ("call_id", "name"):
                a_text(required(item, name, path), f"{path}.{name}", most=MAX_NAME)
            if type(arguments := required(item, "arguments", path)) is not str:
                raise wrong_type(f"{path}.arguments", "a string of JSON", arguments)
            return 0
        case "function_call_output":
            a_text(required(item, "call_id", path), f"{path}.call_id", most=MAX_NAME)
            return _check_content(required(item, "output", path), "tool", f"{path}.output")
        case "reasoning":
            return 0  # no backend takes it back
        case "item_reference":
            a_text(required(item, "id", path), f"{path}.id", most=MAX_NAME)
            return 0
    raise unknown_value(
        f"{path}.type", ("message", "function_call", "function_call_output", "reasoning", "item_reference")
    )


def _check_content(value: object, role: str, path: str) -> int:
    """How many images it has."""
    if type(value) is str:
        return 0
    if type(value) is not list:
        raise wrong_type(path, "a string or an array of content parts", value)
    if not value:
        raise InvalidRequestError(f"Invalid '{path}': empty array.", path, "empty_array")
    return sum(_check_part(part, role, f"{path}[{index}]") for index, part in enumerate(value))


def _check_part(value: object, role: str, path: str) -> int:
    part = an_object(value, path)
    kind = a_text(required(part, "type", path), f"{path}.type")
    if kind in ("input_text", "output_text", "text", "refusal"):
        name = "refusal" if kind == "refusal" else "text"
        if type(text := required(part, name, path)) is not str:
            raise wrong_type(f"{path}.{name}", "a string", text)
        return 0
    if kind not in ("input_image", "input_file", "input_audio"):
        raise unknown_value(f"{path}.type", ("input_text", "output_text", "refusal", *_MEDIA))
    if role not in ("user", "tool"):
        raise invalid(f"{path}.type", f"a message of role '{role}' carries text only")
    _MEDIA[kind](part, path)
    return kind == "input_image"


def _check_image(part: Values, path: str) -> None:
    if part.get("file_id") is not None:
        check_file_id(part, "image_url", path)
    else:
        check_url(a_text(required(part, "image_url", path), f"{path}.image_url"), "image/", f"{path}.image_url")
    if part.get("detail") is not None:
        a_choice(part["detail"], f"{path}.detail", ("auto", "low", "high", "original"))


def _check_file(part: Values, path: str) -> None:
    if part.get("file_url") is not None:
        raise invalid(f"{path}.file_url", "upload it and send its 'file_id', or send the content as 'file_data'")
    if part.get("file_id") is not None:
        check_file_id(part, "file_data", path)
    else:
        data = a_text(required(part, "file_data", path), f"{path}.file_data")
        check_data_url(data, "application/", f"{path}.file_data")
    if part.get("filename") is not None:
        a_text(part["filename"], f"{path}.filename", most=MAX_NAME)


def _check_audio(part: Values, path: str) -> None:
    path = f"{path}.input_audio"
    audio = an_object(required(part, "input_audio", path.rpartition(".")[0]), path)
    name = a_choice(required(audio, "format", path), f"{path}.format", ("wav", "mp3", "flac", "ogg"))
    check_base64(a_text(required(audio, "data", path), f"{path}.data"), f"audio/{name}", f"{path}.data")


_MEDIA = {"input_image": _check_image, "input_file": _check_file, "input_audio": _check_audio}


def _check_tools(values: Values) -> None:
    tools = [] if values.get("tools") is None else an_array(values["tools"], "tools")
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"at most {MAX_TOOLS} tools")
    for index, value in enumerate(tools):
        path = f"tools[{index}]"
        tool = an_object(value, path)
        if a_text(required(tool, "type", path), f"{path}.type") != "function":
            raise invalid(f"{path}.type", "only 'function' tools are there; hosted and custom tools are not")
        a_text(required(tool, "name", path), f"{path}.name", most=MAX_NAME)
        if tool.get("description") is not None and type(tool["description"]) is not str:
            raise wrong_type(f"{path}.description", "a string", tool["description"])
        if tool.get("parameters") is not None:
            an_object(tool["parameters"], f"{path}.parameters")
        flag(tool, "strict", path)
    if (choice := values.get("tool_choice")) is None:
        return
    if type(choice) is dict:
        kind = a_choice(required(choice, "type", "tool_choice"), "tool_choice.type", ("function", ALLOWED_TOOLS))
        if kind == ALLOWED_TOOLS:
            _check_allowed(choice, [an_object(tool, "tools")["name"] for tool in tools])
        else:
            a_text(required(choice, "name", "tool_choice"), "tool_choice.name", most=MAX_NAME)
    else:
        a_choice(choice, "tool_choice", ("none", "auto", "required"))
    if choice not in ("none", "auto") and not tools:
        raise invalid("tool_choice", "it needs 'tools'")


def _check_allowed(choice: Values, names: list[object]) -> None:
    a_choice(required(choice, "mode", "tool_choice"), "tool_choice.mode", ("auto", "required"))
    allowed = an_array(required(choice, "tools", "tool_choice"), "tool_choice.tools")
    if not allowed:
        raise InvalidRequestError("Invalid 'tool_choice.tools': empty array.", "tool_choice.tools", "empty_array")
    for index, value in enumerate(allowed):
        path = f"tool_choice.tools[{index}]"
        tool = an_object(value, path)
        a_choice(required(tool, "type", path), f"{path}.type", ("function",))
        if required(tool, "name", path) not in names:
            raise invalid(f"{path}.name", "it names none of 'tools'")


def _check_settings(values: Values) -> None:
    number(values, "temperature", 0, 2)
    number(values, "top_p", 0, 1)
    integer(values, "top_logprobs", 0, 20)
    integer(values, "max_output_tokens", 1, MAX_TOKENS)
    integer(values, "max_tool_calls", 1, MAX_TOKENS)
    flag(values, "parallel_tool_calls")
    for name in ("instructions", "previous_response_id", "prompt_cache_key", "safety_identifier", "user"):
        if values.get(name) is not None:
            a_text(values[name], name, most=MAX_INSTRUCTIONS if name == "instructions" else MAX_NAME)
    if (reasoning := values.get("reasoning")) is not None:
        reasoning = an_object(reasoning, "reasoning")
        for name, known in (("effort", EFFORTS), ("summary", SUMMARIES)):
            if reasoning.get(name) is not None:
                a_choice(reasoning[name], f"reasoning.{name}", known)
    if (text := values.get("text")) is not None:
        _check_text(an_object(text, "text"))


def _check_text(text: Values) -> None:
    if text.get("verbosity") is not None:
        a_choice(text["verbosity"], "text.verbosity", VERBOSITIES)
    if (shape := text.get("format")) is None:
        return
    shape = an_object(shape, "text.format")
    if a_choice(required(shape, "type", "text.format"), "text.format.type", FORMATS) == "json_schema":
        a_text(required(shape, "name", "text.format"), "text.format.name", most=MAX_NAME)
        an_object(required(shape, "schema", "text.format"), "text.format.schema")
