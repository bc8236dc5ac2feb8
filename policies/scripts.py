"""Redis scripts, with the calls of many tasks in one round trip."""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from math import inf
from typing import TypeVar, cast

from hiredis import pack_command
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

QUEUE_LIMIT = 20_000  # calls waiting for their turn; far above what any process has in flight
BREAK_S = 0.5
AT_ONCE = 256  # calls in one round trip


class BoardUnavailableError(Exception):
    """Redis did not answer in time. The script may have run: every script of ours may run twice."""


class BoardRefusedError(BoardUnavailableError):
    """Redis is there and does not let us in: waiting does not help while the settings are what they are."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the SHA-1 that Redis knows it by."""

    name: str
    text: str
    sha: str

    @classmethod
    def load(cls, package: str, *names: str, before: str = "") -> "Script":
        """The files `names` (without `.lua`) of `package`, joined: the last is the script, the others its functions.

        `before` is the text of functions from elsewhere, put in front.
        """
        parts = [files(package).joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names]
        text = "\n".join([before, *parts] if before else parts)
        return cls(names[-1], text, sha1(text.encode(), usedforsecurity=False).hexdigest())


Value = str | bytes | int | float
Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Call:
    script: Script
    packed: bytes  # as it goes over the wire
    durable: bool
    answer: asyncio.Future[object]


class Scripts:
    """Runs scripts. Calls made while a round trip is under way share the next one.

    After a round trip that failed the breaker is open: calls fail at once, but for one each half a second that
    tries. The first that gets through closes it.

    `replicas` is how many replicas must have a durable call before it returns (Redis' WAIT, on the
    same connection); 0 leaves durability to the server's append-only file. Round trips begin `gather_s` apart at least,
    so that calls share them under load, and one that comes alone waits for nothing.
    """

    def __init__(self, redis: "Redis", *, replicas: int = 0, wait_ms: int = 1000, gather_s: float = 0.0) -> None:
        self.redis = redis
        self._gather_s = gather_s
        self._replicas = replicas
        self._wait_ms = wait_ms
        self._waiting: deque[_Call] = deque()
        self._flusher: asyncio.Task[None] | None = None
        self._connection: AbstractConnection | None = None
        self._began_at = -inf  # the last round trip
        self._tries_at: float | None = None  # when the breaker lets the next one through; None: it is closed

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Value], *, durable: bool = False) -> object:
        """What the script returns, strings as bytes. Raises `BoardUnavailableError`."""
        if len(self._waiting) >= QUEUE_LIMIT:
            raise BoardUnavailableError(f"more than {QUEUE_LIMIT} calls wait for Redis")
        # Packed here, so that a text which cannot be hurts its own caller and not those who share the round trip.
        loop, packed = asyncio.get_running_loop(), _packed("EVALSHA", script.sha, len(keys), *keys, *args)
        if self._tries_at is not None:
            if loop.time() < self._tries_at:
                raise BoardUnavailableError("Redis did not answer a moment ago")
            self._tries_at = inf  # this one tries
        call = _Call(script, packed, durable, loop.create_future())
        self._waiting.append(call)
        if self._flusher is None or self._flusher.done():
            self._flusher = loop.create_task(self._flush())
        return await call.answer

    async def time(self) -> tuple[int, int]:
        """The server's clock: seconds and microseconds. Raises `BoardUnavailableError`."""
        try:
            seconds, micros = await self.redis.time()
        except (RedisError, OSError, TimeoutError) as error:
            raise unavailable(error) from error
        return int(seconds), int(micros)

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            if (early := self._began_at + self._gather_s - loop.time()) > 0:
                await asyncio.sleep(early)
            self._began_at = loop.time()
            calls = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            tries_at = None
            try:
                answers = await self._round_trip(calls)
            except (RedisError, OSError, TimeoutError) as error:
                tries_at = loop.time() + BREAK_S
                failed = unavailable(error)
                answers = [failed] * len(calls)
            except Exception as error:  # a bug, which each of them is to see
                answers = [error] * len(calls)
            except BaseException:
                self._tries_at = None
                for call in calls:
                    call.answer.cancel()
                raise
            self._tries_at = tries_at
            for call, answer in zip(calls, answers, strict=True):
                if call.answer.done():
                    continue  # its caller was cancelled
                if isinstance(answer, Exception):
                    call.answer.set_exception(answer)
                else:
                    call.answer.set_result(answer)

    async def _round_trip(self, calls: Sequence[_Call]) -> list[object]:
        answers = await self._pipeline(calls)
        unknown = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:  # Redis was restarted or flushed
            for script in {calls[index].script for index in unknown}:
                await self.redis.script_load(script.text)
            again = await self._pipeline([calls[index] for index in unknown])
            for index, answer in zip(unknown, again, strict=True):
                answers[index] = answer
        return [_classified(answer) for answer in answers]

    async def _pipeline(self, calls: Sequence[_Call]) -> list[object]:
        commands = [call.packed for call in calls]
        waits = self._replicas > 0 and any(call.durable for call in calls)
        if waits:
            commands.append(_packed("WAIT", self._replicas, self._wait_ms))
        answers = await self._exchange(commands)
        if waits:
            reached = answers.pop()
            if not isinstance(reached, int) or reached < self._replicas:
                late = BoardUnavailableError(f"only {reached} of {self._replicas} replicas confirmed in time")
                answers = [late if call.durable else answer for call, answer in zip(calls, answers, strict=True)]
        return answers

    async def _exchange(self, commands: Sequence[bytes]) -> list[object]:
        """Send all, then read an answer for each; errors of Redis are answers.

        A pipeline of the client does the same, but packs in Python, sets a timer for each answer and takes its
        connection from the pool each time: together that takes longer than the scripts do (docs/decisions).
        """
        if self._connection is None:
            self._connection = await self.redis.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            return await _sent(self._connection, commands)
        except ConnectionError:  # closed meanwhile; it connects again by itself, and every script may run twice
            return await _sent(self._connection, commands)


