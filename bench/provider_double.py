"""A simulated provider, a process of its own: limits in its own clock, 429s, and a record of every call it saw.

    python -m bench.provider_double [--rpm 600 --tpm 500000 --burst-s 10] [--service-ms 0]

It prints `provider listening on http://127.0.0.1:PORT` and ends when its standard input does. Without limits it
refuses nothing. A call takes `prompt_tokens + max_tokens` from the bucket of tokens as it begins and gives back what
it did not use as it ends, as providers do; a refused one takes nothing and is told when to come again.

The last user message steers a call with words at its beginning: `ms=25` to take that long, `out=40` to answer with so
many tokens, `n=17` to be known by a number of the caller's.

- `POST /v1/chat/completions`: streams, or answers whole to who does not ask for a stream
- `GET /record`: every call; `GET /counts`: how many, without the calls
- `POST /fresh`: forgets all calls and fills the buckets
"""

import argparse
import asyncio
import json
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from math import ceil
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from tools.kafka.broker import HOST

ROOT = Path(__file__).resolve().parents[1]
START_S = 30.0
ASK_S = 30.0
CHARACTERS_PER_TOKEN = 4
OUTPUT_TOKENS = 8
DEFAULT_MAX_TOKENS = 256
LARGEST_BODY = 16 * 1024 * 1024


@dataclass(slots=True)
class Bucket:
    """Holds `burst` at most and gains `rate` a second, by the clock of whoever calls."""

    rate: float
    burst: float
    level: float
    at: float

    @classmethod
    def full(cls, per_minute: float, burst_s: float, now: float) -> "Bucket":
        """With `burst_s` seconds' worth."""
        rate = per_minute / 60
        return cls(rate, rate * burst_s, rate * burst_s, now)

    def wait(self, amount: float, now: float) -> float:
        """Seconds until it holds that much; 0 when it does."""
        self.level = min(self.burst, self.level + (now - self.at) * self.rate)
        self.at = now
        return max(0.0, (min(amount, self.burst) - self.level) / self.rate)


