"""Notices when the board is not the one it was: wiped, or set back to an older state."""

import asyncio

import structlog

from policies.scripts import BoardUnavailableError
from router.board import Board

log = structlog.get_logger(__name__)

LOOK_S = 1.0
SET_BACK = 3  # beats; one is made about every second
FIX = "run `pointsman board rebuild`"


class Epoch:
    """Follows the board's epoch. While there is a `fault` nothing may be run: what is over is not known."""

    def __init__(self, board: Board) -> None:
        self.fault: str | None = None
        self.name: str | None = None  # of the board that was seen last
        self._board = board
        self.beat = 0  # as it was then

    async def follow(self) -> None:
        """Look every second until cancelled."""
        while True:
            try:
                await self.look()
            except BoardUnavailableError:
                log.warning("epoch_unknown")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look now. Raises `BoardUnavailableError`, and then knows what it knew."""
        name, beat = await self._board.heartbeat()
        if name is None and self.fault is None:
            self._set(f"the board has no epoch: Redis is new or was wiped; {FIX}")
        elif name is None:
            return
        elif name == self.name and beat < self.beat - SET_BACK:
            await self._board.end_epoch(name)  # one that starts after this was not there to see it
            self._set(f"the board was set back by {self.beat - beat} s; {FIX}")
        elif name != self.name:
            self.name, self.beat = name, beat
            self._set(None)
        else:
            self.beat = max(self.beat, beat)

    def _set(self, fault: str | None) -> None:
        if fault != self.fault:
            log.log(30 if fault else 20, "board_lost" if fault else "board_whole", fault=fault)
        self.fault = fault
