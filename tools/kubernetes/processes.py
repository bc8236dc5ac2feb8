"""The programs of one control plane: each with a log of its own, ended in reverse order by its process id."""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tools.kafka.broker import end_with_parent, tail
from tools.kubernetes.building import PROGRAMS, KubernetesToolError

STOP_S = 5.0


class Processes:
    """Its processes end with this one, where the main thread started them."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, program: str, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        """It is not ready yet."""
        with (self.logs / f"{program}.log").open("ab") as log:
            self._running[program] = subprocess.Popen(
                [str(PROGRAMS / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.logs,
                env={**os.environ, **(environ or {})},
                preexec_fn=end_with_parent(),  # noqa: PLW1509  (one system call, made ready before)
            )

    @property
    def pids(self) -> Mapping[str, int]:
        """By program."""
        return {name: process.pid for name, process in self._running.items()}

    def refuse_ended(self) -> None:
        """Raise `KubernetesToolError` when one has ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                log = self.logs / f"{name}.log"
                raise KubernetesToolError(f"{name} ended with code {process.returncode}; {log} ends with\n{tail(log)}")

    def stop(self) -> None:
        """End all, within `STOP_S` and a moment. Their data is not needed again, so that none is asked twice."""
        ending = list(reversed(self._running.values()))
        for process in ending:
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in ending:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
