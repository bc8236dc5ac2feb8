"""What in a JSON value is not as botocore's own model of a service says: unknown, missing, or of another type."""

import base64
import binascii
from typing import Any

from botocore.model import ListShape, MapShape, Shape, StringShape, StructureShape

PLAIN: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "boolean": (bool,),
    "timestamp": (str, int, float),
}


def faults(value: Any, shape: Shape | None, at: str = "") -> list[str]:
    """Everything that is wrong, each with its place."""
    if shape is None:
        return []
    if isinstance(shape, StructureShape):
        return _of_structure(value, shape, at)
    if isinstance(shape, ListShape):
        if not isinstance(value, list):
            return [f"{at}: is no list"]
        return [fault for i, each in enumerate(value) for fault in faults(each, shape.member, f"{at}[{i}]")]
    if isinstance(shape, MapShape):
        if not isinstance(value, dict):
            return [f"{at}: is no map"]
        return [fault for key, each in value.items() for fault in faults(each, shape.value, f"{at}.{key}")]
    return _of_plain(value, shape, at)


def _of_structure(value: Any, shape: StructureShape, at: str) -> list[str]:
    if shape.is_document_type:
        return []
    if not isinstance(value, dict):
        return [f"{at}: is no structure"]
    found = [f"{at}.{name}: is no member of {shape.name}" for name in value if name not in shape.members]
    found += [f"{at}.{name}: is missing" for name in shape.required_members if name not in value]
    if shape.is_tagged_union and len(value) != 1:
        found.append(f"{at}: must have exactly one member")
    return found + [
        fault
        for name, each in value.items()
        if name in shape.members
        for fault in faults(each, shape.members[name], f"{at}.{name}")
    ]


def _of_plain(value: Any, shape: Shape, at: str) -> list[str]:
    if shape.type_name == "blob":
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            return [f"{at}: is no base64"]
        return []
    if isinstance(shape, StringShape) or shape.type_name == "string":
        if not isinstance(value, str):
            return [f"{at}: is no text"]
        most, least = shape.metadata.get("max"), shape.metadata.get("min", 0)
        if len(value) < least or (most is not None and len(value) > most):
            return [f"{at}: must have {least} to {most} characters"]
        known = getattr(shape, "enum", [])
        return [f"{at}: must be one of {', '.join(known)}"] if known and value not in known else []
    wanted = PLAIN[shape.type_name]
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        return [f"{at}: is no {shape.type_name}"]
    return []
