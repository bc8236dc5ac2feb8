"""A DOUBLE of an OpenAI-compatible server: no model, but every way in which one can answer or fail.

    python -m tests.doubles.openai_double --port 0

prints `double listening on http://127.0.0.1:PORT` and ends when its standard input does. It answers at once with
the last user message, word by word, and never with more words than `max_tokens`. Behaviours are named in the model
(`delay-200+cut`) or at the start of the last user message (`double:cut Hello`), joined by `+`:

| behaviour | what it does |
|---|---|
| any other word | nothing special |
| `delay-N` | waits N ms before the first byte |
| `pace-N` | waits N ms before each word |
| `words-N` | answers with N words of its own |
| `slow` | `pace-100` and `words-100` |
| `mute` | accepts the call and never answers |
| `stall` | the first word, then nothing more |
| `comments` | comments for ever, and no word |
| `error-N` | status N with OpenAI's error body; `context-N` the same in llama.cpp's shape |
| `once-N` | status N on the first call for each job (with `retry-after-ms: 50`, or `retry-after-S`), then an answer |
| `once-reset` | hangs up before any byte on the first call for each job, then answers |
| `long`, `filtered` | status 400 as OpenAI has it for a prompt over the window, and for its content filter |
| `no-prefill` | status 400 for a conversation that ends with the assistant's message |
| `retry-after-S` | adds `retry-after: S` to an error; `retry-date` an HTTP date a minute ahead |
| `reset` | hangs up before any byte |
| `stale` | hangs up before any byte, on a connection that was used before |
| `cut` | half the words, then the connection breaks; `cut-N` after N words |
| `hold-S` | 20 words, S seconds of silence, then the rest |
| `cut-clean` | half the words, then a proper end without finish reason or `[DONE]` |
| `no-done`, `no-finish`, `no-usage` | leaves that out |
| `linger` | all but `[DONE]`, and does not hang up |
| `broken` | a malformed event in the middle; `broken-N` as the N-th |
| `event-error-N` | half the words, then an error event with code N |
| `error-first-N` | an error event with code N before any word |
| `huge` | words for ever; `huge-event` one event for ever |
| `whole` | ignores `stream` and answers with one JSON object |
| `html` | status 200 with a page |
| `tools`, `reasoning` | answers with a tool call in pieces; thinks first |
| `cached-N` | N tokens of the prompt were cached |
| `moved` | redirects to another path |

Embeddings, images, speech and transcription are those of `media_double`.

Calls are counted by their `x-request-id` (`JOB.ATTEMPT`): `GET /_double/calls[?job=ID]`, see `Ledger.view`.
`GET /_double/last` is the last call's body and headers. After `POST /_double/heal?model=NAME` that model does well:
only `words-N` and `pace-N` still hold. `GET /health` and `GET /v1/models` answer as those of
llama.cpp, which takes any model; for the key `strict` as a server that does not, and `wrong` is refused.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from typing import Any

from aiohttp import web

from tests.doubles import media_double

LONGEST_WAIT = 600.0  # seconds; nothing here waits for ever
KEPT = 20_000  # calls whose details are remembered
LARGEST_BODY = 64 * 1024 * 1024
JSON_TYPES = (str, int, float, bool, list, dict, type(None))


@dataclass(slots=True)
class Call:
    """One call. Moments are seconds since the epoch; `state` is open, answered or aborted (the client hung up)."""

    request: str
    job: str
    model: str
    started: float
    ended: float | None = None
    state: str = "open"


@dataclass(slots=True)
class Ledger:
    """Every call that came."""

    calls: deque[Call] = field(default_factory=lambda: deque(maxlen=KEPT))
    by_job: Counter[str] = field(default_factory=Counter)
    by_request: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    last: dict[str, object] = field(default_factory=dict)

    def start(self, request: str, model: str) -> Call:
        call = Call(request, request.rpartition(".")[0] or request, model, time.time())
        self.calls.append(call)
        self.by_job[call.job] += 1
        self.by_request[request] += 1
        self.states["open"] += 1
        return call

    def end(self, call: Call, state: str) -> None:
        call.state, call.ended = state, time.time()
        self.states["open"] -= 1
        self.states[state] += 1

    def view(self, job: str | None) -> dict[str, object]:
        """`total`, `open`, `answered`, `aborted`, calls by job and by request id, and the newest 1,000 in detail."""
        chosen = [call for call in self.calls if job is None or call.job == job]
        return {
            "total": self.by_job.total() if job is None else self.by_job[job],
            "open": self.states["open"] if job is None else sum(c.state == "open" for c in chosen),
            "answered": self.states["answered"] if job is None else sum(c.state == "answered" for c in chosen),
            "aborted": self.states["aborted"] if job is None else sum(c.state == "aborted" for c in chosen),
            "by_job": {j: n for j, n in self.by_job.items() if job is None or j == job},
            "by_request": dict(self.by_request) if job is None else dict(Counter(c.request for c in chosen)),
            "calls": [asdict(call) for call in chosen[-1000:]],
        }


class Behaviours:
    """The behaviours that a call asks for."""

    def __init__(self, model: str, text: str) -> None:
        directive = text.removeprefix("double:").split(" ", 1)[0] if text.startswith("double:") else ""
        self._names = {*model.split("+"), *directive.split("+")}
        if "slow" in self._names:
            self._names |= {"pace-100", "words-100"}

    def __and__(self, names: set[str]) -> set[str]:
        return self._names & names

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def healed(self) -> "Behaviours":
        """How much is answered and how fast, and no fault."""
        return Behaviours("+".join(name for name in self._names if name.startswith(("words-", "pace-"))), "")

    def number(self, name: str) -> int | None:
        """The N of `name-N`."""
        for given in self._names:
            head, _, number = given.rpartition("-")
            if head == name and number.isdecimal():
                return int(number)
        return None


Answering = Callable[[web.Request, dict[str, Any], Call], Awaitable[web.StreamResponse]]


class Double:
    """The server's endpoints."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._connections: deque[object] = deque(maxlen=1000)
        self._healed: set[str] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/embeddings", self.embeddings)
        app.router.add_post("/v1/images/generations", self.images)
        app.router.add_post("/v1/audio/speech", self.speech)
        app.router.add_post("/v1/audio/transcriptions", self.transcription)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/_double/calls", self.calls)
        app.router.add_get("/_double/last", self.last)
        app.router.add_post("/_double/heal", self.heal)
        return app

    async def models(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") == "Bearer wrong":
            return _error(401, "Incorrect API key provided: wrong", code="invalid_api_key")
        owner = "strict" if request.headers.get("authorization") == "Bearer strict" else "llamacpp"
        return web.json_response({"object": "list", "data": [{"id": "instant", "object": "model", "owned_by": owner}]})

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def calls(self, request: web.Request) -> web.Response:
        return web.json_response(self.ledger.view(request.query.get("job")))

    async def last(self, request: web.Request) -> web.Response:
        return web.json_response(self.ledger.last)

    async def heal(self, request: web.Request) -> web.Response:
        self._healed.add(request.query["model"])
        return web.Response()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._counted(request, await request.json(), self._answer)

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        return await self._counted(request, await request.json(), self._whole(media_double.embeddings))

    async def images(self, request: web.Request) -> web.StreamResponse:
        return await self._counted(request, await request.json(), self._whole(media_double.images))

    async def speech(self, request: web.Request) -> web.StreamResponse:
        return await self._counted(request, await request.json(), self._whole(media_double.speech))

    async def transcription(self, request: web.Request) -> web.StreamResponse:
        return await self._counted(request, dict(await request.post()), self._whole(media_double.transcription))

    def _whole(self, answer: Callable[[dict[str, Any], "Behaviours"], web.Response]) -> Answering:
        async def answering(request: web.Request, body: dict[str, Any], call: Call) -> web.StreamResponse:
            asked = Behaviours(str(body.get("model")), media_double.text_of(body))
            return await self._misbehave(request, body, asked, call) or answer(body, asked)

        return answering

    async def _counted(self, request: web.Request, body: dict[str, Any], answer: Answering) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        shown = {name: value if isinstance(value, JSON_TYPES) else "a file" for name, value in body.items()}
        self.ledger.last = {"body": shown, "headers": headers}
        if request.transport is not None:
            self._connections.append(request.transport.get_extra_info("peername"))
        call = self.ledger.start(headers.get("x-request-id", ""), str(body.get("model")))
        try:
            response = await answer(request, body, call)
        except (asyncio.CancelledError, ConnectionError):
            self.ledger.end(call, "aborted")
            raise
        self.ledger.end(call, "answered")
        return response

    async def _answer(self, request: web.Request, body: dict[str, object], call: Call) -> web.StreamResponse:
        text = _last_user_text(body)
        asked = Behaviours(str(body.get("model")), text)
        if body.get("model") in self._healed:
            asked = asked.healed()
        if (misbehaved := await self._misbehave(request, body, asked, call)) is not None:
            return misbehaved
        chunks = list(_chunks(body, asked, text))
        if "whole" in asked or not body.get("stream"):
            return web.json_response(_whole(chunks, str(body.get("model"))))
        return await _stream(request, asked, chunks)

    async def _misbehave(
        self, request: web.Request, body: dict[str, object], asked: Behaviours, call: Call
    ) -> web.Response | None:
        if (delay := asked.number("delay")) is not None:
            await asyncio.sleep(delay / 1000)
        if "mute" in asked:
            await asyncio.sleep(LONGEST_WAIT)
        if "reset" in asked or ("stale" in asked and self._was_used(request)):
            return _hang_up(request)
        if "once-reset" in asked and self.ledger.by_job[call.job] == 1:
            return _hang_up(request)
        if "no-prefill" in asked and _ends_with_assistant(body):
            return _error(400, "the last message must not be the assistant's", code="invalid_request_error")
        return self._refusal(asked, call)

    def _was_used(self, request: web.Request) -> bool:
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        return list(self._connections).count(peer) > 1

    def _refusal(self, asked: Behaviours, call: Call) -> web.Response | None:
        headers = {}
        if (seconds := asked.number("retry-after")) is not None:
            headers["retry-after"] = str(seconds)
        if "retry-date" in asked:
            headers["retry-after"] = formatdate(time.time() + 60, usegmt=True)
        if (status := asked.number("once")) is not None and self.ledger.by_job[call.job] == 1:
            return _error(status, "only the first time", headers=headers or {"retry-after-ms": "50"})
        if (status := asked.number("error")) is not None:
            return _error(status, "as asked", param="messages", headers=headers)
        if (status := asked.number("context")) is not None:
            error = {"code": status, "message": "the request exceeds the context", "type": "exceed_context_size_error"}
            return web.json_response({"error": error}, status=status)
        if "long" in asked:
            return _error(400, "This model's maximum context length is 8 tokens.", code="context_length_exceeded")
        if "filtered" in asked:
            return _error(400, "The prompt was filtered: hate, high.", code="content_filter", param="prompt")
        if "html" in asked:
            return web.Response(text="<h1>Welcome</h1>", content_type="text/html")
        if "moved" in asked:
            return web.Response(status=307, headers={"location": "/v1/elsewhere"})
        return None


def _last_user_text(body: dict[str, object]) -> str:
    messages = body.get("messages")
    for message in reversed(messages if isinstance(messages, list) else []):
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            return content
    return ""


def _ends_with_assistant(body: dict[str, object]) -> bool:
    messages = body.get("messages")
    return isinstance(messages, list) and bool(messages) and messages[-1].get("role") == "assistant"


def _chunks(body: dict[str, object], asked: Behaviours, text: str) -> Iterator[dict[str, object]]:
    """The chunks of a whole answer, the one with the usage last."""
    most = body.get("max_completion_tokens") or body.get("max_tokens") or 1000
    length = asked.number("words")
    words = (text.split() if length is None else [f"w{i}" for i in range(length)])[
        : most if isinstance(most, int) else 0
    ]
    counted = 0
    n = body.get("n")
    for index in range(n if isinstance(n, int) else 1):
        yield _chunk(index, {"role": "assistant", "content": ""})
        for delta in _deltas(words, asked):
            counted += 1
            logprobs = {"content": [{"token": "t", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
            yield _chunk(index, delta, **({"logprobs": logprobs} if body.get("logprobs") else {}))
        if "no-finish" not in asked:
            yield _chunk(index, {}, finish_reason="tool_calls" if "tools" in asked else "stop")
    if "no-usage" not in asked:
        usage: dict[str, object] = {
            "prompt_tokens": max(1, len(text.split())),
            "completion_tokens": counted,
            "total_tokens": counted + max(1, len(text.split())),
        }
        if (cached := asked.number("cached")) is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        yield {**_chunk(0, {}), "choices": [], "usage": usage}


def _deltas(words: list[str], asked: Behaviours) -> Iterator[dict[str, object]]:
    if "reasoning" in asked:
        yield {"reasoning_content": "Hm. "}
    if "tools" in asked:
        yield {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "look"}}]}
        for piece in ('{"at"', ': "it"}'):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        return
    for i, word in enumerate(words):
        yield {"content": word if i == 0 else f" {word}"}


def _chunk(index: int, delta: dict[str, object], **more: object) -> dict[str, object]:
    choice = {"index": index, "delta": delta, "finish_reason": None, **more}
    return {
        "id": "chatcmpl-double",
        "object": "chat.completion.chunk",
        "created": 1796000000,
        "model": "double",
        "choices": [choice],
    }


def _whole(chunks: list[dict[str, object]], model: str) -> dict[str, object]:
    """One choice, of text: enough for a client that asks without a stream."""
    pieces = [choice for chunk in chunks for choice in chunk["choices"]]  # type: ignore[attr-defined]
    content = "".join(piece["delta"].get("content") or "" for piece in pieces)
    message = {"role": "assistant", "content": content}
    usage = {"usage": chunks[-1]["usage"]} if "usage" in chunks[-1] else {}
    return {
        "id": "chatcmpl-double",
        "object": "chat.completion",
        "created": 1796000000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        **usage,
    }


async def _stream(request: web.Request, asked: Behaviours, chunks: list[dict[str, object]]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    ready = bytearray()
    for step in _steps(asked, chunks):
        if isinstance(step, bytes):
            ready += step
            continue
        await response.write(bytes(ready))
        ready.clear()
        await asyncio.sleep(step)
    await response.write(bytes(ready))
    if "cut" in asked or asked.number("cut") is not None:
        return _hang_up(request)
    await response.write_eof()
    return response


def _steps(asked: Behaviours, chunks: list[dict[str, object]]) -> Iterator[bytes | float]:
    """What to write, and after it how many seconds to wait."""
    if (code := asked.number("error-first")) is not None:
        yield _error_event(code)
        return
    yield from _endless(asked)
    code = asked.number("event-error")
    half = len(chunks) // 2
    stop = 2 if "stall" in asked else half if code is not None or asked & {"cut", "cut-clean"} else None
    if (words := asked.number("cut")) is not None:
        stop = 1 + words
    bad = half if "broken" in asked else (asked.number("broken") or 0) - 1
    pace, hold = asked.number("pace"), asked.number("hold")
    for i, chunk in enumerate(chunks[:stop]):
        if pace is not None:
            yield pace / 1000
        if hold is not None and i == 21:
            yield hold
        if i == bad:
            yield b'data: {"choices": [{"delta": {"con\n\n'
        yield _event(chunk)
    if code is not None:
        yield _error_event(code)
    if asked & {"stall", "linger"}:
        yield LONGEST_WAIT
    if stop is None and "no-done" not in asked:
        yield b"data: [DONE]\n\n"


def _endless(asked: Behaviours) -> Iterator[bytes | float]:
    """Streams that end when the client hangs up; a client that does not is not served for ever."""
    if "comments" in asked:
        for _ in range(10_000):
            yield b": wait\n\n"
            yield 0.02
    if "huge-event" in asked:
        yield b"data: "
    if asked & {"huge", "huge-event"}:
        for _ in range(10_000):
            yield b"x" * 65536 if "huge-event" in asked else _event(_chunk(0, {"content": "x" * 65536}))
            yield 0


def _event(chunk: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _error_event(code: int) -> bytes:
    return _event({"error": {"message": "as asked", "type": "double_error", "param": None, "code": code}})


def _error(
    status: int,
    message: str,
    *,
    code: str = "double_error",
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    error = {"message": message, "type": "double_error", "param": param, "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.close()
    return web.Response()


async def serve(port: int) -> None:
    """Serve until standard input ends."""
    runner = web.AppRunner(Double().app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=2048)
    await site.start()
    print(f"double listening on http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    await runner.cleanup()


def main() -> None:
    options = argparse.ArgumentParser(description="An OpenAI-compatible double on 127.0.0.1.")
    options.add_argument("--port", type=int, default=0, help="0 takes any free port")
    asyncio.run(serve(options.parse_args().port))


if __name__ == "__main__":
    main()
