"""Sixteen ways in which a model server fails, each with a fallback configured, judged from both sides.

One `pointsman up` with default settings; its primaries are a double of each fault, its spare one does well. Every
fault has a caller of its own who reads a stream. They all run at the same time, as some of them take a minute.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.acceptance.processes import Pointsman, pointsman
from tests.doubles import OpenAIDouble, openai_double
from tools.kafka.broker import free_ports

pytestmark = pytest.mark.timeout(300)

WORDS = 60
WHOLE = " ".join(f"w{number}" for number in range(WORDS))
DOWN_S, REQUESTS, EVERY_S = 60.0, 20, 4.0
BACK_S = 30.0  # within this, a primary that has recovered gets its jobs again
PACE = f"words-{WORDS}+pace-10"
FAULTS: Mapping[str, str] = {
    "throttled-once": f"once-429+retry-after-2+{PACE}",
    "throttled": "error-429",
    "throttled-with-wait": "error-429+retry-after-1",
    "failed-once": f"once-500+{PACE}",
    "unavailable": "error-503",
    "reset-once": f"once-reset+{PACE}",
    "silent": "mute",
    "late": f"delay-20000+{PACE}",
    "cut": f"cut-40+{PACE}",
    "cut-otherwise": f"cut-40+{PACE}+b",
    "stalled": f"hold-30+{PACE}",
    "stalled-for-good": f"hold-300+{PACE}",
    "malformed": f"broken-10+{PACE}",
    "no-done": f"no-done+{PACE}",
    "lingering": f"linger+{PACE}",
    "no-usage": f"no-usage+{PACE}",
    "long": "long",
    "filtered": "filtered",
    "cut-no-prefill": f"cut-40+{PACE}+c",
}
SPARES = {"cut-otherwise": "other", "cut-no-prefill": "no-prefill", "long": "large"}


@dataclass(slots=True)
class Answer:
    """What a caller got. Moments are seconds since the epoch, as the double's."""

    began: float
    status: int = 0
    ended: float = 0.0
    events: list[str] = field(default_factory=list)
    body: bytes = b""

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def text(self) -> str:
        return "".join(
            choice["delta"].get("content") or "" for chunk in self.chunks for choice in chunk.get("choices", [])
        )

    @property
    def finish(self) -> list[str]:
        return [c["finish_reason"] for chunk in self.chunks for c in chunk.get("choices", []) if c["finish_reason"]]

    @property
    def models(self) -> list[str]:
        """Who says that it answers, in order, each once."""
        return list(dict.fromkeys(chunk["model"] for chunk in self.chunks if "model" in chunk))

    @property
    def usage(self) -> dict[str, Any] | None:
        return next((chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage")), None)

    @property
    def error(self) -> dict[str, Any] | None:
        found = json.loads(self.body) if self.body else next((each for each in self.chunks if "error" in each), {})
        error: dict[str, Any] | None = found.get("error")
        return error

    @property
    def is_done(self) -> bool:
        return bool(self.events) and self.events[-1] == "[DONE]"

    def check_whole(self, model: str, text: str = WHOLE) -> None:
        """A complete answer of this model, and nothing else."""
        assert (self.status, self.error) == (200, None), self.body
        assert self.text == text
        assert self.finish == ["stop"]
        assert self.is_done and self.events.count("[DONE]") == 1
        assert self.models[-1] == model
        assert self.usage is not None and self.usage["completion_tokens"] == len(text.split())


@dataclass(slots=True)
class Seen:
    """A fault from both sides.

    The answer, the primary's calls until then, those of its spare, and what was answered after it did well again.
    """

    answer: Answer
    calls: list[Mapping[str, Any]]
    job: dict[str, Any]
    after: list[Answer]
    spares: list[Mapping[str, Any]]

    @property
    def offsets(self) -> list[float]:
        """When the primary was called, in seconds after the first call."""
        return [call["started"] - self.calls[0]["started"] for call in self.calls]


@dataclass(slots=True)
class Outage:
    """What callers got while the primary was down and afterwards, and when it came back."""

    answers: list[Answer]
    back_at: float
    first_back: float | None


@dataclass(frozen=True, slots=True)
class Drill:
    """The gateway and its two upstreams."""

    ours: Pointsman
    http: httpx2.AsyncClient
    upstream: OpenAIDouble
    spare: OpenAIDouble

    async def ask(self, model: str) -> Answer:
        """One caller who reads a stream to its end."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Say it all"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answer = Answer(time.time())
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            answer.status = response.status_code
            if response.status_code != 200:
                answer.body = await response.aread()
            else:
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        answer.events.append(line.removeprefix("data: "))
        answer.ended = time.time()
        return answer

    async def fault(self, name: str) -> Seen:
        """One fault, and what comes after it."""
        answer = await self.ask(name)
        model = f"{FAULTS[name]}+{name}"
        seen = await asyncio.to_thread(self.upstream.calls)
        calls = [call for call in seen.calls if call["model"] == model]
        await asyncio.to_thread(self.upstream.heal, model)
        after = [answer async for answer in self._until_back(name)]
        job = await self._job(answer)
        spares = await asyncio.to_thread(self.spare.calls, job["id"].removeprefix("job_")) if job else None
        return Seen(answer, calls, job, after, [*spares.calls] if spares else [])

    async def _until_back(self, name: str) -> AsyncIterator[Answer]:
        until = time.time() + BACK_S
        while time.time() < until:
            answer = await self.ask(name)
            yield answer
            if answer.models == [name]:
                return
            await asyncio.sleep(1.0)

    async def _job(self, answer: Answer) -> dict[str, Any]:
        """What the job's owner is told of it. Nothing where there is no answer that names it."""
        for chunk in answer.chunks[:1]:
            job: dict[str, Any] = (await self.http.get(f"/v1/jobs/{chunk['id']}")).json()
            return job
        return {}

    async def outage(self, port: int) -> Outage:
        """Twenty callers, one each four seconds; for the first minute nothing listens at the primary's address."""
        began, answers = time.time(), []

        async def callers() -> None:
            for number in range(REQUESTS):
                await asyncio.sleep(max(0.0, began + number * EVERY_S - time.time()))
                answers.append(await self.ask("down"))

        async def recovery(stack: AsyncExitStack) -> float:
            await asyncio.sleep(DOWN_S)
            await asyncio.to_thread(lambda: stack.enter_context(openai_double(port)))
            return time.time()

        async with AsyncExitStack() as stack:
            _, back_at = await asyncio.gather(callers(), recovery(stack))
            first = next((each.began for each in answers if each.models == ["down"]), None)
            while first is None and time.time() < back_at + BACK_S:
                answers.append(await self.ask("down"))
                first = answers[-1].began if answers[-1].models == ["down"] else None
                await asyncio.sleep(1.0)
            return Outage(answers, back_at, first)


def settings(faulty: OpenAIDouble, spare: OpenAIDouble, down_port: int) -> dict[str, Any]:
    """Only where the servers are and what stands in for each; everything else as it comes."""

    def at(url: str, model: str, *fallback: str) -> dict[str, Any]:
        price = {"input": "1", "output": "2"}
        return {"backend": "gpu", "url": url, "model": model, "tier": "heavy", "price": price, "fallback": [*fallback]}

    primaries = {
        name: at(f"{faulty.url}/v1", f"{fault}+{name}", SPARES.get(name, "spare")) for name, fault in FAULTS.items()
    }
    return {
        "deployments": {
            **primaries,
            "down": at(f"http://127.0.0.1:{down_port}/v1", PACE, "spare"),
            "spare": at(f"{spare.url}/v1", PACE),
            "other": at(f"{spare.url}/v1", "tools+pace-1000"),
            "no-prefill": at(f"{spare.url}/v1", f"no-prefill+{PACE}"),
            "large": {**at(f"{spare.url}/v1", PACE), "window": 65536},
        },
    }


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Seen], Outage]]:
    """All faults at once, through one gateway."""
    folder: Path = tmp_path_factory.mktemp("faults")
    ports = free_ports(4)
    environ = {"POINTSMAN_WORKER__HEALTH_PORT": str(ports[1]), "POINTSMAN_SWEEPER__HEALTH_PORT": str(ports[2])}
    with (
        openai_double() as faulty,
        openai_double() as spare,
        pointsman(folder, settings(faulty, spare, ports[3]), **environ) as ours,
    ):
        yield asyncio.run(_run(ours, faulty, spare, ports))


