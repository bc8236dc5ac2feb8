"""A running gateway of a test's own: a Valkey, Redis Streams, a worker with the echo backend, and a real server."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import uvicorn
from prometheus_client import CollectorRegistry

from gateway import valkey, wiring
from gateway.app import create_app
from gateway.settings import HttpSettings, Settings
from router import rebuild, topics
from router.wakeups import Wakeups
from tests.builders import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway, an `http` client with acme's key, and keys of acme and of another tenant."""

    core: wiring.Core
    redis_pid: int
    url: str
    http: httpx2.AsyncClient
    key: str
    other_key: str

    def sdk(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0)

    async def chat(self, text: str, **fields: Any) -> httpx2.Response:
        return await self.http.post("/v1/chat/completions", json=a_body(text, **fields))

    async def job(self, job_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/jobs/{job_id}?wait=30")
        assert answer.status_code == 200
        return dict(answer.json())


def a_body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}


@asynccontextmanager
async def running(
    data: Path, *, http: HttpSettings | None = None, works: bool = True, drives: float = 0.0, **sections: Any
) -> AsyncIterator[Gateway]:
    """Without `works` there is no worker. `drives` is how often a driver of batches looks; 0 is none.

    `sections` are further ones of the settings.
    """
    async with (
        valkey.running(data / "valkey") as server,
        _running(server, data, sections | {"http": http or HttpSettings()}, works=works, drives=drives) as gateway,
    ):
        yield gateway


@asynccontextmanager
async def _running(
    server: valkey.Embedded, data: Path, sections: dict[str, Any], *, works: bool, drives: float
) -> AsyncIterator[Gateway]:
    settings = Settings.model_validate(
        {
            "redis": server.url,
            "data": data,
            "tenants": {"acme": {"aliases": {"small": "light"}}, "other": {"deployments": ["heavy"]}},
            "deployments": {
                "light": {"backend": "echo", "model": "echo", "tier": "light", "window": 4096},
                "heavy": {"backend": "echo", "model": "echo", "tier": "heavy", "window": 65536},
            },
            **sections,
        }
    )
    async with AsyncExitStack() as opened:
        core = await opened.enter_async_context(wiring.core(settings))
        await core.log.create([*topics.FIXED, *topics.for_backend("echo", core.deployments)])
        await rebuild.begin(core.log, core.board)
        backend = await opened.enter_async_context(wiring.open_backend(core, "echo", CollectorRegistry()))
        worker = wiring.worker(core, backend, "echo", CollectorRegistry())
        wakeups = Wakeups(core.redis, role="http")
        key, other = await core.keys.create("acme", "test"), await core.keys.create("other", "test")
        app = create_app(wiring.services(core, wakeups))
        tasks = await opened.enter_async_context(asyncio.TaskGroup())
        stop = asyncio.Event()
        following = tasks.create_task(wakeups.follow())
        working = tasks.create_task(worker.run(stop) if works else stop.wait())
        driving = tasks.create_task(wiring.batch_driver(core, look_s=drives).run(stop) if drives else stop.wait())
        with socket.create_server(("127.0.0.1", 0)) as listening:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            http_server = uvicorn.Server(
                uvicorn.Config(app, http="httptools", lifespan="off", access_log=False, log_config=None)
            )
            serving = tasks.create_task(http_server._serve([listening]))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    # The gateway's, the worker's, the driver's own and the one that all drivers share.
                    while len(await core.redis.pubsub_channels()) < 1 + works + 2 * (drives > 0):
                        await asyncio.sleep(0.01)
                headers = {"authorization": f"Bearer {key.text}"}
                async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
                    yield Gateway(core, server.pid, url, client, key.text, other.text)
            finally:
                http_server.should_exit = True
                stop.set()
                await asyncio.wait([serving, working, driving])
                following.cancel()
