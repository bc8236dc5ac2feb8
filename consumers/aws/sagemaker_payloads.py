"""What a SageMaker container is sent and what its answer means, in the formats that containers speak: no I/O."""

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from consumers import refusals
from consumers.backend import Answer, BackendError
from consumers.gathered import Gathered, MalformedChunkError, Object, as_chunk, compact, is_count
from consumers.upstream import OURS, choices, most_output, parsed
from policies.deployments import Deployment, PayloadFormat, SageMaker
from policies.retries import FINAL, Failure
from router.job import Job

JSON = "application/json"
DECODER = json.JSONDecoder(parse_constant=lambda _: None)  # some containers answer NaN, which is not JSON
LARGEST_ANSWER = 64 * 1024 * 1024  # bytes
# What ends a generation of the text-generation-inference server, in OpenAI's words.
_TGI_FINISH: Mapping[str, str] = MappingProxyType({"length": "length", "eos_token": "stop", "stop_sequence": "stop"})
_STATUS = re.compile(r"error \(([45]\d\d)\) from")  # "Received server error (500) from model. See the SageMaker ..."
_TGI_LACKS = ("tools", "functions", "logprobs")
_COUNTED = "counted_output"  # of a chunk of ours: what the container counted where it does not count its input
_TGI_PARAMETERS = ("temperature", "top_p", "seed", "frequency_penalty")


def request(job: Job, deployment: Deployment, place: SageMaker) -> bytes:
    """The body for the container, which streams nothing. Raises `BackendError` for what its format cannot say."""
    try:
        return compact(_REQUESTS[place.payload](parsed(job.body), deployment, place))
    except RecursionError as error:
        raise BackendError(Failure.REJECTED, "the body is nested too deeply", code="invalid_json") from error


def answer(data: bytes, job: Job, deployment: Deployment, place: SageMaker, *, created: int) -> Answer:
    """The container's answer as OpenAI's. Tokens that it does not report are counted and marked as estimated."""
    # It came in one piece, so that one choice that has its end says that all have.
    gathered = Gathered(job.id, deployment.name, choices=1, input_estimate=job.estimate.input_tokens, created=created)
    try:
        chunk = _ANSWERS[place.payload](data)
        gathered.add(chunk)
        counted = chunk.get(_COUNTED)
        if is_count(counted) and not gathered.has_usage:
            gathered.count(counted)
    except (MalformedChunkError, ValueError, RecursionError) as error:
        raise BackendError(
            Failure.BACKEND_ERROR,
            f"the container's answer is not in the format {place.payload}",
            code="answer_not_understood",
            usage=gathered.usage,
        ) from error
    if not gathered.is_whole:
        raise BackendError(
            Failure.CUT, "the container's answer has no end", code="incomplete_answer", usage=gathered.usage
        )
    return Answer(gathered.completion(), gathered.usage)


def refused(body: bytes, said: str) -> Failure:
    """What a container's own error means: `BACKEND_ERROR`, or one that it would give again.

    `said` are SageMaker's words with the container's status, '' where none came. Most containers have it in the body.
    """
    status = _STATUS.search(said) or _STATUS.search(body.decode("utf-8", "replace"))
    found = refusals.of_response(int(status[1]), {}, body, 0.0) if status else refusals.of_body(body)
    return found.failure if found is not None and found.failure in FINAL else Failure.BACKEND_ERROR


def _openai_request(asked: Object, deployment: Deployment, place: SageMaker) -> Object:
    sent = {name: value for name, value in asked.items() if name not in OURS and name != "model"}
    most = most_output(asked, deployment.max_output)
    bounds = [name for name in ("max_tokens", "max_completion_tokens") if sent.get(name) is not None]
    sent |= dict.fromkeys(bounds or ["max_tokens"], most)
    return sent | ({"model": place.served_model} if place.served_model else {})


def _tgi_request(asked: Object, deployment: Deployment, place: SageMaker) -> Object:
    lacks = [name for name in _TGI_LACKS if asked.get(name)] + (["n"] if choices(asked) > 1 else [])
    wanted = asked.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") not in (None, "text"):
        lacks.append("response_format")
    if lacks:
        raise BackendError(
            Failure.REJECTED,
            f"this deployment's container takes one text and gives one, and does not do {', '.join(lacks)}",
            code="unsupported_parameter",
            param=lacks[0],
        )
    parameters: Object = {name: asked[name] for name in _TGI_PARAMETERS if asked.get(name) is not None}
    if parameters.get("temperature") == 0:
        del parameters["temperature"]  # its greedy decoding is the one without it
    if parameters.get("top_p") == 1:
        del parameters["top_p"]  # it refuses what would change nothing
    parameters |= {
        "max_new_tokens": most_output(asked, deployment.max_output),
        "details": True,
        "return_full_text": False,
    }
    stop = asked.get("stop")
    if stop:
        parameters["stop"] = [stop] if isinstance(stop, str) else stop
    return {"inputs": _as_text(asked), "parameters": parameters}


def _raw_request(asked: Object, deployment: Deployment, place: SageMaker) -> Object:
    return {name: value for name, value in asked.items() if name not in OURS and name != "model"}


def _as_text(asked: Object) -> str:
    """A conversation as one text: the container knows no roles, and its template is not ours to guess."""
    messages = asked.get("messages")
    turns = [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
    if len(turns) == 1:
        return _content(turns[0])
    return "".join(f"{turn.get('role')}: {_content(turn)}\n" for turn in turns) + "assistant:"


def _content(turn: Object) -> str:
    content = turn.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    if any(isinstance(part, dict) and part.get("type") != "text" for part in parts):
        raise BackendError(
            Failure.REJECTED, "this deployment's container takes text only", code="unsupported_parameter"
        )
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _openai_answer(data: bytes) -> Object:
    completion = DECODER.decode(data.decode())
    if not isinstance(completion, dict) or "choices" not in completion:
        raise ValueError("not a chat.completion")
    return as_chunk(completion)


def _tgi_answer(data: bytes) -> Object:
    given = DECODER.decode(data.decode())
    first = given[0] if isinstance(given, list) and given else given
    if not isinstance(first, dict) or not isinstance(first.get("generated_text"), str):
        raise ValueError("no generated_text")
    details = first.get("details")
    details = details if isinstance(details, dict) else {}
    usage: Object = {}
    made, read = details.get("generated_tokens"), details.get("prefill")
    if is_count(made):
        usage = {_COUNTED: made}
        if isinstance(read, list) and read:
            usage["usage"] = {"prompt_tokens": len(read), "completion_tokens": made, "total_tokens": len(read) + made}
    reason = _TGI_FINISH.get(str(details.get("finish_reason", "eos_token")), "stop")
    return _chunk(first["generated_text"], reason) | usage


def _raw_answer(data: bytes) -> Object:
    return _chunk(data.decode(), "stop")


def _chunk(text: str, reason: str) -> Object:
    delta = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


_REQUESTS: Mapping[PayloadFormat, Callable[[Object, Deployment, SageMaker], Object]] = MappingProxyType(
    {
        PayloadFormat.OPENAI: _openai_request,
        PayloadFormat.TGI: _tgi_request,
        PayloadFormat.RAW: _raw_request,
    }
)
_ANSWERS: Mapping[PayloadFormat, Callable[[bytes], Object]] = MappingProxyType(
    {
        PayloadFormat.OPENAI: _openai_answer,
        PayloadFormat.TGI: _tgi_answer,
        PayloadFormat.RAW: _raw_answer,
    }
)
