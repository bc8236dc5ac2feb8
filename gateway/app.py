"""The web application: its routes, and the edge around them."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from gateway.edge import Edge
from gateway.endpoints.chat import Chat
from gateway.endpoints.health import Health
from gateway.endpoints.jobs import Jobs
from gateway.endpoints.models import Models
from gateway.services import Services

Endpoint = Callable[[Request], Awaitable[Response]]


class _PlainRoute(APIRoute):
    """Hands the request over as it is: resolving dependencies and response models costs more than all else."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


def create_app(services: Services) -> FastAPI:
    """The application. It opens and closes nothing: that is the wiring's."""
    app = FastAPI(
        title="Pointsman",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=[Middleware(Edge, metrics=services.metrics)],
        exception_handlers={HTTPException: _pass_on},
    )
    app.router.route_class = _PlainRoute

    def route(method: str, path: str, endpoint: Endpoint) -> None:
        app.add_api_route(path, endpoint, methods=[method], response_class=Response, response_model=None)

    chat, jobs, models, health = Chat(services), Jobs(services), Models(services), Health(services)
    route("POST", "/v1/chat/completions", chat.create)
    route("GET", "/v1/chat/completions/{id}", chat.retrieve)
    route("GET", "/v1/jobs", jobs.page)
    route("GET", "/v1/jobs/{id}", jobs.retrieve)
    route("POST", "/v1/jobs/{id}/cancel", jobs.cancel)
    route("DELETE", "/v1/jobs/{id}", jobs.delete)
    route("GET", "/v1/models", models.page)
    route("GET", "/v1/models/{id:path}", models.retrieve)
    route("GET", "/healthz", health.healthz)
    route("GET", "/readyz", health.readyz)
    route("GET", "/metrics", health.metrics)
    return app


async def _pass_on(_: Request, error: Exception) -> Response:
    raise error  # to the edge, which words all errors