async def _run(
    ours: Pointsman, faulty: OpenAIDouble, spare: OpenAIDouble, ports: list[int]
) -> tuple[dict[str, Seen], Outage]:
    up = await ours.up(ports[0]).ready()
    headers = {"authorization": f"Bearer {ours.key}"}
    limits = httpx2.Limits(max_connections=200)
    async with ours.refusals.http(up.url, headers=headers, timeout=100, limits=limits) as http:
        running = Drill(ours, http, faulty, spare)
        faults = asyncio.gather(*map(running.fault, FAULTS))
        outage, seen = await asyncio.gather(running.outage(ports[3]), faults)
        return dict(zip(FAULTS, seen, strict=True)), outage


@pytest.fixture
def seen(drill: tuple[dict[str, Seen], Outage]) -> dict[str, Seen]:
    return drill[0]


def test_429_with_a_wait_is_waited_for_and_tried_again_at_the_same_place(seen: dict[str, Seen]) -> None:
    fault = seen["throttled-once"]

    fault.answer.check_whole("throttled-once")
    assert len(fault.calls) == 2
    assert fault.offsets[1] >= 1.8


def test_429_for_ever_is_tried_a_few_times_and_then_answered_elsewhere(seen: dict[str, Seen]) -> None:
    for name in ("throttled", "throttled-with-wait"):
        fault = seen[name]

        fault.answer.check_whole("spare")
        assert sum(offset <= 3.0 for offset in fault.offsets) <= 4
        assert len(fault.calls) <= 6


