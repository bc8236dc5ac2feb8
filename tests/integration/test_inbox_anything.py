"""Whatever is put on the inbox of a real Kafka becomes a job, or is buried and answered, once, and stops nothing.

POINTSMAN_TEST_INBOX_CASES records, 500 without it.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.inbox import Letter
from router import topics
from router.log import Delivery, Record
from tests.builders import until
from tests.integration.test_inbox import CHAT, Door, a_door, opened
from tests.servers import LogPlace

CASES, AT_ONCE = int(os.environ.get("POINTSMAN_TEST_INBOX_CASES", "500")), 25
OURS, OTHERS = b"OURS", b"OTHERS"  # stand for keys, which differ from run to run
HUGE = b"HUGE"  # stands for as much as a topic takes

pytestmark = pytest.mark.timeout(90 + CASES // 4)

Thing = tuple[bytes | None, Mapping[str, bytes | None]]

FIELDS = ["model", "messages", "input", "stream", "n", "max_tokens", "temperature", "metadata", "service_tier", "tools"]
FOREIGN = ["tenant", "job", "version", "Authorization", "traceparent", "", "dead-id"]
ROLES = ["user", "system", "tool"]

words = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
messages = st.lists(st.fixed_dictionaries({"role": st.sampled_from(ROLES), "content": words | values}), max_size=3)
wishes = st.dictionaries(st.sampled_from(["deadline_s", "max_usd", "webhook_url", "x"]), values, max_size=2)
good = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["auto", "light"]),
        "messages": st.just([{"role": "user", "content": "Hello"}]),
        "input": st.just("Hello"),
    }
)
changes = st.dictionaries(st.sampled_from(FIELDS), values | messages, max_size=2)
changed = st.builds(lambda body, other: {**body, **other}, good, changes | st.fixed_dictionaries({"pointsman": wishes}))
bodies = st.one_of(
    (good | changed | values).map(lambda body: json.dumps(body).encode()),
    st.binary(max_size=200),
    st.sampled_from([None, b"[" * 5000, HUGE]),
)
texts = words.map(str.encode) | st.binary(max_size=300) | st.none()
usual = st.fixed_dictionaries(
    {},
    optional={
        "endpoint": st.sampled_from([CHAT, CHAT, "/v1/responses", "/v1/jobs"]).map(str.encode) | texts,
        "authorization": st.sampled_from([OURS, OURS, OTHERS, b"Bearer x"]) | texts,
        "reply-topic": st.sampled_from([b"acme.replies", b"acme.gone", topics.CHARGES.encode()]) | texts,
        "correlation-id": texts,
        "idempotency-key": st.sampled_from([b"a", b"b"]) | texts,
    },
)
foreign = st.dictionaries(st.sampled_from(FOREIGN) | words, texts, max_size=2)
headers = st.builds(lambda one, other: {**one, **other}, foreign, usual)
right = st.fixed_dictionaries(
    {"endpoint": st.just(CHAT.encode()), "authorization": st.just(OURS), "reply-topic": st.just(b"acme.replies")},
    optional={"idempotency-key": st.sampled_from([b"a", b"b"])},
)
things = st.lists(st.tuples(bodies, right) | st.tuples(bodies, headers), min_size=AT_ONCE, max_size=AT_ONCE)


def chunks() -> list[list[Thing]]:
    """All that is put there. Made before anything runs, as hypothesis wants the dice for itself."""
    made: list[list[Thing]] = []

    @settings(max_examples=CASES // AT_ONCE, suppress_health_check=list(HealthCheck), database=None)
    @given(things)
    def anything(chunk: list[Thing]) -> None:
        made.append(chunk)

    anything()
    return made


async def test_whatever_comes_is_a_job_or_refused_once_and_stops_nothing(
    kafka_bootstrap: str, redis_url: str, redis: "Redis", tmp_path: Path
) -> None:
    everything = chunks()
    place = LogPlace.fresh("kafka", kafka_bootstrap)
    async with (
        a_door(place, redis_url, tmp_path) as door,
        opened(door, works=False),
        AIOKafkaProducer(bootstrap_servers=kafka_bootstrap) as producer,
    ):
        keys = {OURS: f"Bearer {door.key}".encode(), OTHERS: f"Bearer {door.other_key}".encode()}
        put = 0
        for chunk in everything:
            for value, given_headers in chunk:
                named = [(name, keys.get(text or b"", text)) for name, text in given_headers.items()]
                body = b'{"model": "' + b"x" * 990_000 if value == HUGE else value
                await producer.send(f"{place.prefix}{topics.INBOX}", body, key=b"any", headers=named)
            await producer.flush()
            put += len(chunk)
            await until(lambda put=put: counted(door).total() >= put, within=30)  # type: ignore[misc]
            assert counted(door).total() == put, chunk
            assert counted(door)["crashed"] == 0, chunk
            assert counted(door)["accepted"] == await jobs(redis), chunk
        await until(door.is_read, within=30)

        outcomes, letters = counted(door), await door.dead()
        answered = [*await refusals(door, topics.EVENTS), *await refusals(door, "acme.replies")]
        print(f"{put} records: {dict(outcomes)}")
        assert len(letters) == len(answered) == outcomes["refused"]
        assert len({letter.headers["dead-position"] for letter in letters}) == len(letters)
        assert len(set(answered)) == len(answered)
        assert {the_id(letter) for letter in letters if "dead-cut" not in letter.headers} <= set(answered)
        assert min(outcomes["accepted"], outcomes["refused"]) > CASES / 20  # else this has shown little
        kept = [str(letter.headers) for letter in letters]
        assert not [text for text in kept if door.key in text or door.other_key in text]


def counted(door: Door) -> "Counter[str]":
    """What became of how many records."""
    outcomes = ("accepted", "repeated", "refused", "crashed")
    name, value = "pointsman_inbox_records_total", door.registry.get_sample_value
    return Counter({outcome: int(value(name, {"outcome": outcome}) or 0) for outcome in outcomes})


async def jobs(redis: "Redis") -> int:
    """How many there are."""
    return sum([int(await redis.zcard(f"{{t:{tenant}}}:jobs")) for tenant in ("acme", "other")])


async def refusals(door: Door, topic: str) -> list[str]:
    """The ids of the answers on a topic: nothing has run, so all of them are refusals."""
    found = [value for value, _ in await door.found(topic)]
    assert not [value for value in found if value["data"]["id"] is not None]
    return [value["id"] for value in found]


def the_id(letter: Record) -> str:
    """Of the answer to the record in this letter."""
    return f"evt_{Letter(Delivery(topics.INBOX, letter.headers['dead-position'], Record(letter.value))).id}"
