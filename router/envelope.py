"""How a job travels: the client's bytes as the record's value, everything else in headers.

The headers are documented in `docs/reference/records.md`. Moments are whole milliseconds since the epoch.
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from policies.deployments import Fallback, Modality, Tier
from policies.retries import Failure
from router import compact
from router.job import (
    JSON,
    NOTHING_EARLIER,
    Alternative,
    AtBackend,
    Earlier,
    Estimate,
    Job,
    JobClass,
    Line,
    Payload,
    Queue,
    Reply,
    Route,
)
from router.log import Record

VERSION = "1"
_TEXTS = (
    "tenant",
    "endpoint",
    "model",
    "route",
    "metadata",
    "traceparent",
    "payload",
    "webhook-url",
    "fallback",
    "tried",
    "reply-topic",
    "correlation-id",
    "line",
)
_COUNTS = ("images", "audio_seconds", "characters", "video_seconds")  # of an estimate, where there are any
MOST_ATTEMPTS = 1000  # far above what any rule of retries allows
LARGEST = 10**13  # of any number in a header; as milliseconds, the year 2286


class EnvelopeError(ValueError):
    """This record is not a job of ours; the message says what is wrong, without its content."""


def to_record(job: Job, headers: Mapping[str, str] | None = None) -> Record:
    """The job as a record. `headers` are those of `to_headers`, where the caller has them already."""
    given = {"created-ms": _ms(job.created_at), "deadline-ms": _ms(job.expires_at), "queue": str(job.queue)}
    return Record(b"" if job.payload else job.body, {**(headers or to_headers(job)), **given})


def from_record(record: Record) -> Job:
    """The job of a record. Raises `EnvelopeError`."""
    try:
        job = from_headers(record.headers, record.value)
        _check_texts(record.headers, job)
        return job
    except KeyError as error:
        raise EnvelopeError(f"header {error.args[0]!r} is missing") from None
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise EnvelopeError(f"a header has a wrong value ({type(error).__name__})") from None


def _check_texts(headers: Mapping[str, str], job: Job) -> None:
    """Raise ValueError for half of a character, as bytes or escaped: neither the board nor the log takes it."""
    texts = "".join(headers.get(name, "") for name in _TEXTS)
    texts.encode()
    if "\\u" in texts:
        read = [dict(job.metadata), job.route.deployment, job.route.backend, *job.route.reasons, *job.route.tried]
        read += [each.fallback.deployment for each in job.route.left]
        read += [job.line.custom_id] if job.line else []
        json.dumps([*read, job.payload.path if job.payload else ""], ensure_ascii=False).encode()


def postponed(record: Record, topic: str, *, due_at: float, reason: str) -> Record:
    """A record as it waits on a retry topic: `topic` is where it goes back to at `due_at`."""
    headers = {"retry-due-ms": _ms(due_at), "retry-topic": topic, "retry-reason": reason}
    return Record(record.value, {**record.headers, **headers})


def due_at(record: Record) -> float:
    """When a postponed record is due. Raises `EnvelopeError`."""
    due, topic = record.headers.get("retry-due-ms", ""), record.headers.get("retry-topic", "")
    if not due.isdecimal() or len(due) > len(str(LARGEST)) or not topic.startswith("jobs."):
        raise EnvelopeError("retry-due-ms or retry-topic is missing or wrong")
    return int(due) / 1000


def brought_back(record: Record) -> tuple[str, Record]:
    """The topic that a postponed record goes back to, and the record as it was."""
    headers = {name: value for name, value in record.headers.items() if not name.startswith("retry-")}
    return record.headers["retry-topic"], Record(record.value, headers)


def kept(record: Record, at: AtBackend) -> Record:
    """A record whose job a backend has taken."""
    value = compact.text({"attempt": at.attempt, "reference": at.reference})
    return Record(record.value, {**record.headers, "at-backend": value})


def replayed(record: Record, *, at: float) -> Record:
    """A record whose job runs again, though it had failed."""
    return Record(record.value, {**record.headers, "replayed-ms": _ms(at)})


def earlier(record: Record) -> Earlier:
    """What it says of its job's past. Raises `EnvelopeError`."""
    headers = record.headers
    if "at-backend" not in headers and "replayed-ms" not in headers:
        return NOTHING_EARLIER
    try:
        at_backend = _at_backend(headers["at-backend"]) if "at-backend" in headers else None
        return Earlier(at_backend, _whole(headers.get("replayed-ms", "0")) / 1000)
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise EnvelopeError(f"at-backend or replayed-ms has a wrong value ({type(error).__name__})") from None


