"""What every backend promises. Each test runs on echo, and on the others in front of doubles.

The bedrock backend calls a double of Bedrock, which has the same double of a server behind it as the gpu backend.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from consumers.aws.backend_bedrock import BedrockBackend
from consumers.backend import Answer, Backend, BackendError, OnChunk, SoFar
from consumers.backend_echo import EchoBackend
from consumers.gpu.backend_gpu import GpuBackend
from policies.deployments import Bedrock, Deployment, Tier, Timeouts
from policies.pricing import Basis, Usage
from policies.retries import Failure
from router.job import Job
from tests.aws import REGION, controlled
from tests.builders import PATIENCE_S, a_job, in_time
from tests.doubles import OpenAIDouble, openai_double

MODEL = "anthropic.claude-3-haiku-20240307-v1:0"
DOUBLE_FAILS = {
    Failure.REJECTED: "double:error-400",
    Failure.TOO_LONG: "double:long",
    Failure.FILTERED: "double:filtered",
    Failure.THROTTLED: "double:error-429",
    Failure.UNAVAILABLE: "double:error-503",
    Failure.BACKEND_ERROR: "double:error-500",
    Failure.TIMED_OUT: "double:error-408",
    Failure.CUT: "double:cut-clean a b c d",
    Failure.MISCONFIGURED: "double:error-404",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend, and the texts that make it behave in a certain way."""

    backend: Backend
    deployment: Deployment
    fails: Mapping[Failure, str]
    never_answers: str
    is_under_way: Callable[[str], Awaitable[object]]  # waits until the call for that job is
    takes_choices: bool = True

    async def call(
        self,
        text: str,
        *,
        job: str = "job_1",
        on_chunk: OnChunk | None = None,
        so_far: SoFar | None = None,
        timeouts: Timeouts | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> Answer:
        deployment = replace(self.deployment, timeouts=timeouts) if timeouts else self.deployment
        answer = await self.backend.call(
            asking(text, id=job, fields=fields), deployment, attempt=1, on_chunk=on_chunk, so_far=so_far or SoFar()
        )
        assert isinstance(answer, Answer)
        return answer


def asking(text: str, *, id: str, fields: Mapping[str, object] | None = None) -> Job:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}], **(fields or {})}
    return a_job(id=id, body=json.dumps(body).encode())


@pytest.fixture(scope="module")
def double() -> Iterator[OpenAIDouble]:
    with openai_double() as running:
        yield running


@pytest.fixture(scope="module")
def bedrock(aws: str, double: OpenAIDouble) -> str:
    controlled(aws, "bedrock/model", {"model": MODEL, "upstream": double.url})
    return aws


