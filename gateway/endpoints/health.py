"""Whether this process lives, whether it can serve, and what it counts."""

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from gateway import render
from gateway.services import Services
from gateway.starting import Start, heard
from policies.scripts import BoardUnavailableError
from router.compact import encode

KNOWN_S = 1.0  # a verdict holds that long, however often it is asked for


class Health:
    """The operator's endpoints. They need no key and show nothing of any tenant."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._asking = asyncio.Lock()
        self._asked = float("-inf")
        self._faults: dict[str, str] = {}

    async def healthz(self, _: Request) -> Response:
        """The process answers."""
        return Response(b'{"status":"ok"}', media_type=render.JSON)

    async def readyz(self, _: Request) -> Response:
        """200 when log and board answer, else 503 and why."""
        async with self._asking:
            if time.monotonic() - self._asked >= KNOWN_S:
                log, board = await asyncio.gather(heard(self._services.log.ping()), heard(self._services.board.ping()))
                board = board or self._services.epoch.fault
                self._faults = {name: why for name, why in (("log", log), ("board", board)) if why}
                self._asked = time.monotonic()
        body = {"ready": not self._faults, "faults": self._faults}
        return Response(encode(body), 503 if self._faults else 200, media_type=render.JSON)

    async def metrics(self, _: Request) -> Response:
        """In Prometheus' text format."""
        metrics = self._services.metrics
        return Response(metrics.text(), headers={"content-type": metrics.content_type})


class Waiting:
    """What is answered before there are services: whether the process lives, and to all else that it is too early."""

    def __init__(self, start: Start) -> None:
        self._start = start

    async def healthz(self, _: Request) -> Response:
        """The process answers."""
        return Response(b'{"status":"ok"}', media_type=render.JSON)

    async def readyz(self, _: Request) -> Response:
        """503, and what is waited for."""
        body = {"ready": False, "faults": {"start": await self._start.why_not()}}
        return Response(encode(body), 503, media_type=render.JSON)

    async def anything_else(self, _: Request) -> Response:
        """As when what is waited for is away later."""
        raise self._start.waits_for or BoardUnavailableError("it is starting")
