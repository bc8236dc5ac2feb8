"""The log on Kafka: aiokafka with guard rails. What each of them guards against is written beside it."""

import asyncio
import contextlib
import itertools
import logging
import random
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import isinf
from typing import Any, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import AIOKafkaConnection, collect_hosts
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import (
    AuthenticationFailedError,
    CorruptRecordException,
    KafkaError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    SaslAuthenticationFailed,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
)
from aiokafka.structs import ConsumerRecord

from policies.ending import ended
from router.log import (
    RECORD_LIMIT,
    Counts,
    Delivery,
    LogRefusedError,
    LogUnavailableError,
    Marks,
    Record,
    TopicMissingError,
    chosen,
)
from router.log_kafka_kept import Kept, questions
from router.offsets import Offsets
from router.topics import KEPT_LONGER, kept_s

HOLD_S = 15.0  # longer than it takes to fence a broker that died (9 s, then 5 s to move its partitions)
SESSION_S = 45.0
RETENTION_S = 3 * 86_400.0
SEGMENT_S = 43_200.0  # a record goes with its segment, and must be gone a day before its job's tombstone
WINDOW = 20_000  # offsets of one partition between the oldest that runs and the newest taken
APPENDS_LIMIT = 20_000  # under way at once; far above what the door lets in

TAKE_S = 0.25  # the longest that `take` waits for a poll, which goes on by itself
POLL_MS = 200  # the longest that a poll waits for records
FULL_MS = 50  # what take(0) waits, so that a loop over a full subscription does not spin
COMMIT_EVERY_S = 1.0
COMMIT_LIMIT_S = 5.0
REVOKE_LIMIT_S = 2.0  # the whole group waits for this
ABANDONED_S = 120.0  # nobody took for this long: the member leaves
UNASSIGNED_S = 90.0  # without an assignment for longer, a member joins anew: its rebalance may never end
JOIN_LIMIT_S = 90.0  # the members of a group that did not leave are waited for: session and rebalance time-out
JOIN_WAIT_S = 10.0  # what `subscribe` waits for it; after that it goes on by itself
UNREADABLE_MS = 500  # a poll of one partition, to find the record that cannot be read
STOP_S = 10.0
REQUEST_S = 10.0  # of anything but produce and fetch
PING_S = 2.0
LOGIN_S = 5.0  # of one broker: a handshake and the work of a password that is not sent
CLOSE_S = 0.5
HEARD_S = 2.0  # until every broker has heard of a new topic
REFRESH_S = 0.25  # topics that are missing are not looked for more often
QUIET_S = 10.0  # each message of aiokafka is printed once in this time

RAISED = ('Unable connect to "%s:%s": %s',)  # messages of aiokafka that come just before it raises

# What a poll raises at the same place for ever: a wrong checksum, and a header's name that is no UTF-8.
UNREADABLE = (CorruptRecordException, ValueError)
LINGER_S = 0.003  # that a record waits for others to share its request
SHARED = 8  # records in a row on one partition at most, so that few long jobs do not wait for one worker
NEVER = (-1, 0.0)
LOOK_BYTES = 16 * 1024  # of a record that is only looked at; a broker gives a larger one whole
NOTHING = TopicPartition("", -1)  # a poll of this partition takes nothing and counts as a poll

log = structlog.get_logger()
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Security:
    """How to speak to the brokers: `protocol` is SSL, SASL_PLAINTEXT or SASL_SSL."""

    protocol: str
    ssl_context: ssl.SSLContext | None = None
    mechanism: str = "PLAIN"
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def arguments(self) -> dict[str, Any]:
        """As every client of aiokafka takes them."""
        return {
            "security_protocol": self.protocol,
            "ssl_context": self.ssl_context,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }


@dataclass(slots=True)
class _Share:
    """The turn of a partition, for `left` more records until then."""

    turn: int
    left: int
    until: float  # time.monotonic()


