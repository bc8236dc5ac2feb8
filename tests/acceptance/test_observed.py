"""What a cluster shows of itself while a bit of everything happens: traces, logs, metrics; and never any content."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator

import pytest

from tests.acceptance.contents import stored
from tests.acceptance.observed import (
    LANE,
    MARKER,
    NOTE,
    SECRET,
    TRACEPARENT,
    UPSTREAM_KEY,
    Observed,
    observed,
    redis_of,
)
from tests.otlp_receiver import Span
from tools.boards.boards import BOARDS

pytestmark = pytest.mark.timeout(400)

SHOWN_S = 30.0
CLOUDWATCH_S = 90.0  # it is asked once a minute


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, kafka_bootstrap: str) -> Iterator[Observed]:
    with observed(tmp_path_factory.mktemp("observed"), kafka_bootstrap) as seen:
        yield seen


async def test_one_trace_leads_from_the_caller_over_the_log_to_the_model(seen: Observed) -> None:
    _, trace, caller, _ = TRACEPARENT.split("-")
    spans = await _spans(seen, trace, 4)

    accept, send, process, call = (next(s for s in spans if s.name.startswith(w)) for w in _STEPS)
    assert (accept.parent, send.parent, process.parent, call.parent) == (caller, accept.id, accept.id, process.id)
    assert (accept.process, send.process, process.process, call.process) == ("http", "http", "worker", "worker")
    assert send.attributes["messaging.system"] == "kafka"
    assert send.attributes["messaging.destination.name"].startswith("jobs.gpu.text.")
    assert call.attributes["gen_ai.operation.name"] == "chat"
    assert call.attributes["gen_ai.request.model"] == "double"
    assert call.attributes["gen_ai.usage.input_tokens"] > 0 and call.attributes["gen_ai.usage.output_tokens"] > 0
    assert process.attributes["pointsman.outcome"] == "concluded"


async def test_a_call_that_failed_is_a_span_that_says_how(seen: Observed) -> None:
    until, wanted = time.monotonic() + SHOWN_S, {"unavailable", "backend_error", "rejected"}
    while not wanted & (shown := {each.attributes["error.type"] for each in await _all(seen) if each.is_error}):
        assert time.monotonic() < until, shown
        await asyncio.sleep(0.2)


async def test_no_span_has_content_or_a_key(seen: Observed) -> None:
    text = "\n".join(each.text for each in await _all(seen))

    assert not _leaks(seen, text)


async def test_no_log_no_metric_and_no_error_has_content_or_a_key(seen: Observed) -> None:
    for process in seen.processes.values():
        logged = process.output.read_text(encoding="utf-8")
        assert logged.strip(), f"{process.name} logs nothing"
        assert not _leaks(seen, logged), process.name
        for line in logged.splitlines():
            assert "event" in json.loads(line), line
    for name in seen.processes:
        assert not _leaks(seen, await seen.metrics(name)), name
    assert seen.errors
    assert not _leaks(seen, "\n".join(seen.errors))


async def test_no_header_on_the_log_has_content_and_no_record_a_key(seen: Observed) -> None:
    async with seen.log() as log:
        topics = await log.topics()
        records = {topic: [each.record async for each in log.read(topic)] for topic in topics}

    assert records["jobs.dead"] and records["jobs.events"] and records["ledger.charges"]
    for topic, found in records.items():
        for record in found:
            assert not _keys(seen, record.value.decode("utf-8", "replace")), topic
            if topic != "jobs.inbox":  # which other services wrote
                headers = json.dumps(dict(record.headers))
                assert not _leaks(seen, headers.replace(NOTE, "")), topic  # a job's metadata is in a header


async def test_no_key_name_in_redis_has_content_and_no_value_an_api_key(seen: Observed) -> None:
    async with redis_of(seen) as redis:
        found = [each async for each in stored(redis)]

    assert len(found) > 20
    for name, value in found:
        assert not _leaks(seen, name)
        assert not _keys(seen, value), name


async def test_the_sweeper_tells_of_a_lane(seen: Observed) -> None:
    async with seen.ours.refusals.http(seen.processes["sweeper"].url) as http:
        told = (await http.get(f"/scale/{LANE}")).json()
        unknown = await http.get("/scale/gpu.video.light")

    assert told["lane"] == LANE and told["workers"] == 1
    assert told["backlog"] >= told["running"] >= 0 and told["oldest_s"] >= 0
    assert unknown.status_code == 404 and LANE in unknown.json()["lanes"]


async def test_prometheus_reaches_every_process_and_judges_every_alert(seen: Observed) -> None:
    assert await asyncio.to_thread(seen.prometheus.up) == dict.fromkeys(seen.processes, True)
    rules = await asyncio.to_thread(seen.prometheus.rules)
    assert rules and set(rules.values()) == {"ok"}


async def test_no_panel_of_a_board_is_empty(seen: Observed) -> None:
    queries = {
        f"{board.title}: {panel.title}: {query}": query.replace("$__rate_interval", "10m")
        for board in BOARDS
        for row in board.rows
        for panel in row.panels
        for query in panel.queries.values()
    }
    # At some time of the run: what CloudWatch says is an average of a minute, and gone after it.
    asked = {title: f"max_over_time(({query})[15m:5s])" for title, query in queries.items()}
    until = time.monotonic() + CLOUDWATCH_S
    while empty := [title for title, query in asked.items() if not await _values(seen, query)]:
        assert time.monotonic() < until, "\n".join(empty)
        await asyncio.sleep(1)


_STEPS = "accept", "send", "process", "chat"


async def _spans(seen: Observed, trace: str, count: int) -> list[Span]:
    until = time.monotonic() + SHOWN_S
    while len(found := [each for each in await _all(seen) if each.trace == trace]) < count:
        assert time.monotonic() < until, found
        await asyncio.sleep(0.2)
    return found


async def _all(seen: Observed) -> list[Span]:
    return await asyncio.to_thread(seen.traces.spans)


async def _values(seen: Observed, query: str) -> list[float]:
    return await asyncio.to_thread(seen.prometheus.values, query)


def _keys(seen: Observed, text: str) -> list[str]:
    secrets = (*seen.keys, SECRET, SECRET.removeprefix("whsec_"), UPSTREAM_KEY)
    plain = base64.b64decode(SECRET.removeprefix("whsec_")).decode()
    return [each for each in (*secrets, plain) if each in text]


def _leaks(seen: Observed, text: str) -> list[str]:
    return [each for each in (MARKER, NOTE, "sky blue") if each in text] + _keys(seen, text)
