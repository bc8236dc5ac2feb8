"""API keys: only their SHA-256 is kept, and they are found without asking Redis each time."""

import asyncio
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from policies.scripts import unavailable

KEYS = "keys"
CHANGED = "keys:changed"

SHORTEST, LONGEST = 20, 256  # characters of a key
FEWEST_DIFFERENT = 10  # characters; a key of few different ones was typed, not drawn
PUBLIC_STARTS = ("sk-1234", "sk-test", "sk-fake", "sk-no-key", "sk-xxx", "pm-1234", "pm-test")
PUBLIC_PARTS = (
    "1234567890",
    "abcdefghij",
    "api-key",
    "api_key",
    "apikey",
    "change-me",
    "change_me",
    "changeme",
    "dummy-",
    "example",
    "insert-",
    "masterkey",
    "not-needed",
    "password",
    "placeholder",
    "replace-me",
    "replace_me",
    "your-key",
    "your_key",
)

FOUND_S, FOUND_AT_MOST = 30.0, 20_000
MISSED_S, MISSED_AT_MOST = 2.0, 5_000
RECONNECT_S = 1.0
LISTEN_S = 10.0


class PublicKeyError(ValueError):
    """A key that others may know or guess; the message says how to get a better one, and never shows the key."""


class KeyTakenError(ValueError):
    """The key is known already: of another tenant, or revoked for good."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key, shown once. `id` may be shown at any time."""

    text: str = field(repr=False)
    id: str


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Whose key it is; `id` stands for the key in logs and records, `name` says which limits are its own."""

    tenant: str
    id: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key: its SHA-256 in hex, never itself. `created` is in seconds, on Redis' clock."""

    sha256: str = field(repr=False)
    tenant: str
    name: str
    created: float
    revoked: bool = False

    @property
    def id(self) -> str:
        """Short enough to read out, long enough to be the only one."""
        return _id(self.sha256)

    def to_bytes(self) -> bytes:
        """As JSON, for Redis."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> "ApiKey":
        """What `to_bytes` made. Raises ValueError."""
        return cls(**json.loads(value))


@dataclass(frozen=True, slots=True)
class _Looked:
    """What a look into Redis gave, and until when it is believed."""

    key: ApiKey | None
    until: float


class ApiKeys:
    """The keys of all tenants, in one hash. Redis out of reach raises `BoardUnavailableError`.

    A process that runs `follow` hears of changes at once; without it a revoked key works for
    30 seconds more at most, and a new one is found within two.
    """

    def __init__(self, redis: "Redis", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis
        self._clock = clock
        self._found: OrderedDict[str, _Looked] = OrderedDict()
        self._missed: OrderedDict[str, _Looked] = OrderedDict()
        self._changes = 0

    async def create(self, tenant: str, name: str) -> NewKey:
        """A key drawn at random. Its text is nowhere but in the answer."""
        text = "pm-" + secrets.token_urlsafe(32)
        return NewKey(text, await self._add(text, tenant, name))

    async def adopt(self, text: str, tenant: str, name: str) -> str:
        """Make a key that the operator chose known, and return its id. Doing it again changes nothing.

        Raises `PublicKeyError`, and `KeyTakenError` if it is another tenant's or was revoked.
        """
        check_not_public(text)
        return await self._add(text, tenant, name)

    async def list(self) -> "list[ApiKey]":
        """All keys, the oldest first, revoked ones included."""
        try:
            values = await self._redis.hvals(KEYS)
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
        return sorted(
            (ApiKey.from_bytes(cast(bytes, value)) for value in values), key=lambda key: (key.created, key.id)
        )

    async def get(self, id: str) -> ApiKey | None:
        """What is kept of a key."""
        return await self._read(id)

    async def restore(self, key: ApiKey) -> bool:
        """Put back what was kept of a key, where nothing is or where it was revoked since. Whether that was so."""
        there = await self._read(key.id)
        if there is not None and not (key.revoked and not there.revoked):
            return False
        await self._write(key)
        return True

    async def revoke(self, id: str) -> bool:
        """Whether there is such a key, which from now on opens nothing."""
        key = await self._read(id)
        if key is None:
            return False
        await self._write(ApiKey(key.sha256, key.tenant, key.name, key.created, revoked=True))
        return True

    async def find(self, text: str) -> KeyHolder | None:
        """Whose key this is; None if it is nobody's, or revoked."""
        if not (SHORTEST <= len(text) <= LONGEST and text.isascii()):
            return None
        digest = _digest(text)
        key = await self._look_up(digest)
        if key is None or key.revoked or not hmac.compare_digest(key.sha256, digest):
            return None
        return KeyHolder(key.tenant, key.id, key.name)

    async def follow(self) -> None:
        """Hear of changes until cancelled; connects again after a second when the connection is lost."""
        while True:
            try:
                await self._listen()
            except (RedisError, OSError):
                await asyncio.sleep(RECONNECT_S)

    async def _listen(self) -> None:
        async with self._redis.pubsub() as changes:
            await changes.subscribe(CHANGED)
            while True:
                message = await changes.get_message(timeout=LISTEN_S)
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # up to Python 3.11 the client's wait may swallow it
                    raise asyncio.CancelledError
                if message is None:
                    await changes.ping()  # finds out about a dead connection
                elif message["type"] != "pong":
                    # The confirmation of a subscription counts too: what was said before it went unheard.
                    self._forget()

    async def _look_up(self, digest: str) -> ApiKey | None:
        now = self._clock()
        for looked in (self._found.get(digest), self._missed.get(digest)):
            if looked is not None and now < looked.until:
                return looked.key
        changes = self._changes
        key = await self._read(_id(digest))
        if changes == self._changes:  # else what was read may be from before the change
            self._remember(digest, key, now)
        return key

    def _remember(self, digest: str, key: ApiKey | None, now: float) -> None:
        # Apart, so that a flood of wrong keys does not drive out right ones.
        if key is None or key.sha256 != digest or key.revoked:
            _put(self._missed, digest, _Looked(key, now + MISSED_S), MISSED_AT_MOST)
        else:
            _put(self._found, digest, _Looked(key, now + FOUND_S), FOUND_AT_MOST)
            self._missed.pop(digest, None)

    def _forget(self) -> None:
        self._changes += 1
        self._found.clear()
        self._missed.clear()

    async def _read(self, id: str) -> ApiKey | None:
        try:
            value = await self._redis.hget(KEYS, id)
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
        return None if value is None else ApiKey.from_bytes(cast(bytes, value))

    async def _add(self, text: str, tenant: str, name: str) -> str:
        digest = _digest(text)
        try:
            seconds, microseconds = await self._redis.time()
            key = ApiKey(digest, tenant, name, seconds + microseconds / 1_000_000)
            if await self._redis.hsetnx(KEYS, key.id, key.to_bytes()):
                await self._announce(key.id)
                return key.id
        except (RedisError, OSError) as error:
            raise unavailable(error) from error
        there = await self._read(key.id)
        if there is None or there.sha256 != digest or there.tenant != tenant or there.revoked:
            raise KeyTakenError("this API key was revoked or is another tenant's; choose another one")
        return key.id

    async def _write(self, key: ApiKey) -> None:
        try:
            await self._redis.hset(KEYS, key.id, key.to_bytes())
            await self._announce(key.id)
        except (RedisError, OSError) as error:
            raise unavailable(error) from error

    async def _announce(self, id: str) -> None:
        self._forget()
        await self._redis.publish(CHANGED, id)


