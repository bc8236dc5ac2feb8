"""What quotas promise, on a real Valkey and its clock."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from time import monotonic
from typing import cast

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from policies.deployments import Deployment, Limits, Tier
from policies.pricing import Usage
from policies.quota import (
    Exhausted,
    Granted,
    Kind,
    Quotas,
    Rooms,
    Scope,
    Shadow,
    Wait,
    deployment_scope,
    tenant_scope,
)
from policies.scripts import Scripts
from policies.tenants import Tenant
from tests.builders import until

NOTHING = Limits()
EVERYTHING = Limits(
    requests_per_minute=60, tokens_per_minute=100, tokens_per_day=100, concurrency=10, usd_per_month=Decimal(9)
)


@pytest.fixture
def quotas(redis: "Redis") -> Quotas:
    return Quotas(Scripts(redis))


def a_tenant(limits: Limits, name: str = "acme") -> Scope:
    return tenant_scope(Tenant(name, limits))


def with_parts(own: Limits, *, model: Limits = NOTHING, key: Limits = NOTHING) -> Scope:
    """A tenant's own limits, those at a deployment, and those of the API key `ci`."""
    tenant = Tenant("acme", own, key_limits={"ci": key}, model_limits={"small": model})
    return tenant_scope(tenant, deployment="small", key="ci")


def a_deployment(limits: Limits) -> Scope:
    return deployment_scope(Deployment("small", "echo", "small", Tier.LIGHT, limits=limits))


@dataclass
class Ask:
    """Reserves with everything a test is not about filled in."""

    quotas: Quotas
    scope: Scope

    async def __call__(
        self, rid: str, *, tokens: int = 1, usd: Decimal | None = None, hold_s: float = 60.0, wants: str = ""
    ) -> Granted | Wait | Exhausted:
        return await self.quotas.reserve(self.scope, rid, tokens=tokens, usd=usd, hold_s=hold_s, ttl_s=600, wants=wants)


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
    assert isinstance(await ask("j:2", tokens=50), Wait)


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
        Limits(tokens_per_day=0.5),
    ],
)
def test_a_limit_that_would_stop_everything_is_refused_before_it_reaches_redis(limits: Limits) -> None:
    with pytest.raises(ValueError, match="must be"):
        a_tenant(limits)


async def test_all_keys_of_a_scope_lie_in_one_slot_and_expire(quotas: Quotas, redis: "Redis") -> None:
    limits = replace(EVERYTHING, usd_per_month=Decimal(1))
    tenant, deployment = a_tenant(limits), a_deployment(limits)

    for scope in (tenant, deployment):
        await Ask(quotas, scope)("j:1", usd=Decimal("0.1"))
        keys = cast("list[bytes]", await redis.keys(f"{scope.slot}*"))
        assert {key_slot(key) for key in keys} == {key_slot(scope.slot.encode())}
        assert all([await redis.pttl(key) > 0 for key in keys])
    assert len(await redis.keys()) == 2 * 7


# Several parts


async def test_a_scope_has_the_parts_that_are_limited() -> None:
    tenant = Tenant(
        "acme", EVERYTHING, key_limits={"ci": EVERYTHING, "free": Limits()}, model_limits={"small": EVERYTHING}
    )

    def parts(**which: str) -> list[Kind]:
        return [part.kind for part in tenant_scope(tenant, **which).parts]

    assert parts() == [Kind.TENANT]
    assert parts(deployment="other", key="free") == [Kind.TENANT]
    assert parts(deployment="small", key="ci") == [Kind.TENANT, Kind.MODEL, Kind.KEY]
    assert (
        tenant_scope(Tenant("acme", key_limits={"ci": EVERYTHING}), key="ci").parts[0].name == "key ci of tenant acme"
    )


