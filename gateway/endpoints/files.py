"""Files: uploaded as a stream, listed, read, deleted."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from ulid import ULID

from gateway import query, render
from gateway.body import InvalidRequestError
from gateway.errors import UnknownFileError
from gateway.fields import invalid, missing, unknown_value
from gateway.forecast import Forecast
from gateway.multipart import Form, Part
from gateway.parsers import PARSERS
from gateway.services import Services
from gateway.taking import Taking
from router.compact import encode
from router.files import File, Purpose

UPLOAD_S = 3600.0
HELD = 16 * 1024 * 1024  # what an upload holds at most: the pieces on their way to the object store
LARGEST_PAGE = 10_000
LONGEST_NAME = 255
SHORTEST_S, LONGEST_S = 3600, 30 * 86_400
CHAT, JSONL = "/v1/chat/completions", "application/jsonl"
UPLOADED = (Purpose.ASSISTANTS, Purpose.BATCH, Purpose.USER_DATA, Purpose.VISION)


@dataclass(frozen=True, slots=True)
class _Uploaded:
    """A file that is in the object store, and the other fields that came with it."""

    name: str
    size: int
    fields: Mapping[str, str]


class FilesApi:
    """`/v1/files`. Another tenant's file is not there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._taking = Taking(services)

    async def create(self, request: Request) -> Response:
        """Store a file as it streams in."""
        services = self._services
        holder = await self._taking.holder(request)
        file_id = str(ULID())
        with services.inflight.request() as held:
            held.add(min(HELD, services.http.max_body))
            uploaded = await self._upload(request, holder.tenant, file_id)
        purpose = uploaded.fields.get("purpose")
        if purpose is None:
            raise missing("purpose")
        if purpose not in UPLOADED:
            raise unknown_value("purpose", UPLOADED)
        file = await services.files.add(
            holder.tenant,
            file_id,
            name=uploaded.name,
            purpose=Purpose(purpose),
            size=uploaded.size,
            ttl_s=_expires_after(uploaded.fields),
        )
        return Response(encode(render.file(file)), media_type=render.JSON)

    async def page(self, request: Request) -> Response:
        """A page, the newest first unless said otherwise."""
        holder = await self._taking.holder(request)
        limit = query.whole(request, "limit", LARGEST_PAGE, least=1, most=LARGEST_PAGE)
        purpose = query.choice(request, "purpose", "", list(Purpose))
        order = query.choice(request, "order", "desc", ("asc", "desc"))
        after = request.query_params.get("after", "")
        if after and (after := render.file_id(after) or "") == "":
            raise invalid("after", "expected a file's id")
        found = await self._services.files.page(
            holder.tenant,
            after=after,
            limit=limit + 1,
            purpose=Purpose(purpose) if purpose else None,
            oldest_first=order == "asc",
        )
        shown = [render.file(file) for file in found[:limit]]
        return Response(encode(render.list_of(shown, has_more=len(found) > limit)), media_type=render.JSON)

    async def retrieve(self, request: Request) -> Response:
        """What is known of it."""
        return Response(encode(render.file(await self._known(request))), media_type=render.JSON)

    async def content(self, request: Request) -> Response:
        """Its bytes."""
        file = await self._known(request)
        pieces = self._services.files.content(file)
        first = await anext(pieces, b"")  # what is wrong with the object store is seen before the answer begins
        headers = {"content-length": str(file.size)}
        return StreamingResponse(_after(first, pieces), headers=headers, media_type="application/octet-stream")

    async def routes(self, request: Request) -> Response:
        """Where the request on each of its lines would go; none is made a job."""
        services = self._services
        holder, file = await self._taking.holder(request), await self._known(request)
        endpoint = query.choice(request, "endpoint", CHAT, PARSERS)
        forecast = Forecast(services.desk, services.desk.payloads, services.http.max_body)
        pieces = forecast.routes(holder, file, endpoint)
        first = await anext(pieces, b"")
        return StreamingResponse(_after(first, pieces), media_type=JSONL)

    async def delete(self, request: Request) -> Response:
        """Forget it, and its bytes."""
        file = await self._known(request)
        if not await self._services.files.delete(file.tenant, file.id):
            raise UnknownFileError
        return Response(
            encode({"id": render.FILE + file.id, "object": "file", "deleted": True}), media_type=render.JSON
        )

    async def _upload(self, request: Request, tenant: str, file_id: str) -> _Uploaded:
        most = self._services.file_settings.max_bytes
        form = Form(request, most=most, total_s=UPLOAD_S)
        name, size, fields = None, 0, {}
        async for part in form.parts():
            if part.name != "file":
                fields[part.name] = await part.text()
            elif name is not None:
                raise InvalidRequestError("Invalid 'file': one file at a time.", "file", "invalid_value")
            elif not part.filename:
                raise InvalidRequestError("Invalid 'file': it has no file name.", "file", "invalid_value")
            else:
                name = _name(part.filename)
                size = await self._store(request, tenant, file_id, part)
        if name is None:
            raise missing("file")
        return _Uploaded(name, size, fields)

    async def _store(self, request: Request, tenant: str, file_id: str, part: Part) -> int:
        declared = request.headers.get("content-length", "")
        expected = int(declared[:20]) if declared.isdecimal() else 1
        return await self._services.files.store(tenant, file_id, part.pieces(), expected=expected)

    async def _known(self, request: Request) -> File:
        holder = await self._taking.holder(request)
        file_id = render.file_id(request.path_params["id"])
        file = await self._services.files.get(holder.tenant, file_id) if file_id else None
        if file is None:
            raise UnknownFileError
        return file


async def _after(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in pieces:
        yield piece


def _name(given: str) -> str:
    """A file's name without folders and control characters; it is only ever shown."""
    name = "".join(c for c in given.replace("\\", "/").rpartition("/")[2] if c.isprintable())
    return name[-LONGEST_NAME:] or "file"


def _expires_after(fields: Mapping[str, str]) -> float | None:
    """Seconds that the file is to be kept."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise unknown_value("expires_after.anchor", ("created_at",))
    return float(seconds_kept(seconds, "expires_after.seconds"))


def seconds_kept(value: object, path: str) -> int:
    """How long a file is to be kept, as OpenAI allows it."""
    text = str(value)
    if not (text.isascii() and text.isdecimal() and SHORTEST_S <= int(text[:10]) <= LONGEST_S):
        raise invalid(path, f"expected a whole number from {SHORTEST_S} to {LONGEST_S}")
    return int(text)
