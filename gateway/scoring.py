"""What `pointsman router` does. Apart from the commands, because it loads numpy and every process loads those."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from router import labels, turns
from router.features import count
from router.gain import GainScore, Weights, WeightsError, dump, load, parts, predict, shipped, squeezed
from router.training import TooFewError, train

SHOWN = 12
MOST_BYTES = 16 * 1024 * 1024  # of a file to explain


class ScoringError(Exception):
    """A file cannot be read or used. The message names it and what is wrong."""


def score(file: Path, weights: Path | None) -> Iterator[str]:
    """A JSON line with `id` (else the line's number) and `score` for each row. Raises ScoringError."""
    rate = GainScore(_weights(weights))
    for number, row in _rows(file):
        try:
            body = labels.body(row)
        except labels.RowError as error:
            raise ScoringError(f"{file}, line {number}: {error}") from error
        yield json.dumps({"id": row.get("id", number), "score": rate(body).value})


def explain(file: Path, weights: Path | None) -> Iterator[str]:
    """Lines that say what a prompt's score is made of, words of the prompt among them. Raises ScoringError."""
    used = _weights(weights)
    asked = turns.asked(_body(file))
    counted = count(asked.text, asked.length)
    predicted = predict(counted, used)
    yield f"score          {squeezed(predicted.gain):.3f}  (a fifth of the training prompts: above {used.fifth[0]:.3f})"
    yield f"expected gain  {100 * predicted.gain:+.1f} points of quality, heavy over light"
    shares = sorted(predicted.kinds, key=lambda each: -each[1])
    likely = [f"{100 * share:.0f} % {used.shown(kind)}" for kind, share in shares]
    rest = 1 - sum(share for _, share in shares)
    yield f"resembles      {', '.join([*likely, *([f'{100 * rest:.0f} % no known kind'] if rest > 1e-6 else [])])}"
    if asked.is_earlier:
        yield "The last turn only says to go on: an earlier one was scored."
    yield "What moved it most, in points:"
    for part in parts(asked.text, counted, used)[:SHOWN]:
        yield f"  {100 * part.added:+6.2f}  {f'the text {part.words!r}' if part.is_text else part.words}"


def learn(data: Path, out: Path, *, enough: int) -> str:
    """Write weights learned from labelled rows; say what was written. Raises ScoringError."""
    rows = []
    for number, row in _rows(data):
        try:
            rows.append(labels.labelled(row))
        except labels.RowError as error:
            raise ScoringError(f"{data}, line {number}: {error}") from error
    try:
        made = dump(train(rows, enough=enough))
        out.write_bytes(made)
    except (TooFewError, OSError) as error:
        raise ScoringError(f"{data}: {error}") from error
    return f"{out}: {len(made):,} bytes from {len(rows):,} rows"


def _weights(path: Path | None) -> Weights:
    if path is None:
        return shipped()
    try:
        with path.open("rb") as file:
            return load(file)
    except (OSError, WeightsError) as error:
        raise ScoringError(f"{path}: {error}") from error


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    try:
        yield from labels.rows(path)
    except (OSError, EOFError, UnicodeDecodeError, labels.RowError) as error:
        raise ScoringError(f"{path}: {error}" if isinstance(error, UnicodeDecodeError) else str(error)) from error


def _body(path: Path) -> Mapping[str, object]:
    """A JSON body if it is one, else the file's text as the one user turn."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise ScoringError(str(error)) from error
    try:
        read = json.loads(text)
        return labels.body(read) if isinstance(read, dict) else labels.body({"prompt": text})
    except (ValueError, RecursionError):
        return labels.body({"prompt": text})
