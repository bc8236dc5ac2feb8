"""Batches by the official SDK: every line once in one of the files, whatever becomes of it."""

import asyncio
import itertools
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from router import topics
from router.batches import derived_id
from router.job import JobState
from tests.builders import PATIENCE_S, records, until
from tests.gateway import Gateway, running

OPEN = ("validating", "in_progress", "finalizing", "cancelling")
PRICED = {"input": "0.123457", "output": "0.654321"}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path, drives=0.2) as gateway:
        yield gateway


@pytest.fixture
async def sdk(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with gateway.sdk() as client:
        yield client


def a_line(custom_id: str, text: str = "Hello", *, model: str = "light", **fields: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(lines: Iterable[object]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def submitted(sdk: openai.AsyncOpenAI, content: bytes, **fields: Any) -> Batch:
    file = await sdk.files.create(file=("in.jsonl", content), purpose="batch")
    asked: Any = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **fields}
    return await sdk.batches.create(input_file_id=file.id, **asked)


async def ended(sdk: openai.AsyncOpenAI, batch: Batch, *, within: float = PATIENCE_S) -> Batch:
    async with asyncio.timeout(within):
        while (batch := await sdk.batches.retrieve(batch.id)).status in OPEN:
            await asyncio.sleep(0.01)
    return batch


async def lines_of(sdk: openai.AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """The lines of a file by their custom_id, each of which is there once."""
    if file_id is None:
        return {}
    rows = [json.loads(line) for line in (await sdk.files.content(file_id)).content.splitlines()]
    by_id = {row["custom_id"]: row for row in rows}
    assert len(by_id) == len(rows), "a custom_id is there twice"
    return by_id


async def done_and_running(gateway: Gateway, batch: Batch, *, done: int, running: int) -> None:
    """Return once so many of its lines are completed, and so many of acme's jobs run."""

    async def enough() -> bool:
        views = (await gateway.core.board.page("acme", states=[JobState.RUNNING], limit=100, after="")).views
        return len(views) >= running and (await view_of(gateway, batch)).completed >= done

    await until(enough)


async def view_of(gateway: Gateway, batch: Batch) -> Any:
    """It as the board knows it."""
    return await gateway.core.batches.view("acme", batch.id.removeprefix("batch_"))


async def test_a_batch_by_the_sdk_has_each_line_in_one_of_its_files(sdk: openai.AsyncOpenAI) -> None:
    good = [a_line(f"good-{number}", f"Say {number}") for number in range(300)]
    bad = [a_line("bad-upstream", "fail:rejected"), a_line("bad-value", temperature=9), a_line("bad-way", stream=True)]

    made = await submitted(sdk, jsonl([*good, *bad]), metadata={"team": "a"})
    done = await ended(sdk, made)
    output, error = await lines_of(sdk, done.output_file_id), await lines_of(sdk, done.error_file_id)

    assert (made.status, made.object, made.metadata) == ("validating", "batch", {"team": "a"})
    assert done.status == "completed", done
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 303, "completed": 300, "failed": 3}
    assert output.keys() == {line["custom_id"] for line in good}
    assert error.keys() == {line["custom_id"] for line in bad}
    for line in good:
        row = output[line["custom_id"]]
        answer = row["response"]["body"]
        assert (row["error"], row["response"]["status_code"]) == (None, 200)
        assert answer["choices"][0]["message"]["content"] == line["body"]["messages"][0]["content"]
    assert error["bad-value"]["response"]["status_code"] == 400
    assert error["bad-value"]["response"]["body"]["error"]["param"] == "temperature"
    assert error["bad-way"]["response"]["body"]["error"]["param"] == "stream"
    assert error["bad-upstream"]["response"]["body"]["error"]["type"] == "invalid_request_error"
    assert done.created_at <= (done.in_progress_at or 0) <= (done.finalizing_at or 0) <= (done.completed_at or 0)
    assert done.usage is not None and done.usage.output_tokens > 0


async def test_lines_of_the_responses_api_are_answered_with_responses(sdk: openai.AsyncOpenAI) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "light", "input": "Hello"}}

    done = await ended(sdk, await submitted(sdk, jsonl([line]), endpoint="/v1/responses"))

    assert done.status == "completed", await lines_of(sdk, done.error_file_id)
    [row] = (await lines_of(sdk, done.output_file_id)).values()
    assert row["response"]["body"]["object"] == "response"
    assert row["response"]["body"]["output"][0]["content"][0]["text"] == "Hello"


