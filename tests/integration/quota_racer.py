"""A process that competes for quota with others, for the test of the race.

Arguments: redis url, name, workers, seconds, the month's dollars. Prints a JSON line for each grant, each end, and at
last how many refusals there were. Moments are of the machine's monotonic clock, which all its processes share.
"""

import asyncio
import json
import random
import sys
from decimal import Decimal
from functools import partial
from time import monotonic

from redis.asyncio import Redis

from policies.deployments import Deployment, Limits, Tier
from policies.quota import Exhausted, Granted, Quotas, Scope, Wait, deployment_scope, tenant_scope
from policies.scripts import Scripts
from policies.tenants import Tenant

CONCURRENCY, DEPLOYMENTS_CONCURRENCY, WEBS_CONCURRENCY = 8, 7, 3
RPM, TPM, BURST_S = 3600.0, 1_500_000.0, 1.0
HOLD_S, TTL_S = 3.0, 600.0

PLENTY = Decimal(1000)
DEPLOYMENT = Deployment(
    "small",
    "echo",
    "small",
    Tier.LIGHT,
    limits=Limits(concurrency=DEPLOYMENTS_CONCURRENCY, tokens_per_day=10**9, requests_per_minute=100_000),
)


def scopes(key: str, budget: Decimal = PLENTY) -> tuple[Scope, Scope]:
    """What a call with this key needs quota of."""
    tenant = Tenant(
        "acme",
        Limits(requests_per_minute=RPM, concurrency=CONCURRENCY, usd_per_month=budget, burst_s=BURST_S),
        key_limits={"web": Limits(concurrency=WEBS_CONCURRENCY), "ci": Limits(requests_per_minute=100_000)},
        model_limits={"small": Limits(tokens_per_minute=TPM, tokens_per_day=10**9, burst_s=BURST_S)},
    )
    return tenant_scope(tenant, deployment="small", key=key), deployment_scope(DEPLOYMENT)


async def compete(quotas: Quotas, name: str, worker: int, until: float, budget: Decimal) -> int:
    """Reserve, hold and settle until then, some of it twice; returns how often that was refused.

    Where a budget may be used up, nothing uses more than was estimated.
    """
    dice = random.Random(f"{name} {worker}")
    both, job, refused = scopes("web" if name == "2" else "ci", budget), 0, 0
    while monotonic() < until:
        job += 1
        rid, estimate, used = f"{name}-{worker}-{job}:1", dice.randint(10, 600), dice.randint(0, 700)
        used = used if budget == PLENTY else min(used, estimate)
        usd = Decimal(estimate).scaleb(-6)
        ask = partial(quotas.reserve_both, *both, rid, tokens=estimate, usd=usd, hold_s=HOLD_S, ttl_s=TTL_S)
        verdict = await ask()
        if isinstance(verdict, Wait):
            refused += 1
            await asyncio.sleep(min(verdict.seconds, max(0.0, until - monotonic())))
            continue
        if isinstance(verdict, Exhausted):  # others may give something back
            refused += 1
            await asyncio.sleep(0.05)
            continue
        assert isinstance(verdict, Granted)
        _say(rid=rid, granted=monotonic(), estimate=estimate)
        if dice.random() < 0.2:
            assert isinstance(await ask(), Granted)
        await asyncio.sleep(dice.uniform(0.02, 0.2))
        _say(rid=rid, ended=monotonic(), used=used)
        for scope in dice.choice([both, both, both * 2]):
            await quotas.settle(scope, rid, tokens=used, usd=Decimal(used).scaleb(-6))
    return refused


async def _main() -> None:
    url, name, workers, seconds, budget = sys.argv[1:]
    until = monotonic() + float(seconds)
    async with Redis.from_url(url) as redis:
        quotas = Quotas(Scripts(redis))
        competing = (compete(quotas, name, worker, until, Decimal(budget)) for worker in range(int(workers)))
        refused = await asyncio.gather(*competing)
    _say(refused=sum(refused))


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
