"""What clients send to chat completions: checked where we rely on it and where every upstream would choke."""

from collections.abc import Callable, Mapping

from gateway.asked import Asked
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
    missing,
    number,
    required,
    unknown_value,
    wrong_type,
)
from gateway.media import check_base64, check_data_url, check_url

MAX_IMAGES = 50
MAX_CHOICES = 8
MAX_STOPS = 16
MAX_TOOLS = 128
MAX_TOKENS = 10_000_000
MAX_FILE_ID = 64

SAID_OTHERWISE = ("tool_calls", "function_call", "refusal", "audio")  # what stands for an assistant's content
ROLES = ("developer", "system", "user", "assistant", "tool", "function")
FORMATS = ("text", "json_object", "json_schema")


def parse_chat(values: Values, *, prefers_async: bool = False) -> Asked:
    """A chat completion request. Raises `InvalidRequestError`, which names the parameter.

    What is not checked here stays in the client's body and goes upstream as it came.
    """
    stream = flag(values, "stream")
    asked = Asked.read(
        values, prefers_async=prefers_async, stream=stream, include_usage=_include_usage(values, stream=stream)
    )
    _check_sampling(values)
    _check_tools(values)
    _check_messages(required(values, "messages"))
    integer(values, "max_tokens", 1, MAX_TOKENS)
    integer(values, "max_completion_tokens", 1, MAX_TOKENS)
    integer(values, "n", 1, MAX_CHOICES)
    return asked


def _check_messages(value: object) -> None:
    messages = an_array(value, "messages")
    if not messages:
        raise InvalidRequestError(
            "Invalid 'messages': empty array. Expected at least one message.", "messages", "empty_array"
        )
    images = 0
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        images += _check_message(an_object(message, path), path)
    if images > MAX_IMAGES:
        raise InvalidRequestError(
            f"Invalid 'messages': at most {MAX_IMAGES} images in one request, but got {images}.",
            "messages",
            "too_many_images",
        )


def _check_message(message: Values, path: str) -> int:
    """How many images it has."""
    role = a_choice(required(message, "role", path), f"{path}.role", ROLES)
    if role == "tool":
        a_text(required(message, "tool_call_id", path), f"{path}.tool_call_id")
    calls = message.get("tool_calls")
    if calls is not None:
        _check_tool_calls(calls, f"{path}.tool_calls")
    content = message.get("content")
    if type(content) is str:
        return 0
    if content is None:
        may_be_silent = role == "function" or (role == "assistant" and any(map(message.get, SAID_OTHERWISE)))
        if not may_be_silent:
            raise missing(f"{path}.content")
        return 0
    if type(content) is not list:
        raise wrong_type(f"{path}.content", "a string or an array of content parts", content)
    if not content:
        raise InvalidRequestError(f"Invalid '{path}.content': empty array.", f"{path}.content", "empty_array")
    return sum(_check_part(part, role, f"{path}.content[{index}]") for index, part in enumerate(content))


def _check_part(value: object, role: str, path: str) -> int:
    """How many images it has."""
    part = an_object(value, path)
    kind = a_text(required(part, "type", path), f"{path}.type")
    check = PARTS.get(kind)
    if check is None:
        raise unknown_value(f"{path}.type", PARTS)
    if kind not in ("text", "refusal") and role not in ("user", "tool"):
        raise invalid(f"{path}.type", f"a message of role '{role}' carries text only")
    check(part, path)
    return kind == "image_url"


def _check_text(part: Values, path: str) -> None:
    if type(text := required(part, "text", path)) is not str:
        raise wrong_type(f"{path}.text", "a string", text)


def _check_refusal(part: Values, path: str) -> None:
    if type(text := required(part, "refusal", path)) is not str:
        raise wrong_type(f"{path}.refusal", "a string", text)


def _check_image(part: Values, path: str) -> None:
    path = f"{path}.image_url"
    image = an_object(required(part, "image_url", path.rpartition(".")[0]), path)
    check_url(a_text(required(image, "url", path), f"{path}.url"), "image/", f"{path}.url")
    if image.get("detail") is not None:
        a_choice(image["detail"], f"{path}.detail", ("auto", "low", "high", "original"))


def _check_video(part: Values, path: str) -> None:
    path = f"{path}.video_url"
    video = an_object(required(part, "video_url", path.rpartition(".")[0]), path)
    check_url(a_text(required(video, "url", path), f"{path}.url"), "video/", f"{path}.url")


