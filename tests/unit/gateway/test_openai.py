"""What is checked of a chat request, and how a fault is named."""

import base64
from decimal import Decimal
from typing import Any

import pytest

from gateway.asked import Asked, Wishes
from gateway.body import InvalidRequestError
from gateway.openai import MAX_IMAGES, parse_chat
from router.job import JobClass

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(20)).decode()
WAV = base64.b64encode(b"RIFF\x00\x00\x00\x00WAVEfmt ").decode()
PDF = base64.b64encode(b"%PDF-1.7\n" + bytes(20)).decode()


def a_request(**changes: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": "Hello"}], **changes}


def with_part(part: object, role: str = "user") -> dict[str, Any]:
    return a_request(messages=[{"role": role, "content": [{"type": "text", "text": "See:"}, part]}])


def with_image(url: object) -> dict[str, Any]:
    return with_part({"type": "image_url", "image_url": {"url": url}})


def refused(values: dict[str, Any]) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse_chat(values)
    return caught.value


def test_a_plain_request_has_the_defaults() -> None:
    request = parse_chat(a_request())

    assert request == Asked(model="auto")


def test_what_is_asked_for_is_found_again() -> None:
    request = parse_chat(
        a_request(
            service_tier="flex",
            max_completion_tokens=7,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
            store=True,
            metadata={"order": "17"},
            pointsman={"deadline_s": 60, "result_ttl_s": 3600, "max_usd": "0.05"},
            min_p=0.1,
        )
    )

    assert request.job_class is JobClass.BULK
    assert (request.stream, request.include_usage, request.is_async, request.store) == (True, True, False, True)
    assert request.metadata == {"order": "17"}
    assert request.wishes == Wishes(deadline_s=60, result_ttl_s=3600, max_usd=Decimal("0.05"))


@pytest.mark.parametrize(
    ("tier", "job_class"),
    [
        ("priority", JobClass.INTERACTIVE),
        ("default", JobClass.STANDARD),
        ("auto", JobClass.STANDARD),
        ("flex", JobClass.BULK),
        (None, None),
    ],
)
def test_the_service_tier_is_the_class(tier: str | None, job_class: JobClass | None) -> None:
    assert parse_chat(a_request(service_tier=tier)).job_class is job_class


@pytest.mark.parametrize("name", ["stream", "n", "temperature", "tools", "stop", "metadata", "pointsman", "async"])
def test_null_is_as_if_it_were_not_there(name: str) -> None:
    assert parse_chat(a_request(**{name: None})) == parse_chat(a_request())


def test_async_by_field_or_by_header() -> None:
    assert parse_chat(a_request(**{"async": True})).is_async
    assert parse_chat(a_request(), prefers_async=True).is_async


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"model": "m" * 300}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": ["Hello"]}, "messages[0]"),
        ({"messages": [{"content": "Hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "Hello"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "Hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["Hello"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages[0].tool_call_id"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"async": "yes"}, "async"),
        ({"stream": True, "async": True}, "stream"),
        ({"store": 0}, "store"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"service_tier": "first"}, "service_tier"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"pointsman": "fast"}, "pointsman"),
        ({"pointsman": {"speed": 1}}, "pointsman.speed"),
        ({"pointsman": {"deadline_s": 0}}, "pointsman.deadline_s"),
        ({"pointsman": {"deadline_s": "60"}}, "pointsman.deadline_s"),
        ({"pointsman": {"webhook_url": ""}}, "pointsman.webhook_url"),
        ({"pointsman": {"webhook_url": ["https://example.com"]}}, "pointsman.webhook_url"),
        ({"pointsman": {"webhook_url": "https://user:word@example.com"}}, "pointsman.webhook_url"),
        ({"pointsman": {"webhook_url": "https://example.com/\n"}}, "pointsman.webhook_url"),
        ({"pointsman": {"max_usd": "much"}}, "pointsman.max_usd"),
        ({"pointsman": {"max_usd": "NaN"}}, "pointsman.max_usd"),
        ({"pointsman": {"max_usd": 0}}, "pointsman.max_usd"),
        ({"pointsman": {"max_usd": True}}, "pointsman.max_usd"),
        ({"pointsman": {"max_usd": "1e30"}}, "pointsman.max_usd"),
        ({"pointsman": {"max_usd": " 1 "}}, "pointsman.max_usd"),
    ],
)
def test_a_fault_is_named_by_its_parameter(changes: dict[str, Any], param: str) -> None:
    assert refused(a_request(**changes)).param == param


def test_a_tool_conversation_is_taken() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    values = a_request(
        messages=[
            {"role": "system", "content": "Add."},
            {"role": "user", "content": [{"type": "text", "text": "2+2"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "4"},
        ],
        tools=[{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
        tool_choice={"type": "function", "function": {"name": "add"}},
    )

    parse_chat(values)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": f"data:image/jpg;base64,{JPEG}"}},
        {"type": "image_url", "image_url": {"url": "https://pictures.example.com/cat.png?size=1#top"}},
        {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
    ],
)
def test_true_media_are_taken(part: dict[str, Any]) -> None:
    parse_chat(with_part(part))


@pytest.mark.parametrize(
    "url",
    [
        "",
        7,
        "cat.png",
        "ftp://pictures.example.com/cat.png",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://",
        "https://pictures.example.com/a cat.png",
        "https://pictures.example.com/" + "a" * 9000,
        "https://[::1",
        "http://localhost/cat.png",
        "http://127.0.0.1/cat.png",
        "http://169.254.169.254/latest/meta-data/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://10.0.0.1./",
        "http://user:secret@192.168.0.1/",
        "http://[::ffff:10.0.0.1]/",
        "http://metadata.google.internal/",
        "data:,Hello",
        "data:image/png,abc",
        "data:image/png;base64,",
        "data:image/png;base64,####",
        f"data:image/png;base64,{PNG[:-1]}",
        f"data:image/png;base64,{PNG} ",
        f"data:image/png;base64,{JPEG}",
        f"data:image/svg+xml;base64,{PNG}",
        f"data:text/html;base64,{PNG}",
    ],
)
def test_an_image_that_is_none_is_refused_by_its_place(url: object) -> None:
    assert refused(with_image(url)).param == "messages[0].content[1].image_url.url"


def test_data_that_lie_about_their_type_are_refused_as_such() -> None:
    assert refused(with_image(f"data:image/png;base64,{JPEG}")).code == "media_type_mismatch"


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": "https://example.com/a.png"}, "image_url"),
        ({"type": "image_url"}, "image_url"),
        ({"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}, "input_audio.data"),
        ({"type": "input_audio", "input_audio": {"data": WAV, "format": "tape"}}, "input_audio.format"),
        ({"type": "file", "file": {"file_id": "file-1", "file_data": "x"}}, "file.file_id"),
        ({"type": "file", "file": {"file_id": "x" * 65}}, "file.file_id"),
        ({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PNG}"}}, "file.file_data"),
        ({"type": "refusal"}, "refusal"),
    ],
)
def test_a_malformed_part_is_refused_by_its_place(part: dict[str, Any], param: str) -> None:
    assert refused(with_part(part)).param == f"messages[0].content[1].{param}"


def test_images_belong_to_users() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}

    assert refused(with_part(image, role="system")).param == "messages[0].content[1].type"


def test_the_number_of_images_is_bounded_over_all_messages() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    message = {"role": "user", "content": [image] * (MAX_IMAGES // 2)}

    parse_chat(a_request(messages=[message, message]))
    assert refused(a_request(messages=[message] * 4)).code == "too_many_images"


def test_a_refusal_repeats_no_text_of_the_request() -> None:
    secret = "the patient has"
    faults = [
        a_request(messages=[{"role": secret, "content": secret}]),
        a_request(service_tier=secret),
        a_request(stop=[secret, 1]),
        a_request(pointsman={"max_usd": secret}),
        a_request(metadata={"a": secret * 100}),
        with_image(f"https://{secret}/"),
        with_part({"type": secret}),
    ]

    assert not any(secret in refused(values).message for values in faults)
