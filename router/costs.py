"""What was spent, from the board's rollups: exact sums of charge lines."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any, Literal

from redis.asyncio import Redis

from policies.machine_time import allocated
from policies.pricing import BY_UNIT, picodollars
from policies.quota import deployment_slot
from router.batches import Batch, Batches, BatchState
from router.machine_shares import Kind, Window, busy

By = Literal["microbatch", "tenant", "deployment", "lane", "day"]
DAYS_KEPT = 35
MICROBATCHES_SHOWN = 1000
BATCHES_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class OfMachines:
    """What of the machines of a deployment, on a day, is a row's; in picodollars.

    `busy` is what its calls used, `allocated` that and its share of the idle time, by what all calls used, `total` what
    the machines cost.
    """

    busy: int
    allocated: int = 0
    total: int = 0

    def and_of(self, other: "OfMachines") -> "OfMachines":
        """Of two rows together."""
        return OfMachines(self.busy + other.busy, self.allocated + other.allocated, max(self.total, other.total))


@dataclass(slots=True)
class Spent:
    """One row. `usd` is what is priced, `wasted` what of it bought no answer that a job has: failed, given up, late.

    `unpriced` counts the attempts that have no price. `machines` are dollars of machines' time, beside these, in a
    row of a batch or a microbatch.
    """

    name: str
    jobs: int = 0
    attempts: int = 0
    tokens: int = 0
    usd: Decimal = Decimal(0)
    wasted: Decimal = Decimal(0)
    unpriced: int = 0
    deployment: str = ""
    seconds: float | None = None
    machines: dict[Window, OfMachines] = field(default_factory=dict)

    @property
    def retries(self) -> int:
        """Attempts that did not conclude a job."""
        return self.attempts - self.jobs

    @property
    def items_per_minute(self) -> float | None:
        """Jobs a minute, where the row has a duration."""
        return self.jobs * 60 / self.seconds if self.seconds else None

    def used(self, windows: Mapping[Window, OfMachines]) -> None:
        """Add what its calls used of machines."""
        for window, part in windows.items():
            self.machines[window] = self.machines.get(window, OfMachines(0)).and_of(part)

    def add(self, counts: Mapping[str, int]) -> None:
        """Add a rollup's counters."""
        self.jobs += counts.get("jobs", 0)
        self.attempts += counts.get("attempts", 0)
        self.tokens += counts.get("tokens", 0)
        self.unpriced += counts.get("unpriced", 0)
        self.usd += Decimal(counts.get("usd", 0)).scaleb(-12)
        self.wasted += Decimal(counts.get("waste", 0)).scaleb(-12)


async def spent(redis: "Redis", tenants: Iterable[str], *, by: By, days: Sequence[date]) -> list[Spent]:
    """Rows by name. By microbatch: the newest of each tenant, whatever their day."""
    rows: dict[str, Spent] = {}
    for tenant in tenants:
        if by == "microbatch":
            await _add_microbatches(redis, tenant, rows)
        else:
            await _add_days(redis, tenant, rows, by, days)
    found = sorted(rows.values(), key=lambda row: row.name)
    await _allocate(redis, found)
    return found


async def of_batches(redis: "Redis", batches: Batches, tenants: Iterable[str]) -> list[Spent]:
    """All batches that are on the board, those under way as well, the oldest of each tenant first."""
    rows: list[Spent] = []
    for tenant in tenants:
        found: list[Batch] = []
        while page := await batches.page(tenant, after=found[-1].id if found else "", limit=BATCHES_AT_ONCE):
            found += page
        ours = [_of_batch(batch) for batch in reversed(found)]
        await _add_busy(
            redis, tenant, "batch", [(batch.id, row) for batch, row in zip(reversed(found), ours, strict=True)]
        )
        rows += ours
    await _allocate(redis, rows)
    return rows


async def _add_busy(redis: "Redis", tenant: str, kind: Kind, rows: Sequence[tuple[str, Spent]]) -> None:
    for (_, row), used in zip(rows, await busy(redis, tenant, kind, [name for name, _ in rows]), strict=True):
        row.used({window: OfMachines(usd) for window, usd in used.items()})


async def _allocate(redis: "Redis", rows: Sequence[Spent]) -> None:
    """Share out what the machines of each deployment cost on each day, idle time included, by what the rows used."""
    for deployment, day in {window: None for row in rows for window in row.machines}:
        theirs = await machines(redis, [deployment], days=[day])
        total, used = picodollars(theirs.usd), picodollars(theirs.busy)
        ours = [row for row in rows if (deployment, day) in row.machines]
        shares = allocated(total, [row.machines[deployment, day].busy for row in ours], used)
        for row, share in zip(ours, shares, strict=True):
            row.machines[deployment, day] = replace(row.machines[deployment, day], allocated=share, total=total)


