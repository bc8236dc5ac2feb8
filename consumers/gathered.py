"""A whole `chat.completion` out of the chunks of its stream: no I/O, and nothing believed that was not checked."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from policies.pricing import Basis, Usage

Object = dict[str, object]

# Made once: making an encoder takes longer than encoding a chunk.
PLAIN = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
ESCAPED = json.JSONEncoder(separators=(",", ":"))
JOINED = frozenset({"content", "refusal", "reasoning_content", "reasoning"})  # texts that come in pieces
LARGEST_COUNT = 10**9  # of tokens in one call; more is a broken server
LONGEST_TOKEN = 24  # characters; a longer piece holds several tokens, at about four characters each


class MalformedChunkError(ValueError):
    """This is no chunk. Nothing of it was taken."""


def compact(value: object) -> bytes:
    """JSON without spaces. A half of a character that a backend cut in two stays readable: it is escaped."""
    try:
        return PLAIN.encode(value).encode()
    except UnicodeEncodeError:
        return ESCAPED.encode(value).encode()


@dataclass(slots=True)
class _Function:
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def add(self, piece: Object) -> int:
        """Tell how many tokens the piece counts for."""
        name, arguments = piece.get("name"), piece.get("arguments")
        if isinstance(name, str) and not self.name:  # some servers repeat it in every piece
            self.name = name
        if isinstance(arguments, dict):  # some servers send an object where OpenAI sends its text
            arguments = json.dumps(arguments)
        if isinstance(arguments, str) and arguments:
            self.arguments.append(arguments)
            return _tokens(arguments)
        return 1 if name else 0

    def whole(self) -> Object:
        return {"name": self.name, "arguments": "".join(self.arguments)}


@dataclass(slots=True)
class _ToolCall:
    id: str = ""
    type: str = "function"
    function: _Function = field(default_factory=_Function)

    def add(self, piece: Object) -> int:
        """Tell how many tokens the piece counts for."""
        call_id, kind, function = piece.get("id"), piece.get("type"), piece.get("function")
        if isinstance(call_id, str) and not self.id:
            self.id = call_id
        if isinstance(kind, str):
            self.type = kind
        return self.function.add(function) if isinstance(function, dict) else 0

    def whole(self) -> Object:
        return {"id": self.id, "type": self.type, "function": self.function.whole()}


@dataclass(slots=True)
class _Choice:
    texts: dict[str, list[str]] = field(default_factory=dict)
    tools: dict[int, _ToolCall] = field(default_factory=dict)
    function: _Function | None = None
    others: Object = field(default_factory=dict)  # of the message
    beside: Object = field(default_factory=dict)  # of the choice, next to the message
    logprobs: dict[str, list[object]] = field(default_factory=dict)
    finish_reason: str | None = None


class Gathered:
    """What has come of one answer.

    `choices` is how many the client asked for; `input_estimate` stands in, in tokens, for a usage that
    the backend does not report; `created` is a moment, for a backend that names none.
    """

    def __init__(self, job_id: str, model: str, *, choices: int, input_estimate: int, created: int) -> None:
        self.is_done = False  # the backend said [DONE]
        self.has_usage = False  # it reported what all of the answer used
        self._id = f"chatcmpl-{job_id}"
        self._model = model
        self._wanted = choices
        self._input_estimate = input_estimate
        self._created = created
        self._has_created = False
        self._fingerprint: str | None = None
        self._choices: dict[int, _Choice] = {}
        self._named: set[int] = set()  # the choices whose first chunk was passed on
        self._finished = 0
        self._counted = 0
        self._reported: Object | None = None

    @property
    def has_begun(self) -> bool:
        """Whether any output came, or an end without output."""
        return self._counted > 0 or self._finished > 0

    @property
    def is_finished(self) -> bool:
        """Whether every choice that was asked for has its finish reason."""
        return self._finished >= self._wanted

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole answer: all choices are finished, or the backend said that it is done."""
        return self.is_finished or (self.is_done and bool(self._choices))

    @property
    def usage(self) -> Usage:
        """What the backend reported last, else our count of what came, marked estimated."""
        return reported(self._reported, self._counted) or Usage(
            input=self._input_estimate, output=self._counted, basis=Basis.ESTIMATED
        )

    def add(self, chunk: Object) -> bool:
        """Take a chunk whole; tell whether it has something for the client. Raises `MalformedChunkError`."""
        pieces = [_checked(choice) for choice in _dicts(chunk.get("choices") or [])]
        for index, choice, delta in pieces:
            self._take(self._choices.setdefault(index, _Choice()), choice, delta)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._reported = usage
            self.has_usage = self.is_finished  # some report it with each chunk, so far
        created, fingerprint = chunk.get("created"), chunk.get("system_fingerprint")
        if not self._has_created and isinstance(created, int) and created > 0:
            self._created, self._has_created = created, True
        if isinstance(fingerprint, str):
            self._fingerprint = fingerprint
        return bool(pieces)

    def count(self, output: int) -> None:
        """The backend has counted its output, in tokens, and nothing else."""
        self._counted = output

    def passed_on(self, chunk: Object, *, with_usage: bool) -> bytes:
        """The chunk as the client gets it, under our names. Where usage is wanted it comes last, in one of its own.

        The first one of each choice says whose words they are: OpenAI's helpers for Node refuse a stream without.
        """
        ours = {"id": self._id, "object": "chat.completion.chunk", "created": self._created, "model": self._model}
        rest = {key: value for key, value in chunk.items() if key not in ours and key != "usage"}
        if len(self._named) < len(self._choices):
            rest["choices"] = [self._with_role(choice) for choice in _dicts(chunk.get("choices") or [])]
        return compact({**ours, **rest, "usage": None} if with_usage else {**ours, **rest})

    def _with_role(self, choice: Object) -> Object:
        index, _, delta = _checked(choice)
        if index in self._named:
            return choice
        self._named.add(index)
        return choice if delta.get("role") else {**choice, "delta": {**delta, "role": "assistant"}}

    def usage_chunk(self) -> bytes:
        """The chunk after the last one, for a client that asked for `include_usage`."""
        return compact(
            {
                "id": self._id,
                "object": "chat.completion.chunk",
                "created": self._created,
                "model": self._model,
                "choices": [],
                "usage": self._usage_object(),
            }
        )

    def completion(self) -> bytes:
        """The whole answer as a `chat.completion`."""
        whole: Object = {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [_whole(index, self._choices[index]) for index in sorted(self._choices)],
            "usage": self._usage_object(),
        }
        if self._fingerprint is not None:
            whole["system_fingerprint"] = self._fingerprint
        return compact(whole)

    def _take(self, into: _Choice, choice: Object, delta: Object) -> None:
        for key, value in delta.items():
            if value is None or key == "role":
                continue
            if key in JOINED:
                into.texts.setdefault(key, []).append(str(value))
                self._counted += _tokens(str(value))
            elif key == "tool_calls":
                for call in _dicts(value):
                    self._counted += into.tools.setdefault(_slot(into.tools, call), _ToolCall()).add(call)
            elif key == "function_call" and isinstance(value, dict):
                into.function = into.function or _Function()
                self._counted += into.function.add(value)
            else:
                into.others[key] = value
        for key, value in choice.items():
            if value is None or key in ("index", "delta"):
                continue
            if key == "logprobs" and isinstance(value, dict):
                for name, entries in value.items():
                    into.logprobs.setdefault(name, []).extend(entries if isinstance(entries, list) else [])
            elif key == "finish_reason":
                self._finished += into.finish_reason is None
                into.finish_reason = str(value)
            else:
                into.beside[key] = value

    def _usage_object(self) -> Object:
        usage = self.usage
        prompt = usage.input + usage.cache_read
        whole: Object = {
            "prompt_tokens": prompt,
            "completion_tokens": usage.output,
            "total_tokens": prompt + usage.output,
            "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        }
        details = (self._reported or {}).get("completion_tokens_details")
        if usage.basis is Basis.METERED and isinstance(details, dict):
            whole["completion_tokens_details"] = details
        return whole


def reported(usage: Mapping[str, object] | None, counted: int) -> Usage | None:
    """OpenAI's usage in our terms: cached tokens are not input. None where it cannot be true.

    `counted` is how many tokens of output we saw: a server that reports none of them reports nothing.
    """
    if usage is None:
        return None
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    if not is_count(prompt) or not is_count(output) or (counted and not output):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    cached = min(cached, prompt) if is_count(cached) else 0
    return Usage(input=prompt - cached, cache_read=cached, output=output)


def as_chunk(completion: Object) -> Object:
    """A whole `chat.completion`, from a server that does not stream, as the one chunk of a stream.

    Raises `MalformedChunkError`.
    """
    choices = []
    for choice in _dicts(completion.get("choices")):
        message = choice.get("message")
        if not isinstance(message, dict):
            raise MalformedChunkError("a choice without a message")
        delta = dict(message)
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(_dicts(delta["tool_calls"]))]
        rest = {key: value for key, value in choice.items() if key != "message"}
        choices.append({"finish_reason": "stop", **rest, "delta": delta})
    if not choices:
        raise MalformedChunkError("an answer without choices")
    return {**completion, "choices": choices}


