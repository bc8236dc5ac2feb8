"""The corrections that tenants have learned, each with a number; one is in use, and an older one can be again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from policies.scripts import Script, Scripts, Value, unless_away
from router import compact

MOST = 10  # of a tenant; the oldest go


@dataclass(frozen=True, slots=True)
class Version:
    """One that was taken. `about` is JSON-ready: when, from how many rows, how much better."""

    number: int
    about: Mapping[str, object]
    is_used: bool


class Versions:
    """Raises `BoardUnavailableError`."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._put = Script.load("router", "versions_put")
        self._use = Script.load("router", "versions_use")

    async def put(self, tenant: str, correction: bytes, about: Mapping[str, object]) -> int:
        """Keep and use it; its number."""
        arguments: list[Value] = [correction, compact.text(about), MOST]
        return int(cast(int, await self._scripts.run(self._put, [versions_key(tenant)], arguments, durable=True)))

    async def use(self, tenant: str, number: int) -> bool:
        """Use that one from now on, or with 0 the shipped weights alone; False when it is not there."""
        return bool(await self._scripts.run(self._use, [versions_key(tenant)], [number], durable=True))

    async def all(self, tenant: str) -> list[Version]:
        """The newest first."""
        found = cast("dict[bytes, bytes]", await unless_away(self._scripts.redis.hgetall(versions_key(tenant))))
        used = int(found.get(b"used", b"0"))
        numbers = sorted((int(name[6:]) for name in found if name.startswith(b"about:")), reverse=True)
        return [Version(n, json.loads(found[b"about:%d" % n]), n == used) for n in numbers]

    async def correction(self, tenant: str, number: int) -> bytes | None:
        """That one, as it was kept."""
        found = await unless_away(self._scripts.redis.hget(versions_key(tenant), f"data:{number}"))
        return cast("bytes | None", found)


def versions_key(tenant: str) -> str:
    """Where a tenant's are; the field `used` is the number of the one in use."""
    return f"{{t:{tenant}}}:corrections"
