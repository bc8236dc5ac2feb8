"""Server-sent events out of pieces of bytes: no I/O, and never more in memory than one event."""

from dataclasses import dataclass

BOM = b"\xef\xbb\xbf"


class EventTooLargeError(Exception):
    """One event is larger than the limit."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its `data` lines joined by newlines, and its name where the server gave one."""

    data: bytes
    name: str = ""


class Events:
    """Takes the pieces of a stream in any cut and gives the events that they complete.

    Lines may end in LF, CRLF or CR. `limit` is the size of one event, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tail = bytearray()  # of a line that has not ended
        self._after_cr = False
        self._at_start = True
        self._data: list[bytes] = []
        self._size = 0
        self._name = ""

    def feed(self, piece: bytes) -> list[Event]:
        """The events that end in this piece. Raises `EventTooLargeError`."""
        piece = self._with_plain_line_ends(piece)
        if b"\n" not in piece:
            self._keep(piece)
            return []
        lines = (bytes(self._tail) + piece).split(b"\n")
        self._tail.clear()
        rest = lines.pop()
        events = [event for line in lines if (event := self._take(line)) is not None]
        self._keep(rest)
        return events

    def end(self) -> list[Event]:
        """What was left without its closing blank line. Whether it is whole, only its reader can tell."""
        if self._tail:
            self._take(bytes(self._tail))
            self._tail.clear()
        last = self._dispatch()
        return [] if last is None else [last]

    def _with_plain_line_ends(self, piece: bytes) -> bytes:
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece.removeprefix(b"\n")  # the second half of a CRLF that was cut in two
        if b"\r" not in piece:
            return piece
        self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _keep(self, rest: bytes) -> None:
        self._tail += rest
        self._check(len(self._tail))

    def _take(self, line: bytes) -> Event | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BOM)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._check(len(value))
            self._data.append(value)
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value[:100].decode("utf-8", "replace")
        return None  # comments, `id`, `retry` and unknown fields say nothing to us

    def _dispatch(self) -> Event | None:
        data, name = self._data, self._name
        self._data, self._size, self._name = [], 0, ""
        return Event(b"\n".join(data), name) if data else None

    def _check(self, more: int) -> None:
        if self._size + more > self._limit:
            raise EventTooLargeError(f"an event of more than {self._limit} bytes")
