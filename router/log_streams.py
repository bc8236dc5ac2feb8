"""The log on Redis Streams: one stream per topic, one consumer per subscription."""

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from policies.ending import ended
from policies.scripts import Script
from router.log import RECORD_LIMIT, Counts, Delivery, LogUnavailableError, Marks, Record, TopicMissingError, chosen

IDLE_S = 15.0  # a record whose holder was silent for this long is taken over
ABANDONED_S = 120.0  # a subscription that nobody took from for this long no longer holds its records
BLOCK_MS = 200  # an empty read waits this long; a record that arrives ends the wait at once
FULL_PAUSE_S = 0.05  # what take(0) waits, so that a loop over a full subscription does not spin
COMMAND_S = 5.0  # the longest a command may take before the log counts as unavailable
PING_S = 2.0
READ_PAGE = 500  # records read in one go
CLAIM_PAGE = 100  # records taken over in one go
VALUE = b"v"
HEADER = b"h:"

log = structlog.get_logger()


class StreamsLog:
    """`router.log.Log` on Redis 7.0 and later, or Valkey.

    A topic has one "partition". Nothing is trimmed by itself: whoever sweeps calls `trim`. How safe an
    appended record is, is what the server's append-only file makes of it.
    """

    def __init__(self, redis: "Redis", *, prefix: str = "", idle_s: float = IDLE_S) -> None:
        """`redis` answers in bytes. A subscription opens one more connection like those of `redis`, to block on."""
        self.counts = Counts()
        self._redis = redis
        self._prefix = prefix
        self._idle_s = idle_s
        self._trim = Script.load("router", "log_trim")

    async def append(self, topic: str, record: Record) -> None:
        """Takes 5 s at most. `ValueError` for a record over the limit."""
        if record.size > RECORD_LIMIT:
            raise ValueError(f"a record of {record.size} bytes is over the limit of {RECORD_LIMIT}")
        added = await _answer(self._redis.xadd(self._key(topic), _fields(record), nomkstream=True))
        if added is None:
            raise TopicMissingError(f"there is no topic {topic}")

    @asynccontextmanager
    async def subscribe(self, topics: Sequence[str], *, group: str) -> AsyncGenerator["StreamsSubscription"]:
        """Raises `TopicMissingError` when one of them was not created."""
        blocking = _of_its_own(self._redis)
        streams = {self._key(topic): topic for topic in topics}
        subscription = StreamsSubscription(self._redis, blocking, streams, group, self._idle_s)
        try:
            await subscription.join()
            try:
                yield subscription
            finally:
                await subscription.leave()
        finally:
            await blocking.aclose()

    async def read(self, topic: str, *, marks: Marks | None = None) -> AsyncGenerator[Delivery]:
        """A page at a time."""
        marks = {} if marks is None else marks
        key = self._key(topic)
        await self._length(topic)
        newest = await _answer(self._redis.xrevrange(key, count=1))
        while newest:
            after = f"({marks[topic]}" if topic in marks else "-"
            page = await _answer(self._redis.xrange(key, after, newest[0][0], count=READ_PAGE))
            for position, fields in page:
                marks[topic] = position.decode()
                yield Delivery(topic, marks[topic], _record(fields))
            if len(page) < READ_PAGE:
                return

    async def newest(self, topic: str) -> Sequence[Delivery]:
        """One at most."""
        await self._length(topic)
        newest = await _answer(self._redis.xrevrange(self._key(topic), count=1))
        return [Delivery(topic, position.decode(), _record(fields)) for position, fields in newest]

    async def ping(self) -> None:
        """Return within two seconds if the log answers; raise `LogUnavailableError` otherwise."""
        await _answer(self._redis.ping(), PING_S)

    async def topics(self) -> Mapping[str, int]:
        """The topics that exist; each has one partition."""
        names = await _answer(self._redis.smembers(self._registry))
        return {name.decode(): 1 for name in sorted(names)}

    async def create(self, topics: Sequence[str]) -> None:
        """Make those that are missing; safe to repeat and to race."""
        for topic in topics:
            # A group is the one thing that makes an empty stream; the stream stays when the group goes.
            with contextlib.suppress(_GroupExistsError):
                await _answer(self._redis.xgroup_create(self._key(topic), "_created", "0", mkstream=True))
            await _answer(self._redis.xgroup_destroy(self._key(topic), "_created"))
            await _answer(self._redis.sadd(self._registry, topic))

    async def troubles(self, topics: Sequence[str]) -> Sequence[str]:
        """None: nothing is kept for a time only, but what the sweeper trims."""
        return ()

    async def backlog(self, topic: str, *, group: str) -> int:
        """Exact, but for the moment between two commands. A group that does not exist has everything before it."""
        key = self._key(topic)
        length = await self._length(topic)
        for found in await _answer(self._redis.xinfo_groups(key)):
            if found["name"] == group.encode():
                lag = found.get("lag")
                return int(found["pending"]) + (length if lag is None else int(lag))
        return length

    async def oldest(self, topic: str, *, group: str) -> float | None:
        """On Redis' clock, which is in every position."""
        key, after = self._key(topic), "-"
        await self._length(topic)
        for found in await _answer(self._redis.xinfo_groups(key)):
            if found["name"] == group.encode():
                if int(found["pending"]):
                    return _moment((await _answer(self._redis.xpending(key, group)))["min"])
                after = f"({found['last-delivered-id'].decode()}"
        page = await _answer(self._redis.xrange(key, after, count=1))
        return _moment(page[0][0]) if page else None

    async def trim(self, topic: str, keep_s: float, *, unread_s: float | None = None) -> int:
        """Drop records that every group has done and that are older than `keep_s`; return how many.

        While a topic has no group, nobody has read it: then nothing is dropped, unless `unread_s` says
        from which age on. Also forgets members that were silent for an hour and hold nothing.
        """
        arguments = [int(keep_s * 1000), -1 if unread_s is None else int(unread_s * 1000)]
        return int(await _answer(self._redis.eval(self._trim.text, 1, self._key(topic), *arguments)))

    async def _length(self, topic: str) -> int:
        length = int(await _answer(self._redis.xlen(self._key(topic))))
        if length == 0 and not await _answer(self._redis.exists(self._key(topic))):
            raise TopicMissingError(f"there is no topic {topic}")
        return length

    def _key(self, topic: str) -> str:
        return f"{self._prefix}log:{topic}"

    @property
    def _registry(self) -> str:
        return f"{self._prefix}log-topics"


