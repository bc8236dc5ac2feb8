"""What every backend promises of embeddings, images, speech and transcription: on echo, and on a double of a server."""

import asyncio
import base64
import itertools
import json
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse, ImagesResponse
from openai.types.audio import Transcription, TranscriptionVerbose

from consumers.backend import Answer, Backend, BackendError, SoFar
from consumers.backend_echo import EchoBackend
from consumers.gpu.backend_gpu import GpuBackend
from policies.deployments import Deployment, Tier, Timeouts
from policies.pricing import Usage
from policies.retries import Failure
from router.expected import expected
from router.forms import Form
from router.job import Estimate
from tests.builders import PATIENCE_S, a_job, in_time
from tests.doubles import OpenAIDouble, openai_double
from tests.unit.router.test_media_sizes import a_wav

EMBEDDINGS, IMAGES = "/v1/embeddings", "/v1/images/generations"
SPEECH, TRANSCRIPTIONS = "/v1/audio/speech", "/v1/audio/transcriptions"
WAV = a_wav(2.5)


@dataclass(frozen=True, slots=True)
class Subject:
    backend: Backend
    deployment: Deployment
    fails: dict[Failure, str]
    never_answers: str
    is_under_way: Callable[[str], Awaitable[object]]  # waits until the call for that job is

    async def call(
        self, endpoint: str, *, so_far: SoFar | None = None, total_s: float = 20.0, job: str = "job_1", **fields: Any
    ) -> Answer:
        body = json.dumps({"model": "auto", **fields}).encode()
        if endpoint == TRANSCRIPTIONS:
            body = Form(tuple({"model": "auto", **fields}.items()), "a.wav", WAV).to_bytes()
            fields = {**fields, "file": WAV}
        usage = expected(endpoint, fields, self.deployment, read=5).usage
        ours = replace(a_job(), id=job, endpoint=endpoint, body=body, estimate=Estimate.of(usage, None))
        there = replace(self.deployment, timeouts=Timeouts(total=total_s))
        answer = await self.backend.call(ours, there, attempt=1, on_chunk=None, so_far=so_far or SoFar())
        assert isinstance(answer, Answer)
        return answer


@pytest.fixture(scope="module")
def double() -> Iterator[OpenAIDouble]:
    with openai_double() as running:
        yield running


