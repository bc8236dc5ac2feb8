"""Reads single values of a request, and words what is wrong with them as OpenAI does."""

from collections.abc import Iterable, Mapping

from gateway.body import InvalidRequestError

MAX_NAME = 256  # characters of a model's or tool's name

Values = Mapping[str, object]

# `path` is how OpenAI would name the place.


def required(values: Values, name: str, inside: str = "") -> object:
    if (value := values.get(name)) is None:
        raise missing(_join(inside, name))
    return value


def an_object(value: object, path: str) -> dict[str, object]:
    if type(value) is not dict:
        raise wrong_type(path, "an object", value)
    return value


def an_array(value: object, path: str) -> list[object]:
    if type(value) is not list:
        raise wrong_type(path, "an array", value)
    return value


def a_text(value: object, path: str, *, most: int | None = None) -> str:
    if type(value) is not str:
        raise wrong_type(path, "a string", value)
    if not value:
        raise invalid(path, "it is empty")
    if most is not None and len(value) > most:
        raise invalid(path, f"at most {most} characters")
    return value


def a_choice(value: object, path: str, known: Iterable[str]) -> str:
    if type(value) is not str:
        raise wrong_type(path, "a string", value)
    if value not in known:
        raise unknown_value(path, known)
    return value


def flag(values: Values, name: str, inside: str = "") -> bool:
    value = values.get(name)
    if value is None:
        return False
    if type(value) is not bool:
        raise wrong_type(_join(inside, name), "a boolean", value)
    return value


def integer(values: Values, name: str, least: int, most: int) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise wrong_type(name, "an integer", value)
    _check_range(value, name, least, most, "integer")
    return value


def number(values: Values, name: str, least: float, most: float, inside: str = "") -> float | None:
    value = values.get(name)
    if value is None:
        return None
    if type(value) is not int and type(value) is not float:
        raise wrong_type(_join(inside, name), "a number", value)
    _check_range(value, _join(inside, name), least, most, "decimal")
    return value


def _check_range(value: float, path: str, least: float, most: float, kind: str) -> None:
    if value < least:
        raise InvalidRequestError(
            f"Invalid '{path}': {kind} below minimum value. Expected a value >= {least}, but got {value} instead.",
            path,
            f"{kind}_below_min_value",
        )
    if value > most:
        raise InvalidRequestError(
            f"Invalid '{path}': {kind} above maximum value. Expected a value <= {most}, but got {value} instead.",
            path,
            f"{kind}_above_max_value",
        )


def _join(inside: str, name: str) -> str:
    return f"{inside}.{name}" if inside else name


_TYPES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
}


def missing(path: str) -> InvalidRequestError:
    return InvalidRequestError(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def wrong_type(path: str, expected: str, value: object) -> InvalidRequestError:
    got = _TYPES.get(type(value), "null")
    return InvalidRequestError(
        f"Invalid type for '{path}': expected {expected}, but got {got} instead.", path, "invalid_type"
    )


def unknown_value(path: str, known: Iterable[str]) -> InvalidRequestError:
    values = ", ".join(f"'{name}'" for name in known)
    return InvalidRequestError(f"Invalid value for '{path}'. Supported values are: {values}.", path, "invalid_value")


def invalid(path: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid '{path}': {why}.", path, "invalid_value")
