"""The lines of a batch's output and error files, in OpenAI's shape. Pure."""

import json
from base64 import b64encode
from collections.abc import Mapping

from gateway import render
from gateway.errors import ApiError, JobFailedError, as_api_error
from router.batches import BatchState
from router.board import JobView
from router.compact import encode
from router.job import JobState
from router.ledger import plain

NEVER_RAN: Mapping[BatchState, tuple[str, str]] = {
    BatchState.EXPIRED: ("batch_expired", "This request was not done before the batch's completion window was over."),
    BatchState.CANCELLED: ("batch_cancelled", "This request was not done before the batch was cancelled."),
    BatchState.FAILED: ("batch_failed", "This request was not done before the batch failed."),
}


def completed(view: JobView, result: bytes) -> bytes:
    """A line of the output file: a job's answer; one that is no JSON, such as speech, in base64."""
    if view.media_type != render.JSON:
        body = encode({"media_type": view.media_type, "data": b64encode(result).decode()})
    else:
        body = result if b"\n" not in result else encode(json.loads(result))
    response = b'{"status_code":200,"request_id":"%s","body":%s}' % (_request_id(view.job.id), body)
    return _line(view.job.id, custom_id(view), response=response, about=_about(view))


def not_completed(view: JobView, ending: BatchState | None) -> bytes:
    """A line of the error file: a job that did not complete. `ending`: how its batch is about to end, if it is."""
    if view.state is JobState.EXPIRED:
        ending = BatchState.EXPIRED
    if view.state is JobState.FAILED or ending is None or ending not in NEVER_RAN:
        error = as_api_error(JobFailedError(view.state, view.error), request_id=render.JOB + view.job.id)
        return _line(view.job.id, custom_id(view), response=_refusal(view.job.id, error), about=_about(view))
    return _line(view.job.id, custom_id(view), error=_error(ending), about=_about(view))


def refused(job_id: str, name: str, error: Exception) -> bytes:
    """A line of the error file: a request that did not become a job."""
    answer = as_api_error(error, request_id=render.JOB + job_id)
    return _line(job_id, name, response=_refusal(job_id, answer))


def never_ran(job_id: str, name: str, ending: BatchState) -> bytes:
    """A line of the error file: one whose turn did not come."""
    return _line(job_id, name, error=_error(ending))


def _error(ending: BatchState) -> bytes:
    code, message = NEVER_RAN[ending]
    return encode({"code": code, "message": message})


def _refusal(job_id: str, error: ApiError) -> bytes:
    body = encode(error.body)
    return b'{"status_code":%d,"request_id":"%s","body":%s}' % (error.status, _request_id(job_id), body)


def _line(
    job_id: str, name: str, *, response: bytes = b"null", error: bytes = b"null", about: bytes = b"null"
) -> bytes:
    """With what was parsed nowhere put in as it is: an answer may have megabytes."""
    return b'{"id":"batch_req_%s","custom_id":%s,"response":%s,"error":%s,"pointsman":%s}\n' % (
        job_id.encode(),
        encode(name),
        response,
        error,
        about,
    )


def _about(view: JobView) -> bytes:
    usd = view.usd
    route = view.job.route
    return encode(
        {
            "lane": route.lane,
            "deployment": route.deployment,
            "attempts": view.attempts,
            "seconds": _seconds(view),
            "usd": None if usd is None else plain(usd),
        }
    )


def _seconds(view: JobView) -> float | None:
    """From its first attempt to its end."""
    if view.started_at is None or view.finished_at is None:
        return None
    return round(view.finished_at - view.started_at, 3)


def custom_id(view: JobView) -> str:
    """The client's name for the line that a job is."""
    assert view.job.line is not None
    return view.job.line.custom_id


def _request_id(job_id: str) -> bytes:
    return (render.JOB + job_id).encode()
