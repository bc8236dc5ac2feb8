"""Pointsman's own processes, started as an operator starts them, and killed as no operator would."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml
from redis.exceptions import ConnectionError, TimeoutError

from gateway import valkey
from gateway.settings import load
from gateway.wiring import open_log, open_redis
from tests.acceptance import contents
from tests.acceptance.refusals import Refusals, Refused
from tools.kafka.broker import free_ports

ROOT = Path(__file__).resolve().parents[2]
PROC = Path("/proc")
READY_S = 60.0  # only so that nothing hangs: five may start at once on two cores
STOP_S = 20.0
LOOK_S = 0.05
IS_SECRET, SHORT = re.compile("KEY|SECRET"), 12  # variables, and characters: the double of AWS takes any key
# Become the command, after asking the kernel (PR_SET_PDEATHSIG) to end it when the tests die, however they die.
DIES_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


@dataclass(slots=True)
class Process:
    """A process of ours. What it prints is in `output`; `port` answers HTTP."""

    name: str
    popen: "subprocess.Popen[bytes]"
    output: Path
    port: int

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ready(self) -> "Process":
        """Return once it says that it is ready."""
        deadline = time.monotonic() + READY_S
        while not await asyncio.to_thread(_answers, f"{self.url}/readyz"):
            assert self.popen.poll() is None, f"{self.name} ended with {self.popen.returncode}:\n{self.tail()}"
            assert time.monotonic() < deadline, f"{self.name} is not ready:\n{self.tail()}"
            await asyncio.sleep(LOOK_S)
        return self

    def kill(self) -> None:
        """`kill -9`, and nothing of it is left when this returns."""
        self.popen.kill()
        self.popen.wait(STOP_S)

    def tail(self, lines: int = 30) -> str:
        """The end of what it printed."""
        return "\n".join(self.output.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@dataclass(slots=True)
class Pointsman:
    """Settings in a folder of its own, and the processes that run on them. All of them end with `running`."""

    folder: Path
    config: Path
    environ: Mapping[str, str]
    key: str
    processes: list[Process] = field(default_factory=list)
    left_behind: set[int] = field(default_factory=set)
    refusals: Refusals = field(default_factory=Refusals)
    root: Path = ROOT  # of the code

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def up(self, port: int, *arguments: str) -> Process:
        """`pointsman up`; with `--upstream` among the arguments without the settings."""
        return self._start("up", port, "up", "--port", str(port), "--data", str(self.data), *arguments)

    def http(self, port: int) -> Process:
        """`pointsman serve http`."""
        return self._start("http", port, "serve", "http", POINTSMAN_HTTP__PORT=str(port))

    def worker(self, backend: str) -> Process:
        """`pointsman serve worker`."""
        [port] = free_ports(1)
        arguments = "serve", "worker", "--backend", backend
        return self._start("worker", port, *arguments, POINTSMAN_WORKER__HEALTH_PORT=str(port))

    def collector(self, backend: str) -> Process:
        """`pointsman serve collector`."""
        [port] = free_ports(1)
        arguments = "serve", "collector", "--backend", backend
        return self._start("collector", port, *arguments, POINTSMAN_WORKER__HEALTH_PORT=str(port))

    def sweeper(self, port: int = 0) -> Process:
        """`pointsman serve sweeper`; 0 takes a free port."""
        port = port or free_ports(1)[0]
        return self._start("sweeper", port, "serve", "sweeper", POINTSMAN_SWEEPER__HEALTH_PORT=str(port))

    def inbox(self) -> Process:
        """`pointsman serve inbox`."""
        [port] = free_ports(1)
        return self._start("inbox", port, "serve", "inbox", POINTSMAN_INBOX__HEALTH_PORT=str(port))

    def command(self, *arguments: str) -> str:
        """What a command that ends by itself prints."""
        command, environ = self._command(*arguments), self._environ()
        done = subprocess.run(
            command, env=environ, cwd=self.root, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *arguments: str) -> str:
        """What a command says that ends with exit code 1."""
        command, environ = self._command(*arguments), self._environ()
        done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
        self.refusals.all.append(Refused("", "", done.stderr))
        return done.stderr

    def valkey_pid(self) -> int:
        """The private Valkey of `up`; it is ended at the end whatever happens."""
        pid = int((self.data / "valkey" / "valkey.pid").read_text(encoding="ascii"))
        self.left_behind.add(pid)
        return pid

    def children(self, parent: Process) -> dict[int, str]:
        """Process ids and command lines of what it has started; they are ended at the end whatever happens."""
        found = {pid: each.command for pid, each in _running().items() if each.parent == parent.pid}
        self.left_behind |= found.keys()
        return found

    async def leaks(self) -> list[str]:
        """See `contents.leaks`. Where the stores have ended there is only what the processes have printed."""
        outputs = [each.output for each in self.processes]
        secrets = [value for name, value in self.environ.items() if IS_SECRET.search(name) and len(value) > SHORT]
        settings = load(self.config, self.environ)
        if settings.is_embedded:
            running = valkey.url_of_running(self.data / "valkey") or "redis://127.0.0.1:1"
            settings = settings.model_copy(update={"redis": running})
        try:
            async with open_redis(settings) as redis, open_log(settings, redis) as log:
                urls = [each.url for each in self.processes]
                refused = self.refusals.all
                return await contents.leaks(redis, log, outputs=outputs, urls=urls, refused=refused, secrets=secrets)
        except (ConnectionError, TimeoutError):
            return contents.with_keys(contents.printed(outputs) | contents.told(self.refusals.all), secrets)

    def end(self) -> None:
        """Let everything end, the hard way where it does not by itself."""
        for process in self.processes:
            if process.name == "up":
                with suppress(FileNotFoundError):
                    self.valkey_pid()  # it outlives one that died
                if process.popen.poll() is None:
                    self.children(process)
            with suppress(ProcessLookupError):
                process.popen.terminate()
        for process in self.processes:
            try:
                process.popen.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        for pid in self.left_behind:
            if self._is_ours(pid):
                kill(pid)

    def _is_ours(self, pid: int) -> bool:
        """Whether this id still is a process on our folder, and not somebody else's by now."""
        shown = _running().get(pid)
        return shown is not None and str(self.folder) in shown.command

    def _start(self, name: str, port: int, *arguments: str, **environ: str) -> Process:
        output = self.folder / f"{name}-{len(self.processes)}.log"
        with output.open("wb") as file:
            popen = _popen(self._command(*arguments), {**self._environ(), **environ}, file, self.root)
        process = Process(name, popen, output, port)
        self.processes.append(process)
        return process

    def _command(self, *arguments: str) -> list[str]:
        config = () if "--upstream" in arguments else ("--config", str(self.config))
        return [sys.executable, "-m", "gateway.cli", *arguments, *config]

    def _environ(self) -> dict[str, str]:
        outside = {name: value for name, value in os.environ.items() if not name.startswith("POINTSMAN_")}
        return {**outside, **self.environ, "PYTHONPATH": str(self.root), "COLUMNS": "1000"}


