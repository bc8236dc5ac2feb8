"""A Response told as OpenAI's events, from its start or from where a client had it."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from gateway import render
from gateway.chat_stream import leave
from gateway.continuation import Continuation, StreamBrokenError
from gateway.delivery import Caller, Delivery, Pieces
from gateway.errors import ApiError
from router.board import JobView
from router.compact import encode
from router.job import JobState
from router.response_events import ResponseEvents
from router.response_object import response
from router.responses import Object


@dataclass(slots=True)
class ResponseStream:
    """Tells the events after number `after`, until the Response has ended.

    Everything is made anew from the pieces on the board, so that any process can, and gives the same numbers. Once
    the pieces are gone, whoever comes back gets the closing events, which have all of the answer.
    When the caller leaves, or `seconds` are over, `left` is called; None lets the job go on.
    """

    delivery: Delivery
    view: JobView
    seconds: float
    left: Callable[[], Awaitable[None]] | None
    after: int = -1
    _events: ResponseEvents = field(init=False)

    def __post_init__(self) -> None:
        self._events = ResponseEvents(self.view.job.id)

    async def told(self, caller: Caller) -> AsyncGenerator[bytes]:
        """See `EventStream`."""
        job, ended = self.view.job, None
        asked = await self.delivery.conversations.asked(job.tenant, job.id)
        at_first = response(replace(self.view, state=JobState.QUEUED, finished_at=None), asked, None)
        running = {**at_first, "status": "in_progress"}
        yield self._framed(self._events.begin(at_first if at_first["background"] else running))
        telling = _Telling(self._events, running)
        async with aclosing(self.delivery.stream(job.tenant, job.id, caller, seconds=self.seconds)) as stream:
            async for pieces in stream:
                if pieces.is_idle:
                    yield render.KEEP_ALIVE
                elif framed := self._framed(telling.more(pieces)):
                    yield framed
                if telling.broken is not None:
                    if self.left is not None:  # nobody is to pay for the rest
                        await self.left()
                    raise telling.broken
                ended = pieces.ended
        if ended is None:
            await leave(caller, job, self.left)
            return
        final = await self.delivery.conversations.response(ended, asked)
        if ended.state is JobState.COMPLETED:
            telling.continuation.end()
        if job.stream and not telling.has_pieces and self.after >= self._events.told:
            yield self._framed(self._events.close(final, after=self.after))
        else:
            yield self._framed(self._events.end(final))

    def failed(self, error: ApiError) -> bytes:
        """An error that ends the stream."""
        return self._framed([self._events.fail(error.code, error.message)])

    def _framed(self, events: Iterable[Object]) -> bytes:
        return b"".join(
            b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))
            for event in events
            if event["sequence_number"] > self.after
        )


class _Telling:
    """What was told of the answer so far."""

    def __init__(self, events: ResponseEvents, running: Object) -> None:
        self.continuation = Continuation()
        self.has_pieces = False
        self.broken: StreamBrokenError | None = None
        self._events = events
        self._running: Object | None = running

    def more(self, pieces: Pieces) -> Iterator[Object]:
        """What is new."""
        is_at_work = pieces.chunks or pieces.view.started_at is not None or pieces.view.state.is_terminal
        if self._running is not None and (is_at_work or not self._running["background"]):
            yield from self._events.run(self._running)
            self._running = None
        for chunk in pieces.chunks:
            self.has_pieces = True
            try:
                passed = self.continuation.pass_on([chunk])
            except StreamBrokenError as error:  # what was told before it stays told
                self.broken = error
                return
            for piece in passed:
                yield from self._events.add(json.loads(piece))
