"""Speaks to a running gateway as any client does, for the command line."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from gateway.client_answers import ENDED, GatewayError, NotThereError

PIECE = 1024 * 1024
CONNECT_S, READ_S = 10.0, 60.0  # a stream of events says something every 15 s
WAITS_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # between tries while the gateway is away; the last one repeats
MOST_TRIES, FIRST_TRIES = 60, 2  # ten minutes; a second and a half
TOLD_EVERY = 6  # tries

Object = dict[str, Any]
Answer = TypeVar("Answer")


@dataclass(slots=True)
class Client:
    """A gateway, with the key of a tenant.

    While it is away it is asked again for minutes, and `told` hears of it: every request of this may be made twice. One
    that is not `is_patient` gives up soon where it has never answered.
    """

    url: str
    _session: aiohttp.ClientSession
    is_patient: bool
    told: Callable[[str], object]
    _has_answered: bool = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, key: str, *, is_patient: bool, told: Callable[[str], object]
    ) -> AsyncGenerator["Client"]:
        """`url` is up to and with `/v1`. Raises `GatewayError` for what cannot be a URL or a key."""
        if not re.match(r"https?://[^/]", url):
            raise GatewayError(f"the gateway's URL cannot be {url!r}: it reads like http://127.0.0.1:4000/v1")
        if not (key.isascii() and key.isprintable()):
            raise GatewayError("the API key has characters that no key has, such as an end of line; set it anew")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
        headers = {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            yield cls(url.rstrip("/"), session, is_patient, told)

    async def get(self, path: str, **query: str | int) -> Object:
        """The object at an address."""
        return await self._object("GET", path, params=query)

    async def post(self, path: str, body: Mapping[str, object] | None = None, *, key: str | None = None) -> Object:
        """`key` is the request's idempotency key: without one, only send what may be sent twice."""
        headers = {"idempotency-key": key} if key else {}
        return await self._object("POST", path, json=body, headers=headers)

    async def upload(self, path: Path, name: str, told: Callable[[int], object]) -> str:
        """The id of a new file of purpose `batch`. `told` hears how many bytes went out, from 0 on each time."""

        async def pieces() -> AsyncIterator[bytes]:
            sent = 0
            with path.open("rb") as file:
                while piece := await asyncio.to_thread(file.read, PIECE):
                    yield piece
                    sent += len(piece)
                    told(sent)

        async def form() -> Object:
            data = aiohttp.FormData()
            data.add_field("purpose", "batch")
            data.add_field("file", pieces(), filename=name, content_type="application/jsonl")
            async with self._session.post(f"{self.url}/files", data=data) as answer:
                return await _read(answer)

        return str((await self._until_it_answers(form))["id"])

    async def download(self, file_id: str, path: Path) -> None:
        """A file, whole or not at all."""
        part = path.with_name(path.name + ".part")

        async def fetch() -> None:
            async with self._session.get(f"{self.url}/files/{file_id}/content") as answer:
                if answer.status != 200:
                    await _read(answer)
                with part.open("wb") as file:
                    async for piece in answer.content.iter_chunked(PIECE):
                        await asyncio.to_thread(file.write, piece)

        await self._until_it_answers(fetch)
        part.replace(path)

    async def delete(self, path: str) -> Object:
        """Delete what is there."""
        return await self._object("DELETE", path)

    async def lines(self, path: str, **query: str) -> list[Object]:
        """The JSON objects of an answer that has one a line."""

        async def fetch() -> list[Object]:
            async with self._session.get(f"{self.url}{path}", params=query) as answer:
                if answer.status != 200:
                    await _read(answer)
                return [json.loads(line) async for line in answer.content]

        return await self._until_it_answers(fetch)

    async def events(self, path: str) -> AsyncIterator[Object]:
        """The events of a batch as they come, each once, until it has ended."""
        after, tries, status = 0, 0, ""
        while status not in ENDED:
            try:
                async with self._session.get(f"{self.url}{path}", headers={"last-event-id": str(after)}) as answer:
                    if answer.status != 200:
                        await _read(answer)
                    async for line in answer.content:
                        if line.startswith(b"data: "):
                            event = json.loads(line[6:])
                            after, tries, status = event["sequence_number"], 0, event["status"]
                            yield event
                if not after:
                    return  # it ended so long ago that its events are forgotten
            except AWAY as error:
                tries = await self._waited(tries, error)

    async def _object(self, method: str, path: str, **options: Any) -> Object:
        async def once() -> Object:
            async with self._session.request(method, f"{self.url}{path}", **options) as answer:
                return await _read(answer)

        return await self._until_it_answers(once)

    async def _until_it_answers(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        tries = 0
        while True:
            try:
                answer = await ask()
                self._has_answered = True
                return answer
            except AWAY as error:
                tries = await self._waited(tries, error)

    async def _waited(self, tries: int, error: Exception) -> int:
        away = f"the gateway does not answer at {self.url}: {str(error) or type(error).__name__}"
        goes_on = self._has_answered or self.is_patient
        if tries == (MOST_TRIES if goes_on else FIRST_TRIES):
            raise GatewayError(away) from None
        if goes_on and tries % TOLD_EVERY == 1:
            self.told(f"{away}; it is asked again for ten minutes, Ctrl-C ends that")
        await asyncio.sleep(WAITS_S[min(tries, len(WAITS_S) - 1)])
        return tries + 1


class _AwayError(Exception):
    """It answered that it cannot now."""


AWAY = (aiohttp.ClientError, TimeoutError, _AwayError)


async def _read(answer: aiohttp.ClientResponse) -> Object:
    try:
        said = await answer.json()
        if answer.status == 200:
            return dict(said)
        message = str(said["error"]["message"])
    except (aiohttp.ContentTypeError, ValueError, KeyError, TypeError):
        message = f"status {answer.status} from {answer.url}; is this the address of a Pointsman, up to and with /v1?"
    if answer.headers.get("x-should-retry") == "true":
        raise _AwayError(message)
    raise NotThereError(message) if answer.status == 404 else GatewayError(message)
