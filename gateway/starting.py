"""What a process does until it works: it waits for what it needs, and knows for what."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import structlog

from gateway import wiring
from gateway.settings import Settings
from gateway.wiring import Core
from policies.ending import ended
from policies.scripts import BoardRefusedError, BoardUnavailableError
from router.log import LogRefusedError, LogUnavailableError

log = structlog.get_logger(__name__)

AGAIN_S = 1.0
HEARD_S = 2.5  # an orchestrator's probe waits a little longer

Result = TypeVar("Result")
Fault = Callable[[], Awaitable[str | None]]


class StoppedError(Exception):
    """Told to stop while it waited."""


async def _unknown() -> str | None:
    return "it is starting: not all that it needs has answered yet"


@dataclass(slots=True)
class Start:
    """How far a process has come. `fault` says why it does not work, or None: a process sets its own once it does."""

    stop: asyncio.Event
    fault: Fault = _unknown
    waits_for: Exception | None = None

    async def why_not(self) -> str | None:
        """Why it does not work, within 2.5 s; None when it does."""
        return str(self.waits_for) if self.waits_for is not None else await heard(self.fault())

    async def until(self, act: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """What `act` returns once Redis and the log let it, however often it must be tried.

        Raises `StoppedError` when told to stop, and at once what waiting does not help against: `SettingsError`,
        `BoardRefusedError`, `LogRefusedError`.
        """
        while True:
            try:
                result = await self._unless_stopped(act())
            except (BoardRefusedError, LogRefusedError):
                raise
            except (BoardUnavailableError, LogUnavailableError) as error:
                self.waits_for = error
                log.warning("start_waits", why=str(error))
            else:
                self.waits_for = None
                return result
            await self._unless_stopped(asyncio.sleep(AGAIN_S))

    @asynccontextmanager
    async def core(self, settings: Settings, process: str, *, gather_s: float = 0.0) -> AsyncGenerator[Core]:
        """As `wiring.core`, once Redis and the log have answered."""
        async with AsyncExitStack() as opened:

            async def open_core() -> Core:
                return await opened.enter_async_context(wiring.core(settings, process=process, gather_s=gather_s))

            core = await self.until(open_core)
            await self.until(lambda: _board_answers(core))
            await wiring.say_what_is_not_durable(core)
            yield core

    async def _unless_stopped(self, act: Coroutine[Any, Any, Result]) -> Result:
        acting, stopping = asyncio.create_task(act), asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait([acting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not acting.done():
                raise StoppedError
            return acting.result()
        finally:
            await ended(stopping, acting)


async def heard(fault: Awaitable[str | None]) -> str | None:
    """What is found at fault, or why that cannot be found out, within 2.5 s."""
    try:
        async with asyncio.timeout(HEARD_S):
            return await fault
    except TimeoutError:
        return f"no answer within {HEARD_S} s"
    except Exception as error:  # whatever it is, it is not ready
        return f"{type(error).__name__}: {error}"


async def _board_answers(core: Core) -> None:
    """The first contact with Redis. Raises `BoardUnavailableError`, which says where it was looked for."""
    try:
        await core.board.epoch()  # a script: a Redis that loads answers to TIME, and even to PING
    except BoardRefusedError:
        raise
    except BoardUnavailableError as error:
        at = urlsplit(core.settings.redis)
        raise BoardUnavailableError(f"{error}, at {at.hostname or at.path}:{at.port or 6379}") from error
