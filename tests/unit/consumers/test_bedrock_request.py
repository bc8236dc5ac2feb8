"""What of a client's body reaches litellm: what is listed, and nothing that would steer litellm itself."""

import json
from dataclasses import replace
from typing import Any

import pytest

from consumers.aws import bedrock_request
from consumers.backend import BackendError
from policies.deployments import Bedrock, Deployment, Tier
from policies.retries import Failure
from tests.builders import a_job

MESSAGES = [{"role": "user", "content": "Hello"}]
PLACE = Bedrock(region="eu-central-1")
MODEL = Deployment("light", "bedrock", "anthropic.claude-3-haiku-20240307-v1:0", Tier.LIGHT, max_output=500)


def asked(place: Bedrock = PLACE, /, **fields: Any) -> dict[str, Any]:
    job = replace(a_job(), body=json.dumps({"model": "auto", "messages": MESSAGES, **fields}).encode())
    return dict(bedrock_request.chat(job, MODEL, place, attempt=2).arguments)


@pytest.mark.parametrize(
    ("fields", "most"),
    [({}, 500), ({"max_tokens": 7}, 7), ({"max_completion_tokens": 7}, 7), ({"max_tokens": 10**9}, 500)],
)
def test_output_is_always_bounded_under_one_name(fields: dict[str, Any], most: int) -> None:
    sent = asked(**fields)

    assert sent["max_tokens"] == most
    assert "max_completion_tokens" not in sent


def test_nothing_is_retried_and_everything_is_streamed() -> None:
    sent = asked()

    assert (sent["num_retries"], sent["max_retries"], sent["stream"]) == (0, 0, True)


@pytest.mark.parametrize(
    "name",
    [
        "api_base",
        "api_key",
        "aws_access_key_id",
        "aws_bedrock_runtime_endpoint",
        "aws_role_name",
        "base_url",
        "client",
        "extra_headers",
        "fallbacks",
        "mock_response",
        "model_id",
        "functions",
        "logprobs",
        "audio",
    ],
)
def test_what_is_not_listed_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(BackendError) as raised:
        asked(**{name: "http://evil.example"})

    assert (raised.value.failure, raised.value.param) == (Failure.REJECTED, name)


@pytest.mark.parametrize("name", ["user", "seed", "safety_identifier", "metadata", "store", "service_tier"])
def test_hints_and_what_is_ours_are_left_out(name: str) -> None:
    assert name not in asked(**{name: "x"})


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
        {"type": "image_url", "image_url": "https://example.com/a.png"},
        {"type": "file", "file": {"file_id": "https://example.com/a.pdf"}},
        {"type": "file", "file": {"file_data": " HTTP://example.com/a.pdf"}},
        {"type": "video_url", "video_url": {"url": "s3://bucket/key"}},
    ],
)
def test_nothing_is_fetched_for_a_client(part: dict[str, object]) -> None:
    with pytest.raises(BackendError) as raised:
        asked(messages=[{"role": "user", "content": [part]}])

    assert raised.value.failure is Failure.REJECTED
    assert "data: URLs" in raised.value.detail


def test_words_that_look_like_an_address_are_words() -> None:
    asked(messages=[{"role": "user", "content": [{"type": "text", "text": "https://example.com"}]}])


def test_what_the_deployment_says_is_asked_for() -> None:
    place = Bedrock(
        region="eu-central-1",
        profile="arn:aws:bedrock:eu-central-1:123456789012:application-inference-profile/abc",
        service_tier="flex",
        latency="optimized",
        guardrail="g1",
        guardrail_version="3",
    )

    sent = asked(place)

    assert sent["model"] == "bedrock/converse/anthropic.claude-3-haiku-20240307-v1:0"
    assert sent["model_id"] == place.profile
    assert sent["serviceTier"] == {"type": "flex"}
    assert sent["performanceConfig"] == {"latency": "optimized"}
    assert sent["guardrailConfig"] == {"guardrailIdentifier": "g1", "guardrailVersion": "3", "trace": "disabled"}
    assert sent["aws_region_name"] == "eu-central-1"


def test_the_invocation_log_says_whose_call_it_was_in_its_own_letters() -> None:
    job = replace(a_job(), tenant="acme{}", body=json.dumps({"messages": MESSAGES}).encode())

    sent = bedrock_request.chat(job, MODEL, PLACE, attempt=2).arguments

    metadata = {"pointsman_job": job.id, "pointsman_tenant": "acme__", "pointsman_attempt": "2"}
    assert sent["requestMetadata"] == metadata


@pytest.mark.parametrize("given", ["", [], [1, 2], [[1]], None, [""]])
def test_only_texts_are_embedded(given: object) -> None:
    job = replace(a_job(), body=json.dumps({"input": given}).encode())

    with pytest.raises(BackendError) as raised:
        bedrock_request.embedding(job, MODEL, PLACE, attempt=1)

    assert raised.value.param == "input"
