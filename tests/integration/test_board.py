"""What the board promises, on a real Valkey."""

import asyncio
import json
import random
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from ulid import ULID

from policies.deployments import Limits
from policies.pricing import Meter, Price, Usage
from policies.quota import Granted, Quotas, Wait, tenant_scope
from policies.scripts import BoardUnavailableError, Scripts
from policies.tenants import Tenant
from router.board import (
    LOOKED_AT_ONCE,
    Accepted,
    BatchOver,
    Board,
    Busy,
    Cancelled,
    CancelRequested,
    Chunk,
    Expired,
    Finished,
    KeyReused,
    Lost,
    QueueFull,
    Run,
    Same,
    Started,
    TooManyDeliveries,
)
from router.costs import Spent
from router.job import Job, JobState, Payload
from tests.builders import (
    PRICE,
    a_charge,
    a_conclusion,
    a_job,
    accepted,
    an_event,
    costs,
    impatient_client,
    standing_still,
    until,
)

LEASE_S = 30.0
LAPSED_S = 0.05  # a lease that is over before anybody looks again
ANN, BOB = "worker:ann|jobs|1-0|1", "worker:bob|jobs|1-0|1"


@pytest.fixture
async def board(scripts: Scripts) -> Board:
    """One that has begun its life."""
    board = Board(scripts)
    await board.begin_epoch("first", only_first=True)
    return board


async def claimed(board: Board, owner: str = ANN, *, lease_s: float = LEASE_S, **fields: Any) -> Job:
    job = await accepted(board, a_job(**fields))
    assert isinstance(await board.claim(job, owner, lease_s=lease_s), Run)
    return job


async def started(board: Board, owner: str = ANN, *, lease_s: float = LEASE_S, **fields: Any) -> Job:
    job = await claimed(board, owner, lease_s=lease_s, **fields)
    assert await board.start(job, owner, most_deliveries=3, microbatch="mb_1") == Started(1)
    return job


async def state(board: Board, job: Job) -> JobState:
    view = await board.view(job.tenant, job.id)
    assert view is not None
    return view.state


async def accept(
    board: Board, job: Job, *, idempotency: tuple[str, str] | None = None, most: int = 10, deadline_s: float = 60.0
) -> Accepted | Same | KeyReused | QueueFull | BatchOver:
    return await board.accept(job, deadline_s=deadline_s, idempotency=idempotency, most_unfinished=most)


# Accepting


async def test_an_accepted_job_is_seen_with_everything_that_it_was_made_of(board: Board) -> None:
    body_at = Payload("bodies/acme/1", "ab" * 32, 300_000)
    job = a_job(payload=body_at, body=b"", metadata={"ü": "☃"}, traceparent="00-1-2-01", max_usd=Decimal("0.01"))

    answer = await accept(board, job, deadline_s=60)

    assert isinstance(answer, Accepted)
    assert answer.expires_at - answer.created_at == pytest.approx(60)
    view = await board.view("acme", job.id)
    assert view is not None
    assert view.job == replace(job, created_at=answer.created_at, expires_at=answer.expires_at)
    assert (view.state, view.attempts, view.usd) == (JobState.ACCEPTING, 0, Decimal(0))


async def test_the_same_idempotency_key_and_body_is_the_same_job(board: Board) -> None:
    first, second = a_job(), a_job()
    await accept(board, first, idempotency=("key", "body"))

    answer = await accept(board, second, idempotency=("key", "body"))

    assert answer == Same(first.id)
    assert await board.view("acme", second.id) is None


async def test_an_idempotency_key_with_another_body_is_told_so(board: Board) -> None:
    first = a_job()
    await accept(board, first, idempotency=("key", "body"))

    answer = await accept(board, a_job(), idempotency=("key", "other body"))

    assert answer == KeyReused(first.id)


async def test_an_idempotency_key_is_its_tenants(board: Board) -> None:
    await accept(board, a_job(), idempotency=("key", "body"))

    answer = await accept(board, a_job(tenant="other"), idempotency=("key", "body"))

    assert isinstance(answer, Accepted)


async def test_a_rejected_job_is_replaced_under_its_idempotency_key(board: Board) -> None:
    first, second = a_job(), a_job()
    await accept(board, first, idempotency=("key", "body"))
    await board.reject("acme", first.id)

    answer = await accept(board, second, idempotency=("key", "body"))
    again = await accept(board, a_job(), idempotency=("key", "body"))

    assert isinstance(answer, Accepted)
    assert again == Same(second.id)


@pytest.mark.parametrize("idempotency", [None, ("key", "body")])
async def test_accepting_twice_is_accepting_once(board: Board, idempotency: tuple[str, str] | None) -> None:
    job = a_job()

    first = await accept(board, job, idempotency=idempotency, most=1)
    again = await accept(board, job, idempotency=idempotency, most=1)

    assert isinstance(first, Accepted)
    assert again == first


async def test_a_full_queue_counts_only_what_is_unfinished_and_not_past_its_deadline(board: Board) -> None:
    finished = await claimed(board)
    await board.finish(finished, ANN, a_conclusion(finished))
    overdue = await accepted(board, a_job(), deadline_s=0.001)
    await until(lambda: _is_overdue(board, overdue))
    await accept(board, a_job(), most=2)

    second = await accept(board, a_job(), most=2)
    third = await accept(board, a_job(), most=2)

    assert isinstance(second, Accepted)
    assert third == QueueFull()


async def _is_overdue(board: Board, job: Job) -> bool:
    return await board.now() > job.expires_at + 0.001


async def test_a_full_queue_writes_nothing(board: Board, redis: "Redis") -> None:
    await accept(board, a_job(), most=1)
    before = sorted(await redis.keys())

    answer = await accept(board, a_job(), most=1, idempotency=("key", "body"))

    assert answer == QueueFull()
    assert sorted(await redis.keys()) == before


