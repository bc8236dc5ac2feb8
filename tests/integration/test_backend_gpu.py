"""The gpu backend against every way in which a server can fail, played by the double."""

import asyncio
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from consumers.backend import Answer, BackendError, OnChunk, SoFar
from consumers.gpu.backend_gpu import GpuBackend
from policies.deployments import Deployment, Tier, Timeouts
from policies.pricing import Basis, Usage
from policies.retries import Failure
from router.job import Estimate, Job
from tests.builders import PATIENCE_S, a_job, in_time
from tests.doubles import OpenAIDouble, openai_double
from tools.kafka.broker import free_ports


def asking(text: str, *, id: str = "job_1", **fields: object) -> Job:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    return a_job(id=id, body=json.dumps(body).encode(), estimate=Estimate(9, 100), traceparent=trace)


@pytest.fixture(scope="module")
def double() -> Iterator[OpenAIDouble]:
    with openai_double() as running:
        yield running


@pytest.fixture
def light(double: OpenAIDouble) -> Deployment:
    return Deployment("light", "gpu", "instant", Tier.LIGHT, url=double.url, max_output=200)


@pytest.fixture
async def gpu() -> AsyncIterator[GpuBackend]:
    async with GpuBackend.open({"light": "k3y", "wrong": "wrong", "strict": "strict"}) as backend:
        yield backend


async def call(
    gpu: GpuBackend,
    deployment: Deployment,
    job: Job,
    *,
    attempt: int = 1,
    on_chunk: OnChunk | None = None,
    so_far: SoFar | None = None,
) -> Answer:
    return await gpu.call(job, deployment, attempt=attempt, on_chunk=on_chunk, so_far=so_far or SoFar())


async def failing(gpu: GpuBackend, deployment: Deployment, job: Job) -> BackendError:
    with pytest.raises(BackendError) as raised:
        await call(gpu, deployment, job)
    return raised.value


def content(answer: Answer) -> object:
    return json.loads(answer.body)["choices"][0]["message"]["content"]


async def test_upstream_gets_a_stream_a_bound_a_key_and_our_id(
    gpu: GpuBackend, light: Deployment, double: OpenAIDouble
) -> None:
    await call(gpu, light, asking("Hello", id="job_headers", pointsman={"max_usd": "1"}), attempt=3)

    body, headers = await asyncio.to_thread(double.last)
    assert body == {
        "model": "instant",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 200,
    }
    assert headers["authorization"] == "Bearer k3y"
    assert headers["x-request-id"] == "job_headers.3"
    assert headers["traceparent"].startswith("00-")


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
async def test_a_url_may_or_may_not_end_in_v1(gpu: GpuBackend, light: Deployment, end: str) -> None:
    assert content(await call(gpu, replace(light, url=light.url + end), asking("Hello"))) == "Hello"


@pytest.mark.parametrize(
    ("behaviour", "failure", "code"),
    [
        ("error-400", Failure.REJECTED, "double_error"),
        ("context-400", Failure.TOO_LONG, "exceed_context_size_error"),
        ("error-413", Failure.REJECTED, "double_error"),
        ("error-422", Failure.REJECTED, "double_error"),
        ("error-401", Failure.MISCONFIGURED, "double_error"),
        ("error-403", Failure.MISCONFIGURED, "double_error"),
        ("error-404", Failure.MISCONFIGURED, "double_error"),
        ("moved", Failure.MISCONFIGURED, "307"),
        ("html", Failure.MISCONFIGURED, "not_an_api"),
        ("error-429", Failure.THROTTLED, "double_error"),
        ("error-503", Failure.UNAVAILABLE, "double_error"),
        ("reset", Failure.UNAVAILABLE, "disconnected"),
        ("error-500", Failure.BACKEND_ERROR, "double_error"),
        ("error-502", Failure.BACKEND_ERROR, "double_error"),
        ("error-504", Failure.BACKEND_ERROR, "double_error"),
        ("huge-event", Failure.BACKEND_ERROR, "answer_too_large"),
        ("cut", Failure.CUT, "incomplete_answer"),
        ("cut-clean", Failure.CUT, "incomplete_answer"),
        ("no-finish+no-done", Failure.CUT, "incomplete_answer"),
        ("event-error-400", Failure.REJECTED, "double_error"),
        ("event-error-500", Failure.BACKEND_ERROR, "double_error"),
        ("event-error-503", Failure.BACKEND_ERROR, "double_error"),  # output had come: something was done
        ("error-first-503", Failure.UNAVAILABLE, "double_error"),
        ("error-first-429", Failure.THROTTLED, "double_error"),
    ],
)
async def test_every_way_to_fail_has_its_name_and_one_call(
    gpu: GpuBackend, light: Deployment, double: OpenAIDouble, behaviour: str, failure: Failure, code: str
) -> None:
    job = asking("one two three four five six", id=f"job_{behaviour}")

    error = await failing(gpu, replace(light, model=behaviour), job)

    assert (error.failure, error.code) == (failure, code)
    seen = await double.until(lambda calls: calls.open == 0, job=job.id)
    assert seen.total == 1


