"""`pointsman pilot`: some lines of a file, run, and what all of them will cost and take."""

import asyncio
import json
import random
import tempfile
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from gateway import tables
from gateway.cli_batches import (
    ENDPOINT,
    URL,
    WINDOW,
    Asked,
    EndpointOption,
    FileArgument,
    KeyOption,
    UrlOption,
    WindowOption,
    at_gateway,
    client_of,
    conclude,
    err,
    fetched,
    followed,
    out,
    run_it,
    submit_command,
    submitted,
)
from gateway.client_answers import GatewayError
from gateway.pilot import Estimate, Stratum, estimate, sample

if TYPE_CHECKING:
    from gateway.client import Client

SCORED = ("score", "cap")
SHOWN = 5  # reasons why lines will not run


def add_to(app: typer.Typer) -> None:
    """Make it a command of `app`."""
    app.command("pilot")(pilot_command)


def pilot_command(
    context: typer.Context,
    file: FileArgument,
    items: Annotated[int, typer.Option(min=2, max=10_000, help="How many lines to try.")] = 20,
    yes: Annotated[bool, typer.Option("--yes", help="Then submit the whole file, as `submit` does.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the draw of the lines.")] = None,
    endpoint: EndpointOption = ENDPOINT,
    window: WindowOption = WINDOW,
    url: UrlOption = URL,
    key: KeyOption = "",
) -> None:
    """Run some lines of a file, drawn for each deployment that it uses, and say what all will cost and take."""
    asked = Asked(file, endpoint, window)

    async def run() -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]], dict[int, str]]:
        async with client_of(url, key, is_patient=True) as client:
            underway, path = await at_gateway(client, asked, file.with_suffix(".out.jsonl"))
            try:
                routes = await client.lines(f"/files/{underway.file}/routes", endpoint=endpoint)
                strata = _strata(routes)
                drawn = sample(strata, items, worth=_worth(routes), draw=random.Random(seed))
                batch, rows = await _tried(client, file, drawn, endpoint)
            finally:
                if not yes and not underway.batch:  # else `submit` has it
                    with suppress(GatewayError):  # it goes with its time as well
                        await client.delete(f"/files/{underway.file}")
                    underway.forget(path)
            return batch, rows, routes, drawn

    batch, rows, routes, drawn = run_it(context, run())
    if batch["status"] != "completed":
        err.print("The lines are those that were drawn, not those of the file:")
        conclude(batch)
    _tell(batch, rows, routes, drawn)
    if yes:
        submit_command(context, file, None, None, endpoint, window, False, url, key)
    else:
        out.print("Nothing else was submitted. With --yes the whole file is.")


def _strata(routes: list[dict[str, Any]]) -> dict[str, list[int]]:
    """The numbers of the lines that would go to each deployment."""
    for route in routes:
        if "fault" in route:
            raise GatewayError(f"line {route['line']}: {route['fault']['message']} ({route['fault']['code']})")
    strata: dict[str, list[int]] = {}
    for route in routes:
        if "deployment" in route:
            strata.setdefault(route["deployment"], []).append(route["line"])
    refused = Counter(route["error"]["message"] for route in routes if "error" in route)
    for why, times in refused.most_common(SHOWN):
        err.print(f"{times} lines will not run: {why}", style="yellow", markup=False, soft_wrap=True)
    if not strata:
        raise GatewayError("no line of this file would run")
    return strata


def _worth(routes: list[dict[str, Any]]) -> dict[str, float]:
    """What the lines of each deployment may cost at most, all together; nothing where there is no price."""
    worth: dict[str, float] = {}
    for route in routes:
        if "deployment" in route:
            usd = float(route["estimate_usd"] or 0)
            worth[route["deployment"]] = worth.get(route["deployment"], 0.0) + usd
    return worth