async def test_confirming_makes_an_accepting_job_queued_and_changes_no_other(board: Board) -> None:
    accepting, finished = a_job(), await claimed(board)
    await accept(board, accepting)
    await board.finish(finished, ANN, a_conclusion(finished))

    states = [await board.confirm("acme", job.id) for job in (accepting, accepting, finished)]

    assert states == [JobState.QUEUED, JobState.QUEUED, JobState.COMPLETED]


async def test_rejecting_fences_a_record_that_is_delivered_all_the_same(board: Board) -> None:
    job = await accepted(board, a_job(), confirmed=False)

    states = [await act("acme", job.id) for act in (board.reject, board.reject, board.confirm)]

    assert states == [JobState.REJECTED] * 3
    assert await board.claim(job, ANN, lease_s=LEASE_S) == Finished(JobState.REJECTED)
    assert await board.view("acme", job.id) is None
    assert (await board.page("acme", states=[], limit=10, after="")).views == []


async def test_a_job_that_was_claimed_meanwhile_wins_over_its_rejection(board: Board) -> None:
    job = await accepted(board, a_job(), confirmed=False)
    await board.claim(job, ANN, lease_s=LEASE_S)

    verdict = await board.reject("acme", job.id)

    assert verdict is JobState.QUEUED
    assert await board.start(job, ANN, most_deliveries=3, microbatch="") == Started(1)


async def test_a_job_that_was_confirmed_is_not_rejected(board: Board) -> None:
    job = await accepted(board, a_job())

    assert await board.reject("acme", job.id) is JobState.QUEUED


async def test_a_job_that_the_board_lost_before_its_rejection_is_fenced_all_the_same(
    board: Board, redis: "Redis"
) -> None:
    job = await accepted(board, a_job(), confirmed=False)
    await redis.delete(_key(job))

    assert await board.reject("acme", job.id) is JobState.REJECTED
    assert await board.claim(job, ANN, lease_s=LEASE_S) == Finished(JobState.REJECTED)


async def test_a_job_that_the_board_lost_before_its_confirmation_waits_for_its_record(
    board: Board, redis: "Redis"
) -> None:
    job = await accepted(board, a_job(), confirmed=False)
    await redis.delete(_key(job))

    assert await board.confirm("acme", job.id) is JobState.QUEUED
    assert isinstance(await board.claim(job, ANN, lease_s=LEASE_S), Run)


# Claiming


async def test_a_claim_holds_and_says_how_long_there_is(board: Board) -> None:
    job = await accepted(board, a_job())

    claim = await board.claim(job, ANN, lease_s=LEASE_S)

    assert isinstance(claim, Run)
    assert (claim.attempts, claim.open_attempt) == (0, None)
    assert 50 < claim.seconds_left <= 60


async def test_a_claim_finds_another_owner(board: Board) -> None:
    job = await claimed(board)

    claim = await board.claim(job, BOB, lease_s=LEASE_S)

    assert isinstance(claim, Busy)
    assert 20 < claim.seconds <= LEASE_S
    assert await board.renew(job, ANN, lease_s=LEASE_S) is None


async def test_an_owner_may_claim_again(board: Board) -> None:
    job = await claimed(board)

    assert type(await board.claim(job, ANN, lease_s=LEASE_S)) is Run


async def test_a_claim_finds_a_finished_job(board: Board) -> None:
    job = await claimed(board)
    await board.finish(job, ANN, a_conclusion(job, JobState.FAILED))

    assert await board.claim(job, BOB, lease_s=LEASE_S) == Finished(JobState.FAILED)


async def test_a_claim_finds_a_job_that_was_cancelled_while_it_ran(board: Board) -> None:
    job = await started(board, lease_s=LAPSED_S)
    await board.cancel("acme", job.id, an_event(job, JobState.CANCELLED))

    claim = await until_claimed(board, job, BOB)

    assert type(claim) is Cancelled
    assert claim.open_attempt == 1


async def test_a_claim_finds_a_job_past_its_deadline(board: Board) -> None:
    job = await accepted(board, a_job(), deadline_s=0.001)
    await until(lambda: _is_overdue(board, job))

    claim = await board.claim(job, ANN, lease_s=LEASE_S)

    assert type(claim) is Expired


async def until_claimed(board: Board, job: Job, owner: str, *, lease_s: float = LEASE_S) -> Run:
    """The claim of somebody who asks again until the job is his, which is long before a whole lease is over."""
    async with asyncio.timeout(LEASE_S / 2):
        while True:
            claim = await board.claim(job, owner, lease_s=lease_s)
            if isinstance(claim, Run):
                return claim
            await asyncio.sleep(0.02)


async def test_a_lease_that_ended_is_taken_over_and_its_owner_is_out(board: Board) -> None:
    job = await started(board, lease_s=LAPSED_S)

    claim = await until_claimed(board, job, BOB)

    assert type(claim) is Run
    assert isinstance(await board.renew(job, ANN, lease_s=LEASE_S), Lost)
    assert isinstance(await board.start(job, ANN, most_deliveries=3, microbatch=""), Lost)
    assert await board.finish(job, ANN, a_conclusion(job)) is None
    assert not await board.add_chunks(job, ANN, 1, [b"x"], before=0, ttl_s=10)
    assert await board.release(job, ANN, undo_delivery=False) is None
    assert await board.renew(job, BOB, lease_s=LEASE_S) is None


async def test_the_attempt_of_an_owner_that_died_is_told_until_it_is_charged(board: Board) -> None:
    job = await started(board, lease_s=LAPSED_S)
    first = await until_claimed(board, job, BOB)
    again = await board.claim(job, BOB, lease_s=LEASE_S)

    for _ in range(2):
        await board.close_attempt(job, a_charge(job, 1, outcome="lost"), is_cut=True)

    assert (first.attempts, first.open_attempt) == (1, 1)
    assert again == replace(first, seconds_left=again.seconds_left) if isinstance(again, Run) else False
    after = await board.claim(job, BOB, lease_s=LEASE_S)
    assert isinstance(after, Run) and after.open_attempt is None
    assert (after.attempts, after.cut) == (1, 1)


