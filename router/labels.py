"""Reads prompts and labelled prompts from files of JSON lines, gzipped or not."""

import gzip
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from router import turns
from router.features import count
from router.training import Labelled

LONGEST = 64 * 1024 * 1024  # characters of a line


class RowError(ValueError):
    """A line that cannot be used. The message names the line and what is wrong with it."""


def rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The objects of a file, one a line, with their line numbers. Empty lines are skipped."""
    with path.open("rb") as file, io.TextIOWrapper(_unzipped(path, file), encoding="utf-8") as lines:
        for number in range(1, 2**62):
            line = lines.readline(LONGEST)
            if not line:
                return
            if line.strip():
                yield number, _object(path, number, line)


def _unzipped(path: Path, file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


def _object(path: Path, number: int, line: str) -> Mapping[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RowError(f"{path}, line {number}: this is not JSON") from error
    if not isinstance(row, dict):
        raise RowError(f"{path}, line {number}: this is not an object")
    return row


def body(row: Mapping[str, object]) -> Mapping[str, object]:
    """The row as the body of a call: its `messages`, or its `prompt` as the one user turn. Raises RowError."""
    if isinstance(row.get("messages"), list):
        return row
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return {"messages": [{"role": "user", "content": prompt}]}
    raise RowError("a row needs `prompt` (a text) or `messages` (a list)")


def labelled(row: Mapping[str, object]) -> Labelled:
    """The row with its scores in 0..1: `weak_score`, `strong_score`; `source`, `task`, `scores` if it has them."""
    asked = turns.asked(body(row))
    return Labelled(
        count(asked.text, asked.length),
        str(row.get("source", "")),
        _score(row, "weak_score"),
        _score(row, "strong_score"),
        str(row.get("task", "")),
        _others(row.get("scores")),
    )


def _score(row: Mapping[str, object], name: str) -> float:
    value = row.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise RowError(f"a row needs `{name}`, a number from 0 to 1")


def _others(scores: object) -> dict[str, float]:
    if not isinstance(scores, dict):
        return {}
    numbers = {str(name): value for name, value in scores.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
