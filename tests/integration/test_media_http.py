"""Embeddings, images, speech, transcriptions and parts of chats through the official SDK, on the echo backend."""

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio

from tests.builders import entries
from tests.gateway import Gateway, running
from tests.unit.router.test_media_sizes import a_pdf, a_png, a_wav

PRICED = {"price": {"input": "0.02"}}
DEPLOYMENTS: dict[str, Any] = {
    "light": {"backend": "echo", "model": "echo", "tier": "light", "window": 4096},
    "sees": {
        "backend": "echo",
        "model": "echo",
        "tier": "heavy",
        "window": 400_000,
        "modalities": ["text", "image", "document", "audio"],
    },
    "embeds": {"backend": "echo", "model": "e", "tier": "light", "modalities": ["embedding"], **PRICED},
    "paints": {
        "backend": "echo",
        "model": "p",
        "tier": "light",
        "modalities": ["image_generation"],
        "price": {"images": "0.04"},
    },
    "speaks": {
        "backend": "echo",
        "model": "s",
        "tier": "light",
        "modalities": ["speech"],
        "price": {"characters": "15.00"},
    },
    "hears": {
        "backend": "echo",
        "model": "h",
        "tier": "light",
        "modalities": ["audio"],
        "price": {"audio_seconds": "0.0001"},
    },
}
WAV = a_wav(2.5)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with running(
        tmp_path_factory.mktemp("media"), deployments=DEPLOYMENTS, tenants={"acme": {}, "other": {}}
    ) as ours:
        yield ours


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(gateway: Gateway) -> AsyncIterator[Any]:
    async with gateway.sdk() as sdk:
        yield sdk


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def charged(gateway: Gateway, job_id: str) -> list[tuple[str, int, Decimal]]:
    job = await gateway.job(job_id)
    assert job["status"] == "completed", job
    return [(line["meter"], line["quantity"], Decimal(line["usd"])) for line in job["pointsman"]["charges"]]


async def test_the_sdk_gets_embeddings_as_it_asks_for_them_by_itself_and_as_floats(
    gateway: Gateway, client: Any
) -> None:
    packed = await client.embeddings.create(model="embeds", input=["one", "two"], dimensions=6)
    floats = await client.embeddings.create(model="auto", input=["one", "two"], dimensions=6, encoding_format="float")
    tokens = await client.embeddings.create(model="embeds", input=[[1, 2, 3], [4]])
    raw = await gateway.http.post(
        "/v1/embeddings", json={"model": "embeds", "input": "one", "dimensions": 6, "encoding_format": "base64"}
    )

    assert [row.embedding for row in packed.data] == [pytest.approx(row.embedding) for row in floats.data]
    assert [row.index for row in tokens.data] == [0, 1]
    assert (packed.model, packed.usage.prompt_tokens) == ("embeds", 2)
    assert list(struct.unpack("<6f", base64.b64decode(raw.json()["data"][0]["embedding"]))) == packed.data[0].embedding
    assert raw.headers["x-pointsman-lane"] == "echo.embedding.light"
    assert raw.headers["x-pointsman-cost-usd"] == "0.00000002"


async def test_embeddings_of_many_callers_at_once_are_each_their_own(gateway: Gateway, client: Any) -> None:
    texts = [[f"text {i}", f"other {i}"] for i in range(10, 50)]  # of one length, so that each owes the same share

    alone = [await client.embeddings.create(model="embeds", input=each, dimensions=4) for each in texts[:3]]
    answers = await asyncio.gather(
        *(client.embeddings.create(model="embeds", input=each, dimensions=4) for each in texts)
    )

    assert [each.data for each in answers[:3]] == [each.data for each in alone]
    assert len({tuple(row.embedding) for answer in answers for row in answer.data}) == 80
    assert {answer.usage.prompt_tokens for answer in answers} == {4}


async def test_the_sdk_gets_images(gateway: Gateway, client: Any) -> None:
    answer = await client.images.generate(model="paints", prompt="a cat", n=2, size="1024x1024")

    assert answer.data is not None
    assert [base64.b64decode(image.b64_json or "")[:4] for image in answer.data] == [b"\x89PNG"] * 2


