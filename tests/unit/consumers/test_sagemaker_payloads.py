"""What containers are sent and what their answers mean, in each format."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.aws.sagemaker_payloads import answer, refused, request
from consumers.backend import Answer, BackendError
from policies.deployments import PayloadFormat, SageMaker
from policies.pricing import Basis
from policies.retries import Failure
from tests.builders import a_deployment, a_job

DEPLOYMENT = a_deployment(max_output=100)
FORMATS = list(PayloadFormat)


def sent(payload: str, served_model: str = "", **body: Any) -> dict[str, Any]:
    asked = {"model": "auto", "messages": [{"role": "user", "content": "Hi"}], "stream": True, **body}
    place = SageMaker("us-east-1", payload=PayloadFormat(payload), served_model=served_model)
    made = json.loads(request(a_job(body=json.dumps(asked).encode()), DEPLOYMENT, place))
    assert isinstance(made, dict)
    return made


def answered(payload: str, given: Any) -> Answer:
    data = given if isinstance(given, bytes) else json.dumps(given).encode()
    return answer(data, a_job(), DEPLOYMENT, SageMaker("us-east-1", payload=PayloadFormat(payload)), created=7)


def said(got: Answer) -> dict[str, Any]:
    whole = json.loads(got.body)
    assert isinstance(whole, dict)
    return whole


def test_openai_is_asked_without_a_stream_and_never_without_a_bound() -> None:
    assert sent("openai", temperature=0.5) == {
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.5,
        "max_tokens": 100,
    }
    assert sent("openai", max_completion_tokens=5_000)["max_completion_tokens"] == 100
    assert sent("openai", served_model="llama")["model"] == "llama"


def test_openai_s_own_usage_is_restored_as_metered() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}

    got = answered("openai", {"choices": [{"message": {"content": "Hey"}}], "usage": usage, "created": 9})

    assert (got.usage.input, got.usage.cache_read, got.usage.output, got.usage.basis) == (2, 3, 2, Basis.METERED)
    assert said(got)["created"] == 9 and said(got)["model"] == "small"
    assert said(got)["usage"]["prompt_tokens"] == 5


def test_openai_without_usage_is_counted_and_marked() -> None:
    got = answered("openai", {"choices": [{"message": {"content": "Hey"}}]})

    assert (got.usage.input, got.usage.output, got.usage.basis) == (10, 1, Basis.ESTIMATED)
    assert said(got)["created"] == 7


def test_numbers_that_are_none_do_not_spoil_an_answer() -> None:
    got = answered("openai", b'{"choices": [{"message": {"content": "x"}, "score": {"a": NaN}}]}')

    assert said(got)["choices"][0]["score"] == {"a": None}


def test_openai_s_tool_calls_come_through() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    got = answered("openai", {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]})

    assert said(got)["choices"][0]["message"]["tool_calls"] == [call]
    assert said(got)["choices"][0]["finish_reason"] == "tool_calls"


def test_tgi_is_sent_one_text_and_its_own_parameters() -> None:
    made = sent("tgi", temperature=0.5, top_p=0.9, stop="end", max_tokens=20, seed=1)

    assert made == {
        "inputs": "Hi",
        "parameters": {
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 1,
            "stop": ["end"],
            "max_new_tokens": 20,
            "details": True,
            "return_full_text": False,
        },
    }


def test_tgi_is_not_sent_what_it_refuses_and_what_would_change_nothing() -> None:
    assert not {"temperature", "top_p"} & sent("tgi", temperature=0, top_p=1)["parameters"].keys()


def test_tgi_gets_a_conversation_as_turns() -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]},
    ]

    assert sent("tgi", messages=turns)["inputs"] == "system: Be brief.\nuser: Hi\nthere\nassistant:"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_tgi_refuses_what_it_would_leave_out_in_silence(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(BackendError) as caught:
        sent("tgi", **asked)

    assert (caught.value.failure, caught.value.param) == (Failure.REJECTED, param)


def test_tgi_refuses_pictures() -> None:
    with pytest.raises(BackendError) as caught:
        sent("tgi", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}])

    assert caught.value.failure is Failure.REJECTED


def test_tgi_s_details_are_the_usage() -> None:
    details = {"generated_tokens": 2, "prefill": [{"id": 1}, {"id": 2}, {"id": 3}], "finish_reason": "length"}

    got = answered("tgi", [{"generated_text": "Hey you", "details": details}])

    assert (got.usage.input, got.usage.output, got.usage.basis) == (3, 2, Basis.METERED)
    assert said(got)["choices"][0] | {"logprobs": None} == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hey you", "refusal": None},
        "logprobs": None,
        "finish_reason": "length",
    }


def test_tgi_that_counts_only_its_output_is_believed_in_that_and_marked_as_estimated() -> None:
    got = answered("tgi", {"generated_text": "Hey", "details": {"generated_tokens": 7, "prefill": []}})

    assert (got.usage.input, got.usage.output, got.usage.basis) == (10, 7, Basis.ESTIMATED)


def test_tgi_without_details_is_counted_and_marked() -> None:
    got = answered("tgi", {"generated_text": "Hey"})

    assert (got.usage.input, got.usage.output, got.usage.basis) == (10, 1, Basis.ESTIMATED)
    assert said(got)["choices"][0]["finish_reason"] == "stop"


def test_raw_sends_the_body_as_it_is_and_takes_the_answer_as_its_text() -> None:
    assert sent("raw", inputs={"a": 1}, metadata={"b": "c"}) == {
        "messages": [{"role": "user", "content": "Hi"}],
        "inputs": {"a": 1},
    }

    got = answered("raw", "grüezi".encode())

    assert said(got)["choices"][0]["message"]["content"] == "grüezi"
    assert got.usage.basis is Basis.ESTIMATED


@pytest.mark.parametrize(
    ("payload", "data"),
    [
        ("openai", b""),
        ("openai", b"[]"),
        ("openai", b'{"choices": []}'),
        ("openai", b'{"error": "out of memory"}'),
        ("tgi", b"[]"),
        ("tgi", b'{"generated_text": 3}'),
        ("raw", b"\xff"),
        ("openai", b"[" * 100_000),
    ],
)
def test_an_answer_in_another_format_is_a_fault_of_the_backend_that_says_the_format(payload: str, data: bytes) -> None:
    with pytest.raises(BackendError) as caught:
        answered(payload, data)

    assert caught.value.failure is Failure.BACKEND_ERROR
    assert payload in caught.value.detail


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "usage", "details", "generated_text", "prefill", "generated_tokens"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(payload=st.sampled_from(FORMATS), data=st.binary(max_size=200) | JSON_VALUES)
def test_whatever_a_container_answers_it_is_an_answer_or_a_named_failure(payload: PayloadFormat, data: Any) -> None:
    try:
        got = answered(payload, data)
    except BackendError as error:
        assert error.failure in (Failure.BACKEND_ERROR, Failure.CUT)
    else:
        assert json.loads(got.body)["object"] == "chat.completion"
        assert got.usage.output >= 0


@given(payload=st.sampled_from(FORMATS), body=st.binary(max_size=100) | JSON_VALUES)
def test_whatever_a_client_asks_it_is_sent_as_json_or_refused(payload: PayloadFormat, body: Any) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        made = request(a_job(body=data), DEPLOYMENT, SageMaker("us-east-1", payload=payload))
    except BackendError as error:
        assert error.failure is Failure.REJECTED
    else:
        assert isinstance(json.loads(made), dict)


VLLM = b'{"error": {"message": "top_k must be positive", "type": "BadRequestError", "param": null, "code": 400}}'
DJL = b'{"code": 400, "type": "BadRequestException", "message": "Parameter inputs is required."}'
TGI = b'{"error": "Input validation error: `temperature` must be positive", "error_type": "validation"}'
LONG = b'{"object": "error", "message": "maximum context length is 8 tokens", "type": "BadRequestError", "code": 400}'
FULL = b'{"error": "Model is overloaded", "error_type": "overloaded"}'
BROKEN = b'{"error": {"message": "CUDA error", "type": "InternalServerError", "code": 500}}'


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (VLLM, Failure.REJECTED),
        (DJL, Failure.REJECTED),
        (TGI, Failure.REJECTED),
        (LONG, Failure.TOO_LONG),
        (FULL, Failure.BACKEND_ERROR),  # it may be asked again
        (BROKEN, Failure.BACKEND_ERROR),
        (b"", Failure.BACKEND_ERROR),
        (b"Traceback: error 400", Failure.BACKEND_ERROR),
        (b"Received client error (422) from primary with message ...", Failure.REJECTED),
        (b"[" * 50_000, Failure.BACKEND_ERROR),
    ],
)
def test_a_containers_own_error_says_whether_it_would_say_the_same_again(body: bytes, failure: Failure) -> None:
    assert refused(body, "") is failure


@pytest.mark.parametrize(
    ("status", "failure"),
    [(400, Failure.REJECTED), (413, Failure.REJECTED), (422, Failure.REJECTED), (500, Failure.BACKEND_ERROR)],
)
def test_what_the_service_says_of_an_error_stands_before_its_body(status: int, failure: Failure) -> None:
    said = f"ClientError: Received server error ({status}) from model. See the SageMaker Endpoint logs"

    assert refused(b"not JSON", said) is failure
    assert refused(VLLM, "ClientError: Received server error (503) from model.") is Failure.BACKEND_ERROR
    assert refused(LONG, said) is (Failure.TOO_LONG if status in (400, 413, 422) else failure)
