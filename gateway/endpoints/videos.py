"""Videos: asked for, listed, looked at, fetched. A video is a job that nobody waits for, in OpenAI's form."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from gateway import body, query, render
from gateway.errors import NotThereYetError
from gateway.fields import invalid
from gateway.services import Services
from gateway.taking import Taking
from gateway.upload import read_fields
from router.board import KINDS, JobView
from router.compact import encode
from router.job import JobState
from router.payloads import PayloadLostError

ENDPOINT = "/v1/videos"
PAGE, LARGEST_PAGE = 20, 100
STATUS: Mapping[str, str] = {"cancelled": "failed", "expired": "failed"}  # OpenAI has no other ends of a video


class VideosApi:
    """`/v1/videos`. Another tenant's video is not there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._taking = Taking(services)

    async def create(self, request: Request) -> Response:
        """The video as it is queued; with `async` its job, with 202."""
        taken = await self._taking.take(request, ENDPOINT, read_fields)
        if taken.asked.is_async:
            return self._taking.left(taken)
        return await self._shown(taken.view)

    async def page(self, request: Request) -> Response:
        """A page, the newest first unless the oldest are asked for."""
        holder = await self._taking.holder(request)
        limit = query.whole(request, "limit", PAGE, least=1, most=LARGEST_PAGE)
        order = query.choice(request, "order", "desc", ("asc", "desc"))
        after = request.query_params.get("after", "")
        if after and (after := render.job_id(after) or "") == "":
            raise invalid("after", "expected a video's id")
        found = await self._services.board.page(
            holder.tenant, states=(), limit=limit + 1, after=after, kind=KINDS[ENDPOINT], is_oldest_first=order == "asc"
        )
        shown = [video(view, await self._asked(view)) for view in found.views[:limit]]
        return Response(encode(render.list_of(shown, has_more=len(found.views) > limit)), media_type=render.JSON)

    async def retrieve(self, request: Request) -> Response:
        """The video as it is now."""
        return await self._shown(await self._taking.known(request, endpoint=ENDPOINT))

    async def content(self, request: Request) -> Response:
        """What was made; 409 until it is there."""
        view = await self._taking.known(request, endpoint=ENDPOINT)
        query.choice(request, "variant", "video", ("video",))
        if not view.state.is_terminal:
            raise NotThereYetError("the video is not made yet")
        return Response(await self._taking.result(view), media_type=view.media_type)

    async def delete(self, request: Request) -> Response:
        """Forget one that has ended. What the model's provider keeps of it is not ours to remove."""
        view = await self._taking.known(request, endpoint=ENDPOINT)
        await self._services.delivery.forget(view)
        shown = {"id": render.VIDEO + view.job.id, "object": "video.deleted", "deleted": True}
        return Response(encode(shown), media_type=render.JSON)

    async def _shown(self, view: JobView) -> Response:
        headers = {} if view.state.is_terminal else render.POLL_LATER
        return Response(encode(video(view, await self._asked(view))), headers=headers, media_type=render.JSON)

    async def _asked(self, view: JobView) -> Mapping[str, object]:
        """Nothing where it is gone: what is known of the video is shown all the same."""
        try:
            return body.parse(await self._services.delivery.asked(view))
        except PayloadLostError:
            return {}


def video(view: JobView, asked: Mapping[str, object]) -> dict[str, object]:
    """The video object. `asked` is the request's body."""
    job = view.job
    status = render.STATES[view.state]
    error = view.error or (None if status != "cancelled" else {"code": "cancelled", "message": "It was cancelled."})
    return {
        "id": render.VIDEO + job.id,
        "object": "video",
        "created_at": int(job.created_at),
        "completed_at": None if view.finished_at is None else int(view.finished_at),
        "expires_at": None if view.finished_at is None else int(view.finished_at + job.result_ttl_s),
        "status": STATUS.get(status, status),
        "progress": 100 if view.state is JobState.COMPLETED else 0,
        "model": job.model,
        "prompt": asked.get("prompt"),
        "seconds": str(job.estimate.video_seconds),
        "size": asked.get("size"),
        "remixed_from_video_id": None,
        "error": None if error is None else {"code": error.get("code"), "message": error.get("message")},
    }
