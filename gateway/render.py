"""What clients get: job objects, pages, chunks and headers, as bytes."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal

from gateway.quotes import NOTHING, Quote
from policies.pricing import ChargeLine
from policies.quota import Room, Rooms
from router.batches import Batch, BatchState
from router.board import JobView
from router.compact import encode
from router.files import File
from router.job import JobState, Stay
from router.ledger import plain

JSON = "application/json"
JOB, FILE, BATCH, VIDEO = "job_", "file-", "batch_", "video_"
POLL_LATER = {"retry-after": "1"}  # seconds

STATES: Mapping[JobState, str] = {
    JobState.ACCEPTING: "queued",
    JobState.QUEUED: "queued",
    JobState.RUNNING: "in_progress",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "expired",
    JobState.REJECTED: "failed",
}

_ULID = "[0-7][0-9A-HJKMNP-TV-Z]{25}"
_FILE_ID, _BATCH_ID = re.compile(f"(?:file-)?({_ULID})"), re.compile(f"(?:batch_)?({_ULID})")
_ID = re.compile(r"(?:job_|chatcmpl-|resp_|video_)?([0-7][0-9A-HJKMNP-TV-Z]{25})")
_REJECTED = {
    "message": "The job log did not confirm the job.",
    "type": "server_error",
    "code": "log_unavailable",
    "param": None,
}


def job_id(text: str) -> str | None:
    """The id in `job_...`, `chatcmpl-...`, `resp_...`, `video_...` or by itself; None if it cannot be one."""
    found = _ID.fullmatch(text)
    return found[1] if found else None


def file_id(text: str) -> str | None:
    """The id in `file-...` or by itself; None if it cannot be one."""
    found = _FILE_ID.fullmatch(text)
    return found[1] if found else None


def batch_id(text: str) -> str | None:
    """The id in `batch_...` or by itself; None if it cannot be one."""
    found = _BATCH_ID.fullmatch(text)
    return found[1] if found else None


def states_of(status: str) -> Sequence[JobState]:
    """The states that clients see as `status`; none if there is no such status."""
    return [state for state, shown in STATES.items() if shown == status]


def job(view: JobView, result: bytes | None = None, *, quote: Quote = NOTHING) -> bytes:
    """The job object. `result` is the OpenAI object as JSON, and goes in as it is."""
    head = encode(job_values(view, quote))
    return head[:-1] + b',"result":' + (result or b"null") + b"}"


def elsewhere(view: JobView) -> bytes:
    """In the place of a result that is no JSON: what it is, and where."""
    size = view.result_at.size if view.result_at is not None else 0
    path = f"/v1/jobs/{JOB}{view.job.id}/content"
    return encode({"object": "job.content", "media_type": view.media_type, "bytes": size, "path": path})


def page(
    views: Sequence[JobView], *, more_after: str = "", quote: Callable[[JobView], Quote] = lambda view: NOTHING
) -> bytes:
    """A page of job objects, without their results. Behind the job `more_after`, if any, there may be more."""
    ids = [JOB + view.job.id for view in views]
    last = JOB + more_after if more_after else next(reversed(ids), None)
    head = {
        "object": "list",
        "first_id": ids[0] if ids else None,
        "last_id": last,
        "has_more": bool(more_after),
    }
    return encode(head)[:-1] + b',"data":[' + b",".join(job(view, quote=quote(view)) for view in views) + b"]}"


def list_of(shown: Sequence[Mapping[str, object]], *, has_more: bool) -> dict[str, object]:
    """A page of objects."""
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {"object": "list", "data": shown, "first_id": first, "last_id": last, "has_more": has_more}


def file(file: File) -> dict[str, object]:
    """The file object."""
    return {
        "id": FILE + file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at),
        "expires_at": int(file.expires_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch(batch: Batch) -> dict[str, object]:
    """The batch object."""
    moment = {f"{state}_at": _seconds(batch.moments.get(state)) for state in BatchState if state != "validating"}
    return {
        "id": BATCH + batch.id,
        "object": "batch",
        "endpoint": batch.order.endpoint,
        "status": batch.state,
        "input_file_id": FILE + batch.order.input,
        "output_file_id": FILE + batch.output if batch.output else None,
        "error_file_id": FILE + batch.error if batch.error else None,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "completion_window": f"{batch.order.window_s / 3600:.0f}h",
        "created_at": int(batch.created_at),
        "expires_at": int(batch.expires_at),
        **moment,
        "request_counts": {"total": batch.total or 0, "completed": batch.completed, "failed": batch.failed},
        "metadata": dict(batch.order.metadata),
        "usage": _batch_usage(batch.tokens),
        "pointsman": {
            "usd": None if batch.unpriced else plain(batch.usd),
            "estimate_usd": _dollars(batch.estimate_of_rest),
            "items_per_minute": batch.items_per_minute,
            "retries": max(0, batch.attempts - batch.concluded),
            "cancelled": batch.cancelled,
            "expired": batch.expired,
        },
    }


def _batch_usage(tokens: Mapping[str, int]) -> dict[str, object]:
    cached, output = tokens.get("cache_read", 0), tokens.get("output", 0)
    prompt = tokens.get("input", 0) + tokens.get("cache_write", 0) + cached
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }


def deleted(job_id: str) -> bytes:
    """What OpenAI answers to a DELETE."""
    return encode({"id": JOB + job_id, "object": "job.deleted", "deleted": True})


def outcome(job_id: str, score: float, *, kept: bool) -> bytes:
    """The outcome of a job. Not kept: no score decided this job, or the tenant keeps nothing, or it is long ago."""
    return encode({"id": JOB + job_id, "object": "job.outcome", "score": score, "kept": kept})


def answer_headers(view: JobView) -> dict[str, str]:
    """Where a waiting caller's answer comes from, and what it cost (absent while unknown)."""
    headers = {"x-pointsman-lane": view.job.route.lane, "x-pointsman-model": view.job.route.deployment}
    if view.state.is_terminal and view.charges and view.usd is not None:
        headers["x-pointsman-cost-usd"] = plain(view.usd)
    return headers


