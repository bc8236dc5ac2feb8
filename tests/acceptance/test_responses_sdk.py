"""The Responses API through the official SDK: a real model, a double, two API processes, one of them killed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests import model
from tests.acceptance.processes import Pointsman, Process, pointsman
from tests.doubles import openai_double
from tests.servers import a_valkey, unavailable
from tools.kafka.broker import free_ports

pytestmark = [pytest.mark.timeout(150), pytest.mark.asyncio(loop_scope="module")]

DONE_S = 60.0
WORDS = 60
SLOW = f"double:pace-60+words-{WORDS} Hello"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@dataclass(slots=True)
class Place:
    """A running gateway: two API processes on one board, a worker, a real model as `light`, a double as `heavy`."""

    ours: Pointsman
    http: list[Process]

    def client(self, replica: int = 0) -> openai.AsyncOpenAI:
        return self.ours.refusals.async_sdk(self.http[replica].url, self.ours.key, max_retries=2)


@pytest.fixture(scope="module")
def light() -> Iterator[str]:
    if not model.is_installed():
        unavailable(model.MISSING)
    with model.real_model() as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory, light: str) -> AsyncIterator[Place]:
    folder: Path = tmp_path_factory.mktemp("responses")
    with a_valkey() as redis, openai_double() as double:
        settings = {
            "redis": redis.connection_url,
            "data": str(folder / "data"),
            "tenants": {"default": {}},
            "deployments": {
                "light": {"backend": "gpu", "url": light, "model": "smollm2", "tier": "light", "max_output": 100},
                "heavy": {"backend": "gpu", "url": double.url, "model": "instant", "tier": "heavy"},
            },
        }
        with pointsman(folder, settings) as ours:
            ours.command("topics", "--create")
            ours.key = ours.command("keys", "create").split()[-1]
            ports = free_ports(2)
            processes = [ours.http(ports[0]), ours.http(ports[1]), ours.worker("gpu"), ours.sweeper()]
            await asyncio.gather(*(process.ready() for process in processes))
            yield Place(ours, processes[:2])


def known(event: Any) -> dict[str, Any]:
    """An event that is, field by field, one of the SDK's."""
    found: dict[str, Any] = event.to_dict()
    assert EVENT.validate_python(found).type == found["type"]
    return found


async def ended(client: openai.AsyncOpenAI, response: Response) -> Response:
    async with asyncio.timeout(DONE_S):
        while response.status in ("queued", "in_progress"):
            await asyncio.sleep(0.05)
            response = await client.responses.retrieve(response.id)
    return response


async def test_a_real_model_answers_at_once_in_pieces_and_in_the_background(place: Place) -> None:
    async with place.client() as client:
        asked: dict[str, Any] = {
            "model": "light",
            "instructions": "Be brief.",
            "input": "What is a pointsman?",
            "temperature": 0,
            "extra_body": {"seed": 1, "stop": ["."]},  # passed on as they are
        }
        answer = await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            events = [event async for event in stream]
            streamed = await stream.get_final_response()
        raw = await client.responses.create(**asked, stream=True)
        wire = [known(event) async for event in raw]
        background = await ended(client, await client.responses.create(**asked, background=True))
        followed = await client.responses.create(
            model="light", input="Say more.", previous_response_id=background.id, max_output_tokens=4
        )

    assert answer.output_text and answer.output_text == streamed.output_text
    assert "".join(event["delta"] for event in wire if event["type"].endswith("text.delta")) == answer.output_text
    assert len([event for event in events if event.type == "response.output_text.delta"]) > 3
    assert [event["sequence_number"] for event in wire] == list(range(len(wire)))
    assert wire[-1]["type"] in ("response.completed", "response.incomplete")
    assert background.output_text and background.usage is not None and background.usage.input_tokens > 5
    assert followed.status == "incomplete" and followed.incomplete_details is not None
    assert followed.incomplete_details.reason == "max_output_tokens"
    assert followed.usage is not None and followed.usage.input_tokens > background.usage.input_tokens