async def _tried(
    client: "Client", file: Path, drawn: dict[int, str], endpoint: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The batch of the lines that were drawn, each sent where it would go, and what came of them."""
    with tempfile.TemporaryDirectory(prefix="pointsman-pilot-") as folder:
        tried = Path(folder) / "pilot.jsonl"
        await asyncio.to_thread(_written, file, drawn, tried)
        places = tried.with_suffix(".out"), tried.with_suffix(".err")
        underway, _ = await submitted(client, Asked(tried, endpoint, "1h"), places[0])
        batch = await followed(client, underway.batch)
        await fetched(client, batch, *places)
        return batch, [
            json.loads(line) for place in places if place.exists() for line in place.read_bytes().splitlines()
        ]


def _written(file: Path, drawn: dict[int, str], to: Path) -> None:
    """Their numbers become their ids."""
    with file.open("rb") as lines, to.open("wb") as tried:
        for number, line in enumerate(lines, start=1):
            if number in drawn:
                request = json.loads(line)
                request["custom_id"] = str(number)
                request["body"]["model"] = drawn[number]
                tried.write(json.dumps(request).encode() + b"\n")


def _tell(
    batch: dict[str, Any], rows: list[dict[str, Any]], routes: list[dict[str, Any]], drawn: dict[int, str]
) -> None:
    """What the sample says of the whole. A line that made no call took no time and cost nothing."""
    sizes = Counter(route["deployment"] for route in routes if "deployment" in route)
    scored = Counter(route["deployment"] for route in routes if route.get("rule") in SCORED)
    counts, count = batch["request_counts"], sizes.total()
    out.print(f"{counts['completed']} of {counts['total']} lines completed, out of {count} in the file.")
    for why, times in Counter(_fault(row) for row in rows if _fault(row)).most_common():
        out.print(f"  {times} failed: {why}", markup=False)
    ran: dict[str, list[dict[str, Any]]] = {name: [] for name in sizes}
    for row in rows:
        ran[drawn[int(row["custom_id"])]].append(row["pointsman"] or {"usd": "0", "seconds": 0.0})
    table = Table("", "per line", "95 %", f"all {count} lines", "95 %")
    if any(about["usd"] is None for about in chain(*ran.values())):
        out.print("What a line costs is not known: its deployment has no price.", style="yellow")
    else:
        usd = {
            name: Stratum([float(Decimal(about["usd"])) for about in ran[name]], size, scored[name])
            for name, size in sizes.items()
        }
        table.add_row("dollars", *_cells(estimate(usd.values()), count, "{:.6f}", "{:.4f}"))
        for name, stratum in usd.items() if len(usd) > 1 else ():
            cells = _cells(estimate([stratum]), stratum.of, "{:.6f}", "{:.4f}")
            table.add_row(f"  {stratum.of} lines at {name}", *cells)
    seconds = {
        name: Stratum([each["seconds"] or 0.0 for each in ran[name]], size, scored[name])
        for name, size in sizes.items()
    }
    every = [value for stratum in seconds.values() for value in stratum.values]
    took = max([0.001, batch["completed_at"] - batch["in_progress_at"], *every])
    at_once = max(1.0, sum(every) / took)
    minutes = estimate(seconds.values()).times(1 / 60)
    table.add_row("minutes", *_cells(minutes, count / at_once, "{:.4f}", "{:.1f}"))
    tables.show(out, table)
    out.print("Which line goes where is what the router says of the whole file now.")
    if len(scored) > 1:
        out.print(
            f"A score decides that for {scored.total()} lines; that it may decide otherwise then is in the bounds."
        )
    out.print(f"The minutes of all lines are at the pace of these, of which {at_once:.1f} ran at once.")


def _cells(of_one: Estimate, times: float, form: str, form_of_all: str) -> tuple[str, ...]:
    return *_shown(of_one, form), *_shown(of_one.times(times), form_of_all)


def _shown(value: Estimate, form: str) -> tuple[str, str]:
    return form.format(value.mean), f"{form.format(value.least)} to {form.format(value.most)}"


def _fault(row: dict[str, Any]) -> str | None:
    if row["error"]:
        return str(row["error"]["code"])
    body = row["response"]["body"]
    return None if row["response"]["status_code"] == 200 else str(body["error"]["code"] or body["error"]["message"])
