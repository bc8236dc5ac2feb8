"""`pointsman shipments`: jobs that went out as batch jobs, and what that saved."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from consumers.aws.shipments import How, Shipment, Shipments
from gateway import tables, wiring
from gateway.settings import Settings
from policies.scripts import Scripts
from router.ledger import plain


async def show(settings: Settings, out: Console, *, most: int, as_json: bool) -> None:
    """How many jobs wait for others, and the newest shipments, of each deployment that has any."""
    async with wiring.core(settings) as core:
        board = Shipments(Scripts(core.redis))
        names = sorted(name for name, each in core.deployments.items() if each.shipping is not None)
        found = {name: await board.page(name, most=most) for name in names}
    if as_json:
        for name, (waiting, shipments) in found.items():
            values = {"deployment": name, "waiting": waiting, "shipments": [_values(each) for each in shipments]}
            out.print(json.dumps(values), soft_wrap=True, markup=False)
        return
    if not found:
        out.print("No deployment has bedrock.shipping, so no job waits for a batch job.")
    for name, (waiting, shipments) in found.items():
        tables.show(out, _table(f"{name}: {waiting} jobs wait for others", shipments))


def _values(shipment: Shipment) -> dict[str, Any]:
    return {
        "shipment": shipment.id,
        "closed_at": round(shipment.closed_at, 3),
        "phase": shipment.phase,
        "status": shipment.status,
        "batch_job": shipment.arn,
        "records": shipment.size,
        **{how: shipment.counts.get(how, 0) for how in How},
        "usd": plain(shipment.usd),
        "usd_live": plain(shipment.usd_live),
        "unpriced": shipment.unpriced,
    }


def _table(title: str, shipments: Sequence[Shipment]) -> Table:
    table = Table(title=title)
    for column in ("shipment", "closed", "status"):
        table.add_column(column, no_wrap=True)
    for column in ("records", *How, "dollars", "live", "saved", "unpriced"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in shipments:
        table.add_row(
            each.id,
            datetime.fromtimestamp(each.closed_at, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            each.status or each.phase,
            str(each.size),
            *(str(each.counts.get(how, 0)) for how in How),
            plain(each.usd),
            plain(each.usd_live),
            plain(each.usd_live - each.usd),
            str(each.unpriced),
        )
    return table
