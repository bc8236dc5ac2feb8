"""Embedding calls of several jobs are joined and split: nothing is mixed up, lost or charged twice."""

import base64
import json
import struct
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers import embeddings
from consumers.backend import Answer, BackendError
from consumers.embeddings import Call, inputs_of, shares
from policies.pricing import Basis, Usage
from policies.retries import Failure
from router.job import Estimate, Job
from tests.builders import a_job

INPUTS = st.one_of(
    st.text(min_size=1),
    st.lists(st.text(min_size=1), min_size=1, max_size=5),
    st.lists(st.integers(0, 10**5), min_size=1, max_size=5),
    st.lists(st.lists(st.integers(0, 10**5), min_size=1, max_size=5), min_size=1, max_size=5),
)


def an_embedding_job(given: object, *, tokens: int = 5, **fields: object) -> Job:
    body = json.dumps({"model": "auto", "input": given, **fields}).encode()
    return replace(a_job(), endpoint="/v1/embeddings", body=body, estimate=Estimate(tokens, 0, Decimal(0)))


def served(inputs: list[Any]) -> dict[str, object]:
    """What a server answers, in any order: an embedding that tells its input."""
    rows = [{"index": i, "embedding": [float(len(each)), float(i)]} for i, each in enumerate(inputs)]
    return {"data": rows[::-1], "usage": {"prompt_tokens": 7 * len(inputs)}}


@given(st.lists(INPUTS, min_size=1, max_size=6), st.integers(1, 12))
def test_every_job_gets_the_embeddings_of_its_own_inputs_and_the_shares_add_up(given: list[Any], most: int) -> None:
    calls = [Call.of(an_embedding_job(each, tokens=1 + len(each))) for each in given]

    groups = embeddings.joined(calls, most)

    assert sorted(id(call) for group in groups for call in group) == sorted(map(id, calls))
    for group in groups:
        asked = json.loads(embeddings.together(group))
        assert len(group) == 1 or len(asked["input"]) <= most
        answer = embeddings.answer(served(asked["input"]), asked, "ours", Usage())
        parts = embeddings.apart(answer, group)
        assert sum(part.usage.input for part in parts) == answer.usage.input
        for call, part in zip(group, parts, strict=True):
            body = json.loads(part.body)
            assert [row["index"] for row in body["data"]] == list(range(len(call.inputs)))
            assert [row["embedding"][0] for row in body["data"]] == [float(len(each)) for each in call.inputs]  # type: ignore[arg-type]
            assert body["model"] == "ours"
            assert body["usage"]["prompt_tokens"] == part.usage.input > 0
            assert part.usage.basis is Basis.ALLOCATED


@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**5), min_size=1, max_size=50))
def test_shares_add_up_and_follow_the_weights(total: int, weights: list[int]) -> None:
    parts = shares(total, weights)

    assert sum(parts) == total
    assert min(parts) >= (1 if total >= len(weights) else 0)
    ordered = sorted(zip(weights, parts, strict=True))
    assert all(one[1] <= other[1] + 1 for one, other in pairwise(ordered))


@pytest.mark.parametrize(
    "fields",
    [{"dimensions": 64}, {"encoding_format": "base64"}, {"user": "somebody"}, {"truncate": True}],
)
def test_calls_that_ask_for_something_else_are_not_joined(fields: dict[str, Any]) -> None:
    plain, other = Call.of(an_embedding_job("a")), Call.of(an_embedding_job("b", **fields))

    assert embeddings.joined([plain, other, plain, other], 100) == [[plain, plain], [other, other]]


def test_texts_and_tokens_are_not_joined_nor_is_what_only_the_gateway_reads_a_difference() -> None:
    text, tokens = Call.of(an_embedding_job("a")), Call.of(an_embedding_job([1, 2]))
    left = Call.of(an_embedding_job("b", metadata={"a": "b"}, service_tier="flex", **{"async": True}))

    assert embeddings.joined([text, tokens, left], 100) == [[text, left], [tokens]]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_base64_and_floats_are_the_same_numbers_whichever_the_server_sends(numbers: list[float]) -> None:
    packed = base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()

    as_base64 = embeddings.answer(
        {"data": [{"embedding": numbers}]}, {"input": "a", "encoding_format": "base64"}, "m", Usage(input=1)
    )
    as_floats = embeddings.answer({"data": [{"embedding": packed}]}, {"input": "a"}, "m", Usage(input=1))

    assert json.loads(as_base64.body)["data"][0]["embedding"] == packed
    assert json.loads(as_floats.body)["data"][0]["embedding"] == numbers


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"data": None},
        {"data": [{"embedding": [1.0]}]},
        {"data": [{"embedding": [1.0]}] * 3},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 2, "embedding": [1.0]}]},
        {"data": [{"index": -1, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
        {"data": ["a", "b"]},
        {"data": [{"embedding": None}, {"embedding": None}]},
        {"data": [{"embedding": "not base64!"}, {"embedding": "AAA"}]},
    ],
)
def test_an_answer_that_could_be_anybodys_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(BackendError) as raised:
        embeddings.answer(raw, {"input": ["a", "b"]}, "m", Usage())

    assert raised.value.failure is Failure.BACKEND_ERROR


@pytest.mark.parametrize("given", [None, [], {}, 5])
def test_a_call_without_input_is_the_clients_fault(given: object) -> None:
    with pytest.raises(BackendError) as raised:
        inputs_of({"input": given})

    assert (raised.value.failure, raised.value.param) == (Failure.REJECTED, "input")


def test_without_a_reported_usage_the_estimate_stands_in_and_says_so() -> None:
    estimate = Usage(input=9, basis=Basis.ESTIMATED)

    answer = embeddings.answer({"data": [{"embedding": [1.0]}]}, {"input": "a"}, "m", estimate)

    assert answer == Answer(answer.body, estimate)
