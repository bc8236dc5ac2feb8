"""One delivery of one job: claim it, reserve its quota, call the backend, conclude it."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TypeVar

import structlog

from consumers.backend import (
    Answer,
    Backend,
    BackendError,
    HandOffBackend,
    OnChunk,
    Pending,
    PlacedBackend,
    RecoveringBackend,
    Returned,
    SoFar,
    Submitted,
)
from consumers.gate import Gate
from consumers.judged import Fault, fault
from consumers.learning import Learning, values_of
from consumers.onward import Onward
from consumers.outcome import LONGEST_PARK_S, Concluded, Dead, HandedOff, Later, Left, MovedOn, Outcome, Waiting
from consumers.streaming import chunk_writer
from consumers.tally import Tally
from consumers.unsaved import LetThrough, Unsaved
from policies.cooldown import Probe
from policies.deployments import Deployment
from policies.pricing import ChargeLine, Usage, charge, total
from policies.quota import (
    Exhausted,
    Granted,
    Quotas,
    Scope,
    Scopes,
    Shadow,
    Wait,
)
from policies.retries import FINAL, Again, Failure, GiveUp
from policies.scripts import BoardUnavailableError
from policies.tenants import Tenant
from router import ledger, responses
from router.board import (
    AtBackend,
    Attempted,
    Board,
    Busy,
    Cancelled,
    CancelRequested,
    Conclusion,
    Expired,
    Finished,
    Lost,
    Moved,
    OutboxEntry,
    Run,
    Started,
    Submission,
    TooManyDeliveries,
)
from router.conversations import ConversationLostError, Conversations
from router.fallback import moved
from router.job import JSON, Alternative, Job, JobState, Payload
from router.log import LogUnavailableError
from router.outbox import Outbox, reservation_id
from router.payloads import PayloadLostError, Payloads, PayloadUnavailableError, body_path, result_path
from router.responses import UntranslatableError
from router.wakeups import Wakeups

log = structlog.get_logger(__name__)

INLINE_RESULT = 64 * 1024
LONGEST_WAIT_S = 600.0  # then quotas and settings are looked at again
UNKNOWN_DEPLOYMENT_S = 30.0
AWAY_S = 1.0  # between two tries while Redis, the log or the object store is away

Kept = TypeVar("Kept")
Call = Callable[..., Awaitable[Answer | Submitted]]  # as a backend's `call`


def _ignore(_: object) -> None:
    return


class Stop(StrEnum):
    """Why a running call is closed before its answer."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    LOST = "lost"  # somebody else owns the job now
    DRAIN = "drain"  # this process stops


@dataclass(slots=True)
class Running:
    """A job that this process owns, for whoever keeps its leases or stops it."""

    job: Job
    owner: str
    rid: str
    scopes: tuple[Scope, Scope]
    call: asyncio.Task[Answer | Submitted] | None = None
    stop: Stop | None = None

    def close(self, why: Stop) -> None:
        """Close its upstream call, for the first reason given."""
        if self.stop is None:
            self.stop = why
            if self.call is not None:
                self.call.cancel()


