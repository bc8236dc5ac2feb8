"""Whether the books are right after a drill: what clients were told, what upstream saw, what board and ledger say."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from bench.provider_double import Call
from bench.servers import TENANT, Stage
from router import topics
from router.board import JobView
from router.costs import spent
from router.job import JobState

VIEWS_AT_ONCE = 500
LOOK_S = 0.2

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Books:
    """What is on `ledger.charges` and `jobs.events`, repeats dropped by their ids. `contradictions` say two things."""

    attempts: Mapping[str, Row]  # job.attempt -> the attempt
    events: Mapping[str, Row]  # event id -> the event
    repeats: int
    contradictions: int

    @classmethod
    async def read(cls, place: Stage) -> "Books":
        """All of both topics."""
        charges = [row for row in await _everything(place, topics.CHARGES) if row["type"] == "attempt"]
        events = await _everything(place, topics.EVENTS)
        attempts = {name_of(row): row for row in charges}
        by_id: dict[str, Row] = {row["id"]: row for row in events}
        contradictions = sum(attempts[name_of(row)] != row for row in charges)
        contradictions += sum(by_id[row["id"]] != row for row in events)
        repeats = len(charges) - len(attempts) + len(events) - len(by_id)
        return cls(attempts, by_id, repeats, contradictions)

    @property
    def usd(self) -> Decimal:
        """The sum of all charge lines, each counted once."""
        lines = {line["id"]: line["usd"] for row in self.attempts.values() for line in row["lines"]}
        return sum((Decimal(usd) for usd in lines.values()), Decimal(0))


@dataclass(frozen=True, slots=True)
class Audit:
    """What is wrong, which should be nothing, and what was done twice. `usd_*` are three ways to one sum."""

    jobs: int
    lost: int
    completed_twice: int
    usd_ledger: Decimal
    usd_rollups: Decimal
    usd_jobs: Decimal
    calls_off_ledger: int  # calls that upstream saw and that no attempt stands for, or more than one call for one
    charged_unseen: int  # attempts that are charged as made, and that upstream never saw
    misquoted: int  # attempts with other quantities than upstream's own
    contradictions: int
    repeats: int
    calls: int
    duplicate_calls: int
    lost_attempts: frozenset[str] = field(repr=False)
    aborted_attempts: frozenset[str] = field(repr=False)

    @property
    def dollars_off(self) -> Decimal:
        """The largest difference between the three sums."""
        sums = (self.usd_ledger, self.usd_rollups, self.usd_jobs)
        return max(sums) - min(sums)

    @property
    def is_clean(self) -> bool:
        """Nothing lost, nothing done twice, not a picodollar off."""
        wrong = (self.lost, self.completed_twice, self.calls_off_ledger, self.charged_unseen, self.misquoted)
        return not any(wrong) and not self.contradictions and self.dollars_off == 0


async def settled(place: Stage, within: float) -> bool:
    """Wait until no job is unfinished and nothing waits to be published; False when that takes longer."""
    loop, redis = asyncio.get_running_loop(), place.core.redis
    ends = loop.time() + within
    while loop.time() < ends:
        unfinished = await redis.zcard(f"{{t:{TENANT}}}:unfinished")
        waiting = await redis.hlen(f"{{t:{TENANT}}}:outbox")
        if not unfinished and not waiting:
            return True
        await asyncio.sleep(LOOK_S)
    return False


async def audit(place: Stage, accepted: Mapping[str, str], seen: Sequence[Call]) -> Audit:
    """Compare everything. `accepted`: the caller's number of each job that was accepted, and the job's bare id."""
    books = await Books.read(place)
    views = await views_of(place, list(accepted.values()))
    answered = [call for call in seen if call.state != "refused"]
    by_job: dict[str, list[Row]] = defaultdict(list)
    for row in books.attempts.values():
        by_job[row["job"]].append(row)
    ended = Counter(row["data"]["id"].removeprefix("job_") for row in books.events.values())
    completed = [row for row in books.events.values() if row["type"] == "job.completed"]
    whole = {row["data"]["id"].removeprefix("job_") for row in completed}
    today = datetime.now(UTC).date()
    rows = await spent(place.core.redis, [TENANT], by="tenant", days=[today, today - timedelta(days=1)])
    return Audit(
        jobs=len(accepted),
        lost=sum(
            _state(views.get(job)) is not JobState.COMPLETED or job not in whole or not by_job[job]
            for job in accepted.values()
        ),
        completed_twice=sum(
            (
                sum(count > 1 for count in ended.values()),
                sum(sum(map(_completed, attempts)) > 1 for attempts in by_job.values()),
                sum(count > 1 for count in Counter(row["metadata"].get("number") for row in completed).values()),
            )
        ),
        usd_ledger=books.usd,
        usd_rollups=sum((row.usd for row in rows), Decimal(0)),
        usd_jobs=sum((view.usd or Decimal(0) for view in views.values()), Decimal(0)),
        calls_off_ledger=sum(
            count > 1 or name not in books.attempts for name, count in Counter(call.request for call in seen).items()
        ),
        charged_unseen=len(
            {name for name, row in books.attempts.items() if outcome_of(row) not in ("lost", "crashed", "")}
            - {call.request for call in seen}
        ),
        misquoted=sum(_is_misquoted(call, books.attempts.get(call.request)) for call in answered),
        contradictions=books.contradictions,
        repeats=books.repeats,
        calls=len(seen),
        duplicate_calls=len(answered) - len({call.request.rpartition(".")[0] for call in answered}),
        lost_attempts=_with_outcome(books, "lost"),
        aborted_attempts=_with_outcome(books, "aborted"),
    )


def name_of(row: Row) -> str:
    """An attempt's name, which is also the id of its request upstream."""
    return f"{row['job']}.{row['attempt']}"


def outcome_of(row: Row) -> str:
    """How an attempt ended; empty when it used nothing."""
    return str(row["lines"][0]["outcome"]) if row["lines"] else ""


def _with_outcome(books: Books, outcome: str) -> frozenset[str]:
    return frozenset(name for name, row in books.attempts.items() if outcome_of(row) == outcome)


def _completed(row: Row) -> bool:
    return outcome_of(row) == "completed"


def _is_misquoted(call: Call, row: Row | None) -> bool:
    if row is None or not _completed(row):
        return False
    quantities = {line["meter"]: line["quantity"] for line in row["lines"]}
    return quantities != {"input": call.prompt, "output": call.output}


def _state(view: JobView | None) -> JobState | None:
    return None if view is None else view.state


async def views_of(place: Stage, ids: Sequence[str]) -> dict[str, JobView]:
    """Of those that the board knows."""
    found: dict[str, JobView] = {}
    for first in range(0, len(ids), VIEWS_AT_ONCE):
        some = ids[first : first + VIEWS_AT_ONCE]
        views = await asyncio.gather(*(place.core.board.view(TENANT, job) for job in some))
        found |= {job: view for job, view in zip(some, views, strict=True) if view is not None}
    return found


async def _everything(place: Stage, topic: str) -> list[Row]:
    return [json.loads(delivery.record.value) async for delivery in place.core.log.read(topic)]
