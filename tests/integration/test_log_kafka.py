"""The log on Kafka where Kafka is unkind: rebalances, frozen and dead brokers, records that nobody can read."""

import asyncio
import logging
import os
import signal
import struct
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.record.util import calc_crc32c
from redis.asyncio import Redis

from router import envelope, log_kafka, topics
from router.job import Job, JobState
from router.log import Delivery, Log, LogUnavailableError, Record
from router.log_kafka import REVOKE_LIMIT_S, KafkaLog, KafkaSubscription
from tests.builders import Bench, a_bench, a_job, accepted
from tests.integration.test_worker import Counting, working
from tests.servers import SESSION_S, LogPlace, kafka_cluster
from tools.kafka.broker import Cluster

PATIENCE_S = 40.0
CRC = slice(
    17, 21
)  # in a record batch: base offset 8, length 4, leader epoch 4, magic 1, then the checksum of the rest


@pytest.fixture
def place(kafka_bootstrap: str) -> LogPlace:
    return LogPlace.fresh("kafka", kafka_bootstrap)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    """A broker of this module's own, to be frozen, killed and lied to."""
    with kafka_cluster(tmp_path_factory.mktemp("own-kafka")) as own:
        yield own


@asynccontextmanager
async def connected(place: LogPlace, **options: Any) -> AsyncGenerator[KafkaLog]:
    async with KafkaLog.connect(place.address, prefix=place.prefix, session_s=SESSION_S, **options) as log:
        await log.create(["jobs"])
        yield log


@asynccontextmanager
async def member(log: KafkaLog) -> AsyncGenerator[KafkaSubscription]:
    async with log.subscribe(["jobs"], group="workers") as subscription:
        yield subscription


async def append(log: Log, count: int) -> set[bytes]:
    written = {f"job-{number:03}".encode() for number in range(count)}
    for value in sorted(written):
        await log.append("jobs", Record(value))
    return written


async def taken(subscription: KafkaSubscription, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += await subscription.take(count - len(found))
    return found


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.05)


def values(deliveries: list[Delivery]) -> set[bytes]:
    return {delivery.record.value for delivery in deliveries}


async def test_a_member_is_not_given_again_what_it_holds_of_partitions_that_it_keeps(place: LogPlace) -> None:
    async with connected(place, partitions=4) as log, member(log) as stays:
        written = await append(log, 40)
        held = await taken(stays, 40)

        async with member(log) as comes:
            passed_on: list[Delivery] = []
            again: list[Delivery] = []

            async def half_of_it_came() -> bool:
                passed_on.extend(await comes.take(100))
                again.extend(await stays.take(100))
                return len(passed_on) == 20 and log.counts.redelivered == 20

            await until(half_of_it_came)

    assert values(held) == written
    assert again == []
    assert values(passed_on) < written


async def test_what_is_done_after_its_partition_went_elsewhere_is_not_committed(place: LogPlace) -> None:
    async with connected(place, partitions=2) as log, member(log) as first:
        await append(log, 10)
        held = await taken(first, 10)
        async with member(log) as second:
            passed_on = await taken(second, 5)
            for delivery in held:
                await first.done(delivery)

            async def only_the_others_are_left() -> bool:
                return await log.backlog("jobs", group="workers") == len(passed_on)

            await until(only_the_others_are_left)


async def test_what_another_member_did_meanwhile_is_not_undone_when_its_partition_comes_back(place: LogPlace) -> None:
    async with connected(place, partitions=2) as log:
        async with member(log) as stays:
            await append(log, 10)
            held = await taken(stays, 10)
            async with member(log) as comes:
                passed_on = await taken(comes, 5)
                for delivery in passed_on:
                    await comes.done(delivery)
            for delivery in held:
                if delivery.record.value not in values(passed_on):
                    await stays.done(delivery)
            for _ in range(2):
                await log.append("jobs", Record(b"later"))  # one to each partition: it has both again
            later = await taken(stays, 2)

        assert values(later) == {b"later"}
        assert await log.backlog("jobs", group="workers") == 2


