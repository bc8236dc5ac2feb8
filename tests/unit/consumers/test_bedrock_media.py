"""What Bedrock takes of images and documents in a message is known before the call."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.aws.bedrock_media import DOCUMENT_BYTES, DOCUMENTS, IMAGE_BYTES, IMAGE_PIXELS, IMAGES, check
from consumers.backend import BackendError
from policies.retries import Failure


def png(width: int = 8, height: int = 8, size: int = 0) -> bytes:
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4)
    return head.ljust(size, b"\0")


def an_image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


def a_pdf(size: int = 100) -> dict[str, Any]:
    data = base64.b64encode(b"%PDF-1.7".ljust(size, b"\0")).decode()
    return {"type": "file", "file": {"filename": "../secret.pdf", "file_data": f"data:application/pdf;base64,{data}"}}


def said(*parts: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": "What is this?"}, *parts]}


def refused(*messages: object) -> str:
    with pytest.raises(BackendError) as raised:
        check(messages)
    assert (raised.value.failure, raised.value.code) == (Failure.TOO_LONG, "too_much_media")
    return raised.value.detail


def test_what_fits_is_sent() -> None:
    largest = an_image(png(IMAGE_PIXELS, IMAGE_PIXELS, IMAGE_BYTES - 2))

    check([said(largest, *[an_image(png())] * (IMAGES - 1), *[a_pdf(DOCUMENT_BYTES - 2)] * DOCUMENTS)])


def test_each_answer_of_the_models_begins_a_message_anew() -> None:
    many, answer = said(*[an_image(png())] * IMAGES), {"role": "assistant", "content": "A cat."}

    check([many, answer, many])
    assert "20 images" in refused(many, said(an_image(png()), role="tool"))


@pytest.mark.parametrize(
    ("part", "limit"),
    [
        (an_image(png(size=IMAGE_BYTES + 10)), "3.75 MB"),
        (an_image(png(width=IMAGE_PIXELS + 1)), "8000 pixels"),
        (an_image(png(height=IMAGE_PIXELS + 1)), "8000 pixels"),
        (a_pdf(DOCUMENT_BYTES + 10), "4.5 MB"),
    ],
)
def test_what_is_too_large_is_refused_with_the_limit(part: dict[str, Any], limit: str) -> None:
    assert limit in refused(said(part))


def test_more_documents_than_a_message_has_are_refused() -> None:
    assert "5 documents" in refused(said(*[a_pdf()] * (DOCUMENTS + 1)))


def test_words_that_look_like_an_image_are_words() -> None:
    check([{"role": "user", "content": [{"type": "text", "text": an_image(png())["image_url"]["url"]}] * (IMAGES + 1)}])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just("data:image/png;base64,%%%"),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["role", "content", "type", "url", "x"]), inner),
)


@given(st.lists(JSON))
def test_anything_else_is_left_to_bedrock(messages: list[object]) -> None:
    check(messages)
