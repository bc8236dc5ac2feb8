"""`pointsman router`: score prompts, explain a score, train the weights."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from router import labels, turns
from router.features import count
from router.gain import GainScore, Weights, WeightsError, dump, load, parts, predict, shipped, squeezed
from router.training import TooFewError, train

app = typer.Typer(no_args_is_help=True, help="The score that says where the heavy model pays.")
out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

SHOWN = 12
MOST_BYTES = 16 * 1024 * 1024  # of a file to explain

WeightsOption = Annotated[Path | None, typer.Option("--weights", help="Weights of your own; else the ones shipped.")]
RowsArgument = Annotated[Path, typer.Argument(help="JSON lines with `id` and `prompt` or `messages`; .gz too.")]


@app.command("score")
def score_command(file: RowsArgument, weights: WeightsOption = None) -> None:
    """Print `id` and `score` (0 to 1) for each row, as JSON lines. Needs nothing to be running."""
    rate = GainScore(_weights(weights))
    for number, row in _rows(file):
        try:
            value = rate(labels.body(row)).value
        except labels.RowError as error:
            _fail(f"{file}, line {number}: {error}")
        sys.stdout.write(json.dumps({"id": row.get("id", number), "score": value}) + "\n")


@app.command("explain")
def explain_command(
    file: Annotated[Path, typer.Argument(help="A prompt as text, or the JSON body of a call.")],
    weights: WeightsOption = None,
) -> None:
    """Say what a prompt's score is made of. Prints words of the prompt."""
    used = _weights(weights) or shipped()
    asked = turns.asked(_body(file))
    counted = count(asked.text, asked.length)
    predicted = predict(counted, used)
    out.print(f"score          {squeezed(predicted.gain, used):.3f}  (0.8 and above: a fifth of the training prompts)")
    out.print(f"expected gain  {100 * predicted.gain:+.1f} points of quality, heavy over light")
    shares = zip(used.kinds.tolist(), predicted.kinds.tolist(), strict=True)
    likely = [f"{100 * share:.0f} % {kind}" for kind, share in sorted(shares, key=lambda each: -each[1]) if share > 0]
    rest = 1 - float(predicted.kinds.sum())
    out.print(f"resembles      {', '.join([*likely, *([f'{100 * rest:.0f} % no known kind'] if rest > 1e-6 else [])])}")
    if asked.is_earlier:
        out.print("the last turn only says to go on: an earlier one was scored")
    out.print("what moved it most, in points:")
    for part in parts(counted, used)[:SHOWN]:
        what = f"the text {part.words!r}" if part.is_text else part.words
        out.print(f"  {100 * part.added:+6.2f}  {what}")


@app.command("train")
def train_command(
    data: Annotated[
        Path,
        typer.Option("--data", help="JSON lines with `prompt`, `weak_score`, `strong_score`, `source`; .gz too."),
    ],
    out_file: Annotated[Path, typer.Option("--out", help="Where the weights go.")] = Path("gain.npz"),
    enough: Annotated[int, typer.Option(help="Rows that make a source a kind of its own.", min=50)] = 300,
) -> None:
    """Learn weights from labelled prompts. The same rows in the same order give the same file."""
    rows = []
    for number, row in _rows(data):
        try:
            rows.append(labels.labelled(row))
        except labels.RowError as error:
            _fail(f"{data}, line {number}: {error}")
    try:
        made = dump(train(rows, enough=enough))
    except TooFewError as error:
        _fail(f"{data}: {error}")
    out_file.write_bytes(made)
    out.print(f"{out_file}: {len(made):,} bytes from {len(rows):,} rows")


def _weights(path: Path | None) -> Weights | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return load(file)
    except (OSError, WeightsError) as error:
        _fail(f"{path}: {error}")


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    try:
        yield from labels.rows(path)
    except (OSError, EOFError, UnicodeDecodeError, labels.RowError) as error:
        _fail(str(error))


def _body(path: Path) -> Mapping[str, object]:
    """A JSON body if it is one, else the file's text as the one user turn."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        _fail(str(error))
    try:
        read = json.loads(text)
        return labels.body(read) if isinstance(read, dict) else labels.body({"prompt": text})
    except (ValueError, RecursionError):
        return labels.body({"prompt": text})


def _fail(message: str) -> NoReturn:
    err.print(message)
    raise typer.Exit(1)