async def unless_away(answer: Awaitable[Answer]) -> Answer:
    """What a plain command answers. Raises `BoardUnavailableError`."""
    try:
        return await answer
    except (RedisError, OSError, TimeoutError) as error:
        raise unavailable(error) from error


def unavailable(error: Exception) -> BoardUnavailableError:
    """What a failure of the client's is to us. It says nothing of what the client or the server said."""
    match error:
        case AuthenticationError():
            return BoardRefusedError("Redis does not let us in: user or password in the setting `redis` is wrong")
        case NoPermissionError():
            return BoardRefusedError("Redis lets the user in the setting `redis` do too little: give it more rights")
        case _ if isinstance(error.__context__, ssl.SSLCertVerificationError):
            return BoardRefusedError(
                "Redis shows a certificate that we do not trust: set board.ca_file to its authority"
            )
        case _ if str(error).startswith("DB index"):
            return BoardRefusedError("Redis has no database of the number at the end of the setting `redis`")
    return BoardUnavailableError(f"Redis did not answer: {type(error).__name__}")


async def _sent(connection: AbstractConnection, commands: Sequence[bytes]) -> list[object]:
    async with asyncio.timeout(connection.socket_timeout):  # cut short it closes, so that no answer is left in it
        await connection.send_packed_command(b"".join(commands))
        return [await _answer(connection) for _ in commands]


def _packed(*words: Value) -> bytes:
    try:
        return cast(bytes, pack_command(words))  # type: ignore[arg-type]  # its stub takes one word only
    except TypeError:  # a member of a StrEnum; to look at every word beforehand takes longer than to pack them
        plain = tuple(str(word) if isinstance(word, str) else word for word in words)
        return cast(bytes, pack_command(plain))  # type: ignore[arg-type]


async def _answer(connection: AbstractConnection) -> object:
    try:
        return await connection.read_response(timeout=inf)
    except ResponseError as error:
        return error


def _classified(answer: object) -> object:
    """A lost connection inside a pipeline, or a server that loads, is "unavailable"; a bug stays a bug."""
    if isinstance(answer, ResponseError) and not (_is_passing(answer) or isinstance(answer, NoPermissionError)):
        return answer
    if isinstance(answer, RedisError):
        return unavailable(answer)
    return answer


def _is_passing(error: ResponseError) -> bool:
    # The client takes the code away from the text of those errors that it has a class for.
    if isinstance(error, ReadOnlyError | OutOfMemoryError | ClusterDownError | TryAgainError):
        return True
    return str(error).split(" ", 1)[0] in {"BUSY", "MISCONF", "NOREPLICAS"}
