"""The command `pointsman`."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, cast

import structlog
import typer
import yaml
from rich.console import Console
from rich.status import Status
from rich.table import Column, Table

from gateway import (
    cli_batches,
    cli_bedrock,
    cli_dlq,
    cli_fleet,
    cli_focus,
    cli_pilot,
    cli_plan,
    cli_router,
    cli_sagemaker,
    cli_shipments,
    cli_webhooks,
    logs,
    tables,
    valkey,
    wiring,
)
from gateway.check import Finding, Level, check
from gateway.client_answers import GatewayError
from gateway.settings import Settings, SettingsError, load
from gateway.up import up
from policies.keys import KeyTakenError, PublicKeyError
from policies.scripts import BoardRefusedError, BoardUnavailableError, unless_away
from router import topics
from router.costs import DAYS_KEPT, By, Spent, of_batches, spent
from router.ledger import plain
from router.log import LogRefusedError, LogUnavailableError, TopicMissingError
from router.rebuild import Rebuilt, begin

app = typer.Typer(no_args_is_help=True, add_completion=False)
serve_app = typer.Typer(no_args_is_help=True, help="One process of a cluster.")
board_app = typer.Typer(no_args_is_help=True, help="The state of jobs in Redis.")
keys_app = typer.Typer(no_args_is_help=True, help="API keys: made, listed and revoked.")
app.add_typer(serve_app, name="serve")
app.add_typer(keys_app, name="keys")
app.add_typer(board_app, name="board")
app.add_typer(cli_dlq.app, name="dlq")
app.add_typer(cli_router.app, name="router")
app.add_typer(cli_sagemaker.app, name="sagemaker")
app.add_typer(cli_webhooks.app, name="webhooks")
cli_batches.add_to(app)
cli_pilot.add_to(app)

out = Console(highlight=False)
log = structlog.get_logger(__name__)
err = Console(stderr=True, highlight=False)

UPSTREAM_KEY = "POINTSMAN_UPSTREAM_KEY"
EXPECTED = (
    SettingsError,
    valkey.FolderInUseError,
    valkey.ValkeyError,
    PublicKeyError,
    KeyTakenError,
    BoardUnavailableError,
    LogUnavailableError,
    GatewayError,
)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="The settings file; POINTSMAN_CONFIG else.")]
DataOption = Annotated[Path | None, typer.Option("--data", help="The data folder of the embedded start.")]
StdinOption = Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)]


Result = TypeVar("Result")
ProcessName = Literal["http", "worker", "inbox", "collector", "sweeper"]


class GroupBy(StrEnum):
    """What a row of costs is."""

    BATCH = "batch"
    MICROBATCH = "microbatch"
    TENANT = "tenant"
    DEPLOYMENT = "deployment"
    LANE = "lane"
    DAY = "day"
    REPLICA = "replica"


def main() -> None:
    """The entry point."""
    logs.configure()
    app(obj=(lambda config, data: _reachable(_load(config, _environ(data))), _run))


@app.command("up")
def up_command(
    host: Annotated[str | None, typer.Option(help="Where to listen; 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Its port; 4000. 0 takes a free one.")] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    upstream: Annotated[
        str | None,
        typer.Option(
            help=f"An OpenAI-compatible server, such as http://127.0.0.1:11434/v1; {UPSTREAM_KEY} has its key."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name on that server.")] = None,
) -> None:
    """A whole Pointsman on this machine: jobs survive a restart, the data is in one folder."""
    environ = _environ(data)
    if (upstream is None) != (model is None):
        _fail("--upstream and --model go together: the server's URL, and the name of a model on it")
    if host is not None:
        environ["POINTSMAN_HTTP__HOST"] = host
    if port is not None:
        environ["POINTSMAN_HTTP__PORT"] = str(port or _free_port())
    if upstream is not None and model is not None:
        if config is not None or environ.get("POINTSMAN_CONFIG"):
            _fail("--upstream and --model are for a start without a file; put the deployment into the file instead")
        config = _write_config(_load(None, environ).data, upstream, model, has_key=bool(environ.get(UPSTREAM_KEY)))
        for finding in _findings_at(_load(config, environ), "gpu"):  # it may start later
            _print(replace(finding, level=Level.WARNING))
    _refuse_errors(_load(config, environ))
    _run(up(config, environ, out))


@serve_app.command("http")
def serve_http(config: ConfigOption = None, until_stdin_closes: StdinOption = False) -> None:
    """The API."""
    _serve("http", config, until_stdin_closes)


@serve_app.command("worker")
def serve_worker(
    backend: Annotated[str, typer.Option(help="Which backend's topics to work off.")],
    config: ConfigOption = None,
    until_stdin_closes: StdinOption = False,
) -> None:
    """A worker for one backend."""
    _serve("worker", config, until_stdin_closes, backend)


@serve_app.command("inbox")
def serve_inbox(config: ConfigOption = None, until_stdin_closes: StdinOption = False) -> None:
    """The door for other services: makes jobs of the records on jobs.inbox; any number may run."""
    _serve("inbox", config, until_stdin_closes)


@serve_app.command("collector")
def serve_collector(
    backend: Annotated[str, typer.Option(help="Which backend's submitted jobs to conclude.")],
    config: ConfigOption = None,
    until_stdin_closes: StdinOption = False,
) -> None:
    """Concludes jobs that a backend works on while nobody waits."""
    _serve("collector", config, until_stdin_closes, backend)


@serve_app.command("sweeper")
def serve_sweeper(config: ConfigOption = None, until_stdin_closes: StdinOption = False) -> None:
    """Repairs what a died process left behind; any number may run."""
    _serve("sweeper", config, until_stdin_closes)


@app.command("check")
def check_command(
    backend: Annotated[
        Literal["gpu", "bedrock", "sagemaker"] | None,
        typer.Option(help="Ask its servers as well, or look at what its deployments name at AWS."),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Look at the settings without starting anything. Exit code 1 when something is wrong."""
    settings = _load(config, _environ(None))
    findings = check(settings)
    if backend is not None:
        findings += _findings_at(settings, backend)
    for finding in findings:
        out.print(str(finding), style="red" if finding.level is Level.ERROR else "yellow", soft_wrap=True, markup=False)
    errors = sum(finding.level is Level.ERROR for finding in findings)
    if errors:
        raise typer.Exit(1)
    out.print(
        f"The settings are good: {len(settings.tenants)} tenants, {len(settings.deployments)} deployments, "
        f"{len(findings)} warnings."
    )


