"""What Bedrock means by an error, by its own code: what is retried, what is slowed down, what stands still. No I/O."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from consumers.backend import BackendError
from policies.pricing import Usage
from policies.retries import Failure


class Pressure(Enum):
    """What an error says about how many calls at once the model takes."""

    NONE = 1.0
    SOME = 0.85
    MUCH = 0.5

    @property
    def left(self) -> float:
        """The part of what was in flight that may be, from now on."""
        return self.value


@dataclass(frozen=True, slots=True)
class Meaning:
    """Of one code. Seconds.

    `tries` is how often such a call is worth making at most. With `pause_s` no job can be done there, whatever it is:
    all wait, and one looks again after so long. `detail` is told to the client where the fault is not its own.
    """

    failure: Failure
    detail: str
    pressure: Pressure = Pressure.NONE
    retry_after: float | None = None
    tries: int | None = None
    pause_s: float | None = None

    @property
    def is_clients(self) -> bool:
        """Whether Bedrock's own words are for the client."""
        return self.failure in (Failure.REJECTED, Failure.TOO_LONG, Failure.FILTERED)


SETTINGS_S = 60.0  # how soon it is looked at again whether a permission or a model is there now
QUOTA_S = 300.0  # the same of a quota that minutes or hours give back
NOT_READY_S = 15.0
LONGEST_DETAIL = 2000  # characters of Bedrock's own message

_THROTTLED = Meaning(Failure.THROTTLED, "Bedrock says that calls come too fast", Pressure.MUCH)
_OUT_OF_QUOTA = Meaning(Failure.THROTTLED, "the account's quota at Bedrock is used up", pause_s=QUOTA_S)
_REJECTED = Meaning(Failure.REJECTED, "Bedrock refuses the request")
_TOO_LONG = Meaning(Failure.TOO_LONG, "the request does not fit into the model's window")
_FILTERED = Meaning(Failure.FILTERED, "Bedrock's filter refuses the request")
_NOT_ALLOWED = Meaning(
    Failure.MISCONFIGURED, "Bedrock does not let us call this model: see the worker's log", pause_s=SETTINGS_S
)
_NOT_AVAILABLE = Meaning(Failure.UNAVAILABLE, "Bedrock is not available", Pressure.SOME)
_FAILED = Meaning(Failure.BACKEND_ERROR, "Bedrock failed")

BY_CODE: Mapping[str, Meaning] = MappingProxyType(
    {
        "ThrottlingException": _THROTTLED,
        "TooManyRequestsException": _THROTTLED,
        "ModelNotReadyException": Meaning(
            Failure.UNAVAILABLE, "the model is not ready yet", retry_after=NOT_READY_S
        ),  # its status is 429, and yet it is no throttling
        "ServiceUnavailableException": _NOT_AVAILABLE,
        "InternalServerException": _FAILED,
        "ModelTimeoutException": Meaning(Failure.TIMED_OUT, "the model took too long", tries=2),
        "ModelErrorException": Meaning(Failure.BACKEND_ERROR, "the model failed", tries=2),
        "ModelStreamErrorException": Meaning(Failure.CUT, "the model's answer broke off", tries=2),
        "ServiceQuotaExceededException": _OUT_OF_QUOTA,
        "ValidationException": _REJECTED,
        "ConflictException": _REJECTED,
        "AccessDeniedException": _NOT_ALLOWED,
        "ResourceNotFoundException": _NOT_ALLOWED,
        "UnrecognizedClientException": _NOT_ALLOWED,
        "InvalidSignatureException": _NOT_ALLOWED,
        "IncompleteSignatureException": _NOT_ALLOWED,
        "MissingAuthenticationTokenException": _NOT_ALLOWED,
        "InvalidClientTokenId": _NOT_ALLOWED,
        "ExpiredTokenException": _NOT_ALLOWED,
        "NoCredentials": _NOT_ALLOWED,  # ours: there is nothing to sign with
    }
)
BY_STATUS: Mapping[int, Meaning] = MappingProxyType(
    {
        400: _REJECTED,
        401: _NOT_ALLOWED,
        403: _NOT_ALLOWED,
        404: _NOT_ALLOWED,
        413: _REJECTED,
        429: _THROTTLED,
        503: _NOT_AVAILABLE,
    }
)
# Bedrock has one code for several things; its words tell them apart.
PER_DAY = re.compile(r"per day|daily", re.I)
WAIT = re.compile(r"please wait|too many (tokens|requests)", re.I)
LONG = re.compile(r"input is too long|too long for|maximum context|context (length|window)|prompt is too long", re.I)
FILTER = re.compile(r"content filter|guardrail|blocked by", re.I)


def meaning(code: str, status: int | None, message: str) -> Meaning:
    """Of an error with that code (empty: it named none), status and message."""
    found = BY_CODE.get(code) or BY_STATUS.get(status or 0, _FAILED)
    if found is _THROTTLED and PER_DAY.search(message):
        return _OUT_OF_QUOTA
    if found is _REJECTED:
        if WAIT.search(message):
            return _THROTTLED
        if LONG.search(message):
            return _TOO_LONG
        if FILTER.search(message):
            return _FILTERED
    return found


def waiting(found: Meaning, retry_after: float | None) -> Meaning:
    """The same, with what the service itself wants us to wait."""
    if retry_after is None:
        return found
    return replace(found, retry_after=max(retry_after, found.retry_after or 0.0))


def as_error(found: Meaning, code: str, message: str = "", usage: Usage | None = None) -> BackendError:
    """What a caller of a backend is told."""
    return BackendError(
        found.failure,
        (found.is_clients and message[:LONGEST_DETAIL]) or found.detail,
        code=code,
        usage=usage,
        retry_after=found.retry_after,
        most_tries=found.tries,
        pause_s=found.pause_s,
    )