class StreamsSubscription:
    """`router.log.Subscription`. What it holds is kept fresh in the background until it is `done`."""

    def __init__(
        self, redis: "Redis", blocking: "Redis", streams: Mapping[str, str], group: str, idle_s: float
    ) -> None:
        self._redis = redis
        self._blocking = blocking
        self._streams = streams  # key -> topic
        self._keys = {topic: key for key, topic in streams.items()}
        self._group = group
        self._member = uuid.uuid4().hex
        self._idle_ms = int(idle_s * 1000)
        self._fresh_every_s = idle_s / 3
        self._claim_every_s = min(1.0, idle_s / 3)
        self._claimed_at = 0.0
        self._taken_at = time.monotonic()
        self._cursors = dict.fromkeys(streams, b"0-0")
        self._held: dict[str, set[bytes]] = {key: set() for key in streams}
        self._ready: deque[Delivery] = deque()
        self._refreshing: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Make the group where it is missing. Raises `TopicMissingError`."""
        await self._make_groups()
        self._refreshing = asyncio.create_task(self._keep_fresh())

    async def take(self, at_most: int, *, of: Collection[str] | None = None) -> Sequence[Delivery]:
        """See the port. A full subscription waits 50 ms, and so does one that wants of some topics only."""
        self._taken_at = time.monotonic()
        if self._refreshing is not None and self._refreshing.done():
            self._refreshing.result()  # a bug: what this member holds would be taken over
        if at_most == 0:
            await asyncio.sleep(FULL_PAUSE_S)
            return ()
        if not self._ready and time.monotonic() - self._claimed_at >= self._claim_every_s:
            has_more = await self._take_over(min(at_most, CLAIM_PAGE))
            self._claimed_at = self._claimed_at if has_more else time.monotonic()
        if not any(of is None or delivery.topic in of for delivery in self._ready):
            await self._read(at_most, of)
        return chosen(self._ready, at_most, of)

    async def done(self, delivery: Delivery) -> None:
        """Raises `LogUnavailableError`: call it again, or let the record come again."""
        key = self._keys[delivery.topic]
        # It counts whoever the record belongs to by now: what is done is done.
        await _answer(self._redis.xack(key, self._group, delivery.position))
        self._held[key].discard(delivery.position.encode())

    async def leave(self) -> None:
        """Let the others have at once what was not done. Where that fails, they have it after the idle time."""
        # The member itself stays listed until `trim` forgets it: to delete it could drop a record that it was
        # given while its connection closed.
        if self._refreshing is not None:
            await ended(self._refreshing)
        with contextlib.suppress(LogUnavailableError):
            for key in self._streams:
                await self._claim_held(key, idle_ms=self._idle_ms * 1000)

    async def _make_groups(self) -> None:
        for key, topic in self._streams.items():
            try:
                await _answer(self._redis.xgroup_create(key, self._group, "0"))
            except _GroupExistsError:
                continue
            except _StreamMissingError:
                raise TopicMissingError(f"there is no topic {topic}") from None

    async def _keep_fresh(self) -> None:
        """For ever: let others see that the holder of these records lives, as long as `take` is called."""
        while True:
            await asyncio.sleep(self._fresh_every_s)
            if time.monotonic() - self._taken_at > ABANDONED_S:
                continue
            try:
                for key in self._streams:
                    await self._claim_held(key, idle_ms=0)
            except LogUnavailableError as error:
                log.warning("log_members_records_not_refreshed", error=str(error))

    async def _claim_held(self, key: str, *, idle_ms: int) -> None:
        held = self._held[key]
        if not held:
            return
        # Only what still belongs to this member: another may have taken over while this one was frozen.
        listed = await _answer(self._redis.xpending_range(key, self._group, "-", "+", _LISTED, self._member))
        mine = [entry["message_id"] for entry in listed if entry["message_id"] in held]
        if mine:
            await _answer(self._redis.xclaim(key, self._group, self._member, 0, mine, idle=idle_ms, justid=True))

    async def _take_over(self, at_most: int) -> bool:
        """Up to `at_most` records per topic whose holder was silent for too long; whether there may be more."""
        has_more = False
        for key in self._streams:
            cursor, entries, _trimmed = await self._group_call(
                self._redis.xautoclaim(key, self._group, self._member, self._idle_ms, self._cursors[key], at_most)
            )
            self._cursors[key] = cursor
            self._arrived(key, entries)
            has_more = has_more or len(entries) == at_most
        return has_more

    async def _read(self, at_most: int, of: Collection[str] | None) -> None:
        keys = [key for key, topic in self._streams.items() if of is None or topic in of]
        if not keys:
            await asyncio.sleep(FULL_PAUSE_S)
            return
        block_ms = BLOCK_MS if of is None else int(FULL_PAUSE_S * 1000)
        answer = await self._group_call(
            self._blocking.xreadgroup(
                self._group, self._member, dict.fromkeys(keys, ">"), count=at_most, block=block_ms
            )
        )
        for key, entries in answer or ():
            self._arrived(key.decode(), entries)

    def _arrived(self, key: str, entries: Sequence[tuple[bytes, Mapping[bytes, bytes] | None]]) -> None:
        held = self._held[key]
        for position, fields in entries:
            # None: trimmed by hand. Held: taken over while this member was frozen, and given back.
            if fields is None or position in held:
                continue
            held.add(position)
            self._ready.append(Delivery(self._streams[key], position.decode(), _record(fields)))

    async def _group_call(self, call: Any) -> Any:
        """A server that lost the group (it was flushed) gets it again with the next call."""
        try:
            return await _answer(call)
        except (_GroupMissingError, _StreamMissingError) as error:
            await self._make_groups()
            raise LogUnavailableError("the group was not there any more; it was made again") from error


class _GroupExistsError(LogUnavailableError):
    pass


class _GroupMissingError(LogUnavailableError):
    pass


class _StreamMissingError(LogUnavailableError):
    pass


_LISTED = 100_000  # far above what one member holds


async def _answer(call: Any, limit_s: float = COMMAND_S) -> Any:
    """What Redis says, in bounded time, with its errors as ours."""
    try:
        async with asyncio.timeout(limit_s):
            return await call
    except ResponseError as error:
        code = str(error).split(" ", 1)[0]
        if code == "BUSYGROUP":
            raise _GroupExistsError(str(error)) from error
        if code == "NOGROUP":
            raise _GroupMissingError(str(error)) from error
        if "requires the key to exist" in str(error) or "no such key" in str(error):
            raise _StreamMissingError(str(error)) from error
        raise LogUnavailableError(f"Redis refused: {error}") from error
    except (RedisError, OSError, TimeoutError) as error:
        raise LogUnavailableError(f"Redis did not answer: {type(error).__name__}") from error


def _of_its_own(redis: "Redis") -> "Redis":
    """A client like this one with a connection of its own, which a blocked read may keep."""
    pool = redis.connection_pool
    like = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name in {"host", "port", "db", "username", "password", "path", "credential_provider"}
        or name.startswith("ssl")
    }
    own = ConnectionPool(
        connection_class=pool.connection_class,
        protocol=2,
        socket_timeout=COMMAND_S,
        socket_connect_timeout=COMMAND_S,
        retry=Retry(NoBackoff(), 0),
        max_connections=2,
        **like,
    )
    return Redis.from_pool(own)


def _fields(record: Record) -> dict[Any, Any]:
    headers = {
        HEADER + name.encode(): value.encode("utf-8", "surrogateescape") for name, value in record.headers.items()
    }
    return {VALUE: record.value, **headers}


def _moment(position: bytes) -> float:
    return int(position.partition(b"-")[0]) / 1000


def _record(fields: Mapping[bytes, bytes]) -> Record:
    headers = {
        name.removeprefix(HEADER).decode(): value.decode("utf-8", "surrogateescape")
        for name, value in fields.items()
        if name.startswith(HEADER)
    }
    return Record(fields.get(VALUE, b""), headers)
