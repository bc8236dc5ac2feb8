"""A DOUBLE of Bedrock's runtime on moto: Converse and ConverseStream in front of any OpenAI-compatible server.

InvokeModel has the shapes of Titan's embeddings and Nova Canvas' pictures (user guide, model parameters), no models.

| what | as the service does it (source) |
|---|---|
| a member that is not in botocore's model of the request, or of another type; a required one that is missing | \
`ValidationException` (botocore's service model) |
| messages that do not begin with the user, or do not alternate | `ValidationException` (user guide) |
| admission | requests and tokens a minute; input + `max_tokens` are taken as a call begins, and settled to \
input + output x burndown as it ends (user guide, quotas); without `max_tokens` the model's own maximum |
| a tier | the one that `served` says, else the one that was asked for; `default` else (API reference) |
| a stream | event-stream frames as the model's pieces come; usage and tier only in the last one (API reference) |
| errors inside a stream | as exception frames (API reference) |
| a guardrail that is named in the call and finds something in the input | its own words, `guardrail_intervened`; the \
model is not called, and no tokens of it are counted (user guide) |
| a call without a signature | `MissingAuthenticationTokenException`, 403 (unverified; it is not checked) |

It has no model of its own: where the server behind it cannot be reached the call ends with
`ServiceUnavailableException`, whose message says so. That server is told the kind of an image or a document, no more.

Tests set a model with `POST /double/bedrock/model`: `{"model": ID, "upstream": URL}` and any of

| knob | what it makes happen |
|---|---|
| `served` | the tier that serves, whatever was asked for |
| `guarded` | the guardrail of a call stops an input with this word in it |
| `stop` | a stop reason in place of the model's |
| `cached`, `written_1h` | so many tokens were read from the cache; were written to it for an hour |
| `error`, `error_message` | every call is refused with that code; `errors` of them only, where that is given |
| `retry_after` | the header of a refusal |
| `stream_error` | after half of the pieces, an exception of that name in the stream |
| `rpm`, `tpm`, `burndown`, `burst_s`, `most_output` | its quota |
| `service_s` | how long a call takes beyond the model's own time |

A model whose id is `err.CODE` refuses every call so. `/double/bedrock/record` gives every call: model, request,
outcome, when it began and ended; the newest 20,000. `/double/bedrock/fresh` forgets them and fills the buckets.
"""

import itertools
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any

from botocore.model import Shape
from botocore.session import Session
from moto.core.serialize import EventStreamEncoder  # type: ignore[attr-defined]

from tests.doubles.aws.shapes import faults

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PATH = re.compile(r"^/model/(.+)/(converse|converse-stream|invoke)$")
SERVICE = Session().get_service_model("bedrock-runtime")
ENCODER = EventStreamEncoder()
RECORDS = 20_000
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
GUARDED = "Sorry, the guardrail does not let this through."
LONGEST_KEPT = 2000  # characters of one text
SERVER_S = 600.0
CHARACTERS_PER_TOKEN = 4
STATUS = {
    shape.name: shape.metadata["error"]["httpStatusCode"]
    for shape in (SERVICE.shape_for(name) for name in SERVICE.shape_names)
    if "httpStatusCode" in shape.metadata.get("error", {})
}
OF_SERVER = {
    400: "ValidationException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}
STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "content_filtered"}


@dataclass(slots=True)
class Knobs:
    """What a test wants of one model."""

    model: str
    upstream: str = ""
    served: str = ""
    guarded: str = ""
    stop: str = ""
    cached: int = 0
    written_1h: int = 0
    error: str = ""
    error_message: str = "the double was told to"
    errors: int | None = None
    retry_after: str = ""
    stream_error: str = ""
    rpm: float | None = None
    tpm: float | None = None
    burndown: float = 1.0
    burst_s: float = 60.0
    most_output: int = 64_000
    service_s: float = 0.0


