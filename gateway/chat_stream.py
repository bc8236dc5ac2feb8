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
                    passed, broken = _passed(continuation, pieces.chunks)
                    yield b"".join(map(render.event, passed))
                    if broken is not None:
                        if self.left is not None:  # nobody is to pay for the rest
                            await self.left()
                        raise broken
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


def _passed(continuation: Continuation, chunks: Sequence[Chunk]) -> tuple[list[bytes], StreamBrokenError | None]:
    """What the caller is to get of these, and why nothing more: what came before the stream broke is the caller's."""
    passed: list[bytes] = []
    for chunk in chunks:
        try:
            passed += continuation.pass_on([chunk])
        except StreamBrokenError as error:
            return passed, error
    return passed, None


async def leave(caller: Caller, job: Job, left: Callable[[], Awaitable[None]] | None) -> None:
    """A caller did not see its job's end. Raises `HungUpError` or `WaitedTooLongError`."""
    if left is not None:
        await left()
    if caller.is_gone:
        raise HungUpError("the client hung up while it read a stream")
    raise WaitedTooLongError(job.id, kept=left is None)
