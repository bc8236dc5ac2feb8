"""A job told as events: its states, and the pieces of its answer as they come."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from gateway import render
from gateway.delivery import Caller, Delivery, Pieces
from gateway.errors import ApiError
from router.board import JobView
from router.compact import encode
from router.job import JobState


@dataclass(slots=True)
class JobStream:
    """Tells the events after number `after`, until the job has ended or `seconds` are over.

    Numbers come from the states and the pieces on the board in their order, so that any process can go on with them.
    Once the pieces are gone, whoever comes back gets the end alone.
    """

    delivery: Delivery
    view: JobView
    seconds: float
    after: int = -1
    _next: int = 0
    _attempt: int = 0
    _has_pieces: bool = False
    _ready: list[bytes] = field(default_factory=list)

    async def told(self, caller: Caller) -> AsyncGenerator[bytes]:
        """See `EventStream`. A caller who leaves changes nothing."""
        job = self.view.job
        self._tell("job.queued", {"job": {"id": render.JOB + job.id, "status": "queued"}})
        yield self._take()
        async with aclosing(self.delivery.stream(job.tenant, job.id, caller, seconds=self.seconds)) as stream:
            async for pieces in stream:
                if pieces.is_idle:
                    yield render.KEEP_ALIVE
                    continue
                self._more(pieces)
                if data := self._take():
                    yield data

    def failed(self, error: ApiError) -> bytes:
        """An error that ends the stream; the job goes on."""
        return b"event: error\ndata: %b\n\n" % encode(error.body)

    def _more(self, pieces: Pieces) -> None:
        view = pieces.view
        if not self._attempt and (pieces.chunks or view.started_at is not None):
            self._begin(1)  # whichever runs now: who comes later must count the same
        for chunk in pieces.chunks:
            self._has_pieces = True
            if chunk.attempt > self._attempt:
                self._begin(chunk.attempt)
            self._tell_piece(chunk.attempt, chunk.data)
        if pieces.ended is not None:
            if view.job.stream and not self._has_pieces:  # they are gone, or never were
                self._next = max(self._next, self.after + 1)
            state = "failed" if view.state is JobState.REJECTED else view.state
            self._tell(f"job.{state}", {"job": render.job_values(view)})

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        about = {"id": render.JOB + self.view.job.id, "status": "in_progress"}
        self._tell("job.in_progress", {"job": about, "attempt": attempt})

    def _tell_piece(self, attempt: int, chunk: bytes) -> None:
        head = encode({"type": "job.chunk", "sequence_number": self._next, "attempt": attempt})
        self._frame("job.chunk", head[:-1] + b',"chunk":' + chunk + b"}")

    def _tell(self, kind: str, fields: dict[str, object]) -> None:
        self._frame(kind, encode({"type": kind, "sequence_number": self._next, **fields}))

    def _frame(self, kind: str, data: bytes) -> None:
        if self._next > self.after:
            self._ready.append(b"id: %d\nevent: %b\ndata: %b\n\n" % (self._next, kind.encode(), data))
        self._next += 1

    def _take(self) -> bytes:
        data = b"".join(self._ready)
        self._ready.clear()
        return data
