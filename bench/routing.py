"""What the trained router is worth on labelled public prompts, beside random, prompt length and LiteLLM's heuristics.

    python bench/routing.py --data dev.jsonl.gz [--only folds,families,mmlu,own,drift,time]

Rows: `prompt`, `source`, `task`, `weak_score`, `strong_score`, `group`, `scores`. Figures are of the mean curve of
the sources with at least 100 rows, each with its own threshold. lift@20: of what an oracle gains over random with
20 % heavy, the part gained (random 0); PGR@20: the part of the gap closed (random 0.20); APGR: over all heavy shares
(random 0.5). `folds`: 5 folds by group. `families`: a family of sources is left out of the training, with all that
shares a group with it. `mmlu`: trained on 1,500 rows of MMLU alone, tested on the rest (5 draws). `own`: weights that
have not seen a source's family, corrected by 200 and 500 of its rows (3 draws), and not. `drift`: a day of
four phases, one process and four replicas. `time`: CPU of one score. The last line is one JSON object.
"""

import argparse
import importlib
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from router import labels
from router.evaluation import Answers, Doubles, Worth, lift_difference, worth
from router.fitting import Row, learned
from router.gain import GainScore, Weights, dump, load, predict, shipped, squeezed
from router.tracker import Target, absorbed, moved, scored, start
from router.training import Labelled, train

ENOUGH = 100
MMLU = ("routellm_mmlu", "mmlu_pro")
PARTS = ("folds", "families", "mmlu", "own", "drift", "time")
WINDOW, PHASE = 500, 6_000
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Data:
    """All rows, in the order of the file."""

    prompts: list[str]
    rows: list[Labelled]
    source: NDArray[np.str_]
    group: NDArray[np.str_]

    def sources(self, mask: Mask) -> list[NDArray[np.int64]]:
        """The rows of each source that has enough of them."""
        found = [np.flatnonzero(mask & (self.source == name)) for name in np.unique(self.source)]
        return [at for at in found if len(at) >= ENOUGH]

    def family(self, name: str) -> Mask:
        """The source, and for either MMLU both."""
        return np.isin(self.source, MMLU) if name in MMLU else self.source == name


