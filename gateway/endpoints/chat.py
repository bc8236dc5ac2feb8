"""Chat completions: wait, stream, or leave with a job."""

from starlette.requests import Request
from starlette.responses import Response

from gateway import render
from gateway.chat_stream import ChatStream
from gateway.services import Services
from gateway.streaming import EventStream
from gateway.taking import Taken, Taking
from router.board import JobView

ENDPOINT = "/v1/chat/completions"


class Chat:
    """`/v1/chat/completions`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._taking = Taking(services)

    async def create(self, request: Request) -> Response:
        """A job from a chat request: 202 at once, or the answer when it is there."""
        taken = await self._taking.take(request, ENDPOINT)
        if taken.asked.is_async:
            return self._taking.left(taken)
        if taken.asked.stream:
            return self._streamed(taken)
        view = await self._taking.wait(request, taken)
        return await self._answer(view, render.rate_headers(taken.rooms))

    async def retrieve(self, request: Request) -> Response:
        """The finished object with 200, else the job with 202."""
        view = await self._taking.known(request, endpoint=ENDPOINT)
        if not view.state.is_terminal:
            return Response(render.job(view, quote=self._services.quotes.of(view)), 202, render.POLL_LATER, render.JSON)
        return await self._answer(view, {})

    def _streamed(self, taken: Taken) -> Response:
        job = taken.view.job
        stream = ChatStream(
            self._services.delivery,
            job,
            seconds=self._services.http.sync_wait_s,
            include_usage=taken.asked.include_usage,
            left=self._taking.leaving(taken),
        )
        return EventStream(stream.told, name=f"job_{job.id}", headers=taken.headers)

    async def _answer(self, view: JobView, headers: dict[str, str]) -> Response:
        result = await self._taking.result(view)
        return Response(result, headers=headers | render.answer_headers(view), media_type=render.JSON)
