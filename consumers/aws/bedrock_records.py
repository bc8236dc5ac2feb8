"""Chats as records of a batch job of Bedrock, and its records as answers: no I/O.

What such a job cannot carry (tools, response formats, reasoning, whatever is not known here) is called live.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType

from consumers.aws import bedrock_media
from consumers.aws.bedrock_events import MALFORMED, used
from consumers.aws.bedrock_request import HINTS, OURS
from consumers.backend import Answer, BackendError
from consumers.gathered import Gathered, MalformedChunkError, Object, compact
from consumers.upstream import OUTPUT_BOUNDS, choices, most_output, parsed
from policies.deployments import Deployment
from policies.pricing import Basis, Usage
from policies.retries import Failure
from router.job import Job

BATCH = "batch"  # the tier, in the price book
CARRIED = frozenset({"messages", "temperature", "top_p", "stop", "n", *OUTPUT_BOUNDS, *OURS, *HINTS})
MOST_STOPS = 4
CHARACTERS_PER_TOKEN = 4
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,([A-Za-z0-9+/]+=*)")
_PDF = re.compile(r"data:application/pdf;base64,([A-Za-z0-9+/]+=*)")
_FINISH: Mapping[str, str] = MappingProxyType(
    {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "content_filtered": "content_filter",
        "guardrail_intervened": "content_filter",
    }
)


class NotCarriedError(Exception):
    """A batch job cannot carry this chat."""


@dataclass(frozen=True, slots=True)
class Output:
    """One line of a batch job's output: the model's answer, or the code of what went wrong with this record."""

    record: str
    answer: Object
    error: str = ""


def carries(job: Job, deployment: Deployment) -> bool:
    """Whether a batch job can carry the job."""
    try:
        model_input(job, deployment)
    except NotCarriedError:
        return False
    return True


def line(record: str, job: Job, deployment: Deployment) -> bytes:
    """Its line of the input. Raises `NotCarriedError`."""
    return compact({"recordId": record, "modelInput": model_input(job, deployment)}) + b"\n"


def model_input(job: Job, deployment: Deployment) -> Object:
    """The body of its Converse request. Raises `NotCarriedError`."""
    try:
        asked = parsed(job.body)
        is_one = choices(asked) == 1
    except BackendError as error:  # a live call says what is wrong with it
        raise NotCarriedError(error.detail) from error
    others = [name for name in asked if name not in CARRIED and asked[name] not in (None, False)]
    if others or not is_one or deployment.effort or (deployment.bedrock is not None and deployment.bedrock.guardrail):
        raise NotCarriedError("it asks for more than messages and how to sample")
    given = asked.get("messages")
    try:
        bedrock_media.check(given if isinstance(given, list) else [])
    except BackendError as error:
        raise NotCarriedError(error.detail) from error
    system, messages = _conversation(given)
    sampling: Object = {"maxTokens": most_output(asked, deployment.max_output)}
    for name, theirs in (("temperature", "temperature"), ("top_p", "topP")):
        value = asked.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise NotCarriedError(name)
            sampling[theirs] = value
    stop = asked.get("stop")
    if stop:
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
            raise NotCarriedError("stop")
        sampling["stopSequences"] = stops
    body: Object = {"messages": messages, "inferenceConfig": sampling}
    return body | {"system": system} if system else body


def output(text: bytes) -> Output | None:
    """A line of the output; None for one that is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("recordId"), str):
        return None
    answer, error = found.get("modelOutput"), found.get("error")
    if isinstance(error, dict) or not isinstance(answer, dict):
        code = error.get("errorCode") if isinstance(error, dict) else None
        return Output(found["recordId"], {}, str(code or "no_output")[:100])
    return Output(found["recordId"], answer)


