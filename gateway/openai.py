"""What clients send, as OpenAI defines it: checked where we rely on it and where every upstream would choke."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

from gateway.body import InvalidRequestError
from gateway.media import check_base64, check_data_url, check_url
from router.job import JobClass

MAX_IMAGES = 50
MAX_CHOICES = 8
MAX_STOPS = 16
MAX_TOOLS = 128
MAX_NAME = 256  # characters of a model's or tool's name
MAX_TOKENS = 10_000_000
MAX_SECONDS = 30 * 86_400
MAX_USD = 1_000_000
METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512

CLASSES: Mapping[str, JobClass] = {
    "priority": JobClass.INTERACTIVE,
    "default": JobClass.STANDARD,
    "auto": JobClass.STANDARD,
    "flex": JobClass.BULK,
}
SAID_OTHERWISE = ("tool_calls", "function_call", "refusal", "audio")  # what stands for an assistant's content
ROLES = ("developer", "system", "user", "assistant", "tool", "function")
FORMATS = ("text", "json_object", "json_schema")

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What stands under `pointsman`: limits of this one job, in seconds and dollars."""

    deadline_s: float | None = None
    result_ttl_s: float | None = None
    max_usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked chat completion request. `max_tokens` is for each of the `n` choices.

    What is not named here stays in the client's body and goes upstream as it came.
    """

    model: str
    messages: Sequence[Values]
    job_class: JobClass = JobClass.STANDARD
    max_tokens: int | None = None
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    is_async: bool = False
    store: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    wishes: Wishes = field(default_factory=Wishes)

    @classmethod
    def parse(cls, values: Values, *, prefers_async: bool = False) -> "ChatRequest":
        """Raises `InvalidRequestError`, which names the parameter. `prefers_async`: the header asked for it."""
        stream = _flag(values, "stream")
        is_async = _flag(values, "async") or prefers_async
        if stream and is_async:
            raise _invalid("stream", "an async job cannot be streamed; read it at /v1/jobs/{id} when it is done")
        _check_sampling(values)
        _check_tools(values)
        return cls(
            model=_text(_required(values, "model"), "model", most=MAX_NAME),
            messages=_messages(_required(values, "messages")),
            job_class=_job_class(values),
            max_tokens=_max_tokens(values),
            n=_integer(values, "n", 1, MAX_CHOICES) or 1,
            stream=stream,
            include_usage=_include_usage(values, stream=stream),
            is_async=is_async,
            store=_flag(values, "store"),
            metadata=_metadata(values),
            wishes=_wishes(values),
        )


def _messages(value: object) -> Sequence[Values]:
    messages = _array(value, "messages")
    if not messages:
        raise InvalidRequestError(
            "Invalid 'messages': empty array. Expected at least one message.", "messages", "empty_array"
        )
    images = 0
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        images += _check_message(_object(message, path), path)
    if images > MAX_IMAGES:
        raise InvalidRequestError(
            f"Invalid 'messages': at most {MAX_IMAGES} images in one request, but got {images}.",
            "messages",
            "too_many_images",
        )
    return [message for message in messages if isinstance(message, dict)]


def _check_message(message: Values, path: str) -> int:
    """How many images it has."""
    role = _choice(_required(message, "role", path), f"{path}.role", ROLES)
    if role == "tool":
        _text(_required(message, "tool_call_id", path), f"{path}.tool_call_id")
    calls = message.get("tool_calls")
    if calls is not None:
        _check_tool_calls(calls, f"{path}.tool_calls")
    content = message.get("content")
    if type(content) is str:
        return 0
    if content is None:
        may_be_silent = role == "function" or (role == "assistant" and any(map(message.get, SAID_OTHERWISE)))
        if not may_be_silent:
            raise _missing(f"{path}.content")
        return 0
    if type(content) is not list:
        raise _wrong_type(f"{path}.content", "a string or an array of content parts", content)
    if not content:
        raise InvalidRequestError(f"Invalid '{path}.content': empty array.", f"{path}.content", "empty_array")
    return sum(_check_part(part, role, f"{path}.content[{index}]") for index, part in enumerate(content))


def _check_part(value: object, role: str, path: str) -> int:
    """How many images it has."""
    part = _object(value, path)
    kind = _text(_required(part, "type", path), f"{path}.type")
    check = PARTS.get(kind)
    if check is None:
        raise _unknown_value(f"{path}.type", PARTS)
    if kind not in ("text", "refusal") and role not in ("user", "tool"):
        raise _invalid(f"{path}.type", f"a message of role '{role}' carries text only")
    check(part, path)
    return kind == "image_url"


def _check_text(part: Values, path: str) -> None:
    if type(text := _required(part, "text", path)) is not str:
        raise _wrong_type(f"{path}.text", "a string", text)


def _check_refusal(part: Values, path: str) -> None:
    if type(text := _required(part, "refusal", path)) is not str:
        raise _wrong_type(f"{path}.refusal", "a string", text)


def _check_image(part: Values, path: str) -> None:
    path = f"{path}.image_url"
    image = _object(_required(part, "image_url", path.rpartition(".")[0]), path)
    check_url(_text(_required(image, "url", path), f"{path}.url"), "image/", f"{path}.url")
    if image.get("detail") is not None:
        _choice(image["detail"], f"{path}.detail", ("auto", "low", "high", "original"))


def _check_video(part: Values, path: str) -> None:
    path = f"{path}.video_url"
    video = _object(_required(part, "video_url", path.rpartition(".")[0]), path)
    check_url(_text(_required(video, "url", path), f"{path}.url"), "video/", f"{path}.url")


def _check_audio(part: Values, path: str) -> None:
    path = f"{path}.input_audio"
    audio = _object(_required(part, "input_audio", path.rpartition(".")[0]), path)
    name = _choice(_required(audio, "format", path), f"{path}.format", ("wav", "mp3", "flac", "ogg"))
    check_base64(_text(_required(audio, "data", path), f"{path}.data"), f"audio/{name}", f"{path}.data")


def _check_file(part: Values, path: str) -> None:
    path = f"{path}.file"
    file = _object(_required(part, "file", path.rpartition(".")[0]), path)
    if file.get("file_id") is not None:
        raise _invalid(f"{path}.file_id", "there are no uploaded files here yet; send the content as 'file_data'")
    check_data_url(_text(_required(file, "file_data", path), f"{path}.file_data"), "application/", f"{path}.file_data")


PARTS: Mapping[str, Callable[[Values, str], None]] = {
    "text": _check_text,
    "refusal": _check_refusal,
    "image_url": _check_image,
    "input_audio": _check_audio,
    "video_url": _check_video,
    "file": _check_file,
}


def _check_tool_calls(value: object, path: str) -> None:
    for index, item in enumerate(_array(value, path)):
        at = f"{path}[{index}]"
        call = _object(item, at)
        _text(_required(call, "id", at), f"{at}.id")
        if call.get("type", "function") == "function":
            function = _object(_required(call, "function", at), f"{at}.function")
            _text(_required(function, "name", f"{at}.function"), f"{at}.function.name", most=MAX_NAME)
            arguments = _required(function, "arguments", f"{at}.function")
            if type(arguments) is not str:
                raise _wrong_type(f"{at}.function.arguments", "a string of JSON", arguments)


def _check_tools(values: Values) -> None:
    if (tools := values.get("tools")) is not None:
        if not (tools := _array(tools, "tools")):
            raise InvalidRequestError("Invalid 'tools': empty array.", "tools", "empty_array")
        if len(tools) > MAX_TOOLS:
            raise _invalid("tools", f"at most {MAX_TOOLS} tools")
        for index, item in enumerate(tools):
            path = f"tools[{index}]"
            tool = _object(item, path)
            if _text(_required(tool, "type", path), f"{path}.type") == "function":
                function = _object(_required(tool, "function", path), f"{path}.function")
                _text(_required(function, "name", f"{path}.function"), f"{path}.function.name", most=MAX_NAME)
                if function.get("parameters") is not None:
                    _object(function["parameters"], f"{path}.function.parameters")
    choice = values.get("tool_choice")
    if choice is not None and type(choice) is not dict:
        _choice(choice, "tool_choice", ("none", "auto", "required"))
    if choice not in (None, "none") and tools is None:
        raise _invalid("tool_choice", "it needs 'tools'")


def _check_sampling(values: Values) -> None:
    _number(values, "temperature", 0, 2)
    _number(values, "top_p", 0, 1)
    _number(values, "presence_penalty", -2, 2)
    _number(values, "frequency_penalty", -2, 2)
    _integer(values, "seed", -(2**63), 2**63 - 1)
    _integer(values, "top_logprobs", 0, 20)
    _flag(values, "logprobs")
    _flag(values, "parallel_tool_calls")
    if (bias := values.get("logit_bias")) is not None:
        for weight in _object(bias, "logit_bias").values():
            if type(weight) not in (int, float):
                raise _wrong_type("logit_bias", "an object of numbers", weight)
    if (stop := values.get("stop")) is not None and type(stop) is not str:
        stops = _array(stop, "stop")
        if len(stops) > MAX_STOPS or any(type(text) is not str for text in stops):
            raise _invalid("stop", f"expected a string or an array of at most {MAX_STOPS} strings")
    if (wanted := values.get("response_format")) is not None:
        shape = _object(wanted, "response_format")
        kind = _choice(_required(shape, "type", "response_format"), "response_format.type", FORMATS)
        if kind == "json_schema":
            _object(_required(shape, "json_schema", "response_format"), "response_format.json_schema")


def _max_tokens(values: Values) -> int | None:
    older = _integer(values, "max_tokens", 1, MAX_TOKENS)
    newer = _integer(values, "max_completion_tokens", 1, MAX_TOKENS)
    return older if newer is None else newer


def _include_usage(values: Values, *, stream: bool) -> bool:
    if (options := values.get("stream_options")) is None:
        return False
    if not stream:
        raise _invalid("stream_options", 'only allowed together with "stream": true')
    options = _object(options, "stream_options")
    return _flag(options, "include_usage", "stream_options")


def _job_class(values: Values) -> JobClass:
    tier = values.get("service_tier")
    return JobClass.STANDARD if tier is None else CLASSES[_choice(tier, "service_tier", CLASSES)]


def _metadata(values: Values) -> dict[str, str]:
    if (given := values.get("metadata")) is None:
        return {}
    pairs = _object(given, "metadata")
    if len(pairs) > METADATA_PAIRS:
        raise _invalid("metadata", f"at most {METADATA_PAIRS} pairs, but got {len(pairs)}")
    metadata = {}
    for key, value in pairs.items():
        if len(key) > METADATA_KEY:
            raise _invalid("metadata", f"a key has at most {METADATA_KEY} characters")
        if type(value) is not str:
            raise _wrong_type("metadata", "an object of strings", value)
        if len(value) > METADATA_VALUE:
            raise _invalid("metadata", f"a value has at most {METADATA_VALUE} characters")
        metadata[key] = value
    return metadata


def _wishes(values: Values) -> Wishes:
    if (given := values.get("pointsman")) is None:
        return Wishes()
    wishes = _object(given, "pointsman")
    for key in wishes:
        if key == "webhook_url":
            raise _invalid("pointsman.webhook_url", "webhooks are not there yet; poll the job or long-poll it")
        if key not in ("deadline_s", "result_ttl_s", "max_usd"):
            shown = "".join(c if c.isalnum() or c in "_-." else "?" for c in key[:MAX_NAME])
            raise InvalidRequestError(
                f"Unknown parameter: 'pointsman.{shown}'. Known: deadline_s, result_ttl_s, max_usd.",
                f"pointsman.{shown}",
                "unknown_parameter",
            )
    return Wishes(
        deadline_s=_number(wishes, "deadline_s", 1, MAX_SECONDS, "pointsman"),
        result_ttl_s=_number(wishes, "result_ttl_s", 1, MAX_SECONDS, "pointsman"),
        max_usd=_dollars(wishes.get("max_usd")),
    )


def _dollars(value: object) -> Decimal | None:
    path = "pointsman.max_usd"
    if value is None:
        return None
    if type(value) not in (int, float, str):
        raise _wrong_type(path, "a decimal string or a number", value)
    try:
        usd = Decimal(str(value)[:40])
    except InvalidOperation:
        raise _invalid(path, 'expected dollars as a decimal string, such as "0.05"') from None
    if not (usd.is_finite() and 0 < usd <= MAX_USD and usd == round(usd, 12)):
        raise _invalid(path, f"expected more than 0 and at most {MAX_USD} dollars, with at most 12 decimals")
    return usd


# What follows reads one value. `path` is how OpenAI would name it.


def _required(values: Values, name: str, inside: str = "") -> object:
    if (value := values.get(name)) is None:
        raise _missing(_join(inside, name))
    return value


def _object(value: object, path: str) -> dict[str, object]:
    if type(value) is not dict:
        raise _wrong_type(path, "an object", value)
    return value


def _array(value: object, path: str) -> list[object]:
    if type(value) is not list:
        raise _wrong_type(path, "an array", value)
    return value


def _text(value: object, path: str, *, most: int | None = None) -> str:
    if type(value) is not str:
        raise _wrong_type(path, "a string", value)
    if not value:
        raise _invalid(path, "it is empty")
    if most is not None and len(value) > most:
        raise _invalid(path, f"at most {most} characters")
    return value


def _choice(value: object, path: str, known: Iterable[str]) -> str:
    if type(value) is not str:
        raise _wrong_type(path, "a string", value)
    if value not in known:
        raise _unknown_value(path, known)
    return value


def _flag(values: Values, name: str, inside: str = "") -> bool:
    value = values.get(name)
    if value is None:
        return False
    if type(value) is not bool:
        raise _wrong_type(_join(inside, name), "a boolean", value)
    return value


def _integer(values: Values, name: str, least: int, most: int) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise _wrong_type(name, "an integer", value)
    _check_range(value, name, least, most, "integer")
    return value


def _number(values: Values, name: str, least: float, most: float, inside: str = "") -> float | None:
    value = values.get(name)
    if value is None:
        return None
    if type(value) is not int and type(value) is not float:
        raise _wrong_type(_join(inside, name), "a number", value)
    _check_range(value, _join(inside, name), least, most, "decimal")
    return value


def _check_range(value: float, path: str, least: float, most: float, kind: str) -> None:
    if value < least:
        raise InvalidRequestError(
            f"Invalid '{path}': {kind} below minimum value. Expected a value >= {least}, but got {value} instead.",
            path,
            f"{kind}_below_min_value",
        )
    if value > most:
        raise InvalidRequestError(
            f"Invalid '{path}': {kind} above maximum value. Expected a value <= {most}, but got {value} instead.",
            path,
            f"{kind}_above_max_value",
        )


def _join(inside: str, name: str) -> str:
    return f"{inside}.{name}" if inside else name


_TYPES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
}


def _missing(path: str) -> InvalidRequestError:
    return InvalidRequestError(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def _wrong_type(path: str, expected: str, value: object) -> InvalidRequestError:
    got = _TYPES.get(type(value), "null")
    return InvalidRequestError(
        f"Invalid type for '{path}': expected {expected}, but got {got} instead.", path, "invalid_type"
    )


def _unknown_value(path: str, known: Iterable[str]) -> InvalidRequestError:
    values = ", ".join(f"'{name}'" for name in known)
    return InvalidRequestError(f"Invalid value for '{path}'. Supported values are: {values}.", path, "invalid_value")


def _invalid(path: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid '{path}': {why}.", path, "invalid_value")