@dataclass(slots=True)
class Bucket:
    """Holds `burst` at most and gains `rate` a second."""

    rate: float
    burst: float
    level: float
    at: float

    @classmethod
    def full(cls, per_minute: float, burst_s: float) -> "Bucket":
        """With `burst_s` seconds' worth."""
        rate = per_minute / 60
        return cls(rate, rate * burst_s, rate * burst_s, time.monotonic())

    def has(self, amount: float) -> bool:
        """Whether it holds as much now."""
        now = time.monotonic()
        self.level = min(self.burst, self.level + (now - self.at) * self.rate)
        self.at = now
        return self.level >= min(amount, self.burst)


@dataclass(slots=True)
class Call:
    """One call. `outcome` is open, answered, aborted (the client hung up), broken or a code."""

    model: str
    request: Mapping[str, Any]
    began: float
    ended: float = 0.0
    outcome: str = "open"
    input: int = 0
    output: int = 0


@dataclass(slots=True)
class Model:
    """Its knobs and what is left of its quota."""

    knobs: Knobs
    requests: Bucket | None = None
    tokens: Bucket | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fill(self) -> None:
        """Its buckets are as full as they can be."""
        knobs = self.knobs
        self.requests = Bucket.full(knobs.rpm, knobs.burst_s) if knobs.rpm else None
        self.tokens = Bucket.full(knobs.tpm, knobs.burst_s) if knobs.tpm else None


