"""Shared limits of tenants and deployments: reserved before a call, settled after it, all or nothing."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import ceil
from typing import cast

from policies.bucket import Limit
from policies.deployments import Deployment, Limits
from policies.scripts import Script, Scripts, Value
from policies.tenants import Tenant

SPARE_S = 0.25
FUNCTIONS = "quota_functions"  # other scripts of the same slot put them in front to settle on their way


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose limits: `slot` is the hash tag of all its keys, `name` is for people. None is no limit."""

    slot: str
    name: str
    requests: Limit | None = None
    tokens: Limit | None = None
    concurrency: int | None = None
    usd_per_month: Decimal | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is counted here, so that nobody needs to ask Redis."""
        return all(limit is None for limit in (self.requests, self.tokens, self.concurrency, self.usd_per_month))

    @property
    def keys(self) -> list[str]:
        """The keys of all limits; a reservation's own key goes in front."""
        quota = f"{self.slot}:quota"
        return [f"{quota}:leases", f"{quota}:usd", f"{quota}:requests", f"{quota}:tokens"]


def tenant_scope(tenant: Tenant) -> Scope:
    """A tenant's limits. Raises ValueError for a limit that is not more than 0 (a budget may be 0)."""
    return _scope(f"{{t:{tenant.name}}}", f"tenant {tenant.name}", tenant.limits)


def deployment_scope(deployment: Deployment) -> Scope:
    """A deployment's limits. Raises ValueError for a limit that is not more than 0 (a budget may be 0).

    Its buckets hold a moment's worth less than the provider's own: a call is counted there a little later than here,
    some more so than others, and one that comes a millisecond early is refused.
    """
    limits = deployment.limits
    spare_s = min(SPARE_S, limits.burst_s / 10)
    limits = replace(limits, burst_s=limits.burst_s - spare_s)
    return _scope(f"{{b:{deployment.name}}}", f"deployment {deployment.name}", limits)


@dataclass(frozen=True, slots=True)
class Room:
    """A bucket after the verdict: it holds at most `limit`, `remaining` would be granted at once."""

    limit: int
    remaining: int
    full_in_s: float


@dataclass(frozen=True, slots=True)
class Rooms:
    """The buckets that there are."""

    requests: Room | None = None
    tokens: Room | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """Go ahead. `duplicate`: this reservation was there already, and nothing was taken again."""

    duplicate: bool = False
    rooms: Rooms = Rooms()


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now; `limit` of `scope` is the one that takes longest. Nothing was taken.

    `seconds` is exact for buckets (if nobody else takes any). For concurrency it says when to look again.
    """

    seconds: float
    limit: str
    scope: str
    rooms: Rooms = Rooms()


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The budget does not cover it before the moment `until`, when the next one begins. Nothing was taken."""

    limit: str
    until: float
    scope: str
    rooms: Rooms = Rooms()


Verdict = Granted | Wait | Exhausted


