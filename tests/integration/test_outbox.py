"""What the outbox promises: what is over is on the log, whatever happens in between. On a real Valkey."""

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from consumers.outcome import Concluded
from policies.deployments import Limits
from policies.quota import Granted, Wait, deployment_scope
from router import topics
from router.board import Run, Started
from router.job import Job, JobState
from router.log import LogUnavailableError
from router.outbox import reservation_id
from tests.builders import Bench, a_bench, a_charge, a_conclusion, a_deployment, a_tally, an_event, entries, records

ANN = "worker:ann|jobs|1-0|1"


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    limited = a_deployment("limited", limits=Limits(tokens_per_minute=100, concurrency=1))
    async with a_bench(redis, tmp_path, deployments=[a_deployment(), limited]) as bench:
        yield bench


async def finished(bench: Bench, *, deployment: str = "small") -> Job:
    """A job that is over on the board, and of which the log knows nothing."""
    job = await bench.job(deployment=deployment)
    assert isinstance(await bench.board.claim(job, ANN, lease_s=30), Run)
    assert await bench.board.start(job, ANN, most_deliveries=3, microbatch="mb_1") == Started(1)
    assert await bench.board.finish(job, ANN, a_conclusion(job, attempted=a_charge(job))) is not None
    return job


async def test_what_a_finished_job_left_is_published_and_struck_off(bench: Bench, redis: "Redis") -> None:
    job = await finished(bench)

    drained = await bench.outbox.drain("acme", job_id=job.id)

    assert drained == 2
    [event] = await records(redis, topics.EVENTS)
    assert (event["type"], event["data"]["id"]) == ("job.completed", f"job_{job.id}")
    [attempt] = await records(redis, topics.CHARGES)
    assert (attempt["job"], attempt["attempt"], attempt["usd"]) == (job.id, 1, "0.00000285")
    assert sum(Decimal(line["usd"]) for line in attempt["lines"]) == Decimal("0.00000285")
    assert await bench.outbox.drain("acme", job_id=job.id) == 0


async def test_a_record_tells_its_id_and_when_it_was(bench: Bench, redis: "Redis") -> None:
    job = await finished(bench)
    await bench.outbox.drain("acme")

    found = [fields for topic in (topics.EVENTS, topics.CHARGES) for fields in await entries(redis, topic)]

    finished_at = (await bench.view(job)).finished_at
    assert [fields[b"h:id"].decode() for fields in found] == [f"{job.id}:event", f"{job.id}:1"]
    assert {int(fields[b"h:at-ms"]) / 1000 for fields in found} == {finished_at}


async def test_publishing_twice_says_the_same_twice(bench: Bench, redis: "Redis") -> None:
    job = await finished(bench)
    waiting = await bench.board.outbox("acme", job_id=job.id)

    await bench.outbox.publish("acme", waiting)
    await bench.outbox.publish("acme", waiting)

    for topic in (topics.EVENTS, topics.CHARGES):
        first, second = await entries(redis, topic)
        assert first == second
    [row] = await bench.costs()
    assert (row.jobs, row.attempts) == (1, 1)


async def test_what_the_log_did_not_take_stays_until_it_does(bench: Bench, redis: "Redis") -> None:
    job = await finished(bench)
    await redis.delete(f"log:{topics.EVENTS}")

    with pytest.raises(LogUnavailableError):
        await bench.outbox.drain("acme", job_id=job.id)
    await bench.log.create([topics.EVENTS])

    assert await bench.outbox.drain("acme", job_id=job.id) == 2
    assert [event["data"]["id"] for event in await records(redis, topics.EVENTS)] == [f"job_{job.id}"]


async def test_a_crash_after_the_finish_is_repaired_by_the_next_delivery(bench: Bench) -> None:
    job = await finished(bench)

    outcome = await bench.attempt()(job, "worker:bob|jobs|1-0|2", a_tally())

    assert isinstance(outcome, Concluded)
    assert await bench.events() == {f"job_{job.id}": "job.completed"}
    assert [charge["job"] for charge in await bench.charges()] == [job.id]
    assert await bench.board.outbox("acme") == []


