"""What running scripts promises, on a real Valkey."""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha1

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from gateway import wiring
from gateway.settings import Settings
from policies.scripts import QUEUE_LIMIT, BoardRefusedError, BoardUnavailableError, Script, Scripts
from router.board import Board
from tests.builders import impatient_client, standing_still, until
from tests.servers import a_valkey

BOUND_S = 15.0  # far above what a client waits for an answer here


def a_script(text: str, name: str = "test") -> Script:
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


ECHO = a_script("return ARGV[1]")
COUNT = a_script("return redis.call('INCR', KEYS[1])")


@pytest.fixture
async def own(own_valkey: str) -> AsyncIterator["Redis"]:
    """A client of a Valkey that the test may do anything to."""
    async with impatient_client(own_valkey) as redis:
        await redis.config_set("repl-diskless-sync-delay", 0)  # else a replica is linked only after five seconds
        yield redis


async def echoed(scripts: Scripts, text: str) -> object:
    return await scripts.run(ECHO, [], [text])


async def test_each_of_many_callers_gets_its_own_answer_and_they_share_round_trips(own: "Redis") -> None:
    scripts = Scripts(own)
    await echoed(scripts, "warm")
    before = (await own.info("stats"))["total_reads_processed"]

    answers = await asyncio.gather(*(echoed(scripts, f"text {number}") for number in range(1000)))

    reads = (await own.info("stats"))["total_reads_processed"] - before
    assert answers == [f"text {number}".encode() for number in range(1000)]
    assert reads < 100


async def test_a_call_that_comes_alone_does_not_wait_for_others_to_share_its_round_trip(own: "Redis") -> None:
    scripts = Scripts(own, gather_s=60.0)

    async with asyncio.timeout(BOUND_S):
        assert await echoed(scripts, "x") == b"x"


async def test_calls_that_come_one_after_the_other_share_a_round_trip_where_it_gathers(own: "Redis") -> None:
    scripts = Scripts(own, gather_s=2.0)
    await echoed(scripts, "warm")
    before = (await own.info("stats"))["total_reads_processed"]

    calls = []
    for number in range(10):
        calls.append(asyncio.create_task(echoed(scripts, f"text {number}")))
        await own.ping()  # time enough for a round trip of its own
    answers = await asyncio.gather(*calls)

    reads = (await own.info("stats"))["total_reads_processed"] - before - len(calls)  # less the pings
    assert answers == [f"text {number}".encode() for number in range(10)]
    assert reads < 6


async def test_a_flushed_script_is_loaded_again_and_runs_once_for_each_call(own: "Redis") -> None:
    scripts = Scripts(own)
    await scripts.run(COUNT, ["n"], [])
    await own.script_flush()

    answers = await asyncio.gather(*(scripts.run(COUNT, ["n"], []) for _ in range(300)), echoed(scripts, "x"))

    assert answers == [*range(2, 302), b"x"]


async def test_bytes_texts_and_numbers_arrive_as_they_are(own: "Redis") -> None:
    joined = a_script("return table.concat(ARGV, '|')")

    answer = await Scripts(own).run(joined, [], [b"\x00\xff", "ü", 3, 0.25])

    assert answer == b"\x00\xff|\xc3\xbc|3|0.25"


async def test_a_redis_that_stands_still_is_told_in_bounded_time_and_works_again_later(own: "Redis") -> None:
    scripts = Scripts(own)
    await echoed(scripts, "warm")
    async with standing_still(own), asyncio.timeout(BOUND_S):
        failed = await asyncio.gather(*(echoed(scripts, "x") for _ in range(20)), return_exceptions=True)

    assert [type(error) for error in failed] == [BoardUnavailableError] * 20
    await until(lambda: works(scripts))


async def test_while_redis_stands_still_callers_do_not_queue_for_it_one_after_the_other(own: "Redis") -> None:
    scripts = Scripts(own)
    await echoed(scripts, "warm")
    async with standing_still(own), asyncio.timeout(BOUND_S):  # each alone would wait for the socket's time-out
        failed = [await works(scripts) for _ in range(1000)]

    assert not any(failed)
    await until(lambda: works(scripts))


async def works(scripts: Scripts) -> bool:
    try:
        return await echoed(scripts, "x") == b"x"
    except BoardUnavailableError:
        return False


async def test_a_redis_that_is_gone_is_told_in_bounded_time() -> None:
    with a_valkey() as server:
        url = server.connection_url
    async with impatient_client(url) as gone, asyncio.timeout(BOUND_S):
        with pytest.raises(BoardUnavailableError):
            await echoed(Scripts(gone), "x")
        with pytest.raises(BoardUnavailableError):
            await Scripts(gone).time()


async def test_a_connection_that_was_closed_meanwhile_costs_one_call_at_most(own: "Redis") -> None:
    scripts = Scripts(own)
    await echoed(scripts, "warm")
    await own.client_kill_filter(_type="normal", skipme=True)

    assert [await works(scripts), await works(scripts)][1]