@pytest.fixture(params=["echo", "gpu", "bedrock"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "echo":
        deployment = Deployment("light", "echo", "echo", Tier.LIGHT, max_output=50)
        fails = {failure: f"fail:{failure}" for failure in Failure}
        yield Subject(EchoBackend(), deployment, fails, "wait:600", lambda job: asyncio.sleep(0))
        return
    double: OpenAIDouble = request.getfixturevalue("double")
    if request.param == "bedrock":
        request.getfixturevalue("aws_credentials")
        place = Bedrock(region=REGION, aws_url=request.getfixturevalue("bedrock"))
        model = Deployment("light", "bedrock", MODEL, Tier.LIGHT, max_output=50, bedrock=place)
        async with BedrockBackend.open({"light": model}) as calling:
            yield Subject(
                calling,
                model,
                DOUBLE_FAILS,
                "double:mute",
                lambda job: double.until(lambda calls: calls.open == 1, job=job),
                takes_choices=False,
            )
        return
    deployment = Deployment("light", "gpu", "instant", Tier.LIGHT, url=double.url, max_output=50)
    async with GpuBackend.open({}) as backend:
        yield Subject(
            backend,
            deployment,
            DOUBLE_FAILS,
            "double:mute",
            lambda job: double.until(lambda calls: calls.open == 1, job=job),
        )


class Chunks:
    """Keeps what `on_chunk` gets."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []

    async def __call__(self, chunk: bytes) -> None:
        self.raw.append(chunk)

    @property
    def parsed(self) -> list[ChatCompletionChunk]:
        return [ChatCompletionChunk.model_validate_json(chunk, strict=True) for chunk in self.raw]


async def test_an_answer_is_a_whole_openai_object_under_our_names(subject: Subject) -> None:
    answer = await subject.call("Hello there, world")

    whole = ChatCompletion.model_validate_json(answer.body, strict=True)
    assert whole.id == "chatcmpl-job_1"
    assert whole.model == "light"
    assert whole.choices[0].message.content == "Hello there, world"
    assert whole.choices[0].finish_reason == "stop"


async def test_usage_in_the_object_is_the_usage_that_is_charged(subject: Subject) -> None:
    answer = await subject.call("Hello there, world")

    whole = ChatCompletion.model_validate_json(answer.body, strict=True)
    assert whole.usage is not None
    assert replace(answer.usage, tier="") == Usage(
        input=whole.usage.prompt_tokens, output=whole.usage.completion_tokens
    )
    assert answer.usage.basis is Basis.METERED
    assert answer.usage.output == 3


async def test_the_chunks_are_the_answer_in_pieces(subject: Subject) -> None:
    chunks = Chunks()

    answer = await subject.call("Hello there, world", on_chunk=chunks)

    pieces = [choice for chunk in chunks.parsed for choice in chunk.choices]
    whole = ChatCompletion.model_validate_json(answer.body, strict=True)
    assert "".join(piece.delta.content or "" for piece in pieces) == whole.choices[0].message.content
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop"]
    assert {(chunk.id, chunk.model, chunk.object) for chunk in chunks.parsed} == {
        ("chatcmpl-job_1", "light", "chat.completion.chunk")
    }
    assert len(pieces) > 3


@pytest.mark.parametrize("asked", [True, False])
async def test_usage_ends_the_stream_only_where_it_was_asked_for(subject: Subject, asked: bool) -> None:
    chunks = Chunks()
    fields = {"stream": True, "stream_options": {"include_usage": asked}}

    answer = await subject.call("one two", on_chunk=chunks, fields=fields)

    with_usage = [chunk.usage.completion_tokens for chunk in chunks.parsed if chunk.usage]
    assert with_usage == ([answer.usage.output] if asked else [])
    assert (chunks.parsed[-1].choices == []) is asked
    assert any(chunk.choices for chunk in chunks.parsed)


async def test_choices_are_as_many_as_were_asked_for_or_refused(subject: Subject) -> None:
    if not subject.takes_choices:
        with pytest.raises(BackendError) as raised:
            await subject.call("one two", fields={"n": 3})
        assert (raised.value.failure, raised.value.param) == (Failure.REJECTED, "n")
        return
    answer = await subject.call("one two", fields={"n": 3})

    whole = ChatCompletion.model_validate_json(answer.body, strict=True)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert {choice.message.content for choice in whole.choices} == {"one two"}


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, 50),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 9999}, 50),
        ({"max_tokens": -1}, 50),
    ],
)
async def test_output_is_always_bounded(subject: Subject, fields: dict[str, object], most: int) -> None:
    answer = await subject.call("word " * 80, fields=fields)

    assert answer.usage.output == most


@pytest.mark.parametrize("failure", [each for each in Failure if each is not Failure.UNUSABLE])  # a worker says so
async def test_every_failure_has_its_name_and_says_so_in_so_far(subject: Subject, failure: Failure) -> None:
    so_far = SoFar()

    with pytest.raises(BackendError) as raised:
        await subject.call(subject.fails[failure], so_far=so_far)

    assert raised.value.failure is failure
    assert raised.value.detail
    assert raised.value.code
    assert so_far.usage == raised.value.usage


@pytest.mark.parametrize("failure", [Failure.REJECTED, Failure.THROTTLED, Failure.UNAVAILABLE, Failure.MISCONFIGURED])
async def test_where_nothing_was_done_nothing_is_owed(subject: Subject, failure: Failure) -> None:
    with pytest.raises(BackendError) as raised:
        await subject.call(subject.fails[failure])

    assert raised.value.usage == Usage()


@pytest.mark.parametrize("timeouts", [Timeouts(first_token=0.5), Timeouts(total=0.5)], ids=["first token", "total"])
async def test_a_call_ends_when_its_time_is_over(subject: Subject, timeouts: Timeouts) -> None:
    with pytest.raises(BackendError) as raised:
        await subject.call(subject.never_answers, timeouts=timeouts)

    assert raised.value.failure is Failure.TIMED_OUT
    assert raised.value.usage.input > 0


async def test_a_cancelled_call_ends_at_once_and_tells_what_it_used(subject: Subject) -> None:
    tries = itertools.count()

    async def ends() -> float:
        so_far, job = SoFar(), f"job_cancelled_{next(tries)}"
        call = asyncio.create_task(subject.call(subject.never_answers, job=job, so_far=so_far))
        await subject.is_under_way(job)
        call.cancel()
        cancelled = time.monotonic()
        await asyncio.wait([call], timeout=PATIENCE_S)
        assert call.cancelled()
        assert so_far.usage.input > 0
        return time.monotonic() - cancelled

    await in_time(1.0, ends)


async def test_an_error_of_the_listener_is_passed_on_as_it_is(subject: Subject) -> None:
    async def broken(chunk: bytes) -> None:
        raise TimeoutError("the listener's own")

    with pytest.raises(TimeoutError, match="the listener's own"):
        await subject.call("Hello", on_chunk=broken)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null", b'{"n": NaN}', b"[" * 100_000, b'{"n": 1000000}'])
async def test_a_body_that_is_none_is_the_clients_fault(subject: Subject, body: bytes) -> None:
    job = a_job(id="job_1", body=body)

    with pytest.raises(BackendError) as raised:
        await subject.backend.call(job, subject.deployment, attempt=1, on_chunk=None, so_far=SoFar())

    assert raised.value.failure is Failure.REJECTED


async def test_calls_at_the_same_time_do_not_mix(subject: Subject) -> None:
    answers = await asyncio.gather(*(subject.call(f"number {i}", job=f"job_{i}") for i in range(50)))

    wholes = [ChatCompletion.model_validate_json(answer.body) for answer in answers]
    assert [whole.choices[0].message.content for whole in wholes] == [f"number {i}" for i in range(50)]
    assert [whole.id for whole in wholes] == [f"chatcmpl-job_{i}" for i in range(50)]


async def test_a_deployment_that_answers_is_fine(subject: Subject) -> None:
    assert await subject.backend.ping(subject.deployment) is None
