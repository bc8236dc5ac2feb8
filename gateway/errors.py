"""Our errors, as clients see them. No other module knows a status code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil

from starlette.exceptions import HTTPException

from gateway import render
from gateway.accept import (
    IdempotencyKeyReusedError,
    NoRouteError,
    OverQuotaError,
    QueueFullError,
    UnknownTenantError,
)
from gateway.auth import InvalidKeyError
from gateway.body import InvalidRequestError
from gateway.continuation import StreamBrokenError
from gateway.reading import CompressedError, OverloadedError, SlowBodyError, TooLargeError, WrongContentTypeError
from policies.retries import Failure
from policies.scripts import BoardUnavailableError
from router.conversations import ConversationTooLongError, NoSuchResponseError, UnfinishedResponseError
from router.files import FileInUseError, FilesFullError
from router.job import JobState
from router.log import LogUnavailableError
from router.payloads import PayloadLostError, PayloadUnavailableError

INVALID = "invalid_request_error"
SERVER = "server_error"


@dataclass(slots=True)
class ApiError(Exception):
    """What a client is told. `retry` is whether its SDK should try again by itself; `retry_after` is in seconds."""

    status: int
    code: str | None
    message: str
    type: str = INVALID
    param: str | None = None
    retry: bool = False
    retry_after: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, object]:
        """OpenAI's error body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def all_headers(self) -> dict[str, str]:
        """Everything that goes with the status."""
        headers = {"x-should-retry": "true" if self.retry else "false", **self.headers}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, ceil(self.retry_after)))
            headers["retry-after-ms"] = str(max(1, ceil(self.retry_after * 1000)))
        return headers


class UnknownJobError(Exception):
    """There is no such job, or it is another tenant's."""


class UnknownFileError(Exception):
    """There is no such file, or it is another tenant's."""


class UnknownBatchError(Exception):
    """There is no such batch, or it is another tenant's."""


class TooManyBatchesError(Exception):
    """The tenant has as many unfinished batches as it may."""


class UnknownModelError(Exception):
    """There is no such model for this tenant."""


class UnfinishedError(Exception):
    """The job still runs; only a finished one can be deleted."""


class NotThereYetError(Exception):
    """What the job makes is not there yet."""


class LostSightError(Exception):
    """The board went away while somebody waited for this job, which goes on."""

    def __init__(self, job_id: str) -> None:
        super().__init__("the board does not answer")
        self.job_id = job_id


class WaitedTooLongError(Exception):
    """A caller waited as long as it may, and its job is not done. `kept`: the job goes on."""

    def __init__(self, job_id: str, *, kept: bool) -> None:
        super().__init__("waited too long")
        self.job_id = job_id
        self.kept = kept


class JobFailedError(Exception):
    """The job did not complete: how it ended, and its error as the board has it."""

    def __init__(self, state: JobState, error: Mapping[str, object] | None) -> None:
        super().__init__(f"the job is {state}")
        self.state = state
        self.error = error or {}


# How a job's own error code is shown when its result is asked for.
_FAILED: Mapping[str, int] = {
    Failure.REJECTED: 400,
    Failure.TOO_LONG: 400,
    Failure.FILTERED: 400,
    Failure.THROTTLED: 503,
    Failure.UNAVAILABLE: 503,
    Failure.BACKEND_ERROR: 502,
    Failure.TIMED_OUT: 504,
    Failure.CUT: 502,
    Failure.MISCONFIGURED: 502,
    "deadline": 504,
    "may_have_run": 502,
}
_TYPES: Mapping[str, int] = {INVALID: 400, "upstream_error": 502, SERVER: 500}


def as_api_error(error: Exception, *, request_id: str) -> ApiError:
    """What the client is told of this error. Whatever is not named here is our bug, and says nothing of itself."""
    for kind in type(error).__mro__:
        if (always := _ALWAYS.get(kind)) is not None:
            return always()
    match error:
        case ApiError():
            return error
        case InvalidRequestError(message=message, param=param, code=code):
            return ApiError(400, code, message, param=param)
        case InvalidKeyError():
            return ApiError(401, "invalid_api_key", str(error), headers={"www-authenticate": "Bearer"})
        case NoRouteError(route=route):
            status = 404 if route.code == "model_not_found" else 400
            return ApiError(status, route.code, route.message, param=route.param)
        case OverQuotaError():
            return _over_quota(error)
        case TooLargeError(most=most):
            return ApiError(413, "request_too_large", f"The request body has more than {most} bytes.")
        case WrongContentTypeError(wanted=wanted):
            kind_wanted = "a form" if wanted == "multipart/form-data" else "JSON"
            message = f"Send {kind_wanted}, with the header Content-Type: {wanted}."
            return ApiError(415, "unsupported_media_type", message)
        case WaitedTooLongError(job_id=job_id, kept=kept):
            fate = f"It goes on: GET /v1/jobs/job_{job_id}." if kept else "It was cancelled."
            hint = 'For long jobs, send "async": true.'
            return ApiError(504, "timeout", f"The job took longer than a caller may wait. {fate} {hint}", SERVER)
        case LostSightError(job_id=job_id):
            message = f"The job board does not answer. The job goes on: GET /v1/jobs/job_{job_id} in a while."
            return ApiError(503, "board_unavailable", message, SERVER)
        case JobFailedError():
            return _of_job(error)
        case HTTPException():
            return _of_address(error)
    message = f"The gateway failed. Tell its operator the request id {request_id}."
    return ApiError(500, "internal_error", message, SERVER)


def _refused(status: int, code: str, message: str, param: str | None = None) -> Callable[[], ApiError]:
    """To try the same again is of no use."""
    return lambda: ApiError(status, code, message, INVALID if status < 500 else SERVER, param)


