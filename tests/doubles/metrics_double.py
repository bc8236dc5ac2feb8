"""A DOUBLE of Kubernetes' metrics server, since no kubelet measures anything: the CPU of pods is what it was told.

    python -m tests.doubles.metrics_double

prints `metrics listening on https://127.0.0.1:PORT`. `PUT /_double/NAMESPACE` with `{pod: millicores}` says what the
pods of a namespace use. It ends with its standard input.
"""

import asyncio
import ssl
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trustme
from aiohttp import web

ROOT = "/apis/metrics.k8s.io/v1beta1"
GROUP = {"apiVersion": "metrics.k8s.io/v1beta1"}
PODS = {"name": "pods", "kind": "PodMetrics", "namespaced": True, "singularName": "", "verbs": ["get", "list"]}


class Server:
    """Answers from what it was told."""

    def __init__(self) -> None:
        self._millis: dict[str, dict[str, int]] = {}

    async def tell(self, request: web.Request) -> web.Response:
        self._millis[request.match_info["namespace"]] = await request.json()
        return web.Response()

    async def resources(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": "metrics.k8s.io/v1beta1",
                "resources": [PODS],
            }
        )

    async def pods(self, request: web.Request) -> web.Response:
        namespace = request.match_info["namespace"]
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        items: list[dict[str, Any]] = [
            {
                "metadata": {"name": pod, "namespace": namespace},
                "timestamp": moment,
                "window": "1s",
                "containers": [{"name": "http", "usage": {"cpu": f"{millis}m", "memory": "64Mi"}}],
            }
            for pod, millis in self._millis.get(namespace, {}).items()
        ]
        return web.json_response({"kind": "PodMetricsList", **GROUP, "metadata": {}, "items": items})


def trust() -> ssl.SSLContext:
    """Whoever asks does not look at the certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.TemporaryDirectory() as folder:
        pem = Path(folder) / "pem"
        pem.write_bytes(trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.bytes())
        context.load_cert_chain(pem)
    return context


async def main() -> None:
    """Serve until standard input ends."""
    server = Server()
    app = web.Application()
    app.add_routes(
        [
            web.put("/_double/{namespace}", server.tell),
            web.get(ROOT, server.resources),
            web.get(ROOT + "/namespaces/{namespace}/pods", server.pods),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust())
    await site.start()
    [address] = runner.addresses
    print(f"metrics listening on https://127.0.0.1:{address[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
