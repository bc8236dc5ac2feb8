"""Batches: many requests in one file, each of which becomes a job."""

import re
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response
from ulid import ULID

from gateway import body, query, render
from gateway.accept import IdempotencyKeyReusedError
from gateway.asked import idempotency_key, metadata_of
from gateway.batch_stream import BatchStream
from gateway.body import InvalidRequestError
from gateway.endpoints.files import seconds_kept
from gateway.errors import TooManyBatchesError, UnknownBatchError
from gateway.fields import Values, a_choice, a_text, an_object, invalid, required, unknown_value, wrong_type
from gateway.parsers import PARSERS
from gateway.reading import read
from gateway.services import Services
from gateway.streaming import EventStream
from gateway.taking import Taking
from policies.keys import KeyHolder
from router.batches import Batch, Created, KeyReused, NoInput, Order, TooManyBatches
from router.compact import encode
from router.files import File, Purpose

PAGE, LARGEST_PAGE = 20, 100
KNOWN = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
LONGEST_WINDOW_H = 24
_WINDOW = re.compile(r"([1-9][0-9]?)h")


class BatchesApi:
    """`/v1/batches`. Another tenant's batch is not there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._taking = Taking(services)

    async def create(self, request: Request) -> Response:
        """Take a batch; its file is looked at afterwards."""
        services = self._services
        holder = await self._taking.holder(request)
        key = idempotency_key(request.headers.get("idempotency-key"))
        with services.inflight.request() as held:
            raw = await read(request, held, most=services.http.max_body)
            values = body.parse(raw)
        if unknown := sorted(set(values) - set(KNOWN)):
            raise InvalidRequestError(f"Unknown parameter: '{unknown[0][:64]}'.", unknown[0][:64], "unknown_parameter")
        order = _order(values, await self._input(values, holder), holder)
        digests = (sha256(key.encode()).hexdigest(), sha256(raw).hexdigest()) if key else None
        made = await services.batches.create(holder.tenant, str(ULID()), order, idempotency=digests)
        match made:
            case Created(batch_id):
                return self._shown(await services.batches.view(holder.tenant, batch_id))
            case KeyReused():
                raise IdempotencyKeyReusedError
            case NoInput():
                raise _no_file()
            case TooManyBatches():
                raise TooManyBatchesError

    async def page(self, request: Request) -> Response:
        """A page, the newest first."""
        holder = await self._taking.holder(request)
        limit = query.whole(request, "limit", PAGE, least=1, most=LARGEST_PAGE)
        after = request.query_params.get("after", "")
        if after and (after := render.batch_id(after) or "") == "":
            raise invalid("after", "expected a batch's id")
        found = await self._services.batches.page(holder.tenant, after=after, limit=limit + 1)
        shown = [render.batch(batch) for batch in found[:limit]]
        return Response(encode(render.list_of(shown, has_more=len(found) > limit)), media_type=render.JSON)

    async def retrieve(self, request: Request) -> Response:
        """The batch as it is."""
        return self._shown(await self._known(request))

    async def cancel(self, request: Request) -> Response:
        """End it; what has ended is kept. One that has ended stays as it is."""
        batch = await self._known(request)
        await self._services.batches.cancel(batch.tenant, batch.id)
        return self._shown(await self._known(request))

    async def events(self, request: Request) -> Response:
        """What happens to it, as server-sent events, from any number on."""
        batch = await self._known(request)
        services = self._services
        after = query.event_number(request, default=0)
        stream = BatchStream(services.delivery, services.batches, batch, services.http.sync_wait_s, after)
        return EventStream(stream.told, name=render.BATCH + batch.id, failed=stream.failed)

    async def _input(self, values: Values, holder: KeyHolder) -> File:
        given = a_text(required(values, "input_file_id"), "input_file_id", most=64)
        file_id = render.file_id(given)
        file = await self._services.files.get(holder.tenant, file_id) if file_id else None
        if file is None:
            raise _no_file()
        if file.purpose is not Purpose.BATCH:
            raise invalid("input_file_id", "the file was uploaded for another purpose than 'batch'")
        if file.size > (most := self._services.batch_settings.max_bytes):
            raise InvalidRequestError(
                f"Invalid 'input_file_id': the file has more than {most} bytes.", "input_file_id", "file_too_large"
            )
        return file

    async def _known(self, request: Request) -> Batch:
        holder = await self._taking.holder(request)
        batch_id = render.batch_id(request.path_params["id"])
        batch = await self._services.batches.view(holder.tenant, batch_id) if batch_id else None
        if batch is None:
            raise UnknownBatchError
        return batch

    def _shown(self, batch: Batch | None) -> Response:
        if batch is None:
            raise UnknownBatchError
        return Response(encode(render.batch(batch)), media_type=render.JSON)


def _order(values: Values, file: File, holder: KeyHolder) -> Order:
    endpoint = a_choice(required(values, "endpoint"), "endpoint", PARSERS)
    output_ttl_s = None
    if (given := values.get("output_expires_after")) is not None:
        policy = an_object(given, "output_expires_after")
        a_choice(required(policy, "anchor", "output_expires_after"), "output_expires_after.anchor", ("created_at",))
        if type(seconds := required(policy, "seconds", "output_expires_after")) is not int:
            raise wrong_type("output_expires_after.seconds", "an integer", seconds)
        output_ttl_s = float(seconds_kept(seconds, "output_expires_after.seconds"))
    return Order(
        endpoint=endpoint,
        input=file.id,
        input_bytes=file.size,
        window_s=_window_s(required(values, "completion_window")),
        metadata=metadata_of(values),
        key_id=holder.id,
        key_name=holder.name,
        output_ttl_s=output_ttl_s,
    )


def _window_s(value: object) -> float:
    found = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[1]) > LONGEST_WINDOW_H:
        raise unknown_value("completion_window", ("1h", "2h", "...", "24h"))
    return int(found[1]) * 3600.0


def _no_file() -> InvalidRequestError:
    return InvalidRequestError(
        "Invalid 'input_file_id': there is no such file. Upload it first, with the purpose 'batch'.",
        "input_file_id",
        "file_not_found",
    )