async def test_only_what_waits_for_long_enough_is_drained(bench: Bench) -> None:
    await finished(bench)

    assert await bench.outbox.drain("acme", age_s=60) == 0
    assert await bench.outbox.drain("acme", age_s=0) == 2


async def test_a_drain_is_bounded_and_the_next_one_goes_on(bench: Bench) -> None:
    jobs = [await finished(bench) for _ in range(6)]

    counts = [await bench.outbox.drain("acme", most=5) for _ in range(4)]

    assert counts == [5, 5, 2, 0]
    assert set(await bench.events()) == {f"job_{job.id}" for job in jobs}


async def test_a_drain_of_one_job_leaves_the_others(bench: Bench) -> None:
    job, other = await finished(bench), await finished(bench)

    await bench.outbox.drain("acme", job_id=job.id)

    assert {entry.field.partition(":")[0] for entry in await bench.board.outbox("acme")} == {other.id}


async def test_the_quota_of_the_deployment_is_settled_on_the_way(bench: Bench) -> None:
    scope = deployment_scope(bench.deployments["limited"])
    job = await finished(bench, deployment="limited")
    rid = reservation_id(job.id, 1)
    await bench.quotas.reserve(scope, rid, tokens=100, usd=None, hold_s=60, ttl_s=60)
    other = {"tokens": 80, "usd": None, "hold_s": 60.0, "ttl_s": 60.0}
    before = await bench.quotas.reserve(scope, "other:1", **other)  # type: ignore[arg-type]

    await bench.outbox.drain("acme")
    await bench.outbox.drain("acme")

    assert isinstance(before, Wait)
    assert isinstance(await bench.quotas.reserve(scope, "other:1", **other), Granted)  # type: ignore[arg-type]


@pytest.mark.parametrize("attempts", [0, 1])
async def test_what_a_worker_had_reserved_that_died_before_the_call_is_given_back_with_the_jobs_end(
    bench: Bench, attempts: int
) -> None:
    scope = deployment_scope(bench.deployments["limited"])
    job = await bench.job(deployment="limited")
    await bench.board.claim(job, ANN, lease_s=30)
    for _ in range(attempts):
        await bench.board.start(job, ANN, most_deliveries=3, microbatch="mb_1")
        await bench.board.close_attempt(job, a_charge(job, outcome="failed"))
    rid = reservation_id(job.id, attempts + 1)
    await bench.quotas.reserve(scope, rid, tokens=100, usd=None, hold_s=60, ttl_s=3600)
    await bench.board.release(job, ANN, undo_delivery=True)  # as its lease runs out
    await bench.board.cancel("acme", job.id, an_event(job, JobState.CANCELLED, attempts=attempts))

    await bench.outbox.drain("acme")

    next_one = await bench.quotas.reserve(scope, "other:1", tokens=80, usd=None, hold_s=60, ttl_s=60)
    assert isinstance(next_one, Granted)


async def test_a_charge_on_a_deployment_that_is_gone_is_published_all_the_same(bench: Bench) -> None:
    job = await finished(bench, deployment="limited")
    del bench.deployments["limited"]

    await bench.outbox.drain("acme")

    assert [charge["job"] for charge in await bench.charges()] == [job.id]


async def test_a_cancelled_job_leaves_its_event(bench: Bench) -> None:
    job = await bench.job()
    conclusion = a_conclusion(job, JobState.CANCELLED)
    await bench.board.cancel("acme", job.id, conclusion.event)

    await bench.outbox.drain("acme")

    assert await bench.events() == {f"job_{job.id}": "job.cancelled"}


async def test_what_is_on_the_ledger_adds_up_to_the_rollups(bench: Bench) -> None:
    for _ in range(5):
        await finished(bench)
    await bench.outbox.drain("acme")

    charges = await bench.charges()

    lines = [line for charge in charges for line in charge["lines"]]
    assert len({line["id"] for line in lines}) == len(lines)
    [row] = await bench.costs()
    assert sum(Decimal(line["usd"]) for line in lines) == row.usd
