"""Jobs that are dispatched together: a microbatch closes at its size or its wait limit, whichever is first."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(slots=True)
class _Open(Generic[Item]):
    items: list[Item]
    size: int
    closes_at: float


class Microbatches(Generic[Item]):
    """The microbatches that are open, one for each key. Driven step by step; `now` is any steady clock, in seconds."""

    def __init__(self) -> None:
        self._open: dict[Hashable, _Open[Item]] = {}

    def add(self, key: Hashable, item: Item, *, size: int, wait_s: float, now: float) -> None:
        """Put an item into its microbatch; the first one opens it and sets its limits."""
        batch = self._open.setdefault(key, _Open([], size, now + wait_s))
        batch.items.append(item)

    def close(self, now: float) -> list[list[Item]]:
        """Those that are full or have waited long enough, the oldest first."""
        due = [key for key, batch in self._open.items() if len(batch.items) >= batch.size or batch.closes_at <= now]
        return [self._open.pop(key).items for key in due]

    def next_close(self) -> float | None:
        """When the next one has waited long enough; None when none is open."""
        return min((batch.closes_at for batch in self._open.values()), default=None)

    def count(self, key: Hashable) -> int:
        """Items in the open microbatch of this key."""
        batch = self._open.get(key)
        return len(batch.items) if batch else 0
