"""A board that was wiped or set back is noticed, and made anew from the log, on a real Valkey."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from ulid import ULID

from consumers.rebuilder import Rebuilder
from gateway.auth import authenticate
from policies.deployments import Limits
from policies.keys import ApiKeys, KeyHolder
from policies.pricing import Usage, total
from policies.quota import Exhausted, Quotas, Spent, deployment_scope, nanodollars, tenant_scope
from policies.scripts import BoardUnavailableError
from policies.tenants import Tenant
from router import envelope, rebuild, topics
from router.board import Accepted, Finished, Run
from router.costs import spent
from router.epoch import Epoch
from router.job import Job, JobClass, JobState, Line
from router.log import Delivery, Marks, Record
from router.log_streams import StreamsLog
from router.rebuild import begin, compare
from tests.builders import (
    Bench,
    a_bench,
    a_body,
    a_charge,
    a_deployment,
    a_job,
    a_sweeper,
    accepted,
    date_of,
    entries,
    until,
)

ANN = "worker:ann|jobs|1-0|1"


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    async with a_bench(redis, tmp_path, tenants=[Tenant("acme", Limits(usd_per_month=Decimal("0.0001")))]) as bench:
        yield bench


LIMITS = Limits(usd_per_month=Decimal(9), tokens_per_day=1_000_000)


@pytest.fixture
async def limited(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    """Everything that can have a budget has one."""
    tenant = Tenant("acme", LIMITS, key_limits={"ci": LIMITS}, model_limits={"small": LIMITS})
    async with a_bench(redis, tmp_path, deployments=[a_deployment(limits=LIMITS)], tenants=[tenant]) as bench:
        yield bench


@asynccontextmanager
async def working(bench: Bench) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.worker().run(stop))
        try:
            yield
        finally:
            stop.set()


async def some_finished(bench: Bench, count: int = 5, **fields: Any) -> list[Job]:
    jobs = [await bench.queued(f"hello number {number}", **fields) for number in range(count)]
    async with working(bench):
        await bench.ended(*jobs)
    return jobs


async def test_a_wiped_board_runs_nothing_until_it_is_rebuilt_and_then_repeats_nothing_and_loses_nothing(
    bench: Bench,
) -> None:
    finished = await some_finished(bench)
    queued = [await bench.queued(f"not yet {number}") for number in range(3)]
    spent_before = await bench.costs()
    await bench.wipe()

    async with working(bench):
        await until(lambda: _refuses(bench, queued[0]))
        attempts_before = len(await bench.charges())
        done = await bench.rebuild()
        await until(lambda: _events(bench, len(finished) + len(queued)))

    assert (done.buried, done.recounted) == (len(finished), attempts_before)
    assert sorted(row["job"] for row in await bench.charges()) == sorted(job.id for job in [*finished, *queued])
    assert len(await bench.events()) == len(finished) + len(queued)
    [before], [after] = spent_before, await bench.costs()
    assert after.jobs == len(finished) + len(queued)
    lines = sum((Decimal(row["usd"]) for row in await bench.charges()), Decimal(0))
    assert after.usd == lines > before.usd


async def _refuses(bench: Bench, job: Job) -> bool:
    return await bench.board.epoch() is None and await bench.board.view(job.tenant, job.id) is None


async def _events(bench: Bench, count: int) -> bool:
    return len(await bench.events()) == count


async def test_rebuilt_tombstones_are_met_by_records_that_come_again(bench: Bench) -> None:
    [job] = await some_finished(bench, 1)
    await bench.wipe()
    await bench.rebuild()

    assert await bench.board.claim(job, ANN, lease_s=20) == Finished(JobState.COMPLETED)


async def test_of_a_job_that_the_board_had_forgotten_its_end_is_known_and_it_is_not_run_when_it_is_made_again(
    bench: Bench,
) -> None:
    [job] = await some_finished(bench, 1)
    await bench.wipe()
    await bench.rebuild()

    view = await bench.board.view(job.tenant, job.id, even_gone=True)
    again = await bench.board.accept(job, deadline_s=60, idempotency=None, most_unfinished=9)

    assert view is None
    assert await bench.board.state(job.tenant, job.id) is JobState.COMPLETED
    assert isinstance(again, Accepted)
    assert await bench.board.confirm(job.tenant, job.id) is JobState.COMPLETED


async def test_a_line_of_a_batch_that_had_ended_is_not_waited_for_on_an_older_copy(bench: Bench) -> None:
    id = str(ULID())
    batch = f"{{t:acme}}:batch:{id}"
    await bench.redis.hset(batch, mapping={"state": "in_progress", "total": 1})
    job = await bench.queued(line=Line(id, "first"), job_class=JobClass.BULK)
    before = await bench.copied()
    async with working(bench):
        await bench.ended(job)
    await bench.set_back(before)
    waits = await bench.redis.scard(f"{batch}:open")
    await bench.rebuild()

    assert waits == 1
    assert await bench.redis.scard(f"{batch}:open") == 0
    assert await bench.redis.lrange(f"{batch}:ended", 0, -1) == [job.id.encode()]


async def test_a_budget_is_as_used_after_the_rebuild_as_before(bench: Bench) -> None:
    await some_finished(bench, 8)
    scope = tenant_scope(bench.tenants["acme"])
    ask: dict[str, Any] = {"tokens": 1, "usd": Decimal("0.0001"), "hold_s": 1.0, "ttl_s": 60.0}
    before = await bench.quotas.reserve(scope, "before:1", **ask)
    await bench.wipe()
    unknown = await bench.quotas.reserve(scope, "unknown:1", **ask)
    await bench.wipe()
    await bench.rebuild()

    after = await bench.quotas.reserve(scope, "after:1", **ask)

    assert isinstance(before, Exhausted) and isinstance(after, Exhausted)
    assert not isinstance(unknown, Exhausted), "without the rebuild the budget would be spent twice"


async def budgets(bench: Bench) -> dict[str, Any]:
    """What every part has used, of its month and of its day."""
    [deployment] = bench.deployments.values()
    parts = tenant_scope(bench.tenants["acme"], deployment="small", key="ci").parts + deployment_scope(deployment).parts
    names = [f"{part.key}:{what}" for part in parts for what in ("usd", "day")]
    return {name: cast("dict[bytes, bytes]", await bench.redis.hgetall(name)) for name in names}


async def test_tenants_keys_models_and_deployments_have_used_what_the_ledger_says(limited: Bench) -> None:
    await some_finished(limited, limited_key="ci")
    before = await budgets(limited)
    await limited.wipe()
    lost = await budgets(limited)
    await limited.rebuild()
    await limited.rebuild()

    assert await budgets(limited) == before
    assert len(before) == 8 and all(before.values()) and not any(lost.values())


async def test_what_running_calls_have_reserved_stays_reserved_when_a_whole_board_is_rebuilt(limited: Bench) -> None:
    await some_finished(limited, 1, limited_key="ci")
    scope = tenant_scope(limited.tenants["acme"], deployment="small", key="ci")
    await limited.quotas.reserve(scope, "runs:1", tokens=500, usd=Decimal(1), hold_s=60, ttl_s=60)
    before = await budgets(limited)
    await limited.rebuild()

    assert await budgets(limited) == before


@pytest.mark.parametrize("course", [("copy", "accept", "run"), ("accept", "copy", "run"), ("accept", "run", "copy")])
async def test_what_was_open_when_the_board_was_set_back_is_in_the_budgets_once_it_has_ended(
    limited: Bench, course: Sequence[str]
) -> None:
    """Its reservation is in the copy or not, as its job is; and what had ended may still be reserved there."""
    limited.lease_s = 0.9
    worker, stop = limited.worker(), asyncio.Event()
    job, copy = a_job(), await limited.copied()
    for _ in range(10):
        await limited.board.beat()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run(stop))
        await limited.ended(await limited.queued("Hello", limited_key="ci"))
        for step in course:
            match step:
                case "copy":
                    copy = await limited.copied()
                case "accept":
                    job = await limited.job("wait:3 for it", limited_key="ci")
                case "run":
                    await limited.log.append(job.topic, envelope.to_record(job))
                    await until(partial(_runs, limited, job))
        others = [await limited.queued("Hello again", limited_key="ci") for _ in range(5)]
        await limited.ended(*others)
        for _ in range(10):
            await limited.board.beat()
        await until(lambda: worker.attempt.epoch.beat >= 20)
        await limited.set_back(copy)
        await until(lambda: worker.attempt.epoch.fault is not None)
        await limited.rebuild()
        await until(lambda: _has_event(limited, job))
        stop.set()

    rows = {(row["job"], row["attempt"]): row for row in await limited.charges()}.values()
    tokens, dollars = sum(row["tokens"] for row in rows), sum(nanodollars(Decimal(row["usd"])) for row in rows)
    found = {name: int(*used.values()) for name, used in (await budgets(limited)).items()}
    assert found == {name: tokens if name.endswith(":day") else dollars for name in found}


async def _has_event(bench: Bench, job: Job) -> bool:
    return f"job_{job.id}" in await bench.events()


async def test_what_ends_while_the_ledger_is_read_is_in_the_budgets(limited: Bench) -> None:
    await some_finished(limited, 1, limited_key="ci")
    before = await budgets(limited)
    await limited.wipe()
    scope = tenant_scope(limited.tenants["acme"], deployment="small", key="ci")
    deployment = deployment_scope(limited.deployments["small"])
    for each in (scope, deployment):  # by a worker whose line comes too late to be read
        await limited.quotas.count_unreserved(each, "late:1", tokens=7, usd=Decimal("0.25"))
    await limited.rebuild()

    assert {name: int(*used.values()) for name, used in (await budgets(limited)).items()} == {
        name: int(*used.values()) + (7 if name.endswith(":day") else 250_000_000) for name, used in before.items()
    }


class Meanwhile(Quotas):
    """Something happens after a rebuild has found out what a part should say, and before it writes that."""

    def __init__(self, bench: Bench, what: Callable[[], Awaitable[None]]) -> None:
        super().__init__(bench.scripts)
        self._what: Callable[[], Awaitable[None]] | None = what

    async def restore(self, key: str, least: Spent, *, month: str, day: int, seen: Spent | None) -> bool:
        if self._what is not None:
            what, self._what = self._what, None
            await what()
        return await super().restore(key, least, month=month, day=day, seen=seen)


@pytest.mark.parametrize("course", ["begins", "ends", "ends, unpublished", "ends without its reservation"])
async def test_a_call_that_begins_or_ends_just_when_budgets_are_written_is_in_them_once(
    limited: Bench, course: str
) -> None:
    await some_finished(limited, 2, limited_key="ci")
    before = await budgets(limited)
    await limited.wipe()
    job, used = a_job(limited_key="ci"), Usage(input=7, output=3)
    attempted, rid = a_charge(job, usage=used), f"{job.id}:1"
    scopes = (
        tenant_scope(limited.tenants["acme"], deployment="small", key="ci"),
        deployment_scope(limited.deployments["small"]),
    )

    async def reserve() -> None:
        for each in scopes:
            await limited.quotas.reserve(each, rid, tokens=500, usd=Decimal(1), hold_s=60, ttl_s=60)

    async def end() -> None:
        usd = total(attempted.lines)
        if course == "ends without its reservation":
            for each in scopes:
                await limited.quotas.count_unreserved(each, rid, tokens=used.total, usd=usd)
            return
        keys, arguments = Quotas.settle_arguments(scopes[0], rid, tokens=used.total, usd=usd)
        closed = await limited.board.close_attempt(job, replace(attempted, settle=(keys, arguments)))
        if course == "ends":
            await limited.outbox.publish("acme", [closed.charge])

    if course not in ("begins", "ends without its reservation"):
        await reserve()
    await replace(limited.rebuild, quotas=Meanwhile(limited, reserve if course == "begins" else end))()
    if course == "begins":
        await end()
    await limited.outbox.drain("acme")

    dollars = nanodollars(cast(Decimal, total(attempted.lines)))
    assert {name: int(*used.values()) for name, used in (await budgets(limited)).items()} == {
        name: int(*was.values()) + (used.total if name.endswith(":day") else dollars) for name, was in before.items()
    }


async def _runs(bench: Bench, job: Job) -> bool:
    return await bench.state(job) is JobState.RUNNING


async def test_a_call_that_ends_while_a_whole_board_is_rebuilt_is_in_the_budgets_as_what_it_used(
    limited: Bench,
) -> None:
    await some_finished(limited, 2, limited_key="ci")
    before = await budgets(limited)
    scopes = (
        tenant_scope(limited.tenants["acme"], deployment="small", key="ci"),
        deployment_scope(limited.deployments["small"]),
    )
    for each in scopes:
        await limited.quotas.reserve(each, "runs:1", tokens=500, usd=Decimal(1), hold_s=60, ttl_s=60)

    async def end() -> None:
        for each in scopes:
            await limited.quotas.settle(each, "runs:1", tokens=7, usd=Decimal("0.25"))

    await replace(limited.rebuild, quotas=Meanwhile(limited, end))()

    assert {name: int(*used.values()) for name, used in (await budgets(limited)).items()} == {
        name: int(*was.values()) + (7 if name.endswith(":day") else 250_000_000) for name, was in before.items()
    }


@pytest.mark.parametrize("is_wiped", [False, True])
async def test_two_rebuilds_at_once_while_jobs_run_change_nothing_and_count_all(limited: Bench, is_wiped: bool) -> None:
    jobs = [await limited.queued(f"wait:0.{number % 5} for it", limited_key="ci") for number in range(60)]
    async with working(limited):
        await until(lambda: _some_ended(limited, 5))
        if is_wiped:
            await limited.wipe()
        for _ in range(3):
            await asyncio.gather(limited.rebuild(), limited.rebuild())
        await until(lambda: _events(limited, len(jobs)), within=30)
        await until(lambda: _is_settled(limited), within=30)

    rows = {(row["job"], row["attempt"]): row for row in await limited.charges()}.values()
    tokens, dollars = sum(row["tokens"] for row in rows), sum(nanodollars(Decimal(row["usd"])) for row in rows)
    found = {name: int(*used.values()) for name, used in (await budgets(limited)).items()}
    assert found == {name: tokens if name.endswith(":day") else dollars for name in found}
    if not is_wiped:
        assert len(rows) == len(jobs)


async def _some_ended(bench: Bench, count: int) -> bool:
    return len(await bench.events()) >= count


async def _is_settled(bench: Bench) -> bool:
    return not await bench.redis.exists("{t:acme}:outbox") and not [
        name async for name in bench.redis.scan_iter("*:quota:held:*")
    ]


class Publishing(StreamsLog):
    """Somebody puts what waits in the outboxes on the log, once a rebuild has read the ledger to its end twice."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.redis)
        self._bench = bench
        self._times = 0

    async def read(self, topic: str, *, marks: Marks | None = None) -> AsyncGenerator[Delivery]:
        async for each in super().read(topic, marks=marks):
            yield each
        self._times += topic == topics.CHARGES
        if self._times == 2:
            await self._bench.outbox.drain("acme")


