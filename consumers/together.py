"""The embedding calls of one microbatch as few upstream calls as they fit in, with each job's failure its own."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace

from consumers import embeddings
from consumers.backend import Answer, Backend, BackendError, OnChunk, SoFar, Submitted
from consumers.embeddings import Call
from policies.deployments import Deployment
from policies.pricing import Usage
from policies.retries import FINAL
from router.job import Estimate, Job

PATIENCE_S = 0.25  # for those of a microbatch that are still on their way to their call

Spawn = Callable[[Coroutine[None, None, None]], "asyncio.Task[None]"]


@dataclass(eq=False, slots=True)
class _Member:
    """A job that waits for its part of a call."""

    call: Call
    deployment: Deployment
    attempt: int
    so_far: SoFar
    answer: "asyncio.Future[Answer]"


@dataclass(eq=False, slots=True)
class _Shared:
    """One upstream call for these; closed when nobody waits for it any more."""

    members: list[_Member]
    task: "asyncio.Task[None] | None" = None

    @property
    def alive(self) -> list[_Member]:
        return [member for member in self.members if not member.answer.done()]


class Together:
    """Stands before a backend for the jobs of one microbatch, and calls it as soon as all of them are there or over.

    Each job has its own attempt, quota and charge; here they share the upstream call alone. A call that is refused as
    the client's fault is made again for each job by itself: nothing was billed, and only the guilty one fails. Whatever
    else fails may be one job's doing as well, so a job's later attempts are calls of its own.
    """

    def __init__(self, backend: Backend, jobs: Iterable[str], spawn: Spawn) -> None:
        self._backend = backend
        self._coming = set(jobs)
        self._spawn = spawn
        self._waiting: list[_Member] = []
        self._shared: dict[_Member, _Shared] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer | Submitted:
        """As the backend's own. Cancelled, the others' call goes on."""
        if attempt > 1:
            self.leave(job.id)
            return await self._backend.call(job, deployment, attempt=attempt, on_chunk=on_chunk, so_far=so_far)
        loop = asyncio.get_running_loop()
        member = _Member(Call.of(job), deployment, attempt, so_far, loop.create_future())
        self._waiting.append(member)
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE_S, self._go)
        self.leave(job.id)
        try:
            return await member.answer
        except asyncio.CancelledError:
            self._left(member)
            raise

    def leave(self, job_id: str) -> None:
        """This job is at its call, or does not come to it any more. Safe to repeat."""
        self._coming.discard(job_id)
        if not self._coming:
            self._go()

    def _go(self) -> None:
        """Call for all that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        members, self._waiting = [each for each in self._waiting if not each.answer.done()], []
        by_call = {id(member.call): member for member in members}
        for name in dict.fromkeys(member.deployment.name for member in members):
            there = [member for member in members if member.deployment.name == name]
            for group in embeddings.joined([each.call for each in there], there[0].deployment.microbatch_inputs):
                self._start([by_call[id(call)] for call in group])

    def _start(self, members: list[_Member]) -> None:
        shared = _Shared(members)
        self._shared |= {member: shared for member in members}
        shared.task = self._spawn(self._run(shared))

    def _left(self, member: _Member) -> None:
        """Its job was closed. Where the call was sent it owes its part."""
        shared = self._shared.get(member)
        if shared is None:
            return
        member.so_far.usage = member.call.job.estimate.owed
        if not shared.alive and shared.task is not None:
            shared.task.cancel()

    async def _run(self, shared: _Shared) -> None:
        """Every member gets its answer or its failure, whatever happens."""
        members = shared.alive
        try:
            if len(members) == 1:
                await self._alone(members[0])
                return
            for member, part in zip(members, await self._together(members), strict=True):
                _settle(member, part)
        except BackendError as error:
            if error.failure in FINAL and len(members) > 1:
                for member in shared.alive:
                    self._start([member])
                return
            for member in members:
                _fail(member, error)
        except Exception as error:  # our bug: it is each attempt's own to report
            for member in members:
                if not member.answer.done():
                    member.answer.set_exception(error)
        finally:
            for member in members:
                if self._shared.get(member) is shared:
                    del self._shared[member]

    async def _alone(self, member: _Member) -> None:
        answer = await self._backend.call(
            member.call.job, member.deployment, attempt=member.attempt, on_chunk=None, so_far=member.so_far
        )
        assert isinstance(answer, Answer)
        _settle(member, answer)

    async def _together(self, members: Sequence[_Member]) -> Sequence[Answer]:
        """One call under the first one's name."""
        calls, first = [member.call for member in members], members[0]
        tokens = sum(call.job.estimate.input_tokens for call in calls)
        job = replace(first.call.job, body=embeddings.together(calls), estimate=Estimate(tokens, 0))
        answer = await self._backend.call(job, first.deployment, attempt=first.attempt, on_chunk=None, so_far=SoFar())
        assert isinstance(answer, Answer)
        return embeddings.apart(answer, calls)


def _settle(member: _Member, answer: Answer) -> None:
    if not member.answer.done():
        member.so_far.usage = answer.usage
        member.answer.set_result(answer)


def _fail(member: _Member, error: BackendError) -> None:
    """The same failure, with this one's part of what it may have cost."""
    if member.answer.done():
        return
    usage = member.call.job.estimate.owed if error.usage.total else Usage()
    member.so_far.usage = usage
    member.answer.set_exception(
        BackendError(
            error.failure,
            error.detail,
            code=error.code,
            usage=usage,
            retry_after=error.retry_after,
            param=error.param,
            another_replica=error.another_replica,
        )
    )
