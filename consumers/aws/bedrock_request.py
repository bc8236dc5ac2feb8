"""A client's body as the arguments of litellm's Bedrock calls: an allow-list, since litellm takes far more. No I/O."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from consumers.aws import bedrock_media
from consumers.backend import BackendError
from consumers.upstream import choices, most_output, parsed, wants_usage
from policies.deployments import Bedrock, Deployment
from policies.retries import Failure
from router.job import Job

# What is passed on as the client gave it.
PASSED = frozenset(
    {
        "messages",
        "temperature",
        "top_p",
        "stop",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "reasoning_effort",
        "thinking",
    }
)
# What no model here has, and whose absence changes no answer that a client may count on.
HINTS = frozenset(
    {
        "user",
        "seed",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "verbosity",
        "frequency_penalty",
        "presence_penalty",
        "prediction",
        "top_logprobs",
    }
)
# What the gateway has dealt with, and what is sent under a name of our own.
OURS = frozenset(
    {
        "model",
        "async",
        "pointsman",
        "metadata",
        "store",
        "service_tier",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "n",
    }
)
FETCHED = re.compile(r"^\s*(https?|ftp|file|s3|gs):", re.I)
METADATA = re.compile(r"[^a-zA-Z0-9\s:_@$#=/+,.-]")


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of the call, and whether the client wants usage in its stream."""

    arguments: Mapping[str, Any]
    wants_usage: bool


def chat(job: Job, deployment: Deployment, place: Bedrock, *, attempt: int) -> Asked:
    """Of a chat. Raises `BackendError`.

    `max_tokens` is always there: without it Bedrock reserves the model's own maximum.
    """
    asked = parsed(job.body)
    if choices(asked) > 1:
        raise _refused("n", "n must be 1: Bedrock gives one answer to a call")
    for name, value in asked.items():
        if name in PASSED or name in OURS or name in HINTS or value is None or value is False:
            continue
        raise _refused(name, f"{name[:100]} is not there with the models of Bedrock")
    sent = {name: asked[name] for name in sorted(PASSED & asked.keys()) if asked[name] is not None}
    messages = sent.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _refused("messages", "messages must be a list with at least one message")
    _refuse_addresses(messages)
    bedrock_media.check(messages)
    if deployment.effort:
        sent.setdefault("reasoning_effort", deployment.effort)
    if not sent.get("tools"):
        sent.pop("tools", None)
        sent.pop("tool_choice", None)
        sent.pop("parallel_tool_calls", None)
    sent |= {
        "model": f"bedrock/converse/{deployment.model}",
        "max_tokens": most_output(asked, deployment.max_output),
        "stream": True,
        "stream_options": {"include_usage": True},
        "requestMetadata": _metadata(job, attempt),
        **_place(place),
    }
    if place.service_tier:
        sent["serviceTier"] = {"type": place.service_tier}
    if place.latency:
        sent["performanceConfig"] = {"latency": place.latency}
    if place.guardrail:
        sent["guardrailConfig"] = {
            "guardrailIdentifier": place.guardrail,
            "guardrailVersion": place.guardrail_version,
            "trace": "disabled",
        }
    return Asked(sent, wants_usage(asked))


def probe(deployment: Deployment, place: Bedrock) -> Mapping[str, Any]:
    """One token, to see whether the model can be called."""
    return {
        "model": f"bedrock/converse/{deployment.model}",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1,
        "stream": True,
        **_place(place),
    }


def embedding_probe(deployment: Deployment, place: Bedrock) -> Mapping[str, Any]:
    """The same for a model that embeds."""
    return {"model": f"bedrock/{deployment.model}", "input": ["Hi"], **_place(place)}


def embedding(job: Job, deployment: Deployment, place: Bedrock, *, attempt: int) -> Mapping[str, Any]:
    """Of texts to embed. Raises `BackendError`."""
    asked = parsed(job.body)
    given = asked.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise _refused("input", "input must be text or a list of texts: Bedrock takes no tokens")
    sent: dict[str, Any] = {"model": f"bedrock/{deployment.model}", "input": texts, **_place(place)}
    sent["extra_headers"] = _headers(job, place, attempt)
    if asked.get("dimensions") is not None:
        sent["dimensions"] = asked["dimensions"]
    return sent


def image(job: Job, deployment: Deployment, place: Bedrock) -> Mapping[str, Any]:
    """Of images to make. Raises `BackendError`."""
    asked = parsed(job.body)
    if not isinstance(asked.get("prompt"), str):
        raise _refused("prompt", "prompt must be text")
    sent: dict[str, Any] = {"model": f"bedrock/{deployment.model}", "prompt": asked["prompt"], **_place(place)}
    return sent | {name: asked[name] for name in ("n", "size", "quality") if asked.get(name) is not None}


def _place(place: Bedrock) -> dict[str, Any]:
    """Where it is sent. Every retry is ours."""
    where: dict[str, Any] = {"aws_region_name": place.region, "num_retries": 0, "max_retries": 0, "drop_params": False}
    if place.profile:
        where["model_id"] = place.profile
    if place.aws_url:
        where["aws_bedrock_runtime_endpoint"] = place.aws_url
    return where


def _headers(job: Job, place: Bedrock, attempt: int) -> dict[str, str]:
    """What InvokeModel has as headers, where Converse has members of its body."""
    headers = {
        "Service-Tier": place.service_tier,
        "PerformanceConfig-Latency": place.latency,
        "GuardrailIdentifier": place.guardrail,
        "GuardrailVersion": place.guardrail and place.guardrail_version,
        "Request-Metadata": json.dumps(_metadata(job, attempt)),
    }
    return {f"X-Amzn-Bedrock-{name}": value for name, value in headers.items() if value}


def _metadata(job: Job, attempt: int) -> dict[str, str]:
    """For the invocation log of AWS."""
    values = {"pointsman_job": job.id, "pointsman_tenant": job.tenant, "pointsman_attempt": str(attempt)}
    return {name: METADATA.sub("_", value)[:256] for name, value in values.items()}


def _refuse_addresses(messages: list[object]) -> None:
    """litellm would fetch what a message names, from wherever: only what came along is taken."""
    for message in messages:
        if any(FETCHED.match(address) for address in bedrock_media.addresses(message)):
            raise _refused("messages", "images and files must come along as data: URLs to models of Bedrock")


def _refused(param: str, detail: str) -> BackendError:
    return BackendError(Failure.REJECTED, detail, code="unsupported_parameter", param=param[:100])
