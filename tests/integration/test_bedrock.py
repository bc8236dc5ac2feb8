"""Jobs on models of Bedrock, through a DOUBLE of its runtime: before a DOUBLE of a server, or before a real model."""

import asyncio
import base64
import json
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from botocore.session import Session
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from redis.asyncio import Redis

from consumers.aws.backend_bedrock import BedrockBackend
from consumers.backend import Answer, BackendError, SoFar
from policies.deployments import Bedrock, Deployment, Tier
from policies.pricebook import builtin
from policies.pricing import Usage, cost
from policies.retries import Failure
from router.job import Job, JobState
from tests.aws import CREDENTIALS, REGION, controlled
from tests.builders import PATIENCE_S, Bench, a_bench, a_deployment, a_job, in_time, until
from tests.doubles import OpenAIDouble, openai_double
from tests.doubles.aws.bedrock import GUARDED
from tests.doubles.aws.shapes import faults
from tests.model import real_model

pytestmark = pytest.mark.usefixtures("aws_credentials")

MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
ERRORS = [
    ("ThrottlingException", Failure.THROTTLED),
    ("ModelNotReadyException", Failure.UNAVAILABLE),
    ("ServiceUnavailableException", Failure.UNAVAILABLE),
    ("InternalServerException", Failure.BACKEND_ERROR),
    ("ModelTimeoutException", Failure.TIMED_OUT),
    ("ModelErrorException", Failure.BACKEND_ERROR),
    ("ModelStreamErrorException", Failure.CUT),
    ("ServiceQuotaExceededException", Failure.THROTTLED),
    ("ValidationException", Failure.REJECTED),
    ("AccessDeniedException", Failure.MISCONFIGURED),
    ("ResourceNotFoundException", Failure.MISCONFIGURED),
]


@dataclass(frozen=True, slots=True)
class Place:
    """One model of its own at the double, and a backend that calls it."""

    url: str
    backend: BedrockBackend
    deployment: Deployment

    @property
    def profile(self) -> str:
        assert self.deployment.bedrock is not None
        return self.deployment.bedrock.profile

    def turn(self, **knobs: object) -> None:
        controlled(self.url, "bedrock/model", {"model": self.profile, **knobs})

    def record(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = controlled(self.url, "bedrock/record", {"model": self.profile})
        return found

    async def call(self, text: str = "Hello there", **fields: object) -> Answer:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        job = replace(a_job(), body=json.dumps(body).encode())
        return await self.backend.call(job, self.deployment, attempt=1, on_chunk=None, so_far=SoFar())

    def with_place(self, **fields: Any) -> "Place":
        assert self.deployment.bedrock is not None
        place = replace(self.deployment.bedrock, **fields)
        return replace(self, deployment=replace(self.deployment, bedrock=place))


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIDouble]:
    with openai_double() as double:
        yield double


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with real_model() as url:
        yield url


@pytest.fixture
async def place(aws: str, server: OpenAIDouble) -> AsyncIterator[Place]:
    async with placed(aws, server.url) as found:
        yield found


@pytest.fixture
async def real(aws: str, model: str) -> AsyncIterator[Place]:
    async with placed(aws, model) as found:
        yield found


class placed:
    """A model under a profile of its own, at the double."""

    def __init__(self, aws: str, upstream: str) -> None:
        profile = f"arn:aws:bedrock:{REGION}:123456789012:application-inference-profile/{uuid4().hex[:12]}"
        place = Bedrock(region=REGION, profile=profile, aws_url=aws)
        self._deployment = Deployment("light", "bedrock", MODEL, Tier.LIGHT, max_output=64, bedrock=place)
        self._opened = BedrockBackend.open({"light": self._deployment})
        self._aws, self._upstream = aws, upstream

    async def __aenter__(self) -> Place:
        found = Place(self._aws, await self._opened.__aenter__(), self._deployment)
        found.turn(upstream=self._upstream)
        return found

    async def __aexit__(self, *error: Any) -> None:
        await self._opened.__aexit__(*error)


