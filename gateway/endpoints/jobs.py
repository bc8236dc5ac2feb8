"""Jobs: look, wait, follow, list, cancel, delete."""

from starlette.requests import Request
from starlette.responses import Response

from consumers.learning import is_taught
from gateway import query, render
from gateway.body import InvalidRequestError
from gateway.delivery import calling
from gateway.job_stream import JobStream
from gateway.reading import HungUpError
from gateway.services import Services
from gateway.streaming import EventStream
from gateway.taking import Taking, read_json
from router.board import JobView
from router.job import JobState
from router.lessons import Outcome

LONGEST_WAIT_S = 60
LARGEST_OUTCOME = 4096  # bytes
LONGEST_NAME = 64  # of a parameter in a message
PAGE, LARGEST_PAGE = 20, 100


class Jobs:
    """`/v1/jobs`. Another tenant's job is not there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._taking = Taking(services)

    async def retrieve(self, request: Request) -> Response:
        """The job as it is, or with `?wait=` once it has ended or that many seconds are over."""
        seconds = query.whole(request, "wait", 0, most=LONGEST_WAIT_S)
        view = await self._taking.known(request)
        if seconds and not view.state.is_terminal:
            async with calling(request.receive) as caller:
                view = await self._services.delivery.wait(view.job.tenant, view.job.id, caller, seconds=seconds)
                if caller.is_gone:
                    raise HungUpError("the client hung up while it waited")
        return await self._shown(view)

    async def content(self, request: Request) -> Response:
        """What it made, as its endpoint gives it to a caller who waits; the job with 202 until it is there."""
        view = await self._taking.known(request)
        if not view.state.is_terminal:
            return Response(render.job(view, quote=self._services.quotes.of(view)), 202, render.POLL_LATER, render.JSON)
        return Response(await self._taking.result(view), media_type=view.media_type)

    async def page(self, request: Request) -> Response:
        """A page, the newest first."""
        holder = await self._taking.holder(request)
        limit = query.whole(request, "limit", PAGE, least=1, most=LARGEST_PAGE)
        status = query.choice(request, "status", "", dict.fromkeys(render.STATES.values()))
        states = render.states_of(status)
        after = request.query_params.get("after", "")
        if after and (after := render.job_id(after) or "") == "":
            raise InvalidRequestError("Invalid 'after': expected a job's id.", "after", "invalid_value")
        found = await self._services.board.page(holder.tenant, states=states, limit=limit + 1, after=after)
        views = found.views[:limit]
        last = views[-1].job.id if len(found.views) > limit else found.last
        return Response(render.page(views, more_after=last, quote=self._services.quotes.of), media_type=render.JSON)

    async def cancel(self, request: Request) -> Response:
        """End it. One that runs ends within a second; one that has ended stays as it is."""
        view = await self._taking.known(request)
        return await self._shown(await self._taking.cancelled(request, view))

    async def events(self, request: Request) -> Response:
        """What happens to it, as events; those after `Last-Event-ID` or `?starting_after=` only."""
        view = await self._taking.known(request)
        after = query.event_number(request, default=-1)
        stream = JobStream(self._services.delivery, view, self._services.http.sync_wait_s, after=after)
        return EventStream(stream.told, name=f"job_{view.job.id}", failed=stream.failed)

    async def outcome(self, request: Request) -> Response:
        """How well it was answered, 0 to 1, for the router to learn from. The last one counts."""
        view = await self._taking.known(request)
        with self._services.inflight.request() as held:
            _, values = await read_json(request, held, LARGEST_OUTCOME)
        score = values.get("score")
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
            raise InvalidRequestError("Invalid 'score': expected a number from 0 to 1.", "score", "invalid_value")
        if unknown := sorted(values.keys() - {"score"}):
            name = unknown[0][:LONGEST_NAME]
            raise InvalidRequestError(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
        outcome = Outcome(float(score), "client")
        lessons, job = self._services.lessons, view.job
        tenant = self._services.tenants.get(job.tenant)
        is_early = not view.state.is_terminal and tenant is not None and is_taught(job, tenant)
        early_s = job.expires_at - job.created_at if is_early else 0.0
        is_kept = await lessons.outcome(job.tenant, job.id, job.route.tier, outcome, early_s=early_s)
        return Response(render.outcome(job.id, float(score), kept=is_kept), media_type=render.JSON)

    async def delete(self, request: Request) -> Response:
        """Forget a job that has ended, and its result."""
        view = await self._taking.known(request)
        await self._services.delivery.forget(view)
        return Response(render.deleted(view.job.id), media_type=render.JSON)

    async def _shown(self, view: JobView) -> Response:
        result = None
        if view.media_type != render.JSON:
            result = render.elsewhere(view)
        elif view.state is JobState.COMPLETED:
            result = await self._services.delivery.result(view)
        headers = {} if view.state.is_terminal else render.POLL_LATER
        return Response(
            render.job(view, result, quote=self._services.quotes.of(view)), headers=headers, media_type=render.JSON
        )