class Quotas:
    """Reserves and settles. Everything may run twice; everything raises `BoardUnavailableError`.

    `rid` names one attempt at one job. A reservation that nobody settles for `ttl_s` counts as used in full,
    so `ttl_s` is longer than the job may live; its concurrency is free again after `hold_s` without a renewal.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._reserve = Script.load("policies", FUNCTIONS, "quota_reserve")
        self._settle = Script.load("policies", FUNCTIONS, "quota_settle")
        self._renew = Script.load("policies", FUNCTIONS, "quota_renew")

    async def reserve(
        self, scope: Scope, rid: str, *, tokens: int, usd: Decimal | None, hold_s: float, ttl_s: float
    ) -> Verdict:
        """Take one request, `tokens`, `usd` and a place among the concurrent ones: all of them or none.

        More tokens than the bucket holds wait for a full bucket and drain it. An unknown `usd` counts nothing.
        """
        if scope.is_unlimited:
            return Granted()
        args: list[Value] = [
            rid,
            _milliseconds(ttl_s),
            _milliseconds(hold_s),
            "" if scope.concurrency is None else scope.concurrency,
            "" if scope.usd_per_month is None else _nanodollars(scope.usd_per_month, ROUND_FLOOR),
            "" if usd is None else _nanodollars(usd),
            1,
            *_bucket(scope.requests),
            max(0, tokens),
            *_bucket(scope.tokens),
        ]
        answer = await self._scripts.run(self._reserve, _keys(scope, rid), args)
        return _verdict(scope, cast("list[bytes | int]", answer))

    async def reserve_both(
        self,
        tenant: Scope,
        deployment: Scope,
        rid: str,
        *,
        tokens: int,
        usd: Decimal | None,
        hold_s: float,
        ttl_s: float,
    ) -> Verdict:
        """The tenant's first, then the deployment's; when that refuses, the tenant's is refunded in full.

        What is granted shows the tenant's rooms. A crash in between leaves a reservation of the tenant that
        the next try finds.
        """
        first = await self.reserve(tenant, rid, tokens=tokens, usd=usd, hold_s=hold_s, ttl_s=ttl_s)
        if not isinstance(first, Granted):
            return first
        second = await self.reserve(deployment, rid, tokens=tokens, usd=usd, hold_s=hold_s, ttl_s=ttl_s)
        if not isinstance(second, Granted):
            await self.refund(tenant, rid)
            return second
        return replace(first, duplicate=first.duplicate or second.duplicate)

    async def settle(self, scope: Scope, rid: str, *, tokens: int, usd: Decimal | None) -> None:
        """Replace what was reserved by what was used. Where `usd` is unknown, what was reserved stays spent."""
        await self._close(*self.settle_arguments(scope, rid, tokens=tokens, usd=usd))

    async def refund(self, scope: Scope, rid: str) -> None:
        """Give everything back, the request as well: the call was not made."""
        await self._close(*_closing(scope, rid, requests=0, tokens=0, nano=0))

    async def renew(self, scope: Scope, rid: str, *, hold_s: float) -> None:
        """Keep the place among the concurrent ones for another `hold_s`."""
        if scope.concurrency is not None:
            await self._scripts.run(self._renew, _keys(scope, rid), [rid, _milliseconds(hold_s)])

    @staticmethod
    def settle_arguments(scope: Scope, rid: str, *, tokens: int, usd: Decimal | None) -> tuple[list[str], list[Value]]:
        """The keys and arguments of `quota_settle`, for a script of the same slot that settles on its way.

        Without limits there are no keys, with which `quota_settle` does nothing.
        """
        return _closing(scope, rid, requests=1, tokens=max(0, tokens), nano="" if usd is None else _nanodollars(usd))

    async def _close(self, keys: list[str], args: list[Value]) -> None:
        if keys:
            await self._scripts.run(self._settle, keys, args)


def _scope(slot: str, name: str, limits: Limits) -> Scope:
    if limits.concurrency is not None and limits.concurrency < 1:
        raise ValueError("concurrency must be at least 1; leave it out to have no limit")
    if limits.usd_per_month is not None and not (limits.usd_per_month.is_finite() and limits.usd_per_month >= 0):
        raise ValueError("usd_per_month must be at least 0; leave it out to have no limit")
    # A bucket that cannot hold one request would let every request pass at the price of a part of one.
    requests = _limit(limits.requests_per_minute, limits.burst_s, at_least=1.0)
    tokens = _limit(limits.tokens_per_minute, limits.burst_s, at_least=0.0)
    return Scope(slot, name, requests, tokens, limits.concurrency, limits.usd_per_month)


def _limit(per_minute: float | None, burst_s: float, *, at_least: float) -> Limit | None:
    if per_minute is None:
        return None
    rate = per_minute / 60
    return Limit(rate, max(at_least, rate * burst_s))


def _keys(scope: Scope, rid: str) -> list[str]:
    return [f"{scope.slot}:quota:held:{rid}", *scope.keys]


def _closing(scope: Scope, rid: str, *, requests: int, tokens: int, nano: int | str) -> tuple[list[str], list[Value]]:
    if scope.is_unlimited:
        return [], []
    args: list[Value] = [rid, requests, tokens, nano, *_bucket(scope.requests), *_bucket(scope.tokens)]
    return _keys(scope, rid), args


def _bucket(limit: Limit | None) -> tuple[Value, Value]:
    return ("", "") if limit is None else (limit.rate, limit.burst)


def _milliseconds(seconds: float) -> int:
    return max(1, ceil(seconds * 1000))


def _nanodollars(usd: Decimal, rounding: str = ROUND_CEILING) -> int:
    """Whole ones, so that sums are exact; a part of one counts as one."""
    return int(usd.scaleb(9).to_integral_value(rounding))


def _verdict(scope: Scope, answer: list[bytes | int]) -> Verdict:
    verdict, wait_ms, what, *rooms = answer
    requests, requests_full_ms, tokens, tokens_full_ms = (int(figure) for figure in rooms)
    left = Rooms(_room(scope.requests, requests, requests_full_ms), _room(scope.tokens, tokens, tokens_full_ms))
    text = cast(bytes, what).decode()
    match verdict:
        case b"wait":
            return Wait(int(wait_ms) / 1000, text, scope.name, left)
        case b"exhausted":
            return Exhausted("usd_per_month", _end_of(text), scope.name, left)
    return Granted(verdict == b"duplicate", left)


def _room(limit: Limit | None, remaining: int, full_in_ms: int) -> Room | None:
    return None if limit is None else Room(int(limit.burst), remaining, full_in_ms / 1000)


def _end_of(month: str) -> float:
    year, number = (int(part) for part in month.split("-"))
    return datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp()
