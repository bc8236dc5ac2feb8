"""The lines of a batch's input come out whole wherever pieces end, from any offset, and long ones are passed over."""

import json
from pathlib import Path

import pytest

from gateway import batch_lines
from gateway.batch_lines import Input, Raw, Validator
from router.payloads import PayloadLostError, Payloads

ENDPOINT = "/v1/chat/completions"


@pytest.fixture
def payloads(tmp_path: Path) -> Payloads:
    return Payloads.open(f"file://{tmp_path / 'objects'}")


async def an_input(payloads: Payloads, content: bytes, *, offset: int = 0, longest: int = 10_000_000) -> Input:
    await payloads.put("in", content)
    return Input(payloads, "in", size=len(content), offset=offset, longest=longest)


def a_line(custom_id: str, text: str = "") -> bytes:
    body = {"model": "light", "messages": [{"role": "user", "content": text}]}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}).encode()


async def test_lines_longer_than_a_piece_and_lines_at_its_edge_come_out_whole(payloads: Payloads) -> None:
    piece = batch_lines.PIECE
    lines = [b"a" * (piece - 1), b"b" * piece, b"c" * (3 * piece + 7), b"d", b"e" * (piece - 2)]

    found = [raw async for raw in (await an_input(payloads, b"\n".join(lines) + b"\n")).all()]

    assert [raw.text for raw in found] == lines
    assert [raw.number for raw in found] == [1, 2, 3, 4, 5]


async def test_reading_goes_on_from_the_end_of_any_line(payloads: Payloads) -> None:
    content = b"".join(b"%d\n" % number for number in range(500))
    whole = [raw async for raw in (await an_input(payloads, content)).all()]

    for raw in whole[::37]:
        rest = await (await an_input(payloads, content, offset=raw.end)).take(lines=2, size=10**9)
        assert [each.text for each in rest] == [each.text for each in whole if each.end > raw.end][:2]


async def test_empty_lines_are_passed_over_and_the_last_needs_no_end(payloads: Payloads) -> None:
    found = [raw async for raw in (await an_input(payloads, b"\n a \r\n\n  \nb")).all()]

    assert [(raw.text, raw.number) for raw in found] == [(b"a", 2), (b"b", 5)]
    assert found[-1].end == 11


async def test_a_line_that_is_too_long_is_not_held(payloads: Payloads) -> None:
    content = b"x" * (4 * batch_lines.PIECE) + b"\nok\n"

    found = [raw async for raw in (await an_input(payloads, content, longest=100_000)).all()]

    assert [(raw.text, raw.number) for raw in found] == [(None, 1), (b"ok", 2)]
    assert found[-1].end == len(content)


async def test_a_take_ends_at_its_lines_or_its_bytes(payloads: Payloads) -> None:
    taken = await an_input(payloads, b"aaaa\n" * 10)

    assert len(await taken.take(lines=3, size=10**9)) == 3
    assert len(await taken.take(lines=10, size=8)) == 2
    assert len(await taken.take(lines=10, size=10**9)) == 5
    assert await taken.take(lines=10, size=10**9) == []


async def test_an_input_that_is_gone_is_said_to_be(payloads: Payloads) -> None:
    gone = Input(payloads, "nothing", size=10, offset=0, longest=100)

    with pytest.raises(PayloadLostError):
        await gone.take(lines=1, size=100)


def test_the_validator_shows_a_hundred_faults_and_then_has_enough() -> None:
    validator = Validator(endpoint=ENDPOINT, models={"light"}, most_lines=1000, longest=10_000)

    looked = 0
    while not validator.has_enough:
        validator.look(Raw(b"nonsense", 0, looked + 1))
        looked += 1

    assert looked == len(validator.faults) == batch_lines.MOST_ERRORS


def test_an_id_that_is_there_again_far_below_is_found() -> None:
    validator = Validator(endpoint=ENDPOINT, models={"light"}, most_lines=100_000, longest=10_000)

    for number in range(20_000):
        validator.look(Raw(a_line(str(number)), 0, number + 1))
    assert validator.faults == []
    validator.look(Raw(a_line("7"), 0, 20_001))

    [fault] = validator.faults
    assert (fault.code, fault.line, fault.param) == ("duplicate_custom_id", 20_001, "custom_id")
