"""Our errors, as clients see them. No other module knows a status code."""

from collections.abc import Mapping
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
from gateway.reading import OverloadedError, SlowBodyError, TooLargeError, WrongContentTypeError
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
    match error:
        case ApiError():
            return error
        case InvalidRequestError(message=message, param=param, code=code):
            return ApiError(400, code, message, param=param)
        case InvalidKeyError():
            return ApiError(401, "invalid_api_key", str(error), headers={"www-authenticate": "Bearer"})
        case UnknownTenantError():
            return ApiError(401, "invalid_api_key", "The tenant of this API key is not in the settings any more.")
        case NoRouteError(route=route):
            return ApiError(
                404 if route.code == "model_not_found" else 400, route.code, route.message, param=route.param
            )
        case OverQuotaError():
            return _over_quota(error)
        case QueueFullError():
            message = "The queue of this tenant is full. Wait until some of its jobs are done."
            return ApiError(429, "queue_full", message, "rate_limit_error", retry=True, retry_after=5.0)
        case IdempotencyKeyReusedError():
            message = "This Idempotency-Key came with another body before. Use a new key for a new request."
            return ApiError(422, "idempotency_key_reused", message, param="Idempotency-Key")
        case UnknownJobError():
            return ApiError(404, "not_found", "There is no such job or response. It may be deleted, or past its time.")
        case UnknownFileError():
            return ApiError(404, "not_found", "There is no such file. It may be deleted, or past its time.", param="id")
        case UnknownBatchError():
            return ApiError(404, "not_found", "There is no such batch. It may be past its time.", param="id")
        case TooManyBatchesError():
            message = "This tenant has too many batches that have not ended. Wait until some have."
            return ApiError(429, "too_many_batches", message, "rate_limit_error", retry=True, retry_after=30.0)
        case FileInUseError():
            message = "A batch that has not ended reads this file. Cancel the batch first, then delete the file."
            return ApiError(409, "file_in_use", message)
        case FilesFullError():
            message = "The files of this tenant have no more room. Delete some, then upload this one again."
            return ApiError(413, "files_full", message, param="file")
        case NoSuchResponseError():
            message = "There is no such response to follow. It may be deleted, past its time, or not stored."
            return ApiError(400, "previous_response_not_found", message, param="previous_response_id")
        case UnfinishedResponseError():
            message = "The response to follow is not completed. Wait for it first."
            return ApiError(400, "previous_response_not_completed", message, param="previous_response_id")
        case ConversationTooLongError():
            message = "The conversation is too long to be followed. Begin a new one, with a summary of it."
            return ApiError(400, "conversation_too_long", message, param="previous_response_id")
        case UnknownModelError():
            return ApiError(
                404,
                "model_not_found",
                "There is no such model, or you have no access to it. GET /v1/models lists yours.",
                param="model",
            )
        case UnfinishedError():
            return ApiError(409, "job_unfinished", "The job is not finished. Cancel it first, then delete it.")
        case NotThereYetError():
            return ApiError(409, "job_unfinished", "The job is not finished. Look at its status, then come again.")
        case TooLargeError(most=most):
            return ApiError(413, "request_too_large", f"The request body has more than {most} bytes.")
        case WrongContentTypeError(wanted=wanted):
            kind = "a form" if wanted == "multipart/form-data" else "JSON"
            return ApiError(415, "unsupported_media_type", f"Send {kind}, with the header Content-Type: {wanted}.")
        case SlowBodyError():
            return ApiError(408, "request_timeout", "The request body did not come in time.", retry=True)
        case WaitedTooLongError(job_id=job_id, kept=kept):
            fate = f"It goes on: GET /v1/jobs/job_{job_id}." if kept else "It was cancelled."
            hint = 'For long jobs, send "async": true.'
            return ApiError(504, "timeout", f"The job took longer than a caller may wait. {fate} {hint}", SERVER)
        case LostSightError(job_id=job_id):
            message = f"The job board does not answer. The job goes on: GET /v1/jobs/job_{job_id} in a while."
            return ApiError(503, "board_unavailable", message, SERVER)
        case JobFailedError():
            return _of_job(error)
        case StreamBrokenError():
            message = "The model's stream broke off, and a second attempt answered otherwise. Ask again."
            return ApiError(502, "stream_broken", message, SERVER, retry=True)
        case OverloadedError():
            return _later("overloaded", "The gateway has too many requests in flight. Try again soon.", 1.0)
        case LogUnavailableError():
            return _not_on_log()
        case BoardUnavailableError():
            return _later("board_unavailable", "The job board does not answer. Try again.", 2.0)
        case PayloadUnavailableError():
            return _later("payloads_unavailable", "The store of large bodies does not answer. Try again.", 2.0)
        case PayloadLostError():
            return ApiError(500, "result_lost", "The result is not where it was stored.", SERVER)
        case HTTPException(status_code=404):
            return ApiError(404, "not_found", "There is no such address. Look at the path and the base URL.")
        case HTTPException(status_code=405, headers=headers):
            return ApiError(405, "method_not_allowed", "This address does not take this method.", headers=headers or {})
        case HTTPException(status_code=status):
            return ApiError(status, None, "The request cannot be served.", INVALID if status < 500 else SERVER)
    message = f"The gateway failed. Tell its operator the request id {request_id}."
    return ApiError(500, "internal_error", message, SERVER)


def _later(code: str, message: str, seconds: float) -> ApiError:
    return ApiError(503, code, message, SERVER, retry=True, retry_after=seconds)


def _not_on_log() -> ApiError:
    return _later("log_unavailable", "The job log did not confirm, so the job was not accepted. Try again.", 2.0)


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
