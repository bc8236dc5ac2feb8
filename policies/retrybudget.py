"""How many retries a deployment may get: a share of its calls, so that retries never become the load. No I/O."""

from dataclasses import dataclass

SPARE = 10.0  # retries that need no calls before them
SPARE_S = 1.0  # one of those comes back in so many seconds: a queue that failed as a whole goes on within minutes


@dataclass(slots=True)
class RetryBudget:
    """The retries of one deployment: at most `share` of its calls, and a few to spare.

    Over any time of `t` seconds these are at most `share` x calls + 10 + t. `now` is on a steady clock. Workers
    have one together, on the board (`condition.lua` reckons as this does); this is what one of them knows of it.
    """

    share: float = 0.2
    _room: float = SPARE
    _at: float | None = None

    def called(self, now: float, *, is_retry: bool) -> None:
        """A call is made."""
        self._refill(now)
        self._room = max(0.0, self._room - 1.0) if is_retry else min(SPARE, self._room + self.share)

    def heard(self, room: float, now: float) -> None:
        """So much room there is on the board."""
        self._room, self._at = room, now

    def has_room(self, now: float) -> bool:
        """Whether one more retry may be made."""
        self._refill(now)
        return self._room >= 1.0

    def _refill(self, now: float) -> None:
        if self._at is not None and now > self._at:
            self._room = min(SPARE, self._room + (now - self._at) / SPARE_S)
        self._at = now
