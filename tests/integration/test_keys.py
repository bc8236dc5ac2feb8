"""What API keys promise, on a real Valkey with a clock that the test moves."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from policies import keys
from policies.keys import ApiKeys, KeyHolder, KeyTakenError, PublicKeyError, check_not_public
from policies.scripts import BoardUnavailableError
from tests.servers import a_valkey

OWN = "pm-Zk3vQ8sLw1TnYb6RfUe9HdXa"  # as an operator would set it


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with a_valkey() as server:
        yield f"redis://127.0.0.1:{server.port}"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator["Redis"]:
    async with Redis.from_url(redis_url) as client:
        await client.flushall()
        yield client


@dataclass
class Clock:
    """Seconds; moves when told."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_created_key_is_found_and_shown_once(redis: "Redis") -> None:
    api_keys = ApiKeys(redis)

    new = await api_keys.create("acme", "laptop")

    assert new.text.startswith("pm-") and len(new.text) == 46
    assert new.id == sha256(new.text.encode()).hexdigest()[:16]
    assert await api_keys.find(new.text) == KeyHolder("acme", new.id, "laptop")
    assert new.text not in repr(new)
    assert new.text not in str(await redis.hgetall("keys"))


async def test_what_is_stored_can_be_read_by_others(redis: "Redis") -> None:
    new = await ApiKeys(redis).create("acme", "laptop")
    seconds, _ = await redis.time()

    value = json.loads(await redis.hget("keys", new.id) or b"")

    assert value.pop("created") == pytest.approx(seconds, abs=5)
    assert value == {
        "sha256": sha256(new.text.encode()).hexdigest(),
        "tenant": "acme",
        "name": "laptop",
        "revoked": False,
    }


@pytest.mark.parametrize("wrong", ["", "pm-", "pm-" + "x" * 43, "x" * 10_000, "pm-ключ-ключ-ключ-ключ", OWN[:-1]])
async def test_a_wrong_key_is_nobodys(redis: "Redis", wrong: str) -> None:
    api_keys = ApiKeys(redis)
    await api_keys.adopt(OWN, "acme", "own")

    assert await api_keys.find(wrong) is None


async def test_a_key_that_shares_only_its_id_is_nobodys(redis: "Redis") -> None:
    digest = sha256(OWN.encode()).hexdigest()
    other = {"sha256": digest[:16] + "0" * 48, "tenant": "acme", "name": "", "created": 0.0, "revoked": False}
    await redis.hset("keys", digest[:16], json.dumps(other))

    assert await ApiKeys(redis).find(OWN) is None


async def test_all_keys_are_listed_with_the_oldest_first(redis: "Redis") -> None:
    api_keys = ApiKeys(redis)
    ids = [(await api_keys.create("acme", f"key {n}")).id for n in range(3)]
    await api_keys.revoke(ids[1])

    listed = await api_keys.list()

    assert [(key.id, key.name, key.revoked) for key in listed] == [
        (ids[0], "key 0", False),
        (ids[1], "key 1", True),
        (ids[2], "key 2", False),
    ]


async def test_a_revoked_key_opens_nothing_at_once_where_it_was_revoked(redis: "Redis") -> None:
    api_keys = ApiKeys(redis)
    new = await api_keys.create("acme", "laptop")
    await api_keys.find(new.text)

    assert await api_keys.revoke(new.id)
    assert await api_keys.find(new.text) is None
    assert not await api_keys.revoke("0" * 16)


async def test_a_revoked_key_stops_elsewhere_within_the_caches_time_without_any_word(redis: "Redis") -> None:
    clock = Clock()
    here, elsewhere = ApiKeys(redis), ApiKeys(redis, clock=clock)
    new = await here.create("acme", "laptop")
    await elsewhere.find(new.text)

    await here.revoke(new.id)

    clock.now += keys.FOUND_S - 0.1
    assert await elsewhere.find(new.text) is not None
    clock.now += 0.1
    assert await elsewhere.find(new.text) is None


async def test_a_new_key_is_found_soon_where_it_was_tried_too_early(redis: "Redis") -> None:
    clock = Clock()
    here, elsewhere = ApiKeys(redis), ApiKeys(redis, clock=clock)
    await elsewhere.find(OWN)

    await here.adopt(OWN, "acme", "own")

    assert await elsewhere.find(OWN) is None
    clock.now += keys.MISSED_S
    assert await elsewhere.find(OWN) is not None


async def test_known_and_unknown_keys_are_not_looked_up_each_time(redis: "Redis") -> None:
    api_keys = ApiKeys(redis)
    new = await api_keys.create("acme", "laptop")
    before = await reads(redis)

    for _ in range(50):
        await api_keys.find(new.text)
        await api_keys.find("pm-" + "x" * 43)

    assert await reads(redis) - before == 2


async def test_a_flood_of_wrong_keys_fills_no_memory_and_drives_out_no_right_one(redis: "Redis") -> None:
    clock = Clock()
    api_keys = ApiKeys(redis, clock=clock)
    new = await api_keys.create("acme", "laptop")
    await api_keys.find(new.text)
    for n in range(keys.MISSED_AT_MOST + 100):
        await api_keys.find(f"pm-wrong-key-number-{n:024}")
    before = await reads(redis)

    await api_keys.find(new.text)
    await api_keys.find(f"pm-wrong-key-number-{0:024}")

    assert await reads(redis) - before == 1  # the first wrong one was forgotten, the right one was not


