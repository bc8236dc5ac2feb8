"""How fast a worker begins jobs while some wait, by topic. Pure; `now` is on a steady clock."""

from dataclasses import dataclass
from math import exp

from router.queues import Working

MEMORY_S = 15.0  # what was so long ago counts a third


@dataclass(slots=True)
class _Topic:
    held: int = 0
    running: int = 0
    head: float | None = None
    begun: float = 0.0  # while some waited, lately
    seconds: float = 0.0  # in which some waited, lately
    since: int = 0  # begun since the last look


class Pace:
    """Counts what is held, begun and done, and makes a rate of it."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._looked_at: float | None = None

    def took(self, topic: str) -> None:
        """A record of it is held here, and waits."""
        self._of(topic).held += 1

    def left(self, topic: str) -> None:
        """It is done."""
        self._of(topic).held -= 1

    def began(self, topic: str, accepted_at: float) -> None:
        """Its job runs."""
        found = self._of(topic)
        found.running += 1
        found.since += 1
        found.head = max(found.head or 0.0, accepted_at)

    def ended(self, topic: str) -> None:
        """It does not run any more; it may wait again."""
        self._of(topic).running -= 1

    def look(self, now: float) -> dict[str, Working]:
        """What to tell now; about once a second."""
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        fading = exp(-passed / MEMORY_S)
        for topic in self._topics.values():
            if topic.held > topic.running and passed:
                topic.begun = topic.begun * fading + topic.since
                topic.seconds = topic.seconds * fading + passed
            topic.since = 0
        return {name: _working(topic) for name, topic in self._topics.items()}

    def _of(self, topic: str) -> _Topic:
        return self._topics.setdefault(topic, _Topic())


def _working(topic: _Topic) -> Working:
    rate = topic.begun / topic.seconds if topic.seconds and topic.begun else None
    return Working(topic.running, None if rate is None else round(rate, 4), topic.head)