async def test_what_is_on_its_way_to_the_ledger_while_that_is_read_is_in_the_budgets(limited: Bench) -> None:
    await some_finished(limited, 2, limited_key="ci")
    before = await budgets(limited)
    await limited.wipe()
    job, used = a_job(limited_key="ci"), Usage(input=7, output=3)
    await limited.board.close_attempt(job, a_charge(job, usage=used))
    await replace(limited.rebuild, log=Publishing(limited))()

    found = {name: int(*used.values()) for name, used in (await budgets(limited)).items() if name.endswith(":day")}
    assert found == {name: int(*before[name].values()) + used.total for name in found}


async def test_what_an_older_copy_reserves_of_an_attempt_that_ended_long_ago_is_given_back(
    limited: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "REMEMBERED", 1)
    job = await limited.job(limited_key="ci")
    for each in (tenant_scope(limited.tenants["acme"], deployment="small", key="ci"),):
        await limited.quotas.reserve(each, f"{job.id}:1", tokens=500, usd=Decimal(1), hold_s=60, ttl_s=60)
    copy = await limited.copied()
    await limited.log.append(job.topic, envelope.to_record(job))
    await some_finished(limited, 5, limited_key="ci")
    await limited.ended(job)
    now = await budgets(limited)
    epoch = await limited.board.epoch()
    await limited.set_back(copy)
    await limited.board.end_epoch(cast(str, epoch))
    await limited.rebuild()

    assert await budgets(limited) == now