async def test_the_record_that_still_runs_is_what_the_next_reader_starts_at(place: LogPlace) -> None:
    async with connected(place, partitions=1) as log:
        await append(log, 10)
        async with member(log) as first:
            held = await taken(first, 10)
            for delivery in held[:3] + held[4:]:
                await first.done(delivery)

        assert await log.backlog("jobs", group="workers") == 7
        async with member(log) as second:
            assert values(await taken(second, 7)) == values(held[3:])


async def test_a_full_window_stops_its_partition_and_no_other(place: LogPlace) -> None:
    async with connected(place, partitions=2, window=10) as log, member(log) as worker:
        await append(log, 200)  # round robin: a hundred each
        held = await taken(worker, 1)
        stuck = held[0].position.partition(":")[0]
        others: list[Delivery] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(others) < 100 or not log.counts.full_windows:
                for delivery in await worker.take(5):
                    if delivery.position.startswith(f"{stuck}:"):
                        held.append(delivery)
                        continue
                    others.append(delivery)
                    await worker.done(delivery)

        assert 10 <= len(held) < 15

        for delivery in held:
            await worker.done(delivery)
        assert len(await taken(worker, 1)) == 1


async def test_commits_and_records_that_are_kept_for_too_short_are_told_of(place: LogPlace) -> None:
    """The broker keeps commits for seven days, as it does where nobody has said otherwise."""
    names = ["jobs", "ledger.charges", "keys.changes", "missing"]
    async with connected(place, retention_s=3600.0) as log:
        await log.create(["ledger.charges"])
    async with connected(place, retention_s=10 * 86_400.0) as log:
        await log.create(names[:3])
        [commits, records] = await log.troubles(names)

    assert "offsets.retention.minutes of broker 1 is 10080, and records stay for 14400" in commits
    assert f"retention.ms of {place.prefix}jobs is 3600000" in records and "set 864000000" in records


async def test_a_record_is_gone_before_its_jobs_tombstone(place: LogPlace) -> None:
    """Kafka deletes whole segments; of one that grows for a week, its default, the oldest record stays for too long."""
    async with connected(place):
        admin = AIOKafkaAdminClient(bootstrap_servers=place.address)
        await admin.start()
        topic = ConfigResource(ConfigResourceType.TOPIC, f"{place.prefix}jobs", {"segment.ms": None})
        [answer] = await admin.describe_configs([topic])
        await admin.close()

    [(_, _, _, _, [(_, milliseconds, *_)])] = answer.resources
    assert int(milliseconds) < 86_400_000  # a tombstone stays for a day longer than records do


async def test_a_record_that_is_worked_on_for_far_longer_than_a_poll_may_take_stays_with_its_member(
    place: LogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_kafka, "ABANDONED_S", 2.0)  # Kafka's max.poll.interval.ms as well
    async with connected(place, partitions=1) as log:
        async with member(log) as works:
            await append(log, 2)
            held = await taken(works, 2)
            ends = time.monotonic() + 6
            again: list[Delivery] = []
            while time.monotonic() < ends:
                again += await works.take(0)
            rejoined = log.counts.rejoined
            for delivery in held:
                await works.done(delivery)
        left = await log.backlog("jobs", group="workers")

    assert (again, rejoined, left) == ([], 0, 0)


async def test_a_member_that_nobody_takes_from_leaves_and_what_it_held_goes_to_another(
    place: LogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_kafka, "ABANDONED_S", 2.0)
    async with connected(place, partitions=1) as log, member(log) as hangs:
        written = await append(log, 2)
        await taken(hangs, 2)
        for _ in range(3):  # aiokafka's own watch over its members ends with a poll that is cancelled
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hangs.take(1), 0.05)
        async with member(log) as other:
            assert values(await taken(other, 2)) == written


async def test_take_returns_while_the_group_waits_for_a_frozen_member(place: LogPlace) -> None:
    async with connected(place, partitions=2) as log:
        await append(log, 4)
        frozen = await _frozen_member(place)
        try:
            longest = 0.0
            async with member(log) as worker:
                found: list[Delivery] = []
                async with asyncio.timeout(PATIENCE_S):
                    while len(found) < 4:
                        began = time.monotonic()
                        found += await worker.take(10)
                        longest = max(longest, time.monotonic() - began)
        finally:
            frozen.kill()
            await frozen.wait()

    assert len(values(found)) == 4
    assert longest < SESSION_S / 2