async def test_a_durable_call_is_refused_where_no_replica_has_it(own: "Redis") -> None:
    scripts = Scripts(own, replicas=1, wait_ms=20)
    assert await scripts.run(COUNT, ["n"], []) == 1

    durable, other = await asyncio.gather(
        scripts.run(COUNT, ["n"], [], durable=True), scripts.run(COUNT, ["n"], []), return_exceptions=True
    )

    assert isinstance(durable, BoardUnavailableError)
    assert other == 3  # it may have run all the same


async def test_a_durable_call_returns_once_a_replica_has_it(own: "Redis") -> None:
    with a_valkey() as server:
        async with impatient_client(server.connection_url) as replica:
            port = int(own.connection_pool.connection_kwargs["port"])
            await replica.replicaof("127.0.0.1", port)
            await until(lambda: _is_linked(replica))

            answer = await Scripts(own, replicas=1, wait_ms=2000).run(COUNT, ["n"], [], durable=True)

            assert answer == 1
            assert await replica.get("n") == b"1"


async def _is_linked(replica: "Redis") -> bool:
    return (await replica.info("replication")).get("master_link_status") == "up"


async def test_a_caller_that_is_cancelled_hurts_nobody_else(own: "Redis") -> None:
    scripts = Scripts(own)
    await echoed(scripts, "warm")
    async with standing_still(own):
        early = [asyncio.create_task(echoed(scripts, f"early {number}")) for number in range(3)]
        await asyncio.sleep(0)  # these are on their way now
        await asyncio.sleep(0)
        late = [asyncio.create_task(echoed(scripts, f"late {number}")) for number in range(3)]
        await asyncio.sleep(0)
        early[1].cancel()
        late[1].cancel()

    answers = await asyncio.gather(*early, *late, return_exceptions=True)

    assert [type(each) for each in (answers[1], answers[4])] == [asyncio.CancelledError] * 2
    assert [answers[0], answers[2], answers[3], answers[5]] == [b"early 0", b"early 2", b"late 0", b"late 2"]


async def test_a_text_that_cannot_be_encoded_hurts_only_its_caller(own: "Redis") -> None:
    scripts = Scripts(own)

    answers = await asyncio.gather(*(echoed(scripts, text) for text in ("a", "\ud800", "b")), return_exceptions=True)

    assert isinstance(answers[1], UnicodeEncodeError)
    assert [answers[0], answers[2]] == [b"a", b"b"]


async def test_a_broken_call_hurts_only_its_caller(own: "Redis") -> None:
    scripts = Scripts(own)
    broken = a_script("return redis.call('INCR', 'a', 'b', 'c')")

    answers = await asyncio.gather(scripts.run(broken, [], []), echoed(scripts, "b"), return_exceptions=True)

    assert isinstance(answers[0], ResponseError)
    assert answers[1] == b"b"


async def test_calls_beyond_the_limit_are_refused_at_once_and_the_others_run(own: "Redis") -> None:
    scripts = Scripts(own)

    answers = await asyncio.gather(*(echoed(scripts, "x") for _ in range(QUEUE_LIMIT + 5)), return_exceptions=True)

    assert [type(each) for each in answers[QUEUE_LIMIT:]] == [BoardUnavailableError] * 5
    assert answers[:QUEUE_LIMIT] == [b"x"] * QUEUE_LIMIT


async def test_who_finds_all_connections_of_its_process_taken_waits_for_one(redis_url: str) -> None:
    async with wiring.open_redis(Settings(redis=redis_url)) as client:
        answers = await asyncio.gather(*(client.get(f"key {number}") for number in range(3 * wiring.CONNECTIONS)))

    assert answers == [None] * 3 * wiring.CONNECTIONS


async def test_a_user_without_the_right_to_run_scripts_is_refused_and_the_setting_is_named(
    own: "Redis", own_valkey: str
) -> None:
    await own.execute_command("ACL", "SETUSER", "weak", "on", ">password", "~*", "+ping")  # type: ignore[no-untyped-call]

    async with impatient_client(own_valkey.replace("://", "://weak:password@", 1)) as weak:
        with pytest.raises(BoardRefusedError, match="the user in the setting `redis` do too little"):
            await echoed(Scripts(weak), "x")


async def test_a_server_that_is_read_only_is_unavailable_and_not_a_bug(own: "Redis") -> None:
    with a_valkey() as server:
        async with impatient_client(server.connection_url) as replica:
            await replica.replicaof("127.0.0.1", int(own.connection_pool.connection_kwargs["port"]))
            await until(lambda: _is_linked(replica))

            with pytest.raises(BoardUnavailableError):
                await Board(Scripts(replica)).begin_epoch("x", only_first=True)