async def test_the_sdk_gets_speech_whole_and_in_pieces(gateway: Gateway, client: Any, tmp_path: Path) -> None:
    whole = await client.audio.speech.create(model="speaks", voice="alloy", input="Hello there", response_format="wav")
    async with client.audio.speech.with_streaming_response.create(
        model="speaks", voice="alloy", input="Hello there", response_format="wav"
    ) as response:
        await response.stream_to_file(tmp_path / "said.wav")

    assert whole.response.headers["content-type"] == "audio/wav"
    assert (tmp_path / "said.wav").read_bytes() == whole.content
    assert whole.content[:4] == b"RIFF"
    assert whole.response.headers["x-pointsman-cost-usd"] == "0.000165"


@pytest.mark.parametrize("wanted", ["json", "verbose_json", "text", "srt", "vtt"])
async def test_the_sdk_gets_transcriptions_in_every_form(gateway: Gateway, client: Any, wanted: Any) -> None:
    answer: Any = await client.audio.transcriptions.create(
        model="hears", file=("a.wav", WAV), response_format=wanted, language="en", temperature=0.2
    )

    text = answer if isinstance(answer, str) else answer.text
    assert f"{len(WAV)} bytes of sound" in text


async def test_each_endpoint_leaves_with_a_job_and_its_result_is_found_again(gateway: Gateway, client: Any) -> None:
    later: dict[str, Any] = {"extra_body": {"async": True, "metadata": {"a": "b"}}}

    embedded = await client.embeddings.with_raw_response.create(model="embeds", input="one", **later)
    painted = await client.images.with_raw_response.generate(model="paints", prompt="a cat", **later)
    spoken = await client.audio.speech.with_raw_response.create(model="speaks", voice="a", input="Hello", **later)
    heard = await client.audio.transcriptions.with_raw_response.create(model="hears", file=("a.wav", WAV), **later)
    jobs = [json.loads(await _body(each)) for each in (embedded, painted, spoken, heard)]
    results = [(await gateway.job(job["id"]))["result"] for job in jobs]
    contents = [await gateway.http.get(f"/v1/jobs/{job['id']}/content") for job in jobs]

    assert [each.http_response.status_code for each in (embedded, painted, spoken, heard)] == [202] * 4
    assert [job["metadata"] for job in jobs] == [{"a": "b"}] * 4
    assert results[0]["data"][0]["object"] == "embedding"
    assert results[1]["data"][0]["b64_json"]
    assert results[2] == {
        "object": "job.content",
        "media_type": "audio/wav",
        "bytes": len(contents[2].content),
        "path": f"/v1/jobs/{jobs[2]['id']}/content",
    }
    assert results[3]["text"] == contents[3].json()["text"]
    assert (contents[2].headers["content-type"], contents[2].content[:4]) == ("audio/wav", b"RIFF")
    assert await charged(gateway, jobs[0]["id"]) == [("input", 1, Decimal("0.00000002"))]
    assert await charged(gateway, jobs[1]["id"]) == [("images", 1, Decimal("0.04"))]
    assert await charged(gateway, jobs[2]["id"]) == [("characters", 5, Decimal("0.000075"))]
    assert [line[0] for line in await charged(gateway, jobs[3]["id"])] == ["audio_seconds"]


async def _body(answer: Any) -> bytes:
    return bytes(await answer.http_response.aread())


async def test_a_form_that_comes_again_under_its_key_is_the_same_job(gateway: Gateway) -> None:
    sends: list[Any] = [{"file": ("a.wav", WAV)}, {"file": ("a.wav", WAV)}, {"file": ("a.wav", a_wav(1))}]

    first, again, other = [
        await gateway.http.post(
            "/v1/audio/transcriptions",
            data={"model": "hears", "async": "true"},
            files=files,
            headers={"idempotency-key": "form-1"},
        )
        for files in sends
    ]

    assert first.request.headers["content-type"] != again.request.headers["content-type"]
    assert first.status_code == again.status_code == 202
    assert first.json()["id"] == again.json()["id"]
    assert other.status_code == 422