async def test_an_owner_that_renews_keeps_its_lease_even_after_its_end(board: Board, redis: "Redis") -> None:
    job = await claimed(board, lease_s=LAPSED_S)
    await until(lambda: _has_lapsed(board, redis, job))

    assert await board.renew(job, ANN, lease_s=LEASE_S) is None
    assert isinstance(await board.claim(job, BOB, lease_s=LEASE_S), Busy)


async def _has_lapsed(board: Board, redis: "Redis", job: Job) -> bool:
    lease = await cast(Any, redis.hget(_key(job), "lease"))
    return await board.now() * 1000 > int(lease)


async def test_a_job_that_the_board_lost_is_written_anew_from_its_record(board: Board, redis: "Redis") -> None:
    job = await accepted(board, a_job(metadata={"a": "b"}))
    await redis.delete(*await redis.keys("{t:acme}*"))

    claim = await board.claim(job, ANN, lease_s=LEASE_S)

    assert type(claim) is Run
    view = await board.view("acme", job.id)
    assert view is not None and view.job == replace(job, body=b"")
    assert [each.job.id for each in (await board.page("acme", states=[], limit=10, after="")).views] == [job.id]
    assert await accept(board, a_job(), most=1) == QueueFull()
    assert await board.finish(job, ANN, a_conclusion(job)) is not None
    assert await accept(board, a_job(), most=1) != QueueFull()


async def test_a_board_that_is_wholly_lost_lets_nothing_run(board: Board, redis: "Redis") -> None:
    job = await accepted(board, a_job())
    await redis.flushdb()

    claim = await board.claim(job, ANN, lease_s=LEASE_S)
    await board.begin_epoch("second", only_first=True)

    assert isinstance(claim, Busy)
    assert type(await board.claim(job, ANN, lease_s=LEASE_S)) is Run


async def test_a_job_that_was_given_back_to_wait_is_not_claimed_before_it_is_due(board: Board) -> None:
    job = await claimed(board)
    due_at = await board.release(job, ANN, undo_delivery=False, wait_s=0.2)

    early = await board.claim(job, BOB, lease_s=LEASE_S)
    await until_claimed(board, job, BOB)

    assert isinstance(early, Busy) and early.seconds <= 0.2
    assert due_at is not None and await board.now() >= due_at


# A Redis that stood still


async def test_after_redis_stood_still_living_owners_renew_before_anybody_takes_over(
    own_valkey: str,
) -> None:
    lease_s, tenants = 2.0, ("swept-first", "claimed-first", "never-swept")
    async with impatient_client(own_valkey) as redis:
        board = Board(Scripts(redis))
        living = {tenant: await started(board, lease_s=lease_s, tenant=tenant) for tenant in tenants}
        died = {tenant: await started(board, lease_s=lease_s, tenant=tenant) for tenant in tenants}
        for tenant in tenants[:2]:
            await board.sweep(tenant, unpublished_s=60, lease_s=lease_s, most=10)

        async with standing_still(redis):
            with pytest.raises(BoardUnavailableError):
                await board.renew(living["never-swept"], ANN, lease_s=lease_s)
            await asyncio.sleep(5.5)  # longer than a lease, and than what the board takes for standing still

        await board.sweep("swept-first", unpublished_s=60, lease_s=lease_s, most=10)
        early = [await board.claim(job, BOB, lease_s=lease_s) for job in (*living.values(), *died.values())]
        renewed = [await board.renew(job, ANN, lease_s=lease_s) for job in living.values()]
        late = [await until_claimed(board, job, BOB) for job in died.values()]
        assert [type(claim) for claim in early] == [Busy] * 6
        assert renewed == [None] * 3
        assert [claim.open_attempt for claim in late] == [1] * 3


async def test_a_tenant_that_was_idle_is_not_taken_for_a_redis_that_stood_still(board: Board, redis: "Redis") -> None:
    job = await started(board, lease_s=LAPSED_S)
    await redis.hset("{t:acme}:stamp", "at", "1000")
    await board.sweep("acme", unpublished_s=60, lease_s=0.05, most=10)  # it comes round once a second

    claim = await until_claimed(board, job, BOB)

    assert type(claim) is Run


# Starting


async def test_each_start_counts_a_delivery_and_opens_the_next_attempt(board: Board) -> None:
    job = await claimed(board)

    starts = []
    for owner in (ANN, BOB):
        await board.claim(job, owner, lease_s=LEASE_S)
        starts.append(await board.start(job, owner, most_deliveries=2, microbatch="mb_1"))
        await board.close_attempt(job, a_charge(job, len(starts)))
        await board.release(job, owner, undo_delivery=False)
    await board.claim(job, ANN, lease_s=LEASE_S)
    refused = await board.start(job, ANN, most_deliveries=2, microbatch="mb_1")

    assert starts == [Started(1), Started(2)]
    assert refused == TooManyDeliveries(2)


async def test_deaths_long_after_the_call_began_count_a_third(board: Board) -> None:
    lease_s, deaths = 0.3, 0
    job = await claimed(board, f"{ANN}0", lease_s=lease_s)

    while not isinstance(await board.start(job, f"{ANN}{deaths}", most_deliveries=2, microbatch=""), TooManyDeliveries):
        await asyncio.sleep(0.2)
        await board.renew(job, f"{ANN}{deaths}", lease_s=lease_s)  # alive half a lease after the start, and then gone
        deaths += 1
        await until_claimed(board, job, f"{ANN}{deaths}", lease_s=lease_s)
        await board.close_attempt(job, a_charge(job, deaths, outcome="lost"))

    assert deaths == 6