@app.command("plan")
def plan_command(
    deployment: Annotated[str | None, typer.Argument(help="One of the settings'; all when it is not there.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.01, help="How long a call takes; typical_s, or 10.")] = None,
    input_tokens: Annotated[int | None, typer.Option(min=0, help="Of a prompt; 1000.")] = None,
    output_tokens: Annotated[int | None, typer.Option(min=1, help="What is reserved for output; max_output.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a deployment.")] = False,
    config: ConfigOption = None,
) -> None:
    """How many calls at once the rates of a deployment carry, and the chain of its time-outs."""
    settings = _load(config, _environ(None))
    try:
        found = cli_plan.plans(
            settings, deployment, seconds=seconds, input_tokens=input_tokens, output_tokens=output_tokens
        )
    except SettingsError as error:
        _fail(str(error))
    if as_json:
        for each in found:
            out.print_json(json.dumps(each.values()), indent=None)
        return
    for each in found:
        out.print("\n".join(cli_plan.lines(each)), soft_wrap=True, markup=False)


@app.command("topics")
def topics_command(
    config: ConfigOption = None,
    data: DataOption = None,
    create: Annotated[bool, typer.Option("--create", help="Make those that are missing.")] = False,
) -> None:
    """The topics that these settings need. Exit code 1 when one is missing; warns where one is kept too short."""
    settings = _reachable(_load(config, _environ(data)))
    missing = _run(_topics(settings, create=create))
    if missing:
        _fail(f"{missing} topics are missing; `pointsman topics --create` makes them")


@app.command("costs")
def costs_command(
    config: ConfigOption = None,
    data: DataOption = None,
    by: Annotated[
        GroupBy,
        typer.Option(
            help="What a row is. batch: a client's, of /v1/batches; microbatch: what a worker sent out together;"
            " replica: a machine and its time."
        ),
    ] = GroupBy.TENANT,
    days: Annotated[int, typer.Option(min=1, max=DAYS_KEPT, help="How many days, today included.")] = DAYS_KEPT,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
    focus: Annotated[
        Path | None, typer.Option(help="Write every charge line to this CSV file instead, in the columns of FOCUS 1.2.")
    ] = None,
) -> None:
    """Dollars, tokens and jobs, summed over charge lines."""
    settings = _reachable(_load(config, _environ(data)))
    if focus is not None:
        _focus(settings, focus, days)
        return
    if by is GroupBy.REPLICA:
        _run(cli_fleet.show_machines(settings, out, days=days, as_json=as_json))
        return
    rows = _run(_costs(settings, by, days))
    if as_json:
        for row in rows:
            out.print_json(json.dumps(_cost_values(row)), indent=None)
        return
    table = Table(title=f"Costs by {by}")
    for column in ("name", "deployment") if by is GroupBy.MICROBATCH else ("name",):
        table.add_column(column, overflow="fold")
    machines = any(row.machines for row in rows)
    figures = ("jobs", "retries", "tokens", "dollars", "wasted", "unpriced", "items/min")
    for column in (*figures, *(("machines, busy", "allocated", "in all") if machines else ())):
        table.add_column(column, justify="right", no_wrap=True)
    for row in [*rows, _sum(rows)]:
        table.add_row(
            row.name,
            *([row.deployment] if by is GroupBy.MICROBATCH else []),
            str(row.jobs),
            str(row.retries),
            str(row.tokens),
            plain(row.usd),
            plain(row.wasted) if row.wasted else "",
            str(row.unpriced or ""),
            "" if row.items_per_minute is None else f"{row.items_per_minute:.1f}",
            *(usd or "" for usd in (_machine_dollars(row) if machines else ())),
        )
    tables.show(out, table)
    if any(row.unpriced for row in rows):
        err.print("Some attempts have no price: their dollars are unknown and not in these sums.", style="yellow")


@app.command("fleet")
def fleet_command(
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a replica, once.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Do not go on; so without a terminal.")] = False,
) -> None:
    """The replicas of all deployments as the workers see them now: state and why, load, cap, dollars an hour."""
    settings = _reachable(_load(config, _environ(data)))
    _run(cli_fleet.show(settings, out, as_json=as_json, once=once or not out.is_terminal))


@app.command("shipments")
def shipments_command(
    config: ConfigOption = None,
    data: DataOption = None,
    most: Annotated[int, typer.Option(min=1, max=1000, help="The newest so many of each deployment.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a deployment.")] = False,
) -> None:
    """Jobs that went out as batch jobs of Bedrock: what became of them, their dollars, and those of live calls."""
    settings = _reachable(_load(config, _environ(data)))
    _run(cli_shipments.show(settings, out, most=most, as_json=as_json))


@keys_app.command("create")
def keys_create(
    tenant: Annotated[str, typer.Option(help="Who pays.")] = "default",
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Make a key; it is shown this once."""
    settings = _reachable(_load(config, _environ(data)))
    _must_be_known(tenant, settings)

    async def create() -> str:
        async with wiring.core(settings) as core:
            return (await core.keyring.create(tenant, name)).text

    out.print(_run(create()), soft_wrap=True)


@keys_app.command("adopt")
def keys_adopt(
    tenant: Annotated[str, typer.Option(help="Who pays.")] = "default",
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Make a key of your own valid: the one in POINTSMAN_API_KEY. Doing it again changes nothing."""
    settings = _reachable(_load(config, _environ(data)))
    _must_be_known(tenant, settings)
    text = os.environ.get("POINTSMAN_API_KEY")
    if not text:
        _fail("there is no key: set POINTSMAN_API_KEY to the one that shall be valid")

    async def adopt() -> str:
        async with wiring.core(settings) as core:
            return await core.keyring.adopt(text, tenant, name)

    out.print(f"{_run(adopt())} is valid.")


@keys_app.command("list")
def keys_list(config: ConfigOption = None, data: DataOption = None) -> None:
    """All keys, without what they are."""
    settings = _reachable(_load(config, _environ(data)))
    table = Table(Column("id", overflow="fold"), "tenant", "name", "created", "revoked")

    async def rows() -> None:
        async with wiring.core(settings) as core:
            for key in await core.keys.list():
                created = datetime.fromtimestamp(key.created, UTC).isoformat(timespec="seconds")
                table.add_row(key.id, key.tenant, key.name, created, "revoked" if key.revoked else "")

    _run(rows())
    tables.show(out, table)


@keys_app.command("revoke")
def keys_revoke(id: str, config: ConfigOption = None, data: DataOption = None) -> None:
    """End a key, by its id."""
    settings = _reachable(_load(config, _environ(data)))

    async def revoke() -> bool:
        async with wiring.core(settings) as core:
            return await core.keyring.revoke(id)

    if not _run(revoke()):
        _fail(f"there is no key {id!r}; `pointsman keys list` shows all")
    out.print(f"{id} is revoked.")


@board_app.command("rebuild")
def board_rebuild(config: ConfigOption = None, data: DataOption = None) -> None:
    """Make a lost board anew from the log: what is over, what it cost. Then jobs run again."""
    settings = _reachable(_load(config, _environ(data)))

    async def run() -> Rebuilt:
        with Status("reading the log", console=err) as status:
            async with wiring.core(settings) as core:
                return await wiring.rebuild(core)(
                    progress=lambda done: status.update(f"{done.events} events, {done.attempts} attempts")
                )

    done = _run(run())
    out.print(
        f"Read {done.events} events and {done.attempts} attempts; the board did not know "
        f"{done.buried} of the jobs, {done.recounted} of the attempts and {done.keys} of the API keys. "
        "It is whole again.",
        soft_wrap=True,
    )


@app.command("version")
def version_command() -> None:
    """The version of this program."""
    out.print(installed_version("pointsman"))


def _say_version(is_asked: bool) -> None:
    if is_asked:
        version_command()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="The same as `version`.")
    ] = False,
) -> None:
    """A gateway that makes model calls jobs which cannot be lost."""


