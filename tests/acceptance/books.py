"""Whether the books are right: what upstream saw, what the ledger says, what the jobs say, what the sums say."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from router import topics
from router.log import Log
from tests.doubles import Calls

Lines = Mapping[str, str]  # meter -> dollars


@dataclass(frozen=True, slots=True)
class Books:
    """What is on `ledger.charges` and `jobs.events`. Repeats of a record count once, and say the same."""

    attempts: Mapping[str, Mapping[str, Any]]  # job.attempt -> the attempt
    events: Mapping[str, Mapping[str, Any]]  # job -> its terminal event

    @classmethod
    async def read(cls, log: Log) -> "Books":
        """All of both topics."""
        charges = [each for each in await _everything(log, topics.CHARGES) if each["type"] == "attempt"]
        events = await _everything(log, topics.EVENTS)
        return cls(
            attempts=_once({f"{each['job']}.{each['attempt']}": each for each in charges}, charges, _attempt_name),
            events=_once({_job_of(each): each for each in events}, events, _job_of),
        )

    @property
    def usd(self) -> Decimal:
        """Everything that was spent."""
        return sum((Decimal(each["usd"]) for each in self.attempts.values()), Decimal(0))


def check(jobs: Sequence[Mapping[str, Any]], seen: Calls, books: Books, *, most_repeated: int) -> Mapping[str, int]:
    """Every job completed once, every call that upstream saw on the ledger once; returns what there was to see."""
    ids = {_bare(job["id"]) for job in jobs}
    assert len(ids) == len(jobs)
    assert Counter(job["status"] for job in jobs) == {"completed": len(jobs)}
    assert {job: event["type"] for job, event in books.events.items()} == dict.fromkeys(ids, "job.completed")

    assert set(seen.by_job) == ids
    assert set(seen.by_request.values()) == {1}, "an attempt was sent twice under one number"
    repeated = seen.total - len(jobs)
    assert 0 <= repeated <= most_repeated

    # An attempt whose process died may or may not have reached upstream: it is charged as "lost" in either case.
    outcomes = {name: _outcome(each) for name, each in books.attempts.items()}
    assert set(seen.by_request) <= outcomes.keys(), "upstream saw a call that is not on the ledger"
    assert {name for name in outcomes if name not in seen.by_request} <= {
        name for name, outcome in outcomes.items() if outcome == "lost"
    }
    assert Counter(name.rpartition(".")[0] for name, outcome in outcomes.items() if outcome == "completed") == (
        dict.fromkeys(ids, 1)
    )

    on_ledger: dict[str, list[Any]] = defaultdict(list)
    for name in sorted(books.attempts):
        on_ledger[name.rpartition(".")[0]] += [_line(line) for line in books.attempts[name]["lines"]]
    on_jobs = {_bare(job["id"]): [_line(line) for line in job["pointsman"]["charges"]] for job in jobs}
    assert on_jobs == on_ledger
    return {"calls": seen.total, "repeated": repeated, "lost": list(outcomes.values()).count("lost")}


async def _everything(log: Log, topic: str) -> list[Mapping[str, Any]]:
    return [json.loads(delivery.record.value) async for delivery in log.read(topic)]


def _once(by_name: Mapping[str, Mapping[str, Any]], records: Sequence[Mapping[str, Any]], name: Any) -> Any:
    assert all(by_name[name(record)] == record for record in records), "two records with one id say different things"
    return by_name


def _attempt_name(record: Mapping[str, Any]) -> str:
    return f"{record['job']}.{record['attempt']}"


def _job_of(event: Mapping[str, Any]) -> str:
    return _bare(event["data"]["id"])


def _bare(job_id: str) -> str:
    return job_id.removeprefix("job_")


def _outcome(attempt: Mapping[str, Any]) -> str:
    [outcome] = {line["outcome"] for line in attempt["lines"]}
    return str(outcome)


def _line(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line["attempt"], line["meter"], line["quantity"], Decimal(line["usd"]), line["basis"], line["outcome"]
