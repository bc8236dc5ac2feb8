"""An open-loop load: requests leave when they are due, however slow the answers are. Cheap enough for one core."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil
from typing import cast

ANSWER_S = 60.0  # after the last request is due
CONNECT_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `seconds` counts from the moment the request was due; status 0 is a broken connection."""

    status: int
    seconds: float
    body: bytes


@dataclass(slots=True)
class Measured:
    """All answers of one load, and how long it took from the first due to the last answer."""

    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0
    missing: int = 0

    def count(self, status: int) -> int:
        """Answers of this status."""
        return sum(answer.status == status for answer in self.answers)

    def bodies(self, status: int) -> Iterator[bytes]:
        """The bodies of answers of this status."""
        return (answer.body for answer in self.answers if answer.status == status)

    def ms(self, share: float) -> float:
        """The time within which that share of all requests was answered, in milliseconds."""
        times = sorted(answer.seconds for answer in self.answers)
        return times[min(len(times), ceil(len(times) * share)) - 1] * 1000 if times else float("nan")


def post(path: str, key: str, body: bytes, **headers: str) -> bytes:
    """A POST of JSON, as its bytes."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    )
    return head.encode() + body


def get(path: str, key: str) -> bytes:
    """A GET, as its bytes."""
    return f"GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n\r\n".encode()


def moments(rate: float, seconds: float, *, even: bool, seed: int = 1) -> list[float]:
    """When requests are due, in seconds from the start: evenly, or as independent users come (Poisson)."""
    count = round(rate * seconds)
    if even:
        return [index / rate for index in range(count)]
    draw = random.Random(seed)
    return list(accumulate(draw.expovariate(rate) for _ in range(count)))


class Load:
    """Sends requests over `connections` keep-alive connections; one that finds none free waits for the next."""

    def __init__(self, host: str, port: int, connections: int) -> None:
        self._host = host
        self._port = port
        self._wanted = connections
        self._connections: list[_Connection] = []
        self._free: deque[_Connection] = deque()
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._measured = Measured()
        self._expected = 0
        self._all_there = asyncio.Event()

    async def __aenter__(self) -> "Load":
        loop = asyncio.get_running_loop()
        for first in range(0, self._wanted, CONNECT_AT_ONCE):
            opening = (
                loop.create_connection(lambda: _Connection(self), self._host, self._port)
                for _ in range(min(CONNECT_AT_ONCE, self._wanted - first))
            )
            self._connections += [connection for _, connection in await asyncio.gather(*opening)]
        self._free.extend(self._connections)
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()

    async def run(self, due: Sequence[float], request: Callable[[int], bytes]) -> Measured:
        """Send `request(n)` at the n-th of the moments, and wait for all answers."""
        loop = asyncio.get_running_loop()
        self._measured, self._expected = Measured(), len(due)
        self._all_there.clear()
        began = loop.time() + 0.1
        for number, moment in enumerate(due):
            at = began + moment
            if (left := at - loop.time()) > 0:
                await asyncio.sleep(left)
            self._send(at, request(number))
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._all_there.wait()
        except TimeoutError:
            self._measured.missing = self._expected - len(self._measured.answers)
        self._measured.seconds = loop.time() - began
        return self._measured

    def answered(self, connection: "_Connection", answer: Answer) -> None:
        """Called by a connection, which is free again."""
        self._measured.answers.append(answer)
        if len(self._measured.answers) == self._expected:
            self._all_there.set()
        if answer.status == 0:
            return
        if self._waiting:
            connection.send(*self._waiting.popleft())
        else:
            self._free.append(connection)

    def lost(self, connection: "_Connection") -> None:
        """Called by a connection that was closed without a request on it."""
        if connection in self._free:
            self._free.remove(connection)

    def _send(self, at: float, request: bytes) -> None:
        if self._free:
            self._free.popleft().send(at, request)
        else:
            self._waiting.append((at, request))


class _Connection(asyncio.Protocol):
    """One request at a time; answers with a content-length only, which is all that the measured endpoints send."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._due = 0.0
        self._busy = False
        self._received = b""
        self._whole = 0  # bytes of the answer, 0 while its head is not there yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def send(self, due: float, request: bytes) -> None:
        """Send at once; the time counts from `due`."""
        assert self._transport is not None
        self._due, self._busy, self._received, self._whole = due, True, b"", 0
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._whole:
            head_end = self._received.find(b"\r\n\r\n")
            if head_end < 0:
                return
            self._whole = head_end + 4 + _length(self._received[:head_end])
        if len(self._received) >= self._whole:
            self._busy = False
            body = self._received.partition(b"\r\n\r\n")[2]
            self._load.answered(self, Answer(int(self._received[9:12]), self._loop.time() - self._due, body))

    def connection_lost(self, _: Exception | None) -> None:
        if self._busy:
            self._busy = False
            self._load.answered(self, Answer(0, self._loop.time() - self._due, b""))
        else:
            self._load.lost(self)

    def close(self) -> None:
        """For good."""
        if self._transport is not None:
            self._transport.close()


def _length(head: bytes) -> int:
    name, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if rest or not name else 0