async def test_lines_of_other_endpoints_are_answered_as_these_are(tmp_path: Path) -> None:
    modalities = ["text", "embedding", "speech"]
    light = {"backend": "echo", "model": "echo", "tier": "light", "modalities": modalities}
    asked = {
        "/v1/embeddings": {"model": "light", "input": ["one", "two"]},
        "/v1/audio/speech": {"model": "light", "input": "Hello", "voice": "alloy", "response_format": "wav"},
    }
    bodies = {}
    async with running(tmp_path, drives=0.2, deployments={"light": light}) as gateway, gateway.sdk() as sdk:
        for url, body in asked.items():
            line = {"custom_id": "a", "method": "POST", "url": url, "body": body}
            done = await ended(sdk, await submitted(sdk, jsonl([line]), endpoint=url))
            [row] = (await lines_of(sdk, done.output_file_id or done.error_file_id)).values()
            bodies[url] = row["response"]["body"]

    assert len(bodies["/v1/embeddings"]["data"]) == 2
    assert b64decode(bodies["/v1/audio/speech"]["data"]).startswith(b"RIFF")


async def test_everything_wakes_who_waits_for_it(tmp_path: Path) -> None:
    """Nothing is polled: who looks by himself does so after a minute only."""
    async with running(tmp_path, drives=60.0) as gateway, gateway.sdk() as sdk:
        done = await ended(sdk, await submitted(sdk, jsonl([a_line("only")])))

    assert done.status == "completed"


async def test_dollars_are_the_sum_of_the_lines(tmp_path: Path) -> None:
    light = {"backend": "echo", "model": "echo", "tier": "light", "price": PRICED}
    async with running(tmp_path, drives=0.2, deployments={"light": light}) as gateway, gateway.sdk() as sdk:
        texts = ["one two three", "fail:throttled:2 and then it answers", "fail:rejected this one"]
        made = await submitted(sdk, jsonl(a_line(str(number), text) for number, text in enumerate(texts)))
        done = await ended(sdk, made)
        output, error = await lines_of(sdk, done.output_file_id), await lines_of(sdk, done.error_file_id)
        charges = await records(gateway.core.redis, topics.CHARGES)
        events = await records(gateway.core.redis, topics.EVENTS)

    ours: dict[str, Any] = done.model_extra["pointsman"]  # type: ignore[index]
    usd = Decimal(ours["usd"])
    assert usd == sum(Decimal(row["pointsman"]["usd"]) for row in [*output.values(), *error.values()]) > 0
    assert usd == sum(Decimal(row["usd"]) for row in charges if row["type"] == "attempt")
    assert ours["retries"] == 2
    [event] = [each for each in events if each["type"] == "batch.completed"]
    assert (event["data"]["id"], Decimal(event["usd"])) == (made.id, usd)
    assert {each["batch"] for each in events if each["type"].startswith("job.")} == {made.id}


FAULTS: list[tuple[bytes, str, int | None, str | None]] = [
    (b"", "empty_file", None, None),
    (b"\n  \n", "empty_file", None, None),
    (b"{nonsense}\n", "invalid_json_line", 1, None),
    (b'["a list"]\n', "invalid_json_line", 1, None),
    (b'\n{"a": 1, "a": 2}\n', "invalid_json_line", 2, None),
    (b"\xff\xfe\n", "invalid_json_line", 1, None),
    (jsonl([{**a_line("a"), "custom_id": None}]), "missing_required_parameter", 1, "custom_id"),
    (jsonl([{**a_line("a"), "custom_id": 7}]), "invalid_value", 1, "custom_id"),
    (jsonl([a_line("x" * 513)]), "invalid_value", 1, "custom_id"),
    (jsonl([a_line("a"), a_line("b"), a_line("a")]), "duplicate_custom_id", 3, "custom_id"),
    (jsonl([{**a_line("a"), "method": "GET"}]), "invalid_method", 1, "method"),
    (jsonl([{**a_line("a"), "url": "/v1/responses"}]), "url_mismatch", 1, "url"),
    (jsonl([{**a_line("a"), "body": None}]), "missing_required_parameter", 1, "body"),
    (jsonl([{**a_line("a"), "body": []}]), "invalid_type", 1, "body"),
    (jsonl([a_line("a", model="gpt-none")]), "model_not_found", 1, "body.model"),
    (jsonl(a_line(str(number)) for number in range(51)), "too_many_tasks", None, None),
    (jsonl([a_line("a", "x" * 20_000)]), "invalid_json_line", 1, None),
]


