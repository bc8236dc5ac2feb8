"""The web application: its routes, and the edge around them."""

from collections.abc import Awaitable, Callable, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.edge import Edge
from gateway.endpoints.batches import BatchesApi
from gateway.endpoints.chat import Chat
from gateway.endpoints.document import Document
from gateway.endpoints.files import FilesApi
from gateway.endpoints.health import Health, Waiting
from gateway.endpoints.jobs import Jobs
from gateway.endpoints.models import Models
from gateway.endpoints.responses import Responses
from gateway.endpoints.videos import VideosApi
from gateway.endpoints.whole import Whole
from gateway.head import HttpRequest
from gateway.services import Services
from gateway.starting import Start
from gateway.upload import read_form

PREFLIGHT_S = 3600  # how long a browser need not ask again
# What a page may read of an answer.
SHOWN_HEADERS = (
    "x-request-id",
    "x-should-retry",
    "retry-after",
    "retry-after-ms",
    "location",
    *(f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset") for kind in ("requests", "tokens")),
    *(f"x-pointsman-{what}" for what in ("lane", "model", "cost-usd")),
)


def create_app(services: Services) -> ASGIApp:
    """The application. It opens and closes nothing: that is the wiring's."""
    app = Edge(_Addresses(routes(services)), metrics=services.metrics)
    return _for_pages(app, services.http.cors_origins) if services.http.cors_origins else app


def create_waiting_app(start: Start) -> ASGIApp:
    """What answers until there are services."""
    waiting = Waiting(start)
    every = _Endpoint(waiting.anything_else)
    return Edge(
        Router(
            [_route("GET", "/healthz", waiting.healthz), _route("GET", "/readyz", waiting.readyz)],
            redirect_slashes=False,
            default=every,
        )
    )


def _for_pages(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Pages of these origins may call, without cookies. Around the edge, so that they can read its errors too."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),  # the SDKs send a dozen of their own
        expose_headers=SHOWN_HEADERS,
        max_age=PREFLIGHT_S,
    )


class _Addresses:
    """An address without parameters is looked up; for the others the framework goes through its routes."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._router = Router(routes, redirect_slashes=False)
        whole = [route for route in routes if not route.param_convertors]
        self._whole = {(method, route.path): route for route in whole for method in route.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._whole.get((scope.get("method", ""), scope.get("path", "")))
        if route is None:
            await self._router(scope, receive, send)
        else:
            scope["route"] = route
            await route.app(scope, receive, send)


class _Endpoint:
    """An endpoint without the framework's own catching of errors: the edge words all of them."""

    def __init__(self, answer: Callable[[HttpRequest], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(HttpRequest(scope, receive))
        await response(scope, receive, send)


def routes(services: Services) -> list[Route]:
    """All addresses, the busiest first."""
    chat, jobs, models, health = Chat(services), Jobs(services), Models(services), Health(services)
    files, batches = FilesApi(services), BatchesApi(services)
    responses, videos = Responses(services), VideosApi(services)
    return [
        _route("POST", "/v1/chat/completions", chat.create),
        _route("GET", "/v1/chat/completions/{id}", chat.retrieve),
        _route("POST", "/v1/responses", responses.create),
        _route("GET", "/v1/responses/{id}", responses.retrieve),
        _route("DELETE", "/v1/responses/{id}", responses.delete),
        _route("POST", "/v1/responses/{id}/cancel", responses.cancel),
        _route("GET", "/v1/responses/{id}/input_items", responses.input_items),
        _route("POST", "/v1/embeddings", Whole(services, "/v1/embeddings").create),
        _route("POST", "/v1/images/generations", Whole(services, "/v1/images/generations").create),
        _route("POST", "/v1/audio/speech", Whole(services, "/v1/audio/speech").create),
        _route("POST", "/v1/audio/transcriptions", Whole(services, "/v1/audio/transcriptions", read_form).create),
        _route("POST", "/v1/videos", videos.create),
        _route("GET", "/v1/videos", videos.page),
        _route("GET", "/v1/videos/{id}", videos.retrieve),
        _route("GET", "/v1/videos/{id}/content", videos.content),
        _route("DELETE", "/v1/videos/{id}", videos.delete),
        _route("GET", "/v1/jobs/{id}", jobs.retrieve),
        _route("GET", "/v1/jobs/{id}/content", jobs.content),
        _route("DELETE", "/v1/jobs/{id}", jobs.delete),
        _route("POST", "/v1/jobs/{id}/cancel", jobs.cancel),
        _route("GET", "/v1/jobs/{id}/events", jobs.events),
        _route("POST", "/v1/jobs/{id}/outcome", jobs.outcome),
        _route("GET", "/v1/jobs", jobs.page),
        _route("GET", "/v1/models", models.page),
        _route("GET", "/v1/models/{id:path}", models.retrieve),
        _route("POST", "/v1/files", files.create),
        _route("GET", "/v1/files", files.page),
        _route("GET", "/v1/files/{id}", files.retrieve),
        _route("GET", "/v1/files/{id}/content", files.content),
        _route("GET", "/v1/files/{id}/routes", files.routes),
        _route("DELETE", "/v1/files/{id}", files.delete),
        _route("POST", "/v1/batches", batches.create),
        _route("GET", "/v1/batches", batches.page),
        _route("GET", "/v1/batches/{id}", batches.retrieve),
        _route("POST", "/v1/batches/{id}/cancel", batches.cancel),
        _route("GET", "/v1/batches/{id}/events", batches.events),
        _route("GET", "/healthz", health.healthz),
        _route("GET", "/readyz", health.readyz),
        _route("GET", "/metrics", health.metrics),
        _route("GET", "/openapi.json", Document().read),
    ]


def _route(method: str, path: str, answer: Callable[[HttpRequest], Awaitable[Response]]) -> Route:
    return Route(path, _Endpoint(answer), methods=[method])
