"""Engines for tests: doubles, each a process of its own, that behave like vLLM and fail on request."""

import asyncio
import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.doubles import ANSWER_S, START_S, started


@dataclass(frozen=True, slots=True)
class EngineDouble:
    """A running one; `url` is without `/v1`."""

    url: str

    async def become(self, mode: str) -> None:
        """Change what it does from now on."""
        await asyncio.to_thread(self._ask, "/_double/mode", json.dumps({"mode": mode}).encode())

    async def calls(self) -> dict[str, int]:
        """What came to it."""
        return await asyncio.to_thread(self._ask, "/_double/calls", None)

    def _ask(self, path: str, body: bytes | None) -> dict[str, int]:
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data=body), timeout=ANSWER_S) as answer:
            found: dict[str, int] = json.load(answer)
            return found


@contextmanager
def engine_double(*arguments: str) -> Iterator[EngineDouble]:
    """One that ends with the block; it also ends when this process dies."""
    command = [sys.executable, "-m", "bench.engine_double", *arguments]
    with started(command, within=START_S) as line:
        yield EngineDouble(line.split()[-1])