async def test_a_process_that_follows_hears_of_a_revoked_and_of_a_new_key_at_once(redis: "Redis") -> None:
    here, elsewhere = ApiKeys(redis), ApiKeys(redis, clock=Clock())
    new = await here.create("acme", "laptop")
    async with following(elsewhere, redis):
        await elsewhere.find(new.text)
        await elsewhere.find(OWN)

        await here.revoke(new.id)
        await here.adopt(OWN, "acme", "own")

        await until(lambda: is_nobodys(elsewhere, new.text))
        await until(lambda: is_somebodys(elsewhere, OWN))


async def test_a_look_that_was_overtaken_by_a_change_is_not_remembered(redis_url: str, redis: "Redis") -> None:
    gated = _Gated(host="127.0.0.1", port=urlsplit(redis_url).port)
    async with gated:
        api_keys = ApiKeys(gated)
        new = await api_keys.create("acme", "laptop")
        overtaken = asyncio.create_task(api_keys.find(new.text))
        await gated.has_read.wait()

        await api_keys.revoke(new.id)
        gated.may_answer.set()
        await overtaken

        assert await api_keys.find(new.text) is None


async def test_following_survives_a_lost_connection_and_forgets_what_it_may_have_missed(redis: "Redis") -> None:
    here, elsewhere = ApiKeys(redis), ApiKeys(redis, clock=Clock())
    first, second = await here.create("acme", "first"), await here.create("acme", "second")
    async with following(elsewhere, redis):
        await elsewhere.find(first.text)
        await elsewhere.find(second.text)

        await redis.client_kill_filter(_type="pubsub")
        await here.revoke(first.id)
        await until(lambda: is_nobodys(elsewhere, first.text))
        await until(lambda: has_followers(redis))
        await here.revoke(second.id)

        await until(lambda: is_nobodys(elsewhere, second.text))


async def test_an_operators_own_key_is_adopted_as_often_as_the_process_starts(redis: "Redis") -> None:
    api_keys = ApiKeys(redis)

    ids = {await api_keys.adopt(OWN, "acme", "own") for _ in range(3)}

    assert len(ids) == len(await api_keys.list()) == 1
    assert await api_keys.find(OWN) == KeyHolder("acme", ids.pop(), "own")


async def test_a_revoked_key_or_another_tenants_is_not_adopted(redis: "Redis") -> None:
    api_keys = ApiKeys(redis)
    id = await api_keys.adopt(OWN, "acme", "own")

    with pytest.raises(KeyTakenError):
        await api_keys.adopt(OWN, "other", "own")
    await api_keys.revoke(id)
    with pytest.raises(KeyTakenError) as refused:
        await api_keys.adopt(OWN, "acme", "own")

    assert OWN not in str(refused.value)
    assert await api_keys.find(OWN) is None


async def test_a_public_key_is_not_adopted(redis: "Redis") -> None:
    with pytest.raises(PublicKeyError):
        await ApiKeys(redis).adopt("sk-1234", "acme", "own")

    assert await redis.keys() == []


@pytest.mark.parametrize(
    "public",
    [
        "",
        "sk-1234",
        "sk-test",
        "changeme",
        "pm-tooshort",
        "sk-1234-but-this-one-is-longer",
        "sk-no-key-required-at-all-here",
        "your-api-key-goes-right-here",
        "pm-example-key-do-not-use-Zk3vQ8sLw1Tn",
        "sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "aaaaaaaabbbbbbbbaaaaaaaabbbbbbbb",
        "sk-proj-abcdefghijklmnopqrstuvwxyz",
        "PM-CHANGE-ME-PLEASE-Zk3vQ8sLw1TnYb",
        "a key with spaces in it, Zk3vQ8sLw1TnYb",
        "pm-schlüssel-Zk3vQ8sLw1TnYb6RfUe9HdXa",
    ],
)
def test_a_key_that_others_know_or_guess_is_refused_with_the_fix_and_without_the_key(public: str) -> None:
    with pytest.raises(PublicKeyError, match="pointsman keys create") as refused:
        check_not_public(public)

    assert not public or public not in str(refused.value)


async def test_keys_that_were_drawn_are_not_taken_for_public_ones(redis: "Redis") -> None:
    api_keys = ApiKeys(redis)

    for _ in range(200):
        check_not_public((await api_keys.create("acme", "drawn")).text)
    check_not_public(OWN)


async def test_redis_out_of_reach_is_said_as_such() -> None:
    api_keys = ApiKeys(Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0)))

    for call in (
        api_keys.find(OWN),
        api_keys.list(),
        api_keys.create("acme", "laptop"),
        api_keys.revoke("0" * 16),
    ):
        with pytest.raises(BoardUnavailableError):
            await call


class _Gated(Redis):
    """Holds back what it read first until the test lets it go."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()

    async def hget(self, *args: Any, **kwargs: Any) -> Any:
        value = await super().hget(*args, **kwargs)
        if not self.has_read.is_set():
            self.has_read.set()
            await self.may_answer.wait()
        return value


@asynccontextmanager
async def following(api_keys: ApiKeys, redis: "Redis") -> AsyncIterator[None]:
    task = asyncio.create_task(api_keys.follow())
    try:
        await until(lambda: has_followers(redis))
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    end = monotonic() + 10
    while not await is_so():
        assert monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


async def is_nobodys(api_keys: ApiKeys, text: str) -> bool:
    return await api_keys.find(text) is None


async def is_somebodys(api_keys: ApiKeys, text: str) -> bool:
    return await api_keys.find(text) is not None


async def has_followers(redis: "Redis") -> bool:
    [(_, followers)] = await redis.pubsub_numsub(keys.CHANGED)
    return bool(followers)


async def reads(redis: "Redis") -> int:
    statistics = await redis.info("commandstats")
    return int(statistics.get("cmdstat_hget", {}).get("calls", 0))