async def test_an_orderly_exit_takes_its_delivery_back(board: Board) -> None:
    job = await claimed(board)

    starts = []
    for number in range(1, 6):
        await board.claim(job, ANN, lease_s=LEASE_S)
        starts.append(await board.start(job, ANN, most_deliveries=1, microbatch=""))
        await board.close_attempt(job, a_charge(job, number))
        await board.release(job, ANN, undo_delivery=True)

    assert starts == [Started(number) for number in range(1, 6)]


async def test_a_delivery_that_was_not_counted_is_not_taken_back(board: Board) -> None:
    job = await started(board, lease_s=LAPSED_S)
    await until_claimed(board, job, BOB)
    await board.close_attempt(job, a_charge(job, 1, outcome="lost"))

    await board.release(job, BOB, undo_delivery=True)

    await board.claim(job, BOB, lease_s=LEASE_S)
    assert await board.start(job, BOB, most_deliveries=1, microbatch="") == TooManyDeliveries(1)


async def test_starting_twice_counts_one_delivery_and_opens_one_attempt(board: Board) -> None:
    job = await claimed(board)

    starts = [await board.start(job, ANN, most_deliveries=1, microbatch="mb_1") for _ in range(3)]

    assert starts == [Started(1)] * 3


async def test_an_accident_between_claim_and_start_counts_nothing(board: Board) -> None:
    job = await accepted(board, a_job())
    for number in range(5):
        await board.claim(job, f"worker:{number}|jobs|1-0|1", lease_s=LAPSED_S)
        await until_claimed(board, job, ANN)
        await board.release(job, ANN, undo_delivery=False)
    await board.claim(job, ANN, lease_s=LEASE_S)

    assert await board.start(job, ANN, most_deliveries=1, microbatch="") == Started(1)


async def test_a_job_whose_end_is_asked_for_does_not_start(board: Board) -> None:
    job = await claimed(board)
    verdict = await board.cancel("acme", job.id, an_event(job, JobState.CANCELLED))

    assert verdict is JobState.QUEUED
    assert isinstance(await board.start(job, ANN, most_deliveries=3, microbatch=""), CancelRequested)
    assert isinstance(await board.renew(job, ANN, lease_s=LEASE_S), CancelRequested)


async def test_a_running_job_is_seen_running(board: Board) -> None:
    job = await started(board)

    view = await board.view("acme", job.id)

    assert view is not None
    assert (view.state, view.attempts, view.microbatch) == (JobState.RUNNING, 1, "mb_1")
    assert view.started_at is not None and view.started_at >= job.created_at


# Finishing


async def test_finishing_writes_result_charges_event_and_quota_at_once(board: Board, redis: "Redis") -> None:
    quotas, scope = Quotas(Scripts(redis)), tenant_scope(Tenant("acme", Limits(tokens_per_minute=100)))
    job = await started(board)
    rid = f"{job.id}:1"
    assert isinstance(await quotas.reserve(scope, rid, tokens=100, usd=None, hold_s=60, ttl_s=60), Granted)
    charged = a_charge(job)
    attempted = replace(charged, settle=quotas.settle_arguments(scope, rid, tokens=charged.tokens, usd=None))

    at = await board.finish(
        job, ANN, a_conclusion(job, attempted=attempted, result=b'{"x":1}', usage={"total_tokens": 10})
    )

    view = await board.view("acme", job.id)
    assert view is not None
    assert (view.state, view.result, view.usage) == (JobState.COMPLETED, b'{"x":1}', {"total_tokens": 10})
    assert view.charges == attempted.lines and view.usd == Decimal("0.00000285")
    assert view.finished_at == at
    entries = await board.outbox("acme", job_id=job.id)
    assert sorted(entry.field for entry in entries) == [f"{job.id}:1", f"{job.id}:event"]
    assert {entry.at for entry in entries} == {at}
    assert isinstance(await quotas.reserve(scope, "other", tokens=91, usd=None, hold_s=60, ttl_s=60), Wait)
    assert isinstance(await quotas.reserve(scope, "other", tokens=90, usd=None, hold_s=60, ttl_s=60), Granted)


async def test_an_error_and_a_result_that_lies_elsewhere_are_seen(board: Board) -> None:
    failed, large = await started(board), await started(board)
    problem = {"message": "ü", "code": "x", "type": "server_error", "param": None}
    result_at = Payload("results/acme/1.1", "cd" * 32, 70_000)

    await board.finish(failed, ANN, a_conclusion(failed, JobState.FAILED, error=problem))
    await board.finish(large, ANN, a_conclusion(large, result_at=result_at))

    views = [await board.view("acme", job.id) for job in (failed, large)]
    assert [view and view.error for view in views] == [problem, None]
    assert [view and view.result_at for view in views] == [None, result_at]


async def test_only_the_owner_finishes_and_what_others_had_leaves_no_trace(board: Board) -> None:
    job = await started(board)

    assert await board.finish(job, BOB, a_conclusion(job, attempted=a_charge(job), result=b"bob's")) is None

    view = await board.view("acme", job.id)
    assert view is not None
    assert (view.state, view.result, view.charges) == (JobState.RUNNING, None, ())
    assert await board.outbox("acme", job_id=job.id) == []


async def test_a_finish_whose_answer_was_lost_is_repeated_with_the_same_answer(board: Board, redis: "Redis") -> None:
    job = await started(board)
    conclusion = a_conclusion(job, attempted=a_charge(job), result=b"first")
    at = await board.finish(job, ANN, conclusion)

    again = await board.finish(job, ANN, conclusion)
    other = await board.finish(job, BOB, a_conclusion(job, JobState.FAILED, attempted=a_charge(job, 1)))

    assert at is not None and again == at
    assert other is None
    [row] = await costs(redis, board)
    assert (row.jobs, row.attempts, row.usd) == (1, 1, Decimal("0.00000285"))
    view = await board.view("acme", job.id)
    assert view is not None and view.result == b"first"