def to_headers(job: Job) -> dict[str, str]:
    """All that is known of a job before the board has given it its moments and its queue."""
    route = job.route
    headers = {
        "version": VERSION,
        "job": job.id,
        "tenant": job.tenant,
        "endpoint": job.endpoint,
        "model": job.model,
        "class": str(job.job_class),
        "route": compact.text(
            {
                "deployment": route.deployment,
                "backend": route.backend,
                "modality": route.modality,
                "tier": route.tier,
                "reasons": route.reasons,
                "score": route.score,
                "threshold": route.threshold,
                "rule": route.rule,
            }
        ),
        "estimate": compact.text(_estimate_values(job.estimate)),
        "result-ttl-s": f"{job.result_ttl_s:.3f}",
        "reruns": "allow" if job.reruns_allowed else "refuse",
    }
    if job.stream:
        headers["stream"] = "1"
    if job.metadata:
        headers["metadata"] = compact.text(dict(job.metadata))
    if job.traceparent:
        headers["traceparent"] = job.traceparent
    if job.payload:
        headers["payload"] = payload_text(job.payload)
    if job.max_usd is not None:
        headers["max-usd"] = str(job.max_usd)
    if job.key_id:
        headers["key"] = job.key_id
    if job.limited_key:
        headers["limited-key"] = job.limited_key
    if job.is_reserved:
        headers["reserved"] = "1"
    if job.webhook_url:
        headers["webhook-url"] = job.webhook_url
    if job.is_waited_for:
        headers["waited-for"] = "1"
    if route.left:
        headers["fallback"] = compact.text([_alternative_values(each) for each in route.left])
    if route.tried:
        headers["tried"] = compact.text({"deployments": route.tried, "attempts": route.spent})
    if job.reply:
        headers["reply-topic"] = job.reply.topic
        headers["correlation-id"] = job.reply.correlation_id
    if job.line:
        headers["line"] = compact.text({"batch": job.line.batch, "custom_id": job.line.custom_id})
    return headers


def about(job: Job) -> str:
    """The headers of a job as one text, for the board."""
    return compact.text(to_headers(job))