async def test_a_real_model_answers_through_converse_with_its_own_count(real: Place) -> None:
    answer = await real.call("What is the capital of France?", temperature=0, max_tokens=24)

    whole = ChatCompletion.model_validate_json(answer.body, strict=True)
    assert whole.choices[0].message.content
    assert whole.usage is not None
    assert answer.usage.output == whole.usage.completion_tokens > 0
    assert whole.usage.prompt_tokens == answer.usage.input + answer.usage.cache_read
    assert answer.usage.tier == "default"


async def test_a_prompt_that_a_real_model_knows_is_read_from_its_cache_and_charged_so(real: Place) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 20
    await real.call(text, max_tokens=1)

    answer = await real.call(text, max_tokens=1)

    assert answer.usage.cache_read > 100
    assert answer.usage.input < 20
    price = builtin().find(MODEL)
    assert price is not None
    uncached = replace(answer.usage, input=answer.usage.input + answer.usage.cache_read, cache_read=0)
    found, full = cost(price, answer.usage), cost(price, uncached)
    assert found is not None and full is not None and found < full


async def test_a_cancelled_stream_frees_the_real_models_slot_within_two_seconds(real: Place, model: str) -> None:
    async def frees() -> float:
        call = asyncio.create_task(real.call("Count to a thousand", max_tokens=64))
        await until(lambda: busy(model))
        call.cancel()
        cancelled = time.monotonic()
        with suppress(asyncio.CancelledError):
            await call
        await until(lambda: idle(model))
        took = time.monotonic() - cancelled
        await until(lambda: real.record()[-1]["outcome"] == "aborted")
        return took

    await in_time(2.0, frees)


async def busy(model: str) -> bool:
    return await working(model) > 0


async def idle(model: str) -> bool:
    return await working(model) == 0


async def working(model: str) -> float:
    def read() -> str:
        with urllib.request.urlopen(f"{model}/metrics", timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
            return text

    found = re.search(r"^llamacpp:requests_processing (\S+)", await asyncio.to_thread(read), re.M)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize(("code", "failure"), ERRORS)
async def test_each_error_has_its_name_and_makes_one_call(place: Place, code: str, failure: Failure) -> None:
    place.turn(error=code)

    with pytest.raises(BackendError) as raised:
        await place.call()

    assert (raised.value.failure, raised.value.code) == (failure, code)
    assert len(place.record()) == 1
    assert raised.value.usage.total == 0 or failure in (Failure.TIMED_OUT, Failure.CUT)


@pytest.mark.parametrize(
    "code", ["ModelStreamErrorException", "ThrottlingException", "InternalServerException", "ValidationException"]
)
async def test_an_error_inside_a_stream_is_charged_with_what_had_come(place: Place, code: str) -> None:
    place.turn(stream_error=code)

    with pytest.raises(BackendError) as raised:
        await place.call("one two three four")

    assert raised.value.code == code
    assert raised.value.failure not in (Failure.THROTTLED, Failure.UNAVAILABLE)
    assert raised.value.usage.output >= 1
    assert len(place.record()) == 1


async def test_a_server_that_is_away_is_never_an_answer(place: Place) -> None:
    place.turn(upstream="http://127.0.0.1:1")

    with pytest.raises(BackendError) as raised:
        await place.call()

    assert raised.value.failure is Failure.UNAVAILABLE


async def test_bedrock_itself_away_is_told_apart_from_work_that_failed(place: Place) -> None:
    away = place.with_place(aws_url="http://127.0.0.1:1")

    with pytest.raises(BackendError) as raised:
        await away.call()

    assert (raised.value.failure, raised.value.usage) == (Failure.UNAVAILABLE, Usage())


async def test_without_credentials_nothing_is_sent_and_the_deployment_stands_still(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    with pytest.raises(BackendError) as raised:
        await place.call()

    assert raised.value.failure is Failure.MISCONFIGURED
    assert raised.value.pause_s is not None
    assert place.record() == []


async def test_the_tier_that_served_is_charged_and_not_the_one_that_was_asked_for(place: Place) -> None:
    place.turn(served="default")

    answer = await place.with_place(service_tier="flex").call()

    [call] = place.record()
    assert call["request"]["serviceTier"] == {"type": "flex"}
    assert answer.usage.tier == "default"


async def test_what_is_cached_is_beside_the_input_and_for_an_hour_apart(place: Place) -> None:
    place.turn(cached=100, written_1h=20)

    answer = await place.call()

    assert (answer.usage.cache_read, answer.usage.cache_write, answer.usage.cache_write_1h) == (100, 0, 20)
    usage = json.loads(answer.body)["usage"]
    assert usage["prompt_tokens"] == answer.usage.input + 120
    assert usage["prompt_tokens_details"]["cached_tokens"] == 100


@pytest.mark.parametrize("stop", ["malformed_model_output", "malformed_tool_use"])
async def test_a_malformed_answer_is_billed_and_fails(place: Place, stop: str) -> None:
    place.turn(stop=stop)

    with pytest.raises(BackendError) as raised:
        await place.call("one two three")

    assert (raised.value.failure, raised.value.code) == (Failure.BACKEND_ERROR, stop)
    assert raised.value.usage.output == 3
    assert raised.value.most_tries == 2


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("guardrail_intervened", "content_filter"),
        ("content_filtered", "content_filter"),
        ("model_context_window_exceeded", "length"),
    ],
)
async def test_every_stop_reason_is_one_of_openais(place: Place, stop: str, reason: str) -> None:
    place.turn(stop=stop)

    answer = await place.call()

    assert json.loads(answer.body)["choices"][0]["finish_reason"] == reason


