"""What one delivery of a job comes to, on a real Valkey with the echo backend. Costs are checked to the picodollar."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from consumers.attempt import Attempt
from consumers.backend import Answer, BackendError, OnChunk, SoFar
from consumers.backend_echo import EchoBackend
from consumers.following import INLINE_RESULT
from consumers.gate import enforced
from consumers.outcome import Concluded, Dead, Later, Left, Outcome, Waiting
from consumers.running import Stop
from consumers.tally import Tally
from policies.deployments import Deployment, Limits, Timeouts
from policies.pricing import Usage
from policies.quota import Granted, deployment_scope, tenant_scope
from policies.retries import Failure, RetryRule
from policies.retrybudget import SPARE
from policies.scripts import BoardUnavailableError, Script, Scripts, Value
from policies.tenants import Tenant
from router import responses
from router.board import Board, Busy, Run
from router.job import Estimate, Job, JobState
from router.payloads import body_path
from tests.builders import (
    PATIENCE_S,
    Bench,
    a_bench,
    a_body,
    a_charge,
    a_deployment,
    a_job,
    a_tally,
    accepted,
    an_event,
    in_time,
    keeping,
    until,
)

# 600 tokens at once; one comes back in ten seconds, so that what is left is what was not taken.
LIMITED = Tenant("limited", Limits(concurrency=1, tokens_per_minute=6, burst_s=6000))
CAREFUL = Tenant("careful", reruns_allowed=False)
WORD = Decimal("0.00000015")  # dollars of a word that goes in; one that comes out costs four times as much


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path) -> AsyncIterator[Bench]:
    deployments = [
        a_deployment(),
        a_deployment("scarce", limits=Limits(tokens_per_minute=60)),
        a_deployment("hasty", timeouts=Timeouts(first_token=0.05)),
    ]
    async with a_bench(redis, tmp_path, deployments=deployments, tenants=[Tenant("acme"), LIMITED, CAREFUL]) as bench:
        yield bench


def an_owner(attempt: Attempt, number: int = 1) -> str:
    return f"{attempt.wakeups.channel}|jobs.echo.text.light.standard|{number}-0|1"


async def run(attempt: Attempt, job: Job, number: int = 1, *, tally: Tally | None = None) -> Outcome:
    """One delivery."""
    return await attempt(job, an_owner(attempt, number), tally or a_tally(f"mb_{number}"))


async def run_until_over(attempt: Attempt, job: Job) -> list[Outcome]:
    """As a worker does it: what is parked is looked at again when its time has come."""
    outcomes = [await run(attempt, job)]
    while isinstance(later := outcomes[-1], Later | Waiting):
        await asyncio.sleep(later.seconds if isinstance(later, Later) else 0.02)
        outcomes.append(await run(attempt, job, len(outcomes) + 1))
    return outcomes


@asynccontextmanager
async def running(
    bench: Bench, attempt: Attempt, job: Job, *, tally: Tally | None = None
) -> AsyncIterator["asyncio.Task[Outcome]"]:
    """A delivery whose upstream call is under way, with its lease kept and wake-ups heard."""
    async with keeping(attempt):
        await until(lambda: _hears(bench, attempt))
        task = asyncio.create_task(run(attempt, job, tally=tally))
        await until(lambda: _is_running(bench, job, task))
        yield task


async def _hears(bench: Bench, attempt: Attempt) -> bool:
    [(_, count)] = await bench.redis.pubsub_numsub(attempt.wakeups.channel)
    return int(count) == 1


async def _is_running(bench: Bench, job: Job, task: "asyncio.Task[Outcome]") -> bool:
    return task.done() or await bench.state(job) is JobState.RUNNING


async def soon(task: "Awaitable[Outcome]", *, within: float = PATIENCE_S) -> Outcome:
    async with asyncio.timeout(within):
        return await task


async def outcomes_on_the_ledger(bench: Bench) -> list[tuple[int, set[str], str | None]]:
    """(attempt, outcomes of its lines, dollars), in the order of the ledger."""
    return [(row["attempt"], {line["outcome"] for line in row["lines"]}, row["usd"]) for row in await bench.charges()]


# The main path


async def test_a_job_is_answered_charged_and_published(bench: Bench) -> None:
    job = await bench.job("one two three")
    tally = a_tally("mb_7")

    attempt = bench.attempt()
    outcome = await attempt(job, an_owner(attempt), tally)

    assert outcome == Concluded()
    view = await bench.view(job)
    assert view.state is JobState.COMPLETED
    assert json.loads(view.result or b"")["choices"][0]["message"]["content"] == "one two three"
    assert view.usage is not None and view.usage["total_tokens"] == 6
    assert view.usd == 3 * WORD + 3 * 4 * WORD
    assert await bench.events() == {f"job_{job.id}": "job.completed"}
    assert await outcomes_on_the_ledger(bench) == [(1, {"completed"}, "0.00000225")]
    assert await bench.board.outbox("acme") == []
    assert (tally.jobs, tally.attempts, tally.usd) == (1, 1, view.usd)
    assert attempt.leases.running == {}


async def test_a_stream_is_on_the_board_piece_by_piece(bench: Bench) -> None:
    job = await bench.job("one two", stream=True, body=a_body("one two", stream=True))

    await run(bench.attempt(), job)

    _, pieces = await bench.board.chunks("acme", job.id, "0")
    deltas = [json.loads(piece.data)["choices"][0]["delta"].get("content", "") for piece in pieces]
    assert "".join(deltas) == "one two"


@dataclass
class Cut(EchoBackend):
    """Echo, whose first call breaks off together with its last pieces, while an earlier one is being written."""

    _delay_s: float = 0.0

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer:
        async def one_by_one(piece: bytes) -> None:
            assert on_chunk is not None
            await on_chunk(piece)
            await asyncio.sleep(0)

        answer = await super().call(job, deployment, attempt=attempt, on_chunk=one_by_one, so_far=so_far)
        if attempt == 1:
            raise BackendError(Failure.CUT, "the answer broke off", code="incomplete_answer", usage=answer.usage)
        return answer


async def test_what_came_of_a_stream_before_it_broke_off_is_on_the_board_before_it_is_tried_again(bench: Bench) -> None:
    job = await bench.job(stream=True, body=a_body("one two three", stream=True))

    await run_until_over(bench.attempt(Cut()), job)

    _, pieces = await bench.board.chunks("acme", job.id, "0")
    deltas = [(piece.attempt, json.loads(piece.data)["choices"][0]["delta"].get("content")) for piece in pieces]
    words = ["one", " two", " three", None]
    assert deltas == [*((1, word) for word in words), *((2, word) for word in words)]


async def test_a_large_result_goes_to_the_object_store(bench: Bench) -> None:
    text = "x" * (INLINE_RESULT - 10)
    job = await bench.job(text, body=a_body(text))

    await run(bench.attempt(), job)

    view = await bench.view(job)
    assert view.result is None and view.result_at is not None
    answer = json.loads(await bench.payloads.get(view.result_at))
    assert answer["choices"][0]["message"]["content"] == text


async def test_a_large_body_comes_from_the_object_store(bench: Bench) -> None:
    job = a_job(body=b"")
    payload = await bench.payloads.put(body_path("acme", job.id), a_body("from afar"))
    job = await accepted(bench.board, replace(job, payload=payload))

    await run(bench.attempt(), job)

    assert b"from afar" in ((await bench.view(job)).result or b"")


async def test_a_body_that_is_lost_fails_the_job_for_good_and_holds_no_quota(bench: Bench) -> None:
    job = a_job(body=b"", tenant="limited")
    payload = await bench.payloads.put(body_path("limited", job.id), a_body())
    job = await accepted(bench.board, replace(job, payload=payload))
    await bench.payloads.remove(payload.path)

    outcome = await run(bench.attempt(), job)

    assert isinstance(outcome, Dead) and outcome.reason == "payload_lost"
    view = await bench.view(job)
    assert view.state is JobState.FAILED and view.error is not None and view.error["code"] == "payload_lost"
    assert await free_tokens(bench) == 600


async def free_tokens(bench: Bench) -> int:
    """What the limited tenant could use at once, with nothing running."""
    verdict = await bench.quotas.reserve(tenant_scope(LIMITED), "probe", tokens=0, usd=None, hold_s=60, ttl_s=60)
    assert isinstance(verdict, Granted) and verdict.rooms.tokens is not None
    await bench.quotas.refund(tenant_scope(LIMITED), "probe")
    return verdict.rooms.tokens.remaining


async def test_a_finished_job_is_not_run_again_however_often_it_is_delivered(bench: Bench) -> None:
    job, attempt = await bench.job(), bench.attempt()
    await run(attempt, job)

    outcomes = [await run(attempt, job, number) for number in range(2, 5)]

    assert outcomes == [Concluded()] * 3
    assert len(await bench.charges()) == 1 and len(await bench.events()) == 1


async def test_a_job_that_another_runs_is_left_for_later(bench: Bench) -> None:
    job = await bench.job()
    await bench.board.claim(job, "worker:other|jobs|9-0|1", lease_s=20)

    outcome = await run(bench.attempt(), job)

    assert isinstance(outcome, Later) and 0 < outcome.seconds < 20
    assert await bench.charges() == []


async def test_a_job_for_a_deployment_that_is_not_there_waits_for_it(bench: Bench) -> None:
    job = await bench.job(deployment="nowhere")

    assert isinstance(await run(bench.attempt(), job), Later)
    assert await bench.state(job) is JobState.QUEUED


async def test_an_unknown_price_is_told_and_never_nothing(bench: Bench) -> None:
    bench.deployments["small"] = a_deployment(price=None)
    job = await bench.job()

    outcome = await run(bench.attempt(), job)

    assert outcome == Concluded(usd_known=False)
    assert (await bench.view(job)).usd is None
    assert [row["usd"] for row in await bench.charges()] == [None]


# Failures


async def test_a_failed_call_is_tried_again_after_growing_waits_and_charged_once_each_time(bench: Bench) -> None:
    bench.retries = RetryRule(attempts=4, first_wait=0.04, longest_wait=10)
    job = await bench.job("fail:cut:3 and then it works")

    outcomes = await run_until_over(bench.attempt(), job)

    waits = [outcome.seconds for outcome in outcomes if isinstance(outcome, Later)]
    assert len(waits) == 3
    assert all(low <= wait <= 2 * low for wait, low in zip(waits, (0.02, 0.04, 0.08), strict=True))
    assert outcomes[-1] == Concluded()
    view = await bench.view(job)
    assert (view.state, view.attempts) == (JobState.COMPLETED, 4)
    assert await outcomes_on_the_ledger(bench) == [
        *((number, {"failed"}, "0.00000075") for number in (1, 2, 3)),
        (4, {"completed"}, "0.00000375"),
    ]
    [row] = [row for row in await bench.costs() if row.name == "acme"]
    assert (row.jobs, row.attempts, row.usd) == (1, 4, view.usd)


async def test_a_call_that_fails_each_time_fails_the_job_after_its_last_attempt(bench: Bench) -> None:
    bench.retries = RetryRule(attempts=3, first_wait=0.01)
    job = await bench.job("fail:throttled")

    outcomes = await run_until_over(bench.attempt(), job)

    assert len(outcomes) == 3 and outcomes[-1] == Concluded()
    view = await bench.view(job)
    assert (view.state, view.attempts) == (JobState.FAILED, 3)
    assert view.error is not None and view.error["code"] == "echo_throttled"
    assert await bench.events() == {f"job_{job.id}": "job.failed"}


async def test_retries_never_use_up_the_deliveries(bench: Bench) -> None:
    bench.retries = RetryRule(attempts=8, first_wait=0.001)
    job = await bench.job("fail:unavailable:6 works")

    outcomes = await run_until_over(bench.attempt(most_deliveries=1), job)

    assert outcomes[-1] == Concluded()
    assert await bench.state(job) is JobState.COMPLETED


async def test_a_request_that_the_backend_refuses_fails_at_once(bench: Bench) -> None:
    job = await bench.job("fail:rejected")

    outcomes = await run_until_over(bench.attempt(), job)

    assert outcomes == [Concluded()]
    error = (await bench.view(job)).error
    assert error is not None and error["type"] == "invalid_request_error"


async def test_a_call_that_may_have_run_is_not_made_again_for_a_tenant_that_refuses_that(bench: Bench) -> None:
    job = await bench.job("fail:cut:1 works", tenant="careful", reruns_allowed=False)

    outcomes = await run_until_over(bench.attempt(), job)

    assert outcomes == [Concluded()]
    assert await bench.state(job) is JobState.FAILED


async def test_a_bug_in_a_backend_fails_the_job_and_is_charged_as_an_estimate(bench: Bench) -> None:
    class Broken(EchoBackend):
        async def call(self, *_: Any, **__: Any) -> Answer:
            raise ZeroDivisionError

    job = await bench.job()

    outcome = await run(bench.attempt(Broken()), job)

    assert outcome == Dead("crashed", "ZeroDivisionError")
    assert await bench.state(job) is JobState.FAILED
    assert [usd for _, _, usd in await outcomes_on_the_ledger(bench)] == ["0.0000015"]


# Quotas


async def test_a_job_over_its_quota_stays_without_its_lease_and_without_a_delivery(bench: Bench) -> None:
    scope = deployment_scope(bench.deployments["scarce"])
    await bench.quotas.reserve(scope, "other", tokens=60, usd=None, hold_s=60, ttl_s=60)
    job = await bench.job(deployment="scarce", estimate=Estimate(10, 10))
    attempt = bench.attempt()

    outcome = await run(attempt, job)

    assert outcome == Waiting("quota_tokens_per_minute")
    closed = attempt.gate.closed(enforced(scope), job.estimate.tokens, attempt.clock() - 0.5)
    assert closed is not None and closed.part == scope.parts[0]
    view = await bench.view(job)
    assert (view.state, view.attempts) == (JobState.QUEUED, 0)
    assert isinstance(await bench.board.claim(job, "worker:other|jobs|9-0|1", lease_s=20), Run)


async def test_a_job_far_over_its_quota_waits_elsewhere(bench: Bench) -> None:
    scope = deployment_scope(bench.deployments["scarce"])
    await bench.quotas.reserve(scope, "other", tokens=60, usd=None, hold_s=60, ttl_s=60)
    await bench.quotas.settle(scope, "other", tokens=90, usd=None)
    job = await bench.job(deployment="scarce")

    outcome = await run(bench.attempt(), job)

    assert isinstance(outcome, Later) and outcome.reason == "quota_tokens_per_minute"
    assert 55 < outcome.seconds <= 61
    view = await bench.view(job)
    assert (view.state, view.attempts) == (JobState.QUEUED, 0)
    claim = await bench.board.claim(job, "worker:other|jobs|9-0|1", lease_s=20)
    assert isinstance(claim, Busy) and claim.seconds <= outcome.seconds
    assert await bench.redis.zcard("{t:acme}:running") == 0


async def test_the_concurrency_of_a_tenant_is_kept(bench: Bench) -> None:
    counting = Counting()
    attempt = bench.attempt(counting)
    jobs = [await bench.job("wait:0.05", tenant="limited") for _ in range(4)]

    await asyncio.gather(*(run_until_over(attempt, job) for job in jobs))

    assert [await bench.state(job) for job in jobs] == [JobState.COMPLETED] * 4
    assert (counting.calls, counting.most_open) == (4, 1)


async def test_what_was_not_used_is_given_back(bench: Bench) -> None:
    job = await bench.job("one two", tenant="limited")

    await run(bench.attempt(), job)

    assert 596 <= await free_tokens(bench) <= 597


async def test_a_failed_call_gives_its_quota_back(bench: Bench) -> None:
    job = await bench.job("fail:throttled:1 x", tenant="limited")

    outcome = await run(bench.attempt(), job)

    assert isinstance(outcome, Later)
    assert await free_tokens(bench) == 600


@dataclass
class Counting(EchoBackend):
    """Echo, and how often and how much at once it was called."""

    calls: int = 0
    open: int = 0
    most_open: int = 0
    _delay_s: float = field(default=0.0)

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer:
        self.calls += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await super().call(job, deployment, attempt=attempt, on_chunk=on_chunk, so_far=so_far)
        finally:
            self.open -= 1


# Ends while it runs


async def test_a_cancel_closes_the_running_call_within_a_second_and_charges_what_it_used(bench: Bench) -> None:
    async def ends() -> float:
        job = await bench.job("wait:60 a b")
        async with running(bench, bench.attempt(), job) as task:
            cancelled = time.monotonic()
            await bench.board.cancel("acme", job.id, an_event(job, JobState.CANCELLED))
            outcome = await soon(task)
            took = time.monotonic() - cancelled
        view = await bench.view(job)
        assert (outcome, view.state, view.usd) == (Concluded(), JobState.CANCELLED, 3 * WORD)
        return took

    await in_time(1.0, ends)

    assert set(map(repr, await outcomes_on_the_ledger(bench))) == {repr((1, {"cancelled"}, "0.00000045"))}
    assert set((await bench.events()).values()) == {"job.cancelled"}


async def test_a_cancel_whose_message_is_lost_comes_with_the_renewal(bench: Bench) -> None:
    job, attempt = await bench.job("wait:60"), bench.attempt(lease_s=0.6)
    async with asyncio.TaskGroup() as tasks:
        renewing = tasks.create_task(attempt.leases.keep())  # and nobody listens
        task = tasks.create_task(run(attempt, job))
        await until(lambda: _is_running(bench, job, task))
        await bench.board.cancel("acme", job.id, an_event(job, JobState.CANCELLED))
        outcome = await soon(task)
        renewing.cancel()

    assert outcome == Concluded()
    assert await bench.state(job) is JobState.CANCELLED


async def test_a_wake_up_without_a_cancel_closes_nothing(bench: Bench) -> None:
    job, attempt = await bench.job("wait:0.5"), bench.attempt()
    async with running(bench, attempt, job) as task:
        await bench.redis.publish(attempt.wakeups.channel, f"acme {job.id}")
        await bench.redis.client_kill_filter(_type="pubsub")  # it connects again, and may have missed something
        outcome = await soon(task)

    assert outcome == Concluded()
    assert await bench.state(job) is JobState.COMPLETED


async def test_a_cancel_before_the_start_calls_nobody(bench: Bench) -> None:
    counting, job = Counting(), await bench.job(tenant="limited")
    await bench.board.claim(job, "worker:died|jobs|9-0|1", lease_s=0.05)
    await bench.board.cancel("limited", job.id, an_event(job, JobState.CANCELLED))

    outcomes = await run_until_over(bench.attempt(counting), job)

    assert outcomes[-1] == Concluded()
    assert await bench.state(job) is JobState.CANCELLED
    assert counting.calls == 0
    assert await free_tokens(bench) == 600


async def test_a_job_whose_deadline_comes_during_the_call_expires_and_is_charged(bench: Bench) -> None:
    job = await bench.job("wait:60 a", deadline_s=2.0)

    outcome = await soon(run(bench.attempt(), job))

    assert outcome == Concluded()
    view = await bench.view(job)
    assert view.state is JobState.EXPIRED
    assert view.error is not None and view.error["code"] == "expired"
    assert await outcomes_on_the_ledger(bench) == [(1, {"expired"}, "0.0000003")]


async def test_a_job_past_its_deadline_is_not_run(bench: Bench) -> None:
    counting, job = Counting(), await bench.job(deadline_s=0.001)
    await until(lambda: _is_overdue(bench, job))

    outcome = await run(bench.attempt(counting), job)

    assert outcome == Concluded()
    assert await bench.state(job) is JobState.EXPIRED
    assert counting.calls == 0


async def test_a_job_whose_deadline_comes_while_it_waits_to_be_let_through_is_not_run(bench: Bench) -> None:
    counting, job = Counting(), await bench.job(deadline_s=0.3)
    attempt = bench.attempt(counting)
    attempt.unsaved.count = attempt.unsaved.most  # answers pile up, as Redis was slow
    task = asyncio.create_task(run(attempt, job))
    await until(lambda: _is_overdue(bench, job))
    attempt.unsaved.count = 0
    attempt.unsaved.wake()
    outcome = await soon(task)

    assert outcome == Concluded()
    assert await bench.state(job) is JobState.EXPIRED
    assert counting.calls == 0


async def _is_overdue(bench: Bench, job: Job) -> bool:
    return await bench.board.now() > job.expires_at + 0.001


async def test_a_process_that_stops_gives_its_job_back_and_the_next_one_runs_it(bench: Bench) -> None:
    job, first = await bench.job("wait:2 a"), bench.attempt(most_deliveries=1)
    async with running(bench, first, job) as task:
        [under_way] = first.leases.running.values()
        under_way.close(Stop.DRAIN)
        outcome = await soon(task)

    assert outcome == Left()
    assert await bench.state(job) is JobState.QUEUED
    again = await run_until_over(bench.attempt(most_deliveries=1), job)
    assert again[-1] == Concluded()
    assert await outcomes_on_the_ledger(bench) == [(1, {"aborted"}, "0.0000003"), (2, {"completed"}, "0.0000015")]


# Owners that die


async def test_an_attempt_whose_owner_died_is_charged_as_an_estimate_and_the_job_run_again(bench: Bench) -> None:
    job = await died(bench)

    outcomes = await run_until_over(bench.attempt(), job)

    assert outcomes[-1] == Concluded()
    rows = await bench.charges()
    assert await outcomes_on_the_ledger(bench) == [(1, {"lost"}, "0.0000015"), (2, {"completed"}, "0.0000015")]
    assert {line["basis"] for line in rows[0]["lines"]} == {"estimated"}
    assert (await bench.view(job)).usd == Decimal("0.000003")


async def died(bench: Bench, **fields: Any) -> Job:
    """A job whose owner died during its call."""
    job = await bench.job("one two", **fields)
    await bench.board.claim(job, "worker:died|jobs|9-0|1", lease_s=0.05)
    await bench.board.start(job, "worker:died|jobs|9-0|1", most_deliveries=3, microbatch="mb_0")
    return job


async def test_the_quota_of_an_attempt_whose_owner_died_is_settled(bench: Bench) -> None:
    job = await bench.job("one two", tenant="limited")
    await bench.quotas.reserve(tenant_scope(LIMITED), f"{job.id}:1", tokens=500, usd=None, hold_s=0.05, ttl_s=60)
    await bench.board.claim(job, "worker:died|jobs|9-0|1", lease_s=0.05)
    await bench.board.start(job, "worker:died|jobs|9-0|1", most_deliveries=3, microbatch="mb_0")

    await run_until_over(bench.attempt(), job)

    assert 586 <= await free_tokens(bench) <= 590  # ten estimated, four used


async def test_calls_that_ended_with_their_worker_are_made_again_whatever_the_retry_budget_says(bench: Bench) -> None:
    """They say nothing of the backend, and there may be as many as a worker has at once."""
    jobs = [await died(bench) for _ in range(2 * int(SPARE))]
    attempt = bench.attempt()

    courses = [await run_until_over(attempt, job) for job in jobs]

    assert [course[-1] for course in courses] == [Concluded()] * len(jobs)
    assert {each.reason for course in courses for each in course if isinstance(each, Later)} <= {"busy"}


async def test_a_tenant_that_refuses_reruns_has_the_job_failed_instead(bench: Bench) -> None:
    job = await died(bench, tenant="careful", reruns_allowed=False)
    counting = Counting()

    outcomes = await run_until_over(bench.attempt(counting), job)

    assert outcomes[-1] == Concluded()
    view = await bench.view(job)
    assert view.state is JobState.FAILED and view.error is not None and view.error["code"] == "may_have_run"
    assert counting.calls == 0
    assert len(view.charges) == 1


async def test_a_job_that_takes_its_process_with_it_each_time_goes_to_the_dead_letters(bench: Bench) -> None:
    job = await died(bench)
    for number in (2, 3):
        owner = f"worker:died|jobs|9-0|{number}"
        claim: object = None
        while not isinstance(claim, Run):
            claim = await bench.board.claim(job, owner, lease_s=0.05)
        await bench.board.close_attempt(job, a_charge(job, number - 1))
        await bench.board.start(job, owner, most_deliveries=3, microbatch="mb_0")

    outcomes = await run_until_over(bench.attempt(), job)

    assert isinstance(outcomes[-1], Dead) and outcomes[-1].reason == "too_many_deliveries"
    view = await bench.view(job)
    assert view.state is JobState.FAILED and view.attempts == 3


async def test_a_lease_that_is_lost_closes_the_call_and_nothing_is_completed_twice(bench: Bench) -> None:
    job, slow, tally = await bench.job("a"), bench.attempt(EchoBackend(delay_s=600)), a_tally("mb_slow")
    async with running(bench, slow, job, tally=tally) as task:
        await bench.redis.hset(f"{{t:acme}}:job:{job.id}", "lease", "0")  # as after a long pause of this process
        other = bench.attempt()
        outcomes = await run_until_over(other, job)
        await bench.redis.publish(slow.wakeups.channel, f"acme {job.id}")  # the renewal would come in seven seconds
        loser = await soon(task)

    assert isinstance(loser, Later) and loser.reason == "lost"
    assert outcomes[-1] == Concluded()
    assert len(await bench.events()) == 1
    assert tally.attempts == 0  # the other one has charged it already, as lost
    by_attempt = {row["attempt"]: row for row in await bench.charges()}
    assert set(by_attempt) == {1, 2}
    assert len({line["id"]: line for row in await bench.charges() for line in row["lines"]}) == 3
    [row] = [row for row in await bench.costs() if row.name == "acme"]
    assert (row.jobs, row.attempts) == (1, 2)
    assert row.usd == sum(Decimal(each["usd"]) for each in by_attempt.values()) == (await bench.view(job)).usd


async def test_a_late_answer_is_charged_as_late_and_changes_nothing(bench: Bench) -> None:
    job, late = await bench.job("wait:2 a"), bench.attempt()
    async with running(bench, late, job) as task:
        key = f"{{t:acme}}:job:{job.id}"
        await bench.redis.hset(key, "owner", "worker:other|jobs|9-0|1")
        outcome = await soon(task)

    assert isinstance(outcome, Later) and outcome.reason == "lost"
    assert await outcomes_on_the_ledger(bench) == [(1, {"late"}, "0.0000015")]
    assert await bench.events() == {}
    assert await bench.state(job) is JobState.RUNNING


# What is away


class LosingScripts(Scripts):
    """Loses the answer to the first claim on its way, as a Redis does that stands still just then."""

    is_lost = False

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Value], *, durable: bool = False) -> object:
        answer = await super().run(script, keys, args, durable=durable)
        if script.name == "board_claim" and not self.is_lost:
            self.is_lost = True
            raise BoardUnavailableError("the answer was lost")
        return answer


async def test_a_claim_whose_answer_was_lost_is_its_owners_at_once(bench: Bench) -> None:
    bench.lease_s = 3600.0
    job = await bench.job()
    losing = LosingScripts(bench.redis)

    outcome = await soon(asyncio.create_task(run(bench.attempt(board=Board(losing)), job)))

    assert losing.is_lost
    assert outcome == Concluded()


async def test_a_board_that_is_away_costs_a_wait_and_nothing_else(bench: Bench) -> None:
    job = await bench.job()
    task = asyncio.create_task(run(bench.attempt(board=Board(Scripts(Redis(host="127.0.0.1", port=1)))), job))
    done, _ = await asyncio.wait([task], timeout=0.5)
    task.cancel()

    assert not done
    assert (await run_until_over(bench.attempt(), job))[-1] == Concluded()


async def test_a_log_that_is_away_at_the_end_is_waited_for(bench: Bench) -> None:
    job = await bench.job()
    await bench.redis.rename("log:jobs.events", "log:elsewhere")
    task = asyncio.create_task(run(bench.attempt(), job))
    await until(lambda: _is_over(bench, job))

    assert not task.done()
    await bench.redis.rename("log:elsewhere", "log:jobs.events")
    assert await soon(task) == Concluded()
    assert await bench.events() == {f"job_{job.id}": "job.completed"}
    assert len({row["attempt"] for row in await bench.charges()}) == 1


async def _is_over(bench: Bench, job: Job) -> bool:
    return (await bench.state(job)).is_terminal


async def test_an_answer_that_comes_too_slowly_is_tried_again(bench: Bench) -> None:
    job = await bench.job("wait:5", deployment="hasty")

    outcome = await soon(run(bench.attempt(), job))

    assert isinstance(outcome, Later) and outcome.reason == "timed_out"
    assert await outcomes_on_the_ledger(bench) == [(1, {"failed"}, "0.00000015")]


async def test_usage_is_counted_once_even_when_a_wait_follows(bench: Bench) -> None:
    job = await bench.job("fail:timed_out:1 a b")
    tally = a_tally("mb_1")
    attempt = bench.attempt()

    await attempt(job, an_owner(attempt), tally)

    assert (tally.attempts, tally.retries, tally.jobs, tally.tokens) == (1, 1, 0, Usage(input=3).total)


def a_response(**values: object) -> Job:
    return a_job(endpoint=responses.ENDPOINT, body=json.dumps({"model": "auto", **values}).encode())


async def test_a_response_is_asked_of_any_backend_in_its_chat_form(bench: Bench) -> None:
    job = await accepted(bench.board, a_response(input=[{"role": "user", "content": "Good day"}]))

    outcome = await run(bench.attempt(), job)

    assert isinstance(outcome, Concluded)
    completion = json.loads((await bench.view(job)).result or b"")
    assert completion["choices"][0]["message"]["content"] == "Good day"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"input": "And?", "previous_response_id": "resp_1"}, "previous_response_lost"),
        ({"input": [{"type": "message"}]}, "untranslatable"),
        ({}, "untranslatable"),
    ],
)
async def test_a_response_that_cannot_be_asked_fails_says_why_and_costs_nothing(
    bench: Bench, values: dict[str, object], code: str
) -> None:
    job = await accepted(bench.board, a_response(**values))

    outcome = await run(bench.attempt(), job)

    view = await bench.view(job)
    assert isinstance(outcome, Concluded if code == "previous_response_lost" else Dead)
    assert (view.state, view.error and view.error["code"], view.charges) == (JobState.FAILED, code, ())
