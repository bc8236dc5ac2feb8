"""What a backend is asked for, out of what the client asked for: no I/O."""

import json
from dataclasses import dataclass
from typing import TypeGuard

from consumers.backend import BackendError
from consumers.gathered import Object, compact
from policies.deployments import Deployment
from policies.retries import Failure

# What the gateway itself has dealt with, or decides anew.
OURS = frozenset({"async", "pointsman", "metadata", "store", "service_tier", "stream", "stream_options"})
MOST_CHOICES = 128  # as OpenAI's
OUTPUT_BOUNDS = ("max_tokens", "max_completion_tokens")


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse)  # made once: making one takes longer than a small body


@dataclass(frozen=True, slots=True)
class Upstream:
    """The JSON to send, how many choices must come back, and whether the client wants usage in its stream."""

    body: bytes
    choices: int
    wants_usage: bool


def upstream(body: bytes, deployment: Deployment) -> Upstream:
    """The client's body for the deployment: its model, a stream, never an unbounded output. Raises `BackendError`."""
    asked = parsed(body)
    sent = {key: value for key, value in asked.items() if key not in OURS}
    sent |= _output_bounds(asked, deployment.max_output)
    if deployment.effort:
        sent.setdefault("reasoning_effort", deployment.effort)
    sent |= {"model": deployment.model, "stream": True, "stream_options": {"include_usage": True}}
    try:
        return Upstream(compact(sent), choices(asked), wants_usage(asked))
    except RecursionError as error:
        raise BackendError(Failure.REJECTED, "the body is nested too deeply", code="invalid_json") from error


def parsed(body: bytes) -> Object:
    """The client's body, and in it `system` for `developer`. The door has checked it; what came another way is refused.

    Raises `BackendError`.
    """
    try:
        asked = DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise BackendError(Failure.REJECTED, "the body is not JSON", code="invalid_json") from error
    if not isinstance(asked, dict):
        raise BackendError(Failure.REJECTED, "the body is not a JSON object", code="invalid_json")
    if isinstance(messages := asked.get("messages"), list):
        asked["messages"] = [_as_system(message) for message in messages]
    return asked


def _as_system(message: object) -> object:
    """Templates of open models do not know a developer: some refuse, others leave out what one says."""
    if isinstance(message, dict) and message.get("role") == "developer":
        return {**message, "role": "system"}
    return message


def choices(asked: Object) -> int:
    """How many choices the client wants. Raises `BackendError`."""
    n = asked.get("n")
    if not _is_positive(n):
        return 1
    if n > MOST_CHOICES:
        raise BackendError(Failure.REJECTED, f"n is at most {MOST_CHOICES}", code="invalid_value", param="n")
    return n


def wants_usage(asked: Object) -> bool:
    """Whether the client wants a chunk with the usage at the end of its stream."""
    options = asked.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def most_output(asked: Object, max_output: int) -> int:
    """How many tokens may come back at most."""
    return min(_output_bounds(asked, max_output).values())


def _output_bounds(asked: Object, max_output: int) -> dict[str, int]:
    """The client's bounds under the names it gave them, none above the deployment's."""
    bounds = {}
    for name in OUTPUT_BOUNDS:
        if asked.get(name) is not None:
            value = asked[name]
            bounds[name] = min(value, max_output) if _is_positive(value) else max_output
    return bounds or {"max_tokens": max_output}


def _is_positive(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
