"""Files of tenants: their bytes in the object store, what is known of them on the board."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from policies.scripts import Script, Scripts, Value
from router import compact
from router.payloads import Payloads

UNFINISHED_S = 86_400.0  # after that the bytes of an upload that never ended are removed


class Purpose(StrEnum):
    """What a file is for."""

    ASSISTANTS = "assistants"
    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"  # ours to make
    USER_DATA = "user_data"
    VISION = "vision"


@dataclass(frozen=True, slots=True)
class File:
    """A whole file; its bytes lie at `path`. Moments are seconds since the epoch, on Redis' clock."""

    id: str
    tenant: str
    name: str
    purpose: Purpose
    size: int
    created_at: float
    expires_at: float

    @property
    def path(self) -> str:
        """Where its bytes lie in the object store."""
        return file_path(self.tenant, self.id)


class FilesFullError(Exception):
    """The tenant has as many files or bytes as it may."""


class FileInUseError(Exception):
    """A batch that has not ended reads the file."""


class Files:
    """The files of all tenants. Raises `BoardUnavailableError`; every method may run twice with the same effect.

    A tenant has at most `most_bytes` in all of its files, each of which is kept for `ttl_s` unless it says less.
    """

    def __init__(self, scripts: Scripts, payloads: Payloads, *, most_bytes: int, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self._scripts = scripts
        self._payloads = payloads
        self._most_bytes = most_bytes
        self._begin = _script("begin")
        self._add = _script("add")
        self._get = _script("get")
        self._page = _script("page")
        self._delete = _script("delete")

    async def store(self, tenant: str, file_id: str, pieces: AsyncIterator[bytes], *, expected: int) -> int:
        """Put the bytes of a file into the object store, and return how many there are; `add` makes them a file.

        Raises `FilesFullError` when `expected` bytes are too many, what `pieces` raises, `PayloadUnavailableError`.
        """
        path = file_path(tenant, file_id)
        if not await self._run(self._begin, tenant, path, expected, self._most_bytes, int(UNFINISHED_S * 1000)):
            raise FilesFullError
        return (await self._payloads.upload(path, pieces)).size

    async def add(
        self, tenant: str, file_id: str, *, name: str, purpose: Purpose, size: int, ttl_s: float | None = None
    ) -> File:
        """The file, from now on: its bytes are stored."""
        about = compact.text({"name": name, "purpose": purpose})
        kept_ms = int((ttl_s or self.ttl_s) * 1000)
        path = file_path(tenant, file_id)
        answer = await self._run(self._add, tenant, file_id, about, size, path, kept_ms, durable=True)
        created, expires = cast("list[bytes]", answer)
        return File(file_id, tenant, name, purpose, size, int(created) / 1000, int(expires) / 1000)

    async def get(self, tenant: str, file_id: str) -> File | None:
        """One file; None when there is none, or not any more."""
        answer = await self._run(self._get, tenant, file_id)
        return _file(tenant, [file_id.encode(), *cast("list[bytes]", answer)]) if answer else None

    async def page(
        self, tenant: str, *, after: str, limit: int, purpose: Purpose | None = None, oldest_first: bool = False
    ) -> list[File]:
        """Files after that id ("" is the start), the newest first unless said otherwise."""
        order = "asc" if oldest_first else "desc"
        rows = cast("list[list[bytes]]", await self._run(self._page, tenant, after, limit, str(purpose or ""), order))
        return [_file(tenant, row) for row in rows]

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Forget a file; False when there is none. Raises `FileInUseError`."""
        answer = await self._run(self._delete, tenant, file_id, durable=True)
        if answer == b"used":
            raise FileInUseError
        return bool(answer)

    def content(self, file: File) -> AsyncIterator[bytes]:
        """Its bytes, a piece at a time. Raises `PayloadUnavailableError`, `PayloadLostError`."""
        return self._payloads.stream(file.path)

    async def _run(self, script: Script, tenant: str, *arguments: Value, durable: bool = False) -> object:
        prefix = f"{{t:{tenant}}}:"
        return await self._scripts.run(script, [f"{prefix}files"], [prefix, *arguments], durable=durable)


def file_path(tenant: str, file_id: str) -> str:
    """Where the bytes of a file lie."""
    return f"files/{tenant}/{file_id}"


def _script(name: str) -> Script:
    return Script.load("router", "board_functions", "files_functions", f"files_{name}")


def _file(tenant: str, row: Sequence[bytes]) -> File:
    file_id, about, created, expires, size = row
    values = json.loads(about)
    purpose = Purpose(values["purpose"])
    moments = int(created) / 1000, int(expires) / 1000
    return File(file_id.decode(), tenant, values["name"], purpose, int(size), *moments)