async def test_the_double_refuses_what_botocores_model_does_not_know(place: Place) -> None:
    """So that every field that is sent in these tests is one of Bedrock's."""
    shape = Session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape

    assert faults({"modelId": "m", "messages": [{"role": "user", "content": [{"text": "x"}]}]}, shape) == []
    assert faults({"modelId": "m", "mesages": []}, shape)
    assert faults({"modelId": "m", "messages": [{"role": "user", "content": [{"text": 1}]}]}, shape)
    assert faults({"modelId": "m", "serviceTier": {"type": "cheap"}}, shape)


async def test_images_documents_tools_schemas_and_cache_points_reach_bedrock_field_by_field(place: Place) -> None:
    pdf = base64.b64encode(b"%PDF-1.4 nothing").decode()
    secret = "quarterly numbers of acme.pdf"
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Of a town",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
        },
    }
    schema = {"name": "answer", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    messages = [
        {
            "role": "system",
            "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{pdf}", "filename": secret}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Bonn"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
    ]
    guarded = place.with_place(service_tier="priority", latency="optimized")

    await guarded.call(messages=messages, tools=[tool], temperature=0.5, top_p=None, stop=["END"], max_tokens=20)
    await guarded.call(response_format={"type": "json_schema", "json_schema": schema})

    first, second = (call["request"] for call in place.record())
    assert first["inferenceConfig"] == {"maxTokens": 20, "temperature": 0.5, "stopSequences": ["END"]}
    assert first["system"] == [{"text": "Be brief."}, {"cachePoint": {"type": "default", "ttl": "1h"}}]
    looked, asked, told = first["messages"]
    [text, image, document] = looked["content"]
    assert text == {"text": "Look"}
    assert image["image"]["format"] == "png"
    assert document["document"]["format"] == "pdf"
    assert secret not in json.dumps(first)
    assert re.fullmatch(r"[A-Za-z0-9 _\-()\[\]]{1,200}", document["document"]["name"])
    assert asked["content"][0]["toolUse"] == {"toolUseId": "t1", "name": "weather", "input": {"town": "Bonn"}}
    assert told["content"][0]["toolResult"]["content"] == [{"text": "rain"}]
    assert first["toolConfig"]["tools"][0]["toolSpec"]["name"] == "weather"
    assert first["performanceConfig"] == {"latency": "optimized"}
    assert first["requestMetadata"]["pointsman_attempt"] == "1"
    wanted = second["outputConfig"]["textFormat"]
    assert wanted["type"] == "json_schema"
    assert json.loads(wanted["structure"]["jsonSchema"]["schema"])["properties"] == {"a": {"type": "string"}}
    assert second["inferenceConfig"]["maxTokens"] == 64


async def test_of_many_calls_that_begin_at_once_the_first_is_sent_first(place: Place) -> None:
    """Else all of them are sent late, and the provider's buckets have gained less by then than ours."""
    await asyncio.gather(*(place.call(f"call {n:02}") for n in range(30)))

    texts = [call["request"]["messages"][0]["content"][0]["text"] for call in place.record()]
    assert len(texts) == 30
    assert all(abs(int(text.removeprefix("call ")) - arrived) <= 4 for arrived, text in enumerate(texts))


@pytest.mark.parametrize("streams", [False, True])
async def test_a_guardrail_that_steps_in_is_a_content_filter_and_costs_no_tokens(place: Place, streams: bool) -> None:
    place.turn(guarded="gunpowder")
    guarded = place.with_place(guardrail="grabc123", guardrail_version="2")
    chunks: list[bytes] = []

    async def on_chunk(chunk: bytes) -> None:
        chunks.append(chunk)

    async def asked(text: str) -> Answer:
        body = {"messages": [{"role": "user", "content": text}], "stream": streams}
        job = replace(a_job(), body=json.dumps(body).encode(), stream=streams)
        listener = on_chunk if streams else None
        return await guarded.backend.call(job, guarded.deployment, attempt=1, on_chunk=listener, so_far=SoFar())

    stopped = await asked("How is gunpowder made?")
    reasons = [choice.get("finish_reason") for chunk in chunks for choice in json.loads(chunk)["choices"]]
    passed = await asked("How is bread made?")

    [choice] = json.loads(stopped.body)["choices"]
    assert choice["finish_reason"] == "content_filter"
    assert choice["message"]["content"] == GUARDED
    assert stopped.usage.total == 0
    assert (reasons[-1] if streams else "content_filter") == "content_filter"
    assert json.loads(passed.body)["choices"][0]["finish_reason"] == "stop"
    assert {json.dumps(call["request"]["guardrailConfig"], sort_keys=True) for call in place.record()} == {
        '{"guardrailIdentifier": "grabc123", "guardrailVersion": "2", "trace": "disabled"}'
    }


async def test_a_job_that_a_guardrail_stopped_is_completed_and_says_so(
    redis: "Redis", tmp_path: Path, place: Place
) -> None:
    place.turn(guarded="gunpowder")
    guarded = place.with_place(guardrail="grabc123", guardrail_version="2")
    deployment = replace(a_deployment(price=builtin().find(MODEL)), model=MODEL, bedrock=guarded.deployment.bedrock)
    async with a_bench(redis, tmp_path, deployments=[deployment]) as bench:
        stop = asyncio.Event()
        running = asyncio.create_task(bench.worker(place.backend).run(stop))
        [view] = await bench.ended(await bench.queued("How is gunpowder made?"))
        stop.set()
        await running
        charges = await bench.charges()

    assert view.state is JobState.COMPLETED
    assert json.loads(view.result or b"{}")["choices"][0]["finish_reason"] == "content_filter"
    assert [(row["lines"], row["tokens"]) for row in charges] == [([], 0)]


async def test_a_tools_call_comes_back_as_openais(place: Place) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}

    answer = await place.call("double:tools go", tools=[tool])

    whole = ChatCompletion.model_validate_json(answer.body, strict=True)
    [call] = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) is not None
    assert whole.choices[0].finish_reason == "tool_calls"


