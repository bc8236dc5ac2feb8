"""Whether this process lives, whether it can serve, and what it counts."""

import asyncio
import time
from collections.abc import Awaitable

from starlette.requests import Request
from starlette.responses import Response

from gateway import render
from gateway.services import Services
from router.compact import encode

KNOWN_S = 1.0  # a verdict holds that long, however often it is asked for
PING_S = 2.5


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
                log, board = await asyncio.gather(
                    _fault(self._services.log.ping()), _fault(self._services.board.ping())
                )
                board = board or self._services.epoch.fault
                self._faults = {name: why for name, why in (("log", log), ("board", board)) if why}
                self._asked = time.monotonic()
        body = {"ready": not self._faults, "faults": self._faults}
        return Response(encode(body), 503 if self._faults else 200, media_type=render.JSON)

    async def metrics(self, _: Request) -> Response:
        """In Prometheus' text format."""
        metrics = self._services.metrics
        return Response(metrics.text(), headers={"content-type": metrics.content_type})


async def _fault(ping: Awaitable[None]) -> str | None:
    try:
        async with asyncio.timeout(PING_S):
            await ping
    except TimeoutError:
        return f"no answer within {PING_S} s"
    except Exception as error:  # whatever it is, it is not ready
        return f"{type(error).__name__}: {error}"
    return None
