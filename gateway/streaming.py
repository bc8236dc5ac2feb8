"""Answers that are server-sent events: what is told as it comes, until it ends or the client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import render
from gateway.delivery import Caller, calling
from gateway.errors import ApiError, as_api_error
from gateway.reading import HungUpError
from router.compact import encode

log = structlog.get_logger(__name__)

SEND_S = 60.0  # how long a client may read nothing


def error_event(error: ApiError) -> bytes:
    """An error as chat's streams have it."""
    return render.event(encode(error.body))


class EventStream(Response):
    """Sends what `told` gives, already framed as events; the head goes out with the first of it.

    What `told` raises before that is raised, for an ordinary error answer; after it, it becomes an event that
    `failed` makes. `name` is what an error names to the client, and the log: never anything of the client's.
    """

    def __init__(
        self,
        told: Callable[[Caller], AsyncGenerator[bytes]],
        *,
        name: str,
        failed: Callable[[ApiError], bytes] = error_event,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(
            {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
                **(headers or {}),
            }
        )
        self._told = told
        self._name = name
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        events = _Events(send, self)
        try:
            async with calling(receive) as caller, aclosing(self._told(caller)) as told:
                async for data in told:
                    await events.send(data)
        except HungUpError:
            raise
        except Exception as error:
            if not events.began:
                raise
            answer = as_api_error(error, request_id=self._name)
            if answer.status == 500:  # ours; the edge does not see it any more
                log.error("stream_failed", stream=self._name, error=type(error).__name__)
            await events.send(self._failed(answer))
        await events.end()


class _Events:
    """The answer's body; its head goes out with the first event."""

    def __init__(self, send: Send, response: Response) -> None:
        self.began = False
        self._send = send
        self._response = response

    async def send(self, data: bytes) -> None:
        """Raises `HungUpError` for a client that reads nothing for a minute."""
        try:
            async with asyncio.timeout(SEND_S):
                await self._begin()
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise HungUpError("the client reads nothing") from None

    async def end(self) -> None:
        """Nothing more comes; where nothing came at all, whoever came back has had everything."""
        await self._begin()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self) -> None:
        if not self.began:
            self.began = True
            head = {"status": self._response.status_code, "headers": self._response.raw_headers}
            await self._send({"type": "http.response.start", **head})