async def test_days_whose_jobs_are_forgotten_are_counted_once_however_often_it_runs(bench: Bench) -> None:
    [job] = await some_finished(bench, 1)
    [today] = await bench.costs()
    at = await bench.board.now() - 20 * 86_400
    old = a_job()
    record = Record(
        a_charge(old).text(old, concluded=True).encode(), {"id": f"{old.id}:1", "at-ms": f"{at * 1000:.0f}"}
    )
    for _ in range(2):  # one may be on the ledger twice
        await bench.log.append(topics.CHARGES, record)
    await bench.wipe()
    await bench.rebuild()
    await bench.rebuild()

    [row] = await spent(bench.redis, ["acme"], by="tenant", days=[date_of(at)])
    assert (row.jobs, row.attempts) == (1, 1)
    assert await bench.costs() == [today]
    assert await bench.redis.exists(f"{{t:acme}}:job:{job.id}") == 1
    assert await bench.redis.exists(f"{{t:acme}}:job:{old.id}") == 0


async def test_api_keys_come_back_and_a_revoked_one_stays_revoked(bench: Bench) -> None:
    kept, revoked = await bench.keyring.create("acme", "kept"), await bench.keyring.create("acme", "revoked")
    await bench.keyring.revoke(revoked.id)
    await bench.wipe()
    lost = await ApiKeys(bench.redis).find(kept.text)
    done = await bench.rebuild()
    again = await bench.rebuild()

    keys = ApiKeys(bench.redis)
    assert lost is None
    assert await keys.find(kept.text) == KeyHolder("acme", kept.id, "kept")
    assert await keys.find(revoked.text) is None
    assert (done.keys, again.keys) == (2, 0)
    for entry in await entries(bench.redis, topics.KEYS):
        assert kept.text.encode() not in b" ".join(entry.values())