class KafkaLog:
    """`router.log.Log` on Apache Kafka. Open it with `connect`."""

    def __init__(
        self,
        producer: Any,
        admin: Any,
        clients: Mapping[str, Any],
        *,
        prefix: str,
        partitions: int,
        replication: int,
        hold_s: float,
        session_s: float,
        retention_s: float,
        window: int,
        unassigned_s: float,
    ) -> None:
        self.counts = Counts()
        self._producer = producer
        self._admin = admin
        self._clients = clients
        self._prefix = prefix
        self._new_partitions = partitions
        self._replication = replication
        self._hold_s = hold_s
        self._session_s = session_s
        self._retention_s = retention_s
        self._window = window
        self._unassigned_s = unassigned_s
        self._turn = itertools.count(random.randrange(1 << 16))
        self._shares: dict[str, _Share] = {}
        self._appending = 0
        self._known: Mapping[str, int] = {}
        self._known_at = float("-inf")
        self._refreshing = asyncio.Lock()
        self._observer: Any = None
        self._observing = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._appended: dict[TopicPartition, tuple[int, float]] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        bootstrap: str,
        *,
        prefix: str = "",
        partitions: int = 12,
        replication: int = 1,
        security: Security | None = None,
        hold_s: float = HOLD_S,
        session_s: float = SESSION_S,
        retention_s: float = RETENTION_S,
        window: int = WINDOW,
        unassigned_s: float = UNASSIGNED_S,
    ) -> AsyncGenerator["KafkaLog"]:
        """Raises `LogUnavailableError` when no broker of `bootstrap` answers, `LogRefusedError` when we may not in.

        `partitions`, `replication` and `retention_s` are those of topics that `create` makes. An append is held
        for `hold_s` before it fails. A member that is silent for `session_s` has died. `window` is how many offsets
        of a partition may lie between the oldest record that is not done and the newest that was taken. A member
        that has had no assignment for `unassigned_s` joins anew.
        """
        clients = {"bootstrap_servers": bootstrap, **(security.arguments() if security else {})}
        with _quiet():
            producer = AIOKafkaProducer(
                **clients,
                acks="all",
                enable_idempotence=False,  # it would retry without end, and hang on stop
                linger_ms=int(LINGER_S * 1000),
                max_batch_size=262_144,
                max_request_size=1_048_576,
                request_timeout_ms=int(hold_s * 1000),
                metadata_max_age_ms=60_000,
            )
            admin = AIOKafkaAdminClient(**clients, request_timeout_ms=int(REQUEST_S * 1000), metadata_max_age_ms=60_000)
            opened = cls(
                producer,
                admin,
                clients,
                prefix=prefix,
                partitions=partitions,
                replication=replication,
                hold_s=hold_s,
                session_s=session_s,
                retention_s=retention_s,
                window=window,
                unassigned_s=unassigned_s,
            )
            try:
                try:
                    await _answer(producer.start(), hold_s)
                except LogUnavailableError as error:
                    raise await _not_reached(bootstrap, security) from error
                await _answer(admin.start(), REQUEST_S)
                await opened.topics()
                yield opened
            finally:
                await opened._close()

    async def append(self, topic: str, record: Record) -> None:
        """Returns when all replicas in sync have it. Holds on for `hold_s`, in which a dead broker is replaced."""
        if record.size > RECORD_LIMIT:
            raise ValueError(f"a record of {record.size} bytes is over the limit of {RECORD_LIMIT}")
        if self._appending >= APPENDS_LIMIT:
            raise LogUnavailableError(f"more than {APPENDS_LIMIT} appends wait for Kafka")
        self._appending += 1
        try:
            await self._must_exist([topic])
            await _answer(self._send(topic, record), self._hold_s + REQUEST_S)
        finally:
            self._appending -= 1

    @asynccontextmanager
    async def subscribe(self, topics: Sequence[str], *, group: str) -> AsyncGenerator["KafkaSubscription"]:
        """Each has a consumer of its own. `group` carries the prefix as well."""
        await self._must_exist(topics)
        subscription = KafkaSubscription(
            self._clients,
            [self._prefix + topic for topic in topics],
            prefix=self._prefix,
            group=self._prefix + group,
            session_s=self._session_s,
            window=self._window,
            unassigned_s=self._unassigned_s,
            counts=self.counts,
            stopping=self._stopping,
        )
        try:
            await subscription.join()
            yield subscription
        finally:
            await subscription.leave()

    async def read(self, topic: str, *, marks: Marks | None = None) -> AsyncGenerator[Delivery]:
        """With a consumer of its own that joins no group."""
        marks = {} if marks is None else marks
        partitions = await self._partitions_of(topic)
        consumer = AIOKafkaConsumer(
            **self._clients, auto_offset_reset="earliest", request_timeout_ms=int(REQUEST_S * 1000)
        )
        try:
            await _answer(consumer.start(), REQUEST_S)
            consumer.assign(partitions)
            ends = await _answer(consumer.end_offsets(partitions), REQUEST_S)
            begins = await _answer(consumer.beginning_offsets(partitions), REQUEST_S)
            starts = {each: max(begin, int(marks.get(f"{each.partition}", 0))) for each, begin in begins.items()}
            open_ends = {each: end for each, end in ends.items() if end > starts[each]}
            for each in open_ends:
                consumer.seek(each, starts[each])
            waited = 0
            while open_ends:
                batches = await consumer.getmany(*open_ends, timeout_ms=POLL_MS)
                waited = 0 if batches else waited + 1
                if waited * POLL_MS > REQUEST_S * 1000:
                    raise LogUnavailableError(f"Kafka does not give the records of {topic}")
                for owner, records in batches.items():
                    for record in records:
                        if record.offset < ends[owner]:
                            marks[f"{owner.partition}"] = f"{record.offset + 1}"
                            yield _delivery(topic, record)
                    if records[-1].offset + 1 >= ends[owner]:
                        del open_ends[owner]
                for owner in [each for each in open_ends if await consumer.position(each) >= ends[each]]:
                    del open_ends[owner]  # its last offsets hold no records, as after a transaction
        except KafkaError as error:
            raise LogUnavailableError(_words(error)) from error
        finally:
            await _ended(consumer.stop())

    async def newest(self, topic: str) -> Sequence[Delivery]:
        """Without a group."""
        partitions, observer = await self._partitions_of(topic), await self._observe()
        begin = await _answer(observer.beginning_offsets(partitions), REQUEST_S)
        end = await _answer(observer.end_offsets(partitions), REQUEST_S)
        places = {each: end[each] - 1 for each in partitions if end[each] > begin[each]}
        async with self._looking:
            found = await _answer(self._look_at(places), REQUEST_S) if places else {}
        return [_delivery(topic, record) for record in found.values()]

    async def ping(self) -> None:
        """Return within two seconds if a broker answers; raise `LogUnavailableError` otherwise."""
        await _answer(self._describe([]), PING_S)

    async def topics(self) -> Mapping[str, int]:
        """The topics that exist, with their number of partitions; those with another prefix left out."""
        described = await _answer(self._describe(None), REQUEST_S)
        found = {
            each["topic"].removeprefix(self._prefix): len(each["partitions"])
            for each in described
            if each["topic"].startswith(self._prefix) and not each["is_internal"]
        }
        self._known, self._known_at = {**self._known, **found}, time.monotonic()
        return found

    async def create(self, topics: Sequence[str]) -> None:
        """Make those that are missing; safe to repeat and to race. Returns when all can be written to."""
        existing = await self.topics()
        missing = [topic for topic in dict.fromkeys(topics) if topic not in existing]
        if missing:
            answer = await _answer(self._admin.create_topics([self._new(topic) for topic in missing]), REQUEST_S)
            for name, code, message in answer.topic_errors:
                if code not in (0, TopicAlreadyExistsError.errno):
                    raise LogUnavailableError(f"Kafka did not make {name}: {message or code}")
        await _answer(self._until_led(topics), REQUEST_S)
        await _answer(self._until_known(topics), REQUEST_S)

    async def troubles(self, topics: Sequence[str]) -> Sequence[str]:
        """How long commits and records are kept. A cluster may not show that to everybody."""
        there = await self.topics()
        try:
            brokers = [
                each["node_id"] for each in (await _answer(self._admin.describe_cluster(), REQUEST_S))["brokers"]
            ]
            asked = questions(brokers, [self._prefix + topic for topic in topics if topic in there])
            kept = Kept.of(await _answer(self._admin.describe_configs(asked), REQUEST_S))
        except LogUnavailableError:
            kept = Kept({}, {})
        return [*kept.troubles(topics, prefix=self._prefix, retention_s=self._retention_s)]

    async def backlog(self, topic: str, *, group: str) -> int:
        """Counts up to the oldest record that is not done: what was done after it is counted until that one is."""
        return sum(end - first for first, end in (await self._open(topic, group)).values())

    async def oldest(self, topic: str, *, group: str) -> float | None:
        """On the clocks of those who append. Each record is looked at once, however often it is asked for."""
        firsts = {each: first for each, (first, end) in (await self._open(topic, group)).items() if first < end}
        new = {each: first for each, first in firsts.items() if self._appended.get(each, NEVER)[0] != first}
        if new:
            async with self._looking:
                looked_at = await _answer(self._look_at(new), REQUEST_S)
            self._appended |= {each: (new[each], record.timestamp / 1000) for each, record in looked_at.items()}
        return min((self._appended[each][1] for each in firsts), default=None)

    async def _open(self, topic: str, group: str) -> dict[TopicPartition, tuple[int, int]]:
        """By partition the offset of the oldest record that is not done, and the one after the newest."""
        partitions, observer = await self._partitions_of(topic), await self._observe()
        committed = await _answer(
            self._admin.list_consumer_group_offsets(self._prefix + group, partitions=partitions), REQUEST_S
        )
        first = await _answer(observer.beginning_offsets(partitions), REQUEST_S)
        end = await _answer(observer.end_offsets(partitions), REQUEST_S)
        done = {each: committed[each].offset if each in committed else -1 for each in partitions}
        firsts = {each: max(first[each], done[each]) for each in partitions}
        return {each: (firsts[each], max(firsts[each], end[each])) for each in partitions}

    async def _partitions_of(self, topic: str) -> list[TopicPartition]:
        """A broker may hear of a new topic a little later than others."""
        ends = time.monotonic() + HEARD_S
        while (count := (await self.topics()).get(topic)) is None:
            if time.monotonic() > ends:
                raise TopicMissingError(f"there is no topic {self._prefix}{topic}")
            await asyncio.sleep(0.1)
        return [TopicPartition(self._prefix + topic, number) for number in range(count)]

    async def _look_at(self, places: Mapping[TopicPartition, int]) -> "dict[TopicPartition, ConsumerRecord[Any, Any]]":
        """The record at each of these offsets."""
        found: dict[TopicPartition, ConsumerRecord[Any, Any]] = {}
        observer = await self._observe()
        observer.assign(list(places))
        try:
            for place, offset in places.items():
                observer.seek(place, offset)
            while rest := places.keys() - found.keys():
                for place, records in (await observer.getmany(*rest, timeout_ms=POLL_MS, max_records=1)).items():
                    found[place] = records[0]
                    observer.pause(place)  # it makes room for those whose records are large
            return found
        except ValueError as error:  # who takes records passes over it
            raise LogUnavailableError("a record cannot be read") from error
        finally:
            observer.unsubscribe()

    async def _send(self, topic: str, record: Record) -> None:
        name = self._prefix + topic
        try:
            # The count is the producer's own: it refuses a partition that it has not heard of yet.
            count = len(await self._producer.partitions_for(name))
            await self._producer.send_and_wait(
                name,
                record.value,
                partition=self._partition(topic) % count,
                headers=[(key, value.encode("utf-8", "surrogateescape")) for key, value in record.headers.items()],
            )
        except UnknownTopicOrPartitionError:  # deleted meanwhile
            self._known = {each: known for each, known in self._known.items() if each != topic}
            raise

    def _partition(self, topic: str) -> int:
        """The next in turn, for some records at once: each batch costs the API more Python than its records do."""
        now = time.monotonic()
        share = self._shares.get(topic)
        if share is None or share.left == 0 or now >= share.until:
            share = self._shares[topic] = _Share(next(self._turn), SHARED, now + LINGER_S)
        share.left -= 1
        return share.turn

    async def _must_exist(self, topics: Sequence[str]) -> None:
        """Raises `TopicMissingError` at once, where the producer would look for the topic for `hold_s`."""
        if all(topic in self._known for topic in topics):
            return
        async with self._refreshing:
            missing = [topic for topic in topics if topic not in self._known]
            if missing and time.monotonic() - self._known_at > REFRESH_S:
                await self.topics()
                missing = [topic for topic in topics if topic not in self._known]
        if missing:
            raise TopicMissingError(f"there is no topic {self._prefix}{missing[0]}")

    async def _describe(self, names: Sequence[str] | None) -> list[Any]:
        """All topics for None. Asks again until somebody answers: the broker that was asked may just have died."""
        while True:
            with contextlib.suppress(KafkaError):
                described: list[Any] = await self._admin.describe_topics(names)
                return described
            await asyncio.sleep(0.1)

    def _new(self, topic: str) -> Any:
        keeps_s = kept_s(topic, self._retention_s)
        return NewTopic(
            self._prefix + topic,
            num_partitions=self._new_partitions,
            replication_factor=self._replication,
            topic_configs={
                "min.insync.replicas": str(max(1, self._replication - 1)),
                "unclean.leader.election.enable": "false",
                "retention.ms": "-1" if isinf(keeps_s) else str(int(keeps_s * 1000)),
                "max.message.bytes": "1048588",
            }
            | ({} if topic in KEPT_LONGER else {"segment.ms": str(int(SEGMENT_S * 1000))}),
        )

    async def _until_led(self, topics: Sequence[str]) -> None:
        names = {self._prefix + topic for topic in topics}
        while True:
            found = {each["topic"]: each for each in await self._describe(sorted(names)) if each["error_code"] == 0}
            if found.keys() == names and all(
                part["leader"] >= 0 for each in found.values() for part in each["partitions"]
            ):
                return
            await asyncio.sleep(0.05)

    async def _until_known(self, topics: Sequence[str]) -> None:
        """Here, whichever broker is asked: one may hear of them later than the one that said that they have leaders."""
        await self.topics()
        while any(topic not in self._known for topic in topics):
            await asyncio.sleep(0.05)
            await self.topics()

    async def _observe(self) -> Any:
        """A consumer without a group that knows where topics end."""
        async with self._observing:
            if self._observer is None:
                observer = AIOKafkaConsumer(
                    **self._clients, max_partition_fetch_bytes=LOOK_BYTES, request_timeout_ms=int(REQUEST_S * 1000)
                )
                try:
                    await _answer(observer.start(), REQUEST_S)
                except BaseException:
                    await observer.stop()
                    raise
                self._observer = observer
            return self._observer

    async def _close(self) -> None:
        closing = [self._producer.stop(), self._admin.close()]
        if self._observer is not None:
            closing.append(self._observer.stop())
        tasks = {asyncio.create_task(_ended(each)) for each in closing} | self._stopping
        _, late = await asyncio.wait(tasks, timeout=STOP_S)
        for task in late:
            task.cancel()
        if late:
            log.warning("log_clients_did_not_stop", clients=len(late))
            await asyncio.wait(late, timeout=1)