async def test_a_member_that_gets_no_assignment_joins_anew(place: LogPlace) -> None:
    """Its group waits here for one that is frozen; aiokafka may wait so for a rebalance that has ended without it."""
    async with connected(place, partitions=2, unassigned_s=SESSION_S / 2) as log:
        await append(log, 4)
        frozen = await _frozen_member(place)
        try:
            async with member(log) as worker:
                found = await taken(worker, 4)
        finally:
            frozen.kill()
            await frozen.wait()

    assert len(values(found)) == 4
    assert log.counts.rejoined > 0


async def test_a_foreign_header_that_is_no_text_and_a_missing_value_break_nothing(place: LogPlace) -> None:
    async with connected(place, partitions=1) as log, member(log) as worker:
        producer = AIOKafkaProducer(bootstrap_servers=place.address)
        await producer.start()
        try:
            headers = [("Job-ID", b"\xff\xfe"), ("nothing", None)]
            await producer.send_and_wait(f"{place.prefix}jobs", None, key=b"key", headers=headers)
        finally:
            await producer.stop()

        [delivery] = await taken(worker, 1)

    assert delivery.record.value == b""
    assert delivery.record.headers["job-id"].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert delivery.record.headers["nothing"] == ""


async def test_a_record_with_a_wrong_checksum_is_passed_over_and_the_others_arrive(cluster: Cluster) -> None:
    """Those of other partitions as well, which aiokafka has drained in the poll that raises, and then drops."""
    place = LogPlace.fresh("kafka", cluster.bootstrap)
    async with connected(place, partitions=6) as log:
        written = await append(log, 60)
        with _segment(cluster, place, b"job-034") as (segment, at):
            segment[at : at + 7] = b"JOB-034"

        async with member(log) as worker:
            found = await taken(worker, 59)
            for delivery in found:
                await worker.done(delivery)

            async def is_empty() -> bool:
                await worker.take(10)
                return await log.backlog("jobs", group="workers") == 0

            await until(is_empty)

    assert values(found) == written - {b"job-034"}
    assert log.counts.unreadable == 1


async def test_a_record_with_a_header_name_that_is_no_text_is_passed_over(cluster: Cluster) -> None:
    place = LogPlace.fresh("kafka", cluster.bootstrap)
    async with connected(place, partitions=1) as log:
        await append(log, 2)
        await log.append("jobs", Record(b"job-bad", {"namename": "x"}))
        await log.append("jobs", Record(b"job-last"))
        with _segment(cluster, place, b"namename") as (segment, at):
            segment[at : at + 8] = b"\xff" * 8
            _mend_checksums(segment)

        async with member(log) as worker:
            found = await taken(worker, 3)

    assert values(found) == {b"job-000", b"job-001", b"job-last"}
    assert log.counts.unreadable == 1


async def test_a_frozen_broker_is_said_to_be_unavailable_in_bounded_time_and_is_used_again(cluster: Cluster) -> None:
    place = LogPlace.fresh("kafka", cluster.bootstrap)
    process = cluster.brokers[0].process
    assert process is not None
    async with connected(place, partitions=2, hold_s=3) as log, member(log) as worker:
        process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(LogUnavailableError):
                    await log.ping()
                with pytest.raises(LogUnavailableError):
                    await log.append("jobs", Record(b"held"))
        finally:
            process.send_signal(signal.SIGCONT)

        async def appends() -> bool:
            try:
                await log.append("jobs", Record(b"after"))
            except LogUnavailableError:
                return False
            return True

        await until(appends)
        found: list[Delivery] = []

        async def arrives() -> bool:
            try:
                found.extend(await worker.take(10))
            except LogUnavailableError:
                return False
            return b"after" in values(found)

        await until(arrives)


