"""Embedding calls of several jobs as one, and its answer in their parts again: no I/O.

Only calls that differ in nothing but their inputs are joined; what comes upstream is what each client asked for.
"""

import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consumers.backend import Answer, BackendError
from consumers.gathered import Object, compact, is_count
from consumers.upstream import OURS, parsed
from policies.pricing import Basis, Usage
from policies.retries import Failure
from router.job import Job

MOST_BYTES = 8 * 1024 * 1024  # of joined bodies
MOST_TOKENS = 250_000  # by estimate; hosted servers take 300,000 in a call


@dataclass(frozen=True, slots=True)
class Call:
    """One job's call: its inputs as a list, and all else that it asks for. Those whose `rest` is equal go together."""

    job: Job
    inputs: Sequence[object]
    rest: bytes

    @classmethod
    def of(cls, job: Job) -> "Call":
        """Raises `BackendError`."""
        asked = parsed(job.body)
        inputs = inputs_of(asked)
        rest = {name: value for name, value in asked.items() if name != "input" and name not in OURS | {"model"}}
        kind = "text" if isinstance(inputs[0], str) else "tokens"
        return cls(job, inputs, json.dumps([kind, rest], sort_keys=True).encode())


def inputs_of(asked: Object) -> list[object]:
    """The inputs of a call: a text, the tokens of one, or a list of either. Raises `BackendError`."""
    given = asked.get("input")
    if isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], int)):
        return [given]
    if not isinstance(given, list) or not given:
        raise BackendError(Failure.REJECTED, "there is no input", code="invalid_value", param="input")
    return given


def joined(calls: Sequence[Call], most_inputs: int) -> list[list[Call]]:
    """The calls in groups, each of which can be one upstream call, in their order."""
    groups: list[list[Call]] = []
    for call in calls:
        group = next((each for each in groups if _fits(each, call, most_inputs)), None)
        if group is None:
            groups.append([call])
        else:
            group.append(call)
    return groups


def together(calls: Sequence[Call]) -> bytes:
    """The body of one call for all of them."""
    asked = parsed(calls[0].job.body)
    return compact({**asked, "input": [each for call in calls for each in call.inputs]})


def apart(answer: Answer, calls: Sequence[Call]) -> list[Answer]:
    """Each call's part of the answer to all of them; what the shares of the usage add up to is the usage."""
    whole = parsed(answer.body)
    data = whole["data"]
    assert isinstance(data, list)
    tokens = shares(answer.usage.input, [call.job.estimate.input_tokens for call in calls])
    basis = Basis.ALLOCATED if answer.usage.basis is Basis.METERED else answer.usage.basis
    answers, start = [], 0
    for call, share in zip(calls, tokens, strict=True):
        rows = data[start : start + len(call.inputs)]
        start += len(call.inputs)
        part = {**whole, "data": [{**row, "index": index} for index, row in enumerate(rows)], "usage": _usage(share)}
        answers.append(Answer(compact(part), Usage(input=share, basis=basis)))
    return answers


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in parts as large as the weights, to the last one: they add up. None is 0 where there is enough."""
    least = 1 if total >= len(weights) else 0
    rest, sum_of_weights = total - least * len(weights), sum(weights) or len(weights)
    weights = weights if sum(weights) else [1] * len(weights)
    parts = [least + rest * weight // sum_of_weights for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(rest * weights[i] % sum_of_weights), i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def answer(raw: Object, asked: Object, model: str, estimate: Usage) -> Answer:
    """A server's answer as OpenAI's object under our names: every input once, in its order, as the client reads it.

    `estimate` stands in for a usage that the server does not report. Raises `BackendError`.
    """
    wanted = len(inputs_of(asked))
    rows = raw.get("data")
    by_index = {}
    for place, row in enumerate(rows if isinstance(rows, list) else []):
        index = row.get("index", place) if isinstance(row, dict) else None
        if not is_count(index) or index in by_index:
            raise _malformed("an embedding has no place of its own")
        by_index[index] = row.get("embedding")
    if by_index.keys() != set(range(wanted)):
        raise _malformed(f"it has {len(by_index)} embeddings for {wanted} inputs")
    is_base64 = asked.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(by_index[index], is_base64=is_base64)}
        for index in range(wanted)
    ]
    usage = raw.get("usage")
    tokens = usage.get("prompt_tokens", usage.get("total_tokens")) if isinstance(usage, dict) else None
    used = Usage(input=tokens) if is_count(tokens) and tokens else estimate
    return Answer(compact({"object": "list", "data": data, "model": model, "usage": _usage(used.input)}), used)


def _encoded(given: object, *, is_base64: bool) -> object:
    """As the client asked, whatever the server made of it; exact, as both are numbers of 32 bits."""
    try:
        if isinstance(given, list) and is_base64:
            return binascii.b2a_base64(np.asarray(given, dtype="<f4").tobytes(), newline=False).decode()
        if isinstance(given, str) and not is_base64:
            return np.frombuffer(binascii.a2b_base64(given), dtype="<f4").tolist()
    except (ValueError, TypeError, OverflowError):
        raise _malformed("an embedding is no list of numbers") from None
    if not isinstance(given, list | str):
        raise _malformed("an embedding is missing")
    return given


def _fits(group: Sequence[Call], call: Call, most_inputs: int) -> bool:
    members = (*group, call)
    return (
        call.rest == group[0].rest
        and sum(len(each.inputs) for each in members) <= most_inputs
        and sum(len(each.job.body) for each in members) <= MOST_BYTES
        and sum(each.job.estimate.input_tokens for each in members) <= MOST_TOKENS
    )


def _usage(tokens: int) -> Object:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _malformed(why: str) -> BackendError:
    return BackendError(
        Failure.BACKEND_ERROR, f"the backend's answer is no list of embeddings: {why}", code="malformed_answer"
    )
