"""Server-sent events, cut in any way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.sse import Event, Events, EventTooLargeError


def read(*pieces: bytes, limit: int = 1000) -> list[Event]:
    events = Events(limit)
    return [*(event for piece in pieces for event in events.feed(piece)), *events.end()]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"", []),
        (b"\n\n\n", []),
        (b"data: a\n\ndata:b\n\n", [Event(b"a"), Event(b"b")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [Event(b"a"), Event(b"b")]),
        (b"data: a\r\rdata: b\r\r", [Event(b"a"), Event(b"b")]),
        (b"data: a\ndata: b\n\n", [Event(b"a\nb")]),
        (b"data\n\n", [Event(b"")]),
        (b"data:  two spaces\n\n", [Event(b" two spaces")]),
        (b": keep-alive\n\ndata: a\n\n", [Event(b"a")]),
        (b"event: error\ndata: a\n\ndata: b\n\n", [Event(b"a", "error"), Event(b"b")]),
        (b"id: 7\nretry: 10\nwhat: ever\ndata: a\n\n", [Event(b"a")]),
        (b"event: nothing\n\ndata: a\n\n", [Event(b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Event(b"a")]),
        (b'data: {"a": "b: c"}\n\n', [Event(b'{"a": "b: c"}')]),
        (b"data: a\n\ndata: unfinished", [Event(b"a"), Event(b"unfinished")]),
        (b"data: a\n\ndata: unfinished\n", [Event(b"a"), Event(b"unfinished")]),
        (b"data: \xff\xfe\n\n", [Event(b"\xff\xfe")]),
    ],
)
def test_a_stream_gives_its_events(stream: bytes, expected: list[Event]) -> None:
    assert read(stream) == expected


@given(
    st.lists(st.sampled_from([b"data: a", b"data:", b"event: x", b": c", b"", b"\r", b"\n", b"\r\n", b"\n\n"])),
    st.lists(st.integers(1, 7)),
)
def test_where_a_stream_is_cut_makes_no_difference(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    pieces, rest = [], stream
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]

    assert read(*pieces, rest) == read(stream)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + b"x" * 101 + b"\n\n"],
        [b"x" * 60, b"x" * 60],
        [b"data: xxxxxxxxxxx\n"] * 10,
        [b"data: a\n\n" + b"y" * 101],
    ],
)
def test_an_event_over_the_limit_is_refused_however_it_comes(pieces: list[bytes]) -> None:
    with pytest.raises(EventTooLargeError):
        read(*pieces, limit=100)


def test_the_limit_is_for_one_event_not_for_the_stream() -> None:
    assert len(read(b"data: " + b"x" * 50 + b"\n\n", *[b"data: " + b"x" * 50 + b"\n\n"] * 9, limit=100)) == 10
