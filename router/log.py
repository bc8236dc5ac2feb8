"""The port to the log: named topics of durable records."""

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import field
from typing import Protocol

import structlog

from policies.values import dataclass

logger = structlog.get_logger(__name__)

Marks = dict[str, str]  # how far somebody has read each partition of a topic; only the log that wrote them can tell
AWAY_S = 1.0  # before the next try to subscribe
RECORD_LIMIT = 1_000_000  # bytes of a value and its headers; larger bodies lie in the object store


class LogUnavailableError(Exception):
    """The log did not confirm. The record may still be delivered; fence it on the board."""


class LogRefusedError(LogUnavailableError):
    """The log is there and does not let us in: waiting does not help while the settings are what they are."""


class TopicMissingError(LogUnavailableError):
    """The topic is not there and is not made by itself; `pointsman topics --create` makes it."""


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes with headers. Header names are lower case; values are UTF-8 text.

    Bytes of a foreign header value that are no UTF-8 come as lone surrogates ("surrogateescape") and leave
    as those bytes again; any encoding of such a text as UTF-8 fails.
    """

    value: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the value and the headers, about."""
        return len(self.value) + sum(len(name) + len(value) for name, value in self.headers.items())


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record as it came off a topic. `position` names it within its topic, for people and for owner tokens."""

    topic: str
    position: str
    record: Record


def chosen(ready: deque[Delivery], at_most: int, of: Collection[str] | None) -> list[Delivery]:
    """Takes up to `at_most` out of what an adapter has ready, of all topics or of these; the rest keeps its order."""
    if of is None:
        return [ready.popleft() for _ in range(min(at_most, len(ready)))]
    found: list[Delivery] = []
    rest: list[Delivery] = []
    for delivery in ready:
        (found if delivery.topic in of and len(found) < at_most else rest).append(delivery)
    ready.clear()
    ready.extend(rest)
    return found


@dataclasses.dataclass(slots=True)
class Counts:
    """What happened since the start, for metrics."""

    unreadable: int = 0  # records that were passed over because nobody can read them
    redelivered: int = 0  # records that came again after a rebalance and were known
    full_windows: int = 0  # polls that left a partition out because its window was full
    rejoined: int = 0  # times that a member had to start anew


class Subscription(Protocol):
    """One member of a group. Not for use from two tasks at once, `done` excepted."""

    async def take(self, at_most: int, *, of: Collection[str] | None = None) -> Sequence[Delivery]:
        """Up to `at_most` records, none of them one that this subscription still holds; with `of` of these topics only.

        Returns within about 200 ms, empty when there is nothing. Must be called at least every 30 s,
        with 0 when there is no room: that keeps the membership and takes nothing.
        Raises `LogUnavailableError`; call it again later.
        """
        ...

    async def done(self, delivery: Delivery) -> None:
        """This one need not come again (after a crash it still may). Any order will do.

        Never raises for a delivery that meanwhile belongs to another member. Raises `LogUnavailableError`: then it
        is not known, and the record may come again. Whoever took a delivery is to say `done` at some time: what is
        held is not given again to the one who holds it.
        """
        ...


class Log(Protocol):
    """Named topics of durable records.

    A group gets each record at least once: whatever was not `done` comes again, to this
    subscription or to another, after a crash, a rebalance or the end of a subscription.
    A new group starts at the oldest record. There is no order between records.
    """

    counts: Counts

    async def append(self, topic: str, record: Record) -> None:
        """Return once the record is safe; raise `LogUnavailableError` if that is not known.

        Raises `TopicMissingError` for a topic that was not created, `ValueError` for a record over `RECORD_LIMIT`.
        """
        ...

    def subscribe(self, topics: Sequence[str], *, group: str) -> AbstractAsyncContextManager[Subscription]:
        """Join `group` on `topics`. On exit, what is done is remembered, and the rest comes to others.

        Raises `TopicMissingError` when one of them was not created.
        """
        ...

    def read(self, topic: str, *, marks: Marks | None = None) -> AsyncGenerator[Delivery]:
        """Every record that is on `topic` now, without a group and without taking anything: oldest first by partition.

        What is appended meanwhile may be missing; who reads again with the same `marks`, empty at first, is given just
        what came since. Raises `TopicMissingError`, `LogUnavailableError`.
        """
        ...

    async def newest(self, topic: str) -> Sequence[Delivery]:
        """The newest record of each partition of `topic`. Raises as `read` does."""
        ...

    async def ping(self) -> None:
        """Return within two seconds if the log answers; raise `LogUnavailableError` otherwise."""
        ...

    async def topics(self) -> Mapping[str, int]:
        """The topics that exist, with their number of partitions."""
        ...

    async def create(self, topics: Sequence[str]) -> None:
        """Make those that are missing; safe to repeat and to race."""
        ...

    async def troubles(self, topics: Sequence[str]) -> Sequence[str]:
        """What its servers are set to that endangers records of these topics, for people; empty when all is well."""
        ...

    async def backlog(self, topic: str, *, group: str) -> int:
        """Records of `topic` that `group` has not done yet, those that are being worked on included."""
        ...

    async def oldest(self, topic: str, *, group: str) -> float | None:
        """When the oldest of these was appended, in seconds since the epoch; None: there is none."""
        ...


@asynccontextmanager
async def subscribed(log: Log, topics: Sequence[str], *, group: str) -> AsyncGenerator[Subscription]:
    """As `subscribe`, tried until the log lets it: it may be away just then, or not have heard of a new topic."""
    async with AsyncExitStack() as opened:
        while True:
            try:
                subscription = await opened.enter_async_context(log.subscribe(topics, group=group))
                break
            except LogUnavailableError as error:
                logger.warning("not_subscribed", group=group, error=str(error))
                await asyncio.sleep(AWAY_S)
        yield subscription
