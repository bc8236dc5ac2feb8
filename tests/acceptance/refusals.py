"""Clients that keep the errors that a gateway gives them, so that they can be looked through when a test ends."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai


@dataclass(frozen=True, slots=True)
class Refused:
    """What was asked, with which API key, and the body of the 4xx or 5xx that came back, or an error in a stream."""

    asked: str
    key: str
    told: str


@dataclass(slots=True)
class Refusals:
    """All that the clients that were made here have met with."""

    all: list[Refused] = field(default_factory=list)
    _clients: list[openai.OpenAI] = field(default_factory=list)

    def sdk(self, url: str, key: str, **options: Any) -> openai.OpenAI:
        """The official SDK; closed by `close`."""
        http = openai.DefaultHttpxClient(event_hooks={"response": [self._note]})
        self._clients.append(openai.OpenAI(base_url=f"{url}/v1", api_key=key, http_client=http, **options))
        return self._clients[-1]

    def async_sdk(
        self, url: str, key: str, *, also: Callable[[httpx2.Response], Awaitable[None]] | None = None, **options: Any
    ) -> openai.AsyncOpenAI:
        """The same for a loop, closed by its own block; `also` gets each answer as it came."""
        notes = [self._note_async] if also is None else [also, self._note_async]
        http = openai.DefaultAsyncHttpxClient(event_hooks={"response": notes})
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, http_client=http, **options)

    def http(self, url: str, **options: Any) -> httpx2.AsyncClient:
        """A plain client."""
        return httpx2.AsyncClient(base_url=url, event_hooks={"response": [self._note_async]}, **options)

    def close(self) -> None:
        """Close what no block closes."""
        for each in self._clients:
            each.close()

    def _note(self, response: httpx2.Response) -> None:
        if response.status_code >= 400:
            response.read()
            self._keep(response, response.text)
        else:
            self._overhear(response)

    async def _note_async(self, response: httpx2.Response) -> None:
        if response.status_code >= 400:
            await response.aread()
            self._keep(response, response.text)
        else:
            self._overhear(response)

    def _overhear(self, response: httpx2.Response) -> None:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Overheard(response.stream, lambda error: self._keep(response, error))

    def _keep(self, response: httpx2.Response, told: str) -> None:
        asked = ""
        with suppress(httpx2.RequestNotRead):  # a file that was sent
            asked = response.request.content.decode("utf-8", "replace")
        key = response.request.headers.get("authorization", "").removeprefix("Bearer ")
        self.all.append(Refused(asked, key, told))


@dataclass(slots=True)
class _Overheard(httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """Server-sent events on their way to a client; the errors among them are kept once it closes the stream."""

    stream: Any
    keep: Callable[[str], None]
    _heard: bytearray = field(default_factory=bytearray)

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.stream:
            self._heard += piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self.stream:
            self._heard += piece
            yield piece

    def close(self) -> None:
        self.stream.close()
        self._look_through()

    async def aclose(self) -> None:
        await self.stream.aclose()
        self._look_through()

    def _look_through(self) -> None:
        for line in self._heard.decode("utf-8", "replace").splitlines():
            with suppress(ValueError):  # no JSON, or half of it
                for error in _errors(json.loads(line.removeprefix("data: "))):
                    self.keep(json.dumps(error, ensure_ascii=False))


def _errors(value: object) -> Iterator[object]:
    match value:
        case {"type": "error"}:
            yield value
        case dict():
            for name, each in value.items():
                if name == "error" and each:
                    yield each
                else:
                    yield from _errors(each)
        case list():
            for each in value:
                yield from _errors(each)
