"""Large bodies and results: in an object store, found by a pointer that names their SHA-256."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import ObjectStore, from_url

from router.job import JSON, Payload

PIECE = 5 * 1024 * 1024  # the least that an S3 multipart upload takes
AHEAD = 2  # pieces of one upload that are on their way at once


class PayloadUnavailableError(Exception):
    """The object store did not answer; trying again may help."""


class PayloadLostError(Exception):
    """There is nothing at this pointer, or something else than was put there."""


class Payloads:
    """Puts and gets bytes. Safe to repeat: the same path and bytes give the same pointer."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def open(cls, url: str) -> "Payloads":
        """`file:///folder` (made when missing), `s3://bucket/prefix`, `gs://...` or `az://...`."""
        if url.startswith("file://"):
            Path(url.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
        return cls(from_url(url))

    async def put(self, path: str, data: bytes, *, media_type: str = JSON) -> Payload:
        """Return once the bytes are safe; raise `PayloadUnavailableError` otherwise."""
        try:
            await obstore.put_async(self._store, path, data)
        except (BaseError, OSError) as error:
            raise PayloadUnavailableError(
                f"the object store refused {len(data)} bytes: {type(error).__name__}"
            ) from error
        return Payload(path=path, sha256=sha256(data).hexdigest(), size=len(data), media_type=media_type)

    async def upload(self, path: str, pieces: AsyncIterator[bytes]) -> Payload:
        """Like `put`, for what is not held at once. Unless all pieces came, nothing is there.

        Raises what `pieces` raises, too.
        """
        digest, size = sha256(), 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal size
            async for piece in pieces:
                digest.update(piece)
                size += len(piece)
                yield piece

        try:
            await obstore.put_async(
                self._store, path, counted(), use_multipart=True, chunk_size=PIECE, max_concurrency=AHEAD
            )
        except (BaseError, OSError) as error:
            raise PayloadUnavailableError(f"the object store refused an upload: {type(error).__name__}") from error
        return Payload(path=path, sha256=digest.hexdigest(), size=size)

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        """The bytes at a path, a piece at a time. Raises as `get` does, also in the middle."""
        try:
            found = await obstore.get_async(self._store, path)
            async for piece in found.stream(min_chunk_size=PIECE // 5):
                yield bytes(piece)
        except (NotFoundError, FileNotFoundError, ValueError):
            raise PayloadLostError("the object store has nothing at this pointer") from None
        except (BaseError, OSError) as error:
            raise PayloadUnavailableError(f"the object store did not answer: {type(error).__name__}") from error

    async def part(self, path: str, start: int, length: int) -> bytes:
        """So many bytes from `start` on, which must lie within what is there. Raises as `get` does."""
        try:
            return bytes(await obstore.get_range_async(self._store, path, start=start, length=length))
        except (NotFoundError, FileNotFoundError, ValueError):
            raise PayloadLostError("the object store has nothing at this pointer") from None
        except (BaseError, OSError) as error:
            raise PayloadUnavailableError(f"the object store did not answer: {type(error).__name__}") from error

    async def get(self, payload: Payload) -> bytes:
        """The bytes that were put. Raises `PayloadUnavailableError` or `PayloadLostError`."""
        try:
            found = await obstore.get_async(self._store, payload.path)
            data = bytes(await found.bytes_async())
        except (NotFoundError, FileNotFoundError, ValueError):  # a ValueError for a path that none can have
            raise PayloadLostError("the object store has nothing at this pointer") from None
        except (BaseError, OSError) as error:
            raise PayloadUnavailableError(f"the object store did not answer: {type(error).__name__}") from error
        if sha256(data).hexdigest() != payload.sha256:
            raise PayloadLostError("what the object store has at this pointer is not what was put there")
        return data

    async def remove(self, path: str) -> None:
        """Forget these bytes; nothing happens when there are none."""
        try:
            await obstore.delete_async(self._store, path)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, OSError) as error:
            raise PayloadUnavailableError(f"the object store did not answer: {type(error).__name__}") from error

    async def remove_all(self, folder: str) -> None:
        """Forget everything below this folder."""
        try:
            paths = [each["path"] async for page in obstore.list(self._store, folder) for each in page]
            if paths:
                await obstore.delete_async(self._store, paths)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, OSError) as error:
            raise PayloadUnavailableError(f"the object store did not answer: {type(error).__name__}") from error


def body_path(tenant: str, job_id: str) -> str:
    """Where a job's body lies."""
    return f"bodies/{tenant}/{job_id}"


def input_path(tenant: str, job_id: str) -> str:
    """Where what a response was asked lies."""
    return f"inputs/{tenant}/{job_id}"


def result_path(tenant: str, job_id: str, attempt: int) -> str:
    """Where an attempt's result lies: a late one never overwrites the one that counts."""
    return f"results/{tenant}/{job_id}.{attempt}"
