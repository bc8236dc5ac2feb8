"""A claimed job's way to its backend: quota, a place, its body, the call."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consumers.backend import Answer, BackendError, OnChunk, PlacedBackend, SoFar, Submitted
from consumers.following import Following
from consumers.hand_off import HandOff
from consumers.means import AWAY_S, Means
from consumers.outcome import LONGEST_PARK_S, Later, Outcome, Waiting
from consumers.running import Running, Stop
from consumers.streaming import chunk_writer
from consumers.unsaved import LetThrough
from policies.cooldown import Probe
from policies.quota import Exhausted, Granted, Verdict, Wait
from policies.scripts import BoardUnavailableError
from router import responses
from router.board import Cancelled, CancelRequested, Expired, Lost, Run, Started, TooLate, TooManyDeliveries
from router.conversations import ConversationLostError
from router.job import Earlier, Job, JobState
from router.payloads import PayloadLostError, PayloadUnavailableError
from router.responses import UntranslatableError

if TYPE_CHECKING:
    from router.traces import Traces

LONGEST_WAIT_S = 600.0  # then quotas and settings are looked at again

Call = Callable[..., Awaitable[Answer | Submitted]]  # as a backend's `call`


@dataclass(frozen=True, slots=True)
class Calling:
    """Of one attempt. `call` stands before the backend's own; `earlier` is what the record says."""

    means: Means
    running: Running
    following: Following
    hand_off: HandOff
    call: Call | None
    earlier: Earlier

    async def run(self, claim: Run) -> Outcome:
        """Reserve quota, call the backend, charge and conclude."""
        means, running, concluding = self.means, self.running, self.following.concluding
        job = running.job
        if claim.open_attempt is not None:
            taken = await self.hand_off.recovered(claim, claim.open_attempt, self.earlier.at_backend)
            if taken is not None:
                running.goes_on(claim.open_attempt)
                return await self.hand_off.keep(job, taken)
            await concluding.charge_lost(claim.open_attempt)
            if not job.reruns_allowed and type(claim) is Run:
                detail = "Its process died during the call, and this tenant refuses reruns."
                return await concluding.fail("may_have_run", detail)
        match claim:
            case Cancelled():
                return await concluding.end(JobState.CANCELLED)
            case Expired():
                return await concluding.end(JobState.EXPIRED)
        try:
            instead = await means.onward.before(job, here=running.calls_before)
            if instead is not None:
                return await self.following.not_called(instead)
            waits = await self._reserve()
            if waits is not None:
                return waits
            job = await self._with_body()
            asked = await self._as_asked(job)
            if not await self._has_place(asked):
                return await self._unplaced(job)
            verdict = await means.onward.ask(job, running.rid, here=running.calls_before)
        except (BoardUnavailableError, PayloadUnavailableError):
            return await concluding.put_back(Later(AWAY_S, "away"))
        except PayloadLostError as error:
            await concluding.refund()
            return await concluding.fail("payload_lost", str(error), dead=True)
        except ConversationLostError:
            await concluding.refund()
            detail = "The response that it follows is not kept any more."
            return await concluding.fail("previous_response_lost", detail)
        except UntranslatableError as error:
            await concluding.refund()
            return await concluding.fail("untranslatable", str(error), dead=True)
        if verdict is not None and not isinstance(verdict, Probe):
            return await self.following.not_called(verdict)
        running.is_probe = verdict is not None
        try:
            return await self._call(job, asked)
        finally:
            if running.is_probe:
                await means.onward.released(job, running.rid)

    async def _reserve(self) -> Later | Waiting | None:
        means, running, job = self.means, self.running, self.running.job
        from_door = job.is_reserved and running.number == 1
        is_long = means.placeless.is_long(running.deployment.name, means.clock())
        verdict = await means.quotas.reserve_both(
            *running.scopes,
            running.rid,
            tokens=job.estimate.tokens,
            usd=job.estimate.usd,
            hold_s=means.lease_s * 2,
            ttl_s=running.seconds_left(means.clock()) + 3600,
            keep=from_door,
            wants=means.wakeups.channel if is_long else "",
        )
        self._note_place(verdict)
        means.gate.told(job.id, verdict, means.clock())
        means.meters.verdict(verdict)
        match verdict:
            case Granted():
                running.is_granted = True
                means.shadowed(verdict.shadows)
                return None
            case Wait(seconds, limit) if seconds <= LONGEST_PARK_S:
                await means.board.release(job, running.owner, undo_delivery=False)
                its_own = {part.name for part in running.scopes[0].parts}
                return Waiting(f"quota_{limit}", keeps=from_door and verdict.scope not in its_own)
            case Wait(seconds, limit):
                wait = Later(min(seconds, LONGEST_WAIT_S), f"quota_{limit}")
            case Exhausted(limit):  # looked at again now and then, as the budget may be raised
                wait = Later(LONGEST_WAIT_S, f"quota_{limit}")
        due_at = await means.board.release(job, running.owner, undo_delivery=False, wait_s=wait.seconds)
        return replace(wait, due_at=due_at)

    def _note_place(self, verdict: Verdict) -> None:
        means, running = self.means, self.running
        name, others = running.deployment.name, means.leases.running.values()
        if isinstance(verdict, Granted) or any(each.is_granted and each.deployment.name == name for each in others):
            means.placeless.has_one(name)
        elif isinstance(verdict, Wait) and verdict.scope in {part.name for part in running.scopes[1].parts}:
            means.placeless.refused(name, means.clock())

    async def _with_body(self) -> Job:
        job = self.running.job
        if job.payload is None:
            return job
        return replace(job, body=await self.means.payloads.get(job.payload))

    async def _as_asked(self, job: Job) -> Job:
        """The job as a backend is asked: what is not chat by itself, in its chat form."""
        if job.endpoint != responses.ENDPOINT:
            return job
        return replace(job, endpoint=responses.CHAT, body=await self.means.conversations.chat(job))

    async def _has_place(self, job: Job) -> bool:
        """Whether a replica has room. If not, nothing was begun and nothing counts."""
        places, running = self.means.places, self.running
        return places is None or await places.take_place(job, running.deployment, attempt=running.number)

    async def _unplaced(self, job: Job) -> Outcome:
        """Its replicas are full, and it waits for them; or there are none to wait for."""
        means, running, backend = self.means, self.running, self.means.backend
        if isinstance(backend, PlacedBackend) and backend.is_away(running.deployment.name):
            return await self.following.not_called(await means.onward.without_replicas(job))
        await self.following.concluding.refund()
        await means.board.release(job, running.owner, undo_delivery=False)
        return Waiting("no_replica")

    async def _call(self, job: Job, asked: Job) -> Outcome:
        let_through = await self.means.unsaved.begin(self.running.deployment.name)
        self.running.let_through = let_through
        try:
            return await self._start_and_call(job, asked, let_through)
        finally:
            let_through.saved()

    async def _start_and_call(self, job: Job, asked: Job, let_through: LetThrough) -> Outcome:
        means, running, concluding = self.means, self.running, self.following.concluding
        try:
            start = await means.board.start(
                job, running.owner, most_deliveries=means.most_deliveries, microbatch=running.tally.id
            )
        except BoardUnavailableError:
            return await concluding.put_back(Later(AWAY_S, "board_away"))
        match start:
            case Lost():
                await concluding.refund()
                return Later(1.0, "lost")
            case CancelRequested():
                await concluding.refund()
                return await concluding.end(JobState.CANCELLED)
            case TooLate():
                await concluding.refund()
                return await concluding.end(JobState.EXPIRED)
            case TooManyDeliveries(deliveries):
                await concluding.refund()
                return await concluding.fail("too_many_deliveries", f"Its process died {deliveries} times.", dead=True)
            case Started(number):
                running.number, running.is_open = number, True
        means.onward.called(job, is_retry=running.calls_before > 0)
        so_far = SoFar()
        let_through.sent()
        try:
            answer = await self._counted(asked, so_far)
        except BackendError as error:
            return await self.following.failed(error)
        except asyncio.CancelledError:
            if running.stop is None:
                raise
            return await self.following.stopped(running.stop, so_far.usage)
        except TimeoutError:
            return await self.following.stopped(Stop.EXPIRED, so_far.usage)
        await self._answers()
        if isinstance(answer, Submitted):
            return await self.hand_off.keep(job, answer)
        let_through.answered()
        return await self.following.answered(answer, asked)

    async def _counted(self, job: Job, so_far: SoFar) -> Answer | Submitted:
        means, running = self.means, self.running
        began, is_answered = means.clock(), False
        means.meters.calling(
            job,
            running.deployment.name,
            age_s=began - running.born_at,
            is_first=running.number == 1,
            is_retry=running.calls_before > 0,
        )
        try:
            answer = await self._answer(job, so_far)
            is_answered = isinstance(answer, Answer)
            return answer
        finally:
            seconds = means.clock() - began
            means.meters.called(running.deployment.name, seconds, so_far.first_token_s, is_answered=is_answered)

    async def _answer(self, job: Job, so_far: SoFar) -> Answer | Submitted:
        running = self.running
        async with asyncio.timeout(running.seconds_left(self.means.clock())):
            if not job.stream:
                return await self._closable(job, self._heard(None), so_far)
            async with chunk_writer(self.means.board, job, running.owner, running.number) as on_chunk:
                return await self._closable(job, self._heard(on_chunk), so_far)

    def _heard(self, on_chunk: OnChunk | None) -> OnChunk | None:
        """A probe's first piece shows that the deployment is back: the others need not wait for the last one."""
        if not self.running.is_probe:
            return on_chunk

        async def heard(piece: bytes) -> None:
            if self.running.is_probe:
                await self._answers()
            if on_chunk is not None:
                await on_chunk(piece)

        return heard

    async def _answers(self) -> None:
        self.running.is_probe = False
        await self.means.onward.answered(self.running.job, self.running.rid)

    async def _closable(self, job: Job, on_chunk: OnChunk | None, so_far: SoFar) -> Answer | Submitted:
        """The call as a task of its own, so that closing it is told apart from this task's own end."""
        running = self.running
        deployment = await self.means.onward.patient(job, running.deployment)
        call = self.call or self.means.backend.call

        async def upstream(asked: Job) -> Answer | Submitted:
            return await call(asked, deployment, attempt=running.number, on_chunk=on_chunk, so_far=so_far)

        async def traced(traces: "Traces", parent: str) -> Answer | Submitted:
            with traces.calling(job, deployment, parent) as span:
                try:
                    answer = await upstream(replace(job, traceparent=span.traceparent))
                except BackendError as error:
                    span.failed(error.failure)
                    raise
                if isinstance(answer, Answer):
                    span.used(answer.usage)
                return answer

        traces, parent = self.means.traces, running.traceparent
        steps = upstream(job) if traces is None or parent is None else traced(traces, parent)
        task = asyncio.create_task(steps)
        running.call = task
        if running.stop is not None:
            task.cancel()
        try:
            return await task
        finally:
            task.cancel()