def _of_batch(batch: Batch) -> Spent:
    began, ended = batch.moments.get(BatchState.IN_PROGRESS), batch.moments.get(batch.state)
    return Spent(
        f"batch_{batch.id}",
        jobs=batch.concluded,
        attempts=batch.attempts,
        tokens=sum(count for meter, count in batch.tokens.items() if meter not in BY_UNIT),
        usd=batch.usd,
        wasted=batch.wasted,
        unpriced=batch.unpriced,
        seconds=ended - began if began and ended and batch.state.is_terminal else None,
    )


async def _add_days(redis: "Redis", tenant: str, rows: dict[str, Spent], by: By, days: Sequence[date]) -> None:
    for day in days:
        counters: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        for column, value in _decoded(await redis.hgetall(f"{{t:{tenant}}}:costs:{day.isoformat()}")).items():
            deployment, lane, counter = column.split("|")
            counters[deployment, lane][counter] = int(value)
        for (deployment, lane), counts in counters.items():
            name = {"tenant": tenant, "deployment": deployment, "lane": lane, "day": day.isoformat()}[by]
            rows.setdefault(name, Spent(name)).add(counts)


async def _add_microbatches(redis: "Redis", tenant: str, rows: dict[str, Spent]) -> None:
    found: Any = await redis.zrevrange(f"{{t:{tenant}}}:microbatches", 0, MICROBATCHES_SHOWN - 1)
    names = [name.decode() for name in found]
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.hgetall(f"{{t:{tenant}}}:microbatch:{name}")
    for name, fields in zip(names, await pipeline.execute(), strict=True):
        text = _decoded(fields)
        row = rows.setdefault(name, Spent(name))
        row.deployment = text.pop("deployment", "")
        text.pop("lane", None)
        first, last = text.pop("first", None), text.pop("last", None)
        if first and last and first != last:
            row.seconds = max(row.seconds or 0.0, (int(last) - int(first)) / 1000)
        row.add({counter: int(value) for counter, value in text.items()})
    await _add_busy(redis, tenant, "microbatch", [(name, rows[name]) for name in names])


def _decoded(fields: Any) -> dict[str, str]:
    return {field.decode(): value.decode() for field, value in fields.items()}


@dataclass(slots=True)
class Machine:
    """What a replica's machine cost. `usd` is busy and idle together; `idle` is by cause; times are seconds."""

    deployment: str
    replica: str
    usd: Decimal = Decimal(0)
    busy: Decimal = Decimal(0)
    idle: dict[str, Decimal] = field(default_factory=dict)
    up_s: float = 0.0
    busy_s: float = 0.0
    tokens: int = 0

    @property
    def utilisation(self) -> float | None:
        """The part of its time in which something ran."""
        return self.busy_s / self.up_s if self.up_s else None

    @property
    def usd_per_1000_tokens(self) -> Decimal | None:
        """What a thousand tokens cost on it, idle time included."""
        return self.usd * 1000 / self.tokens if self.tokens else None

    def add(self, counter: str, amount: int) -> None:
        """Add one of its counters."""
        match counter:
            case "usd":
                self.usd += Decimal(amount).scaleb(-12)
            case "busy":
                self.busy += Decimal(amount).scaleb(-12)
            case "up_ms":
                self.up_s += amount / 1000
            case "busy_ms":
                self.busy_s += amount / 1000
            case "tokens":
                self.tokens += amount
            case _:
                self.idle[counter] = self.idle.get(counter, Decimal(0)) + Decimal(amount).scaleb(-12)


@dataclass(frozen=True, slots=True)
class Machines:
    """What machines cost: each of them, and what tenants' calls used of them, without the idle time."""

    each: Sequence[Machine]
    by_tenant: Mapping[str, Decimal]

    @property
    def usd(self) -> Decimal:
        """All of it."""
        return sum((machine.usd for machine in self.each), Decimal(0))

    @property
    def busy(self) -> Decimal:
        """What of it calls used."""
        return sum((machine.busy for machine in self.each), Decimal(0))


async def machines(redis: "Redis", deployments: Iterable[str], *, days: Sequence[date]) -> Machines:
    """By deployment and replica."""
    found: dict[tuple[str, str], Machine] = {}
    by_tenant: dict[str, Decimal] = defaultdict(Decimal)
    for deployment in deployments:
        for day in days:
            counters = _decoded(await redis.hgetall(f"{deployment_slot(deployment)}:machines:{day.isoformat()}"))
            for name, value in counters.items():
                replica, counter, *tenant = name.split("|")
                if tenant:
                    by_tenant[tenant[0]] += Decimal(int(value)).scaleb(-12)
                else:
                    found.setdefault((deployment, replica), Machine(deployment, replica)).add(counter, int(value))
    return Machines([found[name] for name in sorted(found)], dict(by_tenant))
