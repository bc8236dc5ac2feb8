"""A job as server-sent events."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import render
from gateway.continuation import Continuation
from gateway.delivery import Caller, Delivery, calling
from gateway.errors import JobFailedError, WaitedTooLongError, as_api_error
from gateway.reading import HungUpError
from router.compact import encode
from router.job import Job, JobState

log = structlog.get_logger(__name__)

SEND_S = 60.0  # how long a client may read nothing


class StreamedJob(Response):
    """Sends the job's pieces as they come, and `[DONE]` only when it completed.

    A failure before the first byte is raised, for an ordinary error answer; one after it becomes an error event.
    When the caller leaves, `left` is called; None lets the job go on.
    """

    def __init__(
        self,
        delivery: Delivery,
        job: Job,
        *,
        seconds: float,
        include_usage: bool,
        left: Callable[[], Awaitable[None]] | None,
        headers: Mapping[str, str],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(
            {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
                **headers,
            }
        )
        self._delivery = delivery
        self._job = job
        self._seconds = seconds
        self._include_usage = include_usage
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        events = _Events(send, self)
        try:
            async with calling(receive) as caller:
                await self._follow(caller, events)
        except HungUpError:
            raise
        except Exception as error:
            if not events.began:
                raise
            answer = as_api_error(error, request_id=f"job_{self._job.id}")
            if answer.status == 500:  # ours; the edge does not see it any more
                log.error("stream_failed", job=self._job.id, tenant=self._job.tenant, error=type(error).__name__)
            await events.send(render.event(encode(answer.body)))
        await events.end()

    async def _follow(self, caller: Caller, events: "_Events") -> None:
        job, ended, has_pieces, continuation = self._job, None, False, Continuation()
        async for pieces in self._delivery.stream(job.tenant, job.id, caller, seconds=self._seconds):
            if pieces.chunks:
                has_pieces = True
                await events.send(b"".join(map(render.event, continuation.pass_on(pieces.chunks))))
            elif pieces.ended is None:
                await events.send(render.KEEP_ALIVE)
            ended = pieces.ended
        if ended is None:
            await self._leave(caller)
            return
        if ended.state is not JobState.COMPLETED:
            raise JobFailedError(ended.state, ended.error)
        if not has_pieces:
            result = await self._delivery.result(ended)
            await events.send(b"".join(map(render.event, render.chunks_of(result, include_usage=self._include_usage))))
        continuation.end()
        await events.send(render.DONE)

    async def _leave(self, caller: Caller) -> None:
        if self._left is not None:
            await self._left()
        if caller.is_gone:
            raise HungUpError("the client hung up while it read a stream")
        raise WaitedTooLongError(self._job.id, kept=self._left is None)


class _Events:
    """The answer's body; its head goes out with the first event."""

    def __init__(self, send: Send, response: Response) -> None:
        self.began = False
        self._send = send
        self._response = response

    async def send(self, data: bytes) -> None:
        """Raises `HungUpError` for a client that reads nothing for a minute."""
        try:
            async with asyncio.timeout(SEND_S):
                if not self.began:
                    self.began = True
                    head = {"status": self._response.status_code, "headers": self._response.raw_headers}
                    await self._send({"type": "http.response.start", **head})
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise HungUpError("the client reads nothing") from None

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