@dataclass(slots=True)
class Attempt:
    """Runs deliveries, one call of it for each. `keep_leases` and `heed` run beside them."""

    board: Board
    outbox: Outbox
    quotas: Quotas
    payloads: Payloads
    wakeups: Wakeups
    backend: Backend | HandOffBackend | PlacedBackend
    deployments: Mapping[str, Deployment]
    tenants: Mapping[str, Tenant]
    onward: Onward
    lease_s: float
    most_deliveries: int
    jitter: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic
    gate: Gate = field(default_factory=Gate)
    shadowed: Callable[[Sequence[Shadow]], None] = _ignore
    learning: Learning | None = None
    running: dict[str, Running] = field(default_factory=dict)
    _woken: set[str] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _said_at: float = -math.inf
    places: PlacedBackend | None = field(init=False)
    _scopes: Scopes = field(init=False)
    unsaved: Unsaved = field(init=False)
    conversations: Conversations = field(init=False)

    def __post_init__(self) -> None:
        # Once: to ask whether something has the methods of a protocol takes longer than most steps of a job.
        self.places = self.backend if isinstance(self.backend, PlacedBackend) else None
        self.unsaved = Unsaved(self.clock)
        self.conversations = Conversations(self.board, self.payloads)
        self._scopes = Scopes(self.tenants, self.deployments)

    async def __call__(self, job: Job, owner: str, tally: Tally, call: Call | None = None) -> Outcome:
        """What became of it. Never raises for Redis, the log, the object store or the backend being away.

        `call` stands before the backend's own, which others of its microbatch may share.
        """
        deployment = self.deployments.get(job.route.deployment)
        if deployment is None:
            return Later(UNKNOWN_DEPLOYMENT_S, "unknown_deployment")
        # The same owner until there is an answer: one that was lost on its way may have left it the lease.
        match claim := await self.until_it_works(lambda: self.board.claim(job, owner, lease_s=self.lease_s)):
            case Busy(seconds):
                return Later(min(seconds, self.lease_s / 4) + 0.05, "busy")
            case AtBackend():
                return HandedOff()
            case Finished():
                await self.until_it_works(lambda: self.outbox.drain(job.tenant, job_id=job.id))
                return Concluded()
            case Moved(job):
                return MovedOn(job, "earlier")
        one = _OneAttempt(self, job, owner, tally, deployment, claim, call)
        return await self._watched(one, one.run(claim))

    async def collect(self, job: Job, owner: str, submission: Submission, tally: Tally) -> Outcome:
        """What became of a job that a backend has. `Later` after a failure: its record is to go on the log again."""
        deployment = self.deployments.get(job.route.deployment)
        if deployment is None:
            return HandedOff()  # looked at again when its lease is over
        claim = Run(submission.attempt - 1, None, submission.seconds_left)
        one = _OneAttempt(self, job, owner, tally, deployment, claim)
        return await self._watched(one, one.collect(submission))

    async def _watched(self, one: "_OneAttempt", steps: Awaitable[Outcome]) -> Outcome:
        with self._tracked(one.running):
            try:
                outcome = await steps
            except Exception as error:  # the one place for what nobody expected: people get to look at the job
                job = one.running.job
                log.exception("attempt_crashed", job=job.id, tenant=job.tenant, error=type(error).__name__)
                outcome = await one.crashed(error)
            finally:
                one.leave_place()
        if not isinstance(outcome, HandedOff):
            one.tell_gate()
        return outcome

    def scopes(self, job: Job) -> tuple[Scope, Scope]:
        """What it needs quota of: its tenant's, then its deployment's."""
        name, scopes = job.route.deployment, self._scopes
        return scopes.of_tenant(job.tenant, deployment=name, key=job.limited_key), scopes.of_deployment(name)

    async def keep_leases(self) -> None:
        """For ever: renew the leases of all that runs, every third of a lease. One lost or cancelled is closed."""
        while True:
            await asyncio.sleep(self.lease_s / 3)
            await self._renew_all(list(self.running))

    async def heed(self) -> None:
        """For ever: look at those that a wake-up is about. It only says that something may have changed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            woken = list(self._woken)
            self._woken.clear()
            await self._renew_all(woken)

    @contextmanager
    def _tracked(self, running: Running) -> Iterator[None]:
        about = f"{running.job.tenant} {running.job.id}"
        name = f"{about} {running.owner}"  # a job that was lost to another owner may come to this process again

        def wake() -> None:
            self._woken.add(name)
            self._wake.set()

        self.running[name] = running
        try:
            with self.wakeups.on(about, wake):
                yield
        finally:
            del self.running[name]

    async def _renew_all(self, names: Sequence[str]) -> None:
        await asyncio.gather(*(self._renew(self.running[name]) for name in names if name in self.running))

    async def _renew(self, running: Running) -> None:
        try:
            verdict = await self.board.renew(running.job, running.owner, lease_s=self.lease_s)
            match verdict:
                case CancelRequested():
                    running.close(Stop.CANCELLED)
                case Lost():
                    running.close(Stop.LOST)
            for scope in running.scopes:
                await self.quotas.renew(scope, running.rid, hold_s=self.lease_s * 2)
        except BoardUnavailableError:
            return  # what runs goes on; the lease is looked at again next time

    async def until_it_works(self, act: Callable[[], Awaitable[Kept]]) -> Kept:
        """For what must not be given up: the answer is paid for, and only this process has it."""
        while True:
            try:
                return await act()
            except (BoardUnavailableError, LogUnavailableError, PayloadUnavailableError) as error:
                if self.clock() - self._said_at > AWAY_S:  # for all that wait
                    self._said_at = self.clock()
                    log.warning("waiting_for_what_is_away", error=type(error).__name__, running=len(self.running))
                await asyncio.sleep(AWAY_S * (0.5 + self.jitter()))


class _OneAttempt:
    """A claimed job's way from here on; the fields are what every step of it needs."""

    def __init__(
        self,
        steps: Attempt,
        job: Job,
        owner: str,
        tally: Tally,
        deployment: Deployment,
        claim: Run,
        call: Call | None = None,
    ) -> None:
        self._steps = steps
        self._job = job
        self._owner = owner
        self._tally = tally
        self._microbatch = tally.id
        self._deployment = deployment
        self._call_backend = call or steps.backend.call
        self._scopes = steps.scopes(job)
        self._is_granted = False
        self._used: Usage | None = None  # by this attempt
        self._number = claim.attempts + 1
        self._seconds_left = claim.seconds_left
        self._rerun = claim.attempts > 0
        self._is_open = False
        self._let_through: LetThrough | None = None
        self._is_probe = False
        self.running = Running(job, owner, reservation_id(job.id, self._number), self._scopes)

    async def run(self, claim: Run) -> Outcome:
        """Reserve quota, call the backend, charge and conclude."""
        steps = self._steps
        if claim.open_attempt is not None:
            taken = await self._recovered(claim, claim.open_attempt)
            if taken is not None:
                return await self._hand_off(self._job, taken)
            await self._charge_lost(claim.open_attempt)
            if not self._job.reruns_allowed and type(claim) is Run:
                return await self._fail(
                    "may_have_run", "Its process died during the call, and this tenant refuses reruns."
                )
        match claim:
            case Cancelled():
                return await self._end(JobState.CANCELLED)
            case Expired():
                return await self._end(JobState.EXPIRED)
        try:
            instead = await steps.onward.before(self._job, here=claim.attempts - self._job.route.spent)
            if instead is not None:
                return await self._instead(instead)
            waits = await self._reserve()
            if waits is not None:
                return waits
            job = await self._with_body()
            asked = await self._as_asked(job)
            if not await self._has_place(asked):
                return await self._unplaced(job)
            verdict = await steps.onward.ask(job, self.running.rid)
        except (BoardUnavailableError, PayloadUnavailableError):
            return await self._put_back(Later(AWAY_S, "away"))
        except PayloadLostError as error:
            await self._refund()
            return await self._fail("payload_lost", str(error), dead=True)
        except ConversationLostError:
            await self._refund()
            return await self._fail("previous_response_lost", "The response that it follows is not kept any more.")
        except UntranslatableError as error:
            await self._refund()
            return await self._fail("untranslatable", str(error), dead=True)
        if verdict is not None and not isinstance(verdict, Probe):
            return await self._instead(verdict)
        self._is_probe = verdict is not None
        try:
            return await self._call(job, asked)
        finally:
            if self._is_probe:
                await steps.onward.released(job, self.running.rid)

    async def _instead(self, what: Alternative | Later | GiveUp) -> Outcome:
        """Its deployment is left alone, and nothing was called: go on elsewhere, wait, or tell the caller."""
        await self._refund()
        match what:
            case Later():
                return await self._released(what, undo_delivery=False)
            case Alternative():
                problem = _left_alone(self._deployment.name)
                return await self._move(what, "left alone", problem, attempts=self._number - 1)
            case GiveUp():
                told = await self._told(_left_alone(self._deployment.name))
                return await self._conclude(JobState.FAILED, None, error=told)

    async def _move(self, to: Alternative, why: str, problem: Mapping[str, object], *, attempts: int) -> Outcome:
        """Go on at another deployment, after so many attempts."""
        steps = self._steps
        job = moved(self._job, to, steps.deployments, attempts=attempts, why=why)
        is_ours = await steps.until_it_works(lambda: steps.board.reroute(job, self._owner, problem=problem))
        return MovedOn(job, why) if is_ours else Later(1.0, "lost")

    async def crashed(self, error: Exception) -> Outcome:
        """Our own bug: what may have been used is charged, and the job fails and goes to the dead letters."""
        attempted = self._attempted(self._lost_usage(), "crashed") if self._is_open else None
        if self._is_granted and not self._is_open:
            await self._refund()
        problem = _problem("internal_error", "The gateway failed while it ran the job.")
        outcome = await self._conclude(JobState.FAILED, attempted, error=problem)
        return Dead("crashed", type(error).__name__) if isinstance(outcome, Concluded) else outcome

    def tell_gate(self) -> None:
        """What it had reserved and did not use is there again."""
        if self._is_granted:
            for scope in self._scopes:
                used = 0 if self._used is None else scope.counted(self._used)
                self._steps.gate.give_back(
                    scope,
                    requests=int(self._used is None),
                    tokens=self._job.estimate.tokens - used,
                    now=self._steps.clock(),
                )

    async def _reserve(self) -> Later | Waiting | None:
        job, steps = self._job, self._steps
        verdict = await steps.quotas.reserve_both(
            *self._scopes,
            self.running.rid,
            tokens=job.estimate.tokens,
            usd=job.estimate.usd,
            hold_s=steps.lease_s * 2,
            ttl_s=self._seconds_left + 3600,
        )
        steps.gate.told(job.id, verdict, steps.clock())
        match verdict:
            case Granted():
                self._is_granted = True
                steps.shadowed(verdict.shadows)
                return None
            case Wait(seconds, limit) if seconds <= LONGEST_PARK_S:
                await steps.board.release(job, self._owner, undo_delivery=False)
                return Waiting(f"quota_{limit}")
            case Wait(seconds, limit):
                wait = Later(min(seconds, LONGEST_WAIT_S), f"quota_{limit}")
            case Exhausted(limit):  # looked at again now and then, as the budget may be raised
                wait = Later(LONGEST_WAIT_S, f"quota_{limit}")
        due_at = await steps.board.release(job, self._owner, undo_delivery=False, wait_s=wait.seconds)
        return replace(wait, due_at=due_at)

    async def _has_place(self, job: Job) -> bool:
        """Whether a replica has room. If not, nothing was begun and nothing counts."""
        places = self._steps.places
        return places is None or await places.take_place(job, self._deployment, attempt=self._number)

    async def _unplaced(self, job: Job) -> Outcome:
        """Its replicas are full, and it waits for them; or there are none to wait for."""
        steps, backend = self._steps, self._steps.backend
        if isinstance(backend, PlacedBackend) and backend.is_away(self._deployment.name):
            return await self._instead(await steps.onward.without_replicas(job))
        await self._refund()
        await steps.board.release(job, self._owner, undo_delivery=False)
        return Waiting("no_replica")

    def leave_place(self) -> None:
        """It makes no call, or none any more."""
        if self._steps.places is not None:
            self._steps.places.leave_place(self._job, self._deployment, attempt=self._number)

    async def _with_body(self) -> Job:
        job = self._job
        if job.payload is None:
            return job
        return replace(job, body=await self._steps.payloads.get(job.payload))

    async def _as_asked(self, job: Job) -> Job:
        """The job as a backend is asked: what is not chat by itself, in its chat form."""
        if job.endpoint != responses.ENDPOINT:
            return job
        return replace(job, endpoint=responses.CHAT, body=await self._steps.conversations.chat(job))

    async def _call(self, job: Job, asked: Job) -> Outcome:
        self._let_through = await self._steps.unsaved.begin(self._deployment.name)
        try:
            return await self._start_and_call(job, asked, self._let_through)
        finally:
            self._let_through.saved()

    async def _start_and_call(self, job: Job, asked: Job, let_through: LetThrough) -> Outcome:
        steps = self._steps
        try:
            start = await steps.board.start(
                job, self._owner, most_deliveries=steps.most_deliveries, microbatch=self._microbatch
            )
        except BoardUnavailableError:
            return await self._put_back(Later(AWAY_S, "board_away"))
        match start:
            case Lost():
                await self._refund()
                return Later(1.0, "lost")
            case CancelRequested():
                await self._refund()
                return await self._end(JobState.CANCELLED)
            case TooManyDeliveries(deliveries):
                await self._refund()
                return await self._fail("too_many_deliveries", f"Its process died {deliveries} times.", dead=True)
            case Started(number):
                self._number, self._is_open = number, True
        steps.onward.called(job, here=number - job.route.spent)
        so_far = SoFar()
        let_through.sent()
        try:
            answer = await self._answer(asked, so_far)
        except BackendError as error:
            return await self._after(error)
        except asyncio.CancelledError:
            if self.running.stop is None:
                raise
            return await self._stopped(self.running.stop, so_far.usage)
        except TimeoutError:
            return await self._stopped(Stop.EXPIRED, so_far.usage)
        await self._answers()
        if isinstance(answer, Submitted):
            return await self._hand_off(job, answer)
        let_through.answered()
        return await self._complete(answer, asked)

    async def _recovered(self, claim: Run, attempt: int) -> Submitted | None:
        """The call of an attempt whose process died in it, where its backend can find it."""
        backend = self._steps.backend
        if type(claim) is not Run or not isinstance(backend, RecoveringBackend):
            return None
        return await backend.recover(self._job, self._deployment, attempt=attempt)

    async def _hand_off(self, job: Job, submitted: Submitted) -> Outcome:
        """Let the backend keep it. Its body stays where a later attempt finds it, as its record goes now."""
        steps = self._steps
        if job.payload is None:
            path = body_path(job.tenant, job.id)
            job = replace(job, payload=await steps.until_it_works(lambda: steps.payloads.put(path, job.body)))
        is_ours = await steps.until_it_works(
            lambda: steps.board.submit(job, self._owner, submitted.reference, check_in_s=submitted.check_in_s)
        )
        if not is_ours:
            return Later(1.0, "lost")
        await (self._hold(submitted.check_in_s) if submitted.holds_places else self._let_go())
        return HandedOff()

    async def _hold(self, seconds: float) -> None:
        """Keep its places until a collector looks again, and two leases more, in which one does that is late."""
        with suppress(BoardUnavailableError):
            for scope in self._scopes:
                hold_s = seconds + 2 * self._steps.lease_s
                await self._steps.quotas.renew(scope, self.running.rid, hold_s=hold_s)

    async def _let_go(self) -> None:
        """It waits outside of the deployment's quota and of the tenant's running calls; its dollars stay reserved."""
        of_tenant, of_deployment = self._scopes
        with suppress(BoardUnavailableError):  # both run out by themselves
            await self._steps.quotas.refund(of_deployment, self.running.rid)
            await self._steps.quotas.renew(of_tenant, self.running.rid, hold_s=0.0)

    async def collect(self, submission: Submission) -> Outcome:
        """Ask the backend, and conclude the job if it is over there, cancelled or past its deadline."""
        steps, job, backend = self._steps, self._job, self._steps.backend
        assert isinstance(backend, HandOffBackend)
        self._is_open = True
        if submission.is_cancelled or submission.seconds_left <= 0:
            owed = await backend.abandon(job, self._deployment, submission.reference)
            why = Stop.CANCELLED if submission.is_cancelled else Stop.EXPIRED
            return await self._stopped(why, self._lost_usage() if owed is None else owed)
        try:
            answer = await backend.collect(job, self._deployment, submission.reference, attempt=submission.attempt)
        except BackendError as error:
            if error.failure is Failure.UNAVAILABLE:  # it could not be asked: the job goes on there
                await self._hold(steps.lease_s)
                return HandedOff()
            return await self._after(error)
        if isinstance(answer, Pending):
            await steps.until_it_works(
                lambda: steps.board.submit(job, self._owner, submission.reference, check_in_s=answer.check_in_s)
            )
            if answer.holds_places:
                await self._hold(answer.check_in_s)
            return HandedOff()
        if isinstance(answer, Returned):
            await self._close(self._attempted(answer.usage, "returned"))
            return await self._released(Later(0.0, answer.reason), undo_delivery=True)
        return await self._complete(answer)

    async def _answer(self, job: Job, so_far: SoFar) -> Answer | Submitted:
        running = self.running
        async with asyncio.timeout(self._seconds_left):
            if not job.stream:
                return await self._closable(job, self._heard(None), so_far)
            async with chunk_writer(self._steps.board, job, running.owner, self._number) as on_chunk:
                return await self._closable(job, self._heard(on_chunk), so_far)

    def _heard(self, on_chunk: OnChunk | None) -> OnChunk | None:
        """A probe's first piece shows that the deployment is back: the others need not wait for the last one."""
        if not self._is_probe:
            return on_chunk

        async def heard(piece: bytes) -> None:
            if self._is_probe:
                await self._answers()
            if on_chunk is not None:
                await on_chunk(piece)

        return heard

    async def _answers(self) -> None:
        self._is_probe = False
        await self._steps.onward.answered(self._job, self.running.rid)

    async def _closable(self, job: Job, on_chunk: OnChunk | None, so_far: SoFar) -> Answer | Submitted:
        """The call as a task of its own, so that closing it is told apart from this task's own end."""
        deployment = await self._steps.onward.patient(job, self._deployment)

        async def upstream() -> Answer | Submitted:
            return await self._call_backend(job, deployment, attempt=self._number, on_chunk=on_chunk, so_far=so_far)

        task = asyncio.create_task(upstream())
        self.running.call = task
        if self.running.stop is not None:
            task.cancel()
        try:
            return await task
        finally:
            task.cancel()

    async def _complete(self, answer: Answer, asked: Job | None = None) -> Outcome:
        """`asked` is the job as its backend was asked, where that is known."""
        learning, job = self._steps.learning, self._job
        to_heavy = _escalation(job, self._steps.deployments) if asked is not None else None
        is_taught = learning is not None and asked is not None and learning.wants(job)
        seen: Fault | None = None
        values: Mapping[str, object] = {}
        if asked is not None and (is_taught or to_heavy is not None):
            values = values_of(asked)
            seen = fault(values, answer.body)
        if learning is not None and is_taught:
            await learning.keep(job, values, answer.usage, seen)
        if seen is not None and to_heavy is not None:
            await self._close(self._attempted(answer.usage, "escalated"))
            problem = _problem("unusable", f"The answer of {job.route.deployment} was not usable: {seen}.")
            return await self._move(to_heavy, f"{Failure.UNUSABLE}: {seen}", problem, attempts=self._number)
        result, result_at = answer.body, None
        if len(result) > INLINE_RESULT or answer.media_type != JSON:
            path = result_path(self._job.tenant, self._job.id, self._number)
            result_at = await self._steps.until_it_works(
                lambda: self._steps.payloads.put(path, answer.body, media_type=answer.media_type)
            )
            result = b""
        attempted = self._attempted(answer.usage, "completed")
        outcome = await self._conclude(
            JobState.COMPLETED, attempted, result=result, result_at=result_at, usage=answer.usage
        )
        if learning is not None and asked is not None and isinstance(outcome, Concluded):
            await learning.answered(job, asked, answer.body)
        return outcome

    async def _after(self, error: BackendError) -> Outcome:
        self._is_probe = False
        decision = await self._steps.onward.after(
            self._job, error, self.running.rid, attempts=self._number, seconds_left=self._seconds_left
        )
        log.warning(
            "attempt_failed",
            job=self._job.id,
            tenant=self._job.tenant,
            attempt=self._number,
            deployment=self._deployment.name,
            failure=error.failure,
            code=error.code,
            then=type(decision).__name__.lower(),
        )
        attempted = self._attempted(error.usage, "failed")
        match decision:
            case Again(seconds):
                await self._close(attempted)
                return await self._released(Later(seconds, str(error.failure)), undo_delivery=True)
            case Alternative():
                await self._close(attempted)
                problem = _problem_of(error, error.failure)
                return await self._move(decision, str(error.failure), problem, attempts=self._number)
            case GiveUp(reason):
                own = _problem_of(error, reason)
                told = own if error.failure is Failure.FILTERED else await self._told(own)
                return await self._conclude(JobState.FAILED, attempted, usage=error.usage, error=told)

    async def _told(self, problem: Mapping[str, object]) -> Mapping[str, object]:
        """What the client is told: why the deployment failed that its job was meant for, not what a fallback said."""
        steps, job = self._steps, self._job
        if not job.route.tried:
            return problem
        view = await steps.until_it_works(lambda: steps.board.view(job.tenant, job.id))
        return problem if view is None or view.problem is None else view.problem

    async def _stopped(self, why: Stop, usage: Usage) -> Outcome:
        match why:
            case Stop.CANCELLED:
                return await self._conclude(JobState.CANCELLED, self._attempted(usage, "cancelled"), usage=usage)
            case Stop.EXPIRED:
                attempted = self._attempted(usage, "expired")
                return await self._conclude(
                    JobState.EXPIRED, attempted, usage=usage, error=_problem("expired", _TOO_LATE)
                )
            case Stop.LOST:
                await self._close(self._attempted(usage, "late"))
                return Later(self._steps.lease_s, "lost")
            case Stop.DRAIN:
                await self._close(self._attempted(usage, "aborted"))
                return await self._released(Left(), undo_delivery=True)

    async def _charge_lost(self, attempt: int) -> None:
        """An attempt whose process died in it: it may have been billed, so its input is charged, as an estimate."""
        await self._close(self._attempted(self._lost_usage(), "lost", attempt=attempt))

    def _lost_usage(self) -> Usage:
        return self._job.estimate.owed

    async def _fail(self, code: str, detail: str, *, dead: bool = False) -> Outcome:
        outcome = await self._conclude(JobState.FAILED, None, error=_problem(code, detail))
        return Dead(code, detail) if dead and isinstance(outcome, Concluded) else outcome

    async def _end(self, state: JobState) -> Outcome:
        error = _problem("expired", _TOO_LATE) if state is JobState.EXPIRED else None
        return await self._conclude(state, None, error=error)

    def _attempted(self, usage: Usage, outcome: str, *, attempt: int | None = None) -> Attempted:
        number = self._number if attempt is None else attempt
        if number == self._number:
            self._used = usage
        lines: tuple[ChargeLine, ...] = charge(
            self._deployment.price, usage, job=self._job.id, attempt=number, outcome=outcome
        )
        rid = reservation_id(self._job.id, number)
        scope = self._scopes[0]
        settle = self._steps.quotas.settle_arguments(scope, rid, tokens=scope.counted(usage), usd=total(lines))
        return Attempted(number, self._microbatch, lines, usage.total, settle)

    async def _conclude(
        self,
        state: JobState,
        attempted: Attempted | None,
        *,
        result: bytes = b"",
        result_at: Payload | None = None,
        usage: Usage | None = None,
        error: Mapping[str, object] | None = None,
    ) -> Outcome:
        steps, job = self._steps, self._job
        lines = attempted.lines if attempted else ()
        earlier = await self._earlier_lines() if self._rerun else ()
        number = attempted.attempt if attempted else self._number - 1
        event = ledger.event_text(job, state, attempts=number, usd=total(earlier + lines), error_code=_code(error))
        conclusion = Conclusion(state, event, attempted, result, result_at, _openai_usage(usage), error)
        at = await steps.until_it_works(lambda: steps.board.finish(job, self._owner, conclusion))
        if self._let_through is not None:
            self._let_through.saved()
        if at is None:
            if attempted is not None:
                await self._close(self._attempted(usage or Usage(), "late"))
            return Later(1.0, "lost")
        if attempted is not None:
            self._tally.add(tokens=attempted.tokens, usd=total(lines), concluded=True, retried=False)
        log.info(
            "job_ended",
            job=job.id,
            tenant=job.tenant,
            state=state,
            deployment=self._deployment.name,
            attempt=self._number,
            tokens=attempted.tokens if attempted else 0,
            microbatch=self._microbatch,
        )
        entries = [OutboxEntry(f"{job.id}:event", at, event)]
        if attempted is not None:
            entries.append(OutboxEntry(f"{job.id}:{attempted.attempt}", at, attempted.text(job, concluded=True)))
        if self._rerun:  # an earlier attempt's lines may still wait, or the finish's answer was lost
            await steps.until_it_works(lambda: steps.outbox.drain(job.tenant, job_id=job.id))
        else:
            await steps.until_it_works(lambda: steps.outbox.publish(job.tenant, entries))
        return Concluded(usd_known=total(lines) is not None)

    async def _earlier_lines(self) -> tuple[ChargeLine, ...]:
        """What earlier attempts were charged: the event tells what the whole job cost."""
        steps, job = self._steps, self._job
        view = await steps.until_it_works(lambda: steps.board.view(job.tenant, job.id))
        return tuple(line for line in view.charges if line.attempt != self._number) if view else ()

    async def _close(self, attempted: Attempted) -> None:
        steps, job = self._steps, self._job
        self._rerun = True
        charged = await steps.until_it_works(lambda: steps.board.close_attempt(job, attempted))
        if charged.text == attempted.text(job, concluded=False):  # otherwise another has charged it, as lost or as late
            self._tally.add(tokens=attempted.tokens, usd=total(attempted.lines), concluded=False, retried=True)
        await steps.until_it_works(lambda: steps.outbox.publish(job.tenant, [charged]))

    async def _refund(self) -> None:
        for scope in self._scopes:
            await self._steps.until_it_works(partial(self._steps.quotas.refund, scope, self.running.rid))

    async def _put_back(self, outcome: Later) -> Outcome:
        """Nothing was called: give quota and lease back, as far as that works; both run out by themselves."""
        try:
            for scope in self._scopes:
                await self._steps.quotas.refund(scope, self.running.rid)
        except BoardUnavailableError:
            return outcome
        return await self._released(outcome, undo_delivery=True)  # the start may have counted one before it was away

    async def _released(self, outcome: Later | Left, *, undo_delivery: bool) -> Outcome:
        wait_s = outcome.seconds if isinstance(outcome, Later) else 0.0
        try:
            due_at = await self._steps.board.release(self._job, self._owner, undo_delivery=undo_delivery, wait_s=wait_s)
        except BoardUnavailableError:
            log.warning("lease_not_released", job=self._job.id)
            return outcome
        return replace(outcome, due_at=due_at) if isinstance(outcome, Later) else outcome


def _escalation(job: Job, deployments: Mapping[str, Deployment]) -> Alternative | None:
    """Where a job goes on whose answer cannot be used. A stream has been read already, so it stays as it is."""
    if job.stream:
        return None
    found = (each for each in job.route.left if each.fallback.on is not None and Failure.UNUSABLE in each.fallback.on)
    return next((each for each in found if each.fallback.deployment in deployments), None)


_TOO_LATE = "The deadline passed before the job was finished."


def _problem(code: str, message: str) -> dict[str, object]:
    return {"message": message, "type": "server_error", "code": code, "param": None}


def _problem_of(error: BackendError, reason: str) -> dict[str, object]:
    return {
        "message": error.detail,
        "type": "invalid_request_error" if error.failure in FINAL else "upstream_error",
        "code": error.code or reason,
        "param": error.param,
    }


def _left_alone(deployment: str) -> dict[str, object]:
    message = f"The deployment {deployment} fails, and is left alone for some seconds. Try again."
    return {"message": message, "type": "upstream_error", "code": str(Failure.UNAVAILABLE), "param": None}


def _code(error: Mapping[str, object] | None) -> str | None:
    return None if error is None else str(error["code"])


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
