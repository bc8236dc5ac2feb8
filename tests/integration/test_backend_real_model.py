"""The gpu backend in front of a real llama.cpp server with a real, small model."""

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from consumers.backend import BackendError, SoFar
from consumers.gpu.backend_gpu import GpuBackend
from policies.deployments import Deployment, Tier, Timeouts
from policies.pricing import Basis
from policies.retries import Failure
from router.job import Job
from tests import model
from tests.builders import PATIENCE_S, a_job, in_time
from tests.servers import unavailable


def asking(text: str, **fields: object) -> Job:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}], "temperature": 0, "seed": 1, **fields}
    return a_job(body=json.dumps(body).encode())


@pytest.fixture(scope="module")
def light() -> Iterator[Deployment]:
    if not model.is_installed():
        unavailable(model.MISSING)
    with model.real_model() as url:
        yield Deployment("light", "gpu", "smollm2", Tier.LIGHT, url=url, max_output=24)


@pytest.fixture
async def gpu() -> AsyncIterator[GpuBackend]:
    async with GpuBackend.open({}) as backend:
        yield backend


def busy_slots(url: str) -> int:
    """How many answers the server is making, by its own metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("llamacpp:requests_processing "):
                return int(float(line.split()[1]))
    raise AssertionError("the server has no such metric")


async def until_busy_slots_are(count: int, url: str) -> float:
    """The seconds that it took."""
    began = time.monotonic()
    while (busy := await asyncio.to_thread(busy_slots, url)) != count:
        assert time.monotonic() < began + PATIENCE_S, f"{busy} answers are being made, not {count}"
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def test_a_real_answer_is_whole_bounded_and_metered(gpu: GpuBackend, light: Deployment) -> None:
    chunks: list[bytes] = []

    async def keep(chunk: bytes) -> None:
        chunks.append(chunk)

    job = asking("Name three colours.", stream=True, stream_options={"include_usage": True})
    answer = await gpu.call(job, light, attempt=1, on_chunk=keep, so_far=SoFar())

    whole = ChatCompletion.model_validate_json(answer.body, strict=True)
    streamed = [ChatCompletionChunk.model_validate_json(chunk, strict=True) for chunk in chunks]
    assert whole.choices[0].message.content
    text = "".join(piece.choices[0].delta.content or "" for piece in streamed if piece.choices)
    assert text == whole.choices[0].message.content
    assert answer.usage.basis is Basis.METERED
    assert 0 < answer.usage.output <= 24
    assert streamed[-1].usage is not None
    assert streamed[-1].usage.completion_tokens == answer.usage.output


async def test_a_repeated_prompt_is_charged_as_cached(gpu: GpuBackend, light: Deployment) -> None:
    job = asking("Say why the sea is salt. " * 8, max_tokens=1)

    first = await gpu.call(job, light, attempt=1, on_chunk=None, so_far=SoFar())
    second = await gpu.call(job, light, attempt=1, on_chunk=None, so_far=SoFar())

    assert second.usage.cache_read > 0
    assert second.usage.input + second.usage.cache_read == first.usage.input + first.usage.cache_read


async def test_several_choices_and_logprobs_come_from_a_real_server(gpu: GpuBackend, light: Deployment) -> None:
    job = asking("Say a word.", n=2, logprobs=True, top_logprobs=2, max_tokens=4)

    answer = await gpu.call(job, light, attempt=1, on_chunk=None, so_far=SoFar())

    whole = ChatCompletion.model_validate_json(answer.body, strict=True)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content


async def test_a_cancelled_call_frees_its_slot_within_a_second(gpu: GpuBackend, light: Deployment) -> None:
    endless = replace(light, max_output=1500)

    async def frees() -> float:
        so_far, first = SoFar(), asyncio.Event()

        async def note(chunk: bytes) -> None:
            first.set()

        job = asking("Tell a very long story.", ignore_eos=True)
        running = asyncio.create_task(gpu.call(job, endless, attempt=1, on_chunk=note, so_far=so_far))
        async with asyncio.timeout(PATIENCE_S):
            await first.wait()
        await until_busy_slots_are(1, light.url)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert so_far.usage.input > 0
        return await until_busy_slots_are(0, light.url)

    await in_time(1.0, frees)


async def test_a_call_that_is_too_slow_frees_its_slot(gpu: GpuBackend, light: Deployment) -> None:
    endless = replace(light, max_output=1500, timeouts=Timeouts(total=1.0))

    with pytest.raises(BackendError) as raised:
        await gpu.call(asking("Tell a story.", ignore_eos=True), endless, attempt=1, on_chunk=None, so_far=SoFar())

    assert raised.value.failure is Failure.TIMED_OUT
    await until_busy_slots_are(0, light.url)


async def test_a_prompt_over_the_window_is_rejected_in_the_servers_words(gpu: GpuBackend, light: Deployment) -> None:
    with pytest.raises(BackendError) as raised:
        await gpu.call(asking("word " * 5000), light, attempt=1, on_chunk=None, so_far=SoFar())

    assert raised.value.failure is Failure.TOO_LONG
    assert raised.value.code == "exceed_context_size_error"
    assert "context" in raised.value.detail


async def test_a_ping_finds_the_model(gpu: GpuBackend, light: Deployment) -> None:
    assert await gpu.ping(light) is None
