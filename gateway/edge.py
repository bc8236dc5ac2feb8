"""Around everything: request ids, errors as OpenAI words them, counting. Pure ASGI, as it is on the hot path."""

import asyncio
import re
import time
from secrets import token_hex
from traceback import extract_tb
from typing import cast

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import render
from gateway.errors import as_api_error
from gateway.head import Head
from gateway.metrics import Metrics
from gateway.reading import HungUpError
from router.compact import encode

log = structlog.get_logger(__name__)

LINGER_S, LINGER_BYTES = 2.0, 64 * 1024 * 1024
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Edge:
    """Every answer has a request id; every exception becomes an answer; nothing of a request is logged."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics | None = None) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        scope["app"] = self  # where there is one, the routes raise what they cannot serve instead of answering it
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except HungUpError:
            if self._metrics is not None:
                self._metrics.hang_ups.inc()
            return
        except Exception as error:  # the one place where what nobody expected is answered
            await self._answer(error, exchange, scope)
        if self._metrics is not None:
            self._metrics.answered(_route(scope), exchange.status, exchange.seconds)

    async def _answer(self, error: Exception, exchange: "_Exchange", scope: Scope) -> None:
        answer = as_api_error(error, request_id=exchange.request_id)
        if answer.status == 500:  # ours; what is away or over a limit is seen in the metrics, and would flood the log
            log.error(
                "request_failed",
                request_id=exchange.request_id,
                route=_route(scope),
                status=answer.status,
                error=type(error).__name__,
                # Not the message, which may hold what the client sent.
                at=[f"{frame.filename}:{frame.lineno}" for frame in extract_tb(error.__traceback__)[-8:]],
            )
        if exchange.status:
            raise RuntimeError("an answer broke off after its head was sent") from None
        headers = {"content-type": render.JSON, **answer.all_headers}
        await exchange.refuse(answer.status, headers, encode(answer.body))


class _Exchange:
    """One request and its answer. `status` is 0 until the answer began, `seconds` how long that took."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._started = time.perf_counter()
        self._request_headers = scope["head"] = Head(scope)
        self._unread = True
        given = self._request_headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{token_hex(16)}"
        self.status = 0
        self.seconds = 0.0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._unread = message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = cast(int, message["status"])
            self.seconds = time.perf_counter() - self._started
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
        await self._send(message)

    async def refuse(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Answer at once. What the client still sends is thrown away for a moment, so that it reads the answer."""
        has_body = (
            self._request_headers.get("content-length", "0") != "0" or "transfer-encoding" in self._request_headers
        )
        lingers = self._unread and has_body
        headers["content-length"] = str(len(body))
        if lingers:
            headers["connection"] = "close"
        encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})
        await self._send({"type": "http.response.body", "body": body, "more_body": lingers})
        if lingers:
            await self._linger()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _linger(self) -> None:
        thrown_away = 0
        try:
            async with asyncio.timeout(LINGER_S):
                while self._unread and thrown_away < LINGER_BYTES:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        return
                    thrown_away += len(message.get("body", b""))
        except TimeoutError:
            return


def _route(scope: Scope) -> str:
    """The route's template; never a path, of which there are endlessly many."""
    return getattr(scope.get("route"), "path", "other")