async def test_an_input_that_cannot_be_used_fails_the_batch_with_openais_codes_and_makes_no_job(tmp_path: Path) -> None:
    small: dict[str, Any] = {"http": {"max_body": 16_384}, "batches": {"max_lines": 50}}
    async with running(tmp_path, drives=0.2, **small) as gateway, gateway.sdk() as sdk:
        for content, code, line, param in FAULTS:
            done = await ended(sdk, await submitted(sdk, content))

            assert done.status == "failed" and done.failed_at, content[:80]
            assert done.errors is not None and done.errors.data is not None
            [error] = done.errors.data
            assert (error.code, error.line, error.param) == (code, line, param)
            assert (done.output_file_id, done.error_file_id) == (None, None)
        assert (await gateway.core.board.page("acme", states=[], limit=10, after="")).views == []


async def test_a_request_for_a_batch_is_checked(gateway: Gateway, sdk: openai.AsyncOpenAI) -> None:
    mine = await sdk.files.create(file=("in.jsonl", jsonl([a_line("a")])), purpose="batch")
    notes = await sdk.files.create(file=("notes.txt", b"hello"), purpose="user_data")
    other = sdk.with_options(api_key=gateway.other_key)
    good = {"input_file_id": mine.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}

    for change, param in (
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": "file-01K00000000000000000000000"}, "input_file_id"),
        ({"input_file_id": notes.id}, "input_file_id"),
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "25h"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": "7200"}}, "output_expires_after.seconds"),
        ({"priority": "high"}, "priority"),
    ):
        answer = await gateway.http.post("/v1/batches", json={**good, **change})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    with pytest.raises(openai.BadRequestError) as refused:
        await other.batches.create(input_file_id=mine.id, endpoint="/v1/chat/completions", completion_window="24h")

    assert refused.value.code == "file_not_found"
    assert [batch async for batch in await sdk.batches.list()] == []


async def test_one_idempotency_key_makes_one_batch(gateway: Gateway, sdk: openai.AsyncOpenAI) -> None:
    file = await sdk.files.create(file=("in.jsonl", jsonl([a_line("a")])), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    headers = {"idempotency-key": "one"}

    first, again = [await gateway.http.post("/v1/batches", json=asked, headers=headers) for _ in range(2)]
    other = await gateway.http.post("/v1/batches", json={**asked, "completion_window": "1h"}, headers=headers)

    assert first.json()["id"] == again.json()["id"]
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert len([batch async for batch in await sdk.batches.list()]) == 1


async def test_batches_are_listed_from_the_newest_and_another_tenants_are_not_there(
    gateway: Gateway, sdk: openai.AsyncOpenAI
) -> None:
    made = [(await submitted(sdk, jsonl([a_line("a")]))).id for _ in range(5)]
    other = sdk.with_options(api_key=gateway.other_key).batches

    listed = [batch.id async for batch in await sdk.batches.list(limit=2)]
    page = await sdk.batches.list(limit=2, after=made[2])

    assert listed == made[::-1]
    assert ([batch.id for batch in page.data], page.has_more) == (made[1::-1], False)
    assert [batch async for batch in await other.list()] == []
    for call in (other.retrieve, other.cancel):
        with pytest.raises(openai.NotFoundError):
            await call(made[0])


async def test_a_cancel_stops_what_runs_keeps_what_is_done_and_names_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path, drives=0.2, batches={"open_lines": 8}) as gateway, gateway.sdk() as sdk:
        quick, slow = [a_line(f"q{n}") for n in range(20)], [a_line(f"s{n}", "wait:60") for n in range(40)]
        made = await submitted(sdk, jsonl([*quick, *slow]))
        await done_and_running(gateway, made, done=20, running=4)

        cancelling = await sdk.batches.cancel(made.id)
        done = await ended(sdk, made)
        again = await sdk.batches.cancel(made.id)
        output, error = await lines_of(sdk, done.output_file_id), await lines_of(sdk, done.error_file_id)

    assert cancelling.status == "cancelling"
    assert (done.status, again.status) == ("cancelled", "cancelled")
    assert done.cancelled_at
    assert output.keys() == {line["custom_id"] for line in quick}
    assert error.keys() == {line["custom_id"] for line in slow}
    assert {row["error"]["code"] for row in error.values()} == {"batch_cancelled"}
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 60, "completed": 20, "failed": 0}