async def test_a_rejection_says_which_parameter_and_why(gpu: GpuBackend, light: Deployment) -> None:
    error = await failing(gpu, replace(light, model="error-400"), asking("Hello"))

    assert (error.detail, error.param) == ("as asked", "messages")


@pytest.mark.parametrize(
    ("behaviour", "low", "high"),
    [("error-429+retry-after-7", 7, 7), ("once-429", 0.05, 0.05), ("error-503+retry-date", 55, 60)],
)
async def test_the_wait_that_a_server_wants_is_handed_on(
    gpu: GpuBackend, light: Deployment, behaviour: str, low: float, high: float
) -> None:
    error = await failing(gpu, replace(light, model=behaviour), asking("Hello", id=f"job_{behaviour}"))

    assert error.retry_after is not None
    assert low <= error.retry_after <= high


async def test_a_connection_that_the_server_has_closed_is_unavailable_and_not_tried_twice(
    light: Deployment, double: OpenAIDouble
) -> None:
    async with GpuBackend.open({}, reuse=True) as gpu:
        await call(gpu, light, asking("Hello", id="job_first"))
        error = await failing(gpu, replace(light, model="stale"), asking("Hello", id="job_stale"))

    assert (error.failure, error.code) == (Failure.UNAVAILABLE, "disconnected")
    assert (await asyncio.to_thread(double.calls, "job_stale")).total == 1
    assert error.usage == Usage()


async def test_a_refused_connection_is_unavailable(gpu: GpuBackend, light: Deployment) -> None:
    error = await failing(gpu, replace(light, url=f"http://127.0.0.1:{free_ports(1)[0]}"), asking("Hello"))

    assert (error.failure, error.code) == (Failure.UNAVAILABLE, "no_connection")
    assert error.usage == Usage()


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/embeddings"])
async def test_a_host_that_does_not_take_the_connection_is_unavailable(
    gpu: GpuBackend, light: Deployment, endpoint: str
) -> None:
    job = replace(asking("Hello"), body=b'{"model":"light","input":"one","messages":[]}', endpoint=endpoint)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fillers = [socket.socket() for _ in range(4)]  # fill its queue, so that the next one waits
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(deaf.getsockname())
            url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            error = await failing(gpu, replace(light, url=url, timeouts=Timeouts(connect=0.2)), job)
        finally:
            for filler in fillers:
                filler.close()

    assert (error.failure, error.code) == (Failure.UNAVAILABLE, "connect_timeout")
    assert error.usage == Usage()


@pytest.mark.parametrize("url", ["", "127.0.0.1:1", "ftp://127.0.0.1/", "http://", "http://[::1"])
async def test_a_bad_url_is_a_bad_setting(gpu: GpuBackend, light: Deployment, url: str) -> None:
    error = await failing(gpu, replace(light, url=url), asking("Hello"))

    assert error.failure is Failure.MISCONFIGURED


async def test_a_key_that_no_header_can_carry_is_a_bad_setting_and_is_not_shown(light: Deployment) -> None:
    async with GpuBackend.open({"light": "k3y\r\nx: y"}) as gpu:
        error = await failing(gpu, light, asking("Hello"))

    assert error.failure is Failure.MISCONFIGURED
    assert "k3y" not in str(error)


