"""Endpoints whose answer comes whole: embeddings, images, speech, transcriptions."""

from starlette.requests import Request
from starlette.responses import Response

from gateway import render
from gateway.services import Services
from gateway.taking import Reading, Taking, read_json


class Whole:
    """One such endpoint. `reading` is how its requests are read."""

    def __init__(self, services: Services, endpoint: str, reading: Reading = read_json) -> None:
        self._taking = Taking(services)
        self._endpoint = endpoint
        self._reading = reading

    async def create(self, request: Request) -> Response:
        """A job: 202 at once, or the answer when it is there, as the worker stored it."""
        taken = await self._taking.take(request, self._endpoint, self._reading)
        if taken.asked.is_async:
            return self._taking.left(taken)
        view = await self._taking.wait(request, taken)
        result = await self._taking.result(view)
        headers = render.rate_headers(taken.rooms) | render.answer_headers(view)
        return Response(result, headers=headers, media_type=view.media_type)