@pytest.mark.parametrize("which", ["own", "model", "key"])
@pytest.mark.parametrize(
    ("limit", "limits"),
    [
        ("requests_per_minute", Limits(requests_per_minute=1)),
        ("tokens_per_minute", Limits(tokens_per_minute=10)),
        ("tokens_per_day", Limits(tokens_per_day=10)),
        ("concurrency", Limits(concurrency=1)),
        ("usd_per_month", Limits(usd_per_month=Decimal("0.01"))),
    ],
)
async def test_what_one_part_refuses_is_taken_of_none(
    quotas: Quotas, redis: "Redis", which: str, limit: str, limits: Limits
) -> None:
    scope = with_parts(**{"own": EVERYTHING, "model": EVERYTHING, "key": EVERYTHING, which: limits})
    ask = Ask(quotas, scope)
    await ask("j:1", tokens=10, usd=Decimal("0.01"))
    before = await contents(redis)

    verdict = await ask("j:2", tokens=10, usd=Decimal("0.01"))

    assert isinstance(verdict, Wait | Exhausted)
    assert verdict.limit == limit
    assert verdict.scope == {"own": "tenant acme", "model": "model small of tenant acme"}.get(
        which, "key ci of tenant acme"
    )
    assert await contents(redis) == before
    await quotas.refund(scope, "j:1")
    assert isinstance(await ask("j:2", tokens=10, usd=Decimal("0.01")), Granted)


async def test_keys_do_not_take_from_each_other_and_both_take_from_the_tenant(quotas: Quotas) -> None:
    tenant = Tenant("acme", Limits(concurrency=3), key_limits=dict.fromkeys(["ci", "web"], Limits(concurrency=2)))
    ci, web = (Ask(quotas, tenant_scope(tenant, key=key)) for key in ("ci", "web"))

    verdicts = [await ci("j:1"), await ci("j:2"), await ci("j:3"), await web("j:4"), await web("j:5")]

    assert [isinstance(verdict, Granted) for verdict in verdicts] == [True, True, False, True, False]
    assert verdicts[2] == Wait(0.25, "concurrency", "key ci of tenant acme")
    assert verdicts[4] == Wait(0.25, "concurrency", "tenant acme")


async def test_all_parts_are_settled_and_renewed(quotas: Quotas, redis: "Redis") -> None:
    scope = with_parts(EVERYTHING, model=EVERYTHING, key=EVERYTHING)
    ask = Ask(quotas, scope)
    await ask("j:1", tokens=90, usd=Decimal(1), hold_s=0.2)
    await quotas.renew(scope, "j:1", hold_s=60)

    leases = [await redis.zscore(f"{part.key}:leases", "j:1") or 0.0 for part in scope.parts]
    await quotas.settle(scope, "j:1", tokens=10, usd=Decimal("0.25"))

    assert min(leases) > 1000 * (await redis.time())[0] + 50_000
    for part in scope.parts:
        assert await redis.zcard(f"{part.key}:leases") == 0
        assert await redis.hvals(f"{part.key}:usd") == [b"250000000"]
        assert await redis.hvals(f"{part.key}:day") == [b"10"]
    assert isinstance(await ask("j:2", tokens=90), Granted)
    assert await redis.keys("*held:j:1") == []


async def test_the_rooms_are_those_of_the_tightest_part(quotas: Quotas) -> None:
    slow = 60 * 100 * 100.0
    own = Limits(requests_per_minute=0.01, tokens_per_minute=0.01, burst_s=slow)
    key = Limits(requests_per_minute=0.005, tokens_per_minute=1, burst_s=slow)
    model = Limits(requests_per_minute=1, tokens_per_day=60, burst_s=slow)
    hidden = Limits(requests_per_minute=0.0001, tokens_per_minute=0.0001, burst_s=slow, shadow=True)
    ask = Ask(quotas, with_parts(own, model=model, key=key))

    rooms = (await ask("j:1", tokens=30)).rooms
    refused = (await ask("j:2", tokens=31)).rooms
    unshown = (await Ask(quotas, a_tenant(hidden, "other"))("j:1", tokens=30)).rooms

    assert rooms.requests is not None and rooms.tokens is not None
    assert (rooms.requests.limit, rooms.requests.remaining) == (50, 49)
    assert (rooms.tokens.limit, rooms.tokens.remaining) == (60, 30)
    assert refused.requests is not None and refused.tokens is not None
    assert (refused.requests.remaining, refused.tokens.remaining) == (49, 30)
    assert unshown == Rooms()