async def test_an_attempt_is_charged_once_and_what_stands_is_told(board: Board, redis: "Redis") -> None:
    job = await started(board)
    lost = a_charge(job, 1, usage=Usage(input=10), outcome="lost")
    late = a_charge(job, 1, usage=Usage(input=7, output=3), outcome="late")

    first = await board.close_attempt(job, lost)
    again = await board.close_attempt(job, lost)
    other = await board.close_attempt(job, late)

    assert first.charge.text == again.charge.text == other.charge.text == lost.text(job, concluded=False)
    assert first.charge.field == f"{job.id}:1"
    [row] = await costs(redis, board)
    assert (row.attempts, row.tokens, row.usd) == (1, 10, Decimal("0.0000015"))
    view = await board.view("acme", job.id)
    assert view is not None and view.charges == lost.lines


async def test_a_terminal_state_never_changes(board: Board) -> None:
    job = await started(board)
    await board.finish(job, ANN, a_conclusion(job, result=b"kept"))

    await board.cancel("acme", job.id, an_event(job, JobState.CANCELLED))
    await board.expire("acme", job.id, an_event(job, JobState.EXPIRED))
    await board.confirm("acme", job.id)
    await board.reject("acme", job.id)
    await board.release(job, ANN, undo_delivery=True)
    await board.claim(job, ANN, lease_s=LEASE_S)
    await board.start(job, ANN, most_deliveries=3, microbatch="")

    view = await board.view("acme", job.id)
    assert view is not None
    assert (view.state, view.result, view.attempts) == (JobState.COMPLETED, b"kept", 1)
    assert len(await board.outbox("acme", job_id=job.id)) == 1


async def test_whoever_watches_is_woken_by_name_when_it_starts_and_ends(board: Board, redis: "Redis") -> None:
    channel, other = "http:test-board-1", "http:test-board-2"
    job = a_job(tenant="watched")
    await board.accept(job, deadline_s=60, idempotency=None, most_unfinished=10, channel=channel)
    await board.view("watched", job.id, channel=other)
    async with redis.pubsub(ignore_subscribe_messages=True) as listener:
        await listener.subscribe(channel, other)
        await until(lambda: _subscribed(redis, channel, other))
        await board.claim(job, ANN, lease_s=LEASE_S)
        await board.start(job, ANN, most_deliveries=3, microbatch="")
        await board.finish(job, ANN, a_conclusion(job))

        heard: list[tuple[bytes, bytes]] = []
        async with asyncio.timeout(5):
            while len(heard) < 4:
                if message := await listener.get_message(timeout=1):
                    heard.append((message["channel"], message["data"]))

    name = f"watched {job.id}".encode()
    assert sorted(heard) == [(channel.encode(), name)] * 2 + [(other.encode(), name)] * 2


async def _subscribed(redis: "Redis", *channels: str) -> bool:
    return all(count == 1 for _, count in await redis.pubsub_numsub(*channels))


# Ending what nobody runs


async def test_a_job_that_nobody_runs_is_cancelled_at_once(board: Board) -> None:
    waiting, accepting = await accepted(board, a_job()), await accepted(board, a_job(), confirmed=False)

    verdicts = [
        await board.cancel("acme", job.id, an_event(job, JobState.CANCELLED)) for job in (waiting, accepting, waiting)
    ]

    assert verdicts == [JobState.CANCELLED] * 3
    assert await board.claim(waiting, ANN, lease_s=LEASE_S) == Finished(JobState.CANCELLED)
    assert [entry.field for entry in await board.outbox("acme", job_id=waiting.id)] == [f"{waiting.id}:event"]


async def test_a_running_job_is_cancelled_through_its_owner(board: Board, redis: "Redis") -> None:
    owner = "worker:test-cancel|jobs|1-0|1"
    job = await started(board, owner)
    async with redis.pubsub(ignore_subscribe_messages=True) as listener:
        await listener.subscribe("worker:test-cancel")
        await until(lambda: _subscribed(redis, "worker:test-cancel"))

        verdict = await board.cancel("acme", job.id, an_event(job, JobState.CANCELLED))

        async with asyncio.timeout(5):
            while not (message := await listener.get_message(timeout=1)):
                pass
    assert verdict is JobState.RUNNING
    assert message["data"] == f"acme {job.id}".encode()
    assert isinstance(await board.renew(job, owner, lease_s=LEASE_S), CancelRequested)


async def test_a_job_that_may_have_cost_is_not_ended_before_that_is_charged(board: Board, redis: "Redis") -> None:
    job = await started(board, lease_s=LAPSED_S)
    await until(lambda: _has_lapsed(board, redis, job))

    verdict = await board.cancel("acme", job.id, an_event(job, JobState.CANCELLED))

    assert verdict is JobState.RUNNING
    assert type(await until_claimed(board, job, BOB)) is Cancelled


async def test_only_what_is_past_its_deadline_expires(board: Board) -> None:
    overdue, waiting = await accepted(board, a_job(), deadline_s=0.001), await accepted(board, a_job())
    await until(lambda: _is_overdue(board, overdue))

    verdicts = [await board.expire("acme", job.id, an_event(job, JobState.EXPIRED)) for job in (overdue, waiting)]

    assert verdicts == [JobState.EXPIRED, JobState.QUEUED]


async def test_an_unknown_job_is_neither_cancelled_nor_expired_nor_deleted(board: Board) -> None:
    job = a_job()

    assert await board.cancel("acme", job.id, "{}") is None
    assert await board.expire("acme", job.id, "{}") is None
    assert await board.delete("acme", job.id) is None


# What is left afterwards


