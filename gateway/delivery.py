"""Waiting for jobs: woken by the board, with a look of our own every second; cancelled when the caller leaves."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from starlette.types import Receive

from gateway.errors import LostSightError, UnfinishedError, UnknownJobError
from gateway.reading import OverloadedError
from policies.scripts import BoardUnavailableError
from router import responses
from router.board import Board, Chunk, JobView
from router.compact import encode
from router.conversations import Conversations
from router.epoch import Epoch
from router.job import JobState
from router.payloads import PayloadLostError, Payloads
from router.wakeups import Wakeups

LOOK_S = 1.0
KEEP_ALIVE_S = 15.0
PATIENCE_S, PATIENCE_STEP_S = 20.0, 0.25


@dataclass(slots=True)
class Caller:
    """Somebody who waits: woken by what happens to the job, and by hanging up."""

    woken: asyncio.Event = field(default_factory=asyncio.Event)
    is_gone: bool = False

    def wake(self) -> None:
        """Something happened; look."""
        self.woken.set()

    def leave(self) -> None:
        """The caller hung up."""
        self.is_gone = True
        self.woken.set()

    async def sleep(self, seconds: float) -> None:
        """Until woken, or so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.woken.wait()


@asynccontextmanager
async def calling(receive: Receive) -> AsyncIterator[Caller]:
    """The caller at the other end of a request whose body was read."""
    caller = Caller()
    watch = asyncio.create_task(_watch(receive, caller))
    try:
        yield caller
    finally:
        watch.cancel()
        await asyncio.wait([watch])


async def _watch(receive: Receive, caller: Caller) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    caller.leave()


@dataclass(frozen=True, slots=True)
class Pieces:
    """The job as it is now, and what of its stream is new. `is_idle`: nothing came for so long that a heartbeat is due.

    Without chunks, and not idle, its state is new.
    """

    view: JobView
    chunks: list[Chunk]
    is_idle: bool = False

    @property
    def ended(self) -> JobView | None:
        """The job, once it has ended and all its pieces were told."""
        return self.view if self.view.state.is_terminal and not self.chunks else None


class Delivery:
    """Follows jobs for callers, at most `most` of them at once."""

    def __init__(self, board: Board, epoch: Epoch, wakeups: Wakeups, payloads: Payloads, *, most: int) -> None:
        self._board = board
        self._epoch = epoch
        self._wakeups = wakeups
        self._payloads = payloads
        self.conversations = Conversations(board, payloads)
        self._most = most
        self.waiting = 0

    @property
    def channel(self) -> str:
        """Where the board wakes this process."""
        return self._wakeups.channel

    async def wait(self, tenant: str, job_id: str, caller: Caller, *, seconds: float) -> JobView:
        """The job once it has ended, or as it is after so many seconds, or once the caller is gone.

        Raises `UnknownJobError`, `OverloadedError`, `LostSightError`.
        """
        ends, epoch = asyncio.get_running_loop().time() + seconds, self._epoch.name
        with self.following(f"{tenant} {job_id}", caller):
            while True:
                caller.woken.clear()
                view = await self._look(tenant, job_id, epoch)
                left = ends - asyncio.get_running_loop().time()
                if view.state.is_terminal or caller.is_gone or left <= 0:
                    return view
                await caller.sleep(min(LOOK_S, left))

    async def stream(self, tenant: str, job_id: str, caller: Caller, *, seconds: float) -> AsyncGenerator[Pieces]:
        """The job's pieces as they come, and its states where they change; the last is the job as it ended.

        Ends early once the caller is gone or the time is over. Raises as `wait` does.
        """
        now = asyncio.get_running_loop().time
        ends, spoke, cursor, state, epoch = now() + seconds, now(), "0", None, self._epoch.name
        with self.following(f"{tenant} {job_id}", caller):
            while not caller.is_gone and now() < ends:
                caller.woken.clear()
                # In this order, so that a job that has ended has all its pieces in the second answer.
                view = await self._look(tenant, job_id, epoch)
                while (more := await self._chunks(tenant, job_id, cursor)) is not None and more[1]:
                    cursor, chunks = more
                    yield Pieces(view, chunks)
                    spoke, state = now(), view.state
                if more is not None and view.state.is_terminal:
                    yield Pieces(view, [])
                    return
                if not view.state.is_terminal and view.state is not state:
                    yield Pieces(view, [])
                    state = view.state
                if now() - spoke >= KEEP_ALIVE_S:
                    yield Pieces(view, [], is_idle=True)
                    spoke = now()
                await caller.sleep(LOOK_S)

    async def result(self, view: JobView) -> bytes:
        """The OpenAI object of a completed job. Raises `PayloadUnavailableError`, `PayloadLostError`."""
        if view.job.endpoint == responses.ENDPOINT:
            return encode(await self.conversations.response(view))
        if view.result_at is not None:
            return await self._payloads.get(view.result_at)
        if view.result is None:
            raise PayloadLostError("the board has no result")
        return view.result

    async def asked(self, view: JobView) -> bytes:
        """The body of its request, where it is kept. Raises as `result` does."""
        return view.job.body if view.job.payload is None else await self._payloads.get(view.job.payload)

    async def forget(self, view: JobView) -> None:
        """Delete a job that has ended, and its result.

        Raises `UnfinishedError`, `UnknownJobError`, `BoardUnavailableError`, `PayloadUnavailableError`.
        """
        if view.state.is_terminal and view.result_at is not None:
            await self._payloads.remove(view.result_at.path)
        if view.state is JobState.COMPLETED and view.job.payload is not None:  # else a dead letter may need it
            await self._payloads.remove(view.job.payload.path)
        if view.state.is_terminal and view.job.endpoint == responses.ENDPOINT:
            await self.conversations.forget(view.job.tenant, view.job.id)
        state = await self._board.delete(view.job.tenant, view.job.id)
        if state is None:
            raise UnknownJobError(view.job.id)
        if not state.is_terminal:
            raise UnfinishedError(view.job.id)

    async def _chunks(self, tenant: str, job_id: str, cursor: str) -> tuple[str, list[Chunk]] | None:
        """None while the board is away; the next look says whether it stays so."""
        try:
            return await self._board.chunks(tenant, job_id, cursor)
        except BoardUnavailableError:
            return None

    async def _look(self, tenant: str, job_id: str, epoch: str | None) -> JobView:
        """The job, also through a restart of Redis, or its loss since that epoch: its record makes it anew.

        The caller would otherwise pay for a second one.
        """
        ends = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                view = await self._board.view(tenant, job_id, channel=self.channel)
                if view is None and epoch is not None and await self._board.epoch() != epoch:
                    raise BoardUnavailableError("the board was lost")
            except BoardUnavailableError:
                if asyncio.get_running_loop().time() >= ends:
                    raise LostSightError(job_id) from None
                await asyncio.sleep(PATIENCE_STEP_S)
                continue
            if view is None:
                raise UnknownJobError(job_id)
            return view

    @contextmanager
    def following(self, key: str, caller: Caller) -> Iterator[None]:
        """Wake the caller by this key inside the block. Raises `OverloadedError`."""
        if self.waiting >= self._most:
            raise OverloadedError("too many callers wait")
        self.waiting += 1
        try:
            with self._wakeups.on(key, caller.wake):
                yield
        finally:
            self.waiting -= 1
