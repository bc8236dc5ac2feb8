"""A DOUBLE of an inference engine: no model, but vLLM's metrics, its queue, its prefix cache, and its ways to fail.

    python -m bench.engine_double --port 0 --slots 8

prints `engine listening on http://127.0.0.1:PORT` and ends when its standard input does. A prompt has a token for
every four characters. What of its beginning was seen before (in blocks of 16 tokens) is not computed again. Prompts
are computed one after the other, `--prefill` tokens a second; up to `--slots` answers come side by side, `--decode`
tokens a second each; what is more waits in the engine, without a bound. An answer has `max_tokens` words.

`POST /_double/mode` with `{"mode": ...}` changes what it does from then on:

| mode | what it does |
|---|---|
| `well` | nothing special |
| `loading` | `/health` and every call answer 503, as while a model loads |
| `liar` | `/health` and the metrics are well, every call fails with 500 |
| `full` | every call gets 429 with `retry-after: 1` |
| `mute` | takes calls and never answers |
| `busy` | the metrics say that two requests wait |
| `fresh` | as `well`, with an empty cache and empty books |

`POST /_double/books` begins new books and keeps the cache. `GET /_double/calls` says how many calls came, were
answered, failed and were broken off, the most that ran at once, the largest number that waited, for how long all of
them held slots, and what was found in the cache.
"""

import argparse
import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from hashlib import blake2b

import uvloop
from aiohttp import web

HOST = "127.0.0.1"
CHARACTERS = 4  # of a token
BLOCK = 16  # tokens
LONGEST_S = 600.0
PIECES = 4  # in which an answer comes, after its first word
LARGEST_BODY = 8 * 1024 * 1024


@dataclass(slots=True)
class Calls:
    """What came to it."""

    total: int = 0
    answered: int = 0
    failed: int = 0
    aborted: int = 0
    most_running: int = 0
    most_waiting: int = 0
    held_s: float = 0.0  # that they have held slots until now, all together


