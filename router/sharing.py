"""Shares what replicas learn for routing: levels are added up and sessions are told, beside the hot path."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import cast
from uuid import uuid4

import structlog

from policies.scripts import BoardUnavailableError, Script, Scripts, Value
from router import fitting
from router.gain import GainScore, WeightsError
from router.sessions import Place
from router.shares import Change, Name, Shares
from router.tracker import Level
from router.versions import Versions, versions_key

log = structlog.get_logger(__name__)

EVERY_S = 0.25
SILENT_MS = 5_000  # a replica that told nothing for so long has no part in the pace
KEPT_MS = 7 * 86_400_000  # of a tenant that sends nothing
MOST_SESSIONS = 10_000  # of a tenant, told to replicas that start
MOST_LEVELS = 64  # in one round, of a tenant


@dataclass(slots=True)
class Sharing:
    """One for each HTTP process. Without Redis it decides on what it has, and catches up later."""

    scripts: Scripts
    versions: Versions
    shares: Shares
    every_s: float = EVERY_S
    replica: str = field(default_factory=lambda: uuid4().hex[:12])
    _used: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, str] = field(default_factory=dict)
    _script: Script = field(default_factory=lambda: Script.load("router", "shares_merge"))

    async def follow(self) -> None:
        """For ever."""
        while True:
            try:
                await self.merge()
            except BoardUnavailableError:
                log.debug("shares_not_merged")
            await asyncio.sleep(self.every_s)

    async def merge(self) -> None:
        """Tell what is new, and take over what others told. Raises `BoardUnavailableError`."""
        changes: dict[str, list[Change]] = {}
        for change in self.shares.changes():
            changes.setdefault(change.name.tenant, []).append(change)
        untold = self.shares.sessions.untold()
        await asyncio.gather(
            *(
                self._merge(tenant, changes.get(tenant, [])[:MOST_LEVELS], untold.get(tenant, {}))
                for tenant in changes.keys() | untold.keys()
            )
        )

    async def _merge(self, tenant: str, changes: Sequence[Change], untold: Mapping[str, Place]) -> None:
        prefix = f"{{t:{tenant}}}:"
        keys = [f"{prefix}shares", f"{prefix}shares:replicas", f"{prefix}sessions", versions_key(tenant)]
        words: list[Value] = [self.replica, SILENT_MS, KEPT_MS, self._seen.get(tenant, "0"), MOST_SESSIONS]
        words.append(len(changes))
        for change in changes:
            words += [_field(change.name), change.target.burst, *_numbers(change.began), *_numbers(change.moved)]
        words.append(len(untold))
        for session, place in untold.items():
            words += [session, place.deployment, int(place.is_heavy)]
        answer = await self.scripts.run(self._script, keys, words)
        used, replicas, levels, last, told = cast("tuple[bytes, int, list[bytes], bytes, list[bytes]]", answer)
        self.shares.replicas = replicas
        for change, level in zip(changes, levels, strict=True):
            self.shares.take_over(change, _level(level))
        self._seen[tenant] = last.decode()
        if int(used) != self._used.get(tenant, 0):
            await self._use(tenant, int(used))
        now = self.shares.clock()
        for name, deployment, heavy in zip(told[::3], told[1::3], told[2::3], strict=True):
            is_heavy = heavy == b"1"
            self.shares.sessions.told(tenant, name.decode(), deployment.decode(), is_heavy=is_heavy, now=now)

    async def _use(self, tenant: str, number: int) -> None:
        """Score with what the tenant has learned from now on. One that cannot be read changes nothing."""
        self._used[tenant] = number
        raw = await self.versions.correction(tenant, number) if number else None
        if raw is None:
            self.shares.scorers.pop(tenant, None)
            return
        try:
            self.shares.scorers[tenant] = GainScore(correction=fitting.load(raw))
            log.info("correction_used", tenant=tenant, version=number)
        except WeightsError as error:
            log.warning("correction_not_used", tenant=tenant, version=number, error=str(error))


def _field(name: Name) -> str:
    return f"{name.modality} {name.axis}"


def _numbers(level: Level) -> list[Value]:
    return [repr(number) for number in astuple(level)]


def _level(text: bytes) -> Level:
    words = text.split()
    threshold, mean, variance, tokens, forced_heavy_rate, scored_rate = map(float, words[:6])
    counts = (int(float(word)) for word in words[6:])
    return Level(threshold, mean, variance, tokens, forced_heavy_rate, scored_rate, *counts)