async def test_a_key_that_nobody_knows_is_no_wrong_key_while_the_board_is_lost(bench: Bench) -> None:
    made, epoch = await bench.keyring.create("acme", "kept"), Epoch(bench.board)
    await bench.wipe()
    await epoch.look()

    with pytest.raises(BoardUnavailableError):
        await authenticate(ApiKeys(bench.redis), bench.tenants, epoch, f"Bearer {made.text}")


async def test_a_lost_board_is_rebuilt_without_being_asked_where_that_is_allowed(bench: Bench) -> None:
    finished = await some_finished(bench)
    queued = [await bench.queued(f"not yet {number}") for number in range(3)]
    await bench.wipe()
    stop = asyncio.Event()

    async with working(bench), asyncio.TaskGroup() as tasks:
        tasks.create_task(Rebuilder(Epoch(bench.board), bench.rebuild).run(stop))
        await until(lambda: _events(bench, len(finished) + len(queued)))
        stop.set()

    assert sorted(row["job"] for row in await bench.charges()) == sorted(job.id for job in [*finished, *queued])


async def test_the_next_attempt_after_a_wipe_has_a_number_of_its_own(bench: Bench) -> None:
    """One whose call was under way when everything went is charged as late, and then runs again."""
    job = await bench.queued()
    await bench.board.claim(job, ANN, lease_s=20)
    await bench.board.start(job, ANN, most_deliveries=3, microbatch="mb_1")
    await bench.wipe()
    await bench.board.close_attempt(job, a_charge(job, 1, outcome="late"))
    await bench.rebuild()

    claim = await bench.board.claim(job, ANN, lease_s=20)
    assert isinstance(claim, Run) and claim.attempts == 1


