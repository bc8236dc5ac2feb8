"""What machines cost by day, on the board: counted with each bill, and from the ledger when a board is lost."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from policies.pricing import picodollars
from policies.quota import deployment_slot
from policies.scripts import Script, Scripts, Value
from router.costs import DAYS_KEPT
from router.log import Record

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Billed:
    """A bill on the ledger: a machine's time until then, and what it adds to the day's counters."""

    id: str
    deployment: str
    replica: str
    until_ms: int
    counters: Mapping[str, int]

    @property
    def day(self) -> date:
        """The day (UTC) that it counts for."""
        return day_of(self.until_ms)


def billed(record: Record) -> Billed | None:
    """The bill of a record; None when it is something else."""
    try:
        bill = json.loads(record.value)
        if bill["type"] != "machine":
            return None
        return Billed(bill["id"], bill["deployment"], bill["replica"], int(bill["to_ms"]), counters(bill))
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None


def counters(bill: Mapping[str, Any]) -> dict[str, int]:
    """What a bill adds, by name: picodollars, milliseconds and tokens of the machine, picodollars of each tenant."""
    replica = bill["replica"]
    counted = {
        f"{replica}|usd": _pico(bill["usd"]),
        f"{replica}|busy": _pico(bill["busy_usd"]),
        f"{replica}|up_ms": round(bill["up_s"] * 1000),
        f"{replica}|busy_ms": round(bill["busy_s"] * 1000),
        f"{replica}|tokens": int(bill.get("tokens", 0)),
        **{f"{replica}|{cause}": _pico(usd) for cause, usd in bill["idle_usd"].items()},
    }
    for share in bill["shares"]:
        name = f"|tenant|{share['tenant']}"
        counted[name] = counted.get(name, 0) + _pico(share["usd"])
    return {name: amount for name, amount in counted.items() if amount}


def day_of(moment_ms: int) -> date:
    """The day (UTC) of a moment."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).date()


@dataclass(slots=True)
class MachineSums:
    """Bills added up: of a deployment's day its counters, and until when each machine is billed."""

    days: dict[tuple[str, date], dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    ends: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, bill: Billed) -> None:
        """One that was not added yet."""
        day = self.days[bill.deployment, bill.day]
        for name, amount in bill.counters.items():
            day[name] += amount
        ends = self.ends[bill.deployment]
        ends[bill.replica] = max(bill.until_ms, ends.get(bill.replica, 0))

    async def restore(self, scripts: Scripts, *, now: float) -> None:
        """The board then has that much at least. Safe to repeat. Raises `BoardUnavailableError`."""
        script = Script.load("router", "machine_sums")
        today = day_of(int(now * 1000))
        for (deployment, day), rows in self.days.items():
            kept_ms = (DAYS_KEPT - (today - day).days) * DAY_MS
            if kept_ms <= 0:
                continue
            slot = deployment_slot(deployment)
            ends = self.ends[deployment]
            told: list[Value] = [kept_ms, DAYS_KEPT * DAY_MS, len(ends)]
            told += [each for pair in (*ends.items(), *rows.items()) for each in pair]
            await scripts.run(script, [f"{slot}:machines:{day.isoformat()}", f"{slot}:billed"], told)


def _pico(usd: str) -> int:
    return picodollars(Decimal(usd))