async def test_who_leaves_with_commits_to_make_does_so_in_bounded_time_though_the_broker_is_frozen(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"COMMIT_EVERY_S": 3600.0, "COMMIT_LIMIT_S": 1.0}.items():
        monkeypatch.setattr(log_kafka, name, seconds)
    place = LogPlace.fresh("kafka", cluster.bootstrap)
    process = cluster.brokers[0].process
    assert process is not None
    async with connected(place, partitions=1) as log:
        await append(log, 4)
        try:
            with monkeypatch.context() as soon:
                async with asyncio.timeout(None) as limit, member(log) as worker:
                    for delivery in await taken(worker, 4):
                        await worker.done(delivery)
                    process.send_signal(signal.SIGSTOP)
                    soon.setattr(log_kafka, "STOP_S", 1.0)
                    limit.reschedule(asyncio.get_running_loop().time() + 15.0)
        finally:
            process.send_signal(signal.SIGCONT)
        await log.append("jobs", Record(b"after"))

        async with member(log) as heir:
            found: list[Delivery] = []
            async with asyncio.timeout(PATIENCE_S):
                while b"after" not in values(found):
                    found += await heir.take(10)


async def test_a_broker_that_freezes_in_a_rebalance_holds_the_group_no_longer_than_promised(
    cluster: Cluster, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It freezes as a worker that has calls under way, and commits to make, gives its partitions up to a second one."""
    monkeypatch.setattr(log_kafka, "COMMIT_EVERY_S", 3600.0)  # so that all that is done waits for the revocation
    place = LogPlace.fresh("kafka", cluster.bootstrap)
    first, second = Counting(), Counting()
    lane = a_job().topic
    with _frozen_as_it_revokes(cluster, f"{place.prefix}{lane}") as revoking:
        async with connected(place, partitions=2) as log, a_bench(redis, tmp_path) as bench:
            await log.create(topics.all_topics(bench.deployments))
            done = [await _queued(bench, log, "at once") for _ in range(10)]
            stays, comes = bench.worker(first, log=log), bench.worker(second, log=log)
            async with working(stays):
                await bench.ended(*done)
                long = [await _queued(bench, log, "wait:8") for _ in range(4)]
                await until(lambda: _holds(first.open == 4))
                revoking.armed = True
                async with working(comes):
                    await until(lambda: _holds(revoking.frozen.is_set()))
                    async with asyncio.timeout(3 * REVOKE_LIMIT_S):
                        await revoking.let_go.wait()
                    assert first.open == 4, "what runs is not waited for, and not stopped"
                    revoking.thaw()
                    after: list[Job] = []

                    async def both_work() -> bool:
                        after.append(await _queued(bench, log, "afterwards"))
                        return bool(second.calls)

                    await until(both_work)
                    views = await bench.ended(*done, *long, *after)
                    await until(lambda: _holds(stays.held + comes.held == 0))
            left = await log.backlog(lane, group="workers.echo")
            events = await bench.events()

    everything = [*done, *long, *after]
    assert {view.state for view in views} == {JobState.COMPLETED}
    assert first.calls | second.calls == {job.id: 1 for job in everything}
    assert not first.calls.keys() & second.calls.keys()
    assert events == {f"job_{job.id}": "job.completed" for job in everything}
    assert left == 0


async def test_a_broker_that_dies_and_comes_back_fails_no_append_and_loses_nothing(cluster: Cluster) -> None:
    place = LogPlace.fresh("kafka", cluster.bootstrap)
    async with connected(place, partitions=2, hold_s=60) as log, member(log) as worker:
        before = await append(log, 10)
        cluster.kill(0)
        held = [asyncio.create_task(log.append("jobs", Record(f"held-{number}".encode()))) for number in range(10)]
        await asyncio.to_thread(cluster.restart, 0)
        await asyncio.gather(*held)

        found: list[Delivery] = []

        async def all_arrive() -> bool:
            try:
                for delivery in await worker.take(100):
                    found.append(delivery)
                    await worker.done(delivery)
            except LogUnavailableError:
                return False
            return len(values(found)) == 20

        await until(all_arrive)

    assert values(found) == before | {f"held-{number}".encode() for number in range(10)}


async def test_an_end_of_the_process_with_an_open_subscription_is_bounded(place: LogPlace) -> None:
    async with connected(place, partitions=2) as log:
        await append(log, 4)
        frozen = await _frozen_member(place)
        try:
            began = time.monotonic()
            async with member(log) as worker:  # in the middle of a rebalance
                await worker.take(1)
            assert time.monotonic() - began < PATIENCE_S
        finally:
            frozen.kill()
            await frozen.wait()


async def test_the_client_library_prints_no_record_and_each_warning_once(
    place: LogPlace, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with connected(place, partitions=1) as log:
            await log.append("jobs", Record(b"a prompt"))
            noisy = logging.getLogger("aiokafka.producer.sender")
            for number in range(5):
                noisy.warning("retrying %d", number)
        noisy.info("heard again")

    lines = [record.getMessage() for record in caplog.records if record.name.startswith("aiokafka")]
    assert not any("prompt" in line for line in lines)
    assert [line for line in lines if line.startswith(("retrying", "heard"))] == ["retrying 0", "heard again"]


async def _queued(bench: Bench, log: Log, text: str) -> Job:
    """A job on the board and on this log."""
    job = await accepted(bench.board, a_job(text), confirmed=False)
    await log.append(job.topic, envelope.to_record(job))
    await bench.board.confirm(job.tenant, job.id)
    return job


async def _holds(verdict: bool) -> bool:
    return verdict


class _Revoking(logging.Filter):
    """Hears from aiokafka that a member gives a topic's partitions up, and freezes the broker at that."""

    def __init__(self, broker: int, topic: str) -> None:
        super().__init__()
        self.armed = False
        self.frozen, self.let_go = asyncio.Event(), asyncio.Event()
        self._broker = broker
        self._topic = topic
        self._member: asyncio.Task[Any] | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Called in the member's own task, just before it commits. Lets everything pass."""
        match record.msg.split(" ", 1)[0], record.args:
            case "Revoking", (frozenset() as revoked, _) if self.armed and self._topic in {
                each.topic for each in revoked
            }:
                os.kill(self._broker, signal.SIGSTOP)
                self.armed, self._member = False, asyncio.current_task()
                self.frozen.set()
            case "(Re-)joining", _ if self.frozen.is_set() and asyncio.current_task() is self._member:
                self.let_go.set()
        return True

    def thaw(self) -> None:
        os.kill(self._broker, signal.SIGCONT)


@contextmanager
def _frozen_as_it_revokes(cluster: Cluster, topic: str) -> Generator[_Revoking]:
    """Once `armed`; until `thaw` or the end of this block."""
    process, library = cluster.brokers[0].process, logging.getLogger("aiokafka.consumer.group_coordinator")
    assert process is not None
    revoking, level = _Revoking(process.pid, topic), library.level
    library.addFilter(revoking)
    library.setLevel(logging.INFO)
    try:
        yield revoking
    finally:
        revoking.thaw()
        library.setLevel(level)
        library.removeFilter(revoking)


async def _frozen_member(place: LogPlace) -> asyncio.subprocess.Process:
    """Joined the group, then stopped in its tracks."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.contracts.log_member",
        *("kafka", place.address, place.prefix, "jobs", "workers"),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
    os.kill(process.pid, signal.SIGSTOP)
    return process


@contextmanager
def _segment(cluster: Cluster, place: LogPlace, marker: bytes) -> Generator[tuple[bytearray, int]]:
    """The one segment of `jobs` that contains `marker`, to be changed under the broker; and where it is."""
    for path in cluster.brokers[0].data.glob(f"{place.prefix}jobs-*/00000000000000000000.log"):
        segment = bytearray(path.read_bytes())
        at = segment.find(marker)
        if at >= 0:
            yield segment, at
            with path.open("r+b") as file:
                file.write(segment)
            return
    raise AssertionError(f"no segment contains {marker!r}")


def _mend_checksums(segment: bytearray) -> None:
    start = 0
    while start + 61 <= len(segment):
        [length] = struct.unpack(">i", segment[start + 8 : start + 12])
        if length <= 0:
            return  # the file is longer than what was written
        batch = memoryview(segment)[start : start + 12 + length]
        batch[CRC] = struct.pack(">I", calc_crc32c(bytes(batch[CRC.stop :])))
        start += 12 + length