def _must_be_known(tenant: str, settings: Settings) -> None:
    if tenant not in settings.tenants:
        known = ", ".join(sorted(settings.tenants))
        _fail(f"there is no tenant {tenant!r} in these settings, only {known}; --config FILE names others")


def _findings_at(settings: Settings, backend: Literal["gpu", "bedrock", "sagemaker"]) -> list[Finding]:
    try:
        match backend:
            case "gpu":
                found = asyncio.run(wiring.gpu_troubles(settings))
                return [Finding(Level.ERROR, f"deployments.{name}", trouble) for name, trouble in found]
            case "bedrock":
                return asyncio.run(cli_bedrock.findings(settings))
            case "sagemaker":
                return list(cli_sagemaker.findings(settings))
    except SettingsError as error:
        _fail(str(error))


async def _topics(settings: Settings, *, create: bool) -> int:
    async with wiring.core(settings) as core:
        wanted = wiring.wanted_topics(core)
        if create:
            await core.log.create(wanted)
            await begin(core.log, core.board)
        found, troubles = await core.log.topics(), await core.log.troubles(topics.all_topics(core.deployments))
    table = Table(Column("topic", overflow="fold"), "partitions")
    for name in wanted:
        table.add_row(name, str(found[name]) if name in found else "[red]missing[/red]")
    tables.show(out, table)
    for trouble in troubles:
        err.print(f"warning: {trouble}", style="yellow", soft_wrap=True, markup=False)
    return sum(name not in found for name in wanted)


