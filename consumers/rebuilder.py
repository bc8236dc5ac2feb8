"""Makes a lost board anew without being asked, where the operator allows that."""

import asyncio
from dataclasses import dataclass

import structlog

from policies.scripts import BoardUnavailableError
from router.epoch import Epoch
from router.log import LogUnavailableError
from router.rebuild import Rebuild

log = structlog.get_logger(__name__)

LOOK_S = 1.0
NOTICED_S = 2.0  # everybody looks every second: by then nobody who lives ends a job on a lost board without knowing


@dataclass(frozen=True, slots=True)
class Rebuilder:
    """Looks every second whether the board is whole. Any number may run: a rebuild may race another."""

    epoch: Epoch
    rebuild: Rebuild

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop`."""
        while not stop.is_set():
            try:
                await self.epoch.look()
                if self.epoch.fault is not None:
                    await asyncio.sleep(NOTICED_S)
                    await self.epoch.look()  # another may have been here
                if self.epoch.fault is not None:
                    log.warning("board_rebuild_began", fault=self.epoch.fault)
                    done = await self.rebuild()
                    log.warning(
                        "board_rebuilt",
                        events=done.events,
                        attempts=done.attempts,
                        buried=done.buried,
                        recounted=done.recounted,
                        keys=done.keys,
                    )
                    await self.epoch.look()
            except (BoardUnavailableError, LogUnavailableError) as error:
                log.warning("board_rebuild_put_off", error=type(error).__name__)
            try:
                async with asyncio.timeout(LOOK_S):
                    await stop.wait()
            except TimeoutError:
                continue
