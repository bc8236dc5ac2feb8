"""Why a job has no answer, as its client is told: errors of OpenAI's shape."""

from collections.abc import Mapping

from consumers.backend import BackendError
from policies.retries import FINAL, Failure

Problem = dict[str, object]


def ours(code: str, message: str) -> Problem:
    """The gateway could not do it."""
    return {"message": message, "type": "server_error", "code": code, "param": None}


def too_late() -> Problem:
    """It took too long."""
    return ours("expired", "The deadline passed before the job was finished.")


def of_backend(error: BackendError, reason: str) -> Problem:
    """The backend's own words. `reason` stands where it has no code."""
    return {
        "message": error.detail,
        "type": "invalid_request_error" if error.failure in FINAL else "upstream_error",
        "code": error.code or reason,
        "param": error.param,
    }


def left_alone(deployment: str) -> Problem:
    """It was not called, as the ones before failed there."""
    message = (
        f"The deployment {deployment} fails, and is left alone for some seconds. Try again;"
        " if it goes on, its operator finds the reason in the worker's log."
    )
    return {"message": message, "type": "upstream_error", "code": str(Failure.UNAVAILABLE), "param": None}


def code_of(problem: Mapping[str, object] | None) -> str | None:
    """Its code, if there is a problem."""
    return None if problem is None else str(problem["code"])