def _dicts(value: object) -> list[Object]:
    if not isinstance(value, list):
        raise MalformedChunkError("not a list")
    for item in value:
        if not isinstance(item, dict):
            raise MalformedChunkError("not a list of objects")
    return value


def _checked(choice: Object) -> tuple[int, Object, Object]:
    """The choice's index, itself and its delta, when every part that is read later has its right type."""
    index, delta, finish = choice.get("index", 0), choice.get("delta"), choice.get("finish_reason")
    delta = {} if delta is None else delta
    if not is_count(index) or not isinstance(delta, dict) or not (finish is None or isinstance(finish, str)):
        raise MalformedChunkError("a choice with parts of the wrong type")
    for key, value in delta.items():
        if key in JOINED and not (value is None or isinstance(value, str)):
            raise MalformedChunkError("a text that is no text")
    for call in _dicts(delta.get("tool_calls") or []):
        if not isinstance(call.get("function"), dict | None):
            raise MalformedChunkError("a tool call without a function")
    return index, choice, delta


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def _tokens(text: str) -> int:
    if len(text) <= LONGEST_TOKEN:
        return 1 if text else 0
    return len(text) // 4


def _slot(calls: dict[int, _ToolCall], piece: Object) -> int:
    """Which call a piece belongs to: by its index, else a new id begins a new call."""
    index, last = piece.get("index"), max(calls, default=0)
    if is_count(index):
        return index
    is_new = bool(piece.get("id")) and last in calls and calls[last].id not in ("", piece["id"])
    return last + 1 if is_new else last


def _whole(index: int, choice: _Choice) -> Object:
    message: Object = {"role": "assistant", "content": None, "refusal": None, **choice.others}
    message.update({key: "".join(pieces) for key, pieces in choice.texts.items()})
    if choice.tools:
        message["tool_calls"] = [choice.tools[slot].whole() for slot in sorted(choice.tools)]
    if choice.function:
        message["function_call"] = choice.function.whole()
    if not message["content"]:
        says_something_else = choice.tools or choice.function or message["refusal"]
        message["content"] = None if says_something_else else ""
    message["refusal"] = message["refusal"] or None
    return {
        **choice.beside,
        "index": index,
        "message": message,
        "logprobs": choice.logprobs or None,
        "finish_reason": choice.finish_reason or "stop",
    }
