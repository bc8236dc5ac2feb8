"""How many pages a PDF has, without a reader of PDFs: its page objects are counted, packed ones included."""

import re
import zlib
from collections.abc import Iterator

TOKENS_PER_PAGE = 1_650
BYTES_PER_PAGE = 50_000  # where no page is found: it is encrypted, or no PDF
MOST_PAGES = 5_000
MOST_PACKED = 500  # streams of objects that are unpacked
PACKED = 256 * 1024  # bytes that are read of one
MOST_UNPACKED = 16 * 1024 * 1024  # bytes, of all of them together
STREAM = 1024 * 1024  # bytes that one may unpack to

_PAGE = re.compile(rb"/Type\s{0,8}/Page(?![A-Za-z])")
_PACKED = re.compile(rb"/ObjStm\b.{0,500}?stream\r?\n", re.DOTALL)


def pages(data: bytes) -> int:
    """1 to `MOST_PAGES`. Takes time linear in the size, and memory that is bounded."""
    found = len(_PAGE.findall(data)) + sum(len(_PAGE.findall(text)) for text in _unpacked(data))
    return max(1, min(MOST_PAGES, found or -(-len(data) // BYTES_PER_PAGE)))


def tokens(data: bytes) -> int:
    """What a PDF counts for."""
    return pages(data) * TOKENS_PER_PAGE


def _unpacked(data: bytes) -> Iterator[bytes]:
    """What lies in its compressed streams of objects, of which newer files have most."""
    room = MOST_UNPACKED
    for number, packed in enumerate(_PACKED.finditer(data)):
        if number >= MOST_PACKED or room <= 0:
            return
        try:
            text = zlib.decompressobj().decompress(data[packed.end() : packed.end() + PACKED], min(STREAM, room))
        except zlib.error:
            continue
        room -= len(text)
        yield text
