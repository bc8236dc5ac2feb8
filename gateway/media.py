"""What clients embed or point at: data URLs that tell the truth, links that lead outside."""

import binascii
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from gateway.body import InvalidRequestError
from policies.addresses import leads_inside

MAX_LINK = 8192  # characters
_DATA_URL = re.compile(r"data:([a-z0-9.+-]+/[a-z0-9.+-]+)((?:;[a-z0-9=_.+-]+)*);base64,", re.IGNORECASE)

# Where each format's mark lies within its first bytes.
_MARKS: Mapping[str, tuple[re.Pattern[bytes], ...]] = {
    "image/png": (re.compile(rb"\x89PNG\r\n\x1a\n"),),
    "image/jpeg": (re.compile(rb"\xff\xd8\xff"),),
    "image/gif": (re.compile(rb"GIF8[79]a"),),
    "image/webp": (re.compile(rb"RIFF....WEBP", re.DOTALL),),
    "image/bmp": (re.compile(rb"BM"),),
    "image/tiff": (re.compile(rb"II\*\x00"), re.compile(rb"MM\x00\*")),
    "application/pdf": (re.compile(rb".{0,64}%PDF-", re.DOTALL),),
    "audio/wav": (re.compile(rb"RIFF....WAVE", re.DOTALL),),
    "audio/mp3": (re.compile(rb"ID3"), re.compile(rb"\xff[\xe0-\xff]")),
    "audio/flac": (re.compile(rb"fLaC"),),
    "audio/ogg": (re.compile(rb"OggS"),),
    "video/mp4": (re.compile(rb"....ftyp", re.DOTALL),),
    "video/webm": (re.compile(rb"\x1a\x45\xdf\xa3"),),
}
_HEARD = ("audio/", "video/")
_OTHER_NAMES = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-ms-bmp": "image/bmp"}


def check_url(url: str, kind: str, param: str) -> None:
    """An http(s) link to a public host, or a data URL of a media type that starts with `kind` and whose bytes agree."""
    scheme = url[:8].partition(":")[0].lower()
    if scheme == "data":
        check_data_url(url, kind, param)
    elif scheme in ("http", "https"):
        _check_link(url, param)
    else:
        raise _invalid(param, "expected an http(s) URL or a data URL")


def check_data_url(url: str, kind: str, param: str) -> None:
    """A base64 data URL of a media type that starts with `kind` and whose bytes agree."""
    head = _DATA_URL.match(url[:256])
    if head is None:
        raise _invalid(param, "a data URL must read data:<media type>;base64,<data>")
    media_type = head[1].lower()
    media_type = _OTHER_NAMES.get(media_type, media_type)
    if not media_type.startswith(kind) or media_type not in _MARKS:
        known = ", ".join(sorted(name for name in _MARKS if name.startswith(kind)))
        raise _invalid(param, f"this media type is not supported here; these are: {known}")
    check_base64(url, media_type, param, start=head.end())


def is_sound(data: bytes) -> bool:
    """Whether it begins as a recording does; those of phones and browsers lie in files that could hold a film."""
    return any(mark.match(data) for name, marks in _MARKS.items() if name.startswith(_HEARD) for mark in marks)


def media_type_of(data: bytes) -> str | None:
    """What it begins as, of images and documents."""
    found = (name for name, marks in _MARKS.items() if any(mark.match(data) for mark in marks))
    return next((name for name in found if not name.startswith(_HEARD)), None)


def check_base64(text: str, media_type: str, param: str, *, start: int = 0) -> None:
    """`text` from `start` on is base64, and what it holds begins as a `media_type` does."""
    try:
        content = binascii.a2b_base64(text[start:] if start else text, strict_mode=True)
    except (binascii.Error, ValueError):  # ValueError: characters beyond ASCII
        raise _invalid(param, "the data is not valid base64") from None
    if not any(mark.match(content) for mark in _MARKS[media_type]):
        raise InvalidRequestError(
            f"Invalid '{param}': the data is not {media_type}, which it claims to be.", param, "media_type_mismatch"
        )


def _check_link(url: str, param: str) -> None:
    """Servers fetch it for the client, so it must not lead them to their own network."""
    try:
        host = urlsplit(url).hostname if len(url) <= MAX_LINK else None
    except ValueError:
        host = None
    if not host or not url.isascii() or not url.isprintable() or " " in url or "\\" in url or "%" in host:
        raise _invalid(param, f"expected a valid URL of at most {MAX_LINK} characters")
    if leads_inside(host.rstrip(".")):
        raise _invalid(param, "the URL must lead to a public host")


def _invalid(param: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid '{param}': {why}.", param, "invalid_value")
