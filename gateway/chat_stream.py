"""A chat completion told piece by piece."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from gateway import render
from gateway.continuation import Continuation, StreamBrokenError
from gateway.delivery import Caller, Delivery
from gateway.errors import JobFailedError, WaitedTooLongError
from gateway.reading import HungUpError
from router.board import Chunk
from router.job import Job, JobState


@dataclass(frozen=True, slots=True)
class ChatStream:
    """Tells the job's pieces as they come, and `[DONE]` only when it completed.

    When the caller leaves, `seconds` are over, or the stream breaks, `left` is called; None lets the job go on.
    """

    delivery: Delivery
    job: Job
    seconds: float
    include_usage: bool
    left: Callable[[], Awaitable[None]] | None

    async def told(self, caller: Caller) -> AsyncGenerator[bytes]:
        """See `EventStream`."""
        job, ended, has_pieces, continuation = self.job, None, False, Continuation()
        async with aclosing(self.delivery.stream(job.tenant, job.id, caller, seconds=self.seconds)) as stream:
            async for pieces in stream:
                if pieces.chunks:
                    has_pieces = True
                    yield b"".join(map(render.event, await self._passed(continuation, pieces.chunks)))
                elif pieces.is_idle:
                    yield render.KEEP_ALIVE
                ended = pieces.ended
        if ended is None:
            await leave(caller, job, self.left)
            return
        if ended.state is not JobState.COMPLETED:
            raise JobFailedError(ended.state, ended.error)
        if not has_pieces:
            result = await self.delivery.result(ended)
            yield b"".join(map(render.event, render.chunks_of(result, include_usage=self.include_usage)))
        continuation.end()
        yield render.DONE

    async def _passed(self, continuation: Continuation, chunks: Sequence[Chunk]) -> list[bytes]:
        try:
            return continuation.pass_on(chunks)
        except StreamBrokenError:
            if self.left is not None:  # nobody is to pay for the rest
                await self.left()
            raise


async def leave(caller: Caller, job: Job, left: Callable[[], Awaitable[None]] | None) -> None:
    """A caller did not see its job's end. Raises `HungUpError` or `WaitedTooLongError`."""
    if left is not None:
        await left()
    if caller.is_gone:
        raise HungUpError("the client hung up while it read a stream")
    raise WaitedTooLongError(job.id, kept=left is None)