# Shadows


async def test_a_shadow_refuses_nothing_and_says_what_it_would_have(quotas: Quotas) -> None:
    ask = Ask(quotas, with_parts(Limits(requests_per_minute=2, shadow=True), key=Limits(concurrency=1, shadow=True)))

    verdicts = [await ask(f"j:{n}") for n in range(3)]

    own = Shadow("requests_per_minute", Kind.TENANT, "tenant acme")
    key = Shadow("concurrency", Kind.KEY, "key ci of tenant acme")
    assert verdicts == [Granted(), Granted(shadows=(key,)), Granted(shadows=(own, key))]
    assert await ask("j:2") == Granted(duplicate=True)  # counted once


async def test_a_shadow_moves_as_if_what_it_refuses_were_refused(quotas: Quotas, redis: "Redis") -> None:
    limits = Limits(tokens_per_minute=100, tokens_per_day=1000, usd_per_month=Decimal(1), concurrency=5, shadow=True)
    scope = a_tenant(limits)
    ask = Ask(quotas, scope)
    await ask("j:1", tokens=60, usd=Decimal("0.5"))
    before = await redis.zcard("{t:acme}:quota:leases"), await spent(redis)

    large = await ask("j:2", tokens=90, usd=Decimal("0.1"))
    dear = await ask("j:3", tokens=1, usd=Decimal("0.6"))
    await quotas.settle(scope, "j:2", tokens=1000, usd=Decimal(1))
    after = await redis.zcard("{t:acme}:quota:leases"), await spent(redis)
    small = await ask("j:4", tokens=40, usd=Decimal("0.1"))

    assert [shadow.limit for shadow in large.shadows + dear.shadows] == ["tokens_per_minute", "usd_per_month"]  # type: ignore[union-attr]
    assert after == before == (1, Decimal("0.5"))
    assert small == Granted()


async def test_a_shadow_beside_an_enforced_part_takes_nothing_when_that_refuses(quotas: Quotas) -> None:
    scope = with_parts(Limits(concurrency=1), key=Limits(requests_per_minute=2, shadow=True))
    ask = Ask(quotas, scope)
    await ask("j:1")

    refused = [await ask(f"j:{n}") for n in range(2, 9)]
    await quotas.settle(scope, "j:1", tokens=1, usd=None)

    assert all(isinstance(verdict, Wait) for verdict in refused)
    assert await ask("j:9") == Granted()


# How a provider counts


def test_what_a_provider_counts_is_not_what_it_charges() -> None:
    usage = Usage(input=100, cache_read=50, cache_write=10, output=7)

    assert a_deployment(Limits(tokens_per_minute=1)).counted(usage) == 167
    assert a_deployment(Limits(tokens_per_minute=1, output_burndown=5)).counted(usage) == 195
    assert a_deployment(Limits(tokens_per_minute=1, cache_reads_count=False)).counted(usage) == 117
    assert a_tenant(EVERYTHING).counted(usage) == usage.total


# Concurrency


async def test_the_next_place_is_kept_for_who_has_had_none_for_long(quotas: Quotas, redis: "Redis") -> None:
    scope = a_deployment(Limits(concurrency=2))
    ask = Ask(quotas, scope)
    await ask("many:1")
    await ask("many:2")

    none_left = await ask("few:1", wants="few")
    await redis.zadd(f"{scope.parts[0].key}:wanted", {"few": 1e14}, xx=True)  # it looks again in time, however late
    await quotas.refund(scope, "many:1")
    kept = await ask("many:3")
    got = await ask("few:1", wants="few")
    await quotas.refund(scope, "many:2")

    assert none_left == Wait(0.25, "concurrency", "deployment small")
    assert kept == none_left and isinstance(kept, Wait) and kept.states[0].places == 0
    assert isinstance(got, Granted)
    assert isinstance(await ask("many:3"), Granted)