async def test_when_its_time_is_over_a_batch_keeps_what_is_done_and_names_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path, drives=0.2, batches={"open_lines": 8}) as gateway, gateway.sdk() as sdk:
        quick, slow = [a_line(f"q{n}") for n in range(10)], [a_line(f"s{n}", "wait:60") for n in range(20)]
        made = await submitted(sdk, jsonl([*quick, *slow]), completion_window="1h")
        await done_and_running(gateway, made, done=10, running=4)

        key, (now, _) = f"{{t:acme}}:batch:{made.id.removeprefix('batch_')}", await gateway.core.redis.time()
        await gateway.core.redis.hset(key, "expires", str(now * 1000))
        done = await ended(sdk, made)
        output, error = await lines_of(sdk, done.output_file_id), await lines_of(sdk, done.error_file_id)

    assert made.expires_at == made.created_at + 3600
    assert done.status == "expired" and done.expired_at
    assert output.keys() == {line["custom_id"] for line in quick}
    assert error.keys() == {line["custom_id"] for line in slow}
    assert {row["error"]["code"] for row in error.values()} == {"batch_expired"}


async def test_a_batch_flows_through_a_small_queue_and_leaves_room_for_others(tmp_path: Path) -> None:
    async with (
        running(tmp_path, drives=0.05, tenants={"acme": {"max_unfinished": 8}, "other": {}}) as gateway,
        gateway.sdk() as sdk,
    ):
        made = await submitted(sdk, jsonl(a_line(str(number), "wait:0.05") for number in range(100)))
        await done_and_running(gateway, made, done=0, running=6)

        waited = await gateway.chat("Hello", model="light")
        done = await ended(sdk, made, within=30)

    assert waited.status_code == 200
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 100, "completed": 100, "failed": 0}


async def test_an_input_stays_while_it_is_read(gateway: Gateway, sdk: openai.AsyncOpenAI) -> None:
    made = await submitted(sdk, jsonl([a_line("a", "wait:60")]))

    with pytest.raises(openai.ConflictError) as refused:
        await sdk.files.delete(made.input_file_id)
    await sdk.batches.cancel(made.id)
    await ended(sdk, made)
    gone = await sdk.files.delete(made.input_file_id)

    assert refused.value.code == "file_in_use"
    assert gone.deleted


async def test_an_input_whose_bytes_are_gone_fails_the_batch(tmp_path: Path) -> None:
    async with running(tmp_path, works=False, drives=0.1, batches={"open_lines": 2}) as gateway, gateway.sdk() as sdk:
        made = await submitted(sdk, jsonl(a_line(str(number)) for number in range(50)))
        folder = gateway.core.settings.data / "objects" / "files" / "acme"

        async def has_begun() -> bool:
            return (await sdk.batches.retrieve(made.id)).status == "in_progress"

        await until(has_begun)
        (folder / made.input_file_id.removeprefix("file-")).unlink()
        open_jobs = await gateway.core.batches.unfinished(await view_of(gateway, made), 10)
        for job_id in open_jobs:
            await gateway.http.post(f"/v1/jobs/{job_id}/cancel")
        done = await ended(sdk, made)

    assert done.status == "failed"
    assert done.errors is not None and done.errors.data is not None
    assert done.errors.data[0].code == "input_lost"


