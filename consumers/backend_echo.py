"""The backend of tests and benchmarks: it answers with the question, at once, or fails as it is told."""

import asyncio
import time
from collections.abc import Iterator

from consumers import echo_whole, whole
from consumers.backend import Answer, BackendError, OnChunk, SoFar
from consumers.gathered import Gathered, Object
from consumers.upstream import choices, most_output, parsed, wants_usage
from policies.deployments import Deployment
from policies.pricing import Basis, Usage
from policies.retries import Failure
from router.job import Job

CHAT = "/v1/chat/completions"
LONGEST_TEXT = 64 * 1024  # characters


class EchoBackend:
    """Answers with the text of the last user message; a word is a token. Each answer takes `delay_s`.

    Embeddings, images and sounds stand for nothing; there the text is the first input, or the prompt. A text that
    begins so asks for more:

    - `fail:throttled` fails so, with any name of `Failure`; `fail:throttled:2` only on the first two attempts,
      and then answers;
    - `wait:1.5` takes that many seconds longer.
    """

    def __init__(self, *, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s

    async def call(
        self, job: Job, deployment: Deployment, *, attempt: int, on_chunk: OnChunk | None, so_far: SoFar
    ) -> Answer:
        """See the port."""
        sent = None if job.endpoint == CHAT else whole.request(job, deployment)
        asked = parsed(job.body) if sent is None else sent.asked
        text = (_last_user_text(asked) if sent is None else echo_whole.text_of(asked))[:LONGEST_TEXT]
        directive, _, argument = text.split(" ", 1)[0].partition(":")
        spent = Usage(input=_words_in(asked), basis=Basis.ESTIMATED) if sent is None else job.estimate.owed
        if directive == "fail":
            _fail(argument, attempt, spent, so_far)
        so_far.usage = spent
        await _wait(self._delay_s + (_seconds(argument) if directive == "wait" else 0.0), deployment, so_far)
        if sent is not None:
            answer = whole.answer(sent, job, deployment, *echo_whole.answer(job.endpoint, asked))
            so_far.usage = answer.usage
            return answer

        words = text.split()
        most, wanted = most_output(asked, deployment.max_output), choices(asked)
        finish = "length" if len(words) > most else "stop"
        gathered = Gathered(job.id, deployment.name, choices=wanted, input_estimate=0, created=int(time.time()))
        for index in range(wanted):
            for chunk in _chunks(index, words[:most], finish, one_by_one=on_chunk is not None):
                gathered.add(chunk)
                if on_chunk is not None:
                    await on_chunk(gathered.passed_on(chunk, with_usage=wants_usage(asked)))
        output = min(len(words), most) * wanted
        gathered.add({"usage": {"prompt_tokens": spent.input, "completion_tokens": output}})
        so_far.usage = gathered.usage
        if on_chunk is not None and wants_usage(asked):
            await on_chunk(gathered.usage_chunk())
        return Answer(gathered.completion(), so_far.usage)

    async def ping(self, deployment: Deployment) -> str | None:
        """Echo is always there."""
        return None


def _last_user_text(asked: Object) -> str:
    messages = asked.get("messages")
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            return _text(message)
    return ""


def _text(message: Object) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = " ".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _words_in(asked: Object) -> int:
    messages = asked.get("messages")
    texts = (_text(message) for message in messages if isinstance(message, dict)) if isinstance(messages, list) else ()
    return sum(len(text.split()) for text in texts)


def _fail(argument: str, attempt: int, spent: Usage, so_far: SoFar) -> None:
    name, _, attempts = argument.partition(":")
    if name not in set(Failure) or (attempts.isdecimal() and attempt > int(attempts)):
        return
    failure = Failure(name)
    so_far.usage = spent if failure in (Failure.TIMED_OUT, Failure.CUT) else Usage()
    raise BackendError(failure, "echo was told to fail", code=f"echo_{name}", usage=so_far.usage)


def _seconds(argument: str) -> float:
    try:
        return min(max(float(argument), 0.0), 3600.0)
    except ValueError:
        return 0.0


async def _wait(seconds: float, deployment: Deployment, so_far: SoFar) -> None:
    if not seconds:
        return
    patience = min(deployment.timeouts.first_token, deployment.timeouts.total)
    await asyncio.sleep(min(seconds, patience))
    if seconds > patience:
        raise BackendError(Failure.TIMED_OUT, "echo was too slow", code="first_token_timeout", usage=so_far.usage)


def _chunks(index: int, words: list[str], finish: str, *, one_by_one: bool) -> Iterator[Object]:
    if one_by_one:
        for i, word in enumerate(words):
            yield _chunk(index, {"content": word if i == 0 else f" {word}"}, None)
        yield _chunk(index, {}, finish)
    else:
        yield _chunk(index, {"content": " ".join(words)}, finish)


def _chunk(index: int, delta: Object, finish: str | None) -> Object:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}
