"""`pointsman fleet`: the replicas as the workers see them, live."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from consumers.gpu.places import Places
from gateway import tables, wiring
from gateway.settings import Settings
from policies.machine_time import Idle
from policies.scripts import Scripts, unless_away
from router.costs import Machine, machines
from router.ledger import plain

REFRESH_S = 1.0
FIGURES = ("run", "wait", "ours", "cap", "tok/s", "KV", "hits", "$/h", "out to")
COLOURS = {"ready": "green", "warming": "yellow", "probing": "yellow", "draining": "yellow", "new": "dim"}

Row = dict[str, Any]


async def show(settings: Settings, out: Console, *, as_json: bool, once: bool) -> None:
    """One JSON object a replica, or a table: again each second unless `once`."""
    async with wiring.core(settings) as core:
        places = Places(Scripts(core.redis))
        fleets = sorted(name for name, each in core.deployments.items() if each.fleet is not None)
        if as_json:
            for row in await rows(places, fleets):
                out.print(json.dumps(row), soft_wrap=True, markup=False)
        elif once:
            tables.show(out, table(await rows(places, fleets)))
        else:
            with Live(table(await rows(places, fleets)), console=out, auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(REFRESH_S)
                    live.update(table(await rows(places, fleets)), refresh=True)


async def show_machines(settings: Settings, out: Console, *, days: int, as_json: bool) -> None:
    """What the replicas' machines cost, and whose calls used how much of it: one JSON object a row, or tables."""
    async with wiring.core(settings) as core:
        seconds, _ = await core.scripts.time()
        today = datetime.fromtimestamp(seconds, UTC).date()
        wanted = [today - timedelta(days=ago) for ago in range(days)]
        found = await unless_away(machines(core.redis, core.deployments, days=wanted))
    if as_json:
        for machine in found.each:
            out.print(json.dumps(_machine_values(machine)), soft_wrap=True, markup=False)
        return
    costs = Table(title="Costs of machines")
    for column in ("deployment", "replica"):
        costs.add_column(column, overflow="fold")
    for column in ("hours", "dollars", "busy", *Idle, "in use", "tokens", "$/1,000 tokens"):
        costs.add_column(column, justify="right", no_wrap=True)
    for machine in found.each:
        costs.add_row(
            machine.deployment,
            machine.replica,
            f"{machine.up_s / 3600:.2f}",
            plain(machine.usd),
            plain(machine.busy),
            *(plain(machine.idle.get(cause, Decimal(0))) for cause in Idle),
            _percent(machine.utilisation),
            str(machine.tokens),
            "?" if machine.usd_per_1000_tokens is None else f"{machine.usd_per_1000_tokens:.6f}",
        )
    tables.show(out, costs)
    for tenant, usd in sorted(found.by_tenant.items()):
        out.print(f"Calls of {tenant} used {plain(usd)} dollars of them.", markup=False)


def _machine_values(machine: Machine) -> Row:
    per_1000 = machine.usd_per_1000_tokens
    return {
        "deployment": machine.deployment,
        "replica": machine.replica,
        "usd": plain(machine.usd),
        "busy_usd": plain(machine.busy),
        "idle_usd": {cause: plain(machine.idle.get(cause, Decimal(0))) for cause in Idle},
        "up_s": round(machine.up_s, 3),
        "busy_s": round(machine.busy_s, 3),
        "utilisation": None if machine.utilisation is None else round(machine.utilisation, 4),
        "tokens": machine.tokens,
        "usd_per_1000_tokens": None if per_1000 is None else f"{per_1000:.9f}",
    }


async def rows(places: Places, deployments: list[str]) -> list[Row]:
    """What is known of each replica; what its engine does not tell is null."""
    found = []
    for deployment in deployments:
        _, reports = await places.reports(deployment)
        found += [{"deployment": deployment, "replica": name, **report} for name, report in reports.items()]
    return found


def table(found: list[Row]) -> Table:
    """They fit into 80 columns: why a replica is as it is stands below its name."""
    replicas = Table(
        title="Replicas" if found else "No worker has seen a replica in the last 15 s. Does one run?",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    replicas.add_column("replica", overflow="fold", min_width=12)
    for name in ("engine", "state"):
        replicas.add_column(name, no_wrap=True)
    for name in FIGURES:
        replicas.add_column(name, justify="right", no_wrap=True)
    for deployment, rows_of_it in groupby(found, key=itemgetter("deployment")):
        replicas.add_row(f"[bold]{deployment}[/]")
        for row in rows_of_it:
            state, why = str(row["state"]), _plain(row["why"])
            replicas.add_row(
                f"{row['replica']}\n[dim]{why}[/]" if why else row["replica"],
                row["engine"] or "?",
                f"[{COLOURS.get(state, 'red')}]{state}[/]",
                *(_figure(row[name]) for name in ("running", "waiting", "ours", "cap")),
                "?" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:.0f}",
                _percent(row["kv_use"]),
                _percent(row["prefix_hit_rate"]),
                _figure(row["usd_per_hour"]),
                _clock(row["ejected_until"]),
            )
    return replicas


def _plain(text: object) -> str:
    return str(text).replace("[", "(").replace("]", ")")  # an engine's words are no markup


def _figure(value: object) -> str:
    return "?" if value is None else str(value)


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.0%}"


def _clock(moment: float | None) -> str:
    return "" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")
