"""What an OpenAI-compatible server means by refusing: its status, its error body and its headers, in our words."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from consumers.gathered import Object
from policies.retries import FINAL, Failure

LONGEST_DETAIL = 2000  # bytes of a backend's own message
LONGEST_NAME = 100  # characters of a code or a parameter
LONGEST_WAIT = 86_400.0  # seconds

BY_STATUS: Mapping[int, Failure] = {
    400: Failure.REJECTED,
    413: Failure.REJECTED,
    422: Failure.REJECTED,
    408: Failure.TIMED_OUT,
    429: Failure.THROTTLED,
    503: Failure.UNAVAILABLE,
}
# Whatever the status: these come with 429, but waiting does not help.
OUT_OF_CREDIT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
# What a 400 means more closely. Codes and types of OpenAI, Azure, vLLM, llama.cpp.
REFUSED: Mapping[str, Failure] = {
    "context_length_exceeded": Failure.TOO_LONG,
    "exceed_context_size_error": Failure.TOO_LONG,
    "string_above_max_length": Failure.TOO_LONG,
    "content_filter": Failure.FILTERED,
    "content_policy_violation": Failure.FILTERED,
    "content_filter_error": Failure.FILTERED,
}
# vLLM and SGLang say it in words only.
TOO_LONG = re.compile(r"maximum context length|context length of|longer than the model's context|context window", re.I)
# Inside a stream there is no status. Codes and types of OpenAI, vLLM, llama.cpp, TGI.
BY_NAME: Mapping[str, Failure] = {
    "invalid_request_error": Failure.REJECTED,
    "BadRequestError": Failure.REJECTED,
    "validation": Failure.REJECTED,
    "rate_limit_exceeded": Failure.THROTTLED,
    "rate_limit_error": Failure.THROTTLED,
    "overloaded": Failure.THROTTLED,
    "overloaded_error": Failure.UNAVAILABLE,
    "unavailable_error": Failure.UNAVAILABLE,
    "invalid_api_key": Failure.MISCONFIGURED,
    "authentication_error": Failure.MISCONFIGURED,
    "model_not_found": Failure.MISCONFIGURED,
    "NotFoundError": Failure.MISCONFIGURED,
}
# Only what is the client's own doing is shown in the backend's words: the others can hold keys and addresses.
DETAILS: Mapping[Failure, str] = {
    Failure.REJECTED: "the backend refused the request",
    Failure.TOO_LONG: "the request does not fit into the model's window",
    Failure.FILTERED: "the backend's content filter refused the request",
    Failure.THROTTLED: "the backend says that calls come too fast",
    Failure.UNAVAILABLE: "the backend is not available",
    Failure.BACKEND_ERROR: "the backend failed",
    Failure.TIMED_OUT: "the backend gave up waiting",
    Failure.MISCONFIGURED: "the backend does not accept the deployment's settings: look at its url, model and key",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no answer. `code` and `param` are the backend's own; `retry_after` is in seconds."""

    failure: Failure
    detail: str
    code: str
    param: str | None = None
    retry_after: float | None = None


def of_response(status: int, headers: Mapping[str, str], body: bytes, now: float) -> Refusal:
    """What a response means that is not a 200. `headers` answer to lower-case names; `now` is a moment."""
    error = _error_in(_object(body))
    failure = _by_status(status)
    if _names(error) & OUT_OF_CREDIT:
        failure = Failure.MISCONFIGURED
    return _refusal(_closer(failure, error), error, status, retry_after(headers, now))


def of_event(name: str, chunk: Object) -> Refusal | None:
    """What an event inside a stream means, if it is an error. `name` is the event's own."""
    error = _error_in({"error": chunk} if name == "error" and "error" not in chunk else chunk)
    if error is None:
        return None
    names, status = _names(error), _status_in(error)
    if names & OUT_OF_CREDIT:
        failure = Failure.MISCONFIGURED
    elif status is not None:
        failure = _by_status(status)
    else:
        known = {**BY_NAME, **REFUSED}
        failure = next((known[name] for name in sorted(names) if name in known), Failure.BACKEND_ERROR)
    return _refusal(_closer(failure, error), error, status, None)


def of_body(body: bytes) -> Refusal | None:
    """What an error means whose status nobody told; None where the body is none."""
    return of_event("", _object(body))


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that a server wants us to wait: `retry-after-ms`, else `retry-after` as seconds or as a date."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return min(milliseconds / 1000, LONGEST_WAIT)
    given = headers.get("retry-after")
    if (seconds := _number(given)) is not None:
        return min(seconds, LONGEST_WAIT)
    until = _moment(given)
    if until is None:
        return None
    server_now = _moment(headers.get("date"))  # its clock and ours need not agree
    return min(max(0.0, until - (now if server_now is None else server_now)), LONGEST_WAIT)


def _by_status(status: int) -> Failure:
    if status in BY_STATUS:
        return BY_STATUS[status]
    return Failure.BACKEND_ERROR if status >= 500 else Failure.MISCONFIGURED


def _closer(failure: Failure, error: Object | None) -> Failure:
    """Which kind of refusal it is: some of them another model would not make."""
    if failure is not Failure.REJECTED or error is None:
        return failure
    for name in sorted(_names(error)):
        if name in REFUSED:
            return REFUSED[name]
    message = error.get("message")
    is_too_long = isinstance(message, str) and TOO_LONG.search(message[:LONGEST_DETAIL])
    return Failure.TOO_LONG if is_too_long else failure


def _refusal(failure: Failure, error: Object | None, status: int | None, wait: float | None) -> Refusal:
    error = error or {}
    names = [name for name in (error.get("code"), error.get("type")) if isinstance(name, str) and name]
    code = next((name for name in names if not name.isdecimal()), str(status or "error"))
    message, param = error.get("message"), error.get("param")
    detail = DETAILS[failure]
    if failure in FINAL and isinstance(message, str) and message:
        detail = message.encode("utf-8", "replace")[:LONGEST_DETAIL].decode("utf-8", "ignore")
    elif status is not None:
        detail = f"{detail} (status {status})"
    param = param[:LONGEST_NAME] if isinstance(param, str) and param else None
    return Refusal(failure, detail, code[:LONGEST_NAME], param, wait)


def _object(body: bytes) -> Object:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _error_in(body: Object) -> Object | None:
    """The error in any of the shapes in use; None when there is none."""
    error = body.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str) and error:  # TGI, Ollama
        return {"message": error, "type": body.get("error_type")}
    if body.get("object") == "error":  # vLLM before 0.10
        return body
    if type(body.get("code")) is int and isinstance(body.get("message"), str):  # DJL
        return body
    if isinstance(body.get("detail"), str):  # FastAPI
        return {"message": body["detail"]}
    return None


def _names(error: Object | None) -> set[str]:
    return {name for name in ((error or {}).get("code"), (error or {}).get("type")) if isinstance(name, str)}


def _status_in(error: Object) -> int | None:
    code = error.get("code")
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        code = int(code)
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _moment(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError):
        return None
