"""DOUBLES for the fleet drill in virtual time: the board's places, and engines without HTTP, all in memory."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp

from bench import engine_double
from bench.fleet_jobs import BLOCKS, DECODE, PREFILL, SLOTS, prompt_of
from bench.fleet_oracle import Outage, Server
from consumers.backend import BackendError, SoFar
from consumers.gpu.places import Ended, Known, Seen, Taken
from consumers.gpu.replicas import Learned
from policies.pricing import Usage
from policies.retries import Failure

HOME_S = 20.0  # as places_take.lua has it


def now() -> float:
    """On the loop's clock."""
    return asyncio.get_running_loop().time()


class Board:
    """A DOUBLE of `Places` in memory: what the scripts promise, without leases that run out."""

    hold_s = 60.0

    def __init__(self) -> None:
        self._places: dict[str, set[str]] = defaultdict(set)
        self._homes: dict[str, dict[str, float]] = {}
        self._ejected: dict[str, tuple[float, int]] = {}
        self._learned: dict[str, Learned] = {}

    async def take(
        self,
        deployment: str,
        id: str,
        wanted: Sequence[tuple[str, int]],
        *,
        ended: Sequence[Ended] = (),
        billed_to: str = "",
        beginning: str = "",
        homes: Sequence[str] = (),
    ) -> Taken:
        """See `Places`."""
        self._leave(ended)
        counts = [len(self._places[name]) for name, _ in wanted]
        known = sorted(self._homes.get(beginning, {}).items(), key=lambda each: -each[1])
        fresh = {name: at for name, at in known if at == known[0][1] or now() - at <= HOME_S}
        free = [index for index, (_, cap) in enumerate(wanted) if counts[index] < cap]
        if not free or not fresh.keys() <= set(homes):
            return Taken(None, counts, list(fresh))
        name = wanted[free[0]][0]
        self._places[name].add(id)
        counts[free[0]] += 1
        if beginning:
            self._homes[beginning] = {name: now(), **{each: at for each, at in fresh.items() if each != name}}
            fresh = self._homes[beginning]
        return Taken(free[0], counts, list(fresh))

    async def keep(self, deployment: str, running: Sequence[tuple[str, str]], ended: Sequence[Ended]) -> None:
        """See `Places`."""
        self._leave(ended)

    async def sync(self, deployment: str, seen: Sequence[Seen]) -> tuple[float, Sequence[Known]]:
        """See `Places`."""
        found = []
        for each in seen:
            until, strikes = self._ejected.get(each.replica, (0.0, 0))
            if each.out_until > max(now(), until):
                until, strikes = self._ejected[each.replica] = each.out_until, each.strikes
            out = until if until > now() else 0.0
            found.append(Known(len(self._places[each.replica]), out, strikes, self._learned.get(each.replica)))
        return now(), found

    async def learn(self, deployment: str, replica: str, after: Learned | None, cap: float) -> Learned:
        """See `Places`."""
        if self._learned.get(replica) == after:
            self._learned[replica] = Learned(cap, now())
        return self._learned[replica]

    def _leave(self, ended: Sequence[Ended]) -> None:
        for each in ended:
            self._places[each.replica].discard(each.id)


@dataclass(slots=True)
class Engine:
    """A server of the drill: the double's engine while it lives."""

    number: int
    folder: Path
    speed: float
    outages: list[Outage] = field(default_factory=list)
    lives: engine_double.Engine | None = None
    _calls: dict["asyncio.Task[int]", None] = field(default_factory=dict)  # in their order

    @property
    def name(self) -> str:
        """Its file's, and its host."""
        return f"engine-{self.number}"

    @property
    def engine(self) -> engine_double.Engine:
        """It must live."""
        assert self.lives is not None
        return self.lives

    def start(self) -> None:
        """With an empty cache and empty books."""
        speed = {"prefill": PREFILL * self.speed, "decode": DECODE * self.speed}
        self.lives = engine_double.Engine(slots=SLOTS, kv=BLOCKS, cache=BLOCKS, **speed)

    def kill(self) -> None:
        """What runs there breaks off."""
        self.lives = None
        for call in list(self._calls):
            call.cancel()

    async def call(self, body: dict[str, Any], so_far: SoFar, began: Callable[[], None]) -> None:
        """An answer to its end; `began` is called with its first word. Raises `BackendError`."""
        engine = self.lives
        if engine is None:
            raise BackendError(Failure.UNAVAILABLE, "nobody listens", code="no_connection")
        engine.calls.total += 1
        if engine.mode != "well":
            engine.calls.failed += 1
            raise BackendError(Failure.BACKEND_ERROR, "CUDA error", code="server_error")
        call = asyncio.ensure_future(_answered(engine, body, so_far, began))
        self._calls[call] = None
        try:
            cached = await call
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            raise BackendError(Failure.CUT, "the answer broke off", code="incomplete_answer") from None
        finally:
            self._calls.pop(call)
        engine.calls.answered += 1
        prompt = len(prompt_of(body)) // engine_double.CHARACTERS
        so_far.usage = Usage(input=prompt - cached, cache_read=cached, output=body["max_tokens"])

    def server(self, since: float) -> Server:
        """As the oracle knows it; moments are after `since`."""
        outages = [
            Outage(each.closed - since, None if each.dies is None else each.dies - since, each.until - since)
            for each in self.outages
        ]
        return Server(SLOTS, PREFILL * self.speed, DECODE * self.speed, BLOCKS, outages)


async def _answered(
    engine: engine_double.Engine, body: dict[str, Any], so_far: SoFar, began: Callable[[], None]
) -> int:
    came = now()
    async with aclosing(engine.answer(prompt_of(body), body["max_tokens"])) as pieces:
        cached = await anext(pieces)
        async for _ in pieces:
            if so_far.first_token_s is None:
                so_far.first_token_s = now() - came
                began()
    return cached


class Http:
    """A DOUBLE of the client that asks replicas how they are, and for one token."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = {each.name: each for each in engines}

    @asynccontextmanager
    async def get(self, url: str, **options: object) -> AsyncGenerator[SimpleNamespace]:
        """`/health` and `/metrics`."""
        engine = self._engine(url)
        yield _response(200, engine.metrics_text().encode() if urlsplit(url).path == "/metrics" else b"{}")

    @asynccontextmanager
    async def post(self, url: str, **options: object) -> AsyncGenerator[SimpleNamespace]:
        """A call for one token."""
        yield _response(200 if self._engine(url).mode == "well" else 500, b"{}")

    def _engine(self, url: str) -> engine_double.Engine:
        engine = self._engines[urlsplit(url).hostname or ""].lives
        if engine is None:
            raise aiohttp.ClientConnectorError(cast("Any", SimpleNamespace(host="", port=0, ssl=None)), OSError())
        return engine


def _response(status: int, said: bytes) -> SimpleNamespace:
    body = asyncio.StreamReader()
    body.feed_data(said)
    body.feed_eof()
    return SimpleNamespace(status=status, content=SimpleNamespace(readany=lambda: body.read(1 << 20)))