async def test_a_stream_goes_on_at_another_process_and_at_one_that_was_killed_and_started_again(place: Place) -> None:
    async with place.client(1) as client:
        stream = await client.responses.create(model="heavy", input=SLOW, background=True, stream=True)
        first = [known(await anext(aiter(stream)))]
        response_id = first[0]["response"]["id"]
        with pytest.raises(openai.APIConnectionError):
            async for event in stream:
                first.append(known(event))
                if len(first) == 8:
                    place.http[1].kill()
    assert len(first) < WORDS

    async with place.client(0) as other:
        stream = await other.responses.retrieve(response_id, stream=True, starting_after=first[-1]["sequence_number"])
        second = []
        async for event in stream:
            second.append(known(event))
            if len(second) == 8:
                break
        await stream.close()
    place.http[1] = await place.ours.http(free_ports(1)[0]).ready()
    async with place.client(1) as again:
        last = second[-1]["sequence_number"]
        third = [known(e) async for e in await again.responses.retrieve(response_id, stream=True, starting_after=last)]
        retrieved = await again.responses.retrieve(response_id)

    events = first + second + third
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == retrieved.output_text == " ".join(f"w{i}" for i in range(WORDS))
    assert events[-1]["type"] == "response.completed"


async def test_the_helper_takes_a_stream_up_again(place: Place) -> None:
    async with place.client() as client:
        stream = await client.responses.create(model="heavy", input=SLOW, background=True, stream=True)
        started = known(await anext(aiter(stream)))
        await stream.close()

        async with client.responses.stream(response_id=started["response"]["id"], starting_after=5) as taken_up:
            numbers = [event.sequence_number async for event in taken_up]
            final = await taken_up.get_final_response()

    assert numbers[0] == 6 and numbers == list(range(6, 6 + len(numbers)))
    assert final.output_text.split() == [f"w{i}" for i in range(WORDS)]


async def test_tools_are_called_and_their_outputs_go_back(place: Place) -> None:
    tool: Any = {
        "type": "function",
        "name": "look",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    async with place.client() as client:
        stream = await client.responses.create(model="heavy", input="double:tools Look", tools=[tool], stream=True)
        events = [known(event) async for event in stream]
        [call] = Response.model_validate(events[-1]["response"]).output
        assert call.type == "function_call"
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "seen"}
        answer = await client.responses.create(
            model="heavy", input=[output], previous_response_id=events[-1]["response"]["id"]
        )

    assert (call.name, call.arguments, call.status) == ("look", '{"at": "it"}', "completed")
    pieces = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments and len(pieces) == 2
    assert answer.status == "completed"


async def test_thoughts_are_an_item_of_their_own(place: Place) -> None:
    async with place.client() as client:
        stream = await client.responses.create(model="heavy", input="double:reasoning Four", stream=True)
        events = [known(event) async for event in stream]
        final = Response.model_validate(events[-1]["response"])

    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.output_text == "double:reasoning Four"
    assert [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"] == ["Hm. "]


async def test_cancel_closes_the_upstream_call_and_is_safe_to_repeat_and_delete_forgets(place: Place) -> None:
    async with place.client() as client:
        created = await client.responses.create(model="heavy", input="double:mute x", background=True)
        async with asyncio.timeout(DONE_S):
            while (await client.responses.retrieve(created.id)).status != "in_progress":
                await asyncio.sleep(0.02)

        cancelled = [await client.responses.cancel(created.id) for _ in range(2)]
        items = await client.responses.input_items.list(created.id)
        await client.responses.delete(created.id)

        assert [response.status for response in cancelled] == ["cancelled", "cancelled"]
        assert [item.type for item in items.data] == ["message"]
        for gone in (client.responses.retrieve, client.responses.cancel, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await gone(created.id)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"previous_response_id": "resp_01K00000000000000000000000"}, "previous_response_id"),
        ({"truncation": "auto"}, "truncation"),
        ({"model": "no-such-model"}, "model"),
        ({"input": "word " * 300_000}, "input"),
    ],
)
async def test_what_cannot_be_done_is_an_error_of_the_sdks_that_names_it(
    place: Place, asked: dict[str, Any], param: str
) -> None:
    async with place.client() as client:
        with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
            await client.responses.create(**{"model": "auto", "input": "Hello", **asked})

    assert refused.value.param == param
