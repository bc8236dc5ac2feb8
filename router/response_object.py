"""A Response, as OpenAI defines it, out of a chat completion and what the board knows of its job. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from router.board import JobView
from router.job import JobState
from router.responses import ECHOED, Object

PREFIX = "resp_"

STATUSES: Mapping[JobState, str] = MappingProxyType(
    {
        JobState.ACCEPTING: "queued",
        JobState.QUEUED: "queued",
        JobState.RUNNING: "in_progress",
        JobState.COMPLETED: "completed",
        JobState.FAILED: "failed",
        JobState.CANCELLED: "cancelled",
        JobState.EXPIRED: "failed",
        JobState.REJECTED: "failed",
    }
)
# Why an answer is not whole, by the finish reason of its choice.
CUT_SHORT: Mapping[str, str] = MappingProxyType({"length": "max_output_tokens", "content_filter": "content_filter"})
_CODES: Mapping[str, str] = MappingProxyType({"throttled": "rate_limit_exceeded"})


def response(view: JobView, asked: Mapping[str, Any], completion: Mapping[str, Any] | None) -> Object:
    """The Response of a job. `asked` is what its request said (`echo_of`), `completion` its answer once it is there."""
    job = view.job
    cut_short = _cut_short(completion) if completion else None
    status = STATUSES[view.state]
    return {
        "id": PREFIX + job.id,
        "object": "response",
        "created_at": int(job.created_at),
        "status": "incomplete" if cut_short else status,
        "completed_at": int(view.finished_at) if view.finished_at and status == "completed" else None,
        "error": _error(view),
        "incomplete_details": {"reason": cut_short} if cut_short else None,
        "model": job.route.deployment,
        "output": output_of(completion, job.id, is_whole=not cut_short) if completion else [],
        "usage": _usage(completion.get("usage") or {}) if completion else None,
        "metadata": dict(job.metadata),
        **{name: asked.get(name, default) for name, default in _DEFAULTS.items()},
    }


_DEFAULTS: Mapping[str, object] = {
    name: dict(default) if isinstance(default, Mapping) else list(default) if isinstance(default, tuple) else default
    for name, default in ECHOED.items()
}


def output_of(completion: Mapping[str, Any], job_id: str, *, is_whole: bool = True) -> list[Object]:
    """The answer as items: what was thought, what is said, what is to be called."""
    choice = (completion.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    status = "completed" if is_whole else "incomplete"
    items: list[Object] = []
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thought:
        items.append(reasoning_item(job_id, text=thought))
    calls = message.get("tool_calls") or []
    parts = _parts(message, choice.get("logprobs"), silent=bool(calls))
    if parts:
        items.append({**message_item(job_id), "status": status, "content": parts})
    for index, call in enumerate(calls):
        function = call.get("function") or {}
        item = call_item(job_id, index, call_id=call.get("id") or "", name=function.get("name") or "")
        items.append({**item, "arguments": function.get("arguments") or "", "status": status})
    return items


def message_item(job_id: str) -> Object:
    """A message without content yet."""
    return {"id": f"msg_{job_id}", "type": "message", "role": "assistant", "status": "in_progress", "content": []}


def reasoning_item(job_id: str, *, text: str | None = None) -> Object:
    """What was thought; without a text it is still being thought."""
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{job_id}", "type": "reasoning", "summary": [], "content": content}


def call_item(job_id: str, index: int, *, call_id: str, name: str) -> Object:
    """A call of a function without arguments yet."""
    called = {"call_id": call_id, "name": name, "arguments": ""}
    return {"id": f"fc_{job_id}_{index}", "type": "function_call", "status": "in_progress", **called}


def text_part(text: str, logprobs: list[Object]) -> Object:
    """A text of the model's."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def tokens_of(logprobs: object) -> list[Object]:
    """The log probabilities of a choice's text, in the shape that Responses have."""
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    return [
        {**_token(entry), "top_logprobs": [_token(top) for top in entry.get("top_logprobs") or []]}
        for entry in entries or []
    ]


def _token(entry: Mapping[str, Any]) -> Object:
    token = entry.get("token") or ""
    bytes_ = entry.get("bytes")
    return {
        "token": token,
        "logprob": entry.get("logprob") or 0.0,
        "bytes": list(token.encode(errors="replace")) if bytes_ is None else bytes_,
    }


def _parts(message: Mapping[str, Any], logprobs: object, *, silent: bool) -> list[Object]:
    """`silent`: a message without a text is none, as the model calls something instead."""
    parts: list[Object] = []
    refusal, text = message.get("refusal"), message.get("content") or ""
    if text or not (silent or refusal):
        parts.append(text_part(text, tokens_of(logprobs)))
    if refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    return parts


def _cut_short(completion: Mapping[str, Any]) -> str | None:
    choice = (completion.get("choices") or [{}])[0]
    return CUT_SHORT.get(choice.get("finish_reason") or "")


def _error(view: JobView) -> Object | None:
    """In OpenAI's few codes; the message says the rest."""
    if view.state is JobState.EXPIRED:
        return {"code": "server_error", "message": "The deadline passed before the response was finished."}
    if STATUSES[view.state] != "failed":
        return None
    error = view.error or {}
    message = error.get("message") or "The response failed."
    if error.get("type") == "invalid_request_error":
        return {"code": "invalid_prompt", "message": message}
    return {"code": _CODES.get(str(error.get("code")), "server_error"), "message": message}


def _usage(usage: Mapping[str, Any]) -> Object:
    read, made = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": read + made,
    }
