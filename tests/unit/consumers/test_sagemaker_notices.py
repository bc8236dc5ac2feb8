"""What SageMaker's messages say, in every form in which they have been seen, and in none."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.aws.sagemaker_notices import LONGEST_REASON, CallName, Ending, Told, is_canary, mark, read

JOB = "01KB7M4Q3M7C9V2W6T8X0Y1Z2A"
NAME = CallName.of("acme", JOB, 2)


def a_message(**changes: Any) -> dict[str, Any]:
    return {
        "awsRegion": "us-east-1",
        "eventTime": "2026-11-29T10:00:12.500Z",
        "receivedTime": "2026-11-29T10:00:00Z",
        "invocationStatus": "Completed",
        "requestParameters": {"endpointName": "e", "contentType": "application/json"},
        "responseParameters": {"contentType": "application/json", "outputLocation": "s3://b/out/k"},
        "inferenceId": str(NAME),
        "eventName": "InferenceResult",
        **changes,
    }


def told(**changes: Any) -> Told:
    got = read(json.dumps(a_message(**changes)))
    assert got is not None
    return got


def test_a_completed_call_says_where_its_result_lies_and_how_long_it_took() -> None:
    assert told() == Told(NAME, "e", Ending.COMPLETED, "s3://b/out/k", "", "", 12.5, None, 1795946412.5)


def test_the_envelope_of_a_topic_that_does_not_deliver_raw_is_opened() -> None:
    envelope = {"Type": "Notification", "TopicArn": "arn:aws:sns:x", "Message": json.dumps(a_message())}

    assert read(json.dumps(envelope)) == told()


@pytest.mark.parametrize(
    "place", [{"responseParameters": {"failureLocation": "s3://b/f"}}, {"failureLocation": "s3://b/f"}]
)
def test_a_failure_s_place_is_found_nested_and_at_the_top(place: dict[str, Any]) -> None:
    got = told(invocationStatus="Failed", failureReason="ClientError: no", **{"responseParameters": None, **place})

    assert (got.ending, got.failure_at, got.reason) == (Ending.FAILED, "s3://b/f", "ClientError: no")


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        ("Completed", Ending.COMPLETED),
        ("COMPLETED", Ending.COMPLETED),
        ("Expired", Ending.EXPIRED),
        ("Failed", Ending.FAILED),
        ("Exploded", Ending.FAILED),
        (None, Ending.FAILED),
        (7, Ending.FAILED),
    ],
)
def test_an_unknown_status_is_a_failure(status: Any, ending: Ending) -> None:
    assert told(invocationStatus=status).ending is ending


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"content": base64.b64encode(b'{"a":1}').decode(), "message": "", "encoding": "BASE64"}, b'{"a":1}'),
        ({"content": '{"a":1}', "encoding": "UTF8"}, b'{"a":1}'),
        ({"content": "no base64!", "encoding": "BASE64"}, None),
        ({"content": 3}, None),
        ("text", None),
        (None, None),
    ],
)
def test_an_answer_in_the_message_is_taken_where_it_can_be_read(body: Any, answer: bytes | None) -> None:
    assert told(responseBody=body).answer == answer


@pytest.mark.parametrize(
    ("received", "event", "waited"),
    [
        ("2026-11-29T10:00:00Z", "2026-11-29T11:00:00+01:00", 0.0),
        ("2026-11-29T10:00:00", "2026-11-29T10:00:01", 1.0),
        ("2026-11-29T10:00:02Z", "2026-11-29T10:00:01Z", 0.0),
        ("yesterday", "2026-11-29T10:00:01Z", None),
        (None, 5, None),
    ],
)
def test_moments_are_read_in_any_zone_and_left_out_where_they_are_none(
    received: Any, event: Any, waited: float | None
) -> None:
    assert told(receivedTime=received, eventTime=event).waited_s == waited


def test_a_reason_is_bounded() -> None:
    assert len(told(invocationStatus="Failed", failureReason="x" * 10_000).reason) == LONGEST_REASON


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", '{"Message": "{"}', '{"inferenceId": "somebody-else-s"}', "[" * 100_000, '{"Message": 3}'],
)
def test_what_is_about_no_call_of_ours_is_none(text: str) -> None:
    assert read(text) is None


def test_the_message_of_a_check_is_known_in_both_forms() -> None:
    inner = json.dumps({"pointsmanCheck": "00"})

    assert is_canary(inner)
    assert is_canary(json.dumps({"Type": "Notification", "Message": inner}))
    assert not is_canary(json.dumps(a_message()))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(text=st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    read(text)
    is_canary(text)


@given(changes=st.dictionaries(st.sampled_from([*a_message(), "responseBody", "failureLocation", "Message"]), VALUES))
def test_no_field_of_another_type_makes_it_raise(changes: dict[str, Any]) -> None:
    got = read(json.dumps(a_message(**changes)))

    assert got is None or got.call == NAME or "inferenceId" in changes


# Names


@given(tenant=st.text(min_size=1, max_size=40), attempt=st.integers(1, 9999))
def test_a_name_is_read_back_and_fits_what_the_service_takes(tenant: str, attempt: int) -> None:
    name = CallName.of(tenant, JOB, attempt)

    assert CallName.parse(str(name)) == name
    assert len(str(name)) <= 64 and str(name).isascii()
    assert len(f"{JOB}-{attempt}") <= 32  # of the file
    assert name.tenant_mark == mark(tenant)


@pytest.mark.parametrize("text", ["", JOB, f"{JOB}.1", f"{JOB}.1.zzzzzzzz", f"{JOB}.12345.00000000", f"x{NAME}"])
def test_another_s_name_is_not_ours(text: str) -> None:
    assert CallName.parse(text) is None
