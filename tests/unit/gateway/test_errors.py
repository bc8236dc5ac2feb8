"""What clients are told of our errors."""

import pytest
from starlette.exceptions import HTTPException

from gateway.accept import IdempotencyKeyReusedError, NoRouteError, OverQuotaError, QueueFullError
from gateway.auth import InvalidKeyError
from gateway.body import InvalidRequestError
from gateway.errors import (
    ApiError,
    JobFailedError,
    LostSightError,
    UnfinishedError,
    UnknownJobError,
    UnknownModelError,
    WaitedTooLongError,
    as_api_error,
)
from gateway.reading import CompressedError, OverloadedError, SlowBodyError, TooLargeError, WrongContentTypeError
from policies.quota import Room, Rooms
from policies.scripts import BoardUnavailableError
from router.choose import NoRoute
from router.job import JobState
from router.log import LogUnavailableError, TopicMissingError
from router.payloads import PayloadLostError, PayloadUnavailableError


def told(error: Exception) -> ApiError:
    return as_api_error(error, request_id="req_1")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequestError("Bad.", "n", "invalid_value"), 400, "invalid_value"),
        (NoRouteError(NoRoute("Nothing takes audio.", "no_route", "messages")), 400, "no_route"),
        (NoRouteError(NoRoute("No such model.", "model_not_found", "model")), 404, "model_not_found"),
        (InvalidKeyError("No key."), 401, "invalid_api_key"),
        (UnknownJobError("job_1"), 404, "not_found"),
        (UnknownModelError("gpt"), 404, "model_not_found"),
        (HTTPException(404), 404, "not_found"),
        (HTTPException(405, headers={"Allow": "GET"}), 405, "method_not_allowed"),
        (SlowBodyError(), 408, "request_timeout"),
        (UnfinishedError("job_1"), 409, "job_unfinished"),
        (TooLargeError(1024), 413, "request_too_large"),
        (CompressedError(), 415, "unsupported_media_type"),
        (WrongContentTypeError(), 415, "unsupported_media_type"),
        (IdempotencyKeyReusedError(), 422, "idempotency_key_reused"),
        (QueueFullError(), 429, "queue_full"),
        (OverQuotaError("tokens_per_minute", "tenant acme", 1.5, Rooms()), 429, "rate_limit_exceeded"),
        (OverQuotaError("usd_per_month", "tenant acme", None, Rooms()), 429, "insufficient_quota"),
        (OverloadedError(), 503, "overloaded"),
        (LogUnavailableError(), 503, "log_unavailable"),
        (TopicMissingError(), 503, "log_unavailable"),
        (BoardUnavailableError(), 503, "board_unavailable"),
        (LostSightError("1"), 503, "board_unavailable"),
        (PayloadUnavailableError(), 503, "payloads_unavailable"),
        (PayloadLostError(), 500, "result_lost"),
        (WaitedTooLongError("1", kept=True), 504, "timeout"),
    ],
)
def test_each_error_has_its_status_and_code(error: Exception, status: int, code: str) -> None:
    answer = told(error)

    assert (answer.status, answer.code) == (status, code)
    assert answer.body == {
        "error": {"message": answer.message, "type": answer.type, "param": answer.param, "code": code}
    }
    assert answer.message


def test_what_nobody_expected_says_nothing_but_the_request_id() -> None:
    answer = told(KeyError("the patient has"))

    assert answer.status == 500
    assert "req_1" in answer.message
    assert "patient" not in answer.message


def test_the_wait_is_exact_and_agrees_with_the_headers() -> None:
    rooms = Rooms(tokens=Room(limit=1000, remaining=12, full_in_s=59.3))

    answer = told(OverQuotaError("tokens_per_minute", "tenant acme", 1.25, rooms))

    assert answer.type == "tokens"
    assert answer.all_headers == {
        "x-should-retry": "true",
        "retry-after": "2",
        "retry-after-ms": "1250",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "12",
        "x-ratelimit-reset-tokens": "59.300s",
    }


@pytest.mark.parametrize(
    ("limit", "type"),
    [
        ("requests_per_minute", "requests"),
        ("tokens_per_minute", "tokens"),
        ("tokens_per_day", "tokens"),
        ("concurrency", "rate_limit_error"),
    ],
)
def test_a_refusal_by_a_limit_is_of_its_type(limit: str, type: str) -> None:
    assert told(OverQuotaError(limit, "tenant acme", 1.0, Rooms())).type == type


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("Bad."),
        OverQuotaError("usd_per_month", "tenant acme", None, Rooms()),
        IdempotencyKeyReusedError(),
        WaitedTooLongError("1", kept=False),
        LostSightError("1"),
        JobFailedError(JobState.FAILED, {"code": "throttled"}),
        RuntimeError("?"),
    ],
)
def test_an_sdk_is_told_not_to_try_again_where_it_would_not_help_or_cost_twice(error: Exception) -> None:
    assert told(error).all_headers == {"x-should-retry": "false"}


@pytest.mark.parametrize(
    ("state", "error", "status", "code"),
    [
        (JobState.FAILED, {"code": "rejected", "type": "invalid_request_error"}, 400, "rejected"),
        (JobState.FAILED, {"code": "content_filter", "type": "invalid_request_error"}, 400, "content_filter"),
        (JobState.FAILED, {"code": "throttled", "type": "upstream_error"}, 503, "throttled"),
        (JobState.FAILED, {"code": "timed_out", "type": "upstream_error"}, 504, "timed_out"),
        (JobState.FAILED, {"code": "odd", "type": "upstream_error"}, 502, "odd"),
        (JobState.FAILED, {"code": "too_many_deliveries", "type": "server_error"}, 500, "too_many_deliveries"),
        (JobState.FAILED, None, 502, None),
        (JobState.CANCELLED, None, 409, "job_cancelled"),
        (JobState.EXPIRED, None, 504, "job_expired"),
        (JobState.REJECTED, None, 503, "log_unavailable"),
    ],
)
def test_a_job_that_failed_is_shown_as_its_error(
    state: JobState, error: dict[str, object] | None, status: int, code: str | None
) -> None:
    answer = told(JobFailedError(state, error))

    assert (answer.status, answer.code) == (status, code)