async def test_a_large_recording_lies_in_the_object_store_until_its_job_is_over(gateway: Gateway, client: Any) -> None:
    large = a_wav(20)

    answer = await client.audio.transcriptions.create(model="hears", file=("a.wav", large))

    assert answer.text == f"{len(large)} bytes of sound"


PNG, PDF = base64.b64encode(a_png(640, 480)).decode(), base64.b64encode(a_pdf(3)).decode()


async def test_images_pdfs_and_recordings_in_a_chat_go_to_a_model_that_takes_them(
    gateway: Gateway, client: Any
) -> None:
    parts: list[Any] = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}},
    ]

    raw = await client.chat.completions.with_raw_response.create(
        model="auto", messages=[{"role": "user", "content": parts}]
    )

    assert raw.parse().choices[0].message.content == "What is this?"
    assert raw.headers["x-pointsman-lane"] == "echo.audio.heavy"


async def test_an_uploaded_file_may_be_named_and_need_not_be_there_any_more_when_its_job_runs(
    gateway: Gateway, client: Any
) -> None:
    document = await client.files.create(file=("report.pdf", a_pdf(3)), purpose="user_data")
    picture = await client.files.create(file=("p.png", a_png(640, 480)), purpose="vision")
    text: Any = {"type": "text", "text": "What is this?"}
    file: Any = {"type": "file", "file": {"file_id": document.id}}
    parts: Any = [
        {"type": "input_text", "text": "And these?"},
        {"type": "input_file", "file_id": document.id},
        {"type": "input_image", "file_id": picture.id, "detail": "low"},
    ]

    raw = await client.chat.completions.with_raw_response.create(
        model="auto", messages=[{"role": "user", "content": [text, file, file]}]
    )
    response = await client.responses.create(model="auto", input=[{"role": "user", "content": parts}], background=True)
    await client.files.delete(document.id)
    await client.files.delete(picture.id)
    while response.status not in ("completed", "failed"):
        response = await client.responses.retrieve(response.id)

    assert raw.parse().choices[0].message.content == "What is this?"
    assert (response.status, response.output_text) == ("completed", "And these?")
    lane = raw.headers["x-pointsman-lane"]
    [asked] = await entries(gateway.core.redis, f"jobs.{lane}.interactive")
    [kept, again] = [part["file"] for part in json.loads(asked[b"v"])["messages"][0]["content"][1:]]
    assert kept == again == {"filename": "report.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}


@pytest.mark.parametrize(
    ("purpose", "content"),
    [("user_data", PNG), ("user_data", base64.b64encode(b"no picture").decode()), ("batch", PDF)],
    ids=["an image", "text", "a batch's"],
)
async def test_a_file_that_is_no_document_or_not_for_this_is_refused_by_its_place(
    gateway: Gateway, client: Any, purpose: Any, content: str
) -> None:
    file = await client.files.create(file=("a.pdf", base64.b64decode(content)), purpose=purpose)
    before = await newest(gateway)

    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": [{"type": "file", "file": {"file_id": file.id}}]}]
        )

    assert refused.value.param == "messages[0].content[0].file.file_id"
    assert await newest(gateway) == before


async def test_another_tenants_file_cannot_be_named(gateway: Gateway, client: Any) -> None:
    file = await client.files.create(file=("a.pdf", a_pdf(1)), purpose="user_data")
    part = {"type": "input_file", "file_id": file.id}

    async with httpx2.AsyncClient(
        base_url=gateway.url, headers={"authorization": f"Bearer {gateway.other_key}"}
    ) as other:
        answer = await other.post(
            "/v1/responses", json={"model": "auto", "input": [{"role": "user", "content": [part]}]}
        )

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[0].content[0].file_id"


