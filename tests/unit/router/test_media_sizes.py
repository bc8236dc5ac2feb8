"""What an image, a PDF or a recording counts for is read from its own bytes: bounded, and never nothing."""

import io
import wave
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import documents, images, sounds


def a_png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4) + b"\x08\x02\0\0\0"


def a_jpeg(width: int, height: int, *, before: int = 0) -> bytes:
    """With so many bytes of a camera's notes before its size."""
    notes = b"".join(b"\xff\xe1" + (65_000 + 2).to_bytes(2) + bytes(65_000) for _ in range(before // 65_000))
    size = b"\xff\xc2\x00\x11\x08" + height.to_bytes(2) + width.to_bytes(2) + b"\x03"
    return b"\xff\xd8" + b"\xff\xc4\x00\x06\xff\xff\xff\xff" + notes + size


def a_wav(seconds: float, *, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(bytes(int(seconds * rate) * 2))
    return file.getvalue()


def an_mp3(seconds: int, *, tag: int = 0) -> bytes:
    """128 kbit/s at 44.1 kHz, after a tag of so many bytes."""
    size = bytes(tag >> shift & 0x7F for shift in (21, 14, 7, 0))
    return (b"ID3\x04\0\0" + size + bytes(tag) if tag else b"") + b"\xff\xfb\x90\x64" + bytes(seconds * 16_000 - 4)


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (a_png(640, 480), (640, 480)),
        (b"GIF89a" + (640).to_bytes(2, "little") + (480).to_bytes(2, "little"), (640, 480)),
        (a_jpeg(640, 480), (640, 480)),
        (a_jpeg(640, 480, before=130_000), (640, 480)),
        (b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little"), (640, 480)),
        (b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + (639 | 479 << 14).to_bytes(4, "little") + bytes(5), (640, 480)),
        (b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + (640).to_bytes(2, "little") + (480).to_bytes(2, "little"), (640, 480)),
        (b"BM" + bytes(16) + (640).to_bytes(4, "little") + (-480).to_bytes(4, "little", signed=True), (640, 480)),
        (a_png(0, 480), None),
        (b"\xff\xd8\xff\xe0", None),
        (b"", None),
    ],
)  # fmt: skip
def test_an_images_size_is_read_from_its_head(head: bytes, size: tuple[int, int] | None) -> None:
    assert images.size(head) == size


def test_a_large_image_counts_for_more_than_a_small_one_and_none_for_more_than_the_most() -> None:
    small, middle, huge = (images.tokens(a_png(edge, edge)) for edge in (32, 768, 2**31))

    assert images.LEAST == small < middle == 787 < huge == images.MOST
    assert images.tokens(b"what is this") == images.UNKNOWN
    assert images.of_size(2**31, 1) == images.LEAST


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (a_wav(2.5), 3),
        (a_wav(60, rate=8_000), 60),
        (a_wav(0), 1),
        (an_mp3(30), 30),
        (an_mp3(30, tag=1_000), 30),
        (b"fLaC" + bytes(14) + ((44_100 << 44) | 441_000).to_bytes(8) + bytes(200_000), 10),
        (b"\xff\xfb\x90\x64" + bytes(32) + b"Xing\0\0\0\x01" + (1_000).to_bytes(4) + bytes(200_000), 27),
        (b"OggS" + bytes(79_996), 10),
        (bytes(4) + b"ftypM4A " + b"mvhd" + bytes(12) + (1_000).to_bytes(4) + (12_300).to_bytes(4) + bytes(50_000), 13),
        (b"x", 1),
    ],
)
def test_a_recordings_seconds_are_read_from_its_head_and_size(data: bytes, expected: int) -> None:
    assert sounds.seconds(data[: sounds.HEAD], len(data)) == expected


def test_a_recording_cannot_say_that_it_is_longer_or_shorter_than_its_bytes_allow() -> None:
    honest = a_wav(10)
    still_written = honest[:40] + bytes(4) + honest[44:]
    boasting = b"fLaC" + bytes(14) + ((1 << 44) | (1 << 36) - 1).to_bytes(8) + bytes(1_000)

    assert sounds.seconds(still_written, len(still_written)) == 10
    assert sounds.seconds(boasting, len(boasting)) <= 3


def a_pdf(pages: int, *, packed: bool = False) -> bytes:
    objects = b"<</Type /Pages /Kids []>>" + b"<</Type/Page /Parent 1 0 R>>" * pages
    if not packed:
        return b"%PDF-1.4\n" + objects
    data = zlib.compress(objects)
    return b"%PDF-1.7\n5 0 obj <</Type/ObjStm /N 9>>\nstream\r\n" + data + b"\nendstream"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("pages", [1, 20, 300])
def test_a_pdfs_pages_are_counted_packed_or_not(pages: int, packed: bool) -> None:
    assert documents.pages(a_pdf(pages, packed=packed)) == pages


def test_a_pdf_that_shows_no_page_counts_by_its_size() -> None:
    assert documents.pages(b"%PDF-1.7" + bytes(120_000)) == 3
    assert documents.pages(b"") == 1


def test_a_pdf_that_unpacks_to_gigabytes_is_not_unpacked() -> None:
    bomb = zlib.compress(bytes(100_000_000))
    stream = b"/ObjStm >> stream\n" + bomb[:200_000] + b"\nendstream"

    assert documents.pages(stream * 200) >= 1


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"RIFF1234WAVE", b"ID3", b"fLaC", b"%PDF-"]),
)
def test_whatever_the_bytes_the_count_is_bounded_and_not_zero(rest: bytes, start: bytes) -> None:
    data = start + rest

    assert images.LEAST <= images.tokens(data) <= images.MOST
    assert 1 <= sounds.seconds(data, len(data)) <= sounds.LONGEST_S
    assert 1 <= documents.pages(data) <= documents.MOST_PAGES
