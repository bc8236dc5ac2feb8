"""A server of somebody who receives webhooks, and what it has seen."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.builders import PATIENCE_S, until


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it came. Header names are lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    """Answers 200 unless `answer` says otherwise."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    most_open: int = 0
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None

    def url(self, path: str = "/hook", *, host: str = "127.0.0.1", scheme: str = "http") -> str:
        """Where it listens."""
        return f"{scheme}://{host}:{self.port}{path}"

    async def got(self, count: int, *, within: float = PATIENCE_S) -> list[Seen]:
        """The first so many requests, once they are there."""
        await until(lambda: len(self.seen) >= count, within=within)
        return self.seen[:count]

    async def _take(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self.seen.append(Seen(request.path, {k.lower(): v for k, v in request.headers.items()}, body))
        try:
            return web.Response() if self.answer is None else await self.answer(request)
        finally:
            self.open -= 1


@asynccontextmanager
async def receiving(*, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Receiver]:
    """One on a free port of 127.0.0.1."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver._take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    server = runner.server
    assert server is not None

    def connected() -> asyncio.Protocol:
        receiver.connections += 1
        return server()

    listening = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0, ssl=tls)
    receiver.port = listening.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        listening.close()
        await runner.cleanup()


def answering(*statuses: int, **headers: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """One status after the other; the last one stays."""
    rest = list(statuses)

    async def answer(_: web.Request) -> web.StreamResponse:
        status = rest.pop(0) if len(rest) > 1 else rest[0]
        return web.Response(status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})

    return answer
