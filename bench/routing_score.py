"""What the complexity score is worth on labelled prompts, beside prompt length and chance.

    python bench/routing_score.py --data rows.jsonl.gz [--rows 1000]

Each row has `prompt`, `source`, `weak_score` and `strong_score` (0 to 1). Figures are means over the sources
of at least 100 rows, each with its own threshold. `lift_20`: of what an oracle gains over chance with 20 %
heavy, the part that is gained (chance 0). `apgr`: the part of the gap between the models that is closed, mean
over all heavy shares (chance 0.5). The last line is one JSON object: `rows score_lift_20 score_apgr
length_lift_20 length_apgr heavy_share p50_ms p99_ms`; `heavy_share` is what the default threshold sends to
heavy of all rows, the times are CPU of one score each.

The weights were set on such rows, so on the same rows the figures are a little too good.
"""

import argparse
import gzip
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from router.complexity import THRESHOLD, score

BUDGET = 0.2
ENOUGH = 100


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt's source, the gain of heavy over light on it, and what two routers make of it."""

    source: str
    gain: float
    score: float
    length: float
    seconds: float


def main() -> None:
    """Print the table, then the JSON line."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--rows", type=int, default=1_000_000, help="read at most so many")
    given = arguments.parse_args()
    rows = _read(given.data, given.rows)
    ours, length = _worth(rows, "score"), _worth(rows, "length")
    times = sorted(row.seconds * 1_000 for row in rows)
    figures = {
        "rows": len(rows),
        "score_lift_20": round(ours[0], 3),
        "score_apgr": round(ours[1], 3),
        "length_lift_20": round(length[0], 3),
        "length_apgr": round(length[1], 3),
        "heavy_share": round(sum(row.score >= THRESHOLD for row in rows) / len(rows), 3),
        "p50_ms": round(times[len(times) // 2], 3),
        "p99_ms": round(times[len(times) * 99 // 100], 3),
    }
    print(f"{'router':<16}{'lift@20 %':>10}{'APGR':>8}")
    for name, (lift, apgr) in {"chance": (0.0, 0.5), "prompt length": length, "score": ours}.items():
        print(f"{name:<16}{lift:>10.3f}{apgr:>8.3f}")
    print(json.dumps(figures))


def _read(path: Path, most: int) -> list[Row]:
    rows = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in islice(lines, most):
            row = json.loads(line)
            body = {"messages": [{"role": "user", "content": row["prompt"]}]}
            start = time.thread_time()
            value = score(body).value
            seconds = time.thread_time() - start
            gain = row["strong_score"] - row["weak_score"]
            rows.append(Row(row["source"], gain, value, float(len(row["prompt"])), seconds))
    return rows


def _worth(rows: Sequence[Row], router: str) -> tuple[float, float]:
    """Lift at the budget, and APGR: ratios of the means over the sources."""
    by_source: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_source[row.source].append(row)
    ours, chance, oracle, area, gap = [], [], [], [], []
    for each in by_source.values():
        if len(each) < ENOUGH:
            continue
        curve = _curve([(getattr(row, router), row.gain) for row in each])
        best = _curve([(max(0.0, row.gain), max(0.0, row.gain)) for row in each])
        ours.append(_at(curve, BUDGET))
        chance.append(BUDGET * curve[-1][1])
        oracle.append(_at(best, BUDGET))
        area.append(sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in pairwise(curve)))
        gap.append(curve[-1][1])
    if not gap:
        raise SystemExit(f"no source has {ENOUGH} rows")
    mean = statistics.fmean
    return (mean(ours) - mean(chance)) / (mean(oracle) - mean(chance)), mean(area) / mean(gap)


def _curve(scored: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Heavy share and mean gain, highest scores first; ties are split in expectation."""
    gains: dict[float, list[float]] = defaultdict(list)
    for value, gain in scored:
        gains[value].append(gain)
    points, heavy, gained = [(0.0, 0.0)], 0, 0.0
    for value in sorted(gains, reverse=True):
        heavy, gained = heavy + len(gains[value]), gained + sum(gains[value])
        points.append((heavy / len(scored), gained / len(scored)))
    return points


def _at(curve: Sequence[tuple[float, float]], share: float) -> float:
    for (x1, y1), (x2, y2) in pairwise(curve):
        if x2 >= share:
            return y1 + (y2 - y1) * (share - x1) / (x2 - x1)
    return curve[-1][1]


if __name__ == "__main__":
    main()
