"""The Responses API and jobs' events on real parts: a Valkey, Redis Streams, a worker with echo, the official SDK."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from ulid import ULID

from gateway.referred import MOST_RESPONSES
from gateway.settings import HttpSettings
from router.conversations import INLINE_INPUT
from tests.builders import PATIENCE_S
from tests.gateway import Gateway, running

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PATTERN = "wait:0.3 one two three"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    async with running(folder) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with gateway.sdk().with_options(max_retries=3) as client:  # its Redis may be slow for a moment
        yield client


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def ended(client: openai.AsyncOpenAI, response: Response) -> Response:
    async with asyncio.timeout(PATIENCE_S):
        while response.status in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
            response = await client.responses.retrieve(response.id)
    return response


async def events_of(stream: Any) -> list[dict[str, Any]]:
    """All events, each of which the SDK knows."""
    found = [event.to_dict() async for event in stream]
    assert [EVENT.validate_python(event).type for event in found] == [event["type"] for event in found]
    return found


async def job_events(gateway: Gateway, job_id: str, **request: Any) -> list[dict[str, Any]]:
    answer = await gateway.http.get(f"/v1/jobs/{job_id}/events", **request)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            data = json.loads(fields["data"])
            assert (fields["event"], fields["id"]) == (data["type"], str(data["sequence_number"]))
            found.append(data)
    return found


async def test_a_conversation_goes_on_from_the_response_before(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    first = await client.responses.create(model="auto", input="Good day", instructions="Echo", metadata={"a": "b"})
    second = await client.responses.create(model="auto", input="And so on", previous_response_id=first.id)
    third = await client.responses.create(model="auto", input="And on", previous_response_id=second.id)

    seen = await client.responses.retrieve(third.id)
    newest = await client.responses.input_items.list(third.id, limit=2)
    oldest = await client.responses.input_items.list(third.id, order="asc", limit=4)
    rest = await client.responses.input_items.list(third.id, order="asc", after=oldest.data[-1].id)

    with pytest.raises(openai.BadRequestError) as elsewhere:  # from its start it would come round for ever
        await client.responses.input_items.list(third.id, after="msg_of_another_response")

    assert elsewhere.value.param == "after"
    assert (first.output_text, second.output_text, third.output_text) == ("Good day", "And so on", "And on")
    assert (first.metadata, first.instructions, first.status) == ({"a": "b"}, "Echo", "completed")
    assert seen == third
    assert seen.usage is not None and seen.usage.input_tokens == 2 + 2 + 3 + 3 + 2
    assert said(oldest.data) == ["Good day", "Good day", "And so on", "And so on"] and oldest.has_more
    assert said(rest.data) == ["And on"] and not rest.has_more
    assert said(newest.data) == ["And on", "And so on"]
    job = await gateway.job(first.id)
    assert job["result"]["id"] == first.id and job["result"]["object"] == "response"


def said(items: list[Any]) -> list[str]:
    return [item.content[0].text for item in items]


async def test_what_cannot_be_followed_is_named(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    running = await client.responses.create(model="auto", input="wait:30 x", background=True)
    unstored = await client.responses.create(model="auto", input="x", store=False)
    chat = await client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "x"}])
    stored = await client.responses.create(model="auto", input="x")
    jobs = (await gateway.http.get("/v1/jobs")).json()["data"]

    codes = {}
    for previous in (running.id, unstored.id, chat.id, "resp_nonsense", "resp_01K00000000000000000000000"):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="auto", input="x", previous_response_id=previous)
        assert refused.value.param == "previous_response_id"
        codes[previous] = refused.value.code
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.other_key, max_retries=0) as other:
        with pytest.raises(openai.BadRequestError):
            await other.responses.create(model="auto", input="x", previous_response_id=stored.id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(stored.id)

    assert set(codes.values()) == {"previous_response_not_found", "previous_response_not_completed"}
    assert codes[running.id] == "previous_response_not_completed"
    assert (await gateway.http.get("/v1/jobs")).json()["data"][0]["id"] == jobs[0]["id"], "nothing became a job"
    for unseen in (unstored.id, chat.id):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unseen)
    await client.responses.cancel(running.id)


async def test_an_item_that_is_named_is_read_as_if_it_had_been_sent(
    client: openai.AsyncOpenAI, gateway: Gateway
) -> None:
    first = await client.responses.create(model="auto", input="Good day")
    named: list[Any] = [
        {"role": "user", "content": "Good day"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "And so on"},
    ]

    second = await client.responses.create(model="auto", input=named)
    await client.responses.delete(first.id)
    followed = await client.responses.create(model="auto", input="And on", previous_response_id=second.id)
    items = await client.responses.input_items.list(followed.id, order="asc")

    assert said(items.data) == ["Good day", "Good day", "And so on", "And so on", "And on"]
    assert items.data[1].id == first.output[0].id
    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens > 2 * first.usage.input_tokens, "its model has read all of it"


async def test_an_item_that_nobody_stored_is_refused_by_its_place(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    stored = await client.responses.create(model="auto", input="x")
    unstored = await client.responses.create(model="auto", input="x", store=False)
    running = await client.responses.create(model="auto", input="wait:30 x", background=True)
    chat = await client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "x"}])
    jobs = (await gateway.http.get("/v1/jobs")).json()["data"]
    item = str(stored.output[0].id)
    ids = [unstored.output[0].id, running.id.replace("resp", "msg"), chat.id.replace("chatcmpl-", "msg_"), stored.id]
    ids += [f"{item}_9", item.replace("msg", "rs"), "msg_01K00000000000000000000000", "msg_nonsense"]

    for unknown in ids:
        named: list[Any] = [{"role": "user", "content": "x"}, {"type": "item_reference", "id": unknown}]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="auto", input=named)
        assert (refused.value.code, refused.value.param) == ("item_not_found", "input[1].id")
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.other_key, max_retries=0) as other:
        with pytest.raises(openai.BadRequestError):
            theirs: list[Any] = [{"type": "item_reference", "id": item}]
            await other.responses.create(model="auto", input=theirs)

    assert (await gateway.http.get("/v1/jobs")).json()["data"][0]["id"] == jobs[0]["id"], "nothing became a job"
    await client.responses.cancel(running.id)


async def test_what_is_named_counts_as_if_it_had_been_sent(client: openai.AsyncOpenAI, tmp_path: Path) -> None:
    async with running(tmp_path, http=HttpSettings(max_body=4096)) as narrow, narrow.sdk() as its:
        first = await its.responses.create(model="auto", input="x" * 2000)
        named: list[Any] = [{"type": "item_reference", "id": first.output[0].id}]
        once = await its.responses.create(model="auto", input=[*named, {"role": "user", "content": "x"}])
        with pytest.raises(openai.APIStatusError) as too_large:
            await its.responses.create(model="auto", input=named * 2)
    many: list[Any] = [{"type": "item_reference", "id": f"msg_{ULID()}"} for _ in range(MOST_RESPONSES + 1)]
    with pytest.raises(openai.BadRequestError) as too_many:
        await client.responses.create(model="auto", input=many)

    assert once.status == "completed"
    assert (too_large.value.status_code, too_large.value.code) == (413, "request_too_large")
    assert too_many.value.code == "too_many_references"


async def test_the_sdks_stream_helper_and_parser_work(client: openai.AsyncOpenAI) -> None:
    class Sum(BaseModel):
        total: int

    async with client.responses.stream(model="auto", input='{"total": 4}', text_format=Sum) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    parsed = await client.responses.parse(model="auto", input='{"total": 5}', text_format=Sum)

    assert final.output_parsed == Sum(total=4)
    assert parsed.output_parsed == Sum(total=5)
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"


async def test_in_the_background_it_is_queued_then_polled_and_its_stream_is_told_from_any_number(
    client: openai.AsyncOpenAI,
) -> None:
    created = await client.responses.create(model="auto", input=PATTERN, background=True)
    polled = await ended(client, created)
    stream = await client.responses.create(model="auto", input=PATTERN, background=True, stream=True)
    whole = await events_of(stream)
    response_id = whole[0]["response"]["id"]

    again = {
        after: await events_of(await client.responses.retrieve(response_id, stream=True, starting_after=after))
        for after in (0, 4, len(whole) - 1)
    }

    assert (created.status, created.output, created.background) == ("queued", [], True)
    assert (polled.status, polled.output_text) == ("completed", PATTERN)
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert {after: whole[after + 1 :] for after in again} == again
    unstreamed = await events_of(await client.responses.retrieve(created.id, stream=True))
    assert [event["delta"] for event in unstreamed if event["type"] == "response.output_text.delta"] == [PATTERN]


async def test_once_the_pieces_are_gone_the_rest_comes_whole(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    whole = await events_of(await client.responses.create(model="auto", input="a b c", background=True, stream=True))
    response_id = whole[0]["response"]["id"]
    key = f"{{t:acme}}:chunks:{response_id.removeprefix('resp_')}"
    assert await gateway.core.redis.ttl(key) > 60
    await gateway.core.redis.delete(key)

    rest = await events_of(await client.responses.retrieve(response_id, stream=True, starting_after=5))
    all_of_it = await events_of(await client.responses.retrieve(response_id, stream=True))

    assert [event["sequence_number"] for event in rest] == [6, 7, 8, 9]
    assert rest[-1]["response"] == whole[-1]["response"] and rest[0]["text"] == "a b c"
    assert all_of_it[-1]["response"] == whole[-1]["response"]


async def test_a_second_attempt_does_not_repeat_what_was_told(client: openai.AsyncOpenAI) -> None:
    events = await events_of(
        await client.responses.create(model="auto", input="fail:unavailable:1 a b", background=True, stream=True)
    )

    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == "fail:unavailable:1 a b"
    assert events[-1]["type"] == "response.completed"


async def test_one_that_fails_or_is_cancelled_says_so_in_its_stream_and_its_object(client: openai.AsyncOpenAI) -> None:
    failed = await events_of(await client.responses.create(model="auto", input="fail:rejected", stream=True))
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model="auto", input="fail:rejected")
    running = await client.responses.create(model="auto", input="wait:30 x", background=True, stream=True)
    first = await anext(aiter(running))
    response_id = first.to_dict()["response"]["id"]  # type: ignore[index]

    cancelled = [await client.responses.cancel(response_id) for _ in range(2)]
    told = await events_of(running)

    assert failed[-1]["type"] == "response.failed"
    assert failed[-1]["response"]["error"]["code"] == "invalid_prompt"
    assert [each.status for each in cancelled] == ["cancelled", "cancelled"]
    assert (told[-1]["type"], told[-1]["response"]["status"]) == ("response.failed", "cancelled")


async def test_one_that_is_deleted_is_gone_with_what_it_was_asked(client: openai.AsyncOpenAI, gateway: Gateway) -> None:
    large = "word " * (INLINE_INPUT // 4)
    response = await client.responses.create(model="heavy", input=[{"role": "user", "content": large}])
    followed = await client.responses.create(model="heavy", input="And?", previous_response_id=response.id)
    objects = gateway.core.settings.data / "objects" / "inputs" / "acme"
    stored = [path for path in objects.iterdir() if response.id.removeprefix("resp_") in path.name]
    items = await client.responses.input_items.list(followed.id, order="asc")
    running = await client.responses.create(model="auto", input="wait:30 x", background=True)
    with pytest.raises(openai.ConflictError):
        await client.responses.delete(running.id)

    await client.responses.delete(response.id)

    assert len(stored) == 1 and not stored[0].exists()
    assert not await gateway.core.redis.exists(f"{{t:acme}}:input:{response.id.removeprefix('resp_')}")
    assert said(items.data)[0] == large
    for gone in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            await gone(response.id)
    await client.responses.cancel(running.id)


async def test_the_same_key_and_body_are_one_response(client: openai.AsyncOpenAI) -> None:
    key = {"Idempotency-Key": "one response"}
    first, second = [
        await client.responses.create(model="auto", input="Good day", background=True, extra_headers=key)
        for _ in range(2)
    ]

    assert first.id == second.id
    assert (await ended(client, first)).output_text == "Good day"


async def test_a_caller_who_hangs_up_cancels_it_unless_it_is_in_the_background(
    client: openai.AsyncOpenAI, gateway: Gateway
) -> None:
    ids = {}
    for background in (False, True):
        asked = "wait:1 x" if background else "wait:30 x"
        stream = await client.responses.create(model="auto", input=asked, stream=True, background=background)
        ids[background] = (await anext(aiter(stream))).to_dict()["response"]["id"]  # type: ignore[index]
        await stream.close()

    states = {background: (await gateway.job(response_id))["status"] for background, response_id in ids.items()}

    assert states == {False: "cancelled", True: "completed"}


# Jobs' events


async def test_a_jobs_events_are_its_states_and_pieces_and_can_be_taken_up_again(gateway: Gateway) -> None:
    answer = await gateway.chat("one two", stream=True)
    job_id = json.loads(answer.text.split("\n\n")[0].removeprefix("data: "))["id"]

    whole = await job_events(gateway, job_id)
    again = await job_events(gateway, job_id, headers={"Last-Event-ID": "2"})
    by_number = await job_events(gateway, job_id, params={"starting_after": "2"})
    nothing = await job_events(gateway, job_id, headers={"Last-Event-ID": str(len(whole) - 1)})
    await gateway.core.redis.delete(f"{{t:acme}}:chunks:{job_id.removeprefix('chatcmpl-')}")
    end = await job_events(gateway, job_id, headers={"Last-Event-ID": "2"})

    assert [event["type"] for event in whole] == [
        "job.queued", "job.in_progress", "job.chunk", "job.chunk", "job.chunk", "job.completed",
    ]  # fmt: skip
    assert "".join(e["chunk"]["choices"][0]["delta"].get("content", "") for e in whole[2:5]) == "one two"
    assert whole[-1]["job"]["status"] == "completed" and "result" not in whole[-1]["job"]
    assert again == by_number == whole[3:]
    assert nothing == []
    assert [(event["type"], event["sequence_number"]) for event in end] == [("job.completed", 3)]


async def test_events_of_a_job_without_a_stream_tell_how_it_ends(gateway: Gateway) -> None:
    done = (await gateway.chat("wait:0.3 x", **{"async": True})).json()
    running = (await gateway.chat("wait:30 x", **{"async": True})).json()
    told = await job_events(gateway, done["id"])
    following = asyncio.create_task(job_events(gateway, running["id"]))
    await gateway.http.post(f"/v1/jobs/{running['id']}/cancel")

    assert [event["type"] for event in told] == ["job.queued", "job.in_progress", "job.completed"]
    assert (await following)[-1]["type"] == "job.cancelled"
    others = {"authorization": f"Bearer {gateway.other_key}"}
    assert (await gateway.http.get(f"/v1/jobs/{done['id']}/events", headers=others)).status_code == 404
    assert (await gateway.http.get(f"/v1/jobs/{done['id']}/events?starting_after=x")).status_code == 400


async def test_events_have_the_same_numbers_for_who_follows_and_who_comes_later(
    client: openai.AsyncOpenAI, gateway: Gateway
) -> None:
    asked = {"model": "auto", "input": "fail:unavailable:2 one", "background": True, "stream": True}
    stream = await client.responses.create(**asked)  # type: ignore[call-overload]
    response_id = (await anext(aiter(stream))).to_dict()["response"]["id"]
    await stream.close()

    followed = await job_events(gateway, response_id)
    later = await job_events(gateway, response_id)

    assert followed == later
    assert [event.get("attempt") for event in followed] == [None, 1, 3, 3, 3, 3, None]
