"""What every log promises. Each test runs on Redis Streams and on Kafka."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.log import RECORD_LIMIT, Delivery, Log, LogUnavailableError, Record, Subscription, TopicMissingError
from tests.servers import LogPlace

PATIENCE_S = 30.0  # until a broken promise counts as broken; a dead member of a Kafka group takes ten


async def taken(subscription: Subscription, count: int, *, at_most: int = 100) -> list[Delivery]:
    """The next `count` deliveries, however many calls that takes."""
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += await subscription.take(min(at_most, count - len(found)))
    return found


async def nothing_comes(subscription: Subscription, *, for_s: float = 1.0) -> bool:
    """Whether nothing is delivered for a while."""
    deadline = time.monotonic() + for_s
    found: list[Delivery] = []
    while time.monotonic() < deadline:
        found += await subscription.take(10)
    return not found


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.05)


def values(deliveries: Sequence[Delivery]) -> list[bytes]:
    return sorted(delivery.record.value for delivery in deliveries)


async def filled(log: Log, *topics: str, records: int = 1) -> list[bytes]:
    """Topics with records in them; the values, sorted."""
    await log.create(topics)
    written = [f"{topic}-{number:03}".encode() for topic in topics for number in range(records)]
    for value in written:
        await log.append(value.decode().rpartition("-")[0], Record(value))
    return sorted(written)


async def test_a_record_comes_again_until_it_is_done(log: Log) -> None:
    await filled(log, "jobs")
    async with log.subscribe(["jobs"], group="workers") as first:
        [delivery] = await taken(first, 1)
    async with log.subscribe(["jobs"], group="workers") as second:
        [again] = await taken(second, 1)
        await second.done(again)
    async with log.subscribe(["jobs"], group="workers") as third:
        assert await nothing_comes(third)

    assert again == delivery


async def test_what_is_done_in_any_order_is_remembered_and_the_rest_comes_again(log: Log) -> None:
    written = await filled(log, "jobs", records=30)
    async with log.subscribe(["jobs"], group="workers") as first:
        deliveries = await taken(first, 30)
        undone = deliveries[13]
        for delivery in reversed(deliveries):
            if delivery is not undone:
                await first.done(delivery)
    async with log.subscribe(["jobs"], group="workers") as second:
        again = await taken(second, 1)
        while more := await second.take(100):
            again += more

    assert values(deliveries) == written
    assert undone.record in [delivery.record for delivery in again]
    assert set(values(again)) <= set(written)


async def test_a_new_group_starts_at_the_oldest_record(log: Log) -> None:
    written = await filled(log, "jobs", records=3)
    async with log.subscribe(["jobs"], group="workers") as worker:
        for delivery in await taken(worker, 3):
            await worker.done(delivery)

        async with log.subscribe(["jobs"], group="auditors") as auditor:
            assert values(await taken(auditor, 3)) == written


async def test_members_of_a_group_share_a_topic(log: Log) -> None:
    await log.create(["jobs"])
    async with log.subscribe(["jobs"], group="workers") as one, log.subscribe(["jobs"], group="workers") as other:
        found: dict[str, list[bytes]] = {"one": [], "other": []}
        written = 0
        async with asyncio.timeout(PATIENCE_S):
            while not (found["one"] and found["other"]):
                for _ in range(2):
                    await log.append("jobs", Record(str(written).encode()))
                    written += 1
                for name, member in (("one", one), ("other", other)):
                    for delivery in await member.take(1):
                        found[name].append(delivery.record.value)
                        await member.done(delivery)

        assert len(found["one"] + found["other"]) <= written


async def test_a_member_that_dies_without_leaving_is_taken_over(log: Log, log_place: LogPlace) -> None:
    [value] = await filled(log, "jobs")
    async with _another_process(log_place, "jobs", "workers") as process:
        assert process.stdout is not None
        printed = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        process.kill()
        await process.wait()

    async with log.subscribe(["jobs"], group="workers") as heir:
        [delivery] = await taken(heir, 1)

    assert printed.decode().split() == ["took", delivery.position]
    assert delivery.record.value == value


async def test_a_member_that_lives_keeps_what_it_holds(log: Log) -> None:
    await filled(log, "jobs")
    async with log.subscribe(["jobs"], group="workers") as holder:
        [held] = await taken(holder, 1)
        async with log.subscribe(["jobs"], group="workers") as idle:
            deadline = time.monotonic() + 5  # twice the time after which the silent lose their records
            found: list[Delivery] = []
            while time.monotonic() < deadline:
                found += await holder.take(0)
                found += await holder.take(1)
                if not await _is_kafkas(log):  # there, a partition may pass on, and with it what is not done
                    found += await idle.take(1)
                else:
                    await idle.take(0)
            await holder.done(held)

    assert found == []


async def test_take_of_nothing_takes_nothing_and_keeps_the_membership(log: Log) -> None:
    await filled(log, "jobs")
    async with log.subscribe(["jobs"], group="workers") as worker:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            assert len(await worker.take(0)) == 0

        assert len(await taken(worker, 1)) == 1


async def test_take_returns_at_most_what_was_asked_for_and_nothing_that_is_held(log: Log) -> None:
    written = await filled(log, "jobs", "more", records=20)
    async with log.subscribe(["jobs", "more"], group="workers") as worker:
        found: list[Delivery] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < len(written):
                batch = await worker.take(3)
                assert len(batch) <= 3
                found += batch
        assert await nothing_comes(worker)

    assert values(found) == written


async def test_take_of_some_topics_gives_none_of_the_others_and_these_come_later(log: Log) -> None:
    written = await filled(log, "jobs", "hurried", records=5)
    hurried, found = {"hurried"}, list[Delivery]()
    async with log.subscribe(["jobs", "hurried"], group="workers") as subscription:
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 5:
                found += await subscription.take(2, of=hurried)
        more = [each for _ in range(5) for each in await subscription.take(2, of=hurried)]
        rest = await taken(subscription, 5)

    assert ({each.topic for each in found}, more) == (hurried, [])
    assert values([*found, *rest]) == written


async def test_take_returns_soon_when_there_is_nothing(log: Log) -> None:
    await log.create(["jobs"])
    async with log.subscribe(["jobs"], group="workers") as worker:
        began = time.monotonic()
        assert not await worker.take(1)

        assert time.monotonic() - began < 5


async def test_bytes_and_headers_arrive_as_they_were(log: Log) -> None:
    record = Record(
        bytes(range(256)),
        {"job-id": "job_1", "path": "köln/日本", "empty": "", "wild": b"\xff\xfe".decode("utf-8", "surrogateescape")},
    )
    await log.create(["jobs"])
    await log.append("jobs", record)
    await log.append("jobs", Record(b""))

    async with log.subscribe(["jobs"], group="workers") as worker:
        deliveries = await taken(worker, 2)

    assert {delivery.topic for delivery in deliveries} == {"jobs"}
    assert record in [delivery.record for delivery in deliveries]
    assert Record(b"") in [delivery.record for delivery in deliveries]


async def test_positions_name_a_record_within_its_topic(log: Log) -> None:
    await filled(log, "jobs", records=20)

    async with log.subscribe(["jobs"], group="workers") as worker:
        deliveries = await taken(worker, 20)

    assert len({delivery.position for delivery in deliveries}) == 20


async def test_a_topic_that_was_not_created_is_missing_and_is_not_made(log: Log) -> None:
    began = time.monotonic()
    with pytest.raises(TopicMissingError):
        await log.append("nowhere", Record(b"lost"))
    with pytest.raises(TopicMissingError):
        async with log.subscribe(["nowhere"], group="workers"):
            pass
    with pytest.raises(TopicMissingError):
        await log.backlog("nowhere", group="workers")

    assert await log.topics() == {}
    assert time.monotonic() - began < 10


async def test_a_topic_that_was_missing_can_be_used_once_it_is_created_elsewhere(log: Log, log_place: LogPlace) -> None:
    with pytest.raises(TopicMissingError):
        await log.append("jobs", Record(b"early"))
    async with log_place.open() as elsewhere:
        await elsewhere.create(["jobs"])

    async def goes() -> bool:
        try:
            await log.append("jobs", Record(b"hello"))
        except TopicMissingError:
            return False
        return True

    await until(goes)


async def test_create_is_safe_to_repeat_and_to_race(log: Log, log_place: LogPlace) -> None:
    async with log_place.open() as other:
        await asyncio.gather(*(each.create(["jobs", "more"]) for each in (log, other, log, other)))
    await log.append("jobs", Record(b"hello"))
    await log.create(["more", "jobs"])

    assert set(await log.topics()) == {"jobs", "more"}
    assert all(partitions >= 1 for partitions in (await log.topics()).values())
    async with log.subscribe(["jobs"], group="workers") as worker:
        assert values(await taken(worker, 1)) == [b"hello"]


async def test_nothing_is_amiss_with_topics_that_it_made(log: Log) -> None:
    await log.create(["jobs", "ledger.charges", "keys.changes"])

    assert await log.troubles(["jobs", "ledger.charges", "keys.changes", "missing"]) in ([], ())


async def test_the_backlog_counts_what_is_worked_on_and_not_what_is_done(log: Log) -> None:
    await filled(log, "jobs", records=10)
    assert await log.backlog("jobs", group="workers") == 10

    async with log.subscribe(["jobs"], group="workers") as worker:
        deliveries = await taken(worker, 10)
        assert await log.backlog("jobs", group="workers") == 10

        for delivery in deliveries:
            await worker.done(delivery)

        async def is_empty() -> bool:
            return await log.backlog("jobs", group="workers") == 0

        await until(is_empty)
    assert await log.backlog("jobs", group="auditors") == 10


async def test_the_oldest_is_the_first_that_is_not_done_whether_or_not_it_is_worked_on(log: Log) -> None:
    began = time.time()
    await log.create(["jobs"])
    assert await log.oldest("jobs", group="workers") is None
    await log.append("jobs", Record(b"x" * 100_000))
    first = await log.oldest("jobs", group="workers")
    await asyncio.sleep(0.05)  # Redis and Kafka count in milliseconds
    await log.append("jobs", Record(b"second"))
    assert first is not None and began - 1 <= first <= time.time() + 1
    assert await log.oldest("jobs", group="workers") == first

    async with log.subscribe(["jobs"], group="workers") as worker:
        one, other = sorted(await taken(worker, 2), key=lambda delivery: -len(delivery.record.value))
        assert await log.oldest("jobs", group="workers") == first

        await worker.done(one)

        async def is_later() -> bool:
            return (await log.oldest("jobs", group="workers") or 0.0) > first

        await until(is_later)
        await worker.done(other)

        async def is_none() -> bool:
            return await log.oldest("jobs", group="workers") is None

        await until(is_none)
    assert await log.oldest("jobs", group="auditors") == first


async def test_the_newest_records_are_seen_and_not_taken(log: Log) -> None:
    await log.create(["jobs", "others"])
    nothing = await log.newest("jobs")
    for number in range(20):
        await log.append("jobs", Record(b"%d" % number))
    newest = await log.newest("jobs")

    assert nothing == []
    assert 1 <= len(newest) <= 3 and b"19" in {each.record.value for each in newest}
    assert await log.backlog("jobs", group="workers") == 20
    with pytest.raises(TopicMissingError):
        await log.newest("missing")


async def test_who_reads_again_with_the_same_marks_is_given_just_what_came_since(log: Log) -> None:
    written, marks = await filled(log, "jobs", records=20), dict[str, str]()
    first = [each async for each in log.read("jobs", marks=marks)]
    nothing = [each async for each in log.read("jobs", marks=marks)]
    for number in range(5):
        await log.append("jobs", Record(f"later-{number}".encode()))
    later = [each async for each in log.read("jobs", marks=marks)]

    assert values(first) == written
    assert nothing == []
    assert values(later) == [f"later-{number}".encode() for number in range(5)]
    assert len([each async for each in log.read("jobs")]) == 25


async def test_several_topics_at_once_and_records_written_while_subscribed(log: Log) -> None:
    await log.create(["jobs", "more", "most"])
    async with log.subscribe(["jobs", "more", "most"], group="workers") as worker:
        written = await filled(log, "jobs", "more", "most", records=2)
        deliveries = await taken(worker, 6)

    assert values(deliveries) == written
    assert all(delivery.record.value.startswith(delivery.topic.encode()) for delivery in deliveries)


async def test_done_for_what_meanwhile_belongs_to_another_does_not_raise(log: Log) -> None:
    await filled(log, "jobs")
    async with log.subscribe(["jobs"], group="workers") as first:
        [delivery] = await taken(first, 1)
    async with log.subscribe(["jobs"], group="workers") as second:
        await taken(second, 1)

        async with log.subscribe(["jobs"], group="workers") as third:
            await third.done(delivery)
            await third.done(delivery)


async def test_what_is_done_while_others_come_and_go_does_not_come_again(log: Log) -> None:
    """The deliveries that a member holds survive rebalances: it is not given them a second time."""
    written = await filled(log, "jobs", records=30)
    seen: list[bytes] = []
    async with log.subscribe(["jobs"], group="workers") as stays:
        held = await taken(stays, 30)
        async with log.subscribe(["jobs"], group="workers"):
            for delivery in held[:15]:
                await stays.done(delivery)
        for delivery in held[15:]:
            await stays.done(delivery)

        async def is_empty() -> bool:
            for delivery in await stays.take(10):  # a partition that went and came back brings what was not done
                seen.append(delivery.record.value)
                await stays.done(delivery)
            return await log.backlog("jobs", group="workers") == 0

        await until(is_empty)
    async with log.subscribe(["jobs"], group="workers") as later:
        assert await nothing_comes(later)

    assert values(held) == written


async def test_a_record_over_the_limit_is_refused_and_one_at_the_limit_arrives(log: Log) -> None:
    await log.create(["jobs"])
    with pytest.raises(ValueError, match="limit"):
        await log.append("jobs", Record(b"x" * (RECORD_LIMIT + 1)))
    await log.append("jobs", Record(b"x" * RECORD_LIMIT))

    async with log.subscribe(["jobs"], group="workers") as worker:
        [delivery] = await taken(worker, 1)

    assert delivery.record.size == RECORD_LIMIT


async def test_it_answers_a_ping(log: Log) -> None:
    await log.ping()


async def test_append_and_ping_say_so_in_bounded_time_when_nobody_answers(log_place: LogPlace) -> None:
    nobody = "127.0.0.1:1" if log_place.kind == "kafka" else "redis://127.0.0.1:1/0"

    with pytest.raises(LogUnavailableError):
        async with asyncio.timeout(PATIENCE_S), LogPlace(log_place.kind, nobody, "t.").open() as log:
            with pytest.raises(LogUnavailableError):
                await log.append("jobs", Record(b"hello"))
            await log.ping()


async def _is_kafkas(log: Log) -> bool:
    return any(partitions > 1 for partitions in (await log.topics()).values())


@asynccontextmanager
async def _another_process(place: LogPlace, topic: str, group: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.contracts.log_member",
        place.kind,
        place.address,
        place.prefix,
        topic,
        group,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
