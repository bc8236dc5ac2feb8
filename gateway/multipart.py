"""Forms with files, as they stream in: a part at a time, and of a file a piece at a time."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from gateway.body import InvalidRequestError
from gateway.reading import (
    BODY_PIECE_S,
    HungUpError,
    SlowBodyError,
    TooLargeError,
    WrongContentTypeError,
    check_encoding,
)

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MOST_PARTS = 50
LARGEST_VALUE = 16 * 1024  # bytes of a field that is no file
FORM_BYTES = 1024 * 1024  # of everything around the file
FORM = "multipart/form-data"


@dataclass(slots=True)
class Part:
    """One field of a form: `filename` is None for one that is no file. Read it before the next one is asked for."""

    name: str
    filename: str | None
    _form: "Form"
    _is_over: bool = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its content as it comes in. Raises as `Form` does."""
        while not self._is_over:
            match await self._form.next_event():
                case bytes() as piece:
                    yield piece
                case _:
                    self._is_over = True

    async def text(self) -> str:
        """The content of a field that is no file. Raises `InvalidRequestError` too."""
        value = bytearray()
        async for piece in self.pieces():
            value += piece
            if len(value) > LARGEST_VALUE:
                raise InvalidRequestError(f"Invalid '{self.name}': more than {LARGEST_VALUE} bytes.", self.name)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(f"Invalid '{self.name}': it is not UTF-8.", self.name) from None


@dataclass(slots=True)
class _Begin:
    name: str
    filename: str | None


class _End:
    """A part is over."""


@dataclass(slots=True)
class _Headers:
    """Of the part whose head is being read."""

    name: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    all: dict[str, str] = field(default_factory=dict)


_Event = _Begin | _End | bytes


class Form:
    """The parts of a request's body, of which at most `most` bytes are files and never more than a piece is held.

    Raises `CompressedError`, `WrongContentTypeError`, `InvalidRequestError`, `TooLargeError`, `SlowBodyError`,
    `HungUpError`.
    """

    def __init__(self, request: Request, *, most: int, total_s: float) -> None:
        check_encoding(request.headers.get("content-encoding", ""))
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        if kind.decode("latin-1").lower() != FORM:
            raise WrongContentTypeError(FORM)
        boundary = options.get(b"boundary")
        if not boundary:
            raise _broken("its content type names no boundary")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > most + FORM_BYTES:
            raise TooLargeError(most)
        self._receive = request.receive
        self._most = most
        self._ends = asyncio.get_running_loop().time() + total_s
        self._size = 0
        self._events: deque[_Event] = deque()
        self._has_more = True
        self._is_whole = False
        self._headers = _Headers()
        try:
            self._parser = MultipartParser(boundary, self._callbacks())
        except FormParserError:
            raise _broken("its boundary is too long") from None

    async def parts(self) -> AsyncIterator[Part]:
        """Each part, in the order of the body. What of one was not read is passed over."""
        for _ in range(MOST_PARTS):
            while not isinstance(event := await self.next_event(), _Begin):
                if event is None:
                    return
            yield Part(event.name, event.filename, self)
        raise _broken(f"it has more than {MOST_PARTS} parts")

    async def next_event(self) -> _Event | None:
        """The next beginning, piece or end of a part; None at the end of the body."""
        while not self._events:
            if self._is_whole:
                return None
            if not self._has_more:
                raise _broken("it ends in the middle")
            await self._read()
        return self._events.popleft()

    async def _read(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, min(BODY_PIECE_S, self._ends - now))):
                message = await self._receive()
        except TimeoutError:
            raise SlowBodyError("the body did not come in time") from None
        if message["type"] == "http.disconnect":
            raise HungUpError("the client hung up while it sent the body")
        data = message.get("body", b"")
        self._size += len(data)
        if self._size > self._most + FORM_BYTES:
            raise TooLargeError(self._most)
        try:
            self._parser.write(data)
        except FormParserError:
            raise _broken("its parts cannot be told apart") from None
        self._has_more = message.get("more_body", False)

    def _callbacks(self) -> "MultipartCallbacks":
        headers = self._headers

        def header_end() -> None:
            headers.all[headers.name.decode("latin-1").lower()] = headers.value.decode("latin-1")
            headers.name.clear()
            headers.value.clear()

        def headers_finished() -> None:
            kind, options = parse_options_header(headers.all.pop("content-disposition", ""))
            headers.all.clear()
            name, filename = options.get(b"name"), options.get(b"filename")
            if kind != b"form-data" or name is None:
                raise _broken("a part has no name")
            self._events.append(_Begin(_text(name), None if filename is None else _text(filename)))

        def finished() -> None:
            self._is_whole = True

        return {
            "on_header_field": lambda data, start, end: headers.name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: headers.value.extend(data[start:end]),
            "on_header_end": header_end,
            "on_headers_finished": headers_finished,
            "on_part_data": lambda data, start, end: self._events.append(bytes(data[start:end])),
            "on_part_end": lambda: self._events.append(_End()),
            "on_end": finished,
        }


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _broken("a name in it is not UTF-8") from None


def _broken(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"The request body is not a form: {why}.", code="invalid_form")