async def _costs(settings: Settings, by: GroupBy, days: int) -> list[Spent]:
    async with wiring.core(settings) as core:
        if by is GroupBy.BATCH:
            return await unless_away(of_batches(core.redis, core.batches, core.tenants))
        seconds, _ = await core.scripts.time()
        today = datetime.fromtimestamp(seconds, UTC).date()
        wanted = [today - timedelta(days=ago) for ago in range(days)]
        return await unless_away(spent(core.redis, core.tenants, by=cast(By, by.value), days=wanted))


def _write_config(data: Path, upstream: str, model: str, *, has_key: bool) -> Path:
    """The settings file that two flags stand for, in the data folder, where all our processes find it.

    The server's key stays in its variable.
    """
    deployment = {"backend": "gpu", "tier": "light", "url": upstream, "model": model}
    if has_key:
        deployment["api_key"] = f"${{{UPSTREAM_KEY}}}"
    values = {"tenants": {"default": {"aliases": {model: "local"}}}, "deployments": {"local": deployment}}
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = data / "upstream.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def _focus(settings: Settings, file: Path, days: int) -> None:
    try:
        written, unpriced = _run(cli_focus.write(settings, file, days=days))
    except OSError as error:
        _fail(f"{file} cannot be written: {error.strerror}")
    out.print(f"{written} rows.", soft_wrap=True)
    if unpriced:
        err.print(
            f"{unpriced} charge lines have no price: their cost is unknown and they are left out.", style="yellow"
        )