def check_not_public(text: str) -> None:
    """Raises `PublicKeyError` for a key that is short, known from examples, or plainly typed by hand."""
    if not text.isascii() or not text.isprintable() or " " in text or len(text) > LONGEST:
        raise _refused(f"has characters other than visible ASCII, or more than {LONGEST} of them")
    if len(text) < SHORTEST:
        raise _refused(f"has fewer than {SHORTEST} characters")
    plain = text.lower()
    if plain.startswith(PUBLIC_STARTS) or any(part in plain for part in PUBLIC_PARTS):
        raise _refused("is publicly known: it looks like one from documentation")
    if len(set(text)) < FEWEST_DIFFERENT:
        raise _refused("can be guessed: it repeats a few characters")


def _refused(why: str) -> PublicKeyError:
    return PublicKeyError(
        f"this API key {why}. Make one with `pointsman keys create`, or with "
        """`python3 -c "import secrets; print('pm-' + secrets.token_urlsafe(32))"`."""
    )


def _digest(text: str) -> str:
    return sha256(text.encode("ascii")).hexdigest()


def _id(digest: str) -> str:
    return digest[:16]


def _put(cache: OrderedDict[str, _Looked], digest: str, looked: _Looked, at_most: int) -> None:
    cache[digest] = looked
    cache.move_to_end(digest)
    while len(cache) > at_most:
        cache.popitem(last=False)
