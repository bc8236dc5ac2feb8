"""Chat completions: wait, stream, or leave with a job."""

import re
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from gateway import body, render
from gateway.accept import Acceptance
from gateway.auth import authenticate
from gateway.body import InvalidRequestError
from gateway.cancel import cancel
from gateway.delivery import calling
from gateway.errors import JobFailedError, UnknownJobError, WaitedTooLongError
from gateway.openai import ChatRequest
from gateway.reading import HungUpError, read
from gateway.services import Services
from gateway.streaming import StreamedJob
from policies.quota import Rooms
from router.board import JobView
from router.job import JobState

ENDPOINT = "/v1/chat/completions"
LONGEST_KEY = 255  # characters of an idempotency key
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class _Taken:
    """A job that was accepted, and how its caller wants it. `is_kept`: it goes on when the caller leaves."""

    view: JobView
    rooms: Rooms
    is_async: bool
    stream: bool
    include_usage: bool
    is_kept: bool

    @classmethod
    def of(cls, accepted: Acceptance, chat: ChatRequest) -> "_Taken":
        """Without the body where the caller waits: it would be held for as long."""
        view = accepted.view
        return cls(
            view=view if chat.is_async else replace(view, job=replace(view.job, body=b"")),
            rooms=accepted.rooms,
            is_async=chat.is_async,
            stream=chat.stream,
            include_usage=chat.include_usage,
            is_kept=chat.store or accepted.existing,
        )


class Chat:
    """`/v1/chat/completions`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, request: Request) -> Response:
        """A job from a chat request: 202 at once, or the answer when it is there."""
        taken = await self._take(request)
        headers = render.rate_headers(taken.rooms)
        if taken.is_async:
            headers |= {"location": f"/v1/jobs/{render.JOB}{taken.view.job.id}"} | render.POLL_LATER
            return Response(render.job(taken.view), 202, headers, render.JSON)
        if taken.stream:
            services = self._services
            leave = partial(cancel, taken.view, board=services.board, outbox=services.outbox)
            return StreamedJob(
                services.delivery,
                taken.view.job,
                seconds=services.http.sync_wait_s,
                include_usage=taken.include_usage,
                left=None if taken.is_kept else leave,
                headers=headers | render.answer_headers(taken.view),
            )
        view = await self._wait(request, taken)
        return await self._answer(view, headers | render.answer_headers(view))

    async def retrieve(self, request: Request) -> Response:
        """The finished object with 200, else the job with 202."""
        services = self._services
        holder = await authenticate(services.keys, services.tenants, request.headers.get("authorization"))
        job_id = render.job_id(request.path_params["id"])
        view = await services.board.view(holder.tenant, job_id) if job_id else None
        if view is None:
            raise UnknownJobError(request.path_params["id"])
        if not view.state.is_terminal:
            return Response(render.job(view), 202, render.POLL_LATER, render.JSON)
        return await self._answer(view, render.answer_headers(view))

    async def _take(self, request: Request) -> _Taken:
        """Nothing of the body is held any more once this returns."""
        services = self._services
        holder = await authenticate(services.keys, services.tenants, request.headers.get("authorization"))
        key = _idempotency_key(request)
        with services.inflight.request() as held:
            raw = await read(request, held, most=services.http.max_body)
            values = body.parse(raw)
            chat = ChatRequest.parse(values, prefers_async=_prefers_async(request))
            accepted = await services.desk.accept(
                holder,
                chat,
                endpoint=ENDPOINT,
                raw=raw,
                values=values,
                idempotency_key=key,
                channel="" if chat.is_async else services.delivery.channel,
                traceparent=_traceparent(request),
            )
        route = accepted.view.job.route
        services.metrics.accepted(route.lane, accepted.view.job.job_class)
        services.metrics.shadowed(accepted.shadows)
        return _Taken.of(accepted, chat)

    async def _wait(self, request: Request, taken: _Taken) -> JobView:
        services, job = self._services, taken.view.job
        async with calling(request.receive) as caller:
            view = await services.delivery.wait(job.tenant, job.id, caller, seconds=services.http.sync_wait_s)
            if not view.state.is_terminal and not taken.is_kept:
                await cancel(view, board=services.board, outbox=services.outbox)
            if caller.is_gone:
                raise HungUpError("the client hung up while it waited")
        if not view.state.is_terminal:
            raise WaitedTooLongError(job.id, kept=taken.is_kept)
        return view

    async def _answer(self, view: JobView, headers: dict[str, str]) -> Response:
        if view.state is not JobState.COMPLETED:
            raise JobFailedError(view.state, view.error)
        return Response(await self._services.delivery.result(view), headers=headers, media_type=render.JSON)


def _prefers_async(request: Request) -> bool:
    wishes = request.headers.get("prefer", "").lower().split(",")
    return any(wish.partition(";")[0].strip() == "respond-async" for wish in wishes)


def _traceparent(request: Request) -> str | None:
    """The caller's trace, when it is one (W3C Trace Context)."""
    given = request.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()):
        raise InvalidRequestError(
            f"Invalid 'Idempotency-Key': expected 1 to {LONGEST_KEY} visible ASCII characters.",
            "Idempotency-Key",
            "invalid_value",
        )
    return key