@pytest.fixture(params=["echo", "gpu"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "echo":
        fails = {failure: f"fail:{failure} please" for failure in Failure}
        yield Subject(
            EchoBackend(),
            Deployment("ours", "echo", "echo", Tier.LIGHT),
            fails,
            "wait:600 please",
            lambda _: asyncio.sleep(0.01),
        )
        return
    double: OpenAIDouble = request.getfixturevalue("double")
    fails = {
        Failure.REJECTED: "double:error-400",
        Failure.THROTTLED: "double:error-429",
        Failure.UNAVAILABLE: "double:reset",
        Failure.BACKEND_ERROR: "double:error-500",
        Failure.TIMED_OUT: "double:error-408",
        Failure.MISCONFIGURED: "double:html",
    }
    async with GpuBackend.open({}) as backend:
        yield Subject(
            backend,
            Deployment("ours", "gpu", "m", Tier.LIGHT, url=double.url),
            fails,
            "double:mute",
            lambda job: double.until(lambda calls: calls.open == 1, job=job),
        )


@pytest.mark.parametrize("given", ["one", ["one", "two words"], [5, 6], [[5, 6], [7]]])
async def test_embeddings_have_the_clients_form_and_order(subject: Subject, given: Any) -> None:
    inputs = 2 if isinstance(given, list) and not isinstance(given[0], int) else 1

    floats = await subject.call(EMBEDDINGS, input=given, dimensions=6)
    packed = await subject.call(EMBEDDINGS, input=given, dimensions=6, encoding_format="base64")

    whole = CreateEmbeddingResponse.model_validate_json(floats.body, strict=True)
    assert [row.index for row in whole.data] == list(range(inputs))
    assert {len(row.embedding) for row in whole.data} == {6}
    assert whole.model == "ours"
    assert floats.usage == Usage(input=whole.usage.prompt_tokens)
    for row, text in zip(whole.data, json.loads(packed.body)["data"], strict=True):
        assert struct.unpack("<6f", base64.b64decode(text["embedding"])) == pytest.approx(row.embedding)


async def test_images_are_as_many_as_were_asked_for_and_counted(subject: Subject) -> None:
    answer = await subject.call(IMAGES, prompt="a cat", n=3)

    whole = ImagesResponse.model_validate_json(answer.body, strict=True)
    assert whole.data is not None
    assert [base64.b64decode(image.b64_json or "")[:4] for image in whole.data] == [b"\x89PNG"] * 3
    assert answer.usage.images == 3


async def test_speech_is_sound_with_its_type_and_its_characters_are_counted(subject: Subject) -> None:
    answer = await subject.call(SPEECH, input="Hello there", voice="alloy", response_format="wav")

    assert (answer.media_type, answer.body[:4], answer.body[8:12]) == ("audio/wav", b"RIFF", b"WAVE")
    assert answer.usage.characters == 11
    assert answer.usage.audio_seconds >= 1


@pytest.mark.parametrize("wanted", ["json", "verbose_json"])
async def test_a_transcription_is_an_object_and_its_seconds_are_counted(subject: Subject, wanted: str) -> None:
    answer = await subject.call(TRANSCRIPTIONS, response_format=wanted, language="en")

    shape = Transcription if wanted == "json" else TranscriptionVerbose
    assert str(len(WAV)) in shape.model_validate_json(answer.body).text
    assert answer.media_type == "application/json"
    assert answer.usage.audio_seconds in (1, 3)


@pytest.mark.parametrize("wanted", ["text", "srt", "vtt"])
async def test_a_transcription_is_text_where_that_was_asked_for(subject: Subject, wanted: str) -> None:
    answer = await subject.call(TRANSCRIPTIONS, response_format=wanted)

    assert str(len(WAV)) in answer.body.decode()
    assert answer.media_type.startswith("text/plain")
    assert answer.usage.audio_seconds == 3


OF_CHAT = {Failure.CUT, Failure.TOO_LONG, Failure.FILTERED, Failure.UNUSABLE}


@pytest.mark.parametrize("endpoint", [EMBEDDINGS, SPEECH])
@pytest.mark.parametrize("failure", sorted(set(Failure) - OF_CHAT))
async def test_every_failure_has_its_name(subject: Subject, endpoint: str, failure: Failure) -> None:
    so_far = SoFar()

    with pytest.raises(BackendError) as raised:
        await subject.call(endpoint, input=subject.fails[failure], voice="alloy", so_far=so_far)

    assert raised.value.failure is failure
    assert raised.value.detail and raised.value.code
    assert so_far.usage == raised.value.usage


async def test_a_call_ends_when_its_time_is_over_and_owes_its_input(subject: Subject) -> None:
    with pytest.raises(BackendError) as raised:
        await subject.call(EMBEDDINGS, input=subject.never_answers, total_s=0.5)

    assert raised.value.failure is Failure.TIMED_OUT
    assert raised.value.usage.input > 0


async def test_a_cancelled_call_ends_at_once_and_owes_its_input(subject: Subject) -> None:
    tries = itertools.count()

    async def ends() -> float:
        so_far, job = SoFar(), f"job_cancelled_{next(tries)}"
        call = asyncio.create_task(subject.call(EMBEDDINGS, input=subject.never_answers, job=job, so_far=so_far))
        await subject.is_under_way(job)
        call.cancel()
        cancelled = time.monotonic()
        await asyncio.wait([call], timeout=PATIENCE_S)
        assert call.cancelled()
        assert so_far.usage.input > 0
        return time.monotonic() - cancelled

    await in_time(1.0, ends)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"--x\r\n", b'{"input": []}', b'{"input": 5}'])
@pytest.mark.parametrize("endpoint", [EMBEDDINGS, TRANSCRIPTIONS, "/v1/nothing"])
async def test_a_body_that_is_none_is_the_clients_fault(subject: Subject, endpoint: str, body: bytes) -> None:
    job = replace(a_job(), endpoint=endpoint, body=body)

    with pytest.raises(BackendError) as raised:
        await subject.backend.call(job, subject.deployment, attempt=1, on_chunk=None, so_far=SoFar())

    assert raised.value.failure is Failure.REJECTED