async def test_a_server_that_does_not_speak_http_is_a_backend_error(gpu: GpuBackend, light: Deployment) -> None:
    async def mumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(mumble, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        error = await failing(gpu, replace(light, url=url), asking("Hello"))

    assert error.failure is Failure.BACKEND_ERROR


@pytest.mark.parametrize(
    ("behaviour", "timeouts", "code"),
    [
        ("mute", Timeouts(first_token=0.2), "first_token_timeout"),
        ("comments", Timeouts(first_token=0.2), "first_token_timeout"),
        ("stall", Timeouts(read=0.2), "read_timeout"),
        ("slow", Timeouts(total=0.5), "total_timeout"),
    ],
)
async def test_each_deadline_is_its_own_and_closes_the_call(
    gpu: GpuBackend, light: Deployment, double: OpenAIDouble, behaviour: str, timeouts: Timeouts, code: str
) -> None:
    job = asking("one two three", id=f"job_{code}_{behaviour}")

    error = await failing(gpu, replace(light, model=behaviour, timeouts=timeouts), job)

    assert (error.failure, error.code) == (Failure.TIMED_OUT, code)
    assert error.usage.input == 9
    assert error.usage.basis is Basis.ESTIMATED
    await double.until(lambda calls: calls.aborted == 1, job=job.id)


@pytest.mark.parametrize(
    ("pieces", "timeouts", "code"),
    [
        (0, Timeouts(whole=0.2), "whole_timeout"),
        (1, Timeouts(read=0.2), "read_timeout"),
        (100, Timeouts(total=0.5), "total_timeout"),
    ],
)
async def test_each_deadline_of_an_answer_that_comes_whole_is_its_own_and_closes_the_call(
    gpu: GpuBackend, light: Deployment, pieces: int, timeouts: Timeouts, code: str
) -> None:
    closed = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        if pieces:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n")
        with suppress(ConnectionError):  # whatever is still dripped after the call was closed
            for _ in range(pieces):
                writer.write(b" ")
                await asyncio.sleep(0.05)
            await reader.read()
        writer.close()
        closed.set()

    job = replace(asking("one two three"), body=b'{"model":"light","input":"one two three"}', endpoint="/v1/embeddings")
    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        error = await failing(gpu, replace(light, url=url, timeouts=timeouts), job)
        async with asyncio.timeout(PATIENCE_S):
            await closed.wait()

    assert (error.failure, error.code) == (Failure.TIMED_OUT, code)
    assert error.usage == job.estimate.owed


@pytest.mark.parametrize("behaviour", ["mute", "stall", "slow", "comments"])
async def test_a_cancelled_call_is_closed_upstream_within_a_second(
    gpu: GpuBackend, light: Deployment, double: OpenAIDouble, behaviour: str
) -> None:
    tries = itertools.count()

    async def closes() -> float:
        so_far = SoFar()
        job = asking("one two three", id=f"job_cancelled_{behaviour}_{next(tries)}")
        running = asyncio.create_task(call(gpu, replace(light, model=behaviour), job, so_far=so_far))
        await double.until(lambda calls: calls.open == 1, job=job.id)
        running.cancel()
        cancelled = time.monotonic()
        with suppress(asyncio.CancelledError):
            await running
        await double.until(lambda calls: calls.aborted == 1, job=job.id)
        assert so_far.usage.input == 9
        return time.monotonic() - cancelled

    await in_time(1.0, closes)


async def test_what_was_used_when_a_stream_was_cut_is_counted(gpu: GpuBackend, light: Deployment) -> None:
    error = await failing(gpu, replace(light, model="cut+words-40"), asking("Hello"))

    assert error.usage.basis is Basis.ESTIMATED
    assert error.usage.input == 9
    assert 15 <= error.usage.output <= 25


async def test_what_came_before_a_stream_broke_is_passed_on_and_owed_though_the_listener_was_busy_then(
    gpu: GpuBackend, light: Deployment
) -> None:
    words, passed = [f"w{number}" for number in range(20)], list[str]()
    has_begun, is_cut = asyncio.Event(), asyncio.Event()
    chunks = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in words]
    first, *rest = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + _http_chunk(first))
        await has_begun.wait()
        writer.write(_http_chunk(b"".join(rest)))  # and no last one
        writer.close()
        await writer.wait_closed()
        is_cut.set()

    async def on_chunk(piece: bytes) -> None:
        passed.append(json.loads(piece)["choices"][0]["delta"]["content"])
        has_begun.set()
        await is_cut.wait()
        for _ in range(100):  # turns of the loop, in which the client hears of it
            await asyncio.sleep(0)

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server:
        there = replace(light, url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(BackendError) as raised:
            await call(gpu, there, asking("Hello"), on_chunk=on_chunk)

    assert passed == words
    assert (raised.value.failure, raised.value.usage.output) == (Failure.CUT, 20)


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("behaviour", ["no-done", "no-usage", "no-finish", "broken", "whole", "no-usage+no-done"])
async def test_what_is_proved_whole_is_an_answer(gpu: GpuBackend, light: Deployment, behaviour: str) -> None:
    answer = await call(gpu, replace(light, model=behaviour), asking("one two three four"))

    assert content(answer) == "one two three four"
    assert answer.usage.output == 4
    assert answer.usage.basis is (Basis.ESTIMATED if "no-usage" in behaviour else Basis.METERED)


async def test_a_server_that_lingers_after_the_end_costs_no_answer(
    gpu: GpuBackend, light: Deployment, double: OpenAIDouble
) -> None:
    deployment = replace(light, model="linger", timeouts=Timeouts(read=2.0))

    answer = await call(gpu, deployment, asking("one two", id="job_linger"))

    assert content(answer) == "one two"
    await double.until(lambda calls: calls.aborted == 1, job="job_linger")


async def test_an_answer_without_end_is_stopped_at_its_bound(
    gpu: GpuBackend, light: Deployment, double: OpenAIDouble
) -> None:
    error = await failing(gpu, replace(light, model="huge"), asking("Hello", id="job_huge"))

    assert (error.failure, error.code) == (Failure.BACKEND_ERROR, "answer_too_large")
    await double.until(lambda calls: calls.aborted == 1, job="job_huge")


async def test_tools_reasoning_logprobs_and_cached_tokens_arrive(gpu: GpuBackend, light: Deployment) -> None:
    job = asking("one two three", logprobs=True)

    answer = await call(gpu, replace(light, model="tools+reasoning+cached-2"), job)

    [choice] = json.loads(answer.body)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "it"}'}
    assert choice["message"]["reasoning_content"] == "Hm. "
    assert len(choice["logprobs"]["content"]) == 4
    assert (answer.usage.input, answer.usage.cache_read) == (1, 2)


