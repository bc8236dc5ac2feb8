"""How an attempt ends: what it used is charged, its job concluded, or given back as if it had not been taken."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

import structlog

from consumers import problems
from consumers.means import Means
from consumers.outcome import Concluded, Dead, Later, Left, Outcome
from consumers.running import Running
from policies.pricing import ChargeLine, Usage, charge, total
from policies.quota import Scope
from policies.scripts import BoardUnavailableError
from router import ledger
from router.board import Attempted, Conclusion, OutboxEntry
from router.job import JobState, Payload, Stay
from router.outbox import reservation_id

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Concluding:
    """Of one attempt. Each step may run twice: the board takes the first."""

    means: Means
    running: Running

    def attempted(self, usage: Usage, outcome: str, *, attempt: int | None = None) -> Attempted:
        """What this attempt is charged, or an earlier one."""
        means, running = self.means, self.running
        number = running.number if attempt is None else attempt
        if number == running.number:
            running.used = usage
        lines: tuple[ChargeLine, ...] = charge(
            running.deployment.price, usage, job=running.job.id, attempt=number, outcome=outcome
        )
        rid = reservation_id(running.job.id, number)
        scope = running.scopes[0]
        settle = means.quotas.settle_arguments(scope, rid, tokens=scope.counted(usage), usd=total(lines))
        return Attempted(number, running.tally.id, lines, usage.total, settle)

    async def conclude(
        self,
        state: JobState,
        attempted: Attempted | None,
        *,
        result: bytes = b"",
        result_at: Payload | None = None,
        usage: Usage | None = None,
        error: Mapping[str, object] | None = None,
        stay: Stay | None = None,
    ) -> Outcome:
        """The job is over, if it is still this process'. Else the attempt alone is charged, as late."""
        means, running, job = self.means, self.running, self.running.job
        lines = attempted.lines if attempted else ()
        earlier = await self._earlier_lines() if running.is_rerun else ()
        number = attempted.attempt if attempted else running.number - 1
        code = problems.code_of(error)
        event = ledger.event_text(job, state, attempts=number, usd=total(earlier + lines), error_code=code)
        unreserved = await self._unreserved() if attempted is not None else ()
        conclusion = Conclusion(state, event, attempted, result, result_at, _openai_usage(usage), error, stay)
        at = await means.until_it_works(lambda: means.board.finish(job, running.owner, conclusion))
        if running.let_through is not None:
            running.let_through.saved()
        if at is None:
            if attempted is not None:
                await self.close_late(usage or Usage())
            return Later(1.0, "lost")
        if attempted is not None:
            running.tally.add(tokens=attempted.tokens, usd=total(lines), concluded=True, retried=False)
            self._charged(attempted)
            await self._count(unreserved, usage or Usage(), total(lines))
        means.meters.ended(job, state, age_s=means.clock() - running.born_at)
        log.info(
            "job_ended",
            job=job.id,
            tenant=job.tenant,
            state=state,
            deployment=running.deployment.name,
            attempt=running.number,
            tokens=attempted.tokens if attempted else 0,
            microbatch=running.tally.id,
        )
        entries = [OutboxEntry(f"{job.id}:event", at, event)]
        if attempted is not None:
            entries.append(OutboxEntry(f"{job.id}:{attempted.attempt}", at, attempted.text(job, concluded=True)))
        if running.is_rerun:  # an earlier attempt's lines may still wait, or the finish's answer was lost
            await means.until_it_works(lambda: means.outbox.drain(job.tenant, job_id=job.id))
        else:
            await means.until_it_works(lambda: means.outbox.publish(job.tenant, entries))
        return Concluded(usd_known=total(lines) is not None)

    async def fail(self, code: str, detail: str, *, dead: bool = False) -> Outcome:
        """The job failed, and nothing was called."""
        outcome = await self.conclude(JobState.FAILED, None, error=problems.ours(code, detail))
        return Dead(code, detail) if dead and isinstance(outcome, Concluded) else outcome

    async def end(self, state: JobState) -> Outcome:
        """The job was cancelled or is past its deadline, and nothing was called."""
        error = problems.too_late() if state is JobState.EXPIRED else None
        return await self.conclude(state, None, error=error)

    async def close(self, attempted: Attempted, *, is_cut: bool = False) -> None:
        """The attempt is over and charged; the job is not over. `is_cut`: it ended with its process."""
        means, running, job = self.means, self.running, self.running.job
        running.is_rerun = True
        unreserved = await self._unreserved()
        closed = await means.until_it_works(lambda: means.board.close_attempt(job, attempted, is_cut=is_cut))
        if closed.charge.text == attempted.text(
            job, concluded=False
        ):  # otherwise another has charged it: lost, or late
            running.tally.add(tokens=attempted.tokens, usd=total(attempted.lines), concluded=False, retried=True)
            self._charged(attempted)
            if running.used is not None:
                scopes = unreserved if closed.is_known else running.scopes
                await self._count(scopes, running.used, total(attempted.lines))
        await means.until_it_works(lambda: means.outbox.publish(job.tenant, [closed.charge]))

    async def close_late(self, usage: Usage) -> None:
        """The same, of a job that is another's by now, perhaps as the board was set back and nobody has noticed yet."""
        with suppress(BoardUnavailableError):
            await self.means.epoch.look()
        await self.close(self.attempted(usage, "late"), is_cut=True)

    async def _unreserved(self) -> Sequence[Scope]:
        """Where its reservation went with a board that was lost or set back since."""
        means, running = self.means, self.running
        is_same = means.epoch.fault is None and means.epoch.name == running.epoch
        if not running.is_unreserved and (not running.is_granted or is_same):
            return ()
        holds = partial(means.quotas.holds, rid=running.rid)
        return [each for each in running.scopes if not await means.until_it_works(partial(holds, each))]

    async def _count(self, scopes: Sequence[Scope], used: Usage, usd: Decimal | None) -> None:
        """In budgets and days of these, where nothing is reserved for it any more."""
        quotas, rid = self.means.quotas, self.running.rid
        for scope in scopes:
            count = partial(quotas.count_unreserved, scope, rid, tokens=scope.counted(used), usd=usd)
            await self.means.until_it_works(count)

    def _charged(self, attempted: Attempted) -> None:
        running = self.running
        outcome = attempted.lines[0].outcome if attempted.lines else "unused"
        self.means.meters.charged(running.job, running.deployment.name, attempted.lines, attempted.tokens, outcome)

    async def charge_lost(self, attempt: int) -> None:
        """An attempt whose process died in it: it may have been billed, so its input is charged, as an estimate."""
        await self.close(self.attempted(self.running.job.estimate.owed, "lost", attempt=attempt), is_cut=True)
        self.running.cut += 1

    async def refund(self) -> None:
        """Nothing was called: its quota is there again."""
        for scope in self.running.scopes:
            await self.means.until_it_works(partial(self.means.quotas.refund, scope, self.running.rid))

    async def put_back(self, outcome: Later) -> Outcome:
        """Nothing was called: give quota and lease back, as far as that works; both run out by themselves."""
        try:
            for scope in self.running.scopes:
                await self.means.quotas.refund(scope, self.running.rid)
        except BoardUnavailableError:
            return outcome
        return await self.release(outcome, undo_delivery=True)  # the start may have counted one before it was away

    async def release(self, outcome: Later | Left, *, undo_delivery: bool) -> Outcome:
        """Give the lease back, as far as that works."""
        board, running = self.means.board, self.running
        wait_s = outcome.seconds if isinstance(outcome, Later) else 0.0
        try:
            due_at = await board.release(running.job, running.owner, undo_delivery=undo_delivery, wait_s=wait_s)
        except BoardUnavailableError:
            log.warning("lease_not_released", job=running.job.id)
            return outcome
        return replace(outcome, due_at=due_at) if isinstance(outcome, Later) else outcome

    def tell_gate(self) -> None:
        """What it had reserved and did not use is there again."""
        running = self.running
        if running.is_granted:
            for scope in running.scopes:
                used = 0 if running.used is None else scope.counted(running.used)
                self.means.gate.give_back(
                    scope,
                    requests=int(running.used is None),
                    tokens=running.job.estimate.tokens - used,
                    now=self.means.clock(),
                )

    async def _earlier_lines(self) -> tuple[ChargeLine, ...]:
        """What earlier attempts were charged: the event tells what the whole job cost."""
        means, job = self.means, self.running.job
        view = await means.until_it_works(lambda: means.board.view(job.tenant, job.id))
        return tuple(line for line in view.charges if line.attempt != self.running.number) if view else ()


def _openai_usage(usage: Usage | None) -> dict[str, object] | None:
    if usage is None:
        return None
    prompt = usage.total - usage.output
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "basis": usage.basis,
    }
