"""A second attempt's stream goes on after the first one's where it says the same."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.continuation import Continuation, StreamBrokenError
from router.board import Chunk


def a_chunk(attempt: int, text: str = "", *, finish: str | None = None, index: int = 0, **delta: object) -> Chunk:
    choice = {"index": index, "delta": {"content": text, **delta}, "finish_reason": finish}
    return Chunk(attempt, json.dumps({"id": "x", "choices": [choice]}).encode())


def text_of(pieces: Sequence[bytes]) -> str:
    return "".join(choice["delta"].get("content") or "" for piece in pieces for choice in json.loads(piece)["choices"])


def test_one_attempt_passes_byte_for_byte() -> None:
    chunks = [a_chunk(1, "Hel", role="assistant"), a_chunk(1, "lo"), a_chunk(1, finish="stop")]

    assert Continuation().pass_on(chunks) == [chunk.data for chunk in chunks]


@given(st.text(min_size=1), st.data())
def test_the_same_text_again_reaches_the_client_once(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    second_cut = data.draw(st.integers(0, len(text)))
    stream = Continuation()

    pieces = stream.pass_on([a_chunk(1, "", role="assistant"), a_chunk(1, text[:cut])])
    pieces += stream.pass_on([a_chunk(2, "", role="assistant"), a_chunk(2, text[:second_cut])])
    pieces += stream.pass_on([a_chunk(2, text[second_cut:]), a_chunk(2, finish="stop")])
    stream.end()

    assert text_of(pieces) == text
    assert json.loads(pieces[-1])["choices"][0]["finish_reason"] == "stop"


def test_a_third_attempt_goes_on_after_the_longest_of_the_two_before() -> None:
    stream = Continuation()

    pieces = stream.pass_on([a_chunk(1, "abc"), a_chunk(2, "abcde"), a_chunk(3, "ab"), a_chunk(3, "cdef")])

    assert text_of(pieces) == "abcdef"


def test_another_text_breaks_the_stream() -> None:
    stream = Continuation()
    stream.pass_on([a_chunk(1, "Hello")])

    with pytest.raises(StreamBrokenError):
        stream.pass_on([a_chunk(2, "Help")])


def test_a_shorter_text_breaks_the_stream_at_its_end() -> None:
    stream = Continuation()
    stream.pass_on([a_chunk(1, "Hello"), a_chunk(2, "Hell")])

    with pytest.raises(StreamBrokenError):
        stream.pass_on([a_chunk(2, finish="stop")])
    with pytest.raises(StreamBrokenError):
        stream.end()


def test_tool_calls_that_were_sent_are_not_guessed_at() -> None:
    stream = Continuation()
    stream.pass_on([a_chunk(1, "", tool_calls=[{"index": 0}])])

    with pytest.raises(StreamBrokenError):
        stream.pass_on([a_chunk(2, "anything")])


def test_tool_calls_that_come_after_the_repeated_text_pass() -> None:
    stream = Continuation()

    pieces = stream.pass_on([a_chunk(1, "Hi"), a_chunk(2, "Hi"), a_chunk(2, "", tool_calls=[{"index": 0}])])

    assert json.loads(pieces[-1])["choices"][0]["delta"] == {"tool_calls": [{"index": 0}]}


def test_a_late_piece_of_the_attempt_before_is_dropped() -> None:
    stream = Continuation()

    pieces = stream.pass_on([a_chunk(1, "Hi"), a_chunk(2, "Hi"), a_chunk(1, " there"), a_chunk(2, "!")])

    assert text_of(pieces) == "Hi!"


def test_each_choice_is_followed_by_itself() -> None:
    stream = Continuation()

    pieces = stream.pass_on([a_chunk(1, "a", index=0), a_chunk(1, "x", index=1)])
    pieces += stream.pass_on([a_chunk(2, "xy", index=1), a_chunk(2, "ab", index=0)])

    assert text_of(pieces) == "axyb"
