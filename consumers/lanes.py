"""What waits and runs in each lane, counted by a sweeper: for autoscalers, for people, for callers who ask when."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from router.log import Log, LogUnavailableError, TopicMissingError
from router.queues import KEPT_S, Heard, Queues


@dataclass(frozen=True, slots=True)
class Load:
    """What waits and runs. `backlog` are records that are not done, those of the `running` jobs included.

    `oldest_s` is the age of the oldest of them, in seconds since it came to its queue; 0 while none waits. `workers`
    are the processes that take jobs from it.
    """

    backlog: int = 0
    running: int = 0
    oldest_s: float = 0.0
    workers: int = 0

    @property
    def waiting(self) -> int:
        """Those that nobody runs. Kafka counts some that are done, behind one that is not."""
        return max(0, self.backlog - self.running)


@dataclass(frozen=True, slots=True)
class _Counted:
    backlog: Mapping[str, int] = field(default_factory=dict)
    oldest: Mapping[str, float] = field(default_factory=dict)  # moments
    heard: Heard = field(default_factory=Heard)


@dataclass(slots=True)
class Lanes:
    """Counts the topics of all lanes; `groups` names who works each off. What was counted is kept for 15 s."""

    log: Log
    queues: Queues
    groups: Mapping[str, str]
    clock: Callable[[], float] = time.monotonic
    _counted: _Counted = field(default_factory=_Counted)
    _at: float | None = None

    async def count(self) -> None:
        """Count now, and tell those who are asked when a job begins. Raises what board and log raise."""
        backlog, oldest = {}, {}
        for topic, group in self.groups.items():
            try:
                backlog[topic] = await self.log.backlog(topic, group=group)
            except TopicMissingError:
                continue
            if backlog[topic]:
                moment = await self._oldest(topic, group)
                if moment is not None:
                    oldest[topic] = moment
        await self.queues.count(backlog)
        self._counted = _Counted(backlog, oldest, await self.queues.hear())
        self._at = self.clock()

    @property
    def is_known(self) -> bool:
        """Whether what was counted is worth telling."""
        return self._at is not None and self.clock() - self._at <= KEPT_S

    @property
    def names(self) -> list[str]:
        """The lanes, sorted."""
        return sorted({lane_and_queue(topic)[0] for topic in self.groups})

    def of(self, lane: str) -> Load:
        """All queues of a lane together."""
        return self._sum(topic for topic in self.groups if lane_and_queue(topic)[0] == lane)

    def by_queue(self) -> dict[tuple[str, str], Load]:
        """Each queue of each lane."""
        return {lane_and_queue(topic): self._sum([topic]) for topic in self.groups}

    def _sum(self, topics: Iterable[str]) -> Load:
        chosen = list(topics)
        heard = self._counted.heard
        backlog = sum(self._counted.backlog.get(topic, 0) for topic in chosen)
        running = sum(told.topics[topic].running for told in heard.workers for topic in chosen if topic in told.topics)
        load = Load(backlog, running, 0.0, sum(1 for told in heard.workers if _reads_any(told.topics, chosen)))
        moments = [self._counted.oldest[topic] for topic in chosen if topic in self._counted.oldest]
        if not moments or not load.waiting:
            return load
        now = heard.now + self.clock() - (self._at or 0.0)
        return Load(backlog, running, max(0.0, now - min(moments)), load.workers)

    async def _oldest(self, topic: str, group: str) -> float | None:
        try:
            return await self.log.oldest(topic, group=group)
        except TopicMissingError:
            return None
        except LogUnavailableError:  # the oldest cannot be read, say; that must not keep the counts from anybody
            return self._counted.oldest.get(topic)


def lane_and_queue(topic: str) -> tuple[str, str]:
    """The lane of a topic, and its class or the overflow."""
    lane, _, queue = topic.removeprefix("jobs.").rpartition(".")
    return lane, queue


def _reads_any(read: Collection[str], topics: Iterable[str]) -> bool:
    return any(topic in read for topic in topics)