class Engine:
    """A server with one model that is none. Rates are tokens a second.

    `kv` is blocks of all that runs, `cache` blocks of prompts that it keeps.
    """

    def __init__(self, *, slots: int, prefill: float, decode: float, kv: int, cache: int) -> None:
        self.mode = "well"
        self.calls = Calls()
        self._slots = asyncio.Semaphore(slots)
        self._prefilled = 0.0  # when the last prompt will be computed
        self._prefill, self._decode, self._kv, self._most_blocks = prefill, decode, kv, cache
        self._blocks: OrderedDict[bytes, None] = OrderedDict()
        self._running = self._waiting = self._kv_tokens = 0
        self._hits = self._queries = self._generated = 0
        self._counted_at = 0.0

    def app(self) -> web.Application:
        """Its endpoints."""
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/_double/mode", self.change)
        app.router.add_post("/_double/books", self.books)
        app.router.add_get("/_double/calls", self.seen)
        return app

    async def health(self, request: web.Request) -> web.Response:
        """503 while it loads."""
        return _loading() if self.mode == "loading" else web.json_response({"status": "ok"})

    async def models(self, request: web.Request) -> web.Response:
        """Any."""
        return web.json_response({"object": "list", "data": [{"id": "any", "object": "model", "owned_by": "llamacpp"}]})

    async def metrics(self, request: web.Request) -> web.Response:
        """Those of vLLM that matter here."""
        return web.Response(text=self.metrics_text())

    def metrics_text(self) -> str:
        """As vLLM writes them."""
        label = '{model_name="any"}'
        values = {
            "num_requests_running": self._running,
            "num_requests_waiting": 2 if self.mode == "busy" else self._waiting,
            "kv_cache_usage_perc": min(1.0, self._kv_tokens / (self._kv * BLOCK)),
            "prefix_cache_hits_total": self._hits,
            "prefix_cache_queries_total": self._queries,
            "generation_tokens_total": self._generated,
        }
        lines = [f"vllm:{name}{label} {float(value)}" for name, value in values.items()]
        lines.append(f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="{self._kv}"}} 1.0')
        return "\n".join(lines) + "\n"

    async def change(self, request: web.Request) -> web.Response:
        """Another mode from now on."""
        self.mode = (await request.json())["mode"]
        if self.mode == "fresh":
            self.mode = "well"
            self._blocks.clear()
            self.begin_books()
        return web.json_response({"mode": self.mode})

    async def books(self, request: web.Request) -> web.Response:
        """New ones."""
        self.begin_books()
        return web.json_response({})

    async def seen(self, request: web.Request) -> web.Response:
        """The books."""
        self.count()
        more = {"prefix_hits": self._hits, "prefix_queries": self._queries}
        return web.json_response({**asdict(self.calls), **more})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """A stream of words."""
        body = json.loads(await request.read())
        self.calls.total += 1
        if (refusal := self._refusal()) is not None:
            self.calls.failed += 1
            return refusal
        try:
            if self.mode == "mute":
                await asyncio.sleep(LONGEST_S)
            response = await self._answered(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.calls.aborted += 1
            raise
        self.calls.answered += 1
        return response

    @property
    def is_busy(self) -> bool:
        """Whether it answers anybody."""
        return bool(self._running or self._waiting)

    def begin_books(self) -> None:
        """What came until now does not count."""
        self.count()
        self.calls = Calls()
        self._hits = self._queries = 0

    def count(self) -> None:
        """Bring the seconds of slots up to now."""
        now = _now()
        self.calls.held_s += self._running * (now - self._counted_at)
        self._counted_at = now

    def _refusal(self) -> web.Response | None:
        match self.mode:
            case "loading":
                return _loading()
            case "liar":
                return web.json_response({"error": {"message": "CUDA error", "type": "server_error"}}, status=500)
            case "full":
                error = {"message": "Model is overloaded", "type": "overloaded"}
                return web.json_response({"error": error}, status=429, headers={"retry-after": "1"})
        return None

    async def _answered(self, request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        prompt, most = _text(body), body.get("max_tokens")
        tokens, output = _tokens(prompt), most if isinstance(most, int) else 16
        async with aclosing(self.answer(prompt, output)) as pieces:
            cached = await anext(pieces)
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            async for words in pieces:
                await response.write(_event({"choices": [_choice({"content": "word " * words})]}))
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": output,
            "total_tokens": tokens + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        last = _event({"choices": [_choice({}, "stop")]}) + _event({"choices": [], "usage": usage})
        await response.write(last + b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def answer(self, prompt: str, output: int) -> AsyncGenerator[int]:
        """Once it has a slot, the tokens of its prompt that are in the cache; then how many words come, as they do.

        Each piece at its moment, so that an engine is no slower where this process has to wait for a processor.
        """
        tokens = _tokens(prompt)
        self._waiting += 1
        self.calls.most_waiting = max(self.calls.most_waiting, self._waiting - self._free)
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        self.count()
        self._running += 1
        self._kv_tokens += tokens + output
        self.calls.most_running = max(self.calls.most_running, self._running)
        try:
            cached = self._cached(prompt)
            since = self._prefilled = max(_now(), self._prefilled) + (tokens - cached) / self._prefill
            yield cached
            done = 0
            for until in sorted({1, *(output * piece // PIECES for piece in range(1, PIECES + 1))} - {0}):
                words, done = until - done, until
                await asyncio.sleep(max(0.0, since + done / self._decode - _now()))
                self._generated += words
                yield words
        finally:
            self.count()
            self._running -= 1
            self._kv_tokens -= tokens + output
            self._slots.release()

    @property
    def _free(self) -> int:
        return self._slots._value

    def _cached(self, prompt: str) -> int:
        """Tokens of its beginning that need not be computed; those that had to be are kept now."""
        size, known, hit = BLOCK * CHARACTERS, True, 0
        digest = b""
        for start in range(0, len(prompt) - size + 1, size):
            digest = blake2b(digest + prompt[start : start + size].encode(), digest_size=8).digest()
            known = known and digest in self._blocks
            hit += BLOCK * known
            self._blocks[digest] = None
            self._blocks.move_to_end(digest)
        while len(self._blocks) > self._most_blocks:
            self._blocks.popitem(last=False)
        self._queries += _tokens(prompt)
        self._hits += hit
        return hit


def _now() -> float:
    return asyncio.get_running_loop().time()


def _tokens(prompt: str) -> int:
    return max(1, len(prompt) // CHARACTERS)


def _text(body: dict[str, object]) -> str:
    messages = body.get("messages")
    return "\n".join(str(each.get("content")) for each in messages) if isinstance(messages, list) else ""


def _choice(delta: dict[str, object], finish_reason: str | None = None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def _event(chunk: dict[str, object]) -> bytes:
    head = {"id": "chatcmpl-engine", "object": "chat.completion.chunk", "created": 1796000000, "model": "any"}
    return b"data: " + json.dumps({**head, **chunk}).encode() + b"\n\n"


def _loading() -> web.Response:
    error = {"message": "Loading model", "type": "unavailable_error", "code": 503}
    return web.json_response({"error": error}, status=503)


async def _serve(given: argparse.Namespace) -> None:
    engine = Engine(slots=given.slots, prefill=given.prefill, decode=given.decode, kv=given.kv, cache=given.cache)
    engine.mode = given.mode
    runner = web.AppRunner(engine.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, given.port, backlog=1024).start()
    print(f"engine listening on http://{HOST}:{runner.addresses[0][1]}", flush=True)
    if given.load_s:
        engine.mode = "loading"
        await asyncio.sleep(given.load_s)
        engine.mode = given.mode
    await asyncio.to_thread(sys.stdin.buffer.read)
    await runner.cleanup()


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine_double")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one")
    parser.add_argument("--slots", type=int, default=8, help="answers side by side")
    parser.add_argument("--prefill", type=float, default=4000.0, help="tokens of prompts a second")
    parser.add_argument("--decode", type=float, default=100.0, help="tokens of each answer a second")
    parser.add_argument("--kv", type=int, default=4000, help="blocks of all that runs")
    parser.add_argument("--cache", type=int, default=4000, help="blocks of prompts that are kept")
    parser.add_argument("--load-s", type=float, default=0.0, help="how long it loads at first")
    parser.add_argument("--mode", default="well")
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
