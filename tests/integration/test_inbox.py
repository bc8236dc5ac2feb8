"""The door for records, on Redis Streams and on a real Kafka, with a real worker behind it."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway import wiring
from gateway.settings import Settings
from router import rebuild, topics
from router.job import JobState
from router.log import Delivery, Record
from router.shares import Shares
from tests.builders import a_body, until
from tests.servers import LogPlace

CHAT = "/v1/chat/completions"


@dataclass
class Door:
    """An inbox with what stands behind it, and keys of acme, which has a reply topic, and of other, which has none."""

    core: wiring.Core
    key: str
    other_key: str
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    async def put(self, value: bytes = b"", api_key: str | None = None, **headers: str) -> None:
        """A record of acme's on the inbox; underscores in the names of headers stand for dashes."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        given = {"endpoint": CHAT, "authorization": f"Bearer {api_key or self.key}", **named}
        await self.core.log.append(
            topics.INBOX, Record(value or a_body(), {name: text for name, text in given.items() if text})
        )

    async def found(self, topic: str) -> list[tuple[dict[str, Any], Mapping[str, str]]]:
        """Values and headers of what is on a topic."""
        return [(json.loads(d.record.value), d.record.headers) async for d in self.core.log.read(topic)]

    async def answers(
        self, count: int = 1, topic: str = "acme.replies"
    ) -> list[tuple[dict[str, Any], Mapping[str, str]]]:
        """What is on the reply topic, once there are so many."""

        async def all_there() -> bool:
            return len(await self.found(topic)) >= count

        await until(all_there, within=30)
        return await self.found(topic)

    async def dead(self) -> list[Record]:
        """What is buried."""
        return [delivery.record async for delivery in self.core.log.read(topics.DEAD)]

    async def jobs(self, tenant: str = "acme") -> list[JobState]:
        """The states of a tenant's jobs."""
        return [view.state for view in (await self.core.board.page(tenant, states=[], limit=100, after="")).views]

    async def is_read(self) -> bool:
        """Whether all that was put is done."""
        return await self.core.log.backlog(topics.INBOX, group="inbox") == 0


@pytest.fixture
async def door(log_place: LogPlace, redis_url: str, redis: object, tmp_path: Path) -> AsyncIterator[Door]:
    async with a_door(log_place, redis_url, tmp_path) as door:
        yield door


@asynccontextmanager
async def a_door(log_place: LogPlace, redis_url: str, folder: Path, **inbox: object) -> AsyncGenerator[Door]:
    settings = Settings.model_validate(
        {
            "redis": redis_url,
            "log": f"kafka://{log_place.address}" if log_place.kind == "kafka" else "streams:",
            "kafka": {"prefix": log_place.prefix, "partitions": 3, "session_s": 6},
            "data": folder,
            "inbox": inbox,
            "tenants": {"acme": {"reply_topics": ["acme.replies", "acme.gone"]}, "other": {"max_unfinished": 1}},
            "deployments": {"light": {"backend": "echo", "model": "echo", "tier": "light", "window": 4096}},
        }
    )
    async with wiring.core(settings) as core:
        await core.log.create([topic for topic in wiring.wanted_topics(core) if topic != "acme.gone"])
        await rebuild.begin(core.log, core.board)
        key, other_key = [(await core.keys.create(tenant, "test")).text for tenant in ("acme", "other")]
        yield Door(core, key, other_key)


@asynccontextmanager
async def opened(door: Door, *, works: bool = True) -> AsyncGenerator[None]:
    """With an inbox, and a worker where it `works`."""
    stop = asyncio.Event()
    async with wiring.open_backend(door.core, "echo", CollectorRegistry()) as backend, asyncio.TaskGroup() as tasks:
        tasks.create_task(wiring.inbox(door.core, door.registry, Shares()).run(stop))
        if works:
            tasks.create_task(wiring.worker(door.core, backend, "echo", CollectorRegistry()).run(stop))
        try:
            yield
        finally:
            stop.set()


