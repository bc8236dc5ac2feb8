"""Charges and terminal events as JSON: on the board, in the outbox and on their topics. Money is decimal text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from policies.pricing import UNITS, Basis, ChargeLine, Meter, Usage, total
from router import compact
from router.job import Job, JobState
from router.log import Record

LATE = 10_000  # and the number of an attempt: what that used after it was given up


def attempt_text(
    job: Job, attempt: int, microbatch: str, lines: Sequence[ChargeLine], tokens: int, *, concluded: bool
) -> str:
    """One attempt as a JSON object: what it ran on, whether it concluded the job, and its lines."""
    usd = total(tuple(lines))
    return compact.text(
        {
            "type": "attempt",
            "tenant": job.tenant,
            "job": job.id,
            "attempt": attempt,
            "deployment": job.route.deployment,
            "lane": job.route.lane,
            "microbatch": microbatch or None,
            "key": job.limited_key or None,
            "concluded": concluded,
            "tokens": tokens,
            "usd": None if usd is None else plain(usd),
            "lines": [_values(line) for line in lines],
        }
    )


def lines_of(text: str | bytes) -> tuple[ChargeLine, ...]:
    """The lines of a text that `attempt_text` made."""
    return tuple(
        ChargeLine(
            job=row["job"],
            attempt=row["attempt"],
            meter=Meter(row["meter"]),
            quantity=row["quantity"],
            usd_per_million=_decimal(row["usd_per_million"]),
            usd=_decimal(row["usd"]),
            basis=Basis(row["basis"]),
            outcome=row["outcome"],
            price_source=row["price_source"],
            tier=row.get("tier", ""),
        )
        for row in json.loads(text)["lines"]
    )


@dataclass(frozen=True, slots=True)
class Ended:
    """What a terminal event says. `at` is on the board's clock; 0 where it is not said."""

    tenant: str
    job_id: str
    state: JobState
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Charged:
    """What an attempt's record on the ledger says. `at` is on the board's clock; `usd` is None without a price.

    `is_useful`: its dollars bought the answer that the job has.
    """

    tenant: str
    job_id: str
    number: int
    at: float
    deployment: str
    lane: str
    key: str
    concluded: bool
    tokens: int
    usd: Decimal | None
    usage: Usage
    is_useful: bool


def event_of(record: Record) -> Ended | None:
    """The terminal event of a record; None when it is something else."""
    try:
        event = json.loads(record.value)
        state = JobState(event["type"].removeprefix("job."))
        at = int(record.headers.get("at-ms", 0)) / 1000
        return Ended(event["tenant"], event["data"]["id"].removeprefix("job_"), state, at)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def attempt_of(record: Record) -> Charged | None:
    """The attempt of a record; None when it is something else, a microbatch for one."""
    try:
        row = json.loads(record.value)
        if row["type"] != "attempt":
            return None
        return Charged(
            tenant=row["tenant"],
            job_id=row["job"],
            number=int(row["attempt"]),
            at=int(record.headers["at-ms"]) / 1000,
            deployment=row["deployment"],
            lane=row["lane"],
            key=row.get("key") or "",
            concluded=bool(row["concluded"]),
            tokens=int(row["tokens"]),
            usd=_decimal(row["usd"]),
            usage=used(row["lines"]),
            is_useful=bool(row["concluded"]) and any(line["outcome"] == "completed" for line in row["lines"]),
        )
    except (ArithmeticError, AttributeError, ValueError, KeyError, TypeError, RecursionError):
        return None


def used(lines: Sequence[Mapping[str, Any]]) -> Usage:
    """What the lines of an attempt, as they are in its JSON, add up to."""
    return Usage(**{Meter(line["meter"]): line["quantity"] for line in lines})


def event_text(
    job: Job, state: JobState, *, usd: Decimal | None, attempts: int = 0, error_code: str | None = None
) -> str:
    """A job's terminal event as a JSON object, without content. `usd` is what all `attempts` cost.

    What stands under `private` is for the outbox, and leaves it before the event goes to the log.
    """
    private: dict[str, object] = {}
    if job.webhook_url:
        private["webhook_url"] = job.webhook_url
    if job.reply:
        private["reply"] = {"topic": job.reply.topic, "correlation_id": job.reply.correlation_id}
    return compact.text(
        {
            "id": f"evt_{job.id}.{attempts}",  # a job that an operator runs again ends twice
            "type": f"job.{state}",
            "tenant": job.tenant,
            "data": {"id": f"job_{job.id}"},
            "endpoint": job.endpoint,
            "model": job.model,
            "deployment": job.route.deployment,
            "lane": job.route.lane,
            "class": job.job_class,
            "metadata": dict(job.metadata),
            "usd": None if usd is None else plain(usd),
            "error_code": error_code,
            "batch": f"batch_{job.line.batch}" if job.line else None,
            **({"private": private} if private else {}),
        }
    )


def plain(usd: Decimal) -> str:
    """Dollars without an exponent and without trailing zeros."""
    text = f"{usd:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _values(line: ChargeLine) -> dict[str, object]:
    return {
        "id": line.id,
        "job": line.job,
        "attempt": line.attempt,
        "meter": line.meter,
        "quantity": line.quantity,
        "unit": UNITS[line.meter],
        "usd_per_million": None if line.usd_per_million is None else plain(line.usd_per_million),
        "usd": None if line.usd is None else plain(line.usd),
        "basis": line.basis,
        "outcome": line.outcome,
        "price_source": line.price_source,
        **({"tier": line.tier} if line.tier else {}),
    }


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