async def test_after_its_result_is_gone_a_job_is_unseen_but_still_finished(scripts: Scripts, redis: "Redis") -> None:
    board = Board(scripts, tombstone_s=100)
    job = await started(board, result_ttl_s=0.05)
    await board.finish(job, ANN, a_conclusion(job, result=b"short-lived"))

    await until(lambda: _is_unseen(board, job))

    assert await board.claim(job, BOB, lease_s=LEASE_S) == Finished(JobState.COMPLETED)
    assert (await board.page("acme", states=[], limit=10, after="")).views == []
    assert 90 < await redis.ttl(_key(job)) <= 100
    assert not await redis.exists(f"{{t:acme}}:result:{job.id}")


async def _is_unseen(board: Board, job: Job) -> bool:
    return await board.view(job.tenant, job.id) is None


async def test_a_deleted_job_is_unseen_but_still_finished(board: Board, redis: "Redis") -> None:
    job = await started(board)
    await board.add_chunks(job, ANN, 1, [b"piece"], before=0, ttl_s=60)
    await board.finish(job, ANN, a_conclusion(job, result=b"secret"))

    verdicts = [await board.delete("acme", job.id), await board.delete("acme", job.id)]

    assert verdicts == [JobState.COMPLETED, None]
    assert await board.view("acme", job.id) is None
    assert (await board.page("acme", states=[], limit=10, after="")).views == []
    assert await board.claim(job, BOB, lease_s=LEASE_S) == Finished(JobState.COMPLETED)
    assert not await redis.exists(f"{{t:acme}}:result:{job.id}", f"{{t:acme}}:chunks:{job.id}")


async def test_an_unfinished_job_is_not_deleted(board: Board) -> None:
    job = await started(board)

    assert await board.delete("acme", job.id) is JobState.RUNNING
    assert await state(board, job) is JobState.RUNNING


async def test_the_list_of_jobs_forgets_those_that_are_gone_without_being_read(
    scripts: Scripts, redis: "Redis"
) -> None:
    board = Board(scripts, tombstone_s=100)
    gone = [await started(board, result_ttl_s=0.001) for _ in range(3)]
    kept = await started(board)
    for job in (*gone, kept):
        await board.finish(job, ANN, a_conclusion(job))
    await until(lambda: _is_unseen(board, gone[-1]))

    await board.sweep("acme", unpublished_s=60, lease_s=LEASE_S, most=100)

    assert await redis.zrange("{t:acme}:jobs", 0, -1) == [kept.id.encode()]


async def test_jobs_are_listed_newest_first_page_by_page(board: Board) -> None:
    jobs = sorted([await accepted(board, a_job()) for _ in range(5)], key=lambda job: job.id, reverse=True)
    await accepted(board, a_job(tenant="other"))
    await board.cancel("acme", jobs[2].id, an_event(jobs[2], JobState.CANCELLED))

    first = (await board.page("acme", states=[], limit=3, after="")).views
    second = (await board.page("acme", states=[], limit=3, after=first[-1].job.id)).views
    cancelled = (await board.page("acme", states=[JobState.CANCELLED], limit=3, after="")).views

    assert [view.job.id for view in (*first, *second)] == [job.id for job in jobs]
    assert [view.job.id for view in cancelled] == [jobs[2].id]


async def test_videos_are_listed_by_themselves_however_many_other_jobs_there_are_and_from_either_end(
    board: Board, redis: "Redis"
) -> None:
    async def ids(**asked: Any) -> list[str]:
        page = await board.page("acme", states=[], limit=asked.pop("limit", 10), kind="videos", **asked)
        return [view.job.id for view in page.views]

    films = sorted([(await accepted(board, a_job(endpoint="/v1/videos"))).id for _ in range(4)])
    await redis.zadd("{t:acme}:jobs", {str(ULID()): 0 for _ in range(3000)})  # more than a page looks at
    refused, ghost = a_job(endpoint="/v1/videos"), a_job(endpoint="/v1/videos")
    await accept(board, refused)
    await board.reject("acme", refused.id)

    assert await ids(after="") == films[::-1]
    assert await ids(after="", limit=2, is_oldest_first=True) == films[:2]
    assert await ids(after=films[1], is_oldest_first=True) == films[2:]
    assert await ids(after=films[1]) == films[:1]

    await board.claim(ghost, ANN, lease_s=LEASE_S)  # its board was lost since it was accepted
    job = await started(board, endpoint="/v1/videos")
    await board.finish(job, ANN, a_conclusion(job))
    assert set(await ids(after="")) == {*films, ghost.id, job.id}
    await board.delete("acme", job.id)
    assert set(await ids(after="")) == {*films, ghost.id}


async def test_the_one_that_failed_is_found_behind_thousands_that_did_not(board: Board, redis: "Redis") -> None:
    job = await accepted(board, a_job())
    await board.cancel("acme", job.id, an_event(job, JobState.CANCELLED))
    newer = [f"7ZZZZZZZZZZZZZZZZZZZZZ{number:04}" for number in range(LOOKED_AT_ONCE + 10)]
    async with redis.pipeline(transaction=False) as pipeline:
        for each in newer:
            pipeline.zadd("{t:acme}:jobs", {each: 0})
            pipeline.hset(f"{{t:acme}}:job:{each}", "state", "completed")
        await pipeline.execute()

    found = await board.page("acme", states=[JobState.CANCELLED], limit=3, after="")
    given_up = await board.page("acme", states=[JobState.CANCELLED], limit=3, after="", look=len(newer) - 5)
    gone_on = await board.page("acme", states=[JobState.CANCELLED], limit=3, after=given_up.last)

    assert [view.job.id for view in found.views] == [view.job.id for view in gone_on.views] == [job.id]
    assert (found.last, given_up.views, gone_on.last) == ("", [], "")
    assert given_up.last in newer


