"""Which records of one partition are being worked on, and what may be committed: no I/O."""

from collections import deque


class Offsets:
    """The records of one partition that were started, from `first` on.

    The next reader starts at the committed offset. That is the oldest record that still runs, or the
    one after the newest when none does: everything before it is finished, whatever finished after it.
    """

    def __init__(self, first: int) -> None:
        self._next = first
        self._running: set[int] = set()
        self._started: deque[int] = deque()  # in order; finished ones leave when they come to the head

    def start(self, offset: int) -> None:
        """A record that is not known yet. Offsets may leave gaps and never go back; else `ValueError`."""
        if self.is_known(offset):
            raise ValueError(f"offset {offset} comes before {self._next}, which is the next one")
        self._running.add(offset)
        self._started.append(offset)
        self._next = offset + 1

    def skip(self, offset: int) -> None:
        """A record that nobody can read: as if it had been started and finished."""
        self._next = max(self._next, offset + 1)

    def finish(self, offset: int) -> bool:
        """Whether it was running; nothing happens when it was not."""
        if offset not in self._running:
            return False
        self._running.remove(offset)
        while self._started and self._started[0] not in self._running:
            self._started.popleft()
        return True

    def is_known(self, offset: int) -> bool:
        """Whether it runs here or is finished: when it is delivered again, it is to be dropped."""
        return offset < self._next

    @property
    def next(self) -> int:
        """Where to read on."""
        return self._next

    @property
    def first_incomplete(self) -> int:
        """The offset to commit."""
        return self._started[0] if self._started else self._next

    @property
    def window(self) -> int:
        """How many offsets lie between the one to commit and the newest that was started."""
        return self._next - self.first_incomplete

    def __len__(self) -> int:
        """How many run."""
        return len(self._running)