def test_500_once_is_tried_again_at_the_same_place(seen: dict[str, Seen]) -> None:
    fault = seen["failed-once"]

    fault.answer.check_whole("failed-once")
    assert len(fault.calls) == 2


def test_503_for_ever_is_answered_elsewhere(seen: dict[str, Seen]) -> None:
    fault = seen["unavailable"]

    fault.answer.check_whole("spare")
    assert 1 <= len(fault.calls) <= 6


def test_a_reset_before_any_byte_is_not_noticed(seen: dict[str, Seen]) -> None:
    fault = seen["reset-once"]

    fault.answer.check_whole("reset-once")
    assert len(fault.calls) == 2


def test_no_response_at_all_is_one_attempt_and_then_answered_elsewhere(seen: dict[str, Seen]) -> None:
    fault = seen["silent"]

    fault.answer.check_whole("spare")
    assert fault.answer.seconds < 20
    assert [call["state"] for call in fault.calls] == ["aborted"]


def test_a_first_token_that_comes_late_is_not_waited_for(seen: dict[str, Seen]) -> None:
    fault = seen["late"]

    fault.answer.check_whole("spare")
    assert fault.answer.seconds < 15
    [call] = fault.calls
    assert call["state"] == "aborted" and call["ended"] < fault.answer.ended, "the late call was left running"


def test_a_cut_stream_goes_on_where_another_says_the_same(seen: dict[str, Seen]) -> None:
    fault = seen["cut"]

    fault.answer.check_whole("spare")
    assert fault.answer.models == ["cut", "spare"]
    assert len(fault.calls) == 1


def test_a_cut_stream_that_cannot_go_on_ends_with_an_error_and_not_as_a_success(seen: dict[str, Seen]) -> None:
    answer = seen["cut-otherwise"].answer

    assert answer.status == 200
    assert answer.text == " ".join(WHOLE.split()[:40]), "what came before the cut is the caller's"
    assert answer.error is not None and answer.error["code"] == "stream_broken"
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.finish == [] and not answer.is_done
    assert seen["cut-otherwise"].job["status"] == "cancelled"
    assert [call["state"] for call in seen["cut-otherwise"].spares] == ["aborted"], "nobody is to pay for the rest"


