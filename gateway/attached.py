"""Uploaded files that a request names: their content is put in its place, so that the job needs the file no more."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway import render
from gateway.fields import invalid
from gateway.media import media_type_of
from gateway.reading import TooLargeError
from router.files import File, Files, Purpose
from router.payloads import PayloadLostError

PURPOSES = (Purpose.USER_DATA, Purpose.VISION, Purpose.ASSISTANTS)
Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Named:
    """A part that names a file: `holder` is the object in it whose `file_id` does."""

    part: Part
    holder: Part
    path: str

    @property
    def kind(self) -> str:
        """What the file's media type must begin with."""
        return "image/" if self.part["type"] == "input_image" else "application/"


@dataclass(frozen=True, slots=True)
class Attached:
    """With all that it puts in, a request has at most `most` bytes."""

    files: Files
    most: int

    async def put_in(
        self, tenant: str, values: Mapping[str, object], *, size: int, hold: Callable[[int], None]
    ) -> bool:
        """Whether any was named; the parts of `values` that do are changed. `size` is the request's.

        `hold` is told of the bytes of each file before they are read. Raises `InvalidRequestError`, `TooLargeError`,
        `PayloadUnavailableError`, `BoardUnavailableError`, and what `hold` does.
        """
        known: dict[str, tuple[str, str]] = {}  # the same file may be named often
        named = list(_named(values))
        for each in named:
            given = str(each.holder["file_id"])
            if given not in known:
                file = await self._file(tenant, given, each.path)
                hold(2 * file.size)
                known[given] = file.name, await self._data_url(file, each)
            name, url = known[given]
            size += len(url)
            if size > self.most:
                raise TooLargeError(self.most)
            if not url.startswith(f"data:{each.kind}"):
                raise invalid(f"{each.path}.file_id", f"the file is no {_WANTED[each.kind]}")
            del each.holder["file_id"]
            if each.part["type"] == "input_image":
                each.part["image_url"] = url
            else:
                each.holder.update(filename=each.holder.get("filename") or name, file_data=url)
        return bool(named)

    async def _file(self, tenant: str, given: str, path: str) -> File:
        file_id = render.file_id(given)
        file = await self.files.get(tenant, file_id) if file_id else None
        if file is None:
            raise invalid(f"{path}.file_id", "there is no such file; upload it first, with the purpose 'user_data'")
        if file.purpose not in PURPOSES:
            raise invalid(f"{path}.file_id", f"its purpose is '{file.purpose}', and not one of {', '.join(PURPOSES)}")
        if file.size > self.most:
            raise TooLargeError(self.most)
        return file

    async def _data_url(self, file: File, named: _Named) -> str:
        try:
            content = b"".join([piece async for piece in self.files.content(file)])
        except PayloadLostError:
            raise invalid(f"{named.path}.file_id", "the file is not there any more") from None
        media_type = media_type_of(content)
        if media_type is None:
            raise invalid(f"{named.path}.file_id", f"the file is no {_WANTED[named.kind]}")
        return f"data:{media_type};base64,{b64encode(content).decode()}"


_WANTED = {"image/": "image (PNG, JPEG, GIF, WebP, BMP or TIFF)", "application/": "PDF"}


def _named(values: Mapping[str, object]) -> Iterator[_Named]:
    """Of a request that its parser has checked."""
    for name in ("messages", "input"):
        for index, item in enumerate(_list(values.get(name))):
            for field in ("content", "output"):
                parts = _list(item.get(field)) if isinstance(item, dict) else []
                for number, part in enumerate(parts):
                    path = f"{name}[{index}].{field}[{number}]"
                    if not isinstance(part, dict):
                        continue
                    if part.get("type") in ("input_file", "input_image") and part.get("file_id"):
                        yield _Named(part, part, path)
                    elif (
                        part.get("type") == "file"
                        and isinstance(part.get("file"), dict)
                        and part["file"].get("file_id")
                    ):
                        yield _Named(part, part["file"], f"{path}.file")


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