@dataclass(slots=True)
class Call:
    """One call. Moments are seconds since the epoch; `state` is open, answered, refused or aborted (caller gone)."""

    request: str
    number: str
    started: float
    prompt: int
    ended: float | None = None
    state: str = "open"
    output: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a call asks for, in seconds and tokens."""

    number: str
    service_s: float
    prompt: int
    output: int
    most: int
    stream: bool

    @classmethod
    def of(cls, body: Mapping[str, Any], service_s: float) -> "Wish":
        """Counts tokens as a tokeniser would, about."""
        text = str(body["messages"][-1]["content"])
        said = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, text.split()))
        most = int(body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_MAX_TOKENS)
        characters = sum(len(str(message.get("content") or "")) for message in body["messages"])
        return cls(
            number=said.get("n", ""),
            service_s=int(said["ms"]) / 1000 if "ms" in said else service_s,
            prompt=ceil(characters / CHARACTERS_PER_TOKEN),
            output=min(int(said.get("out", OUTPUT_TOKENS)), most),
            most=most,
            stream=bool(body.get("stream")),
        )


class Provider:
    """The endpoints and what they remember."""

    def __init__(self, rpm: float | None, tpm: float | None, *, burst_s: float, service_s: float) -> None:
        self._limits = (rpm, tpm, burst_s)
        self._service_s = service_s
        self._forget()

    def app(self) -> web.Application:
        """As aiohttp serves it."""
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/record", self.record)
        app.router.add_get("/counts", self.counts)
        app.router.add_post("/fresh", self.fresh)
        return app

    async def models(self, _: web.Request) -> web.Response:
        """Takes any name."""
        return web.json_response({"object": "list", "data": [{"id": "any", "object": "model", "owned_by": "llamacpp"}]})

    async def record(self, _: web.Request) -> web.Response:
        """Every call since the last `fresh`."""
        return web.json_response([asdict(call) for call in self._calls])

    async def counts(self, _: web.Request) -> web.Response:
        """How many calls are in each state, and when the first and the last began."""
        states = {state: 0 for state in ("open", "answered", "aborted", "refused")}
        for call in self._calls:
            states[call.state] += 1
        return web.json_response(states)

    async def fresh(self, _: web.Request) -> web.Response:
        """From the beginning."""
        self._forget()
        return web.json_response({})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        body = json.loads(await request.read())
        wish = Wish.of(body, self._service_s)
        call = Call(request.headers.get("x-request-id", ""), wish.number, time.time(), wish.prompt)
        self._calls.append(call)
        if (wait := self._admit(wish)) > 0:
            call.state, call.ended = "refused", time.time()
            return _refusal(wait)
        call.output = wish.output
        try:
            response = await (_streamed(request, wish) if wish.stream else _whole(wish))
        except (asyncio.CancelledError, ConnectionError):
            call.state, call.ended = "aborted", time.time()
            raise
        call.state, call.ended = "answered", time.time()
        if self._tokens is not None:
            self._tokens.level += wish.most - wish.output
        return response

    def _admit(self, wish: Wish) -> float:
        """Take from both buckets or from none; the seconds to wait."""
        now = time.monotonic()
        wanted = ((self._requests, 1.0), (self._tokens, float(wish.prompt + wish.most)))
        wait = max((bucket.wait(amount, now) for bucket, amount in wanted if bucket is not None), default=0.0)
        if wait == 0:
            for bucket, amount in wanted:
                if bucket is not None:
                    bucket.level -= amount
        return wait

    def _forget(self) -> None:
        rpm, tpm, burst_s = self._limits
        now = time.monotonic()
        self._calls: list[Call] = []
        self._requests = Bucket.full(rpm, burst_s, now) if rpm else None
        self._tokens = Bucket.full(tpm, burst_s, now) if tpm else None


@dataclass(frozen=True, slots=True)
class Running:
    """A provider that runs; `url` is without `/v1`. Its methods block for a moment."""

    url: str

    def record(self) -> list[Call]:
        """Every call so far."""
        return [Call(**values) for values in self._ask("/record")]

    def counts(self) -> dict[str, int]:
        """Calls by state."""
        return dict(self._ask("/counts"))

    def fresh(self) -> None:
        """Forget, and fill the buckets."""
        self._ask("/fresh", b"")

    def _ask(self, path: str, data: bytes | None = None) -> Any:
        with urllib.request.urlopen(self.url + path, data, timeout=ASK_S) as answer:
            return json.load(answer)


@contextmanager
def provider(*arguments: str) -> Iterator[Running]:
    """One of its own, ended with the block; it also ends when this process dies."""
    command = [sys.executable, "-m", "bench.provider_double", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdin is not None
        try:
            readable, _, _ = select.select([server.stdout], [], [], START_S)
            line = server.stdout.readline().strip() if readable else ""
            if not line:
                raise RuntimeError(f"the provider did not start within {START_S:.0f} s")
            yield Running(line.split()[-1])
        finally:
            server.stdin.close()
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()


def _refusal(wait_s: float) -> web.Response:
    error = {"message": "Rate limit reached.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
    headers = {"retry-after": str(ceil(wait_s)), "retry-after-ms": str(ceil(wait_s * 1000))}
    return web.json_response({"error": error}, status=429, headers=headers)


async def _whole(wish: Wish) -> web.Response:
    await asyncio.sleep(wish.service_s)
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": _words(wish)}}
    return web.json_response({**_head("chat.completion"), "choices": [choice], "usage": _usage(wish)})


async def _streamed(request: web.Request, wish: Wish) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    if wish.service_s:
        await response.write(_chunk({"role": "assistant", "content": ""}))
        await asyncio.sleep(wish.service_s)
    last = _chunk({}, finish_reason="stop") + _event({**_chunk_head(), "choices": [], "usage": _usage(wish)})
    await response.write(_chunk({"role": "assistant", "content": _words(wish)}) + last + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _words(wish: Wish) -> str:
    return f"number {wish.number} " + "word " * max(0, wish.output - 2)


def _usage(wish: Wish) -> dict[str, int]:
    total = wish.prompt + wish.output
    return {"prompt_tokens": wish.prompt, "completion_tokens": wish.output, "total_tokens": total}


def _head(kind: str) -> dict[str, object]:
    return {"id": "chatcmpl-provider", "object": kind, "created": 1796000000, "model": "any"}


def _chunk_head() -> dict[str, object]:
    return _head("chat.completion.chunk")


def _chunk(delta: Mapping[str, object], finish_reason: str | None = None) -> bytes:
    return _event({**_chunk_head(), "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _event(chunk: Mapping[str, object]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def _serve(given: argparse.Namespace) -> None:
    limited = Provider(given.rpm, given.tpm, burst_s=given.burst_s, service_s=given.service_ms / 1000)
    runner = web.AppRunner(limited.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, given.port, backlog=4096).start()
    print(f"provider listening on http://{HOST}:{runner.addresses[0][1]}", flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    await runner.cleanup()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m bench.provider_double")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one")
    parser.add_argument("--rpm", type=float, help="requests a minute; none is no limit")
    parser.add_argument("--tpm", type=float, help="tokens a minute; none is no limit")
    parser.add_argument("--burst-s", type=float, default=10.0, help="a full bucket holds that many seconds' worth")
    parser.add_argument("--service-ms", type=float, default=0.0, help="how long a call takes that does not say so")
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
