"""The Responses API: wait, stream, or come back; whatever the state, a Response is a Response."""

from starlette.requests import Request
from starlette.responses import Response

from gateway import query, render
from gateway.errors import JobFailedError, UnknownJobError
from gateway.fields import invalid
from gateway.response_stream import ResponseStream
from gateway.services import Services
from gateway.streaming import EventStream
from gateway.taking import Taken, Taking
from router.board import JobView
from router.compact import encode
from router.conversations import is_stored
from router.job import JobState
from router.responses import ENDPOINT, Object

PAGE, LARGEST_PAGE = 20, 100
LARGEST_NUMBER = 10**8  # of an event


class Responses:
    """`/v1/responses`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._taking = Taking(services)
        self._conversations = services.delivery.conversations

    async def create(self, request: Request) -> Response:
        """A job from a request: the Response when it is there, its events, or with `background` as it is queued."""
        taken = await self._taking.take(request, ENDPOINT)
        if taken.asked.is_async:
            return self._taking.left(taken)
        if taken.asked.stream:
            return self._streamed(taken)
        if taken.asked.background:
            return await self._shown(taken.view)
        view = await self._taking.wait(request, taken)
        if view.state is not JobState.COMPLETED:
            raise JobFailedError(view.state, view.error)
        return await self._shown(view, headers=render.rate_headers(taken.rooms) | render.answer_headers(view))

    async def retrieve(self, request: Request) -> Response:
        """The Response as it is now, or with `?stream=true` its events, those after `starting_after` only."""
        view, asked = await self._known(request)
        after = query.whole(request, "starting_after", -1, most=LARGEST_NUMBER)
        if query.choice(request, "stream", "false", ("true", "false")) == "false":
            return await self._shown(view, asked)
        return self._told(view, after=after)

    async def cancel(self, request: Request) -> Response:
        """End it. Safe to repeat; one that has ended stays as it is."""
        view, asked = await self._known(request)
        return await self._shown(await self._taking.cancelled(request, view), asked)

    async def delete(self, request: Request) -> Response:
        """Forget a Response that has ended, and what it was asked."""
        view, _ = await self._known(request)
        await self._services.delivery.forget(view)
        return Response(
            encode({"id": f"resp_{view.job.id}", "object": "response", "deleted": True}), media_type=render.JSON
        )

    async def input_items(self, request: Request) -> Response:
        """A page of all that its model reads, the newest first if not said otherwise."""
        view, _ = await self._known(request)
        limit = query.whole(request, "limit", PAGE, least=1, most=LARGEST_PAGE)
        is_upwards = query.choice(request, "order", "desc", ("asc", "desc")) == "asc"
        kept = await self._conversations.kept(view.job.tenant, view.job.id)
        items = kept.items[:: 1 if is_upwards else -1] if kept else []
        after = request.query_params.get("after", "")
        ids = [item["id"] for item in items]
        if after and after not in ids:
            raise invalid("after", "this response has no item of that id")
        first = ids.index(after) + 1 if after else 0
        page = items[first : first + limit]
        shown = {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > first + limit,
        }
        return Response(encode(shown), media_type=render.JSON)

    def _streamed(self, taken: Taken) -> Response:
        stream = ResponseStream(
            self._services.delivery,
            taken.view,
            seconds=self._services.http.sync_wait_s,
            left=self._taking.leaving(taken),
        )
        return EventStream(stream.told, name=f"job_{taken.view.job.id}", failed=stream.failed, headers=taken.headers)

    def _told(self, view: JobView, *, after: int) -> Response:
        stream = ResponseStream(
            self._services.delivery, view, seconds=self._services.http.sync_wait_s, left=None, after=after
        )
        return EventStream(stream.told, name=f"job_{view.job.id}", failed=stream.failed)

    async def _known(self, request: Request) -> tuple[JobView, Object]:
        """The job, and what its request said."""
        view = await self._taking.known(request, endpoint=ENDPOINT)
        asked = await self._conversations.asked(view.job.tenant, view.job.id)
        if not is_stored(asked):
            raise UnknownJobError(view.job.id)
        return view, asked

    async def _shown(
        self, view: JobView, asked: Object | None = None, *, headers: dict[str, str] | None = None
    ) -> Response:
        shown = await self._conversations.response(view, asked)
        return Response(encode(shown), headers=headers, media_type=render.JSON)
