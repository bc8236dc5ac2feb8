"""The scripts of quotas against their model in plain Python, on a real Valkey: random calls at times that are given."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha1

import pytest
from redis.asyncio import Redis

from policies import bucket
from policies.bucket import Level, Limit, Short, Taken
from policies.deployments import Limits
from policies.quota import Exhausted, Granted, Kind, Part, Quotas, Scope, Wait, tenant_scope
from policies.scripts import Script, Scripts, Value
from policies.tenants import Tenant

SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_796_000_000 * SECOND
NANO = 10**9

Answer = list[object]


@pytest.mark.parametrize("seed", range(30))
async def test_the_scripts_do_what_the_model_does(redis: "Redis", seed: int) -> None:
    dice = random.Random(seed)
    scope = _a_random_scope(dice)
    model, scripts = _Model(scope), _TimedScripts(redis)
    quotas = Quotas(scripts)
    now, rids = START, [f"j:{n}" for n in range(12)]

    for step in range(250):
        now += dice.choice([0, 1, 999, dice.randint(0, SECOND), dice.randint(0, 40 * SECOND), -dice.randint(0, SECOND)])
        if dice.random() < 0.01:
            now -= 100 * SECOND  # a clock that was wrong is put right
        if dice.random() < 0.02:
            now += DAY // 3
        scripts.now = now
        rid = dice.choice(rids)
        match dice.choices(["reserve", "settle", "refund", "renew"], [60, 25, 10, 5])[0]:
            case "reserve":
                ask = _Reservation(
                    rid, dice.randint(0, 200), dice.choice([None, dice.randint(0, 10**8)]), dice.randint(1, 90_000)
                )
                expected = model.reserve(ask, now)
                usd = None if ask.nano is None else Decimal(ask.nano) / NANO
                await quotas.reserve(scope, rid, tokens=ask.tokens, usd=usd, hold_s=ask.hold_ms / 1000, ttl_s=10**6)
            case "settle":
                tokens, nano = dice.randint(0, 300), dice.choice([None, dice.randint(0, 10**8)])
                expected = model.settle(rid, 1, tokens, nano, now)
                await quotas.settle(scope, rid, tokens=tokens, usd=None if nano is None else Decimal(nano) / NANO)
            case "refund":
                expected = model.settle(rid, 0, 0, 0, now)
                await quotas.refund(scope, rid)
            case _:
                hold_ms = dice.randint(1, 90_000)
                expected = model.renew(rid, hold_ms, now)
                scripts.answer = [1] if expected == [1] else [0]  # where no places are counted nothing is asked
                await quotas.renew(scope, rid, hold_s=hold_ms / 1000)

        assert scripts.answer == expected, f"seed {seed}, step {step}"


async def test_a_redis_that_stood_still_ends_no_place_whose_holder_lives_and_frees_those_of_the_dead(
    redis: "Redis",
) -> None:
    scripts = _TimedScripts(redis, START)
    quotas, scope = Quotas(scripts), tenant_scope(Tenant("acme", Limits(concurrency=2)))
    asks = {"tokens": 1, "usd": None, "hold_s": 40.0, "ttl_s": 10**6}

    async def ask(rid: str, at_s: float) -> Granted | Wait | Exhausted:
        scripts.now = START + int(at_s * SECOND)
        return await quotas.reserve(scope, rid, **asks)  # type: ignore[arg-type]

    await ask("alive:1", 0)
    await ask("dead:1", 0)
    waiting = [await ask("next:1", 66 + second / 4) for second in range(24)]  # it was stopped for a minute
    scripts.now = START + 72 * SECOND
    await quotas.renew(scope, "alive:1", hold_s=40)
    waiting += [await ask("next:1", 72 + second / 4) for second in range(64)]
    freed, full = await ask("next:1", 88.1), await ask("other:1", 88.2)

    assert all(isinstance(each, Wait) for each in [*waiting, full])
    assert isinstance(freed, Granted)


async def test_a_dead_holders_place_is_free_in_time_where_others_ask(redis: "Redis") -> None:
    scripts = _TimedScripts(redis, START)
    quotas, scope = Quotas(scripts), tenant_scope(Tenant("acme", Limits(concurrency=1)))
    asks = {"tokens": 1, "usd": None, "hold_s": 40.0, "ttl_s": 10**6}
    await quotas.reserve(scope, "dead:1", **asks)  # type: ignore[arg-type]

    verdicts = []
    for second in range(1, 42):
        scripts.now = START + second * SECOND
        verdicts.append(await quotas.reserve(scope, "next:1", **asks))  # type: ignore[arg-type]

    assert [isinstance(each, Granted) for each in verdicts] == [False] * 39 + [True, True]


async def test_a_dead_holders_place_is_free_in_time_where_nobody_asks_and_a_sweeper_lives(redis: "Redis") -> None:
    scripts = _TimedScripts(redis, START)
    quotas, scope = Quotas(scripts), tenant_scope(Tenant("acme", Limits(concurrency=1)))
    asks = {"tokens": 1, "usd": None, "hold_s": 40.0, "ttl_s": 10**6}
    await quotas.reserve(scope, "dead:1", **asks)  # type: ignore[arg-type]

    for second in range(3, 60, 3):
        scripts.now = START + second * SECOND
        await quotas.watch(scope)

    assert isinstance(await quotas.reserve(scope, "next:1", **asks), Granted)  # type: ignore[arg-type]


async def test_a_day_starts_with_nothing_used_and_a_job_is_settled_in_its_own(redis: "Redis") -> None:
    scripts = _TimedScripts(redis)
    quotas, scope = Quotas(scripts), tenant_scope(Tenant("acme", Limits(tokens_per_day=1000)))
    turn = START - START % DAY + DAY

    async def ask(rid: str, tokens: int, now: int) -> Granted | Wait | Exhausted:
        scripts.now = now
        return await quotas.reserve(scope, rid, tokens=tokens, usd=None, hold_s=60, ttl_s=10**6)

    before = await ask("old:1", 900, turn - 10 * SECOND)
    refused = await ask("late:1", 101, turn - 10 * SECOND)
    after = await ask("new:1", 1000, turn)
    await quotas.settle(scope, "old:1", tokens=400, usd=None)

    assert isinstance(before, Granted) and isinstance(after, Granted)
    assert refused == Wait(10.0, "tokens_per_day", "tenant acme")
    assert refused.rooms.tokens is not None
    assert (refused.rooms.tokens.remaining, refused.rooms.tokens.full_in_s) == (100, 10.0)
    assert await redis.hvals("{t:acme}:quota:day") == [b"400", b"1000"]


async def test_a_job_of_more_than_a_day_has_runs_on_a_day_of_its_own(redis: "Redis") -> None:
    scripts = _TimedScripts(redis, START)
    quotas, scope = Quotas(scripts), tenant_scope(Tenant("acme", Limits(tokens_per_day=1000)))
    asks = {"usd": None, "hold_s": 60.0, "ttl_s": 600.0}

    large = await quotas.reserve(scope, "j:1", tokens=5000, **asks)  # type: ignore[arg-type]
    small = await quotas.reserve(scope, "j:2", tokens=1, **asks)  # type: ignore[arg-type]

    assert isinstance(large, Granted)
    assert isinstance(small, Wait)


async def test_the_month_of_the_script_is_the_calendars(redis: "Redis") -> None:
    days = [datetime(2023, 12, 31, tzinfo=UTC) + timedelta(days=n) for n in range(0, 366 * 5)]
    days += [datetime(year, month, 1, tzinfo=UTC) for year in (2000, 2099, 2100, 2101, 2200) for month in (1, 2, 3, 12)]
    moments = [day + shift for day in days for shift in (timedelta(0), timedelta(microseconds=-1))]
    functions = Script.load("policies", "quota_functions")
    text = (
        functions.text
        + """
    local months = {}
    for i, moment in ipairs(ARGV) do months[i] = quota_month(tonumber(moment)) end
    return months"""
    )

    months = await redis.eval(text, 0, *(_microseconds(moment) for moment in moments))

    assert months == [moment.strftime("%Y-%m").encode() for moment in moments]


async def test_a_month_starts_with_nothing_spent_and_a_job_is_settled_in_its_own(redis: "Redis") -> None:
    scripts = _TimedScripts(redis)
    quotas, scope = Quotas(scripts), tenant_scope(Tenant("acme", Limits(usd_per_month=Decimal(1))))
    turn = _microseconds(datetime(2026, 12, 1, tzinfo=UTC))

    async def ask(rid: str, usd: Decimal, now: int) -> Granted | Wait | Exhausted:
        scripts.now = now
        return await quotas.reserve(scope, rid, tokens=1, usd=usd, hold_s=1, ttl_s=10**6)

    before = await ask("old:1", Decimal(1), turn - 1)
    refused = await ask("late:1", Decimal("0.000000001"), turn - 1)
    after = await ask("new:1", Decimal(1), turn)
    await quotas.settle(scope, "old:1", tokens=1, usd=Decimal("0.4"))

    assert isinstance(before, Granted) and isinstance(after, Granted)
    assert refused == Exhausted("usd_per_month", turn / SECOND, "tenant acme")
    assert await redis.hgetall("{t:acme}:quota:usd") == {b"2026-11": b"400000000", b"2026-12": b"1000000000"}


@pytest.mark.parametrize(("field", "limits"), [("usd", {"usd_per_month": Decimal(1)}), ("day", {"tokens_per_day": 9})])
async def test_no_more_than_two_periods_are_kept(redis: "Redis", field: str, limits: dict[str, object]) -> None:
    scripts = _TimedScripts(redis)
    quotas, scope = Quotas(scripts), tenant_scope(Tenant("acme", Limits(**limits)))  # type: ignore[arg-type]
    step = timedelta(days=31 if field == "usd" else 1)

    for n in range(5):
        scripts.now = _microseconds(datetime(2026, 10, 15, tzinfo=UTC) + n * step)
        await quotas.reserve(scope, f"j:{n}", tokens=1, usd=Decimal("0.1"), hold_s=1, ttl_s=10**6)

    kept = sorted(await redis.hkeys(f"{{t:acme}}:quota:{field}"))
    assert kept == ([b"2027-01", b"2027-02"] if field == "usd" else [b"20744", b"20745"])


@dataclass(frozen=True)
class _Reservation:
    rid: str
    tokens: int
    nano: int | None
    hold_ms: int


class _TimedScripts(Scripts):
    """Runs the scripts of quotas at the time that the test says, and keeps what they answered."""

    def __init__(self, redis: "Redis", now: int = START) -> None:
        super().__init__(redis)
        self.now = now
        self.answer: Answer = []
        self._timed: dict[str, Script] = {}

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Value], *, durable: bool = False) -> object:
        answer = await super().run(self._at_a_given_time(script), keys, [*args, self.now], durable=durable)
        self.answer = answer if isinstance(answer, list) else [answer]
        return answer

    def _at_a_given_time(self, script: Script) -> Script:
        if script.name not in self._timed:
            functions, _, call = script.text.rpartition("quota_now()")
            text = f"{functions}tonumber(table.remove(ARGV)){call}"
            sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
            self._timed[script.name] = replace(script, text=text, sha=sha)
        return self._timed[script.name]


@dataclass
class _Judged:
    """What a part says to one call."""

    wait: int = 0
    why: bytes = b""
    exhausted: bool = False
    taken: dict[str, Taken] = field(default_factory=dict)
    takes_place: bool = False

    @property
    def refuses(self) -> bool:
        return self.wait > 0 or self.exhausted


@dataclass
class _Held:
    """What a reservation took of a part."""

    amounts: dict[str, float]
    day: int
    tokens: int
    month: str
    nano: int


class _PartModel:
    """One part, from the plain functions of `policies.bucket`."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.limits = {"requests_per_minute": part.requests, "tokens_per_minute": part.tokens}
        self.levels: dict[str, Level] = {}
        self.leases: dict[str, int] = {}
        self.nano: dict[str, int] = {}
        self.days: dict[int, int] = {}
        self.held: dict[str, _Held] = {}
        self.still: tuple[int, int, int] | None = None

    def judge(self, ask: _Reservation, now: int, *, duplicate: bool) -> _Judged:
        said, now_ms = _Judged(), now // 1000
        held = ask.rid in self.held
        if self.part.concurrency is not None and (held or not duplicate):
            alive = self._alive(now_ms, self.since(now_ms))
            if not (held and ask.rid in alive):
                said.takes_place = True
                if len(alive) >= self.part.concurrency:
                    left = min(alive.values()) - now_ms
                    said.wait, said.why = min(250, left if left > 0 else 250), b"concurrency"
        if duplicate:
            return said
        for name, limit in self.limits.items():
            if limit is None:
                continue
            cost = 1 if name == "requests_per_minute" else ask.tokens
            match bucket.take(limit, self.levels.get(name), cost, now):
                case Taken() as granted:
                    said.taken[name] = granted
                case Short(ms) if ms > said.wait:
                    said.wait, said.why = ms, name.encode()
        most = self.part.tokens_per_day
        if most is not None and min(most, ask.tokens) > most - self.days.get(now // DAY, 0):
            ms = -(-(DAY - now % DAY) // 1000)
            if ms > said.wait:
                said.wait, said.why = ms, b"tokens_per_day"
        nano, budget = ask.nano or 0, self.part.usd_per_month
        said.exhausted = budget is not None and nano > 0 and self.nano.get(_month(now), 0) + nano > budget * NANO
        return said

    def take(self, ask: _Reservation, said: _Judged, now: int) -> None:
        self.levels |= {name: granted.level for name, granted in said.taken.items()}
        self.lease(ask.rid, ask.hold_ms, now)
        amounts = {name: granted.amount for name, granted in said.taken.items()}
        self.held[ask.rid] = _Held(amounts, now // DAY, ask.tokens, _month(now), ask.nano or 0)
        self.days[now // DAY] = self.days.get(now // DAY, 0) + ask.tokens
        self.nano[_month(now)] = self.nano.get(_month(now), 0) + (ask.nano or 0)

    def lease(self, rid: str, hold_ms: int, now: int) -> None:
        if self.part.concurrency is not None:
            self.leases = self._alive(now // 1000, self.since(now // 1000)) | {rid: now // 1000 + hold_ms}

    def settle(self, rid: str, requests: int, tokens: int, nano: int | None, now: int) -> None:
        self.leases.pop(rid, None)
        held = self.held.pop(rid, None)
        if held is None:
            return
        for name, used in (("requests_per_minute", requests), ("tokens_per_minute", tokens)):
            limit = self.limits[name]
            if limit is not None and held.amounts[name] != used:
                self.levels[name] = bucket.settle(limit, self.levels.get(name), held.amounts[name], used, now)
        self.days[held.day] += tokens - held.tokens
        if nano is not None:
            self.nano[held.month] += nano - held.nano

    def rooms(self, now: int) -> list[int]:
        rooms: list[int] = []
        for name, limit in self.limits.items():
            if limit is None:
                rooms += [0, 0]
                continue
            level = bucket.refilled(limit, self.levels.get(name), now)
            rooms += [bucket.remaining(level), bucket.full_in_ms(limit, level, now)]
        most, places = self.part.tokens_per_day, self.part.concurrency
        rooms.append(0 if most is None else max(0, most - self.days.get(now // DAY, 0)))
        rooms.append(0 if places is None else max(0, places - len(self._alive(now // 1000, self.since(now // 1000)))))
        return rooms

    def since(self, now_ms: int) -> int:
        """After which moment a lease must end to count: when nobody was heard for long, Redis stood still."""
        at, since, until = self.still or (now_ms, 0, 0)
        stood = now_ms - at > 15_000
        if stood:
            since, until = at, now_ms + 22_000
        if self.still is None or stood or not 0 <= now_ms - at < 1000:
            self.still = now_ms, since, until
        return min(since, now_ms) if 0 < until - now_ms <= 22_000 else now_ms

    def _alive(self, now_ms: int, since: int) -> dict[str, int]:
        return {rid: until for rid, until in self.leases.items() if until > since}


class _Model:
    """A scope: all of its parts or none, but for the shadows, which are asked alone."""

    def __init__(self, scope: Scope) -> None:
        self.parts = [_PartModel(part) for part in scope.parts]
        self.reservations: set[str] = set()

    def reserve(self, ask: _Reservation, now: int) -> Answer:
        duplicate = ask.rid in self.reservations
        said = [part.judge(ask, now, duplicate=duplicate) for part in self.parts]
        enforced = [(n, each) for n, each in enumerate(said, 1) if not self.parts[n - 1].part.shadow]
        for n, each in enforced:
            if each.exhausted:
                return [b"exhausted", 0, _month(now).encode(), n, [], self._rooms(now)]
        n, longest = max(enforced, key=lambda each: each[1].wait, default=(0, _Judged()))
        if longest.wait:
            return [b"wait", longest.wait, longest.why, n, [], self._rooms(now)]
        shadows: list[object] = []
        for n, (part, each) in enumerate(zip(self.parts, said, strict=True), 1):
            if each.refuses:
                shadows += [] if duplicate else [b"usd_per_month" if each.exhausted else each.why, n]
            elif not duplicate:
                part.take(ask, each, now)
            elif ask.rid in part.held:
                part.lease(ask.rid, ask.hold_ms, now)
        self.reservations.add(ask.rid)
        return [b"duplicate" if duplicate else b"granted", 0, b"", 0, shadows, self._rooms(now)]

    def settle(self, rid: str, requests: int, tokens: int, nano: int | None, now: int) -> Answer:
        for part in self.parts:
            part.settle(rid, requests, tokens, nano, now)
        there = rid in self.reservations
        self.reservations.discard(rid)
        return [int(there)]

    def renew(self, rid: str, hold_ms: int, now: int) -> Answer:
        for part in self.parts:
            if rid in part.held:
                part.lease(rid, hold_ms, now)
        return [int(rid in self.reservations)]

    def _rooms(self, now: int) -> list[int]:
        return [*(figure for part in self.parts for figure in part.rooms(now)), -(-(DAY - now % DAY) // 1000)]


def _month(now: int) -> str:
    return datetime.fromtimestamp(now // SECOND, UTC).strftime("%Y-%m")


def _a_random_scope(dice: random.Random) -> Scope:
    kinds = dice.choice([[Kind.DEPLOYMENT], [Kind.TENANT], [Kind.TENANT, Kind.MODEL], [Kind.TENANT, *Kind]])
    parts = [_a_random_part(dice, f"{{t:acme}}:quota:{n}", kind) for n, kind in enumerate(kinds)]
    return Scope("{t:acme}", tuple(parts))


def _a_random_part(dice: random.Random, key: str, kind: Kind) -> Part:
    def limit(most: float) -> Limit | None:
        return dice.choice([None, Limit(dice.uniform(0.01, most / 10), dice.uniform(1, most))])

    part = Part(
        key=key,
        kind=kind,
        name=f"{kind} {key}",
        requests=limit(8),
        tokens=limit(400),
        tokens_per_day=dice.choice([None, None, dice.randint(100, 5000)]),
        concurrency=dice.choice([None, dice.randint(1, 6)]),
        usd_per_month=dice.choice([None, Decimal(dice.randint(0, 10**9)).scaleb(-9)]),
        shadow=dice.random() < 0.3,
    )
    return _a_random_part(dice, key, kind) if part.is_unlimited else part  # such a part is left out


def _microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