async def test_pieces_of_a_stream_are_read_in_order_from_a_cursor(board: Board) -> None:
    job = await started(board)
    await board.add_chunks(job, ANN, 1, [b"a", b"b"], before=0, ttl_s=60)
    cursor, first = await board.chunks("acme", job.id, "0")
    await board.add_chunks(job, ANN, 2, [b"c"], before=0, ttl_s=60)

    last, second = await board.chunks("acme", job.id, cursor)

    assert (first, second) == ([Chunk(1, b"a"), Chunk(1, b"b")], [Chunk(2, b"c")])
    assert await board.chunks("acme", job.id, last) == (last, [])


async def test_pieces_whose_writing_was_not_answered_are_written_again_but_not_twice(board: Board) -> None:
    job = await started(board)
    await board.add_chunks(job, ANN, 1, [b"a", b"b"], before=0, ttl_s=60)
    for pieces, before in (([b"a", b"b"], 0), ([b"a", b"b", b"c"], 0), ([b"c"], 2), ([b"d"], 3)):
        assert await board.add_chunks(job, ANN, 1, pieces, before=before, ttl_s=60)
    await board.add_chunks(job, ANN, 2, [b"a"], before=0, ttl_s=60)

    _, chunks = await board.chunks("acme", job.id, "0")

    assert [(chunk.attempt, chunk.data) for chunk in chunks] == [(1, b"a"), (1, b"b"), (1, b"c"), (1, b"d"), (2, b"a")]


# Money


async def test_rollups_are_the_exact_sums_of_the_lines_in_every_view(board: Board, redis: "Redis") -> None:
    amounts = []
    for number in range(1, 30):
        job = await started(board, tenant="acme" if number % 2 else "other")
        usage = Usage(input=number * 7919, cache_read=number, output=number * 3_101)
        price = Price({Meter.INPUT: Decimal("0.000001") * number, Meter.OUTPUT: Decimal("1234567.654321")}, "test")
        attempted = a_charge(job, microbatch=f"mb_{number % 3}", usage=usage, price=price)
        amounts += [line.usd for line in attempted.lines]
        await board.finish(job, ANN, a_conclusion(job, attempted=attempted))

    exact = sum((amount for amount in amounts if amount is not None), Decimal(0))
    for by in ("microbatch", "tenant", "deployment", "lane", "day"):
        rows = await costs(redis, board, by, ["acme", "other"])
        assert sum((row.usd for row in rows), Decimal(0)) == exact, by
        assert (sum(row.jobs for row in rows), sum(row.attempts for row in rows)) == (29, 29), by
    assert len(await costs(redis, board, "microbatch", ["acme", "other"])) == 3
    assert [row.name for row in await costs(redis, board, "tenant", ["acme", "other"])] == ["acme", "other"]


async def test_an_unknown_price_is_counted_and_never_nothing(board: Board, redis: "Redis") -> None:
    priced, unpriced = await started(board), await started(board)
    await board.finish(priced, ANN, a_conclusion(priced, attempted=a_charge(priced)))
    await board.finish(unpriced, ANN, a_conclusion(unpriced, attempted=a_charge(unpriced, price=None)))

    view = await board.view("acme", unpriced.id)
    assert view is not None and view.usd is None
    for by in ("microbatch", "tenant", "deployment", "lane", "day"):
        [row] = await costs(redis, board, by)
        assert (row.attempts, row.unpriced, row.usd) == (2, 1, Decimal("0.00000285")), by
    [entry] = [entry for entry in await board.outbox("acme", job_id=unpriced.id) if not entry.is_event]
    assert json.loads(entry.text)["usd"] is None


async def test_a_microbatch_that_spans_tenants_is_one_row(board: Board, redis: "Redis") -> None:
    for tenant in ("acme", "other"):
        job = await started(board, tenant=tenant)
        await board.finish(job, ANN, a_conclusion(job, attempted=a_charge(job, microbatch="mb_9")))

    [row] = await costs(redis, board, "microbatch", ["acme", "other"])

    assert (row.name, row.jobs, row.deployment, row.usd) == ("mb_9", 2, "small", 2 * Decimal("0.00000285"))


# Everything at once

OWNERS = [f"worker:{name}|jobs|1-0|1" for name in ("ann", "bob", "cat")]
# How often each act comes; what ends a job is rare, or no story would come far.
ACTS = {
    "accept": 2,
    "confirm": 2,
    "reject": 1,
    "claim": 12,
    "start": 10,
    "renew": 2,
    "release": 6,
    "close": 8,
    "finish": 2,
    "finish of a stranger": 1,
    "cancel": 1,
    "expire": 1,
    "delete": 1,
    "lapse": 4,
    "overdue": 1,
    "sweep": 1,
    "publish": 1,
}


FOR_OWNERS = ("start", "renew", "release", "close", "finish")