def from_headers(headers: Mapping[str, str], body: bytes) -> Job:
    """The job of these headers. Raises KeyError for a missing header, ValueError and its like for a wrong one."""
    if headers["version"] != VERSION:
        raise ValueError("version")
    route, tried = json.loads(headers["route"]), json.loads(headers.get("tried", '{"deployments":[],"attempts":0}'))
    return Job(
        id=_job_id(headers["job"]),
        tenant=headers["tenant"],
        endpoint=headers["endpoint"],
        model=headers["model"],
        job_class=JobClass(headers["class"]),
        route=Route(
            deployment=str(route["deployment"]),
            backend=str(route["backend"]),
            modality=Modality(route["modality"]),
            tier=Tier(route["tier"]),
            reasons=tuple(str(reason) for reason in route["reasons"]),
            score=None if route["score"] is None else float(route["score"]),
            left=tuple(_alternative(values) for values in json.loads(headers.get("fallback", "[]"))),
            tried=tuple(str(name) for name in tried["deployments"]),
            spent=_whole(tried["attempts"]),
            threshold=None if route.get("threshold") is None else float(route["threshold"]),
            rule=str(route.get("rule", "")),
        ),
        estimate=_estimate(json.loads(headers["estimate"])),
        body=body,
        created_at=_whole(headers["created-ms"]) / 1000,
        expires_at=_whole(headers["deadline-ms"]) / 1000,
        result_ttl_s=_whole(round(float(headers["result-ttl-s"]) * 1000), least=1) / 1000,
        stream=headers.get("stream") == "1",
        payload=payload_of(headers["payload"]) if "payload" in headers else None,
        metadata={str(k): str(v) for k, v in json.loads(headers.get("metadata", "{}")).items()},
        traceparent=headers.get("traceparent"),
        reruns_allowed=headers["reruns"] == "allow",
        max_usd=_dollars(headers["max-usd"]) if "max-usd" in headers else None,
        queue=Queue(headers.get("queue", Queue.MAIN)),
        key_id=headers.get("key", ""),
        limited_key=headers.get("limited-key", ""),
        is_reserved=headers.get("reserved") == "1",
        webhook_url=headers.get("webhook-url", ""),
        is_waited_for=headers.get("waited-for") == "1",
        reply=Reply(headers["reply-topic"], headers["correlation-id"]) if "reply-topic" in headers else None,
        line=_line(headers["line"]) if "line" in headers else None,
    )


def _estimate_values(estimate: Estimate) -> dict[str, object]:
    return {
        "input": estimate.input_tokens,
        "output": estimate.output_tokens,
        "usd": None if estimate.usd is None else str(estimate.usd),
        **{name: count for name in _COUNTS if (count := getattr(estimate, name))},
    }


def _estimate(values: Mapping[str, Any]) -> Estimate:
    return Estimate(
        input_tokens=_whole(values["input"]),
        output_tokens=_whole(values["output"]),
        usd=None if values["usd"] is None else _dollars(values["usd"]),
        **{name: _whole(values.get(name, 0)) for name in _COUNTS},
    )


def _alternative_values(each: Alternative) -> dict[str, object]:
    on = each.fallback.on
    values: dict[str, object] = {"deployment": each.fallback.deployment, "estimate": _estimate_values(each.estimate)}
    return values if on is None else {**values, "on": sorted(on)}


def _alternative(values: Mapping[str, Any]) -> Alternative:
    on = frozenset(map(Failure, values["on"])) if "on" in values else None
    return Alternative(Fallback(str(values["deployment"]), on), _estimate(values["estimate"]))


def payload_text(payload: Payload) -> str:
    """A payload pointer as JSON text."""
    what = {} if payload.media_type == JSON else {"type": payload.media_type}
    return compact.text({"path": payload.path, "sha256": payload.sha256, "size": payload.size, **what})


def payload_of(text: str) -> Payload:
    """The payload pointer of a JSON text."""
    values = json.loads(text)
    return Payload(
        path=str(values["path"]),
        sha256=str(values["sha256"]),
        size=int(values["size"]),
        media_type=str(values.get("type", JSON)),
    )


def _line(text: str) -> Line:
    values = json.loads(text)
    return Line(_job_id(values["batch"]), str(values["custom_id"]))


def _at_backend(text: str) -> AtBackend:
    values = json.loads(text)
    attempt, reference = _whole(values["attempt"], least=1), str(values["reference"])
    if attempt > MOST_ATTEMPTS:
        raise ValueError("attempt")
    reference.encode()
    return AtBackend(attempt, reference)


def _job_id(text: str) -> str:
    if len(text) != 26 or not (text.isascii() and text.isalnum()):
        raise ValueError("job")
    return text


def _whole(value: str | float, *, least: int = 0) -> int:
    number = int(value)
    if not least <= number <= LARGEST:
        raise ValueError("number")
    return number


def _dollars(text: str) -> Decimal:
    usd = Decimal(text)
    if not 0 <= usd <= LARGEST:  # raises for NaN
        raise ValueError("usd")
    return usd


def _ms(moment: float) -> str:
    return f"{moment * 1000:.0f}"
