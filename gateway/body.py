"""Bytes to strict JSON values: whatever an upstream might read differently is refused here."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate

MAX_DEPTH = 100
MAX_VALUES = 100_000  # commas and opening brackets outside strings: what memory and time grow with
MAX_NUMBER = 40  # characters
SMALLEST, LARGEST = -(2**63), 2**64 - 1

_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{},'))
_STRING = re.compile(rb'"[^"]*(?:"|\Z)')
_DEEPER = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord(","): 0}
_DOUBTFUL = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)")  # half a surrogate pair, or NUL
_BAD = re.compile("[\x00\ud800-\udfff]")


class InvalidRequestError(Exception):
    """The request is wrong and the client must change it. `param` names the place as OpenAI does."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def parse(raw: bytes) -> dict[str, object]:
    """The JSON object in `raw`. Raises `InvalidRequestError`; takes time linear in the length."""
    text = _decoded(raw)
    _check_shape(raw)
    try:
        values = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None
    if type(values) is not dict:
        raise _not_json("it must be an object")
    if _DOUBTFUL.search(raw):
        _check_strings(values)
    return values


def _decoded(raw: bytes) -> str:
    if not raw or raw.isspace():
        raise _not_json("it is empty")
    if raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) or 0 in raw[:4]:
        raise _not_json("it must be UTF-8 without a byte order mark")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _not_json(f"it is not UTF-8 (at byte {error.start})") from None


def _check_shape(raw: bytes) -> None:
    """Refuse what is too deep or has too many values, before anything is built from it."""
    opened = raw.count(b"[") + raw.count(b"{")
    if opened <= MAX_DEPTH and opened + raw.count(b",") <= MAX_VALUES:
        return
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > 4 * MAX_VALUES:  # every value has at most one key, and a string two quotes
        raise _too_many()
    structure = _STRING.sub(b"", unescaped.translate(None, _NOT_STRUCTURE))
    if len(structure) - structure.count(b"]") - structure.count(b"}") > MAX_VALUES:
        raise _too_many()
    if max(accumulate(map(_DEEPER.__getitem__, structure)), default=0) > MAX_DEPTH:
        raise _too_deep()


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidRequestError(
                    "The request body names the same key twice in one object.", _shown(name), "duplicate_key"
                )
            seen.add(name)
    return values


def _integer(text: str) -> int:
    if len(text) <= MAX_NUMBER and SMALLEST <= (number := int(text)) <= LARGEST:
        return number
    raise _not_json("it has an integer that does not fit in 64 bits")


def _decimal(text: str) -> float:
    if len(text) <= MAX_NUMBER and math.isfinite(number := float(text)):
        return number
    raise _not_json("it has a number that is too large or too long")


def _constant(text: str) -> object:
    raise _not_json(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_decimal, parse_constant=_constant
)


def _check_strings(values: Mapping[str, object]) -> None:
    """Refuse NUL and half surrogate pairs; no encoder or database further on takes them."""
    rest: list[tuple[str, object]] = [("", values)]
    while rest:
        path, value = rest.pop()
        if isinstance(value, str):
            if _BAD.search(value):
                raise InvalidRequestError(
                    "The text has a character that cannot be: NUL, or half of a surrogate pair.",
                    path or None,
                    "invalid_text",
                )
        elif isinstance(value, dict):
            for name, inner in value.items():
                if _BAD.search(name):
                    rest.append((path, name))
                rest.append((f"{path}.{_shown(name)}" if path else _shown(name), inner))
        elif isinstance(value, list):
            rest.extend((f"{path}[{index}]", inner) for index, inner in enumerate(value))


def _shown(name: str) -> str:
    """A key of the client's, fit for an error message."""
    return re.sub(r"[^\x20-\x7e]", "?", name[:64])


def _too_deep() -> InvalidRequestError:
    return InvalidRequestError(f"The request body is nested more than {MAX_DEPTH} deep.", code="too_deep")


def _too_many() -> InvalidRequestError:
    return InvalidRequestError(f"The request body has more than {MAX_VALUES} values.", code="too_many_values")


def _not_json(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"The request body is not valid JSON: {why}.", code="invalid_json")
