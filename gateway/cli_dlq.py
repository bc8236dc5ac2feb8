"""`pointsman dlq`: the dead letters, looked at, run again, dropped."""

import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from gateway import tables, wiring
from gateway.settings import Settings
from router.deadletters import DeadLetter, DeadLetters, NotReplayableError, Wanted

app = typer.Typer(no_args_is_help=True, help="Dead letters: jobs and records that nobody could run.")
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

SHOWN_BODY = 4000  # characters

Opened = Callable[[Path | None, Path | None], Settings]
Run = Callable[[Coroutine[Any, Any, Any]], Any]

IdsArgument = Annotated[list[str] | None, typer.Argument(help="Ids of letters or of jobs; all when none is given.")]
ReasonOption = Annotated[str | None, typer.Option(help="Only this reason.")]
TenantOption = Annotated[str | None, typer.Option(help="Only this tenant's.")]
SinceOption = Annotated[str | None, typer.Option(help="Not before: 2h, 3d, or 2026-11-29T12:00.")]
UntilOption = Annotated[str | None, typer.Option(help="Before: 2h, 3d, or 2026-11-29T12:00.")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="The settings file; POINTSMAN_CONFIG else.")]
DataOption = Annotated[Path | None, typer.Option("--data", help="The data folder of the embedded start.")]


@app.command("list")
def list_command(
    context: typer.Context,
    reason: ReasonOption = None,
    tenant: TenantOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a letter.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """All that are neither replayed nor dropped."""
    letters = _open(context, config, data, Wanted((), reason, tenant, moment(since), moment(until)))
    if as_json:
        for letter in letters:
            out.print(json.dumps(_values(letter)), soft_wrap=True, markup=False)
        return
    table = Table(
        Column("id", overflow="fold"), "when", "reason", "tenant", Column("job", overflow="fold"), "topic", "detail"
    )
    for letter in letters:
        when = datetime.fromtimestamp(letter.at, UTC).isoformat(timespec="seconds")
        job = f"job_{letter.job_id}" if letter.job_id else ""
        table.add_row(letter.id, when, letter.reason, letter.tenant or "", job, letter.topic, letter.detail[:120])
    tables.show(out, table)


@app.command("show")
def show_command(
    context: typer.Context,
    id: str,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """One letter with its headers and its body: content, shown only here and only to you."""
    for letter in _open(context, config, data, Wanted((id,))):
        out.print(json.dumps(_values(letter) | {"headers": dict(letter.record.headers)}, indent=2), markup=False)
        out.print(letter.record.value.decode("utf-8", "replace")[:SHOWN_BODY], soft_wrap=True, markup=False)
        return
    _fail(f"there is no open letter {id!r}; `pointsman dlq list` shows all")


@app.command("replay")
def replay_command(
    context: typer.Context,
    ids: IdsArgument = None,
    reason: ReasonOption = None,
    tenant: TenantOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    dry_run: DryOption = False,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Run them again, each under its id, with its ledger and its idempotency key."""
    wanted = Wanted(tuple(ids or ()), reason, tenant, moment(since), moment(until))
    _each(context, config, data, wanted, "replay", dry_run=dry_run)


@app.command("drop")
def drop_command(
    context: typer.Context,
    ids: IdsArgument = None,
    reason: ReasonOption = None,
    tenant: TenantOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    dry_run: DryOption = False,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Close them without running them."""
    wanted = Wanted(tuple(ids or ()), reason, tenant, moment(since), moment(until))
    _each(context, config, data, wanted, "drop", dry_run=dry_run)


def _each(
    context: typer.Context, config: Path | None, data: Path | None, wanted: Wanted, act: str, *, dry_run: bool
) -> None:
    settings, run = _opened(context, config, data)

    unknown = set(wanted.ids)

    async def all_of_them() -> tuple[int, int]:
        done = refused = 0
        async with wiring.core(settings) as core:
            letters = DeadLetters(core.log, core.board)
            async for letter in letters.open(wanted):
                unknown.difference_update((letter.id, f"job_{letter.job_id}"))
                name = f"{letter.id} ({letter.reason}, {letter.tenant or 'no tenant'})"
                if dry_run:
                    out.print(f"would {act} {name}", markup=False)
                    done += 1
                    continue
                try:
                    await (letters.replay(letter) if act == "replay" else letters.drop(letter))
                except NotReplayableError as error:
                    err.print(f"{name}: {error}", style="yellow", markup=False)
                    refused += 1
                    continue
                done += 1
        return done, refused

    done, refused = run(all_of_them())
    out.print(f"{'would ' if dry_run else ''}{act}: {done}" + (f", refused: {refused}" if refused else ""))
    for each in sorted(unknown):
        err.print(f"there is no open letter {each!r}; `pointsman dlq list` shows all", markup=False)
    if refused or unknown:
        raise typer.Exit(1)


def _open(context: typer.Context, config: Path | None, data: Path | None, wanted: Wanted) -> list[DeadLetter]:
    settings, run = _opened(context, config, data)

    async def read() -> list[DeadLetter]:
        async with wiring.core(settings) as core:
            return [letter async for letter in DeadLetters(core.log, core.board).open(wanted)]

    letters: list[DeadLetter] = run(read())
    return letters


def _opened(context: typer.Context, config: Path | None, data: Path | None) -> tuple[Settings, Run]:
    opened, run = context.obj
    return opened(config, data), run


def _values(letter: DeadLetter) -> dict[str, object]:
    return {
        "id": letter.id,
        "at": letter.at,
        "reason": letter.reason,
        "detail": letter.detail,
        "topic": letter.topic,
        "position": letter.position,
        "tenant": letter.tenant,
        "job": f"job_{letter.job_id}" if letter.job_id else None,
        "bytes": len(letter.record.value),
    }


def moment(text: str | None) -> float | None:
    """Seconds since the epoch of `3d`, `2h`, `10m` ago, or of an ISO time in UTC."""
    if text is None:
        return None
    units = {"d": 86_400, "h": 3600, "m": 60}
    if text[:-1].isdecimal() and len(text) < 9 and text[-1:] in units:
        return (datetime.now(UTC) - timedelta(seconds=int(text[:-1]) * units[text[-1]])).timestamp()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither like 2h or 3d nor a time like 2026-11-29T12:00") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _fail(message: str) -> None:
    err.print(f"pointsman: {message}", style="red", markup=False)
    raise typer.Exit(1)
