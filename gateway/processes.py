"""The processes of a cluster, each a coroutine that runs until it is told to stop."""

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import structlog
import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import wiring
from gateway.check import STOP_S
from gateway.listening import must_be_free
from gateway.settings import Settings, SettingsError
from gateway.starting import Start, StoppedError
from gateway.wiring import Core
from policies.ending import ended
from router import topics
from router.log import Log, TopicMissingError
from router.rebuild import begin, compare
from router.wakeups import Wakeups

if TYPE_CHECKING:
    from consumers.lanes import Lanes
    from gateway.services import Services

log = structlog.get_logger(__name__)

KEEP_ALIVE_S = 75  # longer than clients pool connections; uvicorn's 5 s would reset theirs
STALLED_S = 60.0
GATHER_S = 0.003  # under load a script alone in its round trip costs the API's Python four times one of several
GOODBYE_S = 10.0  # for answers about health that are under way when the process is told to stop


async def http(
    settings: Settings,
    *,
    until_stdin_closes: bool = False,
    open_services: "Callable[[Core, Wakeups], Services]" = wiring.services,
) -> None:
    """The HTTP process."""
    from gateway.app import create_app, create_waiting_app  # the other processes have no use for a web framework

    ours = settings.http
    async with _stopping(until_stdin_closes) as stop:
        start = Start(stop)
        async with (
            _served(create_waiting_app(start), ours.host, ours.port, goodbye_s=ours.drain_s) as served,
            start.core(settings, "http", gather_s=GATHER_S) as core,
            asyncio.TaskGroup() as tasks,
        ):
            wakeups = Wakeups(core.redis, role="http")
            services = open_services(core, wakeups)
            followers = [
                tasks.create_task(wakeups.follow()),
                tasks.create_task(core.keys.follow()),
                tasks.create_task(core.epoch.follow()),
                tasks.create_task(services.sharing.follow()),
                tasks.create_task(services.quotes.follow()),
            ]
            served.app = create_app(services)
            _tune_garbage_collection()
            await served.until(stop)
            await ended(*followers)


async def worker(settings: Settings, backend: str, *, until_stdin_closes: bool = False) -> None:
    """A worker for one backend."""
    if not any(deployment.backend == backend for deployment in settings.deployments.values()):
        raise SettingsError(f"deployments: none of them is on backend {backend!r}, so this worker has nothing to do")
    registry, where = CollectorRegistry(), (settings.worker.health_host, settings.worker.health_port)
    async with _stopping(until_stdin_closes) as stop:
        start = Start(stop)
        async with (
            _served(_health(registry, start), *where),
            start.core(settings, "worker") as core,
            wiring.open_backend(core, backend, registry) as opened,
        ):
            await start.until(lambda: _topics_exist(core.log, topics.for_backend(backend, core.deployments)))
            worker = wiring.worker(core, opened, backend, registry)

            async def fault() -> str | None:
                if worker.breaker.is_open:
                    return (
                        "too many dead letters: nothing is taken any more. `pointsman dlq list` shows why; then restart"
                    )
                if worker.stalled_for > STALLED_S:
                    return f"the poll loop has not come round for {worker.stalled_for:.0f} s"
                await core.board.ping()
                return core.epoch.fault or await worker.attempt.onward.standstill()

            start.fault = fault
            _tune_garbage_collection()
            log.info("worker_started", backend=backend)
            await _ended(worker.run(stop), stop, within=settings.worker.drain_s + STOP_S)
            log.info("worker_stopped", backend=backend, given_back=worker.held)


async def sweeper(settings: Settings, *, until_stdin_closes: bool = False) -> None:
    """A sweeper."""
    registry, where = CollectorRegistry(), (settings.sweeper.health_host, settings.sweeper.health_port)
    async with _stopping(until_stdin_closes) as stop:
        start = Start(stop)
        async with (
            _served(_health(registry, start), *where) as served,
            start.core(settings, "sweeper") as core,
            wiring.open_webhook_sender(core, registry) as sender,
        ):
            lanes = wiring.lanes(core)
            sweeping = wiring.sweeper(core, lanes, registry)

            async def fault() -> str | None:
                await core.board.ping()
                await core.log.ping()
                return None

            await start.until(lambda: _topics_exist(core.log, topics.FIXED))
            await start.until(lambda: begin(core.log, core.board))
            await start.until(lambda: compare(core.log, core.board))
            start.fault = fault
            served.app = _health(registry, start, Route("/scale/{lane}", partial(_scale, lanes)))
            works = [sweeping.run(stop), sender.run(stop), wiring.batch_driver(core, ended=sweeping.ended).run(stop)]
            works += [each.run(stop) for each in wiring.retriers(core)]
            if settings.board.rebuild == "auto":
                works.append(wiring.rebuilder(core).run(stop))
            log.info("sweeper_started")
            await _ended(_all(works), stop, within=STOP_S)


async def inbox(settings: Settings, *, until_stdin_closes: bool = False) -> None:
    """The door for records on Kafka."""
    registry, where = CollectorRegistry(), (settings.inbox.health_host, settings.inbox.health_port)
    async with _stopping(until_stdin_closes) as stop:
        start = Start(stop)
        async with (
            _served(_health(registry, start), *where),
            start.core(settings, "inbox", gather_s=GATHER_S) as core,
        ):
            sharing = wiring.router_state(core)
            door = wiring.inbox(core, registry, sharing.shares)

            async def fault() -> str | None:
                await core.board.ping()
                await core.log.ping()
                return core.epoch.fault

            await start.until(lambda: _topics_exist(core.log, topics.all_topics(core.deployments)))
            start.fault = fault
            async with asyncio.TaskGroup() as tasks:
                followers = [
                    tasks.create_task(each) for each in (core.keys.follow(), core.epoch.follow(), sharing.follow())
                ]
                log.info("inbox_started")
                await _ended(door.run(stop), stop, within=STOP_S)
                await ended(*followers)


