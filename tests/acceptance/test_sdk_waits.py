"""The official SDK where it waits: after a 429, and when whoever waits for an answer is gone."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, cast

import httpx2
import openai

from tests.acceptance.surface import Surface
from tests.builders import in_time, until

SLOW = "double:slow Hello"


@dataclass(slots=True)
class Tries:
    """Each answer as it came, before the SDK acts on it."""

    answers: list[tuple[int, float, str | None]] = field(default_factory=list)

    async def note(self, response: httpx2.Response) -> None:
        self.answers.append((response.status_code, time.monotonic(), response.headers.get("retry-after-ms")))


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def a_client(served: Surface, key: str, **options: Any) -> openai.AsyncOpenAI:
    return served.ours.refusals.async_sdk(served.process.url, key, **options)


async def test_a_429_is_tried_again_after_the_wait_that_it_names(served: Surface) -> None:
    tries = Tries()
    async with a_client(served, served.limited_key, max_retries=5, also=tries.note) as client:
        statuses: set[int] = set()
        for _ in range(10):  # where one takes two seconds, there is room for the next
            answer = await client.chat.completions.create(model="light", messages=say("Hello"))
            assert answer.choices[0].message.content == "Hello"
            if (statuses := {status for status, *_ in tries.answers}) != {200}:
                break

    assert statuses == {200, 429}
    for (status, at, wait), (_, again_at, _) in zip(tries.answers, tries.answers[1:], strict=False):
        assert status == 200 or again_at - at >= int(wait or "no wait") / 1000


async def test_who_waits_in_the_open_has_a_turn_before_a_backlog_and_the_server_never_more_than_its_places(
    served: Surface,
) -> None:
    upstream, asynchronous = served.upstream, {"async": True}
    async with a_client(served, served.watched_key, max_retries=0) as client:
        chat = client.chat.completions
        slow = [
            chat.create(model="crowded", messages=say("double:delay-2000 x"), extra_body=asynchronous)
            for _ in range(200)
        ]
        backlog = [left.id.removeprefix("job_") for left in await asyncio.gather(*slow)]
        waited = [await chat.create(model="crowded", messages=say("Hello")) for _ in range(3)]
        text = ""
        async with chat.stream(model="crowded", messages=say("Hello")) as stream:
            async for event in stream:
                text += event.delta if event.type == "content.delta" else ""
        states = [(await a_job(client, job, wait_s=0))["status"] for job in backlog]
        await asyncio.gather(*(client.post(f"/jobs/{job}/cancel", cast_to=object) for job in backlog))

    assert [answer.choices[0].message.content for answer in waited] == ["Hello"] * 3
    assert text == "Hello"
    assert states.count("queued") > 100
    calls = [call for call in (await upstream.until(lambda calls: calls.open == 0)).calls if call["model"] == "crowded"]
    assert len(calls) > 4
    assert most_at_once(calls) <= 4


def most_at_once(calls: Sequence[Mapping[str, object]]) -> int:
    """Of calls that have ended."""
    moments = [(cast(float, call[when]), step) for call in calls for when, step in (("started", 1), ("ended", -1))]
    return max(accumulate(step for _, step in sorted(moments)))


async def test_a_client_that_hangs_up_ends_the_upstream_stream_within_a_second(served: Surface) -> None:
    upstream = served.upstream
    async with a_client(served, served.watched_key, max_retries=0) as client:

        async def ends() -> float:
            stream = await client.chat.completions.create(model="watched", messages=say(SLOW), stream=True)
            job = (await anext(aiter(stream))).id.removeprefix("chatcmpl-")
            await upstream.until(lambda calls: calls.open == 1, job=job)
            await stream.close()
            closed = time.monotonic()
            await upstream.until(lambda calls: calls.aborted == 1, job=job)
            took = time.monotonic() - closed
            assert (await a_job(client, job))["status"] == "cancelled"
            return took

        await in_time(1.0, ends)


async def test_an_async_job_goes_on_whoever_hangs_up(served: Surface) -> None:
    upstream = served.upstream
    async with a_client(served, served.watched_key, max_retries=0) as client:
        left = await client.chat.completions.create(model="watched", messages=say(SLOW), extra_body={"async": True})
    job = left.id.removeprefix("job_")
    await upstream.until(lambda calls: calls.open == 1, job=job, within=20)

    async with a_client(served, served.watched_key, max_retries=0) as client:
        await until(lambda: ended(client, job), within=60)
        completion = await client.chat.completions.retrieve(job)
    assert len((completion.choices[0].message.content or "").split()) == 100
    assert (await upstream.until(lambda calls: calls.answered == 1, job=job)).total == 1


async def a_job(client: openai.AsyncOpenAI, job: str, *, wait_s: int = 20) -> dict[str, Any]:
    return cast(dict[str, Any], await client.get(f"/jobs/{job}?wait={wait_s}", cast_to=object))


async def ended(client: openai.AsyncOpenAI, job: str) -> bool:
    return bool((await a_job(client, job))["status"] == "completed")
