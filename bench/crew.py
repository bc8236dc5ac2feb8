"""Pointsman's processes for a drill: started as an operator starts them, and killed as no operator would."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.servers import Stage, is_ready
from tools.kafka.broker import free_ports

ROOT = Path(__file__).resolve().parents[1]
GOODBYE_S = 60.0
READY_S = 90.0
LOOK_S = 0.1
# Become the command, after asking the kernel (PR_SET_PDEATHSIG) to end it when the drill dies, however it dies.
DIES_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


@dataclass(eq=False, slots=True)
class Member:
    """A process: http, worker, collector or sweeper. What it prints is in `output`; `port` answers HTTP."""

    role: str
    process: asyncio.subprocess.Process
    port: int
    output: Path
    began: float

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.returncode is None

    async def kill(self) -> None:
        """`kill -9`, and nothing of it is left when this returns."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    def terminate(self) -> None:
        """SIGTERM: it ends when it has drained."""
        with suppress(ProcessLookupError):
            self.process.terminate()

    async def ready(self) -> "Member":
        """Return once it says that it is ready."""
        deadline = time.monotonic() + READY_S
        while not await is_ready(self.port):
            if not self.is_alive:
                raise RuntimeError(f"{self.role} ended with {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.role} is not ready after {READY_S:.0f} s:\n{self.tail()}")
            await asyncio.sleep(LOOK_S)
        return self

    def tail(self, lines: int = 20) -> str:
        """The end of what it printed."""
        return "\n".join(self.output.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@dataclass(slots=True)
class Crew:
    """All that was started, those that have ended included."""

    place: Stage
    folder: Path
    members: list[Member] = field(default_factory=list)

    def alive(self, role: str) -> list[Member]:
        """Those of a role that run, the oldest first."""
        return [member for member in self.members if member.role == role and member.is_alive]

    async def http(self, port: int) -> Member:
        """`pointsman serve http`."""
        return await self._start("http", port, "serve", "http", POINTSMAN_HTTP__PORT=str(port))

    async def worker(self, backend: str) -> Member:
        """`pointsman serve worker`."""
        [port] = free_ports(1)
        arguments = "serve", "worker", "--backend", backend
        return await self._start("worker", port, *arguments, POINTSMAN_WORKER__HEALTH_PORT=str(port))

    async def collector(self, backend: str) -> Member:
        """`pointsman serve collector`."""
        [port] = free_ports(1)
        arguments = "serve", "collector", "--backend", backend
        return await self._start("collector", port, *arguments, POINTSMAN_WORKER__HEALTH_PORT=str(port))

    async def sweeper(self) -> Member:
        """`pointsman serve sweeper`."""
        [port] = free_ports(1)
        return await self._start("sweeper", port, "serve", "sweeper", POINTSMAN_SWEEPER__HEALTH_PORT=str(port))

    async def _start(self, role: str, port: int, *arguments: str, **environ: str) -> Member:
        output = self.folder / f"{role}-{len(self.members)}.log"
        command = [sys.executable, "-m", "gateway.cli", *arguments]
        if sys.platform.startswith("linux"):
            command = [sys.executable, "-c", DIES_WITH_US, *command]
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=ROOT,
                env={**self.place.environ, "PYTHONPATH": str(ROOT), **environ},
            )
        member = Member(role, process, port, output, time.time())
        self.members.append(member)
        return member

    async def end(self) -> None:
        """Let everything end, the hard way where it does not by itself."""
        living = [member for member in self.members if member.is_alive]
        for member in living:
            member.terminate()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await asyncio.gather(*(member.process.wait() for member in living))
        except TimeoutError:
            for member in living:
                await member.kill()


@asynccontextmanager
async def crew(place: Stage) -> AsyncGenerator[Crew]:
    """None at first; all that are started end with the block."""
    folder = place.settings.data.parent / "output"
    folder.mkdir()
    ours = Crew(place, folder)
    try:
        yield ours
    finally:
        await ours.end()


async def freeze(pid: int, seconds: float) -> None:
    """Let a process stand still (SIGSTOP) for so long; it goes on whatever happens."""
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