async def test_a_line_that_its_client_deletes_is_still_accounted_for(tmp_path: Path) -> None:
    async with running(tmp_path, drives=0.2) as gateway, gateway.sdk() as sdk:
        made = await submitted(sdk, jsonl([a_line("slow", "wait:1"), a_line("quick")]))
        job_id = derived_id(made.id.removeprefix("batch_"), "line", "quick")

        async def is_deleted() -> bool:
            return (await gateway.http.delete(f"/v1/jobs/{job_id}")).status_code == 200

        await until(is_deleted)
        done = await ended(sdk, made)
        output, error = await lines_of(sdk, done.output_file_id), await lines_of(sdk, done.error_file_id)

    assert (set(output), set(error)) == ({"slow"}, {"quick"})
    assert error["quick"]["response"]["body"]["error"]["code"] == "result_lost"


async def test_nothing_is_left_behind_but_the_files_and_tombstones(gateway: Gateway, sdk: openai.AsyncOpenAI) -> None:
    done = await ended(sdk, await submitted(sdk, jsonl([a_line("a"), a_line("b", "fail:rejected")])))
    redis = gateway.core.redis

    async def is_tidy() -> bool:
        return not (await redis.exists("{t:acme}:batches:active") or await gateway.core.board.outbox("acme"))

    await until(is_tidy)
    names = {name.decode() async for name in redis.scan_iter("{t:acme}:batch*")}
    objects = [path.name for path in (gateway.core.settings.data / "objects").rglob("*") if path.is_file()]

    key = f"{{t:acme}}:batch:{done.id.removeprefix('batch_')}"
    assert names == {key, f"{key}:events", "{t:acme}:batches"}
    assert {name for name in names if name.startswith(key) and await redis.pttl(name) < 0} == set()
    files = (done.input_file_id, done.output_file_id, done.error_file_id)
    assert sorted(objects) == sorted(str(file).removeprefix("file-") for file in files)
    assert (await gateway.core.board.page("acme", states=[], limit=10, after="")).views == []


async def test_receivers_are_told_of_the_batch_and_not_of_its_lines(tmp_path: Path) -> None:
    secret = f"whsec_{b64encode(bytes(32)).decode()}"
    hooks = {"all": {"url": "https://hooks.example.com/", "secret": secret, "events": ["*"]}}
    async with (
        running(tmp_path, drives=0.2, tenants={"acme": {"webhooks": hooks}, "other": {}}) as gateway,
        gateway.sdk() as sdk,
    ):
        made = await ended(sdk, await submitted(sdk, jsonl([a_line("a"), a_line("b")])))
        await until(lambda: told_of(gateway))
        [owed] = await gateway.core.webhooks.waiting("acme")

    assert owed.type == "batch.completed"
    assert made.id.removeprefix("batch_") in owed.name


async def told_of(gateway: Gateway) -> bool:
    return bool(await gateway.core.webhooks.waiting("acme"))


async def test_its_events_are_followed_and_gone_on_with_from_any_number(
    gateway: Gateway, sdk: openai.AsyncOpenAI
) -> None:
    made = await submitted(sdk, jsonl(a_line(str(number)) for number in range(5)))
    path = f"/v1/batches/{made.id}/events"

    told = events_of((await gateway.http.get(path)).text)
    done = await ended(sdk, made)
    again = events_of((await gateway.http.get(path)).text)
    rest = events_of((await gateway.http.get(path, headers={"last-event-id": "2"})).text)
    asked = events_of((await gateway.http.get(f"{path}?starting_after=2")).text)
    beyond = await gateway.http.get(f"{path}?starting_after=1000")
    other = await gateway.http.get(path, headers={"authorization": f"Bearer {gateway.other_key}"})

    kinds = [event["type"] for event in told]
    assert kinds[:2] == ["batch.validating", "batch.in_progress"]
    assert kinds[-2:] == ["batch.finalizing", "batch.completed"]
    assert "batch.progress" in kinds
    assert told[-1]["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
    assert (told[-1]["batch"], told[-1]["status"]) == (made.id, done.status)
    assert again == told
    assert [event["sequence_number"] for event in told] == list(itertools.accumulate([1] * len(told)))
    assert rest == asked == told[2:]
    assert (beyond.status_code, beyond.text) == (200, "")
    assert other.status_code == 404


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