def _full(code: str, message: str, seconds: float) -> Callable[[], ApiError]:
    return lambda: ApiError(429, code, message, "rate_limit_error", retry=True, retry_after=seconds)


def _away(code: str, message: str, seconds: float) -> Callable[[], ApiError]:
    return lambda: ApiError(503, code, message, SERVER, retry=True, retry_after=seconds)


_not_on_log = _away("log_unavailable", "The job log did not confirm, so the job was not accepted. Try again.", 2.0)

# Errors of which there is only one thing to say.
_ALWAYS: Mapping[type, Callable[[], ApiError]] = {
    UnknownTenantError: _refused(401, "invalid_api_key", "The tenant of this API key is not in the settings any more."),
    UnknownJobError: _refused(
        404, "not_found", "There is no such job or response. It may be deleted, or past its time."
    ),
    UnknownFileError: _refused(404, "not_found", "There is no such file. It may be deleted, or past its time.", "id"),
    UnknownBatchError: _refused(404, "not_found", "There is no such batch. It may be past its time.", "id"),
    UnknownModelError: _refused(
        404,
        "model_not_found",
        "There is no such model, or you have no access to it. GET /v1/models lists yours.",
        "model",
    ),
    CompressedError: _refused(
        415, "unsupported_media_type", "Compressed bodies are not read. Send it as it is, without Content-Encoding."
    ),
    UnfinishedError: _refused(409, "job_unfinished", "The job is not finished. Cancel it first, then delete it."),
    NotThereYetError: _refused(409, "job_unfinished", "The job is not finished. Look at its status, then come again."),
    FileInUseError: _refused(
        409, "file_in_use", "A batch that has not ended reads this file. Cancel the batch first, then delete the file."
    ),
    FilesFullError: _refused(
        413,
        "files_full",
        "The files of this tenant have no more room. Delete some, then upload this one again.",
        "file",
    ),
    IdempotencyKeyReusedError: _refused(
        422,
        "idempotency_key_reused",
        "This Idempotency-Key came with another body before. Use a new key for a new request.",
        "Idempotency-Key",
    ),
    NoSuchResponseError: _refused(
        400,
        "previous_response_not_found",
        "There is no such response to follow. It may be deleted, past its time, or not stored.",
        "previous_response_id",
    ),
    UnfinishedResponseError: _refused(
        400,
        "previous_response_not_completed",
        "The response to follow is not completed. Wait for it first.",
        "previous_response_id",
    ),
    ConversationTooLongError: _refused(
        400,
        "conversation_too_long",
        "The conversation is too long to be followed. Begin a new one, with a summary of it.",
        "previous_response_id",
    ),
    PayloadLostError: _refused(500, "result_lost", "The result is not where it was stored."),
    QueueFullError: _full("queue_full", "The queue of this tenant is full. Wait until some of its jobs are done.", 5.0),
    TooManyBatchesError: _full(
        "too_many_batches", "This tenant has too many batches that have not ended. Wait until some have.", 30.0
    ),
    OverloadedError: _away("overloaded", "The gateway has too many requests in flight. Try again soon.", 1.0),
    LogUnavailableError: _not_on_log,
    BoardUnavailableError: _away("board_unavailable", "The job board does not answer. Try again.", 2.0),
    PayloadUnavailableError: _away(
        "payloads_unavailable", "The store of large bodies does not answer. Try again.", 2.0
    ),
    SlowBodyError: lambda: ApiError(408, "request_timeout", "The request body did not come in time.", retry=True),
    StreamBrokenError: lambda: ApiError(
        502,
        "stream_broken",
        "The model's stream broke off, and a second attempt answered otherwise. Ask again.",
        SERVER,
        retry=True,
    ),
}


def _over_quota(error: OverQuotaError) -> ApiError:
    headers = render.rate_headers(error.rooms)
    if error.seconds is None:
        message = f"The budget ({error.limit} of {error.scope}) does not cover this before its next period."
        return ApiError(429, "insufficient_quota", message, "insufficient_quota", headers=headers)
    message = (
        f"Rate limit reached: {error.limit} of {error.scope}. Try again in {max(0.001, error.seconds):.3f} s,"
        ' or send "async": true, and the job waits by itself.'
    )
    return ApiError(
        429,
        "rate_limit_exceeded",
        message,
        next((kind for kind in ("requests", "tokens") if error.limit.startswith(kind)), "rate_limit_error"),
        retry=True,
        retry_after=error.seconds,
        headers=headers,
    )


def _of_address(error: HTTPException) -> ApiError:
    """What the routes say of an address that cannot be served."""
    match error.status_code:
        case 404:
            message = "There is no such address. GET /openapi.json lists all; a client's base URL ends with /v1."
            return ApiError(404, "not_found", message)
        case 405:
            message = "This address does not take this method."
            return ApiError(405, "method_not_allowed", message, headers=error.headers or {})
        case status:
            return ApiError(status, None, "The request cannot be served.", INVALID if status < 500 else SERVER)


def _of_job(failed: JobFailedError) -> ApiError:
    """A terminal state never changes, so that trying again is of no use."""
    match failed.state:
        case JobState.CANCELLED:
            return ApiError(409, "job_cancelled", "The job was cancelled.")
        case JobState.EXPIRED:
            return ApiError(504, "job_expired", "The job's deadline was over before it was done.", SERVER)
        case JobState.REJECTED:
            return _not_on_log()
    error = failed.error
    code = _text(error.get("code"))
    status = _FAILED.get(code or "") or _TYPES.get(_text(error.get("type")) or "", 502)
    message = _text(error.get("message")) or "The job failed."
    return ApiError(status, code, message, INVALID if status < 500 else SERVER, _text(error.get("param")))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