class Refused(Exception):
    """The service's error."""

    def __init__(self, code: str, message: str, retry_after: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.headers = [("retry-after", retry_after)] if retry_after else []


class Bedrock:
    """All models. Its methods come from the server's threads."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}
        self._calls: deque[Call] = deque(maxlen=RECORDS)

    def control(self, path: str, given: Any) -> object:
        """What a test sets or asks. Raises KeyError for an address that there is not."""
        match path:
            case "model":
                known = self._models.get(given["model"])
                before = asdict(known.knobs) if known else {}
                model = Model(Knobs(**{**before, **given}))
                model.fill()
                self._models[model.knobs.model] = model
                return {}
            case "record":
                return [asdict(call) for call in list(self._calls) if not given or call.model == given["model"]]
            case "fresh":
                self._calls.clear()
                for model in self._models.values():
                    model.fill()
                return {}
        raise KeyError(path)

    def takes(self, environ: "WSGIEnvironment") -> bool:
        """Whether this is a call of one of the two operations."""
        return environ["REQUEST_METHOD"] == "POST" and PATH.match(environ["PATH_INFO"]) is not None

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        found = PATH.match(urllib.parse.unquote(environ["PATH_INFO"]))
        assert found is not None
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        call = Call(found[1], {}, time.time())
        self._calls.append(call)
        try:
            if "AWS4-HMAC-SHA256" not in environ.get("HTTP_AUTHORIZATION", ""):
                raise Refused("MissingAuthenticationTokenException", "Missing Authentication Token")
            asked = json.loads(body) if found[2] == "invoke" else _parsed(body)
            call.request = _shortened(asked)
            if found[2] == "invoke":
                told = _bedrock_headers(environ)
                call.request = {**call.request, "headers": told}
                answer = self._invoked(call, asked)
                call.outcome, call.ended = "answered", time.time()
                tier = self.allowed(call.model).knobs.served or told.get("service-tier", "default")
                served = ("x-amzn-bedrock-service-tier", tier)
                start_response("200 OK", [("content-type", "application/json"), served])
                return [json.dumps(answer).encode()]
            pieces = self._answer(call, asked)
            if found[2] == "converse-stream":
                first = next(pieces)  # what is refused is refused before any frame
                headers = [("content-type", "application/vnd.amazon.eventstream")]
                start_response("200 OK", headers)
                return _frames(call, first, pieces)
            answer = _whole(list(pieces))
            call.outcome, call.ended = "answered", time.time()
            start_response("200 OK", [("content-type", "application/json")])
            return [json.dumps(_checked(answer, SERVICE.operation_model("Converse").output_shape)).encode()]
        except Refused as refused:
            call.outcome, call.ended = refused.code, time.time()
            status = STATUS.get(refused.code, 403)
            text = json.dumps({"message": str(refused)}).encode()
            start_response(
                f"{status} {refused.code}",
                [
                    ("content-type", "application/json"),
                    ("x-amzn-errortype", f"{refused.code}:http://internal.amazon.com/"),
                    *refused.headers,
                ],
            )
            return [text]

    def _invoked(self, call: Call, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Titan's embeddings, and Nova Canvas' pictures: without a model behind, by the length of what is asked."""
        knobs = self.allowed(call.model).knobs
        if "inputText" in asked:
            text = asked["inputText"]
            vector = [len(text) / 1000] * asked.get("dimensions", 1024)
            return {"embedding": vector, "inputTextTokenCount": ceil(len(text) / CHARACTERS_PER_TOKEN)}
        if "textToImageParams" in asked:
            return {"images": [PIXEL] * asked.get("imageGenerationConfig", {}).get("numberOfImages", 1)}
        raise Refused("ValidationException", f"the double has no such call for {knobs.model}")

    def _answer(self, call: Call, asked: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The events of a stream: name and value."""
        model = self.allowed(call.model)
        most = asked.get("inferenceConfig", {}).get("maxTokens", model.knobs.most_output)
        call.input = ceil(sum(map(_letters, asked["messages"])) / CHARACTERS_PER_TOKEN)
        _admit(model, call.input + most)
        if model.knobs.guarded and "guardrailConfig" in asked and model.knobs.guarded in json.dumps(asked["messages"]):
            return _guarded(model, call, asked, most)
        return _converse(model, call, asked, most)

    def allowed(self, name: str) -> Model:
        """The model of that name, unless its calls are refused."""
        if name.startswith("err."):
            raise Refused(name.removeprefix("err."), "the double was told to")
        model = self._models.get(name)
        if model is None:
            raise Refused("ResourceNotFoundException", f"the double has no model {name}: POST /double/bedrock/model")
        knobs = model.knobs
        with model.lock:
            if knobs.error and knobs.errors != 0:
                if knobs.errors is not None:
                    knobs.errors -= 1
                raise Refused(knobs.error, knobs.error_message, knobs.retry_after)
        return model


def _bedrock_headers(environ: "WSGIEnvironment") -> dict[str, str]:
    """Those of InvokeModel that are signed, without what all of their names begin with."""
    signed = environ.get("HTTP_AUTHORIZATION", "").partition("SignedHeaders=")[2].partition(",")[0].split(";")
    names = [name for name in signed if name.startswith("x-amzn-bedrock-")]
    return {name.removeprefix("x-amzn-bedrock-"): environ[f"HTTP_{name.upper().replace('-', '_')}"] for name in names}


def _admit(model: Model, tokens: int) -> None:
    with model.lock:
        if model.requests is not None and not model.requests.has(1):
            raise Refused("ThrottlingException", "Too many requests, please wait before trying again.")
        if model.tokens is not None and not model.tokens.has(tokens):
            raise Refused("ThrottlingException", "Too many tokens, please wait before trying again.")
        if model.requests is not None:
            model.requests.level -= 1
        if model.tokens is not None:
            model.tokens.level -= tokens


def _converse(model: Model, call: Call, asked: Mapping[str, Any], most: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Ask the server behind. It is left when nobody takes the pieces any more."""
    knobs, began = model.knobs, time.time()
    text, told, stop = 0, None, "end_turn"
    tools: dict[int, int] = {}
    opened: int | None = None
    time.sleep(knobs.service_s)
    server = _sent(knobs, _openai(asked, most), asked.get("requestMetadata", {}))
    try:
        yield "messageStart", {"role": "assistant"}
        for chunk in _chunks(server):
            told = chunk.get("usage") or told
            for choice in chunk.get("choices", []):
                delta = choice.get("delta") or {}
                if delta.get("reasoning_content"):
                    yield (
                        "contentBlockDelta",
                        {
                            "contentBlockIndex": 0,
                            "delta": {"reasoningContent": {"text": delta["reasoning_content"]}},
                        },
                    )
                if delta.get("content"):
                    text += 1
                    yield "contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": delta["content"]}}
                    if knobs.stream_error and text == 2:
                        raise Refused(knobs.stream_error, knobs.error_message)
                for part in delta.get("tool_calls") or []:
                    index = part.get("index", 0)
                    if index not in tools:
                        if opened is not None:
                            yield "contentBlockStop", {"contentBlockIndex": opened}
                        tools[index] = opened = len(tools) + 1
                        use = {"toolUseId": part.get("id") or f"tool_{index}", "name": part["function"]["name"]}
                        yield "contentBlockStart", {"contentBlockIndex": opened, "start": {"toolUse": use}}
                    if arguments := part["function"].get("arguments"):
                        yield (
                            "contentBlockDelta",
                            {
                                "contentBlockIndex": tools[index],
                                "delta": {"toolUse": {"input": arguments}},
                            },
                        )
                if choice.get("finish_reason"):
                    stop = STOPS.get(choice["finish_reason"], "end_turn")
    finally:
        server.close()
    if told is None:
        raise ConnectionError("the server behind the double broke off")
    yield "contentBlockStop", {"contentBlockIndex": 0 if opened is None else opened}
    yield "messageStop", {"stopReason": knobs.stop or stop}
    yield "metadata", _metadata(model, call, asked, told, began, most)


