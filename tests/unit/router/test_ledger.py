"""What goes to the ledger and to `jobs.events`: exact money, no content, ids that tell repeats."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pricing import Basis, Meter, Price, Usage, charge, total
from router import ledger
from router.job import Job, JobState
from router.ledger import Charged, Ended
from router.log import Record
from tests.builders import PRICE, a_charge, a_job

PROMPT = "the secret of the client"
DOLLARS = st.decimals(0, 10**7, places=12)


def attempt(job: Job, usage: Usage, price: Price | None = PRICE) -> dict[str, Any]:
    text: dict[str, Any] = json.loads(a_charge(job, usage=usage, price=price).text(job, concluded=True))
    return text


def test_an_attempt_tells_where_it_ran_and_what_each_meter_cost() -> None:
    job = a_job()

    row = attempt(job, Usage(input=1_000_000, output=3))

    assert (row["type"], row["tenant"], row["job"], row["attempt"]) == ("attempt", "acme", job.id, 1)
    assert (row["deployment"], row["lane"], row["microbatch"]) == ("small", "echo.text.light", "mb_1")
    assert (row["concluded"], row["tokens"], row["usd"]) == (True, 1_000_003, "0.1500018")
    assert [(line["meter"], line["quantity"], line["usd"]) for line in row["lines"]] == [
        ("input", 1_000_000, "0.15"),
        ("output", 3, "0.0000018"),
    ]
    assert {line["price_source"] for line in row["lines"]} == {"test"}


def test_each_line_has_an_id_of_its_own_that_is_the_same_in_a_repeat() -> None:
    job = a_job()

    first, again = (attempt(job, Usage(1, 2, 3, 4)) for _ in range(2))

    ids = [line["id"] for line in first["lines"]]
    assert ids == [f"{job.id}:1:{meter}" for meter in ("input", "cache_read", "cache_write", "output")]
    assert [line["id"] for line in again["lines"]] == ids


def test_an_unknown_price_is_null_and_never_nothing() -> None:
    row = attempt(a_job(), Usage(input=5), price=None)

    assert row["usd"] is None
    [line] = row["lines"]
    assert (line["quantity"], line["usd"], line["usd_per_million"], line["price_source"]) == (5, None, None, None)


def test_an_attempt_that_used_nothing_cost_nothing() -> None:
    assert attempt(a_job(), Usage(), price=None)["usd"] == "0"


@given(
    usage=st.builds(Usage, *[st.integers(0, 10**9)] * 4, basis=st.sampled_from(Basis)),
    rates=st.dictionaries(st.sampled_from(Meter), st.decimals(0, 10**6, places=6)),
)
def test_lines_come_back_as_they_were_and_add_up(usage: Usage, rates: dict[Meter, Decimal]) -> None:
    job = a_job()
    lines = charge(Price(rates, "test"), usage, job=job.id, attempt=2, outcome="failed")

    text = ledger.attempt_text(job, 2, "", lines, usage.total, concluded=False)

    assert ledger.lines_of(text) == ledger.lines_of(text.encode()) == lines
    usd, sum_of_lines = json.loads(text)["usd"], total(lines)
    assert usd is None if sum_of_lines is None else Decimal(usd) == sum_of_lines


@given(usd=DOLLARS)
def test_plain_dollars_are_exact_and_without_an_exponent(usd: Decimal) -> None:
    text = ledger.plain(usd)

    assert Decimal(text) == usd
    assert set(text) <= set("0123456789.")
    assert not text.endswith(".") and not ("." in text and text.endswith("0"))


def test_an_event_tells_ids_state_and_dollars() -> None:
    job = a_job(metadata={"batch": "7"})

    event = json.loads(ledger.event_text(job, JobState.FAILED, usd=Decimal("0.10"), attempts=2, error_code="cut"))

    assert (event["type"], event["data"], event["tenant"]) == ("job.failed", {"id": f"job_{job.id}"}, "acme")
    assert (event["usd"], event["error_code"], event["metadata"]) == ("0.1", "cut", {"batch": "7"})


def test_nothing_of_the_content_is_told() -> None:
    job = a_job(PROMPT)

    texts = [
        a_charge(job).text(job, concluded=True),
        *(ledger.event_text(job, state, usd=None, error_code="x") for state in JobState),
    ]

    assert not [text for text in texts if PROMPT in text]


def test_events_and_attempts_are_read_back() -> None:
    job = a_job(limited_key="ci")
    event = Record(ledger.event_text(job, JobState.EXPIRED, usd=None).encode())
    charged = a_charge(job, 3)
    row = Record(charged.text(job, concluded=False).encode(), {"at-ms": "1800000000250"})

    assert ledger.event_of(event) == Ended("acme", job.id, JobState.EXPIRED)
    assert ledger.attempt_of(row) == Charged(
        tenant="acme",
        job_id=job.id,
        number=3,
        at=1_800_000_000.25,
        deployment=job.route.deployment,
        lane=job.route.lane,
        key="ci",
        concluded=False,
        tokens=10,
        usd=total(charged.lines),
        usage=Usage(input=7, output=3),
        is_useful=False,
    )


@pytest.mark.parametrize(
    ("concluded", "outcome", "is_useful"),
    [(True, "completed", True), (False, "completed", False), (True, "failed", False), (True, "cancelled", False)],
)
def test_dollars_are_useful_that_bought_the_answer_of_a_job(concluded: bool, outcome: str, is_useful: bool) -> None:
    charged = a_charge(a_job(), outcome=outcome)
    row = Record(charged.text(a_job(), concluded=concluded).encode(), {"at-ms": "1"})

    attempt = ledger.attempt_of(row)

    assert attempt is not None and attempt.is_useful is is_useful


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff", b"null", b"[]", b"7", b'"x"', b"{}", b'{"type":7}', b'{"type":"job.flying"}', b'{"type":"attempt"}',
     b'{"type":"microbatch","id":"mb_1"}', b'{"type":"job.failed","tenant":"a","data":[]}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_neither_is_nothing(value: bytes) -> None:
    record = Record(value, {"at-ms": "1"})

    assert ledger.event_of(record) is None
    assert ledger.attempt_of(record) is None