def _cost_values(row: Spent) -> dict[str, object]:
    rate = row.items_per_minute
    return {
        "name": row.name,
        "deployment": row.deployment or None,
        "jobs": row.jobs,
        "retries": row.retries,
        "tokens": row.tokens,
        "usd": None if row.unpriced else plain(row.usd),
        "priced_usd": plain(row.usd),
        "wasted_usd": plain(row.wasted),
        "unpriced": row.unpriced,
        "items_per_minute": None if rate is None else round(rate, 1),
        **dict(
            zip(("machine_busy_usd", "machine_allocated_usd", "machine_total_usd"), _machine_dollars(row), strict=True)
        ),
    }


def _machine_dollars(row: Spent) -> tuple[str | None, str | None, str | None]:
    """Busy, allocated, and what the machines cost on the days on which any of it ran."""
    parts = row.machines.values()
    if not parts:
        return None, None, None
    sums = (sum(each.busy for each in parts), sum(each.allocated for each in parts), sum(each.total for each in parts))
    busy, allocated, total = (plain(Decimal(each).scaleb(-12)) for each in sums)
    return busy, allocated, total


def _sum(rows: list[Spent]) -> Spent:
    total = Spent("all")
    for row in rows:
        total.usd += row.usd
        total.wasted += row.wasted
        total.jobs += row.jobs
        total.attempts += row.attempts
        total.tokens += row.tokens
        total.unpriced += row.unpriced
        total.used(row.machines)
    return total


def _serve(name: ProcessName, config: Path | None, is_child: bool, *arguments: str) -> None:
    import uvloop  # half the cost of a socket of asyncio's own loop

    from gateway import processes  # a web server, which no other command needs

    settings = _load(config, _environ(None))
    if not is_child:  # whoever started it has said what is wrong
        _refuse_errors(settings, _log)
    process: Callable[..., Coroutine[Any, Any, None]] = getattr(processes, name)
    try:
        _run(process(settings, *arguments, until_stdin_closes=is_child), new_loop=uvloop.new_event_loop)
    except typer.Exit:
        raise
    except Exception:  # our own bug: said as everything else that a process says
        log.exception("process_crashed", process=name)
        raise typer.Exit(1) from None


def _print(finding: Finding) -> None:
    err.print(str(finding), soft_wrap=True, markup=False)


def _log(finding: Finding) -> None:
    """Where a machine reads what a process says."""
    if err.is_terminal:
        _print(finding)
    else:
        log.warning("setting_doubtful", severity=finding.level, setting=finding.where, why=finding.message)


def _refuse_errors(settings: Settings, say: Callable[[Finding], None] = _print) -> None:
    findings = check(settings)
    for finding in findings:
        say(finding)
    if any(finding.level is Level.ERROR for finding in findings):
        raise typer.Exit(1)


def _environ(data: Path | None) -> dict[str, str]:
    environ = dict(os.environ)
    if data is not None:
        environ["POINTSMAN_DATA"] = str(data)
    return environ


def _load(config: Path | None, environ: dict[str, str]) -> Settings:
    try:
        return load(config, environ)
    except SettingsError as error:
        _fail(str(error))


def _reachable(settings: Settings) -> Settings:
    """With the URL of the Redis that runs, also when that is the embedded one of another process."""
    if not settings.is_embedded:
        return settings
    url = valkey.url_of_running(settings.data / "valkey")
    if url is None:
        _fail(f"nothing runs on {settings.data}. Start `pointsman up` there, or name the folder with --data")
    return settings.model_copy(update={"redis": url})


def _run(
    coroutine: Coroutine[Any, Any, Result], *, new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> Result:
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(coroutine)
    except EXPECTED as error:
        _fail(_said(error))
    except BaseExceptionGroup as group:
        expected, rest = group.split(EXPECTED)
        if rest is not None or expected is None:
            raise
        _fail("\n".join(_said(error) for error in _leaves(expected)))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _said(error: BaseException) -> str:
    """What it says, and what to do about it where it does not say that itself."""
    match error:
        case BoardRefusedError() | LogRefusedError() | TopicMissingError():
            return str(error)
        case BoardUnavailableError() | LogUnavailableError():
            setting = "log" if "Kafka" in str(error) else "redis"  # Redis may be the log as well
            return f"{error}. Is it up, and does the setting `{setting}` name it? Then try again"
    return str(error)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _fail(message: str) -> NoReturn:
    err.print(f"pointsman: {message}", style="red", soft_wrap=True, markup=False)
    sys.exit(1)


if __name__ == "__main__":
    main()
