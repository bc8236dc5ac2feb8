"""What the object store promises, on a real folder."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from router.payloads import PayloadLostError, Payloads, PayloadUnavailableError, body_path, result_path


@pytest.fixture
def payloads(tmp_path: Path) -> Payloads:
    return Payloads.open(f"file://{tmp_path / 'objects'}")


async def test_bytes_come_back_as_they_were_put(payloads: Payloads) -> None:
    data = os.urandom(300_000)

    pointer = await payloads.put("bodies/acme/1", data)

    assert (pointer.path, pointer.size, pointer.sha256) == ("bodies/acme/1", len(data), sha256(data).hexdigest())
    assert await payloads.get(pointer) == data


async def test_putting_twice_gives_the_same_pointer(payloads: Payloads) -> None:
    assert await payloads.put("a", b"x") == await payloads.put("a", b"x")


async def test_nothing_is_nothing_too(payloads: Payloads) -> None:
    assert await payloads.get(await payloads.put("empty", b"")) == b""


async def test_a_stream_of_pieces_comes_back_whole_in_pieces_and_in_parts(payloads: Payloads) -> None:
    data = os.urandom(12_000_000)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    pointer = await payloads.upload("a", pieces())

    assert (pointer.size, pointer.sha256) == (len(data), sha256(data).hexdigest())
    assert b"".join([piece async for piece in payloads.stream("a")]) == data == await payloads.get(pointer)
    assert await payloads.part("a", 11_999_990, 10) == data[-10:]


async def test_pieces_that_break_off_leave_nothing(payloads: Payloads) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(6_000_000)
        raise KeyError("broken off")

    with pytest.raises(KeyError):
        await payloads.upload("a", pieces())

    for read in (payloads.part("a", 0, 1), anext(payloads.stream("a"))):
        with pytest.raises(PayloadLostError):
            await read


async def test_another_opening_of_the_same_place_finds_them(payloads: Payloads, tmp_path: Path) -> None:
    pointer = await payloads.put("bodies/acme/1", b"x")

    assert await Payloads.open(f"file://{tmp_path / 'objects'}").get(pointer) == b"x"


async def test_what_was_removed_is_lost_and_may_be_removed_again(payloads: Payloads) -> None:
    pointer = await payloads.put("a", b"x")

    await payloads.remove("a")
    await payloads.remove("a")

    with pytest.raises(PayloadLostError):
        await payloads.get(pointer)


async def test_bytes_that_changed_meanwhile_are_lost(payloads: Payloads, tmp_path: Path) -> None:
    pointer = await payloads.put("a", b"x")
    (tmp_path / "objects" / "a").write_bytes(b"y")

    with pytest.raises(PayloadLostError):
        await payloads.get(pointer)


async def test_a_pointer_does_not_lead_out_of_the_store(payloads: Payloads, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    pointer = replace(await payloads.put("a", b"x"), path="../secret")

    with pytest.raises(PayloadLostError):
        await payloads.get(pointer)


async def test_a_store_that_cannot_be_written_is_unavailable(payloads: Payloads, tmp_path: Path) -> None:
    (tmp_path / "objects" / "bodies").write_bytes(b"a file where a folder should be")

    with pytest.raises(PayloadUnavailableError) as caught:
        await payloads.put("bodies/acme/1", b"prompt")

    assert "prompt" not in str(caught.value)


def test_each_attempt_has_a_place_of_its_own() -> None:
    places = {body_path("acme", "1"), body_path("other", "1"), *(result_path("acme", "1", n) for n in (1, 2))}

    assert len(places) == 4
