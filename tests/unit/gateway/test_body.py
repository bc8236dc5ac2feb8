"""What counts as a body: strict JSON, bounded, the same for everyone who reads it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import body
from gateway.body import MAX_DEPTH, MAX_VALUES, InvalidRequestError


def refused(raw: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        body.parse(raw)
    return caught.value


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" \n",
        b"[]",
        b'"text"',
        b"null",
        b"1",
        b"{",
        b"{}{}",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": .5}',
        b'{"a": 01}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\xff"}',
        b'{"a": "\xc0\x80"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\n"}',
        b'{"a": "\x00"}',
        b'\xef\xbb\xbf{"a": 1}',
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-16-le"),
        '{"a": 1}'.encode("utf-32-be"),
        b'{"a": 18446744073709551616}',
        b'{"a": -9223372036854775809}',
        b'{"a": ' + b"1" * 100_000 + b"}",
        b'{"a": 0.' + b"1" * 100_000 + b"}",
    ],
)
def test_what_is_not_strict_json_is_refused(raw: bytes) -> None:
    assert refused(raw).code == "invalid_json"


def test_a_key_that_comes_twice_is_refused_by_name_wherever_it_is() -> None:
    error = refused(b'{"messages": [{"role": "user", "content": "a", "role": "system"}]}')

    assert (error.code, error.param) == ("duplicate_key", "role")


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (rb'{"messages": [{"content": "a\ud800b"}]}', "messages[0].content"),
        (rb'{"messages": [{"content": "a\uDC00"}]}', "messages[0].content"),
        (rb'{"user": "\u0000"}', "user"),
        (rb'{"metadata": {"\u0000": "a"}}', "metadata"),
    ],
)
def test_text_that_cannot_be_encoded_is_refused_where_it_stands(raw: bytes, param: str) -> None:
    error = refused(raw)

    assert (error.code, error.param) == ("invalid_text", param)


def test_text_that_only_looks_like_that_is_taken() -> None:
    assert body.parse(rb'{"a": "\ud83d\ude00", "b": "\\ud800", "c": "\\u0000"}') == {
        "a": "\N{GRINNING FACE}",
        "b": r"\ud800",
        "c": r"\u0000",
    }


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_bounded(opening: bytes, closing: bytes) -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"

    body.parse(nested(MAX_DEPTH))
    assert refused(nested(MAX_DEPTH + 1)).code == "too_deep"
    assert refused(nested(MAX_VALUES // 2)).code == "too_deep"
    assert refused(opening * (MAX_VALUES // 2)).code == "too_deep"


@pytest.mark.parametrize("item", [b"1,", b"{},", b"[],", b'"",', b'"[",'])
def test_the_number_of_values_is_bounded(item: bytes) -> None:
    assert refused(b'{"a":[' + item * (MAX_VALUES + 1) + b"1]}").code == "too_many_values"


def test_what_stands_inside_a_string_is_no_structure() -> None:
    text = r'[[[{{{",\"' * MAX_VALUES

    assert body.parse(json.dumps({"a": text}).encode()) == {"a": text}


def test_the_largest_numbers_are_taken() -> None:
    raw = b'{"a": 18446744073709551615, "b": -9223372036854775808, "c": 1e308, "d": 0.1}'

    assert body.parse(raw) == {"a": 2**64 - 1, "b": -(2**63), "c": 1e308, "d": 0.1}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(st.characters(codec="ascii")), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from("abcdefgh"), values), st.booleans())
@settings(max_examples=200)
def test_every_strict_body_is_read_as_it_was_written(written: dict[str, object], ascii_only: bool) -> None:
    raw = json.dumps(written, ensure_ascii=ascii_only).encode()
    if rb"\u0000" in raw:
        return

    assert body.parse(raw) == written


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        assert isinstance(body.parse(raw), dict)
    except InvalidRequestError as error:
        assert error.code
