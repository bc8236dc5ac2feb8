"""What a server's refusal means."""

import json
from collections.abc import Mapping

import pytest

from consumers.refusals import LONGEST_DETAIL, Refusal, of_event, of_response, retry_after
from policies.retries import Failure

NOW = 1_796_000_000.0


def body(**error: object) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (202, Failure.MISCONFIGURED),
        (307, Failure.MISCONFIGURED),
        (400, Failure.REJECTED),
        (401, Failure.MISCONFIGURED),
        (402, Failure.MISCONFIGURED),
        (403, Failure.MISCONFIGURED),
        (404, Failure.MISCONFIGURED),
        (405, Failure.MISCONFIGURED),
        (408, Failure.TIMED_OUT),
        (413, Failure.REJECTED),
        (422, Failure.REJECTED),
        (429, Failure.THROTTLED),
        (500, Failure.BACKEND_ERROR),
        (502, Failure.BACKEND_ERROR),
        (503, Failure.UNAVAILABLE),
        (504, Failure.BACKEND_ERROR),
        (599, Failure.BACKEND_ERROR),
    ],
)
@pytest.mark.parametrize("content", [b"", b"\xff<html>", b"[" * 100_000, b'{"error": 5}', body(message="m")])
def test_a_status_has_one_meaning_whatever_the_body(status: int, content: bytes, failure: Failure) -> None:
    refusal = of_response(status, {}, content, NOW)

    assert refusal.failure is failure
    assert refusal.detail
    assert refusal.code


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            body(message="too long", type="invalid_request_error", param="messages", code="context_length_exceeded"),
            Refusal(Failure.TOO_LONG, "too long", "context_length_exceeded", "messages"),
        ),
        (
            body(message="too long", type="exceed_context_size_error", code=400, n_ctx=512),
            Refusal(Failure.TOO_LONG, "too long", "exceed_context_size_error"),
        ),
        (
            b'{"object": "error", "message": "bad", "type": "BadRequestError", "param": null, "code": 400}',
            Refusal(Failure.REJECTED, "bad", "BadRequestError"),
        ),
        (b'{"error": "bad", "error_type": "validation"}', Refusal(Failure.REJECTED, "bad", "validation")),
        (
            body(message="This model's maximum context length is 8192 tokens.", type="BadRequestError", code=400),
            Refusal(Failure.TOO_LONG, "This model's maximum context length is 8192 tokens.", "BadRequestError"),
        ),
        (
            body(message="hate: high", type="invalid_request_error", code="content_filter"),
            Refusal(Failure.FILTERED, "hate: high", "content_filter"),
        ),
        (b'{"detail": "bad"}', Refusal(Failure.REJECTED, "bad", "400")),
        (
            b'{"detail": [{"input": "secret"}]}',
            Refusal(Failure.REJECTED, "the backend refused the request (status 400)", "400"),
        ),
    ],
)
def test_a_rejection_keeps_the_backends_own_words(content: bytes, expected: Refusal) -> None:
    assert of_response(400, {}, content, NOW) == expected


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_other_refusals_do_not_repeat_what_may_hold_a_key(status: int) -> None:
    refusal = of_response(status, {}, body(message="Incorrect API key provided: sk-1234", code="x"), NOW)

    assert "sk-1234" not in repr(refusal)


def test_an_empty_purse_is_no_throttling() -> None:
    assert of_response(429, {}, body(code="insufficient_quota"), NOW).failure is Failure.MISCONFIGURED


def test_a_refusal_is_small_whatever_was_sent() -> None:
    refusal = of_response(400, {}, body(message="é" * 10_000, code="c" * 10_000, param="p" * 10_000), NOW)

    assert len(refusal.detail.encode()) <= LONGEST_DETAIL
    assert len(refusal.code) <= 100
    assert len(refusal.param or "") <= 100


@pytest.mark.parametrize(
    ("name", "chunk", "failure"),
    [
        ("", {"choices": []}, None),
        ("", {"error": None, "choices": []}, None),
        ("", {"error": {"code": 400}}, Failure.REJECTED),
        ("", {"error": {"code": "429"}}, Failure.THROTTLED),
        ("", {"error": {"code": 503}}, Failure.UNAVAILABLE),
        ("", {"error": {"code": 500}}, Failure.BACKEND_ERROR),
        ("", {"error": {"code": "context_length_exceeded", "type": "server_error"}}, Failure.TOO_LONG),
        ("", {"error": {"code": None, "type": "exceed_context_size_error"}}, Failure.TOO_LONG),
        ("", {"error": {"code": "content_filter", "type": "invalid_request_error"}}, Failure.FILTERED),
        ("", {"error": {"code": "insufficient_quota"}}, Failure.MISCONFIGURED),
        ("", {"error": {"message": "no idea"}}, Failure.BACKEND_ERROR),
        ("", {"error": "overloaded", "error_type": "overloaded"}, Failure.THROTTLED),
        ("", {"object": "error", "message": "bad", "code": 400}, Failure.REJECTED),
        ("error", {"message": "bad", "code": 400}, Failure.REJECTED),
        ("error", {"error": {"code": 429}}, Failure.THROTTLED),
    ],
)
def test_an_error_inside_a_stream_is_known_by_its_code(
    name: str, chunk: dict[str, object], failure: Failure | None
) -> None:
    refusal = of_event(name, chunk)

    assert (refusal.failure if refusal else None) is failure


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "1e30"}, 86_400.0),
        ({"retry-after": "Sun, 29 Nov 2026 15:00:30 GMT", "date": "Sun, 29 Nov 2026 15:00:00 GMT"}, 30.0),
        ({"retry-after": "Sun, 29 Nov 2026 14:00:00 GMT", "date": "Sun, 29 Nov 2026 15:00:00 GMT"}, 0.0),
        ({"retry-after": "Sun, 29 Nov 2076 15:00:00 GMT"}, 86_400.0),
    ],
)
def test_the_wait_that_a_server_wants(headers: Mapping[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


def test_a_date_alone_is_measured_by_our_clock() -> None:
    assert retry_after({"retry-after": "Mon, 30 Nov 2026 00:53:50 GMT"}, 1_796_000_000.0) == 30.0
