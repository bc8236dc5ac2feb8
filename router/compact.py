"""JSON without white space, from an encoder that takes a tenth of the standard library's time."""

import json

from pydantic_core import PydanticSerializationError, to_json


def encode(value: object) -> bytes:
    """UTF-8. Half a character, as a broken upstream may send it, is escaped."""
    try:
        return to_json(value)
    except (PydanticSerializationError, UnicodeError):
        return json.dumps(value, separators=(",", ":")).encode()


def text(value: object) -> str:
    """The same as text."""
    return encode(value).decode()
