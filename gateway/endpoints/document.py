"""The OpenAPI document. It is shipped as a file, so that no process makes it."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from gateway import render

DOCUMENT = Path(__file__).parents[1] / "openapi.json"


class Document:
    """`/openapi.json`: needs no key, as the project's own pages say the same."""

    def __init__(self) -> None:
        self._text = DOCUMENT.read_bytes()

    async def read(self, _: Request) -> Response:
        """All addresses, what they take and what they give."""
        return Response(self._text, media_type=render.JSON)
