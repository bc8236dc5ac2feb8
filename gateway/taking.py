"""What every endpoint that makes jobs does with a request: take it, then leave its caller, or wait."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from gateway import body, render
from gateway.accept import Acceptance, OverQuotaError
from gateway.asked import Asked, idempotency_key, trace
from gateway.auth import authenticate
from gateway.delivery import calling
from gateway.errors import JobFailedError, UnknownJobError, WaitedTooLongError
from gateway.fields import Values
from gateway.parsers import PARSERS
from gateway.reading import Held, HungUpError, read
from gateway.services import Services
from policies.keys import KeyHolder
from policies.quota import Rooms
from policies.scripts import BoardUnavailableError
from policies.values import dataclass
from router.board import JobView
from router.job import JobState

CANCEL_S = 3.0  # how long a cancel waits for the end that it asked for

# A request's body as the job keeps it, and its values. The last argument is how many bytes it may have.
Reading = Callable[[Request, Held, int], Awaitable[tuple[bytes, Values]]]


async def read_json(request: Request, held: Held, most: int) -> tuple[bytes, Values]:
    """A body of JSON, byte for byte. Raises what `reading.read` and `body.parse` do."""
    raw = await read(request, held, most=most)
    return raw, body.parse(raw)


@dataclass(frozen=True, slots=True)
class Taken:
    """A job that was accepted, and how its caller wants it. `is_kept`: it goes on when the caller leaves."""

    view: JobView
    rooms: Rooms
    asked: Asked
    is_kept: bool

    @classmethod
    def of(cls, accepted: Acceptance, asked: Asked) -> "Taken":
        """Without the body where the caller waits: it would be held for as long."""
        view = accepted.view
        return cls(
            view=view if asked.is_async else replace(view, job=replace(view.job, body=b"")),
            rooms=accepted.rooms,
            asked=asked,
            is_kept=asked.store or asked.background or accepted.existing,
        )

    @property
    def headers(self) -> dict[str, str]:
        """Of an answer that is not there yet: what room is left, and where it will come from."""
        return render.rate_headers(self.rooms) | render.answer_headers(self.view)


class Taking:
    """Takes requests for jobs over HTTP. Every method raises what `gateway.errors` knows."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def take(self, request: Request, endpoint: str, reading: Reading = read_json) -> Taken:
        """A job from a request. Nothing of the body is held any more once this returns."""
        services = self._services
        holder = await self.holder(request)
        key = idempotency_key(request.headers.get("idempotency-key"))
        with services.inflight.request() as held:
            raw, values = await reading(request, held, services.http.max_body)
            asked = PARSERS[endpoint](values, prefers_async=_prefers_async(request))
            began = time.perf_counter()
            try:
                accepted = await services.desk.accept(
                    holder,
                    asked,
                    endpoint=endpoint,
                    raw=raw,
                    values=values,
                    idempotency_key=key,
                    channel=services.delivery.channel if asked.waits else "",
                    hold=held.add,
                    traceparent=trace(request.headers.get("traceparent", "")),
                )
            except OverQuotaError as error:
                services.metrics.refused(error.limit, is_budget=error.seconds is None)
                raise
        job = accepted.view.job
        services.metrics.accepted(job.route.lane, job.job_class, time.perf_counter() - began)
        services.metrics.shadowed(accepted.shadows)
        return Taken.of(accepted, asked)

    def left(self, taken: Taken) -> Response:
        """The answer to a caller who does not wait."""
        headers = {"location": f"/v1/jobs/{render.JOB}{taken.view.job.id}"} | render.POLL_LATER
        return Response(
            render.job(taken.view, quote=self._services.quotes.of(taken.view)),
            202,
            render.rate_headers(taken.rooms) | headers,
            render.JSON,
        )

    async def wait(self, request: Request, taken: Taken) -> JobView:
        """The job once it has ended."""
        services, job = self._services, taken.view.job
        async with calling(request.receive) as caller:
            view = await services.delivery.wait(job.tenant, job.id, caller, seconds=services.http.sync_wait_s)
            if not view.state.is_terminal and not taken.is_kept:
                await services.cancel(view)
            if caller.is_gone:
                raise HungUpError("the client hung up while it waited")
        if not view.state.is_terminal:
            raise WaitedTooLongError(job.id, kept=taken.is_kept)
        return view

    def leaving(self, taken: Taken) -> Callable[[], Awaitable[None]] | None:
        """What is to be done when the caller of a stream leaves; None lets the job go on."""
        services = self._services
        return None if taken.is_kept else partial(services.cancel, taken.view)

    async def cancelled(self, request: Request, view: JobView) -> JobView:
        """The job after its owner has ended it, or as it is when that takes longer than `CANCEL_S`. Safe to repeat."""
        if view.state.is_terminal:
            return view
        services, job = self._services, view.job
        await services.cancel(view)
        async with calling(request.receive) as caller:
            return await services.delivery.wait(job.tenant, job.id, caller, seconds=CANCEL_S)

    async def result(self, view: JobView) -> bytes:
        """The OpenAI object of a job that has ended."""
        if view.state is not JobState.COMPLETED:
            raise JobFailedError(view.state, view.error)
        return await self._services.delivery.result(view)

    async def holder(self, request: Request) -> KeyHolder:
        """Whose request this is."""
        services = self._services
        return await authenticate(services.keys, services.tenants, services.epoch, request.headers.get("authorization"))

    async def known(self, request: Request, *, endpoint: str | None = None) -> JobView:
        """The job that the address names, as it is now. Another tenant's, or another endpoint's, is not there."""
        holder = await self.holder(request)
        job_id = render.job_id(request.path_params["id"])
        view = await self._services.board.view(holder.tenant, job_id) if job_id else None
        if view is None and (fault := self._services.epoch.fault) is not None:  # it may well have been there
            raise BoardUnavailableError(fault)
        if view is None or (endpoint is not None and view.job.endpoint != endpoint):
            raise UnknownJobError(request.path_params["id"])
        return view


def _prefers_async(request: Request) -> bool:
    wishes = request.headers.get("prefer", "").lower().split(",")
    return any(wish.partition(";")[0].strip() == "respond-async" for wish in wishes)
