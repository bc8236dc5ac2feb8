"""What of images and documents one message of Converse may carry: more is refused before it is sent. No I/O."""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping

from consumers.backend import BackendError
from policies.retries import Failure
from router import images

IMAGES, IMAGE_BYTES, IMAGE_PIXELS = 20, 3_932_160, 8000  # 3.75 MB; API reference of Message
DOCUMENTS, DOCUMENT_BYTES = 5, 4_718_592  # 4.5 MB; there
_DATA_URL = re.compile(r"\s*data:(image|application|text)/[^,]{0,200},", re.I)
_HEAD = images.HEAD // 3 * 4  # characters of base64


def addresses(message: object) -> Iterator[str]:
    """What a message embeds or points at."""
    content = message.get("content") if isinstance(message, Mapping) else None
    for part in content if isinstance(content, list) else []:
        for value in part.values() if isinstance(part, Mapping) else []:
            if isinstance(value, Mapping):
                named = [value.get(name) for name in ("url", "file_id", "file_data", "file_url")]
                yield from (text for text in named if isinstance(text, str))
            elif isinstance(value, str) and part.get("type") not in ("text", "input_text"):
                yield value


def check(messages: Iterable[object]) -> None:
    """Raises `BackendError`. Another model may take it: it counts as too long for this one.

    What stands between two answers of the model's is one message to Bedrock.
    """
    pictures = documents = 0
    for message in messages:
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            pictures = documents = 0
        for address in addresses(message):
            head = _DATA_URL.match(address[:256])
            if head is None:
                continue
            if head[1].lower() == "image":
                pictures += 1
                _check_image(address, head.end())
            else:
                documents += 1
                if _size(address, head.end()) > DOCUMENT_BYTES:
                    raise _refused("a document has at most 4.5 MB")
            if pictures > IMAGES or documents > DOCUMENTS:
                raise _refused(f"between two answers there are at most {IMAGES} images and {DOCUMENTS} documents")


def _check_image(address: str, start: int) -> None:
    if _size(address, start) > IMAGE_BYTES:
        raise _refused("an image has at most 3.75 MB")
    try:
        head = base64.b64decode(address[start : start + _HEAD])
    except ValueError:
        return  # Bedrock says what is wrong with it
    if max(images.size(head) or (0, 0)) > IMAGE_PIXELS:
        raise _refused(f"an image has at most {IMAGE_PIXELS} pixels a side")


def _size(address: str, start: int) -> int:
    return (len(address) - start) * 3 // 4


def _refused(limit: str) -> BackendError:
    return BackendError(
        Failure.TOO_LONG, f"models of Bedrock do not take this much: {limit}", code="too_much_media", param="messages"
    )