def _guarded(model: Model, call: Call, asked: Mapping[str, Any], most: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "messageStart", {"role": "assistant"}
    yield "contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": GUARDED}}
    yield "contentBlockStop", {"contentBlockIndex": 0}
    yield "messageStop", {"stopReason": "guardrail_intervened"}
    yield "metadata", _metadata(model, call, asked, {"prompt_tokens": 0, "completion_tokens": 0}, time.time(), most)


def _metadata(
    model: Model, call: Call, asked: Mapping[str, Any], told: Mapping[str, Any], began: float, most: int
) -> dict[str, Any]:
    knobs = model.knobs
    prompt, output = told["prompt_tokens"], told["completion_tokens"]
    cached = knobs.cached or (told.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    usage: dict[str, Any] = {
        "inputTokens": prompt - cached if not knobs.cached else prompt,
        "outputTokens": output,
        "cacheReadInputTokens": cached,
        "cacheWriteInputTokens": knobs.written_1h,
    }
    if knobs.written_1h:
        usage["cacheDetails"] = [{"ttl": "1h", "inputTokens": knobs.written_1h}]
    usage["totalTokens"] = sum(usage[name] for name in ("inputTokens", "outputTokens", "cacheReadInputTokens"))
    call.output = output
    if model.tokens is not None:
        with model.lock:
            model.tokens.level += most - output * knobs.burndown
    tier = knobs.served or asked.get("serviceTier", {}).get("type", "default")
    latency = asked.get("performanceConfig", {}).get("latency", "standard")
    return {
        "usage": usage,
        "metrics": {"latencyMs": int((time.time() - began) * 1000)},
        "serviceTier": {"type": tier},
        "performanceConfig": {"latency": latency},
    }


def _frames(
    call: Call, first: tuple[str, dict[str, Any]], rest: Iterator[tuple[str, dict[str, Any]]]
) -> Iterator[bytes]:
    stream = SERVICE.operation_model("ConverseStream").output_shape.members["stream"]
    try:
        yield _frame(stream, *first)
        for name, value in rest:
            yield _frame(stream, name, value)
        call.outcome = "answered"
    except Refused as refused:
        call.outcome = refused.code
        name = refused.code[0].lower() + refused.code[1:]
        headers = {":message-type": "exception", ":exception-type": name, ":content-type": "application/json"}
        yield ENCODER.encode_message(headers, json.dumps({"message": str(refused)}).encode())
    except GeneratorExit:
        call.outcome = "aborted"
        raise
    except ConnectionError:
        call.outcome = "broken"  # the stream ends where it is, as a connection does
    finally:
        rest.close()  # type: ignore[attr-defined]
        call.ended = time.time()


def _frame(stream: Shape, name: str, value: dict[str, Any]) -> bytes:
    checked = _checked(value, stream.members[name])
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return ENCODER.encode_message(headers, json.dumps(checked).encode())


def _checked(value: dict[str, Any], shape: Shape | None) -> dict[str, Any]:
    """What is sent parses under botocore's output shape. A test must not pass on members that nobody would see."""
    found = faults(value, shape)
    assert not found, found
    return value


def _whole(events: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    parts = [value["delta"].get("text", "") for name, value in events if name == "contentBlockDelta"]
    told = dict(events)
    return {
        "output": {"message": {"role": "assistant", "content": [{"text": "".join(parts)}]}},
        "stopReason": told["messageStop"]["stopReason"],
        **told["metadata"],
    }


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        asked: dict[str, Any] = json.loads(body)
    except ValueError as error:
        raise Refused("ValidationException", "the body is not JSON") from error
    shape = SERVICE.operation_model("Converse").input_shape
    found = faults({**asked, "modelId": "m"}, shape)
    if found:
        raise Refused("ValidationException", "; ".join(found[:5]))
    roles = [message["role"] for message in asked.get("messages", [])]
    if not roles or roles[0] != "user" or any(one == other for one, other in itertools.pairwise(roles)):
        raise Refused("ValidationException", "A conversation must start with a user message and alternate")
    return asked


def _shortened(value: Any) -> Any:
    """For the record: what is long is told by its length."""
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    return f"{len(value)} characters" if isinstance(value, str) and len(value) > LONGEST_KEPT else value


def _letters(message: Mapping[str, Any]) -> int:
    """How much text it has."""
    return sum(len(block.get("text", "")) for block in message["content"])


def _openai(asked: Mapping[str, Any], most: int) -> dict[str, Any]:
    """The same request for the server behind."""
    messages: list[dict[str, Any]] = []
    system = "\n".join(block["text"] for block in asked.get("system", []) if "text" in block)
    if system:
        messages.append({"role": "system", "content": system})
    for message in asked["messages"]:
        messages.extend(_messages(message))
    config = asked.get("inferenceConfig", {})
    body: dict[str, Any] = {
        "model": "double",
        "messages": messages,
        "max_tokens": most,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for ours, theirs in (("temperature", "temperature"), ("topP", "top_p"), ("stopSequences", "stop")):
        if ours in config:
            body[theirs] = config[ours]
    tools = [tool["toolSpec"] for tool in asked.get("toolConfig", {}).get("tools", []) if "toolSpec" in tool]
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description", ""),
                    "parameters": tool["inputSchema"]["json"],
                },
            }
            for tool in tools
        ]
    return body