async def test_the_next_attempt_after_a_set_back_has_a_number_of_its_own(bench: Bench) -> None:
    """Two attempts of one number are one on the ledger, and one of them would cost nothing."""
    job = await bench.queued()
    before = await bench.copied()
    await bench.board.claim(job, ANN, lease_s=20)
    await bench.board.start(job, ANN, most_deliveries=3, microbatch="mb_1")
    await bench.set_back(before)
    await bench.board.close_attempt(job, a_charge(job, 1, outcome="late"))
    await bench.rebuild()

    claim = await bench.board.claim(job, ANN, lease_s=20)
    assert isinstance(claim, Run) and claim.attempts == 1


async def test_on_a_board_that_was_set_back_no_job_ends_that_had_ended_otherwise(bench: Bench) -> None:
    """The older copy takes these for jobs that the log never confirmed, or whose deadline is over."""
    expiring = await bench.queued(deadline_s=5.0)
    accepting = await accepted(bench.board, a_job(), confirmed=False)
    await bench.log.append(accepting.topic, envelope.to_record(accepting))
    before = await bench.copied()
    epoch = Epoch(bench.board)
    for _ in range(10):
        await bench.board.beat()
    await epoch.look()
    async with working(bench):
        await bench.ended(expiring, accepting)
    ended = await bench.events()
    await bench.set_back(before)
    await until(lambda: _is_over(bench, expiring))

    await a_sweeper(bench, epoch=epoch, unpublished_s=0, left_behind_s=0).sweep()
    await bench.rebuild()
    await a_sweeper(bench, epoch=epoch, unpublished_s=0, left_behind_s=0).sweep()

    assert await bench.events() == ended
    for job in (expiring, accepting):
        assert await bench.board.claim(job, ANN, lease_s=20) == Finished(JobState.COMPLETED)