async def test_without_a_profile_the_model_itself_is_called(place: Place) -> None:
    controlled(place.url, "bedrock/model", {"model": MODEL, "upstream": "http://127.0.0.1:1"})

    with pytest.raises(BackendError):
        await place.with_place(profile="").call()

    assert len(controlled(place.url, "bedrock/record", {"model": MODEL})) == 1
    assert place.record() == []


async def invoked(place: Place, model: str, endpoint: str, **body: object) -> Answer:
    controlled(place.url, "bedrock/model", {"model": model})
    deployment = replace(place.with_place(profile="").deployment, model=model)
    job = replace(a_job(), endpoint=endpoint, body=json.dumps(body).encode())
    return await place.backend.call(job, deployment, attempt=1, on_chunk=None, so_far=SoFar())


async def test_texts_are_embedded_one_vector_for_each(place: Place) -> None:
    answer = await invoked(place, "amazon.titan-embed-text-v2:0", "/v1/embeddings", input=["four", "four more"])

    whole = CreateEmbeddingResponse.model_validate_json(answer.body)
    assert [each.index for each in whole.data] == [0, 1]
    assert [len(each.embedding) for each in whole.data] == [1024, 1024]
    assert whole.model == "light"
    assert answer.usage.input == 4


async def test_pictures_are_made(place: Place) -> None:
    answer = await invoked(place, "amazon.nova-canvas-v1:0", "/v1/images/generations", prompt="A dot", n=2)

    assert [each["b64_json"] for each in json.loads(answer.body)["data"]] == [PIXEL, PIXEL]
    assert answer.usage.images == 2


