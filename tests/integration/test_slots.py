"""On a Redis Cluster a script may touch keys of one slot only: every script is run on a server that insists on it."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from hashlib import sha1
from typing import cast

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import ResponseError

from policies.deployments import Limits
from policies.quota import Granted, Quotas, Spent, Wait, deployment_scope, tenant_scope
from policies.scripts import Script, Scripts, Value
from policies.tenants import Tenant
from router.board import Attempted, Board, Run, Started
from router.job import JobState
from tests.builders import a_charge, a_conclusion, a_deployment, a_job, accepted, an_event, until
from tests.servers import VOLATILE, a_valkey

OWNER = "worker:1|jobs|0-0|1"
EVERYTHING = Limits(
    requests_per_minute=60, tokens_per_minute=1000, tokens_per_day=1000, concurrency=9, usd_per_month=Decimal(9)
)
TENANT = Tenant("acme", EVERYTHING, key_limits={"ci": EVERYTHING}, model_limits={"small": EVERYTHING})
OF_TENANT = tenant_scope(TENANT, deployment="small", key="ci")
OF_DEPLOYMENT = deployment_scope(a_deployment(limits=EVERYTHING))


@pytest.fixture(scope="module")
def cluster_url() -> Iterator[str]:
    """A cluster of one server."""
    with a_valkey(config={**VOLATILE, "cluster-enabled": "yes"}) as server:
        yield server.connection_url


@pytest.fixture
async def cluster(cluster_url: str) -> AsyncIterator[Scripts]:
    """That server with all slots, and nothing in them."""
    async with Redis.from_url(cluster_url) as redis:
        if not await _is_up(redis):
            await redis.cluster("addslotsrange", 0, 16383)
        await until(lambda: _is_up(redis))
        await redis.flushall()
        yield StrictScripts(redis)


class StrictScripts(Scripts):
    """Runs scripts in the way in which the server refuses keys of another slot. Without that first line it does not."""

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Value], *, durable: bool = False) -> object:
        text = f"#!lua\n{script.text}"
        sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        return await super().run(replace(script, text=text, sha=sha), keys, args, durable=durable)


async def _is_up(redis: "Redis") -> bool:
    info = cast("dict[str, str]", await redis.cluster("info"))
    return info["cluster_state"] == "ok"


async def slots_used(cluster: Scripts) -> set[int]:
    return {key_slot(cast(bytes, key)) for key in await cluster.redis.keys("*")}


async def test_the_server_insists_on_it(cluster: Scripts) -> None:
    text = "redis.call('SET', '{t:other}:x', 1)"

    with pytest.raises(ResponseError, match="do not hash to the same slot"):
        await cluster.run(Script("wrong", text, ""), ["{t:acme}:y"], [])


async def test_quotas_of_all_parts_are_reserved_renewed_refunded_and_settled(cluster: Scripts) -> None:
    quotas = Quotas(cluster)
    asks = {"tokens": 600, "usd": Decimal(1), "hold_s": 60.0, "ttl_s": 60.0}

    first = await quotas.reserve_both(OF_TENANT, OF_DEPLOYMENT, "j:1", **asks)  # type: ignore[arg-type]
    second = await quotas.reserve_both(OF_TENANT, OF_DEPLOYMENT, "j:2", **asks)  # type: ignore[arg-type]
    for scope in (OF_TENANT, OF_DEPLOYMENT):
        await quotas.renew(scope, "j:1", hold_s=60)
        await quotas.settle(scope, "j:1", tokens=1, usd=Decimal("0.1"))
        await quotas.release(scope.slot, "j:2")

    assert isinstance(first, Granted) and isinstance(second, Wait)
    assert await slots_used(cluster) == {key_slot(b"{t:acme}"), key_slot(b"{b:small}")}


async def test_a_job_goes_all_the_way_in_the_slot_of_its_tenant(cluster: Scripts) -> None:
    board, quotas = Board(cluster), Quotas(cluster)
    job = await accepted(board, a_job(limited_key="ci"))
    claim = await board.claim(job, OWNER, lease_s=20)
    await quotas.reserve(OF_TENANT, f"{job.id}:1", tokens=600, usd=Decimal(1), hold_s=60, ttl_s=60)
    start = await board.start(job, OWNER, most_deliveries=3, microbatch="mb_1")
    await board.renew(job, OWNER, lease_s=20)
    await board.add_chunks(job, OWNER, 1, [b"{}"], before=0, ttl_s=60)
    failed = _settling(a_charge(job, 1), job.id)
    await board.close_attempt(job, failed)
    await board.release(job, OWNER, undo_delivery=True)
    await board.claim(job, OWNER, lease_s=20)
    await quotas.reserve(OF_TENANT, f"{job.id}:2", tokens=600, usd=Decimal(1), hold_s=60, ttl_s=60)
    await board.start(job, OWNER, most_deliveries=3, microbatch="mb_1")
    at = await board.finish(job, OWNER, a_conclusion(job, attempted=_settling(a_charge(job, 2), job.id), result=b"{}"))
    entries = await board.outbox("acme")
    await board.published("acme", [entry.field for entry in entries])

    assert isinstance(claim, Run) and start == Started(1) and at is not None and len(entries) == 3
    assert await board.chunks("acme", job.id, "0")
    assert await board.view("acme", job.id, channel="http:1")
    assert len((await board.page("acme", states=[], limit=10, after="")).views) == 1
    assert await board.delete("acme", job.id) is JobState.COMPLETED
    assert await cluster.redis.keys("*:held:*") == []
    assert await slots_used(cluster) == {key_slot(b"{t:acme}")}


async def test_what_the_sweeper_and_a_rebuild_do_stays_in_the_slot(cluster: Scripts) -> None:
    board = Board(cluster)
    lost, ended, known = a_job(), await accepted(board, a_job()), await accepted(board, a_job())
    ghost = await accepted(board, a_job(), confirmed=False)

    await board.sweep("acme", unpublished_s=0.0, lease_s=20, most=10)
    await board.reject("acme", ghost.id)
    await board.cancel("acme", ended.id, an_event(ended, JobState.CANCELLED))
    await board.expire("acme", known.id, an_event(known, JobState.EXPIRED))
    await board.bury("acme", lost.id, JobState.COMPLETED, at=await board.now())
    await board.recount("acme", lost.id, a_charge(lost).text(lost, concluded=True), at=lost.created_at)

    assert await slots_used(cluster) == {key_slot(b"{t:acme}")}


async def test_a_job_that_a_backend_has_and_one_that_runs_again_stay_in_the_slot(cluster: Scripts) -> None:
    board = Board(cluster)
    job = await accepted(board, a_job())
    await board.claim(job, OWNER, lease_s=20)
    await board.start(job, OWNER, most_deliveries=3, microbatch="mb_1")
    is_ours = await board.submit(job, OWNER, "reference", check_in_s=0.0)
    [submission] = await board.collect("acme", "worker:2|collector|1", backend="echo", lease_s=20, most=10)
    failed = a_conclusion(job, JobState.FAILED, attempted=_settling(a_charge(job, 1), job.id))
    await board.finish(job, "worker:2|collector|1", failed)
    revived = await board.revive(job, "letter")

    assert is_ours and submission.job_id == job.id and revived is JobState.QUEUED
    assert await slots_used(cluster) == {key_slot(b"{t:acme}")}


async def test_the_letters_that_are_closed_have_a_key_of_their_own(cluster: Scripts) -> None:
    board = Board(cluster)

    await board.close_letter("letter", "dropped")

    assert await board.closed_letters() == {"letter"}


async def test_what_a_rebuild_knows_of_parts_and_days_stays_in_their_slots(cluster: Scripts) -> None:
    quotas, board = Quotas(cluster), Board(cluster)

    for scope in (OF_TENANT, OF_DEPLOYMENT):
        for part in scope.parts:
            await quotas.watch(scope)
            await quotas.restore(part.key, Spent(5, 7), month="2026-11", day=20_000, seen=Spent())
    await board.recount_day("acme", date(2026, 11, 29), {"small|echo.text.light|jobs": 1}, kept_s=60)

    assert await slots_used(cluster) == {key_slot(b"{t:acme}"), key_slot(b"{b:small}")}


async def test_the_epoch_has_keys_of_its_own(cluster: Scripts) -> None:
    board = Board(cluster)

    await board.begin_epoch("one", only_first=True)
    await board.beat()

    assert await board.heartbeat() == ("one", 1)


def _settling(attempted: Attempted, job_id: str) -> Attempted:
    rid = f"{job_id}:{attempted.attempt}"
    return replace(attempted, settle=Quotas.settle_arguments(OF_TENANT, rid, tokens=attempted.tokens, usd=None))
