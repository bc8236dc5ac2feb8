"""Bounds the answers that only this process has: what is not on the board when it dies is paid for again. No I/O."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

NEWEST = 0.1  # how much the newest call counts in the average


@dataclass(eq=False, slots=True)
class LetThrough:
    """A call that was let through. `saved` may be said twice."""

    unsaved: "Unsaved"
    deployment: str
    counts: bool
    _sent_at: float | None = None

    def sent(self) -> None:
        """It goes out now."""
        self._sent_at = self.unsaved.clock()

    def answered(self) -> None:
        """Its answer is here, and nowhere else."""
        if self._sent_at is not None:
            self.unsaved.took(self.deployment, self.unsaved.clock() - self._sent_at)
        if not self.counts:
            self.counts = True
            self.unsaved.count += 1

    def saved(self) -> None:
        """Its answer is on the board, or there is none."""
        if self.counts:
            self.counts = False
            self.unsaved.count -= 1
            self.unsaved.wake()


@dataclass(slots=True)
class Unsaved:
    """While `most` answers wait to be saved, no further call begins.

    Where a deployment answers within `quick_s` as a rule, all its open calls may be answered before the first is
    saved: there a call counts from its beginning.
    """

    clock: Callable[[], float]
    most: int = 30
    quick_s: float = 0.05
    count: int = 0
    _usual: dict[str, float] = field(default_factory=dict)
    _waiting: "deque[asyncio.Future[None]]" = field(default_factory=deque)

    async def begin(self, deployment: str) -> LetThrough:
        """Return when there is room."""
        while self.count >= self.most:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self.wake()  # it may have been this one's turn
                raise
        call = LetThrough(self, deployment, counts=self._usual.get(deployment, self.quick_s) < self.quick_s)
        self.count += call.counts
        self.wake()  # one that does not count leaves its room to the next
        return call

    def wake(self) -> None:
        """Let the next one look, where there is room."""
        while self._waiting and self.count < self.most:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def took(self, deployment: str, seconds: float) -> None:
        """A call has been answered after so long."""
        before = self._usual.get(deployment, seconds)
        self._usual[deployment] = before + NEWEST * (seconds - before)