async def test_a_record_becomes_a_job_and_its_answer_goes_to_the_topic_that_it_named(door: Door) -> None:
    async with opened(door):
        await door.put(a_body("Say this"), reply_topic="acme.replies", correlation_id="order-7")
        [(answer, headers)] = await door.answers()

    assert answer["type"] == "job.completed"
    assert answer["result"]["choices"][0]["message"]["content"] == "Say this"
    assert answer["error"] is None
    assert headers["correlation-id"] == "order-7"
    [(event, event_headers)] = await door.found(topics.EVENTS)
    assert event["id"] == answer["id"] == headers["id"]
    assert "result" not in event
    assert event_headers["correlation-id"] == "order-7"
    assert not await door.dead()


async def test_without_a_reply_topic_the_event_is_the_answer(door: Door) -> None:
    async with opened(door):
        await door.put(correlation_id="order-8")
        [(event, headers)] = await door.answers(topic=topics.EVENTS)

    assert (event["type"], headers["correlation-id"]) == ("job.completed", "order-8")
    assert await door.jobs() == [JobState.COMPLETED]


@pytest.mark.parametrize(
    ("headers", "value", "code", "param"),
    [
        ({"endpoint": ""}, b"", "invalid_value", "endpoint"),
        ({"endpoint": "/v1/jobs"}, b"", "invalid_value", "endpoint"),
        ({}, b"{", "invalid_json", None),
        ({}, b"\xff\x00", "invalid_json", None),
        ({}, a_body(temperature=9), "decimal_above_max_value", "temperature"),
        ({}, a_body(stream=True), "invalid_value", "stream"),
        ({}, a_body(model="nobody"), "model_not_found", "model"),
        ({"idempotency_key": "\u00e9"}, b"", "invalid_value", "Idempotency-Key"),
    ],
)
async def test_a_bad_record_is_answered_as_http_would_and_kept(
    door: Door, headers: dict[str, str], value: bytes, code: str, param: str | None
) -> None:
    async with opened(door):
        await door.put(value, None, **{"reply_topic": "acme.replies", "correlation_id": "7", **headers})
        [(answer, answer_headers)] = await door.answers()
        await until(door.is_read)

    assert (answer["type"], answer["data"]["id"], answer["error_code"]) == ("job.failed", None, code)
    assert answer["error"]["param"] == param
    assert answer_headers["correlation-id"] == "7"
    [letter] = await door.dead()
    assert letter.headers["dead-reason"] == "refused"
    assert letter.value == (value or a_body())
    assert letter.headers["tenant"] == "acme"
    assert door.key not in str(letter.headers)
    assert not await door.jobs()
    assert b'pointsman_inbox_records_total{outcome="refused"} 1.0' in generate_latest(door.registry)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": ""},
        {"authorization": "Bearer pm-nobodys-key-at-all-0123"},
        {"authorization": "", "tenant": "acme"},  # anybody can say that
        {"reply_topic": "other.replies"},
        {"reply_topic": topics.CHARGES},
        {"correlation_id": "x" * 256},
    ],
)
async def test_who_has_no_right_to_a_reply_topic_writes_to_none(door: Door, headers: dict[str, str]) -> None:
    async with opened(door):
        await door.put(b"", None, **{"reply_topic": "acme.replies", **headers})
        [(answer, _)] = await door.answers(topic=topics.EVENTS)
        await until(door.is_read)

    assert (answer["type"], answer["data"]["id"]) == ("job.failed", None)
    assert not await door.found("acme.replies")
    assert not await door.found(topics.CHARGES)
    assert len(await door.dead()) == 1
    assert not await door.jobs()


