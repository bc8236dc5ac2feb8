"""`pointsman webhooks`: what is owed to receivers, what was given up, and sending it again."""

import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Column, Table

from gateway import tables, wiring
from gateway.settings import Settings
from gateway.wiring import Core
from router.webhooks import Shown

app = typer.Typer(no_args_is_help=True, help="Webhooks: those that wait, those that were given up.")
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

PAGE = 500

TenantOption = Annotated[str | None, typer.Option(help="Only this tenant's.")]
DeadOption = Annotated[bool, typer.Option("--dead", help="Only those that were given up.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="The settings file; POINTSMAN_CONFIG else.")]
DataOption = Annotated[Path | None, typer.Option("--data", help="The data folder of the embedded start.")]


@app.command("list")
def list_command(
    context: typer.Context,
    tenant: TenantOption = None,
    dead: DeadOption = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a webhook.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Those that wait and those that were given up after a day of trying."""
    settings, run = _opened(context, config, data, tenant)

    async def read() -> list[Shown]:
        found = []
        async with wiring.core(settings) as core:
            async for webhook in _all(core, tenant, dead_only=dead):
                found.append(webhook)
                if len(found) == limit:
                    break
        return found

    webhooks = run(read())
    if as_json:
        for webhook in webhooks:
            out.print(json.dumps(_values(webhook)), soft_wrap=True, markup=False)
        return
    table = Table(
        Column("id", overflow="fold"), "state", "tenant", "type", "to", "attempts", "seen last", "due, or dead since"
    )
    for webhook in webhooks:
        values = _values(webhook)
        when = datetime.fromtimestamp(webhook.at, UTC).isoformat(timespec="seconds")
        shown = (values[name] for name in ("id", "state", "tenant", "type", "to", "attempts", "seen"))
        table.add_row(*map(str, shown), when)
    tables.show(out, table)


@app.command("resend")
def resend_command(
    context: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids as `list` shows them; all dead ones when none.")] = None,
    tenant: TenantOption = None,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Send them again at once, and for a day if need be, under the same event id."""
    settings, run = _opened(context, config, data, tenant)

    async def resend() -> tuple[int, list[str]]:
        async with wiring.core(settings) as core:
            tenants = [tenant] if tenant else list(core.tenants)
            if not ids:
                dead = [webhook async for webhook in _all(core, tenant, dead_only=True)]
                return sum([await core.webhooks.resend(each.tenant, each.name) for each in dead]), []
            unknown = []
            for id in ids:
                if not any([await core.webhooks.resend(each, id) for each in tenants]):
                    unknown.append(id)
            return len(ids) - len(unknown), unknown

    sent, unknown = run(resend())
    out.print(f"resend: {sent}")
    for id in unknown:
        err.print(
            f"there is no webhook {id!r} that waits or is dead; `pointsman webhooks list` shows all", markup=False
        )
    if unknown:
        raise typer.Exit(1)


async def _all(core: Core, tenant: str | None, *, dead_only: bool) -> AsyncGenerator[Shown]:
    for name in [tenant] if tenant else list(core.tenants):
        for read in [core.webhooks.given_up] if dead_only else [core.webhooks.waiting, core.webhooks.given_up]:
            after = 0
            while page := await read(name, after=after, most=PAGE):
                for webhook in page:
                    yield webhook
                after += PAGE


def _opened(
    context: typer.Context, config: Path | None, data: Path | None, tenant: str | None
) -> tuple[Settings, Callable[[Coroutine[Any, Any, Any]], Any]]:
    opened, run = context.obj
    settings: Settings = opened(config, data)
    if tenant is not None and tenant not in settings.tenants:
        known = ", ".join(sorted(settings.tenants))
        err.print(f"there is no tenant {tenant!r} in these settings, only {known}", markup=False)
        raise typer.Exit(1)
    return settings, run


def _values(webhook: Shown) -> dict[str, object]:
    return {
        "id": webhook.name,
        "state": "dead" if webhook.is_dead else "waiting",
        "tenant": webhook.tenant,
        "type": webhook.type,
        "to": webhook.endpoint or urlsplit(webhook.url).netloc,  # the rest of a job's URL may be its secret
        "attempts": webhook.attempts,
        "seen": webhook.seen or None,
        "at": webhook.at,
        "owed_at": webhook.owed_at,
        "tried_at": webhook.tried_at,
    }