async def test_more_cached_than_sent_is_never_a_negative_price(gpu: GpuBackend, light: Deployment) -> None:
    answer = await call(gpu, replace(light, model="cached-99"), asking("one two three"))

    assert (answer.usage.input, answer.usage.cache_read) == (0, 3)


async def test_a_large_body_goes_out_whole(gpu: GpuBackend, light: Deployment, double: OpenAIDouble) -> None:
    text = "x" * 12_000_000

    await call(gpu, replace(light, model="words-2"), asking(text))

    body, _ = await asyncio.to_thread(double.last)
    assert body["messages"] == [{"role": "user", "content": text}]


@pytest.mark.parametrize("reuse", [True, False])
async def test_every_call_gives_its_connection_back(light: Deployment, double: OpenAIDouble, reuse: bool) -> None:
    async with GpuBackend.open({}, connections=1, reuse=reuse) as gpu:
        for model in ("instant", "error-429", "error-500", "whole", "cut", "instant"):
            with suppress(BackendError):
                await call(
                    gpu,
                    replace(light, model=model, timeouts=Timeouts(connect=10)),
                    asking("a b", id=f"job_again_{reuse}"),
                )

    assert (await asyncio.to_thread(double.calls, f"job_again_{reuse}")).total == 6


@pytest.mark.parametrize(
    ("name", "model", "says"),
    [
        ("light", "instant", None),
        ("light", "any name", None),
        ("strict", "instant", None),
        ("strict", "other", "no model 'other'"),
        ("wrong", "instant", "key is refused"),
    ],
)
async def test_a_ping_says_what_to_set_right(
    gpu: GpuBackend, light: Deployment, name: str, model: str, says: str | None
) -> None:
    verdict = await gpu.ping(replace(light, name=name, model=model))

    assert verdict is None if says is None else (verdict is not None and says in verdict)


@pytest.mark.parametrize("url", ["", "ftp://x/", "http://[::1", "http://127.0.0.1:1", "http://user:s3cret@127.0.0.1:1"])
async def test_a_ping_of_nothing_is_one_line_and_no_exception(gpu: GpuBackend, light: Deployment, url: str) -> None:
    verdict = await gpu.ping(replace(light, url=url))

    assert verdict is not None
    assert "\n" not in verdict
    assert "s3cret" not in verdict


@pytest.mark.parametrize("depth", [*range(880, 1000, 3), 100_000])
async def test_an_answer_nested_too_deeply_is_no_raw_exception(gpu: GpuBackend, light: Deployment, depth: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        deep = b"[" * depth + b"]" * depth
        chunk = b'data: {"choices": [{"index": 0, "delta": {"x": %b}, "finish_reason": "stop"}]}\n\n' % deep
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + chunk)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        deployment = replace(light, url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with suppress(BackendError):
            await call(gpu, deployment, asking("Hello"))
