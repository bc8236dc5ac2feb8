"""`pointsman up`: a whole Pointsman on one machine, in processes that are watched and started again."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from rich.console import Console

from gateway import valkey, wiring
from gateway.listening import must_be_free
from gateway.settings import Settings, SettingsError, load
from gateway.starting import Start, StoppedError
from policies.keys import check_not_public
from router.rebuild import begin

log = structlog.get_logger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
SETTLED_S = 30.0  # a process that lived that long is started again without a pause
GOODBYE_S = 15.0  # beyond the drain
READY_LOOK_S = 0.05
READY_S = 60.0
PORT_S, PORT_LOOK_S = 20.0, 0.1  # what is left of one that was killed has ended by then


@dataclass(frozen=True, slots=True)
class Child:
    """A process of ours."""

    name: str
    arguments: Sequence[str]


async def up(config: Path | None, environ: Mapping[str, str], out: Console) -> None:
    """Run until SIGTERM or SIGINT. Raises `SettingsError`, `FolderInUseError`, `ValkeyError`, `PublicKeyError`."""
    settings = load(config, environ)
    wanted_key = environ.get("POINTSMAN_API_KEY")
    if wanted_key:
        check_not_public(wanted_key)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    if not settings.is_embedded:
        await _until_free(settings, stop, out)
        await _run(settings, config, environ, wanted_key, stop, out)
        return
    with valkey.locked(settings.data):
        await _until_free(settings, stop, out)
        async with valkey.running(settings.data / "valkey") as embedded:
            environ = {**environ, "POINTSMAN_REDIS": embedded.url}
            await _run(load(config, environ), config, environ, wanted_key, stop, out)


async def _until_free(settings: Settings, stop: asyncio.Event, out: Console) -> None:
    """Wait for the port, or for `stop`: who answers there would be taken for us. Raises `SettingsError`."""
    http, loop = settings.http, asyncio.get_running_loop()
    ends, is_told = loop.time() + PORT_S, False
    while not stop.is_set():
        try:
            return must_be_free(http.host, http.port)
        except SettingsError:
            if loop.time() >= ends:
                raise
        if not is_told:
            out.print(f"Port {http.port} is taken; waiting {PORT_S:.0f} s for it.")
            is_told = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PORT_LOOK_S):
                await stop.wait()


async def _run(
    settings: Settings,
    config: Path | None,
    environ: Mapping[str, str],
    wanted_key: str | None,
    stop: asyncio.Event,
    out: Console,
) -> None:
    async with asyncio.TaskGroup() as tasks:
        common = ["--config", str(config)] if config else []
        for child in _children(settings):
            tasks.create_task(_keep(child, [*child.arguments, *common], _child_environ(environ), settings, stop))
        tenant = "default" if "default" in settings.tenants else next(iter(settings.tenants))
        try:
            new_key = await Start(stop).until(lambda: _prepare(settings, tenant, wanted_key))
        except StoppedError:
            return
        ready = tasks.create_task(_say_ready(settings, tenant, new_key, out))
        await stop.wait()
        ready.cancel()


async def _prepare(settings: Settings, tenant: str, wanted_key: str | None) -> str | None:
    """Make the topics, a board that is new, and a key where there is none: it is what this returns."""
    async with wiring.core(settings) as core:
        await core.board.epoch()  # where it does not let us in, that is said at once
        await core.log.create(wiring.wanted_topics(core))
        await begin(core.log, core.board)
        if wanted_key:
            await core.keyring.adopt(wanted_key, tenant, "POINTSMAN_API_KEY")
        elif not await core.keys.list():
            return (await core.keyring.create(tenant, "first")).text
    return None


def _children(settings: Settings) -> list[Child]:
    deployments = settings.deployments_by_name().values()
    backends = sorted({deployment.backend for deployment in deployments})
    collected = {each.backend for each in deployments if each.is_answered_later}
    return [
        Child("http", ["serve", "http"]),
        *(Child(f"worker {name}", ["serve", "worker", "--backend", name]) for name in backends),
        *(Child(f"collector {name}", ["serve", "collector", "--backend", name]) for name in sorted(collected)),
        Child("sweeper", ["serve", "sweeper"]),
        *([Child("inbox", ["serve", "inbox"])] if settings.kafka_servers else []),  # nobody else reaches our Valkey
    ]


def _child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The health ports of the cluster's processes are not needed here: any free one will do."""
    roles = "WORKER", "SWEEPER", "INBOX"
    return {**environ, **{f"POINTSMAN_{role}__HEALTH_PORT": "0" for role in roles}}


async def _keep(
    child: Child, arguments: Sequence[str], environ: Mapping[str, str], settings: Settings, stop: asyncio.Event
) -> None:
    """Start a child, and start it again whenever it ends, until `stop`; then let it end in an orderly way."""
    pause = FIRST_PAUSE_S
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        began = loop.time()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "gateway.cli", *arguments, "--until-stdin-closes"),
            stdin=asyncio.subprocess.PIPE,  # it closes with us, however we end, and so does the child
            env=dict(environ),
            start_new_session=True,  # a Ctrl-C reaches us alone
        )
        stopping = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(process.wait())
        await asyncio.wait([stopping, ended], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            await _end(process, max(settings.worker.drain_s, settings.http.drain_s) + GOODBYE_S)
            return
        stopping.cancel()
        log.error("process_ended", process=child.name, code=process.returncode, again_in_s=pause)
        pause = FIRST_PAUSE_S if loop.time() - began > SETTLED_S else min(LONGEST_PAUSE_S, pause * 2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()


async def _end(process: asyncio.subprocess.Process, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _say_ready(settings: Settings, tenant: str, new_key: str | None, out: Console) -> None:
    http = settings.http
    host = "127.0.0.1" if http.host in ("0.0.0.0", "::") else http.host
    try:
        async with asyncio.timeout(READY_S):
            while not await _is_ready(host, http.port):  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(READY_LOOK_S)
    except TimeoutError:
        out.print(f"[red]Not ready after {READY_S:.0f} s; the messages above say why.[/red]")
        return
    out.print(f"Pointsman is ready at [bold]http://{host}:{http.port}/v1[/bold], data in {settings.data}")
    if new_key is not None:
        out.print(f"API key of tenant {tenant}, shown this once: [bold]{new_key}[/bold]", soft_wrap=True)
    if not settings.deployments:
        out.print(
            "There is no model yet. Start again with: pointsman up --upstream http://127.0.0.1:11434/v1 --model NAME",
            soft_wrap=True,
        )


async def _is_ready(host: str, port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        writer.write(f"GET /readyz HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        async with asyncio.timeout(3.0):
            return b" 200 " in await reader.readline()
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