def test_a_stream_that_stalls_is_ended_in_time(seen: dict[str, Seen]) -> None:
    for name in ("stalled", "stalled-for-good"):
        fault = seen[name]

        fault.answer.check_whole("spare")
        assert fault.answer.seconds < 45
        assert [call["state"] for call in fault.calls] == ["aborted"]


def test_a_malformed_event_does_no_harm_where_the_rest_is_whole(seen: dict[str, Seen]) -> None:
    fault = seen["malformed"]

    fault.answer.check_whole("malformed")
    assert len(fault.calls) == 1


def test_a_stream_without_done_is_whole_soon_after_its_end(seen: dict[str, Seen]) -> None:
    for name in ("no-done", "lingering", "no-usage"):
        fault = seen[name]

        fault.answer.check_whole(name)
        assert fault.answer.seconds < 8
        assert len(fault.calls) == 1


def test_a_prompt_that_is_too_long_is_answered_by_a_larger_window(seen: dict[str, Seen]) -> None:
    fault = seen["long"]

    fault.answer.check_whole("large")
    assert len(fault.calls) == 1


def test_what_a_content_filter_refuses_is_refused_with_its_reason(seen: dict[str, Seen]) -> None:
    fault = seen["filtered"]

    assert fault.answer.status == 400
    assert fault.answer.error is not None
    assert fault.answer.error["code"] == "content_filter"
    assert fault.answer.error["message"] == "The prompt was filtered: hate, high."
    assert len(fault.calls) == 1


def test_a_cut_stream_goes_on_at_a_model_that_takes_no_beginning_of_an_answer(seen: dict[str, Seen]) -> None:
    seen["cut-no-prefill"].answer.check_whole("no-prefill")


def test_a_primary_that_is_down_is_not_missed_and_soon_used_again(drill: tuple[dict[str, Seen], Outage]) -> None:
    outage = drill[1]

    for answer in outage.answers:
        answer.check_whole("down" if answer.models == ["down"] else "spare")
        assert answer.seconds < 10
    assert len(outage.answers) >= REQUESTS
    assert outage.first_back is not None and outage.first_back - outage.back_at < BACK_S


def test_the_caller_sees_who_answered_and_what_it_used(seen: dict[str, Seen]) -> None:
    fault = seen["unavailable"]

    assert fault.answer.models == ["spare"]
    assert fault.answer.usage == {
        "prompt_tokens": 3,
        "completion_tokens": WORDS,
        "total_tokens": WORDS + 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    receipt = fault.job["pointsman"]
    assert receipt["deployment"] == "spare"
    assert receipt["reasons"] == ["asked for unavailable", "fallback: unavailable unavailable"]
    assert receipt["attempts"] == len(fault.calls) + 1
    assert Decimal(receipt["usd"]) == (3 * 1 + WORDS * 2) / Decimal(1_000_000), "what failed cost nothing"


def test_what_a_cut_stream_cost_is_on_the_receipt(seen: dict[str, Seen]) -> None:
    lines = {(line["attempt"], line["meter"]): line for line in seen["cut"].job["pointsman"]["charges"]}

    assert (lines[1, "output"]["quantity"], lines[1, "output"]["basis"], lines[1, "output"]["outcome"]) == (
        40,
        "estimated",
        "failed",
    )
    assert (lines[2, "output"]["quantity"], lines[2, "output"]["basis"], lines[2, "output"]["outcome"]) == (
        WORDS,
        "metered",
        "completed",
    )


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_healthy_afterwards(seen: dict[str, Seen], name: str) -> None:
    *before, last = seen[name].after

    assert all(answer.is_done for answer in before)
    assert (last.is_done, last.error, last.models) == (True, None, [name])