async def collector(settings: Settings, backend: str, *, until_stdin_closes: bool = False) -> None:
    """Concludes what a backend that takes jobs (SageMaker's asynchronous endpoints will) works on."""
    registry, where = CollectorRegistry(), (settings.worker.health_host, settings.worker.health_port)
    async with _stopping(until_stdin_closes) as stop:
        start = Start(stop)
        async with (
            _served(_health(registry, start), *where),
            start.core(settings, "collector") as core,
            wiring.open_backend(core, backend, registry, calls=False) as opened,
        ):
            collecting = wiring.collector(core, opened, backend, registry)

            async def fault() -> str | None:
                await core.board.ping()
                return core.epoch.fault

            start.fault = fault
            log.info("collector_started", backend=backend)
            await _ended(collecting.run(stop), stop, within=STOP_S)


async def _all(works: Iterable[Coroutine[None, None, None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(work)


async def _ended(work: Coroutine[None, None, None], stop: asyncio.Event, *, within: float) -> None:
    """Let it run until it ends by itself, which it has so many seconds for once `stop` is set.

    What still waits then for a Redis or a log that is away is left as it is: leases lapse, records come again.
    """
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([working], timeout=within)
        if not working.done():
            log.warning("stop_cut_short", seconds=within)
    finally:
        stopping.cancel()
        if not working.done():
            await ended(working)
    if not working.cancelled():
        working.result()


async def _topics_exist(job_log: Log, wanted: tuple[str, ...]) -> None:
    """Raises `TopicMissingError`: a process may start before the topics are made."""
    missing = sorted(set(wanted) - set(await job_log.topics()))
    if missing:
        first = ", ".join(missing[:5])
        raise TopicMissingError(f"{len(missing)} topics are missing ({first}): run `pointsman topics --create`")


def _server(app: ASGIApp, host: str, port: int, *, goodbye_s: float) -> uvicorn.Server:
    must_be_free(host, port)  # the server would end the process in the middle of whatever it does
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http="httptools",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=ceil(goodbye_s),
        server_header=False,
        proxy_headers=False,  # nothing here asks who the caller is by its address
        backlog=4096,
    )
    return uvicorn.Server(config)


async def _serve(server: uvicorn.Server) -> None:
    """Serve until told to stop. Signals are ours to handle, not the server's."""
    config = server.config
    sock = config.bind_socket()
    host, port = sock.getsockname()[:2]
    log.info("listening", host=host, port=port)
    with contextlib.closing(sock):
        await server._serve([sock])


class _Served:
    """A server, and the application behind its port, which may change."""

    def __init__(self, app: ASGIApp, host: str, port: int, goodbye_s: float) -> None:
        self.app = app
        self._server = _server(self, host, port, goodbye_s=goodbye_s)
        self._serving = asyncio.create_task(_serve(self._server))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    async def until(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, and then what is under way."""
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, self._serving], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await self.end()

    async def end(self) -> None:
        """Once more does nothing."""
        self._server.should_exit = True
        await self._serving


@asynccontextmanager
async def _served(app: ASGIApp, host: str, port: int, *, goodbye_s: float = GOODBYE_S) -> AsyncGenerator[_Served]:
    served = _Served(app, host, port, goodbye_s)
    try:
        yield served
    finally:
        await served.end()


async def _scale(lanes: "Lanes", request: Request) -> Response:
    """What an autoscaler needs to know of a lane. While that is not known, this is an error and no guess."""
    lane = request.path_params["lane"]
    if lane not in lanes.names:
        return JSONResponse({"error": "there is no such lane", "lanes": lanes.names}, 404)
    if not lanes.is_known:
        return JSONResponse({"error": "the lanes have not been counted for a while; is the log there?"}, 503)
    load = lanes.of(lane)
    return JSONResponse(
        {
            "lane": lane,
            "backlog": load.backlog,
            "waiting": load.waiting,
            "running": load.running,
            "oldest_s": round(load.oldest_s, 3),
            "workers": load.workers,
        }
    )


def _health(registry: CollectorRegistry, start: Start, *further: Route) -> Starlette:
    """The health endpoints of a process that serves nothing else."""

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        why = await start.why_not()
        return JSONResponse({"ready": why is None, "fault": why}, 200 if why is None else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics), *further],
    )


@asynccontextmanager
async def _stopping(until_stdin_closes: bool) -> AsyncGenerator[asyncio.Event]:
    """Set on SIGTERM and SIGINT, and where asked for when whoever started this process is gone.

    The block ends in silence where that came before the process worked.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    watch = asyncio.create_task(_end_of_stdin(stop)) if until_stdin_closes else None
    try:
        yield stop
    except StoppedError:
        log.info("stopped_while_waiting")
    finally:
        if watch is not None:
            watch.cancel()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signum)


async def _end_of_stdin(stop: asyncio.Event) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while await reader.read(1024):
            continue
        stop.set()
    finally:
        transport.close()


def _tune_garbage_collection() -> None:
    """What is there at the start stays, and is not looked at again each time.

    Pauses of the collector were the largest part of the p99 of an accept (docs/decisions).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
