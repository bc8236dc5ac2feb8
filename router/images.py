"""How large an image is, from its first bytes, and how many tokens that makes."""

import math

HEAD = 256 * 1024  # bytes: a JPEG has its size behind what cameras and editors put first
LEAST, MOST = 85, 1_600  # tokens
UNKNOWN = MOST
LOW = 256
LONG_EDGE = 1_568  # pixels; larger ones are shrunk to it before they are read
PIXELS_PER_TOKEN = 750
MOST_SEGMENTS = 1000
_SIZED = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # a JPEG's markers that a size follows

Size = tuple[int, int]


def tokens(head: bytes) -> int:
    """What an image counts for. `head` is its first bytes, up to `HEAD` of them."""
    found = size(head)
    return UNKNOWN if found is None else of_size(*found)


def of_size(width: int, height: int) -> int:
    """What an image of so many pixels counts for."""
    long_edge = max(width, height)
    if long_edge > LONG_EDGE:
        width, height = width * LONG_EDGE // long_edge, height * LONG_EDGE // long_edge
    return max(LEAST, min(MOST, math.ceil(width * height / PIXELS_PER_TOKEN)))


def size(head: bytes) -> Size | None:
    """Width and height in pixels; None where `head` does not say."""
    found = _png(head) or _gif(head) or _webp(head) or _bmp(head) or _jpeg(head)
    return found if found is not None and min(found) > 0 else None


def _png(head: bytes) -> Size | None:
    if not head.startswith(b"\x89PNG\r\n\x1a\n") or head[12:16] != b"IHDR" or len(head) < 24:
        return None
    return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])


def _gif(head: bytes) -> Size | None:
    if not head.startswith((b"GIF87a", b"GIF89a")) or len(head) < 10:
        return None
    return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")


def _bmp(head: bytes) -> Size | None:
    if not head.startswith(b"BM") or len(head) < 26:
        return None
    width, height = head[18:22], head[22:26]
    return int.from_bytes(width, "little"), abs(int.from_bytes(height, "little", signed=True))


def _webp(head: bytes) -> Size | None:
    if not head.startswith(b"RIFF") or head[8:12] != b"WEBP" or len(head) < 30:
        return None
    match head[12:16]:
        case b"VP8X":
            return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return None


def _jpeg(head: bytes) -> Size | None:
    if not head.startswith(b"\xff\xd8"):
        return None
    at = 2
    for _ in range(MOST_SEGMENTS):
        if len(head) < at + 9 or head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker in _SIZED:
            return int.from_bytes(head[at + 7 : at + 9]), int.from_bytes(head[at + 5 : at + 7])
        at += 1 if marker == 0xFF else 2 + int.from_bytes(head[at + 2 : at + 4])  # 0xFF: a byte of padding
    return None
