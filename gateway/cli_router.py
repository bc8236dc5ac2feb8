"""`pointsman router`: score prompts, explain a score, train the weights, learn from own traffic, replay it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, NoReturn

import typer

from gateway.cli_dlq import ConfigOption, DataOption, moment
from gateway.settings import Settings, SettingsError, load

app = typer.Typer(no_args_is_help=True, help="The score that says where the heavy model pays.")

TenantOption = Annotated[str, typer.Option("--tenant", help="Whose.")]
WeightsOption = Annotated[Path | None, typer.Option("--weights", help="Weights of your own; else the ones shipped.")]


@app.command("score")
def score_command(
    file: Annotated[Path, typer.Argument(help="JSON lines with `id` and `prompt` or `messages`; .gz too.")],
    weights: WeightsOption = None,
) -> None:
    """Print `id` and `score` (0 to 1) of each row, as JSON lines. Needs nothing to be running."""
    with _scoring() as scoring:
        for line in scoring.score(file, weights):
            typer.echo(line)


@app.command("explain")
def explain_command(
    file: Annotated[Path, typer.Argument(help="A prompt as text, or the JSON body of a call.")],
    weights: WeightsOption = None,
) -> None:
    """Say what a prompt's score is made of. Prints words of the prompt."""
    with _scoring() as scoring:
        for line in scoring.explain(file, weights):
            typer.echo(line)


@app.command("train")
def train_command(
    data: Annotated[
        Path,
        typer.Option("--data", help="JSON lines with `prompt`, `weak_score`, `strong_score`, `source`; .gz too."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the weights go.")] = Path("gain.npz"),
    enough: Annotated[int, typer.Option(help="Rows that make a source a kind of its own.", min=50)] = 300,
) -> None:
    """Learn weights from labelled prompts. The same rows in the same order give the same file."""
    with _scoring() as scoring:
        typer.echo(scoring.learn(data, out, enough=enough))


@app.command("fit")
def fit_command(
    context: typer.Context,
    tenant: TenantOption,
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what came of it, and use nothing.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Learn from a tenant's own outcomes. What is not better on rows that it has not seen is not used."""
    opened, run = context.obj
    with _scoring(), _learned() as learned:
        found = run(learned.fit(_of(opened(config, data), tenant), tenant, dry=dry))
        verdict = found.verdict
        if isinstance(verdict, learned.TooFew):
            _refuse(f"{verdict.rows} jobs with an outcome are too few; {learned.fitting.LEAST} are needed")
        said = f"{verdict.rows} jobs, gain a call {verdict.before:+.4f}, now {verdict.before + verdict.more:+.4f}"
        said += f" (with 95 % certainty {verdict.least:+.4f} more at least)"
        if isinstance(verdict, learned.NotBetter):
            _refuse(f"not better on rows that it had not seen, so nothing changes: {said}")
        typer.echo(f"{said}; {'not used' if found.number is None else f'version {found.number} is used from now on'}")


@app.command("versions")
def versions_command(
    context: typer.Context, tenant: TenantOption, config: ConfigOption = None, data: DataOption = None
) -> None:
    """What a tenant's fits have made, the newest first; `*` is in use."""
    opened, run = context.obj
    with _scoring(), _learned() as learned:
        found = run(learned.versions(_of(opened(config, data), tenant), tenant))
        for each in found:
            typer.echo(f"{'*' if each.is_used else ' '} {each.number}  {json.dumps(each.about)}")
        if not any(each.is_used for each in found):
            typer.echo("the shipped weights are in use")


@app.command("rollback")
def rollback_command(
    context: typer.Context,
    tenant: TenantOption,
    to: Annotated[int | None, typer.Option(min=0, help="A version; 0: the shipped weights.")] = None,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Use an older version again."""
    opened, run = context.obj
    with _scoring(), _learned() as learned:
        number = run(learned.use(_of(opened(config, data), tenant), tenant, to))
        if number is None:
            _refuse(f"there is no version {to}; `pointsman router versions` lists them")
        typer.echo(f"version {number} is used from now on" if number else "the shipped weights are used from now on")


@app.command("replay")
def replay_command(
    context: typer.Context,
    tenant: TenantOption,
    policy: Annotated[Path, typer.Option("--policy", help="A settings file with another policy or other deployments.")],
    since: Annotated[str, typer.Option(help="Not before: 2h, 3d, or 2026-11-29T12:00.")] = "7d",
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """What would have gone where, at what price, with which known outcomes: one JSON object."""
    opened, run = context.obj
    with _scoring(), _learned() as learned:
        settings, other = _of(opened(config, data), tenant), _of(_policy(policy), tenant)
        typer.echo(json.dumps(run(learned.replayed(settings, other, tenant, moment(since))), indent=1))


def _policy(file: Path) -> Settings:
    """Settings of which nothing needs to be running."""
    try:
        return load(file, dict(os.environ))
    except SettingsError as error:
        _refuse(str(error))


def _of(settings: Settings, tenant: str) -> Settings:
    if tenant not in settings.tenants:
        _refuse(f"there is no tenant {tenant!r} in these settings; --config FILE names others")
    return settings


def _refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)


@contextmanager
def _learned() -> Iterator[ModuleType]:
    from gateway import learned  # noqa: PLC0415 - numpy, as below

    yield learned


@contextmanager
def _scoring() -> Iterator[ModuleType]:
    """The module that does the work; its errors are said in one line."""
    # One thread: several would add up in another order, and training would give other bytes on other machines.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    from gateway import scoring  # noqa: PLC0415 - numpy, which no other command needs

    try:
        yield scoring
    except scoring.ScoringError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