async def test_a_place_is_not_kept_for_who_asks_no_more(quotas: Quotas) -> None:
    scope = a_deployment(Limits(concurrency=1))
    ask = Ask(quotas, scope)
    await ask("many:1")
    await ask("few:1", wants="few")
    await quotas.refund(scope, "many:1")

    async def is_there() -> bool:
        return isinstance(await ask("many:2"), Granted)

    await until(is_there)


async def test_who_looks_takes_nothing(quotas: Quotas, redis: "Redis") -> None:
    scope = a_deployment(Limits(requests_per_minute=1, tokens_per_minute=60_000, concurrency=1))
    before = await contents(redis)

    looks = [await quotas.look(scope, tokens=10, usd=None) for _ in range(2)]

    assert all(isinstance(look, Granted) for look in looks)
    assert await contents(redis) == before
    await Ask(quotas, scope)("a")
    refused = await quotas.look(scope.without_places, tokens=10, usd=None)
    assert isinstance(refused, Wait) and refused.limit == "requests_per_minute"


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


async def test_a_reservation_whose_place_was_given_away_waits_for_another(quotas: Quotas, redis: "Redis") -> None:
    scope = a_tenant(Limits(concurrency=1, tokens_per_minute=100))
    ask = Ask(quotas, scope)
    await ask("slow:1", tokens=100, hold_s=0.05)
    until = monotonic() + 10
    while not isinstance(await ask("quick:1", tokens=0), Granted):
        assert monotonic() < until
        await asyncio.sleep(0.01)

    again = await ask("slow:1", tokens=100)
    await quotas.settle(scope, "quick:1", tokens=0, usd=None)

    assert again == Wait(0.25, "concurrency", "tenant acme")
    assert await ask("slow:1", tokens=100) == Granted(duplicate=True)


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


async def test_dollars_are_exact_to_the_nanodollar_however_many_they_are(quotas: Quotas, redis: "Redis") -> None:
    scope = a_tenant(Limits(usd_per_month=Decimal(1_000_000)))

    await Ask(quotas, scope)("j:1", usd=Decimal("123456.789012345"))
    reserved = await spent(redis)
    await quotas.settle(scope, "j:1", tokens=1, usd=Decimal("654321.098765432"))

    assert reserved == Decimal("123456.789012345")
    assert await spent(redis) == Decimal("654321.098765432")


async def test_an_unknown_price_reserves_nothing_and_leaves_what_was_reserved(quotas: Quotas, redis: "Redis") -> None:
    scope = a_tenant(Limits(usd_per_month=Decimal(1)))
    ask = Ask(quotas, scope)

    await ask("j:1", usd=Decimal(1))
    unknown = await ask("j:2", usd=None)
    await quotas.settle(scope, "j:1", tokens=1, usd=None)
    await quotas.settle(scope, "j:2", tokens=1, usd=None)

    assert isinstance(unknown, Granted)
    assert await spent(redis) == Decimal(1)


async def test_what_ran_on_a_lost_board_is_counted_once_in_budgets_and_days_and_costs_no_rate(
    quotas: Quotas, redis: "Redis"
) -> None:
    scope = with_parts(EVERYTHING, key=Limits(tokens_per_day=50), model=Limits(requests_per_minute=60))

    for _ in range(2):
        await quotas.count_unreserved(scope, "job.1", tokens=7, usd=Decimal("0.25"))

    ask = Ask(quotas, scope)
    assert isinstance(await ask("next", tokens=43, usd=Decimal("8.75")), Granted)
    assert isinstance(await ask("more", tokens=1), Wait)
    assert await redis.hvals("{t:acme}:quota:usd") == [b"9000000000"]


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


async def a_process(redis_url: str, opened: AsyncExitStack) -> Quotas:
    """Quotas over a connection of their own, as another process has them."""
    return Quotas(Scripts(await opened.enter_async_context(Redis.from_url(redis_url))))


async def test_a_forgotten_script_is_loaded_again(quotas: Quotas, redis: "Redis") -> None:
    ask = Ask(quotas, a_tenant(Limits(concurrency=2)))
    await ask("j:1")
    await redis.script_flush()

    assert isinstance(await ask("j:2"), Granted)