def _check_audio(part: Values, path: str) -> None:
    path = f"{path}.input_audio"
    audio = an_object(required(part, "input_audio", path.rpartition(".")[0]), path)
    name = a_choice(required(audio, "format", path), f"{path}.format", ("wav", "mp3", "flac", "ogg"))
    check_base64(a_text(required(audio, "data", path), f"{path}.data"), f"audio/{name}", f"{path}.data")


def _check_file(part: Values, path: str) -> None:
    path = f"{path}.file"
    file = an_object(required(part, "file", path.rpartition(".")[0]), path)
    if file.get("file_id") is not None:
        check_file_id(file, "file_data", path)
        return
    check_data_url(a_text(required(file, "file_data", path), f"{path}.file_data"), "application/", f"{path}.file_data")


def check_file_id(values: Values, other: str, path: str) -> None:
    """A file that was uploaded, named in place of its content, which would be the field `other`."""
    a_text(values["file_id"], f"{path}.file_id", most=MAX_FILE_ID)
    if values.get(other) is not None:
        raise invalid(f"{path}.file_id", f"send it or '{other}', not both")


PARTS: Mapping[str, Callable[[Values, str], None]] = {
    "text": _check_text,
    "refusal": _check_refusal,
    "image_url": _check_image,
    "input_audio": _check_audio,
    "video_url": _check_video,
    "file": _check_file,
}


def _check_tool_calls(value: object, path: str) -> None:
    for index, item in enumerate(an_array(value, path)):
        at = f"{path}[{index}]"
        call = an_object(item, at)
        a_text(required(call, "id", at), f"{at}.id")
        if call.get("type", "function") == "function":
            function = an_object(required(call, "function", at), f"{at}.function")
            a_text(required(function, "name", f"{at}.function"), f"{at}.function.name", most=MAX_NAME)
            arguments = required(function, "arguments", f"{at}.function")
            if type(arguments) is not str:
                raise wrong_type(f"{at}.function.arguments", "a string of JSON", arguments)


def _check_tools(values: Values) -> None:
    if (tools := values.get("tools")) is not None:
        if not (tools := an_array(tools, "tools")):
            raise InvalidRequestError("Invalid 'tools': empty array.", "tools", "empty_array")
        if len(tools) > MAX_TOOLS:
            raise invalid("tools", f"at most {MAX_TOOLS} tools")
        for index, item in enumerate(tools):
            path = f"tools[{index}]"
            tool = an_object(item, path)
            if a_text(required(tool, "type", path), f"{path}.type") == "function":
                function = an_object(required(tool, "function", path), f"{path}.function")
                a_text(required(function, "name", f"{path}.function"), f"{path}.function.name", most=MAX_NAME)
                if function.get("parameters") is not None:
                    an_object(function["parameters"], f"{path}.function.parameters")
    choice = values.get("tool_choice")
    if choice is not None and type(choice) is not dict:
        a_choice(choice, "tool_choice", ("none", "auto", "required"))
    if choice not in (None, "none") and tools is None:
        raise invalid("tool_choice", "it needs 'tools'")


def _check_sampling(values: Values) -> None:
    number(values, "temperature", 0, 2)
    number(values, "top_p", 0, 1)
    number(values, "presence_penalty", -2, 2)
    number(values, "frequency_penalty", -2, 2)
    integer(values, "seed", -(2**63), 2**63 - 1)
    integer(values, "top_logprobs", 0, 20)
    flag(values, "logprobs")
    flag(values, "parallel_tool_calls")
    if (bias := values.get("logit_bias")) is not None:
        for weight in an_object(bias, "logit_bias").values():
            if type(weight) not in (int, float):
                raise wrong_type("logit_bias", "an object of numbers", weight)
    if (stop := values.get("stop")) is not None and type(stop) is not str:
        if type(stop) is not list:
            raise wrong_type("stop", "a string or an array of strings", stop)
        if len(stop) > MAX_STOPS or any(type(text) is not str for text in stop):
            raise invalid("stop", f"expected a string or an array of at most {MAX_STOPS} strings")
    if (wanted := values.get("response_format")) is not None:
        shape = an_object(wanted, "response_format")
        kind = a_choice(required(shape, "type", "response_format"), "response_format.type", FORMATS)
        if kind == "json_schema":
            an_object(required(shape, "json_schema", "response_format"), "response_format.json_schema")


def _include_usage(values: Values, *, stream: bool) -> bool:
    if (options := values.get("stream_options")) is None:
        return False
    if not stream:
        raise invalid("stream_options", 'only allowed together with "stream": true')
    options = an_object(options, "stream_options")
    return flag(options, "include_usage", "stream_options")