@dataclass(slots=True)
class _Partition:
    """What this member knows of a partition that it owns; it outlives rebalances in which it keeps the partition."""

    offsets: Offsets
    committed: int  # in this assignment; -1 when not yet


class KafkaSubscription:
    """`router.log.Subscription`: a poll that goes on by itself, and one committer."""

    def __init__(
        self,
        clients: Mapping[str, Any],
        names: Sequence[str],
        *,
        prefix: str,
        group: str,
        session_s: float,
        window: int,
        unassigned_s: float,
        counts: Counts,
        stopping: set[asyncio.Task[None]],
    ) -> None:
        self._clients = clients
        self._names = names
        self._prefix = prefix
        self._group = group
        self._session_ms = int(session_s * 1000)
        self._window = window
        self._unassigned_s = unassigned_s
        self._counts = counts
        self._stopping = stopping
        self._consumer: Any = None
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._settled = False  # whether an assignment is valid: between revoked and assigned nothing is committed
        self._unsettled_at = time.monotonic()
        self._ready: deque[Delivery] = deque()
        self._polling: asyncio.Task[Any] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._taken_at = time.monotonic()
        self._committing = asyncio.Lock()

    async def join(self) -> None:
        """Start to join, and see it done where that takes less than ten seconds."""
        self._keeping = asyncio.create_task(self._keep())
        self._polling = asyncio.create_task(self._joined())
        await asyncio.wait({self._polling}, timeout=JOIN_WAIT_S)
        self._poll_result()

    async def take(self, at_most: int, *, of: Collection[str] | None = None) -> Sequence[Delivery]:
        """See the port. While the group rebalances there is nothing to take.

        A full subscription waits 50 ms, and so does one that wants of some topics only.
        """
        self._taken_at = time.monotonic()
        if self._keeping is not None and self._keeping.done():
            self._keeping.result()  # a bug: without commits it must not go on
        if at_most == 0 or not any(of is None or delivery.topic in of for delivery in self._ready):
            if self._polling is None:
                self._polling = asyncio.create_task(self._poll(at_most, of))
            # Not wait_for: a poll that is cancelled switches off the watchdog of aiokafka for ever, and one that
            # waits for the end of a rebalance would take longer than was promised.
            await asyncio.wait({self._polling}, timeout=TAKE_S if at_most and of is None else FULL_MS / 1000)
            self._poll_result()
        return chosen(self._ready, at_most, of)

    async def done(self, delivery: Delivery) -> None:
        """Remembered with the next commit, within a second or so; never raises."""
        number, _, offset = delivery.position.partition(":")
        partition = self._partitions.get(TopicPartition(self._prefix + delivery.topic, int(number)))
        if partition is not None:
            partition.offsets.finish(int(offset))

    async def leave(self) -> None:
        """Commit what is done and leave the group, in bounded time."""
        if self._keeping is not None:
            await ended(self._keeping)
        await self._commit(COMMIT_LIMIT_S)
        await self._stop()

    async def revoked(self) -> None:
        """A rebalance begins. The whole group waits for this: commit, and let what runs run."""
        await self._commit(REVOKE_LIMIT_S)
        self._settled = False
        self._unsettled_at = time.monotonic()

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """A rebalance ended: forget what now belongs to others, keep what stayed."""
        self._assigned = frozenset(partitions)
        self._partitions = {each: kept for each, kept in self._partitions.items() if each in self._assigned}
        for kept in self._partitions.values():
            kept.committed = -1
        self._ready = deque(each for each in self._ready if self._owner(each) in self._assigned)
        self._settled = True

    async def _keep(self) -> None:
        """For ever: commit what is done; leave when nobody takes any more; join anew when no rebalance ends."""
        while True:
            await asyncio.sleep(COMMIT_EVERY_S)
            await self._commit(COMMIT_LIMIT_S)
            if self._consumer is not None and time.monotonic() - self._taken_at > ABANDONED_S:
                log.error("log_member_left", group=self._group, silent_s=ABANDONED_S)
                await self._stop()
            if self._consumer is not None and not self._settled:
                unassigned_s = time.monotonic() - self._unsettled_at
                if unassigned_s > self._unassigned_s:
                    log.error("log_member_unassigned", group=self._group, seconds=round(unassigned_s))
                    self._counts.rejoined += 1
                    self._unsettled_at = time.monotonic()
                    await self._stop()

    def _poll_result(self) -> None:
        if self._polling is None or not self._polling.done():
            return
        polling, self._polling = self._polling, None
        try:
            polling.result()
        except (KafkaError, TimeoutError) as error:
            raise LogUnavailableError(f"Kafka: {_words(error)}") from error

    async def _poll(self, room: int, of: Collection[str] | None) -> None:
        consumer = await self._joined()
        wanted = self._wanted(of) if room else (NOTHING,)
        timeout_ms = POLL_MS if room and of is None else FULL_MS
        try:
            try:
                self._arrived(await consumer.getmany(*wanted, timeout_ms=timeout_ms, max_records=max(1, room)))
            except RecordTooLargeError:
                self._counts.unreadable += 1  # aiokafka has passed it over
            except UNREADABLE:
                await self._seek_back(consumer)
                await self._pass_over_unreadable(consumer, room)
        except Exception:
            # What the poll had drained of other partitions is gone, its tasks may be dead, and its watchdog counts a
            # poll that raised as under way for ever: only a new consumer starts where this member really is.
            self._counts.rejoined += 1
            await self._stop(polling=False)
            raise

    def _wanted(self, of: Collection[str] | None) -> Sequence[TopicPartition]:
        """Which partitions to poll, of all topics or of these; none named means all.

        Not paused: a pause is forgotten in a rebalance, and throws away what was fetched already.
        """
        full = {each for each, known in self._partitions.items() if known.offsets.window >= self._window}
        self._counts.full_windows += bool(full)
        if not full and of is None:
            return ()
        left = self._assigned - full
        names = None if of is None else {self._prefix + topic for topic in of}
        return tuple(each for each in left if names is None or each.topic in names) or (NOTHING,)

    def _arrived(self, batches: Mapping[TopicPartition, Sequence["ConsumerRecord[Any, Any]"]]) -> None:
        # Called without an await after the poll, so that no rebalance comes in between.
        for owner, records in batches.items():
            for record in records:
                known = self._partition(owner, record.offset)
                if known.offsets.is_known(record.offset):
                    self._counts.redelivered += 1
                    continue
                known.offsets.start(record.offset)
                self._ready.append(_delivery(owner.topic.removeprefix(self._prefix), record))

    async def _seek_back(self, consumer: Any) -> None:
        """To where this member really is. A poll that raises has moved on in the partitions that it drained before,
        and delivers nothing of them: without this their records are lost, and committed with the next ones.
        """
        async with asyncio.timeout(REQUEST_S):
            for owner in consumer.assignment():
                known = self._partitions.get(owner)
                position = await consumer.committed(owner) if known is None else known.offsets.next
                if position is None:
                    await consumer.seek_to_beginning(owner)
                else:
                    consumer.seek(owner, position)

    async def _pass_over_unreadable(self, consumer: Any, room: int) -> None:
        """Poll each partition alone, record by record, and seek past those that raise.

        Without this, the records before and after one that cannot be read are never delivered.
        """
        for owner in sorted(consumer.assignment()):
            for _ in range(max(1, room)):
                try:
                    batches = await consumer.getmany(owner, timeout_ms=UNREADABLE_MS, max_records=1)
                except UNREADABLE as error:
                    async with asyncio.timeout(REQUEST_S):
                        offset = await consumer.position(owner)
                    consumer.seek(owner, offset + 1)
                    self._partition(owner, offset).offsets.skip(offset)
                    self._counts.unreadable += 1
                    where = f"{owner.topic}:{owner.partition}:{offset}"
                    log.error("log_record_unreadable", record=where, error=type(error).__name__)
                    continue
                if not batches:
                    break
                self._arrived(batches)

    def _partition(self, owner: TopicPartition, first: int) -> _Partition:
        known = self._partitions.get(owner)
        if known is None:
            known = self._partitions[owner] = _Partition(Offsets(first), committed=first)
        return known

    def _owner(self, delivery: Delivery) -> TopicPartition:
        return TopicPartition(self._prefix + delivery.topic, int(delivery.position.partition(":")[0]))

    async def _commit(self, limit_s: float) -> None:
        """Where the next reader is to start, for each partition: never less than before in this assignment."""
        try:
            async with asyncio.timeout(limit_s), self._committing:
                if self._consumer is None or not self._settled:
                    return
                further = {
                    each: known.offsets.first_incomplete
                    for each, known in self._partitions.items()
                    if each in self._assigned and known.offsets.first_incomplete > known.committed
                }
                if not further:
                    return
                partitions = self._partitions
                await self._consumer.commit(further)  # retries without end: hence the limit
                for each, offset in further.items():
                    if self._partitions is partitions:
                        partitions[each].committed = offset
        except (KafkaError, TimeoutError) as error:
            log.warning("log_commit_failed", group=self._group, error=_words(error))

    async def _joined(self) -> Any:
        """The consumer, which is started anew after a failure."""
        if self._consumer is not None:
            return self._consumer
        consumer = AIOKafkaConsumer(
            **self._clients,
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=self._session_ms,
            heartbeat_interval_ms=min(3000, self._session_ms // 3),
            rebalance_timeout_ms=min(30_000, self._session_ms),
            request_timeout_ms=40_000,
            max_poll_interval_ms=int(ABANDONED_S * 1000),
            fetch_max_wait_ms=100,
            max_partition_fetch_bytes=1_048_576,
            fetch_max_bytes=16_777_216,
            metadata_max_age_ms=60_000,
            isolation_level="read_uncommitted",
            partition_assignment_strategy=[RoundRobinPartitionAssignor],  # a second one would join twice
        )
        consumer.subscribe(self._names, listener=_Listener(self))
        self._consumer = consumer
        try:
            async with asyncio.timeout(JOIN_LIMIT_S):
                await consumer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await self._stop(polling=False)
            raise LogUnavailableError(f"Kafka did not let us into the group: {_words(error)}") from error
        return consumer

    async def _stop(self, *, polling: bool = True) -> None:
        """Leave the group. What this member holds stays known to it, in case it comes back."""
        consumer, self._consumer = self._consumer, None
        if polling and self._polling is not None:
            # It may wait for a rebalance that no longer comes; its consumer is thrown away. Who waits for it in `take`
            # must not take its end for their own.
            thrown_away, self._polling = self._polling, None
            thrown_away.cancel()
            await asyncio.gather(thrown_away, return_exceptions=True)
        if self._settled:
            self._settled = False
            self._unsettled_at = time.monotonic()
        if consumer is None:
            return
        # In the middle of a rebalance this takes until its end; then it goes on by itself.
        stopping = asyncio.create_task(_ended(consumer.stop()))
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)
        await asyncio.wait({stopping}, timeout=STOP_S)


