"""What the time of machines cost a tenant's jobs, microbatches and batches, out of the machines' bills."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

from redis.asyncio import Redis

from policies.pricing import picodollars
from policies.quota import tenant_slot
from policies.scripts import Script, Scripts, Value

MICROBATCH_MS, BATCH_MS = 8 * 86_400_000, 35 * 86_400_000

Kind = Literal["microbatch", "batch"]
Window = tuple[str, date]  # a deployment's machines, on a day


class MachineShares:
    """Adds bills up. Raises `BoardUnavailableError`."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._add = Script.load("router", "machine_shares")

    async def add(self, record: str) -> None:
        """The shares of a bill, as it is on the ledger: once, however often, when a machine's bills come in order."""
        bill = json.loads(record)
        day = datetime.fromtimestamp(bill["to_ms"] / 1000, UTC).date()
        window = f"{bill['deployment']}|{day.isoformat()}"
        by_tenant: dict[str, list[Value]] = defaultdict(list)
        for share in bill["shares"]:
            usd = picodollars(Decimal(share["usd"]))
            by_tenant[share["tenant"]] += [share["job"], share["attempt"], usd]
        woken_by = bill.get("woken_by") or {"tenant": "", "job": ""}
        tenants = dict.fromkeys([*by_tenant, *filter(None, [woken_by["tenant"]])])
        for tenant in tenants:
            prefix = f"{tenant_slot(tenant)}:"
            machine = f"{bill['deployment']}|{bill['replica']}"
            is_waker = tenant == woken_by["tenant"]
            wake: list[Value] = (
                [woken_by["job"], picodollars(Decimal(bill["idle_usd"]["warm_up"]))] if is_waker else ["", 0]
            )
            head: list[Value] = [prefix, machine, bill["from_ms"], window, MICROBATCH_MS, BATCH_MS]
            await self._scripts.run(self._add, [f"{prefix}machines:added"], [*head, *wake, *by_tenant[tenant]])


async def busy(redis: "Redis", tenant: str, kind: Kind, names: Sequence[str]) -> list[Mapping[Window, int]]:
    """What the calls of each used, in picodollars."""
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.hgetall(f"{tenant_slot(tenant)}:machines:{kind}:{name}")
    found: list[Any] = await pipeline.execute()
    return [{_window(field): int(value) for field, value in each.items()} for each in found]


def _window(field: bytes) -> Window:
    deployment, _, day = field.decode().rpartition("|")
    return deployment, date.fromisoformat(day)
