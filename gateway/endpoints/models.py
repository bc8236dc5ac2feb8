"""The models that a tenant may name."""

from starlette.requests import Request
from starlette.responses import Response

from gateway import render
from gateway.auth import authenticate
from gateway.errors import UnknownModelError
from gateway.services import Services
from router.choose import names
from router.compact import encode


class Models:
    """`/v1/models`, as OpenAI has it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def page(self, request: Request) -> Response:
        """What this tenant may put into `model`."""
        names = await self._names(request)
        models = [_model(name) for name in names]
        return Response(encode({"object": "list", "data": models}), media_type=render.JSON)

    async def retrieve(self, request: Request) -> Response:
        """One of them."""
        name = request.path_params["id"]
        if name not in await self._names(request):
            raise UnknownModelError(name)
        return Response(encode(_model(name)), media_type=render.JSON)

    async def _names(self, request: Request) -> list[str]:
        services = self._services
        holder = await authenticate(
            services.keys, services.tenants, services.epoch, request.headers.get("authorization")
        )
        return names(services.tenants[holder.tenant], services.deployments)


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "pointsman"}