@contextmanager
def pointsman(folder: Path, settings: Mapping[str, Any], **environ: str) -> Iterator[Pointsman]:
    """These settings in a file, changed by the variables; nothing runs yet. Whatever is started ends with the block.

    Before it does, what was said to models, and keys, are looked for wherever they must not be; also in what clients
    that `refusals` made were told.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "pointsman.yaml"
    config.write_text(yaml.safe_dump(dict(settings)), encoding="utf-8")
    key = "sk-pm-" + os.urandom(24).hex()
    ours = Pointsman(folder, config, {**environ, "POINTSMAN_API_KEY": key}, key)
    try:
        yield ours
        with ThreadPoolExecutor(1) as apart:  # the caller may be in a loop
            assert apart.submit(asyncio.run, ours.leaks()).result() == []
    finally:
        ours.refusals.close()
        ours.end()


async def until(condition: Callable[[], bool], what: str, *, within: float) -> float:
    """Return once the condition holds, with the seconds that took."""
    began = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - began < within, f"{what}: not within {within} s"
        await asyncio.sleep(LOOK_S)
    return time.monotonic() - began


def kill(*pids: int) -> None:
    """`kill -9`, of all of them at once; one that is gone already is fine."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that has ended and that nobody has asked about yet counts as gone."""
    shown = _running().get(pid)
    return shown is not None and not shown.state.startswith("Z")


@dataclass(frozen=True, slots=True)
class _Running:
    """A process of this machine, as it shows."""

    parent: int
    state: str
    command: str


def _running() -> dict[int, _Running]:
    """All of them, by id. `ps` tells where there is no /proc; where there is one, there may be no `ps`."""
    if not PROC.is_dir():
        listed = subprocess.run(
            ["ps", "-ww", "-A", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
        )
        rows = [line.split(None, 3) for line in listed.stdout.splitlines()]
        return {int(row[0]): _Running(int(row[1]), row[2], row[3]) for row in rows if len(row) == 4}
    found = {}
    for folder in PROC.iterdir():
        with suppress(OSError, ValueError):  # one that has ended meanwhile, or no process
            pid = int(folder.name)
            state, parent = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            found[pid] = _Running(int(parent), state, command)
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status) == 200
    except (OSError, urllib.error.URLError):
        return False


def _popen(
    command: list[str], environ: Mapping[str, str], output: IO[bytes], folder: Path
) -> "subprocess.Popen[bytes]":
    if sys.platform.startswith("linux"):
        command = [sys.executable, "-c", DIES_WITH_US, *command]
    return subprocess.Popen(
        command, env=dict(environ), cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )
