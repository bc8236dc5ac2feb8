"""Shared limits of tenants and deployments: reserved before a call, settled after it, all or nothing."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from enum import StrEnum
from math import ceil, floor
from typing import cast

from policies.bucket import Limit
from policies.deployments import Deployment, Limits
from policies.pricing import Usage, usual_tokens
from policies.scripts import Script, Scripts, Value, unless_away
from policies.tenants import Tenant
from policies.values import dataclass

FUNCTIONS = "quota_functions"  # other scripts of the same slot put them in front to settle on their way
RESERVED, COUNTED = "held", "counted"
SPARE_S = 0.5  # of a deployment's bucket


class Kind(StrEnum):
    """Whose limits they are."""

    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"  # a tenant's at one deployment
    DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True)
class Part:
    """One set of limits: `key` begins the names of its keys, `name` is for people. None is no limit.

    A `shadow` is judged like the others, and refuses nothing.
    """

    key: str
    kind: Kind
    name: str
    requests: Limit | None = None
    tokens: Limit | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None
    usd_per_month: Decimal | None = None
    shadow: bool = False

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is counted here."""
        limits = (self.requests, self.tokens, self.tokens_per_day, self.concurrency, self.usd_per_month)
        return all(limit is None for limit in limits)


@dataclass(frozen=True, slots=True)
class Scope:
    """All that is reserved in one script: parts whose keys share the hash tag `slot`.

    Without parts nobody needs to ask Redis. An output token counts `output_burndown` times.
    """

    slot: str
    parts: tuple[Part, ...]
    output_burndown: float = 1.0
    cache_reads_count: bool = True
    arguments: tuple[Value, ...] = field(init=False, repr=False, compare=False)  # of `quota_reserve`

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", tuple(each for part in self.parts for each in _arguments(part)))

    @property
    def without_places(self) -> "Scope":
        """The limits that time opens again, or money; a place is opened by who holds it alone."""
        parts = _limited(replace(part, concurrency=None) for part in self.parts)
        return Scope(self.slot, parts, self.output_burndown, self.cache_reads_count)

    def counted(self, usage: Usage) -> int:
        """The tokens that a call has used here; what has no tokens counts for as many as are usual for it."""
        cached = usage.cache_read if self.cache_reads_count else 0
        used = (
            usage.input + usage.cache_write + usage.cache_write_1h + cached + ceil(usage.output * self.output_burndown)
        )
        return used or usual_tokens(usage)


def tenant_slot(tenant: str) -> str:
    """The hash tag of everything that is a tenant's."""
    return f"{{t:{tenant}}}"


def deployment_slot(deployment: str) -> str:
    """The hash tag of a deployment's limits."""
    return f"{{b:{deployment}}}"


def tenant_scope(tenant: Tenant, *, deployment: str = "", key: str = "") -> Scope:
    """A tenant's limits, those that it has at this deployment, and those of its API key of that name.

    Raises ValueError for a limit that is not more than 0 (a budget may be 0).
    """
    slot = tenant_slot(tenant.name)
    parts = [_part(f"{slot}:quota", Kind.TENANT, f"tenant {tenant.name}", tenant.limits)]
    at, of = tenant.model_limits.get(deployment), tenant.key_limits.get(key)
    if at is not None:
        name = f"model {deployment} of tenant {tenant.name}"
        parts.append(_part(f"{slot}:quota:model:{deployment}", Kind.MODEL, name, at))
    if of is not None:
        parts.append(_part(f"{slot}:quota:key:{key}", Kind.KEY, f"key {key} of tenant {tenant.name}", of))
    return Scope(slot, _limited(parts))


def deployment_scope(deployment: Deployment) -> Scope:
    """A deployment's limits. Raises ValueError for a limit that is not more than 0 (a budget may be 0).

    Its buckets hold a moment's worth less than the provider's own: a call is counted there a little later than here,
    the first of many later than those after it, and one that comes a millisecond early is refused.
    """
    slot, limits = deployment_slot(deployment.name), deployment.limits
    limits = replace(limits, burst_s=limits.burst_s - min(SPARE_S, limits.burst_s / 10))
    part = _part(f"{slot}:quota", Kind.DEPLOYMENT, f"deployment {deployment.name}", limits)
    if not limits.output_burndown > 0:
        raise ValueError("output_burndown must be more than 0")
    return Scope(slot, _limited([part]), limits.output_burndown, limits.cache_reads_count)


class Scopes:
    """The scopes of everything in the settings, each made once: several steps of every job ask for them.

    Who is not in the settings any more has no limits.
    """

    def __init__(self, tenants: Mapping[str, Tenant], deployments: Mapping[str, Deployment]) -> None:
        self._tenants = tenants
        self._of_tenants: dict[tuple[str, str, str], Scope] = {}
        self._of_deployments = {name: deployment_scope(each) for name, each in deployments.items()}

    def of_tenant(self, name: str, *, deployment: str = "", key: str = "") -> Scope:
        """See `tenant_scope`."""
        tenant = self._tenants.get(name)
        if tenant is None:
            return Scope(tenant_slot(name), ())
        # Only names that have limits, of which there are a few: others come from clients and their records.
        at, of = deployment if deployment in tenant.model_limits else "", key if key in tenant.key_limits else ""
        if (name, at, of) not in self._of_tenants:
            self._of_tenants[name, at, of] = tenant_scope(tenant, deployment=at, key=of)
        return self._of_tenants[name, at, of]

    @property
    def tenants(self) -> Iterable[str]:
        """Their names."""
        return self._tenants

    def all(self) -> list[Scope]:
        """Of every tenant, with all its models and keys, and of every deployment."""
        found = list(self._of_deployments.values())
        for name, tenant in self._tenants.items():
            parts = {part.key: part for part in self.of_tenant(name).parts}
            for deployment in tenant.model_limits:
                parts |= {part.key: part for part in self.of_tenant(name, deployment=deployment).parts}
            for key in tenant.key_limits:
                parts |= {part.key: part for part in self.of_tenant(name, key=key).parts}
            found.append(Scope(tenant_slot(name), tuple(parts.values())))
        return found

    def of_deployment(self, name: str) -> Scope:
        """See `deployment_scope`."""
        return self._of_deployments.get(name) or Scope(deployment_slot(name), ())


@dataclass(frozen=True, slots=True)
class Room:
    """A limit after the verdict: it holds at most `limit`, `remaining` would be granted at once."""

    limit: int
    remaining: int
    full_in_s: float


@dataclass(frozen=True, slots=True)
class Rooms:
    """The tightest limit of requests and of tokens, where there are any."""

    requests: Room | None = None
    tokens: Room | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A part after the verdict. `places` is how many more may run at once."""

    part: Part
    requests: Room | None = None
    tokens: Room | None = None
    today: Room | None = None
    places: int | None = None


@dataclass(frozen=True, slots=True)
class Shadow:
    """A limit that would have refused, were it not a shadow."""

    limit: str
    kind: Kind
    scope: str


@dataclass(frozen=True, slots=True)
class Granted:
    """Go ahead. `duplicate`: this reservation was there already, and nothing was taken again."""

    duplicate: bool = False
    states: tuple[State, ...] = field(default=(), compare=False)
    shadows: tuple[Shadow, ...] = ()

    @property
    def rooms(self) -> Rooms:
        """What the next call meets."""
        return _tightest(self.states)


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now; `limit` of `scope` is the one that takes longest. Nothing was taken.

    `seconds` is exact for buckets (if nobody else takes any). For concurrency it says when to look again.
    """

    seconds: float
    limit: str
    scope: str
    states: tuple[State, ...] = field(default=(), compare=False)

    @property
    def rooms(self) -> Rooms:
        """What was too little, or what there was."""
        return _tightest(self.states)


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The budget does not cover it before the moment `until`, when the next one begins. Nothing was taken."""

    limit: str
    until: float
    scope: str
    states: tuple[State, ...] = field(default=(), compare=False)

    @property
    def rooms(self) -> Rooms:
        """What there was."""
        return _tightest(self.states)


Verdict = Granted | Wait | Exhausted


@dataclass(frozen=True, slots=True)
class Spent:
    """What a part has used: nano-dollars of a month, tokens of a day."""

    nanodollars: int = 0
    tokens: int = 0

    def plus(self, nanodollars: int, tokens: int) -> "Spent":
        """And so much more."""
        return Spent(self.nanodollars + nanodollars, self.tokens + tokens)


@dataclass(frozen=True, slots=True)
class HeldOf:
    """What is reserved of one part: nano-dollars of a month, tokens of a day since the epoch."""

    key: str
    month: str
    nanodollars: int
    day: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Held:
    """A reservation; or what was counted without one, where it went with a lost board."""

    slot: str
    rid: str
    is_reserved: bool
    parts: tuple[HeldOf, ...]


class Quotas:
    """Reserves and settles. Everything may run twice; everything raises `BoardUnavailableError`.

    `rid` names one attempt at one job. A reservation that nobody settles for `ttl_s` counts as used in full,
    so `ttl_s` is longer than the job may live; its concurrency is free again after `hold_s` without a renewal.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._reserve = Script.load("policies", FUNCTIONS, "quota_reserve")
        self._settle = Script.load("policies", FUNCTIONS, "quota_settle")
        self._let_go = Script.load("policies", FUNCTIONS, "quota_let_go")
        self._renew = Script.load("policies", FUNCTIONS, "quota_renew")
        self._watch = Script.load("policies", FUNCTIONS, "quota_watch")
        self._restore = Script.load("policies", FUNCTIONS, "quota_restore")
        self._count = Script.load("policies", FUNCTIONS, "quota_count")

    async def reserve(
        self,
        scope: Scope,
        rid: str,
        *,
        tokens: int,
        usd: Decimal | None,
        hold_s: float,
        ttl_s: float,
        unclaimed: str = "",
        wants: str = "",
    ) -> Verdict:
        """Take one request, `tokens`, `usd` and a place among the concurrent ones, of every part: all or nothing.

        More tokens than a bucket holds wait for a full bucket and drain it. An unknown `usd` counts nothing.
        While it is `unclaimed`, a name, a sweeper may give it back. `wants` names a process that has had no place for
        long: the next one that is free is kept for it, while it asks again and again.
        """
        if not scope.parts and not unclaimed:
            return Granted()
        nano = "" if usd is None else nanodollars(usd)
        args: list[Value] = [rid, _milliseconds(ttl_s), _milliseconds(hold_s), nano, max(0, tokens), unclaimed, wants]
        args += scope.arguments
        answer = await self._scripts.run(self._reserve, _keys(scope, rid), args)
        return _verdict(scope, cast("_Answer", answer))

    async def look(self, scope: Scope, *, tokens: int, usd: Decimal | None) -> Verdict:
        """What `reserve` would say; nothing is taken."""
        if not scope.parts:
            return Granted()
        args: list[Value] = ["", 1, 1, "" if usd is None else nanodollars(usd), max(0, tokens), "", ""]
        answer = await self._scripts.run(self._reserve, _keys(scope, ""), [*args, *scope.arguments])
        return _verdict(scope, cast("_Answer", answer))

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
        keep: bool = False,
        wants: str = "",
    ) -> Verdict:
        """The tenant's first, then the deployment's; when that refuses, the tenant's is refunded in full.

        Unless it is to `keep` what it has of the tenant's, from the door. A crash in between leaves a reservation of
        the tenant that the next try finds. `wants` concerns the deployment's places.
        """
        first = await self.reserve(tenant, rid, tokens=tokens, usd=usd, hold_s=hold_s, ttl_s=ttl_s)
        if not isinstance(first, Granted):
            return first
        second = await self.reserve(deployment, rid, tokens=tokens, usd=usd, hold_s=hold_s, ttl_s=ttl_s, wants=wants)
        if not isinstance(second, Granted):
            if not keep:
                await self.refund(tenant, rid)
            return second
        return Granted(
            first.duplicate or second.duplicate, first.states + second.states, first.shadows + second.shadows
        )

    async def settle(self, scope: Scope, rid: str, *, tokens: int, usd: Decimal | None) -> None:
        """Replace what was reserved by what was used. Where `usd` is unknown, what was reserved stays spent."""
        await self._close(*self.settle_arguments(scope, rid, tokens=tokens, usd=usd))

    async def refund(self, scope: Scope, rid: str, *, unclaimed: str = "") -> None:
        """Give everything back, the request as well: the call was not made."""
        if scope.parts or unclaimed:
            await self.release(scope.slot, rid, unclaimed=unclaimed)

    async def release(self, slot: str, rid: str, *, unclaimed: str = "") -> bool:
        """The same, whatever the limits are there. Whether anything was reserved."""
        return await self._close([_held(slot, rid)], [rid, 0, 0, 0, *([unclaimed] if unclaimed else [])])

    async def let_go(self, scope: Scope, rid: str) -> None:
        """The call waits elsewhere for long: only its dollars stay reserved."""
        if scope.parts:
            await self._scripts.run(self._let_go, [_held(scope.slot, rid)], [rid])

    async def count_unreserved(self, scope: Scope, rid: str, *, tokens: int, usd: Decimal | None) -> None:
        """Count what an attempt used whose reservation went with a lost board: in budgets and days, not in rates."""
        parts = [each for each in scope.parts if each.tokens_per_day is not None or each.usd_per_month is not None]
        if parts:
            limited = [(each.tokens_per_day is not None, each.usd_per_month is not None) for each in parts]
            spent: Value = "" if usd is None else nanodollars(usd)
            flags = ["1" if is_limited else "" for pair in limited for is_limited in pair]
            keys = [_held(scope.slot, rid, COUNTED), *(each.key for each in parts)]
            await self._scripts.run(self._count, keys, [max(0, tokens), spent, *flags])

    async def renew(self, scope: Scope, rid: str, *, hold_s: float) -> None:
        """Keep the places among the concurrent ones for another `hold_s`."""
        counted = ["" if part.concurrency is None else "1" for part in scope.parts]
        if any(counted):
            await self._scripts.run(self._renew, _keys(scope, rid), [rid, _milliseconds(hold_s), *counted])

    async def holds(self, scope: Scope, rid: str) -> bool:
        """Whether this is reserved."""
        return bool(await unless_away(self._scripts.redis.exists(_held(scope.slot, rid))))

    async def held(self) -> AsyncGenerator[Held]:
        """Rebuild: all that is reserved, or was counted without. Looks at every key that there is."""
        redis, cursor = self._scripts.redis, -1
        while cursor != 0:
            page = await unless_away(redis.scan(max(0, cursor), match=_held("*", "*", "*"), count=1000))
            cursor, names = cast("tuple[int, list[bytes]]", page)
            for name in names:
                slot, _, rest = name.decode().partition(":quota:")
                kind, _, rid = rest.partition(":")
                if kind not in (RESERVED, COUNTED):
                    continue
                fields = cast("dict[bytes, bytes]", await unless_away(redis.hgetall(name)))
                parts = [_held_of(key.decode(), value.decode().split()) for key, value in fields.items()]
                yield Held(slot, rid, kind == RESERVED, tuple(each for each in parts if each is not None))

    async def watch(self, scope: Scope) -> None:
        """Every few seconds: where nobody asks for long, that nobody did is not for a Redis that stood still."""
        counting = [part.key for part in scope.parts if part.concurrency is not None]
        if counting:
            await self._scripts.run(self._watch, counting, [])

    async def spent(self, key: str, *, month: str, day: int) -> Spent:
        """Rebuild: what the board says that the part of that key has used."""
        redis = self._scripts.redis
        usd = await unless_away(redis.hget(f"{key}:usd", month))
        tokens = await unless_away(redis.hget(f"{key}:day", str(day)))
        return Spent(int(cast("bytes | None", usd) or 0), int(cast("bytes | None", tokens) or 0))

    async def restore(self, key: str, least: Spent, *, month: str, day: int, seen: Spent | None) -> bool:
        """Rebuild: the part of that key has used so much in that month, and on that day since the epoch, at least.

        False when the board does not say what was `seen` there any more: then nothing is written.
        """
        before: list[Value] = ["", ""] if seen is None else [seen.nanodollars, seen.tokens]
        args: list[Value] = [month, least.nanodollars, day, least.tokens, *before]
        return bool(await self._scripts.run(self._restore, [key], args, durable=True))

    @staticmethod
    def settle_arguments(scope: Scope, rid: str, *, tokens: int, usd: Decimal | None) -> tuple[list[str], list[Value]]:
        """The keys and arguments of `quota_settle`, for a script of the same slot that settles on its way.

        Without limits there are no keys, with which `quota_settle` does nothing.
        """
        return Quotas.settle_anyway(scope.slot, rid, tokens=tokens, usd=usd) if scope.parts else ([], [])

    @staticmethod
    def settle_anyway(slot: str, rid: str, *, tokens: int, usd: Decimal | None) -> tuple[list[str], list[Value]]:
        """The same, whatever the limits are there."""
        return [_held(slot, rid)], [rid, 1, max(0, tokens), "" if usd is None else nanodollars(usd)]

    async def _close(self, keys: list[str], args: list[Value]) -> bool:
        return bool(keys) and bool(await self._scripts.run(self._settle, keys, args))