def rate_headers(rooms: Rooms) -> dict[str, str]:
    """OpenAI's `x-ratelimit-...`, for the limits that there are."""
    headers: dict[str, str] = {}
    for name, room in (("requests", rooms.requests), ("tokens", rooms.tokens)):
        if room is not None:
            headers |= _room_headers(name, room)
    return headers


def event(data: bytes) -> bytes:
    """A server-sent event."""
    return b"data: " + data + b"\n\n"


DONE = event(b"[DONE]")
KEEP_ALIVE = b": keep-alive\n\n"


def chunks_of(result: bytes, *, include_usage: bool) -> Iterator[bytes]:
    """A whole answer as chunks, for a stream whose pieces are no longer there."""
    answer = json.loads(result)
    head = {name: answer.get(name) for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for choice in answer.get("choices", []):
        delta = dict(choice.get("message") or {})
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
        index = choice.get("index", 0)
        yield encode({**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
        reason = choice.get("finish_reason")
        yield encode({**head, "choices": [{"index": index, "delta": {}, "finish_reason": reason}]})
    if include_usage and answer.get("usage"):
        yield encode({**head, "choices": [], "usage": answer["usage"]})


def job_values(view: JobView, quote: Quote = NOTHING) -> dict[str, object]:
    """The job object but for its result."""
    job, route = view.job, view.job.route
    return {
        "id": JOB + job.id,
        "object": "job",
        "status": STATES[view.state],
        "endpoint": job.endpoint,
        "created_at": int(job.created_at),
        "expires_at": int(job.expires_at),
        "started_at": _seconds(view.started_at),
        "finished_at": _seconds(view.finished_at),
        "model": job.model,
        "metadata": dict(job.metadata),
        "usage": view.usage,
        "error": _REJECTED if view.state is JobState.REJECTED else view.error,
        "pointsman": {
            "lane": route.lane,
            "deployment": route.deployment,
            "class": job.job_class,
            "reasons": route.reasons,
            "score": route.score,
            "threshold": route.threshold,
            "rule": route.rule or None,
            "queue": job.queue,
            **({"batch": BATCH + job.line.batch, "custom_id": job.line.custom_id} if job.line else {}),
            "estimate_usd": _dollars(job.estimate.usd),
            "starts_in_s": quote.starts_in_s,
            "warming": quote.warming,
            **_wake(view, quote),
            "waited_s": _waited(view),
            **_stay(view.stay),
            "attempts": view.attempts,
            "microbatch": view.microbatch,
            "usd": _dollars(view.usd),
            **({} if view.machine_usd is None else {"machine_usd": plain(view.machine_usd)}),
            "charges": [_charge(line) for line in view.charges],
        },
    }


def _waited(view: JobView) -> float | None:
    """Seconds from its acceptance to its first attempt."""
    return None if view.started_at is None else round(view.started_at - view.job.created_at, 3)


def _wake(view: JobView, quote: Quote) -> dict[str, object]:
    """Where nothing ran: what the machine costs until something does, as a guess; and as it is billed by now."""
    told = {"wake_estimate_usd": quote.wake_usd, "wake_usd": view.wake_usd}
    return {name: plain(usd) for name, usd in told.items() if usd is not None}


def _stay(stay: Stay | None) -> dict[str, object]:
    """Where its backend has a queue of its own: was it waiting, or was it slow?"""
    if stay is None:
        return {}
    waited = None if stay.running is None else round(max(0.0, stay.seconds - stay.running), 3)
    return {"endpoint_s": round(stay.seconds, 3), "endpoint_waited_s": waited, "endpoint_running_s": stay.running}


def _charge(line: ChargeLine) -> dict[str, object]:
    return {
        "attempt": line.attempt,
        "meter": line.meter,
        "quantity": line.quantity,
        "usd_per_million": _dollars(line.usd_per_million),
        "usd": _dollars(line.usd),
        "basis": line.basis,
        "outcome": line.outcome,
    }


def _room_headers(name: str, room: Room) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{name}": str(room.limit),
        f"x-ratelimit-remaining-{name}": str(max(0, room.remaining)),
        f"x-ratelimit-reset-{name}": f"{max(0.0, room.full_in_s):.3f}s",
    }


def _dollars(usd: Decimal | None) -> str | None:
    return None if usd is None else plain(usd)


def _seconds(moment: float | None) -> int | None:
    return None if moment is None else int(moment)
