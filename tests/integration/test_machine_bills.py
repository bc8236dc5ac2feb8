"""Bills of machines on a real board: each span once, whoever writes it, and every picodollar in it."""

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from consumers.gpu.fleet_meters import FleetMeters
from consumers.gpu.machine_bills import MachineBills
from consumers.gpu.places import Ended, Places, Seen
from policies.machine_time import Phase
from policies.scripts import BoardUnavailableError, Scripts
from router.costs import machines
from tests.builders import date_of, until

A = "gpu-1:8000"
RATE = Decimal("3600")  # a dollar a second


class Ledger:
    """What was put on it."""

    def __init__(self, *, fails: int = 0) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self._fails = fails

    async def append(self, id: str, record: str) -> None:
        if self._fails:
            self._fails -= 1
            raise BoardUnavailableError("as asked")
        self.records[id] = json.loads(record)


async def seen(places: Places, phase: Phase) -> float:
    moment, _ = await places.sync("small", [Seen(A, "{}", phase=phase)])
    return moment


async def billed(bills: MachineBills) -> bool:
    return await bills.write("small", A, RATE) is not None


async def test_what_calls_used_and_what_was_idle_is_on_the_ledger_and_adds_up(redis: "Redis") -> None:
    scripts, ledger, registry = Scripts(redis), Ledger(), CollectorRegistry()
    places, bills = Places(scripts), MachineBills(scripts, ledger.append, FleetMeters(registry))
    await seen(places, Phase.WARM_UP)
    await asyncio.sleep(0.05)
    await seen(places, Phase.UP)
    await places.take("small", "job_1.1", [(A, 4)], billed_to="acme")
    await places.take("small", "job_2.1", [(A, 4)], billed_to="globex")
    await asyncio.sleep(0.05)
    await places.keep("small", [], [Ended(A, "job_1.1", 500)])
    await until(lambda: billed(bills))
    await bills.publish("small")

    [record] = ledger.records.values()
    shares = {share["job"]: Decimal(share["usd"]) for share in record["shares"]}
    idle = {cause: Decimal(usd) for cause, usd in record["idle_usd"].items()}
    assert sum(shares.values()) == Decimal(record["busy_usd"])
    assert sum(shares.values()) + sum(idle.values()) == Decimal(record["usd"])
    assert Decimal(record["usd"]) == Decimal(record["to_ms"] - record["from_ms"]) / 1000
    assert idle["warm_up"] > 0
    assert 0 < shares["job_1"] < shares["job_2"]
    assert [(share["tenant"], share["attempt"]) for share in record["shares"]] == [("acme", 1), ("globex", 1)]

    found = await machines(redis, ["small"], days=[date_of(record["to_ms"] / 1000)])
    [machine] = found.each
    assert machine.usd == Decimal(record["usd"]) == found.usd
    assert machine.busy == sum(found.by_tenant.values()) == sum(shares.values())
    assert machine.tokens == 500
    assert machine.usd_per_1000_tokens == machine.usd * 2
    assert machine.utilisation is not None and 0 < machine.utilisation < 1

    def shown(name: str, part: str | None = None) -> float:
        labels = {"deployment": "small", "replica": A, **({} if part is None else {"part": part})}
        return registry.get_sample_value(f"pointsman_machine_{name}_total", labels) or 0.0

    usd, busy_s = sum(shown("usd", part) for part in ("busy", *idle)), shown("seconds", "busy")
    assert usd / shown("tokens") == pytest.approx(float(machine.usd_per_1000_tokens) / 1000)
    assert busy_s / (busy_s + shown("seconds", "idle")) == pytest.approx(machine.utilisation)


async def test_a_span_is_billed_once_however_many_workers_write_it_and_the_spans_join(redis: "Redis") -> None:
    ledger = Ledger()
    workers = [MachineBills(Scripts(redis), ledger.append) for _ in range(3)]
    places = Places(Scripts(redis))
    began = await seen(places, Phase.UP)

    async def spans(count: int) -> bool:
        await asyncio.gather(*(billed(each) for each in workers))
        await asyncio.gather(*(each.publish("small") for each in workers))
        return len(ledger.records) >= count

    await until(lambda: spans(2))

    first, second = sorted(ledger.records.values(), key=lambda record: record["from_ms"])[:2]
    assert first["from_ms"] == round(began * 1000)
    assert first["to_ms"] == second["from_ms"]


async def test_a_bill_that_the_ledger_did_not_take_is_published_later_by_anybody(redis: "Redis") -> None:
    ledger = Ledger(fails=1)
    bills, other = (MachineBills(Scripts(redis), ledger.append) for _ in range(2))
    await seen(Places(Scripts(redis)), Phase.UP)
    await until(lambda: billed(bills))
    with pytest.raises(BoardUnavailableError):
        await bills.publish("small")

    await other.publish("small")
    await other.publish("small")

    assert len(ledger.records) == 1
    assert await redis.hlen("{b:small}:bills") == 0


async def test_a_call_whose_worker_died_is_billed_as_long_as_it_is_known_to_have_run(redis: "Redis") -> None:
    scripts, ledger = Scripts(redis), Ledger()
    places, bills = Places(scripts, hold_s=0.2), MachineBills(scripts, ledger.append)
    await seen(places, Phase.UP)
    await places.take("small", "dead.1", [(A, 4)], billed_to="acme")

    async def gone() -> bool:
        _, [known] = await places.sync("small", [Seen(A, "{}", phase=Phase.UP)])
        return known.places == 0

    await until(gone)
    await until(lambda: billed(bills))
    await bills.publish("small")

    [record] = ledger.records.values()
    assert [share["job"] for share in record["shares"]] in ([], ["dead"])
    assert record["busy_s"] < 0.2


async def test_a_machine_that_is_off_costs_nothing(redis: "Redis") -> None:
    bills = MachineBills(Scripts(redis), Ledger().append)
    await seen(Places(Scripts(redis)), Phase.OFF)
    await until(lambda: billed(bills))
    day = date_of(await _now(redis))
    assert not (await machines(redis, ["small"], days=[day])).each


async def _now(redis: "Redis") -> float:
    seconds, _ = await redis.time()
    return float(seconds)
