"""Stops a worker that sends too much to the dead letters: a bad deploy must not drain a backlog there. Pure."""

from collections import deque
from dataclasses import dataclass, field

WINDOW = 200
SHARE = 0.2
IN_A_ROW = 50


@dataclass(slots=True)
class Breaker:
    """Opens when over a fifth of the last 200 deliveries went to the dead letters, or 50 in a row; then stays open.

    People must look before it goes on: a restart closes it.
    """

    is_open: bool = False
    _last: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _in_a_row: int = 0

    def add(self, *, dead: bool) -> None:
        """One more delivery was handled for good."""
        self._last.append(dead)
        self._in_a_row = self._in_a_row + 1 if dead else 0
        share = sum(self._last) / WINDOW
        if self._in_a_row >= IN_A_ROW or (len(self._last) == WINDOW and share > SHARE):
            self.is_open = True