async def _is_over(bench: Bench, job: Job) -> bool:
    return await bench.board.now() > job.expires_at


async def test_a_rebuild_may_run_twice_and_on_a_board_that_is_whole(bench: Bench) -> None:
    await some_finished(bench)
    before = await bench.costs()

    first = await bench.rebuild()
    second = await bench.rebuild()

    assert (first.buried, first.recounted) == (second.buried, second.recounted) == (0, 0)
    assert await bench.costs() == before


async def test_only_a_board_that_is_new_with_its_log_begins_by_itself(bench: Bench) -> None:
    await some_finished(bench, 1)
    await bench.wipe()
    await begin(bench.log, bench.board)
    lost = await bench.board.epoch()
    await bench.redis.flushdb()
    await bench.log.create(["jobs.events", "ledger.charges"])
    await begin(bench.log, bench.board)

    assert lost is None
    assert await bench.board.epoch() is not None


async def test_a_lost_board_is_not_ready_and_says_what_to_do(bench: Bench) -> None:
    epoch = Epoch(bench.board)
    await epoch.look()
    whole = epoch.fault
    await bench.wipe()
    await epoch.look()

    assert whole is None
    assert epoch.fault is not None and "pointsman board rebuild" in epoch.fault
    with pytest.raises(BoardUnavailableError):
        await bench.board.ping()


async def test_an_older_copy_that_was_put_in_place_while_nobody_ran_is_noticed_at_the_start(bench: Bench) -> None:
    await some_finished(bench, 2)
    copy = await bench.copied()
    await some_finished(bench, 2)
    await compare(bench.log, bench.board)
    whole = await bench.board.epoch()
    await bench.set_back(copy)
    await compare(bench.log, bench.board)
    set_back = await bench.board.epoch()
    await bench.rebuild()
    await compare(bench.log, bench.board)

    assert whole is not None
    assert set_back is None
    assert await bench.board.epoch() is not None


async def test_a_job_that_is_run_again_by_an_operator_or_was_deleted_is_no_sign_of_an_older_copy(bench: Bench) -> None:
    for again in (True, False):
        [job] = await some_finished(bench, 1, **({"body": a_body("fail:rejected")} if again else {}))
        if again:
            state = await bench.board.revive(replace(job, expires_at=job.expires_at + 60), "letter")
            assert state is JobState.QUEUED
        else:
            await bench.board.delete(job.tenant, job.id)
        await compare(bench.log, bench.board)
        assert await bench.board.epoch() is not None


async def test_a_board_that_was_set_back_is_noticed_until_it_is_rebuilt(bench: Bench) -> None:
    epoch, newcomer = Epoch(bench.board), Epoch(bench.board)
    for _ in range(10):
        await bench.board.beat()
    await epoch.look()
    await bench.redis.hset("board:epoch", "beat", "2")
    await epoch.look()
    await epoch.look()
    await newcomer.look()
    set_back, for_newcomer = epoch.fault, newcomer.fault
    await bench.rebuild()
    await epoch.look()

    assert set_back is not None and "set back" in set_back
    assert for_newcomer is not None, "one that starts later was not there to see the older beat"
    assert epoch.fault is None
