"""A request with its headers in a table: the framework's own goes through all of them at each look."""

from typing import TypeVar, overload

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

Default = TypeVar("Default")


class Head(Headers):
    """The headers of one request. Of those that came twice the first one counts, as in the framework's."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(raw=scope["headers"])
        self._first = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}

    @overload
    def get(self, key: str, /) -> str | None: ...

    @overload
    def get(self, key: str, default: Default, /) -> str | Default: ...

    def get(self, key: str, default: Default | None = None, /) -> str | Default | None:
        """The value of a header; its name is given in lower case."""
        return self._first.get(key, default)


class HttpRequest(Request):
    """A request whose head the edge has read: it lies in the scope."""

    @property
    def headers(self) -> Head:
        """See `Head`."""
        head: Head = self.scope["head"]
        return head
