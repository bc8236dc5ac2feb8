"""`pointsman router`: score prompts, explain a score, train the weights."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="The score that says where the heavy model pays.")

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