def _messages(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message["content"]:
        if "text" in block:
            texts.append(block["text"])
        elif "toolUse" in block:
            use = block["toolUse"]
            function = {"name": use["name"], "arguments": json.dumps(use["input"])}
            calls.append({"id": use["toolUseId"], "type": "function", "function": function})
        elif "toolResult" in block:
            result = block["toolResult"]
            text = "".join(part.get("text", json.dumps(part.get("json"))) for part in result["content"])
            yield {"role": "tool", "tool_call_id": result["toolUseId"], "content": text}
        for kind in ("image", "document", "video"):
            if kind in block:
                texts.append(f"[{kind} {block[kind]['format']}]")
    if texts or calls:
        yield {"role": message["role"], "content": "\n".join(texts), **({"tool_calls": calls} if calls else {})}


def _sent(knobs: Knobs, body: Mapping[str, Any], metadata: Mapping[str, str]) -> Any:
    """The answer of the server behind, as it comes. Raises `Refused` in Bedrock's words."""
    url = f"{knobs.upstream.removesuffix('/v1')}/v1/chat/completions"
    id_ = ".".join(metadata.get(f"pointsman_{name}", "") for name in ("job", "attempt"))
    headers = {"content-type": "application/json", "x-request-id": id_}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        return urllib.request.urlopen(request, timeout=SERVER_S)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        code = OF_SERVER.get(error.code, "InternalServerException")
        if "context_length_exceeded" in text or "exceed_context_size" in text:
            raise Refused("ValidationException", "Input is too long for requested model.") from error
        if "content_filter" in text:
            raise Refused("ValidationException", "Output blocked by content filtering policy") from error
        raise Refused(code, f"the server behind the double: {text[:300]}") from error
    except (OSError, ValueError) as error:
        message = f"DOUBLE: no server at {knobs.upstream!r}: {error}"
        print(message, flush=True)
        raise Refused("ServiceUnavailableException", message) from error


def _chunks(server: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in server:
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]":
            yield json.loads(data)
