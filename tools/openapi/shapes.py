"""The words that schemas are written in."""

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]

FLAG: Schema = {"type": "boolean"}
NOTHING: Schema = {"type": "null"}
AN_OBJECT: Schema = {"type": "object"}
ULID = "[0-7][0-9A-HJKMNP-TV-Z]{25}"


def a_text(most: int | None = None, *, least: int = 1, **more: object) -> Schema:
    """A string of so many characters."""
    return {"type": "string", "minLength": least, **({} if most is None else {"maxLength": most}), **more}


def a_number(least: float, most: float, **more: object) -> Schema:
    """A number within these bounds."""
    return {"type": "number", "minimum": least, "maximum": most, **more}


def an_integer(least: int, most: int, **more: object) -> Schema:
    """A whole number within these bounds."""
    return {"type": "integer", "minimum": least, "maximum": most, **more}


def a_choice(known: Iterable[str]) -> Schema:
    """One of these words."""
    return {"type": "string", "enum": [str(each) for each in known]}


def a_list(of: Schema, *, least: int = 0, most: int | None = None) -> Schema:
    """An array."""
    bounds = ({"minItems": least} if least else {}) | ({} if most is None else {"maxItems": most})
    return {"type": "array", "items": of, **bounds}


def any_of(*schemas: Schema, **more: object) -> Schema:
    """What one of these says."""
    return {"anyOf": list(schemas), **more}


def maybe(schema: Schema) -> Schema:
    """Or null, which is as if it were not there."""
    return any_of(schema, NOTHING)


def ref(name: str) -> Schema:
    """A schema of the components."""
    return {"$ref": f"#/components/schemas/{name}"}


def an_object(
    required: Schema | None = None, maybe_there: Schema | None = None, *, open: bool = True, **more: object
) -> Schema:
    """An object with these properties; the second ones may be missing or null. `open`: it may have others."""
    properties = {**(required or {}), **{name: maybe(each) for name, each in (maybe_there or {}).items()}}
    shape: Schema = {"type": "object", "properties": properties, **more}
    if required:
        shape["required"] = list(required)
    return shape if open else {**shape, "additionalProperties": False}
