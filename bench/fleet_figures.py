"""What the fleet drill says, out of what became of its jobs."""

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.fleet_jobs import BLOCKS, DECODE, ENGINES, PREFILL, SLOTS, Traffic, blocks_of, prompt_of
from bench.fleet_oracle import Served, Server, Work, served

DRAWS = 100  # of who gets what by chance


@dataclass(frozen=True, slots=True)
class Ended:
    """A job: when it came (a moment), its seconds until it was done (None: it was lost), and its attempts."""

    at: float
    body: dict[str, Any]
    seconds: float | None
    attempts: int

    def work(self, since: float) -> Work:
        """As the oracle gets it, `since` a moment."""
        return Work(self.at - since, blocks_of(prompt_of(self.body)), self.body["max_tokens"])


@dataclass(frozen=True, slots=True)
class Well:
    """What came of a phase in which nothing failed, and before it, while the caches filled, from `began` on.

    By engine the seconds that slots were held while jobs came, and the calls.
    """

    began: float
    settled: Sequence[Ended]
    jobs: Sequence[Ended]
    held_s: Sequence[float]
    calls: Sequence[float]
    hit_rate: float


@dataclass(frozen=True, slots=True)
class Failing:
    """What came of the phase with failures, and before them, while the caches filled, from `began` on."""

    began: float
    settled: Sequence[Ended]
    jobs: Sequence[Ended]
    most_waiting: float


def figures(
    spread: Well,
    near: Well,
    failing: Failing,
    servers: Sequence[Server],
    traffic: Traffic,
    *,
    seconds: float,
    faster: float,
) -> dict[str, float]:
    """The last line of the drill. `servers` are the oracle's; failures went on for so many seconds."""
    jobs = _in_order(failing.jobs)
    out = sum(outage.until - outage.closed for each in servers for outage in each.outages)
    at_best = _at_best(failing, servers)
    ours = [each.seconds for each in jobs if each.seconds is not None]
    best_s = [each.seconds for each in at_best]
    attempts = sum(each.attempts for each in jobs)
    every = [each for phase in (spread, near, failing) for each in (*phase.settled, *phase.jobs)]
    return {
        "jobs": len(spread.jobs) + len(near.jobs) + len(jobs),
        "lost": sum(each.seconds is None for each in every),
        "p50_s": round(statistics.median(ours), 3),
        "oracle_p50_s": round(statistics.median(best_s), 3),
        "p95_s": round(p95(ours), 3),
        "oracle_p95_s": round(p95(best_s), 3),
        "p95_over_oracle": round(p95(ours) / p95(best_s), 3),
        "utilisation": round(sum(_held(at_best)) / (SLOTS * (ENGINES * seconds - out)), 3),
        "retries_share": round((attempts - len(jobs)) / attempts, 4),
        "uneven": round(_uneven(spread.held_s), 3),
        "uneven_with_affinity": round(_uneven(near.held_s), 3),
        "uneven_oracle": round(_uneven(_oracles(near, faster)), 3),
        "uneven_by_chance": round(_by_chance(near.jobs), 3),
        "uneven_calls": round(_uneven(spread.calls), 3),
        "uneven_calls_with_affinity": round(_uneven(near.calls), 3),
        "hit_rate": round(near.hit_rate, 3),
        "random_hit_rate": round(spread.hit_rate, 3),
        "hit_rate_over_random": round(near.hit_rate / max(spread.hit_rate, 0.001), 2),
        "hits_of_best": round(near.hit_rate / _best_hit_rate(traffic, near.jobs), 3),
        "most_waiting": failing.most_waiting,
    }


def p95(seconds: Sequence[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(seconds, n=20)[-1]


def _at_best(phase: Well | Failing, servers: Sequence[Server]) -> list[Served]:
    """What the oracle would have made of its jobs."""
    before, jobs = _in_order(phase.settled), _in_order(phase.jobs)
    return served([each.work(phase.began) for each in before + jobs], servers)[len(before) :]


def _oracles(phase: Well, faster: float) -> list[float]:
    """By server the seconds of slots while jobs came, if the oracle had chosen."""
    servers = [Server(SLOTS, PREFILL * faster, DECODE * faster, BLOCKS) for _ in range(ENGINES)]
    return _held(_at_best(phase, servers), until=max(each.at for each in phase.jobs) - phase.began)


def _held(jobs: Iterable[Served], *, until: float = math.inf) -> list[float]:
    held = [0.0] * ENGINES
    for server, begins, ends in (span for each in jobs for span in each.spans):
        held[server] += max(0.0, min(ends, until) - begins)
    return held


def _by_chance(jobs: Sequence[Ended]) -> float:
    """How uneven it is on average if each job, for as long as it took, was anywhere."""
    draw, until, found = random.Random(0), max(each.at for each in jobs), []
    seconds = [min(each.seconds or 0.0, until - each.at) for each in jobs]
    for _ in range(DRAWS):
        held = [0.0] * ENGINES
        for each in seconds:
            held[draw.randrange(ENGINES)] += each
        found.append(_uneven(held))
    return statistics.fmean(found)


def _in_order(jobs: Sequence[Ended]) -> list[Ended]:
    return sorted(jobs, key=lambda each: each.at)


def _uneven(each: Sequence[float]) -> float:
    mean = statistics.fmean(each)
    return max(abs(one - mean) for one in each) / mean


def _best_hit_rate(traffic: Traffic, jobs: Sequence[Ended]) -> float:
    """Of prompt tokens, what all of its family share: each has come before."""
    return len(jobs) * traffic.characters / sum(len(prompt_of(each.body)) for each in jobs)
