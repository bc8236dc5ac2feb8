"""Reads what stands behind the `?` of an address."""

from collections.abc import Iterable

from starlette.requests import Request

from gateway.body import InvalidRequestError
from gateway.fields import unknown_value

LARGEST_NUMBER = 10**8  # of an event


def whole(request: Request, name: str, default: int, *, least: int = 0, most: int) -> int:
    """A whole number within these bounds. Raises `InvalidRequestError`, as does the other."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        raise InvalidRequestError(
            f"Invalid '{name}': expected a whole number from {least} to {most}.", name, "invalid_value"
        )
    return int(text)


def event_number(request: Request, *, default: int) -> int:
    """After which event a stream is to go on."""
    last = request.headers.get("last-event-id", "")
    if last.isascii() and last.isdecimal() and len(last) < 10:  # otherwise it is not one of ours
        return int(last)
    return whole(request, "starting_after", default, most=LARGEST_NUMBER)


def choice(request: Request, name: str, default: str, known: Iterable[str]) -> str:
    """One of these words. An empty one is none of them."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if text not in known:
        raise unknown_value(name, known)
    return text