async def test_tier_guardrail_and_whose_call_it_was_go_along_with_texts_signed_and_the_served_tier_comes_back(
    place: Place,
) -> None:
    model = "amazon.titan-embed-text-v2:0"
    controlled(place.url, "bedrock/model", {"model": model, "served": "priority"})
    asking = place.with_place(service_tier="flex", latency="optimized", guardrail="grabc123", guardrail_version="2")
    before = len(controlled(place.url, "bedrock/record", {"model": model}))

    answer = await invoked(asking, model, "/v1/embeddings", input=["four"])
    controlled(place.url, "bedrock/model", {"model": model, "served": ""})

    headers = controlled(place.url, "bedrock/record", {"model": model})[before]["request"]["headers"]
    metadata = json.loads(headers.pop("request-metadata"))
    assert headers == {
        "service-tier": "flex",
        "performanceconfig-latency": "optimized",
        "guardrailidentifier": "grabc123",
        "guardrailversion": "2",
    }
    assert (metadata["pointsman_tenant"], metadata["pointsman_attempt"]) == ("acme", "1")
    assert answer.usage.tier == "priority"


@pytest.mark.parametrize("endpoint", ["/v1/embeddings", "/v1/images/generations"])
async def test_an_error_of_a_call_that_does_not_stream_has_its_code_as_well(place: Place, endpoint: str) -> None:
    model = "amazon.titan-embed-text-v2:0" if endpoint == "/v1/embeddings" else "amazon.nova-canvas-v1:0"
    controlled(place.url, "bedrock/model", {"model": model, "error": "ThrottlingException", "errors": 1})

    with pytest.raises(BackendError) as raised:
        await invoked(place, model, endpoint, input=["four"], prompt="A dot")

    assert (raised.value.failure, raised.value.code) == (Failure.THROTTLED, "ThrottlingException")


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path, place: Place) -> AsyncIterator[Bench]:
    deployment = replace(a_deployment(), model=place.deployment.model, bedrock=place.deployment.bedrock)
    async with a_bench(redis, tmp_path, deployments=[deployment]) as found:
        yield found


async def test_a_permission_that_is_missing_stops_the_deployment_and_fails_no_job(bench: Bench, place: Place) -> None:
    place.turn(error="AccessDeniedException")
    jobs = [await bench.queued(f"number {i}") for i in range(10)]
    alarms: list[tuple[str, bool]] = []
    stop = asyncio.Event()
    worker = bench.worker(place.backend)
    worker.attempt.onward.alarmed = lambda name, stands_still: alarms.append((name, stands_still))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run(stop))
        await until(lambda: bool(alarms))
        await until(lambda: no_job_runs(bench, jobs))
        fault = await worker.attempt.onward.standstill()
        stop.set()

    assert {await bench.state(job) for job in jobs} == {JobState.QUEUED}
    assert fault is not None and "AccessDeniedException" in fault
    assert set(alarms) == {("small", True)}
    assert len(place.record()) <= len(jobs)
    assert not await bench.events()


async def no_job_runs(bench: Bench, jobs: list[Job]) -> bool:
    return JobState.RUNNING not in {await bench.state(job) for job in jobs}