def _delivery(topic: str, record: "ConsumerRecord[Any, Any]") -> Delivery:
    headers = {name.lower(): (value or b"").decode("utf-8", "surrogateescape") for name, value in record.headers}
    return Delivery(topic, f"{record.partition}:{record.offset}", Record(record.value or b"", headers))


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, subscription: KafkaSubscription) -> None:
        self._subscription = subscription

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._subscription.revoked()

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._subscription.assigned(assigned)


async def _answer(call: Awaitable[Answer], limit_s: float) -> Answer:
    """What Kafka says, in bounded time, with its errors as ours."""
    try:
        async with asyncio.timeout(limit_s):
            return await call
    except (UnknownTopicOrPartitionError, TopicAuthorizationFailedError) as error:
        raise TopicMissingError(f"there is no such topic for us: {_words(error)}") from error
    except MessageSizeTooLargeError as error:
        raise ValueError("the record is over Kafka's limit") from error
    except (KafkaError, OSError, TimeoutError) as error:
        raise LogUnavailableError(f"Kafka did not confirm: {_words(error)}") from error


async def _not_reached(bootstrap: str, security: Security | None) -> LogUnavailableError:
    """Why: `LogRefusedError` where one of them does not let us in. aiokafka itself says that to nobody but its log."""
    why = "no answer"
    for host, port, _ in collect_hosts(bootstrap):
        connection = AIOKafkaConnection(host, port, **(security.arguments() if security else {}))
        try:
            async with asyncio.timeout(LOGIN_S):
                await connection.connect()
        except ssl.SSLCertVerificationError:
            return LogRefusedError("Kafka shows a certificate that we do not trust: set kafka.ca_file to its authority")
        except (AuthenticationFailedError, SaslAuthenticationFailed):
            return LogRefusedError("Kafka does not let us in: kafka.username or kafka.password is wrong")
        except UnsupportedSaslMechanismError:
            return LogRefusedError("Kafka does not let us in: it does not have this kafka.mechanism")
        except (KafkaError, OSError, TimeoutError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or _words(error)
        finally:
            if (closed := connection.close()) is not None:
                await asyncio.wait([closed], timeout=CLOSE_S)
    return LogUnavailableError(f"Kafka does not answer at {bootstrap}: {why}")


async def _ended(stop: Coroutine[Any, Any, Any]) -> None:
    try:
        await stop
    except (KafkaError, OSError, TimeoutError) as error:
        log.warning("log_client_stopped_badly", error=_words(error))


def _words(error: BaseException) -> str:
    return type(error).__name__


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """While a broker is away aiokafka logs hundreds of lines a minute."""
    once = _OnceInAWhile()
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("aiokafka")]
    for each in loggers:
        each.addFilter(once)  # a filter is not inherited, so each logger gets it
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(once)


class _OnceInAWhile(logging.Filter):
    """Lets each warning through once in `QUIET_S`, and nothing below: aiokafka's debug lines carry the records."""

    def __init__(self) -> None:
        super().__init__()
        self._printed: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.msg in RAISED:
            return False
        now = time.monotonic()
        key = (record.name, str(record.msg))  # the pattern, of which there are a few dozen
        if now - self._printed.get(key, float("-inf")) < QUIET_S:
            return False
        self._printed[key] = now
        return True
