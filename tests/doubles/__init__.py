"""Stand-ins for servers that tests cannot have, each a process of its own. None of them is product code."""

import asyncio
import json
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import quote

ROOT = Path(__file__).parents[2]
START_S = 60.0  # only so that nothing hangs: several may start at once
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Calls:
    """What the double saw, of one job or of all. `aborted` are those on which the client hung up."""

    total: int
    open: int
    answered: int
    aborted: int
    by_job: Mapping[str, int]
    by_request: Mapping[str, int]
    calls: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class OpenAIDouble:
    """A running double; `url` is without `/v1`."""

    url: str

    def calls(self, job: str | None = None) -> Calls:
        """Blocks for a moment: from a test with a loop, call it through `asyncio.to_thread` or use `until`."""
        seen = cast(dict[str, object], self._get("/_double/calls" + (f"?job={quote(job)}" if job else "")))
        return Calls(**{**seen, "calls": tuple(cast(list[Mapping[str, object]], seen["calls"]))})  # type: ignore[arg-type]

    def last(self) -> tuple[dict[str, object], dict[str, str]]:
        """Body and headers of the last call."""
        seen = cast(dict[str, object], self._get("/_double/last"))
        return cast(dict[str, object], seen["body"]), cast(dict[str, str], seen["headers"])

    def heal(self, model: str) -> None:
        """From now on this model does well."""
        request = urllib.request.Request(f"{self.url}/_double/heal?model={quote(model)}", method="POST")
        with urllib.request.urlopen(request, timeout=ANSWER_S):
            return

    async def until(
        self, condition: Callable[[Calls], bool], *, job: str | None = None, within: float = ANSWER_S
    ) -> Calls:
        """What the double saw as soon as the condition is true of it. Raises AssertionError when it never is."""
        deadline = time.monotonic() + within
        while True:
            seen = await asyncio.to_thread(self.calls, job)
            if condition(seen):
                return seen
            assert time.monotonic() < deadline, f"the double only saw {seen}"
            await asyncio.sleep(0.02)

    def _get(self, path: str) -> object:
        with urllib.request.urlopen(self.url + path, timeout=ANSWER_S) as answer:
            return json.load(answer)


@contextmanager
def openai_double(port: int = 0) -> Iterator[OpenAIDouble]:
    """A double of its own, ended with the block; it also ends when this process dies."""
    with started([sys.executable, "-m", "tests.doubles.openai_double", "--port", str(port)], within=START_S) as line:
        yield OpenAIDouble(line.split()[-1])


@contextmanager
def aws_double() -> Iterator[str]:
    """The address of a double of AWS of its own; see `tests/doubles/aws`."""
    with started([sys.executable, "-m", "tests.doubles.aws"], within=START_S) as line:
        yield line.split()[-1]


@contextmanager
def metrics_double() -> Iterator[str]:
    """The address of a double of Kubernetes' metrics server; see `tests/doubles/metrics_double.py`."""
    with started([sys.executable, "-m", "tests.doubles.metrics_double"], within=START_S) as line:
        yield line.split()[-1]


@contextmanager
def started(command: list[str], *, within: float) -> Iterator[str]:
    """A server that prints one line when it is ready, and ends when its standard input does. Gives that line."""
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdin is not None
        try:
            readable, _, _ = select.select([server.stdout], [], [], within)
            line = server.stdout.readline().strip() if readable else ""
            assert line, f"{command} did not start within {within} s"
            yield line
        finally:
            server.stdin.close()
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
