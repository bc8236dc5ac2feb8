"""What a job's record promises: what goes in comes out, and what is no job is told apart."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.deployments import Fallback, Modality, Tier
from policies.retries import Failure
from router import envelope
from router.envelope import EnvelopeError
from router.job import NOTHING_EARLIER, Alternative, AtBackend, Earlier, Estimate, Job, JobClass, Payload, Queue, Route
from router.log import RECORD_LIMIT, Record
from tests.builders import a_job

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
MOMENTS = st.integers(0, 10**13).map(lambda ms: ms / 1000)
DOLLARS = st.decimals(0, 10**6, places=12)
JOBS = st.builds(
    Job,
    id=st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=26, max_size=26),
    tenant=TEXT,
    endpoint=TEXT,
    model=TEXT,
    job_class=st.sampled_from(JobClass),
    route=st.builds(
        Route,
        deployment=TEXT,
        backend=TEXT,
        modality=st.sampled_from(Modality),
        tier=st.sampled_from(Tier),
        reasons=st.lists(TEXT, max_size=3).map(tuple),
        score=st.none() | st.floats(0, 1),
        left=st.lists(
            st.builds(
                Alternative,
                st.builds(Fallback, TEXT, st.none() | st.frozensets(st.sampled_from(Failure), min_size=1)),
                st.builds(Estimate, st.integers(0, 10**9), st.integers(0, 10**9), st.none() | DOLLARS),
            ),
            max_size=3,
        ).map(tuple),
        tried=st.lists(TEXT, max_size=3).map(tuple),
        spent=st.integers(0, 100),
    ).map(lambda route: route if route.tried else replace(route, spent=0)),
    estimate=st.builds(
        Estimate,
        input_tokens=st.integers(0, 10**9),
        output_tokens=st.integers(0, 10**9),
        usd=st.none() | DOLLARS,
    ),
    body=st.binary(max_size=50),
    created_at=MOMENTS,
    expires_at=MOMENTS,
    result_ttl_s=st.integers(1, 10**9).map(lambda ms: ms / 1000),
    stream=st.booleans(),
    payload=st.none(),
    metadata=st.dictionaries(TEXT, TEXT, max_size=3),
    traceparent=st.none() | TEXT.filter(bool),
    reruns_allowed=st.booleans(),
    max_usd=st.none() | DOLLARS,
    queue=st.sampled_from(Queue),
    is_waited_for=st.booleans(),
)


@given(job=JOBS)
def test_a_job_comes_out_as_it_went_in(job: Job) -> None:
    assert envelope.from_record(envelope.to_record(job)) == job


def test_the_clients_bytes_are_the_value_untouched() -> None:
    body = b'{"x": 1.000, "x": "\\u00e9" }\n'

    record = envelope.to_record(a_job(body=body))

    assert record.value == body


def test_a_body_in_the_object_store_is_not_in_the_record() -> None:
    job = a_job(payload=Payload("bodies/acme/1", "ab" * 32, 300_000))

    record = envelope.to_record(job)

    assert record.value == b""
    assert envelope.from_record(record) == replace(job, body=b"")


def test_what_a_record_says_of_its_jobs_past_stays_when_it_waits_and_comes_back() -> None:
    record = envelope.to_record(a_job())
    told = envelope.replayed(envelope.kept(record, AtBackend(3, '{"call":"ü"}')), at=1_796_000_000.123)
    _, back = envelope.brought_back(envelope.postponed(told, "jobs.x", due_at=1.0, reason="handed_off"))

    assert envelope.earlier(back) == Earlier(AtBackend(3, '{"call":"ü"}'), 1_796_000_000.123)
    assert envelope.earlier(record) == NOTHING_EARLIER


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replayed-ms", "soon"),
        ("replayed-ms", "-1"),
        ("at-backend", "["),
        ("at-backend", "[]"),
        ("at-backend", '{"attempt":0,"reference":""}'),
        ("at-backend", '{"attempt":1e12,"reference":""}'),
        ("at-backend", '{"attempt":NaN,"reference":""}'),
        ("at-backend", '{"attempt":1,"reference":"\\ud800"}'),
        ("at-backend", "[" * 100_000),
    ],
)
def test_a_wrong_past_is_not_believed(name: str, value: str) -> None:
    record = envelope.to_record(a_job())

    with pytest.raises(EnvelopeError):
        envelope.earlier(Record(record.value, {**record.headers, name: value}))


def test_headers_are_texts_with_lower_case_names() -> None:
    record = envelope.to_record(a_job(metadata={"Ü": "☃"}, max_usd=Decimal("0.01"), stream=True))

    assert all(name == name.lower() and name.isascii() for name in record.headers)
    assert record.headers["version"] == "1"
    assert record.size < RECORD_LIMIT


@pytest.mark.parametrize(
    "name", ["version", "job", "tenant", "endpoint", "model", "class", "route", "estimate", "created-ms", "deadline-ms"]
)
def test_a_missing_header_is_named(name: str) -> None:
    record = envelope.to_record(a_job())
    headers = {key: value for key, value in record.headers.items() if key != name}

    with pytest.raises(EnvelopeError, match=name):
        envelope.from_record(Record(record.value, headers))


WRONG: list[tuple[str, str]] = [
    ("version", "2"),
    ("job", "short"),
    ("job", "é" * 26),
    ("job", "../../../../etc/passwd-----"),
    ("tenant", "\udcff"),
    ("class", "urgent"),
    ("route", "["),
    ("route", "[]"),
    ("route", '"x"'),
    ("route", "{}"),
    ("route", "[" * 100_000),
    ("estimate", "null"),
    ("estimate", '{"input":-1,"output":1,"usd":null}'),
    ("estimate", '{"input":1e30,"output":1,"usd":null}'),
    ("estimate", '{"input":NaN,"output":1,"usd":null}'),
    ("estimate", '{"input":Infinity,"output":1,"usd":null}'),
    ("estimate", '{"input":1,"output":1,"usd":"NaN"}'),
    ("estimate", '{"input":1,"output":1,"usd":"-1"}'),
    ("created-ms", "soon"),
    ("deadline-ms", "-1"),
    ("deadline-ms", "9" * 30),
    ("deadline-ms", "9" * 10_000),
    ("result-ttl-s", "0"),
    ("result-ttl-s", "-1"),
    ("result-ttl-s", "inf"),
    ("result-ttl-s", "nan"),
    ("metadata", "[1]"),
    ("metadata", '{"a":"\\ud800"}'),
    ("metadata", '{"a":"\\uD800"}'),
    ("payload", "{}"),
    ("payload", '{"path":"a","sha256":"b","size":"large"}'),
    ("max-usd", "1e999999999"),
    ("queue", "elsewhere"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_header_is_an_envelope_error_without_its_content(name: str, value: str) -> None:
    record = envelope.to_record(a_job())

    with pytest.raises(EnvelopeError) as caught:
        envelope.from_record(Record(record.value, {**record.headers, name: value}))

    assert len(str(caught.value)) < 100
    assert len(value) < 10 or value not in str(caught.value)


@given(headers=st.dictionaries(st.sampled_from(list(envelope.to_record(a_job()).headers)), st.text(max_size=20)))
def test_no_header_makes_anything_but_a_job_or_an_envelope_error(headers: dict[str, str]) -> None:
    record = envelope.to_record(a_job())

    try:
        job: Any = envelope.from_record(Record(record.value, {**record.headers, **headers}))
    except EnvelopeError:
        return
    assert isinstance(job, Job)


def test_foreign_headers_do_no_harm() -> None:
    job = a_job()
    record = envelope.to_record(job)

    assert envelope.from_record(Record(record.value, {**record.headers, "x-trace": "\udcff"})) == job


def test_a_postponed_record_says_when_it_is_due_and_comes_back_as_it_was() -> None:
    job = a_job()
    record = envelope.to_record(job)

    waiting = envelope.postponed(record, job.topic, due_at=1_800_000_000.25, reason="quota_tokens_per_minute")

    assert envelope.due_at(waiting) == 1_800_000_000.25
    assert envelope.brought_back(waiting) == (job.topic, record)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"retry-due-ms": "soon", "retry-topic": "jobs.x"},
        {"retry-due-ms": "-1", "retry-topic": "jobs.x"},
        {"retry-due-ms": "1", "retry-topic": "elsewhere"},
        {"retry-due-ms": "²", "retry-topic": "jobs.x"},
        {"retry-due-ms": "9" * 10_000, "retry-topic": "jobs.x"},
    ],
)
def test_a_postponed_record_without_a_time_or_a_place_is_an_envelope_error(headers: dict[str, str]) -> None:
    with pytest.raises(EnvelopeError):
        envelope.due_at(Record(b"", headers))