def main() -> None:
    """Print what was asked for, then the JSON line."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--only", default=",".join(PARTS))
    given = arguments.parse_args()
    wanted = given.only.split(",")
    if unknown := set(wanted) - set(PARTS):
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}")
    data = _read(given.data)
    figures: dict[str, object] = {"rows": len(data.rows)}
    folds = _by_folds(data) if {"folds", "drift"} & set(wanted) else None
    if folds is not None and "folds" in wanted:
        figures["folds"] = _compare("5 folds by group", data, {"this router": folds, **_others(data)})
    if "families" in wanted:
        families = _by_families(data)
        figures["families"] = _compare(
            "one source family left out", data, {"this router": families, "prompt length": _lengths(data)}
        )
    if "mmlu" in wanted:
        figures["mmlu"] = _few(data, "routellm_mmlu", 1_500, draws=5)
    if "own" in wanted:
        figures["own"] = _own(data)
    if folds is not None and "drift" in wanted:
        figures["drift"] = _drift(data, folds)
    if "time" in wanted:
        figures["time"] = _times(data)
    print(json.dumps(figures))


def _read(path: Path) -> Data:
    prompts, rows, groups = [], [], []
    for _, row in labels.rows(path):
        prompts.append(str(row["prompt"]))
        rows.append(labels.labelled(row))
        groups.append(str(row["group"]))
    return Data(prompts, rows, np.array([row.source for row in rows]), np.array(groups))


def _fit(data: Data, mask: Mask | NDArray[np.int64], enough: int = 300) -> Weights:
    """Trained and written and read again: the figures are of what would be shipped."""
    at = np.flatnonzero(mask) if mask.dtype == np.bool_ else mask
    return _reread(train([data.rows[each] for each in at.tolist()], enough=enough))


def _reread(weights: Weights) -> Weights:
    return load(io.BytesIO(dump(weights)))


def _scores(data: Data, weights: Weights, at: NDArray[np.int64]) -> Doubles:
    return np.array([squeezed(predict(data.rows[each].counted, weights).gain) for each in at.tolist()])


def _by_folds(data: Data) -> Doubles:
    fold = np.array([int(group, 16) % 5 for group in data.group])
    made = np.zeros(len(data.rows))
    for which in range(5):
        tested = np.flatnonzero(fold == which)
        made[tested] = _scores(data, _fit(data, fold != which), tested)
    return made


def _by_families(data: Data) -> Doubles:
    made = np.zeros(len(data.rows))
    done = np.zeros(len(data.rows), np.bool_)
    for name in np.unique(data.source).tolist():
        tested = data.family(name)
        if not done[tested].all():
            weights = _fit(data, ~tested & ~np.isin(data.group, data.group[tested]))
            made[tested] = _scores(data, weights, np.flatnonzero(tested))
            done |= tested
    return made


def _lengths(data: Data) -> Doubles:
    return np.array([float(len(prompt)) for prompt in data.prompts])


def _others(data: Data) -> dict[str, Doubles]:
    found = {
        "random": np.random.default_rng(0).random(len(data.rows)),
        "prompt length": _lengths(data),
    }
    for name, rate in _litellm().items():
        found[name] = np.array([rate(prompt) for prompt in data.prompts])
    return found


def _litellm() -> dict[str, Callable[[str], float]]:
    """LiteLLM's two local classifiers as shipped, where it is installed."""
    try:
        complexity = importlib.import_module("litellm.router_strategy.complexity_router.complexity_router")
        tiers = importlib.import_module("litellm.router_strategy.complexity_router.tier_predictor")
    except ImportError:
        print("litellm is not installed: left out")
        return {}
    heuristic = complexity.ComplexityRouter("bench", ctx=SimpleNamespace())
    predictor = tiers.TierSuccessPredictor(tiers.resolve_tier_artifact("ultrafeedback"))
    return {
        "litellm heuristic": lambda prompt: float(heuristic.classify(prompt)[1]),
        "litellm heuristic_v2": lambda prompt: (
            -float(predictor.predict(prompt, complexity.classify_prompt(prompt)).probabilities[1])
        ),
    }


def _worth(data: Data, score: Doubles, members: Sequence[NDArray[np.int64]]) -> Worth:
    return worth([score[at] for at in members], [_answers(data, at) for at in members])


def _answers(data: Data, at: NDArray[np.int64]) -> Answers:
    rows = [data.rows[each] for each in at.tolist()]
    return Answers(np.array([row.light for row in rows]), np.array([row.heavy for row in rows]))


def _compare(title: str, data: Data, routers: dict[str, Doubles]) -> dict[str, object]:
    members = data.sources(np.ones(len(data.rows), np.bool_))
    answers = [_answers(data, at) for at in members]
    groups = [np.unique(data.group[at], return_inverse=True)[1] for at in members]
    ours = [routers["this router"][at] for at in members]
    print(f"\n{title}\n{'':<22}{'lift@20':>9}{'PGR@20':>9}{'APGR':>8}{'CPT50':>8}{'CPT80':>8}   our lift less theirs")
    figures: dict[str, object] = {}
    for name, score in routers.items():
        found = _worth(data, score, members)
        between = ""
        if name != "this router":
            low, high = lift_difference(ours, [score[at] for at in members], answers, groups)
            between = f"   [{low:+.3f}, {high:+.3f}]"
        print(f"{name:<22}{_line(found)}{between}")
        figures[name] = {**_rounded(found), **({"less": [round(low, 4), round(high, 4)]} if between else {})}
    print("  by source, lift@20 / APGR of this router:")
    for at in members:
        found = _worth(data, routers["this router"], [at])
        print(f"    {data.source[at[0]]:<18}{len(at):>6} rows {found.lift:>7.2f} / {found.apgr:.3f}")
    return figures