BAD: list[tuple[str, dict[str, Any], str | None]] = [
    ("/v1/embeddings", {"input": "a"}, "model"),
    ("/v1/embeddings", {"model": "embeds"}, "input"),
    ("/v1/embeddings", {"model": "embeds", "input": ""}, "input"),
    ("/v1/embeddings", {"model": "embeds", "input": []}, "input"),
    ("/v1/embeddings", {"model": "embeds", "input": ["a", ""]}, "input[1]"),
    ("/v1/embeddings", {"model": "embeds", "input": ["a", 1]}, "input[1]"),
    ("/v1/embeddings", {"model": "embeds", "input": [1, "a"]}, "input"),
    ("/v1/embeddings", {"model": "embeds", "input": [[1], []]}, "input[1]"),
    ("/v1/embeddings", {"model": "embeds", "input": [[-1]]}, "input[0]"),
    ("/v1/embeddings", {"model": "embeds", "input": {"a": 1}}, "input"),
    ("/v1/embeddings", {"model": "embeds", "input": [None]}, "input[0]"),
    ("/v1/embeddings", {"model": "embeds", "input": ["a"] * 2049}, "input"),
    ("/v1/embeddings", {"model": "embeds", "input": "a", "encoding_format": "hex"}, "encoding_format"),
    ("/v1/embeddings", {"model": "embeds", "input": "a", "dimensions": 0}, "dimensions"),
    ("/v1/embeddings", {"model": "light", "input": "a"}, "model"),
    ("/v1/embeddings", {"model": "embeds", "input": "word " * 40_000}, "input"),
    ("/v1/images/generations", {"model": "paints"}, "prompt"),
    ("/v1/images/generations", {"model": "paints", "prompt": "a", "n": 11}, "n"),
    ("/v1/images/generations", {"model": "paints", "prompt": "a", "size": "big"}, "size"),
    ("/v1/images/generations", {"model": "paints", "prompt": "a", "stream": True}, "stream"),
    ("/v1/embeddings", {"model": "embeds", "input": "a", "stream": True}, "stream"),
    ("/v1/audio/speech", {"model": "speaks", "input": "a", "voice": "a", "stream": True}, "stream"),
    ("/v1/images/generations", {"model": "paints", "prompt": "a" * 32_001}, "prompt"),
    ("/v1/audio/speech", {"model": "speaks", "input": "a"}, "voice"),
    ("/v1/audio/speech", {"model": "speaks", "input": "", "voice": "a"}, "input"),
    ("/v1/audio/speech", {"model": "speaks", "input": "a" * 4097, "voice": "a"}, "input"),
    ("/v1/audio/speech", {"model": "speaks", "input": "a", "voice": 5}, "voice"),
    ("/v1/audio/speech", {"model": "speaks", "input": "a", "voice": "a", "speed": 9}, "speed"),
    ("/v1/audio/speech", {"model": "speaks", "input": "a", "voice": "a", "response_format": "ogg"}, "response_format"),
    ("/v1/audio/speech", {"model": "speaks", "input": "a", "voice": "a", "stream_format": "sse"}, "stream_format"),
    ("/v1/audio/speech", {"model": "speaks", "input": "a", "voice": "a", "pointsman": {"x": 1}}, "pointsman.x"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param"), BAD)
async def test_a_bad_request_is_told_where_it_is_wrong_and_nothing_is_enqueued(
    gateway: Gateway, path: str, body: dict[str, Any], param: str | None
) -> None:
    before = await newest(gateway)

    answer = await gateway.http.post(path, json=body)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert await newest(gateway) == before


FORMS: list[tuple[dict[str, str], dict[str, Any], int, str | None]] = [
    ({"model": "hears"}, {}, 415, None),
    ({"model": "hears"}, {"other": ("a.wav", WAV)}, 400, "other"),
    ({}, {"file": ("a.wav", WAV)}, 400, "model"),
    ({"model": "hears"}, {"file": ("a.wav", b"")}, 400, "file"),
    ({"model": "hears"}, {"file": ("a.wav", b"this is no sound")}, 400, "file"),
    ({"model": "hears", "response_format": "xml"}, {"file": ("a.wav", WAV)}, 400, "response_format"),
    ({"model": "hears", "temperature": "hot"}, {"file": ("a.wav", WAV)}, 400, "temperature"),
    ({"model": "hears", "temperature": "nan"}, {"file": ("a.wav", WAV)}, 400, "temperature"),
    ({"model": "hears", "async": "maybe"}, {"file": ("a.wav", WAV)}, 400, "async"),
    ({"model": "hears", "stream": "true"}, {"file": ("a.wav", WAV)}, 400, "stream"),
    ({"model": "hears", "timestamp_granularities[]": "word"}, {"file": ("a.wav", WAV)}, 400, "timestamp_granularities"),
    ({"model": "hears", "metadata": "x"}, {"file": ("a.wav", WAV)}, 400, "metadata"),
    ({"model": "hears", "metadata[a]": "x" * 600}, {"file": ("a.wav", WAV)}, 400, "metadata"),
    ({"model": "hears", "pointsman[max_usd]": "0.0000001"}, {"file": ("a.wav", WAV)}, 400, "pointsman.max_usd"),
    ({"model": "embeds"}, {"file": ("a.wav", WAV)}, 400, "model"),
    ({"model": "hears", "bad name!": "x"}, {"file": ("a.wav", WAV)}, 400, None),
]  # fmt: skip


async def test_a_transcription_may_say_that_it_means_segments(client: Any) -> None:
    answer = await client.audio.transcriptions.create(
        model="hears", file=("a.wav", WAV), response_format="json", timestamp_granularities=["segment"]
    )

    assert f"{len(WAV)} bytes of sound" in answer.text


@pytest.mark.parametrize(("data", "files", "status", "param"), FORMS)
async def test_a_bad_form_is_told_where_it_is_wrong_and_nothing_is_enqueued(
    gateway: Gateway, data: dict[str, str], files: dict[str, Any], status: int, param: str | None
) -> None:
    before = await newest(gateway)

    answer = await gateway.http.post("/v1/audio/transcriptions", data=data, files=files)

    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
    assert await newest(gateway) == before


FIELD = b'Content-Disposition: form-data; name="model"\r\n\r\n'


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"", "multipart/form-data", 400),
        (b"", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n" + FIELD + b"hears\r\n--x--\r\n", "multipart/form-data; boundary=x", 400),
        (b"{}", "application/json", 415),
        (b"--x\r\n" + FIELD + b"\xff\r\n--x--\r\n", "multipart/form-data; boundary=x", 400),
        (b"RIFF" * 9_000_000, "multipart/form-data; boundary=x", 413),
    ],
)  # fmt: skip
async def test_a_form_that_is_none_is_refused(gateway: Gateway, content: bytes, content_type: str, status: int) -> None:
    answer = await gateway.http.post(
        "/v1/audio/transcriptions", content=content, headers={"content-type": content_type}
    )

    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{PNG}"}}, ".image_url.url"),
        ({"type": "image_url", "image_url": {"url": f"data:application/pdf;base64,{PDF}"}}, ".image_url.url"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%"}}, ".image_url.url"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}, ".image_url.url"),
        ({"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}, ".image_url.url"),
        ({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PNG}"}}, ".file.file_data"),
        ({"type": "file", "file": {"file_data": PDF}}, ".file.file_data"),
        ({"type": "file", "file": {"file_id": "file-1"}}, ".file.file_id"),
        ({"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}, ".input_audio.data"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "aiff"}}, ".input_audio.format"),
    ],
)
async def test_a_part_that_lies_is_refused_by_its_place(gateway: Gateway, part: dict[str, Any], param: str) -> None:
    answer = await gateway.http.post(
        "/v1/chat/completions", json={"model": "sees", "messages": [{"role": "user", "content": [part]}]}
    )

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == f"messages[0].content[0]{param}"


async def test_a_hundred_images_are_too_many_and_the_sdk_says_so(gateway: Gateway, client: Any) -> None:
    image: Any = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}

    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="sees", messages=[{"role": "user", "content": [image] * 100}])

    assert (refused.value.code, refused.value.param) == ("too_many_images", "messages")


async def test_another_tenants_content_is_not_there(gateway: Gateway) -> None:
    made = await gateway.http.post(
        "/v1/audio/speech", json={"model": "speaks", "voice": "a", "input": "x", "async": True}
    )

    async with httpx2.AsyncClient(
        base_url=gateway.url, headers={"authorization": f"Bearer {gateway.other_key}"}
    ) as other:
        answer = await other.get(f"/v1/jobs/{made.json()['id']}/content")

    assert answer.status_code == 404


async def newest(gateway: Gateway) -> str | None:
    page = (await gateway.http.get("/v1/jobs?limit=1")).json()
    return page["first_id"]  # type: ignore[no-any-return]
