"""Files by the official SDK and by hand: streamed in and out, listed, deleted, and never another tenant's."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import openai
import pytest

from tests.gateway import Gateway, running

MIB = 1024 * 1024


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path, works=False, files={"max_bytes": 8 * MIB, "max_stored": 20 * MIB}) as gateway:
        yield gateway


@pytest.fixture
async def sdk(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with gateway.sdk() as client:
        yield client


def stored(gateway: Gateway) -> list[Path]:
    return [path for path in (gateway.core.settings.data / "objects").rglob("*") if path.is_file()]


async def test_the_sdk_uploads_lists_reads_and_deletes(sdk: openai.AsyncOpenAI) -> None:
    files = sdk.files
    content = b"".join(b'{"line": %d}\n' % number for number in range(100_000))

    made = await files.create(file=("batch/in.jsonl", content), purpose="batch")
    other = await files.create(file=("notes ü.txt", b"hello"), purpose="user_data")
    listed = [file.id async for file in await files.list()]
    by_purpose = [file.id async for file in await files.list(purpose="batch")]
    paged = [file.id async for file in await files.list(limit=1, order="asc")]
    retrieved = await files.retrieve(made.id)
    ready = await files.wait_for_processing(made.id)
    read = (await files.content(made.id)).content
    deleted = await files.delete(made.id)

    assert (made.filename, made.bytes, made.purpose, made.status) == ("in.jsonl", len(content), "batch", "processed")
    assert made.expires_at == made.created_at + 30 * 86_400
    assert other.filename == "notes ü.txt"
    assert (listed, by_purpose, paged) == ([other.id, made.id], [made.id], [made.id, other.id])
    assert retrieved == ready == made
    assert read == content
    assert deleted.deleted
    with pytest.raises(openai.NotFoundError):
        await files.retrieve(made.id)


async def test_another_tenants_file_is_not_there(gateway: Gateway, sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.files.create(file=("a", b"mine"), purpose="user_data")
    other = sdk.with_options(api_key=gateway.other_key).files

    for call in (other.retrieve, other.content, other.delete):
        with pytest.raises(openai.NotFoundError) as refused:
            await call(made.id)
        assert refused.value.code == "not_found"
    assert [file async for file in await other.list()] == []


async def test_bytes_that_nobody_needs_are_due_for_removal(gateway: Gateway, sdk: openai.AsyncOpenAI) -> None:
    files = sdk.files
    made = await files.create(
        file=("a", b"mine"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    [path] = stored(gateway)
    assert made.expires_at == made.created_at + 3600

    before = await gateway.core.board.sweep("acme", unpublished_s=60, lease_s=20, most=10)
    await files.delete(made.id)
    after = await gateway.core.board.sweep("acme", unpublished_s=60, lease_s=20, most=10)

    assert before.objects == []
    assert [gateway.core.settings.data / "objects" / each for each in after.objects] == [path]


async def test_a_file_that_is_too_large_is_refused_by_its_length_and_as_it_comes(
    gateway: Gateway, sdk: openai.AsyncOpenAI
) -> None:
    async def long() -> AsyncIterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(16):
            yield b"x" * MIB

    with pytest.raises(openai.APIStatusError) as declared:
        await sdk.files.create(file=("a", bytes(10 * MIB)), purpose="batch")
    headers = {"content-type": "multipart/form-data; boundary=b"}
    streamed = await gateway.http.post("/v1/files", content=long(), headers=headers)

    assert (declared.value.status_code, declared.value.code) == (413, "request_too_large")
    assert (streamed.status_code, streamed.json()["error"]["code"]) == (413, "request_too_large")
    assert stored(gateway) == []


async def test_a_tenants_files_have_a_limit_together_that_deleting_frees(sdk: openai.AsyncOpenAI) -> None:
    files = sdk.files
    made = [await files.create(file=("a", bytes(7 * MIB)), purpose="batch") for _ in range(2)]

    with pytest.raises(openai.APIStatusError) as refused:
        await files.create(file=("a", bytes(7 * MIB)), purpose="batch")
    await files.delete(made[0].id)
    again = await files.create(file=("a", bytes(7 * MIB)), purpose="batch")

    assert (refused.value.status_code, refused.value.code) == (413, "files_full")
    assert again.bytes == 7 * MIB


FORM = "multipart/form-data; boundary=b"
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nhi\r\n'
PURPOSE = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n%s\r\n'
END = b"--b--\r\n"


BROKEN: list[tuple[str, bytes, int, str | None]] = [
    ("application/json", b"{}", 415, None),
    ("multipart/form-data", FILE + END, 400, None),
    (f"multipart/form-data; boundary={'x' * 500}", FILE + END, 400, None),
    (FORM, b"", 400, None),
    (FORM, b"no form at all", 400, None),
    (FORM, FILE + PURPOSE % b"batch", 400, None),
    (FORM, FILE[:40], 400, None),
    (FORM, FILE + END, 400, "purpose"),
    (FORM, PURPOSE % b"batch" + END, 400, "file"),
    (FORM, FILE + FILE + PURPOSE % b"batch" + END, 400, "file"),
    (FORM, FILE + PURPOSE % b"batch_output" + END, 400, "purpose"),
    (FORM, FILE + PURPOSE % b"\xff" + END, 400, "purpose"),
    (FORM, FILE + PURPOSE % (b"x" * 100_000) + END, 400, "purpose"),
    (FORM, (PURPOSE % b"batch") * 60 + END, 400, None),
    (FORM, b'--b\r\nContent-Disposition: form-data; name="\xff"; filename="a"\r\n\r\nhi\r\n' + END, 400, None),
    (FORM, b"--b\r\n" + b"X-Long: " + b"y" * 100_000 + b"\r\n\r\n" + END, 400, None),
    (FORM, b"--b\r\nX-A: 1\r\n\r\nhi\r\n" + END, 400, None),
]


async def test_a_broken_form_is_a_clean_refusal_and_no_file(gateway: Gateway) -> None:
    for content_type, body, status, param in BROKEN:
        answer = await gateway.http.post("/v1/files", content=body, headers={"content-type": content_type})

        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), body[:80]
    assert (await gateway.http.get("/v1/files")).json()["data"] == []


async def test_an_upload_that_breaks_off_leaves_nothing(gateway: Gateway) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield FILE[:-2] + b"x" * (6 * MIB)
        raise ConnectionError

    with pytest.raises((ConnectionError, httpx2.TransportError)):
        await gateway.http.post("/v1/files", content=broken(), headers={"content-type": FORM})

    async with asyncio.timeout(5):
        while stored(gateway):
            await asyncio.sleep(0.01)


async def test_a_bad_query_names_its_parameter(gateway: Gateway) -> None:
    for query in ("limit=0", "after=nothing", "order=up", "purpose=fun"):
        answer = await gateway.http.get(f"/v1/files?{query}")

        assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])