def _line(found: Worth) -> str:
    return f"{found.lift:>9.3f}{found.pgr:>9.3f}{found.apgr:>8.3f}{found.cpt50:>8.3f}{found.cpt80:>8.3f}"


def _rounded(found: Worth) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(found).items()}


def _few(data: Data, source: str, rows: int, *, draws: int) -> dict[str, float]:
    """Trained on so many rows of one source alone, tested on its other groups; the mean of the draws."""
    found = [worth_ for _, worth_ in _draws(data, source, rows, draws)]
    mean = {name: float(np.mean([getattr(each, name) for each in found])) for name in Worth.__dataclass_fields__}
    print(f"\n{source}, {rows} labelled rows: {_line(Worth(**mean))}   (mean of {draws} draws)")
    return {name: round(value, 4) for name, value in mean.items()}


def _draws(data: Data, source: str, rows: int, draws: int) -> Iterator[tuple[NDArray[np.int64], Worth]]:
    at = np.flatnonzero(data.source == source)
    for taken, tested in _split(data, at, rows, draws=draws):
        score = np.zeros(len(data.rows))
        score[tested] = _scores(data, _fit(data, taken, enough=50), tested)
        yield tested, _worth(data, score, [tested])


def _own(data: Data) -> dict[str, object]:
    """A correction from own rows on weights that have not seen the family, as `pointsman router fit` makes it."""
    print("\nown rows correct weights that have not seen the family, lift@20 / APGR (these weights, on the same rows)")
    figures: dict[str, object] = {}
    for at in data.sources(np.ones(len(data.rows), np.bool_)):
        name = str(data.source[at[0]])
        family = data.family(name)
        prior = _fit(data, ~family & ~np.isin(data.group, data.group[family]))
        for rows in (200, 500):
            if len(at) < rows + ENOUGH:
                continue
            found: list[tuple[Worth, Worth]] = []
            for taken, tested in _split(data, at, rows, draws=3):
                own = [Row(data.rows[each].counted, data.rows[each].gain, str(each)) for each in taken.tolist()]
                correction = learned(own, prior)
                both = []
                for used in (correction, None):
                    made = [predict(data.rows[each].counted, prior, used).gain for each in tested.tolist()]
                    both.append(worth([np.array(made)], [_answers(data, tested)]))
                found.append((both[0], both[1]))
            lift, apgr = (float(np.mean([getattr(own, key) for own, _ in found])) for key in ("lift", "apgr"))
            before = [float(np.mean([getattr(prior, key) for _, prior in found])) for key in ("lift", "apgr")]
            print(f"  {name:<18}{rows:>5} rows {lift:>6.2f} / {apgr:.3f}   ({before[0]:.2f} / {before[1]:.3f})")
            figures[f"{name}:{rows}"] = {"apgr": round(apgr, 4), "before": round(before[1], 4)}
    return figures


