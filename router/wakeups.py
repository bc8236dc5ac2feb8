"""A channel of this process' own on which others wake those who wait in it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)

RECONNECT_S = 0.5
LISTEN_S = 1.0


class Wakeups:
    """Wakes waiters by key, from any process. A wake-up may be lost: look for yourself every second or so.

    A message is a key; `channel` is where to publish it: of this process alone, or one that several share.
    """

    def __init__(self, redis: Redis, *, role: str = "", channel: str = "") -> None:
        self.channel = channel or f"{role}:{uuid4().hex}"
        self._redis = redis
        self._waiting: dict[str, list[Callable[[], None]]] = defaultdict(list)

    async def follow(self) -> None:
        """Listen until cancelled; reconnects by itself and then wakes everyone once, as something may be missed."""
        while True:
            try:
                await self._listen()
            except (RedisError, OSError, TimeoutError) as error:
                log.warning("wakeups_reconnecting", error=type(error).__name__)
                await asyncio.sleep(RECONNECT_S)

    @contextmanager
    def on(self, key: str, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` whenever `key` is published, inside this block."""
        self._waiting[key].append(wake)
        try:
            yield
        finally:
            self._waiting[key].remove(wake)
            if not self._waiting[key]:
                del self._waiting[key]

    async def _listen(self) -> None:
        async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(self.channel)
            for key in list(self._waiting):
                self._wake(key)
            while True:
                message = await pubsub.get_message(timeout=LISTEN_S)
                _raise_if_cancelled()
                if message is not None and isinstance(message["data"], bytes):
                    self._wake(message["data"].decode(errors="replace"))

    def _wake(self, key: str) -> None:
        for wake in list(self._waiting.get(key, ())):
            wake()


def _raise_if_cancelled() -> None:
    """Up to Python 3.11 `asyncio.wait_for`, which the client waits with, may swallow a cancellation."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
