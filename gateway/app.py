"""The web application: its routes, and the edge around them."""

from starlette.routing import Route, Router
from starlette.types import ASGIApp

from gateway.edge import Edge
from gateway.endpoints.chat import Chat
from gateway.endpoints.health import Health
from gateway.endpoints.jobs import Jobs
from gateway.endpoints.models import Models
from gateway.services import Services


def create_app(services: Services) -> ASGIApp:
    """The application. It opens and closes nothing: that is the wiring's."""
    return Edge(Router(routes(services), redirect_slashes=False), metrics=services.metrics)


def routes(services: Services) -> list[Route]:
    """All addresses, the busiest first."""
    chat, jobs, models, health = Chat(services), Jobs(services), Models(services), Health(services)
    return [
        Route("/v1/chat/completions", chat.create, methods=["POST"]),
        Route("/v1/chat/completions/{id}", chat.retrieve),
        Route("/v1/jobs/{id}", jobs.retrieve),
        Route("/v1/jobs/{id}", jobs.delete, methods=["DELETE"]),
        Route("/v1/jobs/{id}/cancel", jobs.cancel, methods=["POST"]),
        Route("/v1/jobs", jobs.page),
        Route("/v1/models", models.page),
        Route("/v1/models/{id:path}", models.retrieve),
        Route("/healthz", health.healthz),
        Route("/readyz", health.readyz),
        Route("/metrics", health.metrics),
    ]