def _split(
    data: Data, at: NDArray[np.int64], rows: int, *, draws: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """So many rows, and those of other groups."""
    for draw in range(draws):
        mixed = np.random.default_rng(draw).permutation(at)
        taken, tested = np.sort(mixed[:rows]), np.sort(mixed[rows:])
        yield taken, tested[~np.isin(data.group[tested], data.group[taken])]


def _drift(data: Data, folds: Doubles) -> dict[str, object]:
    """Chat, then exam questions, then maths and code, then chat and exams: 6,000 requests each."""
    chat, exam = ("arena_bench_v1", "llmrouter_qa", "routellm_mt_bench", "routerarena"), MMLU
    phases = (chat, exam, ("routellm_gsm8k", "zeroeval_crux", "llmrouter_code"), (*chat, *exam))
    dice = np.random.default_rng(1)
    day = np.concatenate([dice.choice(np.flatnonzero(np.isin(data.source, phase)), PHASE) for phase in phases])
    score = folds[day]
    gain = np.array([data.rows[at].gain for at in day.tolist()])
    first = folds[np.isin(data.source, chat)]
    print("\ndrift\n  control            heavy by phase           windows of 500   extra correct per 1,000")
    figures: dict[str, object] = {}
    threshold = float(np.quantile(first, 0.8))
    best = np.concatenate([_top(part) for part in np.split(score, len(phases))])
    for name, heavy in {
        "fixed threshold": score > threshold,
        "tracker": _tracked(score, threshold, float(first.std()), 1),
        "tracker, 4 replicas": _tracked(score, threshold, float(first.std()), 4),
        "best of each phase": best,
    }.items():
        windows = heavy.reshape(-1, WINDOW).mean(axis=1)
        by_phase = " ".join(f"{share:.2f}" for share in heavy.reshape(len(phases), -1).mean(axis=1))
        extra = 1_000 * float((gain * heavy).mean())
        print(f"  {name:<20} {by_phase:<22}  {windows.min():.3f} to {windows.max():.3f}  {extra:>8.1f}")
        figures[name] = {
            "least": round(float(windows.min()), 4),
            "most": round(float(windows.max()), 4),
            "extra": round(extra, 1),
        }
    return figures


def _top(score: Doubles) -> Mask:
    return np.argsort(np.argsort(-score, kind="stable"), kind="stable") < len(score) // 5


def _tracked(score: Doubles, fifth: float, deviation: float, replicas: int) -> Mask:
    """Each replica tells what it learned after every 40 of its own decisions, at a time of its own."""
    target = Target(0.2)
    common = start(target, fifth=fifth, deviation=deviation)
    bases, levels, made = [common] * replicas, [common] * replicas, [10 * at for at in range(replicas)]
    heavy = np.zeros(len(score), np.bool_)
    for at, value in enumerate(score.tolist()):
        which = at % replicas
        decided = scored(target.of_one(replicas), levels[which], value)
        heavy[at], levels[which] = decided.is_heavy, decided.level
        made[which] += 1
        if replicas > 1 and made[which] % 40 == 0:
            common = absorbed(target, common, moved(bases[which], levels[which]), replicas=replicas)
            bases[which] = levels[which] = common
    return heavy


def _times(data: Data) -> dict[str, float]:
    """CPU milliseconds of the whole score, reasons included."""
    rate = GainScore(shipped())
    drawn = np.random.default_rng(0).permutation(len(data.prompts))[:1_500].tolist()
    prompts = [data.prompts[at] for at in drawn]
    joined = " ".join(prompts)
    long = [joined[at : at + 32_768] for at in range(0, 32_768 * 10, 32_768)]
    spans = {"prompts": _spans(rate, prompts), "32 kB": _spans(rate, long), "1 MB": _spans(rate, [joined * 4] * 10)}
    hostile = [mark * 1_000_000 for mark in ("a", "(", "\n", " ", "A. ", "\nA. ", "9", "é", "日", "\x00")]
    spans["1 MB, hostile"] = _spans(rate, hostile)
    figures = {}
    print("\nCPU of one score, ms      p50     p99")
    for name, times in spans.items():
        p50, p99 = np.quantile(times, [0.5, 0.99]).tolist()
        print(f"  {name:<22}{p50:>7.3f} {p99:>7.3f}")
        figures[f"{name} p50_ms"], figures[f"{name} p99_ms"] = round(p50, 3), round(p99, 3)
    return figures


def _spans(rate: GainScore, prompts: Sequence[str]) -> list[float]:
    times = []
    for prompt in prompts:
        began = time.thread_time()
        rate(_body(prompt))
        times.append((time.thread_time() - began) * 1_000)
    return times


def _body(prompt: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": prompt}]}


if __name__ == "__main__":
    main()
