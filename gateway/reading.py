"""Reads request bodies: never more than allowed, never more at a time than there is memory for."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.types import Receive

BODY_PIECE_S = 30.0  # between two pieces of a body
BODY_TOTAL_S = 300.0


class WrongContentTypeError(Exception):
    """The body is not declared as what is wanted here."""

    def __init__(self, wanted: str = "application/json") -> None:
        super().__init__(f"the content type is not {wanted}")
        self.wanted = wanted


class CompressedError(Exception):
    """The body is compressed: how large it is would only be known when it is not any more."""


class TooLargeError(Exception):
    """The body is larger than `most` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"more than {most} bytes")
        self.most = most


class SlowBodyError(Exception):
    """The body did not come in time."""


class OverloadedError(Exception):
    """This process has as much in flight as it may; nothing was done."""


class HungUpError(Exception):
    """The client is gone. Nobody reads an answer."""


class Inflight:
    """What this process holds for requests that it has not answered yet, bounded by their number and bytes."""

    def __init__(self, *, most_requests: int, most_bytes: int) -> None:
        self.requests = 0
        self.bytes = 0
        self._most_requests = most_requests
        self._most_bytes = most_bytes

    @contextmanager
    def request(self) -> Iterator["Held"]:
        """One request more; raises `OverloadedError`. Its bytes are free again at the end, or before with `drop`."""
        if self.requests >= self._most_requests:
            raise OverloadedError("too many requests in flight")
        self.requests += 1
        held = Held(self)
        try:
            yield held
        finally:
            held.drop()
            self.requests -= 1

    def add(self, size: int) -> None:
        """So many bytes more; raises `OverloadedError`."""
        if self.bytes + size > self._most_bytes:
            raise OverloadedError("too many bytes in flight")
        self.bytes += size


class Held:
    """The bytes of one request."""

    def __init__(self, inflight: Inflight) -> None:
        self._inflight = inflight
        self._bytes = 0

    def add(self, size: int) -> None:
        """So many bytes more; raises `OverloadedError`."""
        self._inflight.add(size)
        self._bytes += size

    def drop(self) -> None:
        """They are not held any more."""
        self._inflight.bytes -= self._bytes
        self._bytes = 0


async def read(request: Request, held: Held, *, most: int) -> bytes:
    """The body of a request that says it is JSON, at most `most` bytes.

    What is too large is refused by its declared length, else as it streams in. Raises the errors above.
    """
    check_encoding(request.headers.get("content-encoding", ""))
    _check_content_type(request.headers.get("content-type", ""))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise TooLargeError(most)
    now = asyncio.get_running_loop().time
    ends = now() + BODY_TOTAL_S
    try:
        async with asyncio.timeout(BODY_PIECE_S) as patience:
            return await _gather(
                request.receive, held, most, lambda: patience.reschedule(min(ends, now() + BODY_PIECE_S))
            )
    except TimeoutError:
        raise SlowBodyError("the body did not come in time") from None


async def _gather(receive: Receive, held: Held, most: int, be_patient: Callable[[], None]) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HungUpError("the client hung up while it sent the body")
        if piece := message.get("body", b""):
            size += len(piece)
            if size > most:
                raise TooLargeError(most)
            held.add(len(piece))
            pieces.append(piece)
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        be_patient()


def check_encoding(header: str) -> None:
    """Raises `CompressedError`."""
    if header.strip().lower() not in ("", "identity"):
        raise CompressedError


def _check_content_type(header: str) -> None:
    media_type, _, parameters = header.lower().partition(";")
    if media_type.strip() != "application/json":
        raise WrongContentTypeError
    charset = parameters.partition("charset=")[2].strip(' "')
    if charset and charset not in ("utf-8", "utf8"):
        raise WrongContentTypeError