@dataclass
class Story:
    """Plays acts against the board, and checks after each what must always be true."""

    redis: "Redis"
    board: Board
    jobs: list[Job] = field(default_factory=lambda: [a_job(id=f"{n}{'0' * 25}") for n in "0123456789"])
    ended: dict[str, bytes] = field(default_factory=dict)
    charged: dict[tuple[str, str], bytes] = field(default_factory=dict)
    events: dict[str, str] = field(default_factory=dict)

    async def act(self, what: str, job: Job, owner: str, number: int) -> None:
        board, event = self.board, an_event(job, JobState.CANCELLED)
        number_of = await self._open(job) or number + 1
        attempted = a_charge(job, number_of, usage=Usage(input=3, output=number), price=PRICE if number else None)
        match what:
            case "accept":
                await board.accept(job, deadline_s=60, idempotency=(job.id, "body"), most_unfinished=8)
            case "confirm":
                await board.confirm("acme", job.id)
            case "reject":
                await board.reject("acme", job.id)
            case "claim":
                await board.claim(job, owner, lease_s=LEASE_S)
            case "start":
                await board.start(job, owner, most_deliveries=20, microbatch="mb_1")
            case "renew":
                await board.renew(job, owner, lease_s=LEASE_S)
            case "release":
                await board.release(job, owner, undo_delivery=number == 1)
            case "close" if await self._attempts(job) >= number_of:
                await board.close_attempt(job, attempted)
            case "finish":
                states = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
                used = attempted if await self._open(job) else None
                await board.finish(job, owner, a_conclusion(job, states[number], attempted=used, result=b"x"))
            case "finish of a stranger":
                stranger = "worker:stranger|jobs|1-0|1"
                assert await board.finish(job, stranger, a_conclusion(job, attempted=attempted)) is None
            case "cancel":
                await board.cancel("acme", job.id, event)
            case "expire":
                await board.expire("acme", job.id, an_event(job, JobState.EXPIRED))
            case "delete":
                await board.delete("acme", job.id)
            case "lapse" if await self._has(job, "lease"):
                await self.redis.hset(_key(job), "lease", "0")
            case "overdue" if await self._has(job, "expires"):
                await self.redis.hset(_key(job), "expires", "0")
            case "sweep":
                await board.sweep("acme", unpublished_s=0, lease_s=LEASE_S, most=10)
            case "publish":
                await board.published("acme", [entry.field for entry in await self._outbox()] or ["none"])

    async def check(self) -> None:
        fields: dict[str, dict[bytes, bytes]] = {}
        for job in self.jobs:
            fields[job.id] = cast(Any, await self.redis.hgetall(_key(job)))
        known = {name: each for name, each in fields.items() if each}
        over = {name for name, each in known.items() if JobState(each[b"state"].decode()).is_terminal}
        for name in over:
            now = known[name][b"state"]
            assert self.ended.setdefault(name, now) == now, "a terminal state changed"
        assert set(self.ended) == over, "a job came back from its end"
        for name, each in known.items():
            for attempt in [key for key in each if key.startswith(b"charged:")]:
                line = self.charged.setdefault((name, attempt.decode()), each[attempt])
                assert line == each[attempt], "a charge changed"
        for entry in await self._outbox():
            assert self.events.setdefault(entry.field, entry.text) == entry.text, "an event changed"
        assert {entry for entry in self.events if entry.endswith(":event")} == {
            f"{name}:event" for name in over if known[name][b"state"] != b"rejected"
        }
        assert await self._members("unfinished") == set(known) - over
        assert await self._members("unfinished:standard") == set(known) - over
        assert await self._members("running") == {name for name, each in known.items() if b"owner" in each}
        assert await self._members("unpublished") == {n for n, each in known.items() if each[b"state"] == b"accepting"}
        await self._check_money()

    async def _check_money(self) -> None:
        attempts = [json.loads(text) for text in self.charged.values()]
        exact = sum((Decimal(each["usd"]) for each in attempts if each["usd"] is not None), Decimal(0))
        bought = [each for each in attempts if each["concluded"] and "completed" in str(each["lines"])]
        useful = sum((Decimal(each["usd"]) for each in bought if each["usd"] is not None), Decimal(0))
        wanted = (len(attempts), sum(each["tokens"] for each in attempts), exact)
        for by in ("microbatch", "tenant", "deployment", "lane"):
            row = sum_of(await costs(self.redis, self.board, by))
            assert (row.attempts, row.tokens, row.usd) == wanted, by
            assert row.wasted == exact - useful, by
            assert row.unpriced == sum(each["usd"] is None for each in attempts), by
            assert row.jobs == sum(each["concluded"] for each in attempts), by

    async def owner_of(self, job: Job) -> str | None:
        """Who has claimed it."""
        owner: Any = await self.redis.hget(_key(job), "owner")
        return None if owner is None else owner.decode()

    async def _outbox(self) -> Any:
        return await self.board.outbox("acme")

    async def _open(self, job: Job) -> int:
        return int(cast(Any, await self.redis.hget(_key(job), "open")) or 0)

    async def _attempts(self, job: Job) -> int:
        return int(cast(Any, await self.redis.hget(_key(job), "attempts")) or 0)

    async def _has(self, job: Job, name: str) -> bool:
        return bool(await cast(Any, self.redis.hexists(_key(job), name)))

    async def _members(self, name: str) -> set[str]:
        members: Any = await self.redis.zrange(f"{{t:acme}}:{name}", 0, -1)
        return {member.decode() for member in members}


def sum_of(rows: list[Spent]) -> Spent:
    row = Spent("sum")
    for each in rows:
        row.jobs += each.jobs
        row.attempts += each.attempts
        row.tokens += each.tokens
        row.unpriced += each.unpriced
        row.usd += each.usd
        row.wasted += each.wasted
    return row


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_in_whatever_order_the_books_are_right(board: Board, redis: "Redis", seed: int) -> None:
    story, dice = Story(redis, board), random.Random(seed)
    for job in story.jobs[:5]:
        await story.act("accept", job, ANN, 0)

    for wish in dice.choices(list(ACTS), list(ACTS.values()), k=250):
        alive = [job for job in story.jobs if job.id not in story.ended]
        job = dice.choice(alive if alive and dice.random() < 0.8 else story.jobs)
        owner = await story.owner_of(job)
        what = wish if owner or wish not in FOR_OWNERS or dice.random() < 0.3 else "claim"
        actor = owner if owner and dice.random() < 0.8 else dice.choice(OWNERS)
        await story.act(what if await redis.exists(_key(job)) else "accept", job, actor, dice.randrange(3))
        await story.check()

    assert len(story.charged) >= 4 and story.ended, "a story in which little happened"


def _key(job: Job) -> str:
    return f"{{t:{job.tenant}}}:job:{job.id}"