def answer(told: Output, job: Job, deployment: Deployment, *, created: int) -> Answer:
    """OpenAI's form of an answer, with what it used at the tier that batch jobs have. Raises `BackendError`."""
    message = told.answer.get("output")
    message = message.get("message") if isinstance(message, dict) else None
    blocks = message.get("content") if isinstance(message, dict) else None
    reason = told.answer.get("stopReason")
    text = "".join(_texts(blocks if isinstance(blocks, list) else []))
    usage = usage_of(told, job, text)
    if not isinstance(blocks, list) or not isinstance(reason, str) or reason in MALFORMED:
        code = reason if isinstance(reason, str) else "answer_not_understood"
        raise BackendError(Failure.BACKEND_ERROR, "the record's answer cannot be used", code=code, usage=usage)
    gathered = Gathered(job.id, deployment.name, choices=1, input_estimate=job.estimate.input_tokens, created=created)
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": _FINISH.get(reason, "stop")}
    counts = {
        "prompt_tokens": usage.total - usage.output,
        "completion_tokens": usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
    }
    try:
        gathered.add({"choices": [choice], "usage": counts})
    except MalformedChunkError as error:
        raise BackendError(Failure.BACKEND_ERROR, "the record's answer cannot be used", usage=usage) from error
    return Answer(gathered.completion(), usage)


def usage_of(told: Output, job: Job, text: str = "") -> Usage:
    """What a record has used; counted where Bedrock does not say."""
    counted = -(-len(text) // CHARACTERS_PER_TOKEN)
    return reported(told) or Usage(input=job.estimate.input_tokens, output=counted, basis=Basis.ESTIMATED, tier=BATCH)


def reported(told: Output) -> Usage | None:
    """What Bedrock says that a record has used."""
    found = used(told.answer)
    return None if found is None else replace(found, tier=BATCH)


def live(usage: Usage) -> Usage:
    """The same, had it been called live."""
    return replace(usage, tier="")


def owed(job: Job) -> Usage:
    """What a record may be billed that nobody waits for any more."""
    return replace(job.estimate.owed, tier=BATCH)


def _conversation(messages: object) -> tuple[list[Object], list[Object]]:
    """What the system says, and the turns, which begin with the user and alternate."""
    system: list[Object] = []
    turns: list[Object] = []
    numbers = count(1)
    for message in messages if isinstance(messages, list) else []:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(message, dict) or any(message.get(name) for name in ("tool_calls", "function_call", "audio")):
            raise NotCarriedError("message")
        blocks = list(_blocks(message.get("content"), numbers))
        if role in ("system", "developer") and all("text" in block for block in blocks):
            system += blocks
        elif role not in ("user", "assistant"):
            raise NotCarriedError("role")
        elif turns and turns[-1]["role"] == role:
            turns[-1] = {"role": role, "content": [*_content(turns[-1]), *blocks]}
        else:
            turns.append({"role": role, "content": blocks})
    if not turns or turns[0]["role"] != "user":
        raise NotCarriedError("messages")
    return system, turns


def _content(turn: Object) -> list[object]:
    content = turn["content"]
    assert isinstance(content, list)
    return content


def _blocks(content: object, numbers: "count[int]") -> Iterator[Object]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not parts:
        raise NotCarriedError("content")
    for part in parts:
        yield _block(part if isinstance(part, dict) else {}, numbers)


def _block(part: Object, numbers: "count[int]") -> Object:
    inner = part.get(str(part.get("type")))
    inside = inner if isinstance(inner, dict) else {}
    match part.get("type"):
        case "text" if isinstance(inner, str) and inner.strip():
            return {"text": inner}
        case "image_url" if found := _IMAGE.fullmatch(str(inside.get("url", ""))):
            return {"image": {"format": found[1], "source": {"bytes": found[2]}}}
        case "file" if found := _PDF.fullmatch(str(inside.get("file_data", ""))):
            return {"document": {"format": "pdf", "name": f"document-{next(numbers)}", "source": {"bytes": found[1]}}}
    raise NotCarriedError("part")


def _texts(blocks: list[object]) -> Iterator[str]:
    for block in blocks:
        text = block.get("text") if isinstance(block, dict) else None
        if isinstance(text, str):
            yield text