async def test_a_buried_record_cannot_be_replayed_as_somebody_elses_job(door: Door) -> None:
    async with opened(door):
        await door.put(b"{", tenant="other", job="0" * 26, key="0123", version="1", limited_key="ci")
        await door.answers(topic=topics.EVENTS)

    [letter] = await door.dead()
    assert letter.headers["tenant"] == "acme"
    assert letter.headers["key"] != "0123"
    assert not {"job", "version", "limited-key"} & set(letter.headers)


async def test_where_the_operator_trusts_the_topic_a_record_may_name_its_tenant(
    log_place: LogPlace, redis_url: str, redis: object, tmp_path: Path
) -> None:
    async with a_door(log_place, redis_url, tmp_path, trust_tenants=True) as door, opened(door):
        await door.put(authorization="", tenant="acme", reply_topic="acme.replies")
        await door.put(authorization="", tenant="nobody")
        [(answer, _)] = await door.answers()
        await until(door.is_read)

        assert (answer["type"], answer["tenant"]) == ("job.completed", "acme")
        assert len(await door.dead()) == 1


async def test_a_record_that_repeats_a_key_is_the_same_job_and_is_answered_again(door: Door) -> None:
    async with opened(door):
        await door.put(idempotency_key="k", reply_topic="acme.replies", correlation_id="1")
        await door.answers()
        await door.put(idempotency_key="k", reply_topic="acme.replies", correlation_id="2")
        both = await door.answers(2)
        await door.put(a_body("another"), idempotency_key="k", reply_topic="acme.replies", correlation_id="3")
        answers = await door.answers(3)

    assert both[0][0] == both[1][0]
    assert sorted(headers["correlation-id"] for _, headers in both) == ["1", "2"]
    assert {answer["error_code"] for answer, _ in answers} == {None, "idempotency_key_reused"}
    assert len(await door.jobs()) == 1


async def test_records_without_a_key_are_a_job_each(door: Door) -> None:
    async with opened(door):
        await door.put(reply_topic="acme.replies")
        await door.put(reply_topic="acme.replies")
        await door.answers(2)

    assert len(await door.jobs()) == 2


async def test_a_record_that_comes_again_after_a_death_is_the_same_job(door: Door) -> None:
    await door.put(reply_topic="acme.replies")
    first = wiring.inbox(door.core, CollectorRegistry(), Shares())
    async with door.core.log.subscribe([topics.INBOX], group="inbox") as subscription:
        taken: list[Delivery] = []
        while not taken:
            taken = list(await subscription.take(1))
        await first.handle(taken[0])  # and it dies before it says that it is done
    async with opened(door):
        await door.answers()
        await until(door.is_read, within=30)

    assert await door.jobs() == [JobState.COMPLETED]


async def test_a_full_queue_is_said_to_whoever_asked(door: Door) -> None:
    async with opened(door, works=False):
        await door.put(api_key=door.other_key)
        await until(door.is_read)
        await door.put(api_key=door.other_key, correlation_id="too many")
        [(answer, headers)] = await door.answers(topic=topics.EVENTS)

    assert (answer["error_code"], headers["correlation-id"]) == ("queue_full", "too many")
    assert await door.jobs("other") == [JobState.QUEUED]


async def test_a_reply_topic_that_is_gone_stops_nothing(door: Door) -> None:
    async with opened(door):
        await door.put(reply_topic="acme.gone")
        await door.put(b"{", reply_topic="acme.gone")
        answers = await door.answers(2, topic=topics.EVENTS)
        await until(door.is_read)

    assert {answer["type"] for answer, _ in answers} == {"job.completed", "job.failed"}


async def test_the_largest_record_that_a_topic_takes_is_refused_and_kept_as_far_as_fits(door: Door) -> None:
    huge = b"[" + b" " * 995_000
    async with opened(door):
        await door.put(huge)
        await door.answers(topic=topics.EVENTS)
        await until(door.is_read)

    [letter] = await door.dead()
    assert letter.headers["dead-cut"] == str(len(huge))
    assert huge.startswith(letter.value)
