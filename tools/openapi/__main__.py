"""Writes the document where the gateway serves it from: `python -m tools.openapi`."""

import json

from gateway.endpoints.document import DOCUMENT
from tools.openapi.document import document


def text() -> str:
    """The document as it is shipped."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(text(), encoding="utf-8")
