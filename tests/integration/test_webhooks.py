"""Webhooks from the end of a job to a receiver's server, on a real Valkey, judged by the official SDK."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from redis.asyncio import Redis
from ulid import ULID

from consumers.meters import WebhookMeters
from consumers.outbound import Outbound
from consumers.webhook_sender import Bounds, WebhookSender
from policies.tenants import Tenant
from policies.webhooks import Endpoint
from router import ledger, topics
from router.job import Job, JobState
from router.wakeups import Wakeups
from router.webhooks import CHANNEL, Notice, Webhooks, of_job
from tests.builders import (
    Bench,
    a_bench,
    a_charge,
    a_conclusion,
    answers,
    impatient_client,
    records,
    standing_still,
    until,
)
from tests.receiver import Receiver, Seen, answering, receiving

KEY, SECRET = b"k" * 32, "whsec_a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path, receiver: Receiver) -> AsyncIterator[Bench]:
    all_ends = Endpoint(receiver.url("/all"), ("*",), (KEY,))
    failures = Endpoint(receiver.url("/failures"), ("job.failed",), (KEY,))
    acme = Tenant("acme", webhook_secrets=(KEY,), webhooks={"all": all_ends, "failures": failures})
    async with a_bench(redis, tmp_path, tenants=[acme, Tenant("other", webhook_secrets=(KEY,))]) as bench:
        yield bench


def a_sender(
    bench: Bench, outbound: Outbound, registry: CollectorRegistry | None = None, **bounds: Any
) -> WebhookSender:
    return WebhookSender(
        webhooks=bench.webhooks,
        outbound=outbound,
        wakeups=Wakeups(bench.redis, channel=CHANNEL),
        tenants=tuple(bench.tenants),
        meters=WebhookMeters(registry or CollectorRegistry()),
        bounds=Bounds(**{"timeout_s": 5.0, **bounds}),
        every_s=0.1,
    )


@asynccontextmanager
async def sending(bench: Bench, *, senders: int = 1, **fields: Any) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with Outbound.open(["127.0.0.1"]) as outbound, asyncio.TaskGroup() as tasks:
        for _ in range(senders):
            tasks.create_task(a_sender(bench, outbound, **fields).run(stop))
        try:
            yield
        finally:
            stop.set()


async def cancelled(bench: Bench, **fields: Any) -> Job:
    """A job that has ended, and whose event is on the log."""
    job = await bench.job(**fields)
    event = ledger.event_text(job, JobState.CANCELLED, usd=None, error_code="cancelled")
    assert await bench.board.cancel(job.tenant, job.id, event) is JobState.CANCELLED
    await bench.outbox.drain(job.tenant)
    return job


def a_notice(id: str = "evt_1", type: str = "job.failed", url: str = "") -> Notice:
    return Notice(id, type, 1_796_000_000, "job_1", {"metadata": {}}, url)


def unwrapped(seen: Seen) -> Any:
    return openai.OpenAI(api_key="unused", webhook_secret=SECRET).webhooks.unwrap(seen.body, dict(seen.headers))


async def test_the_end_of_a_job_reaches_the_endpoint_and_the_url_that_the_job_named(
    bench: Bench, redis: "Redis", receiver: Receiver
) -> None:
    async with sending(bench):
        job = await cancelled(bench, webhook_url=receiver.url("/own?token=s3cret"), metadata={"order": "7"})
        both = await receiver.got(2)

    assert {seen.path for seen in both} == {"/all", "/own"}
    [event] = {(unwrapped(seen).id, unwrapped(seen).type, unwrapped(seen).data.id) for seen in both}
    assert event == (f"evt_{job.id}.0", "job.cancelled", f"job_{job.id}")
    assert {seen.headers["webhook-id"] for seen in both} == {f"evt_{job.id}.0"}
    assert json.loads(both[0].body)["pointsman"] == {
        "metadata": {"order": "7"},
        "usd": None,
        "error_code": "cancelled",
    }
    assert "s3cret" not in json.dumps(await records(redis, topics.EVENTS))


async def test_the_end_of_a_background_response_is_openais_own_event(bench: Bench, receiver: Receiver) -> None:
    async with sending(bench):
        job = await cancelled(bench, endpoint="/v1/responses")
        [seen] = await receiver.got(1)

    assert isinstance(unwrapped(seen), openai.types.webhooks.ResponseCancelledWebhookEvent)
    assert unwrapped(seen).data.id == f"resp_{job.id}"


@pytest.mark.parametrize(("reason", "type"), [("stop", "response.completed"), ("length", "response.incomplete")])
async def test_a_response_that_was_cut_short_is_said_to_be_incomplete(
    bench: Bench, receiver: Receiver, reason: str, type: str
) -> None:
    owner = "worker:ann|jobs|1-0|1"
    result = json.dumps({"choices": [{"message": {"content": "Hel"}, "finish_reason": reason}]}).encode()
    job = await bench.job(endpoint="/v1/responses")
    await bench.board.claim(job, owner, lease_s=30)
    await bench.board.start(job, owner, most_deliveries=3, microbatch="mb_1")
    await bench.board.finish(job, owner, a_conclusion(job, attempted=a_charge(job), result=result))

    async with sending(bench):
        await bench.outbox.drain("acme")
        [seen] = await receiver.got(1)

    assert unwrapped(seen).type == type


async def test_an_event_that_is_owed_twice_is_sent_once(bench: Bench, receiver: Receiver) -> None:
    async with sending(bench):
        for _ in range(3):
            await bench.webhooks.owe("acme", a_notice())
        await receiver.got(2)
        await until(lambda: emptied(bench))
        await bench.webhooks.owe("acme", a_notice())
        await bench.webhooks.owe("acme", a_notice("evt_2", "job.completed"))
        await receiver.got(3)

    assert sorted(seen.path for seen in receiver.seen) == ["/all", "/all", "/failures"]


async def test_the_end_of_a_batch_is_openais_own_event(bench: Bench, receiver: Receiver) -> None:
    batch = str(ULID())
    told: dict[str, object] = {"endpoint": "/v1/responses", "metadata": {}, "usd": "0.5", "error_code": None}
    event = {"id": f"evt_{batch}.1", "type": "batch.completed", "data": {"id": f"batch_{batch}"}, **told}
    async with sending(bench):
        await bench.webhooks.owe("acme", of_job(event, at=1_796_000_000.0, url=""))
        [seen] = await receiver.got(1)

    assert isinstance(unwrapped(seen), openai.types.webhooks.BatchCompletedWebhookEvent)
    assert unwrapped(seen).data.id == f"batch_{batch}"


async def test_the_endpoints_do_not_hear_of_each_line_of_a_batch(bench: Bench, receiver: Receiver) -> None:
    async with sending(bench):
        await bench.webhooks.owe("acme", replace(a_notice(url=receiver.url("/own")), is_line=True))
        await receiver.got(1)
        await until(lambda: emptied(bench))

    assert [seen.path for seen in receiver.seen] == ["/own"]


async def emptied(bench: Bench, tenant: str = "acme") -> bool:
    return not await bench.webhooks.waiting(tenant)


async def test_what_is_not_taken_comes_again_under_the_same_id_and_with_a_new_signature(
    bench: Bench, receiver: Receiver, redis: "Redis"
) -> None:
    receiver.answer = answering(500, 200)
    async with sending(bench):
        await bench.webhooks.owe("other", a_notice(url=receiver.url()))
        await receiver.got(1)
        await until(lambda: has_seen(bench, "500"))
        await redis.zadd("{t:other}:webhooks", {"evt_1": 0})  # its five seconds are over
        first, second = await receiver.got(2)
        await until(lambda: emptied(bench, "other"))

    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert unwrapped(second)


async def has_seen(bench: Bench, what: str) -> bool:
    return [webhook.seen for webhook in await bench.webhooks.waiting("other")] == [what]


async def test_one_that_nobody_takes_for_a_day_is_dead_and_can_be_sent_again(
    bench: Bench, redis: "Redis", receiver: Receiver
) -> None:
    receiver.answer = answering(503, 200)
    await bench.webhooks.owe("other", a_notice(url=receiver.url()))
    await redis.hset("{t:other}:webhook:evt_1", "owed", "0")
    async with sending(bench):
        await receiver.got(1)
        await until(lambda: emptied(bench, "other"))
        [dead] = await bench.webhooks.given_up("other")
        assert await bench.webhooks.resend("other", "evt_1")
        await receiver.got(2)
        await until(lambda: emptied(bench, "other"))

    assert (dead.name, dead.seen, dead.attempts, dead.is_dead) == ("evt_1", "503", 1, True)
    assert not await bench.webhooks.given_up("other")
    assert not await bench.webhooks.resend("other", "evt_1")
    assert not await bench.webhooks.resend("other", "evt_nobody")


async def test_an_endpoint_that_left_the_settings_gets_nothing_more(bench: Bench, receiver: Receiver) -> None:
    await bench.webhooks.owe("acme", a_notice())
    bench.tenants["acme"] = Tenant("acme", webhooks={"failures": bench.tenants["acme"].webhooks["failures"]})
    async with sending(bench):
        await receiver.got(1)
        await until(lambda: emptied(bench))

    assert [seen.path for seen in receiver.seen] == ["/failures"]
    assert [dead.seen for dead in await bench.webhooks.given_up("acme")] == ["not_in_settings"]


async def test_a_url_that_leads_inside_is_never_called(bench: Bench, receiver: Receiver) -> None:
    stop, registry = asyncio.Event(), CollectorRegistry()
    await bench.webhooks.owe("other", a_notice(url=receiver.url(scheme="https", host="localhost")))
    async with Outbound.open() as outbound, asyncio.TaskGroup() as tasks:
        tasks.create_task(a_sender(bench, outbound, registry).run(stop))
        await until(lambda: has_seen(bench, "address_not_allowed"))
        stop.set()

    assert receiver.connections == 0
    assert b'pointsman_webhooks_total{outcome="failed"} 1.0' in generate_latest(registry)


async def test_a_sender_that_dies_after_the_receiver_has_it_sends_it_again(
    bench: Bench, redis: "Redis", receiver: Receiver
) -> None:
    await bench.webhooks.owe("other", a_notice(url=receiver.url()))
    [taken] = await bench.webhooks.take("other", most=10, lease_s=0.3)  # and is not heard of any more
    async with sending(bench):
        [seen] = await receiver.got(1)
        await until(lambda: emptied(bench, "other"))
    await bench.webhooks.again(taken, "500", wait_s=0.0)  # it was only slow

    assert seen.headers["webhook-id"] == taken.event
    assert await emptied(bench, "other")


async def test_several_senders_share_the_work_and_each_webhook_is_sent_by_one(bench: Bench, receiver: Receiver) -> None:
    async with sending(bench, senders=3):
        for number in range(60):
            await bench.webhooks.owe("other", a_notice(f"evt_{number}", url=receiver.url()))
        await until(lambda: emptied(bench, "other"))

    assert sorted(seen.headers["webhook-id"] for seen in receiver.seen) == sorted(f"evt_{n}" for n in range(60))


async def test_a_slow_host_gets_no_more_at_once_than_its_part_and_stops_no_other(
    bench: Bench, receiver: Receiver
) -> None:
    free = asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        await free.wait()
        return web.Response()

    async with receiving() as stuck:
        stuck.answer = slow
        for number in range(20):
            await bench.webhooks.owe("other", a_notice(f"evt_{number}", url=stuck.url()))
        async with sending(bench, per_host=3, timeout_s=30.0):
            await stuck.got(3)
            await bench.webhooks.owe("other", a_notice("evt_other_host", url=receiver.url()))
            await bench.webhooks.owe("acme", a_notice("evt_other_tenant", "job.completed"))
            await receiver.got(2)
            assert stuck.most_open == 3
            free.set()
            await until(lambda: emptied(bench, "other"))

    assert len(stuck.seen) == 20
    assert stuck.most_open == 3


async def test_no_more_wait_than_may(bench: Bench, receiver: Receiver) -> None:
    webhooks = Webhooks(bench.scripts, bench.tenants, most_waiting=2)
    for number in range(4):
        await webhooks.owe("other", a_notice(f"evt_{number}", url=receiver.url()))

    assert [webhook.name for webhook in await webhooks.waiting("other")] == ["evt_0", "evt_1"]


async def test_a_redis_that_stood_still_loses_none(own_valkey: str, tmp_path: Path, receiver: Receiver) -> None:
    client = impatient_client(own_valkey)
    tenants = [Tenant("other", webhook_secrets=(KEY,))]
    async with client, a_bench(client, tmp_path, tenants=tenants) as bench, sending(bench):
        async with standing_still(client):
            assert not await answers(bench.board)
        await until(lambda: answers(bench.board))
        await bench.webhooks.owe("other", a_notice(url=receiver.url()))
        await receiver.got(1)
        await until(lambda: emptied(bench, "other"))