# Verdict, ms to wait, limit or month, number of the part, shadows, and what remains of all parts.
_Answer = tuple[bytes, int, bytes, int, list[bytes | int], list[int]]


def _limited(parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(part for part in parts if not part.is_unlimited)


def _part(key: str, kind: Kind, name: str, limits: Limits) -> Part:
    if limits.concurrency is not None and limits.concurrency < 1:
        raise ValueError("concurrency must be at least 1; leave it out to have no limit")
    if limits.usd_per_month is not None and not (limits.usd_per_month.is_finite() and limits.usd_per_month >= 0):
        raise ValueError("usd_per_month must be at least 0; leave it out to have no limit")
    if limits.tokens_per_day is not None and not limits.tokens_per_day >= 1:
        raise ValueError("tokens_per_day must be at least 1; leave it out to have no limit")
    return Part(
        key=key,
        kind=kind,
        name=name,
        # A bucket that cannot hold one request would let every request pass at the price of a part of one.
        requests=_limit(limits.requests_per_minute, limits.burst_s, at_least=1.0),
        tokens=_limit(limits.tokens_per_minute, limits.burst_s, at_least=0.0),
        tokens_per_day=None if limits.tokens_per_day is None else floor(limits.tokens_per_day),
        concurrency=limits.concurrency,
        usd_per_month=limits.usd_per_month,
        shadow=limits.shadow,
    )


def _limit(per_minute: float | None, burst_s: float, *, at_least: float) -> Limit | None:
    if per_minute is None:
        return None
    rate = per_minute / 60
    return Limit(rate, max(at_least, rate * burst_s))


def _keys(scope: Scope, rid: str) -> list[str]:
    return [_held(scope.slot, rid), *(part.key for part in scope.parts)]


def _held(slot: str, rid: str, kind: str = RESERVED) -> str:
    return f"{slot}:quota:{kind}:{rid}"


def _held_of(key: str, taken: Sequence[str]) -> HeldOf | None:
    """As `quota_take` writes it."""
    if len(taken) != 10:
        return None
    day, tokens, month, nano = taken[6:]
    return HeldOf(key, month, int(nano), 0 if day == "-" else int(day), int(tokens))


def _arguments(part: Part) -> tuple[Value, ...]:
    budget = part.usd_per_month
    return (
        "" if part.concurrency is None else part.concurrency,
        "" if budget is None else nanodollars(budget, ROUND_FLOOR),
        "" if part.tokens_per_day is None else part.tokens_per_day,
        "1" if part.shadow else "",
        *_bucket(part.requests),
        *_bucket(part.tokens),
    )


def _bucket(limit: Limit | None) -> tuple[Value, Value]:
    return ("", "") if limit is None else (limit.rate, limit.burst)


def _milliseconds(seconds: float) -> int:
    return max(1, ceil(seconds * 1000))


def nanodollars(usd: Decimal, rounding: str = ROUND_CEILING) -> int:
    """Whole ones, so that sums are exact; a part of one counts as one."""
    return int(usd.scaleb(9).to_integral_value(rounding))


def _verdict(scope: Scope, answer: _Answer) -> Verdict:
    verdict, wait_ms, what, number, shadows, rooms = answer
    tomorrow_s = rooms[-1] / 1000
    states = tuple(_state(part, rooms[6 * index : 6 * index + 6], tomorrow_s) for index, part in enumerate(scope.parts))
    if verdict == b"wait":
        return Wait(wait_ms / 1000, what.decode(), scope.parts[number - 1].name, states)
    if verdict == b"exhausted":
        return Exhausted("usd_per_month", _end_of(what.decode()), scope.parts[number - 1].name, states)
    would = tuple(
        Shadow(cast(bytes, limit).decode(), scope.parts[int(part) - 1].kind, scope.parts[int(part) - 1].name)
        for limit, part in zip(shadows[::2], shadows[1::2], strict=True)
    )
    return Granted(verdict == b"duplicate", states, would)


def _state(part: Part, figures: list[int], tomorrow_s: float) -> State:
    requests, requests_full_ms, tokens, tokens_full_ms, today, places = figures
    return State(
        part=part,
        requests=_room(part.requests, requests, requests_full_ms),
        tokens=_room(part.tokens, tokens, tokens_full_ms),
        today=None if part.tokens_per_day is None else Room(part.tokens_per_day, today, tomorrow_s),
        places=None if part.concurrency is None else places,
    )


def _room(limit: Limit | None, remaining: int, full_in_ms: int) -> Room | None:
    return None if limit is None else Room(int(limit.burst), remaining, full_in_ms / 1000)


def _tightest(states: Sequence[State]) -> Rooms:
    """A shadow leaves as much room as there is."""
    if not states:
        return Rooms()
    enforced = [state for state in states if not state.part.shadow]
    tokens = [room for state in enforced for room in (state.tokens, state.today)]
    return Rooms(_least(state.requests for state in enforced), _least(tokens))


def _least(rooms: Iterable[Room | None]) -> Room | None:
    there = [room for room in rooms if room is not None]
    return min(there, key=lambda room: (room.remaining, -room.full_in_s), default=None)


def _end_of(month: str) -> float:
    year, number = (int(part) for part in month.split("-"))
    return datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp()
