"""A batch whose worker is killed twice, and its driver once: each line comes out once, and memory does not grow.

    python -m bench.batch [--lines 500 5000] [--kills 2] [--ones 10] [--service-ms 20] [--log kafka|streams]

For each number of lines: a real Kafka, the API, a sweeper (which drives the batch) and a worker on the real backend for
OpenAI-compatible servers, with an upstream in a process of its own that records every call. The input goes in and
the output comes out through the official SDK. `kill -9` of the worker comes at equal parts of the lines, that of the
sweeper with the first of them. Then, `--ones` times, a batch of one line on a backend that answers at once.

The last line is one JSON object:

- `runs`: for each number of lines
  - `lines` `came_out` (different `custom_id`s in the two files) `came_out_twice` `failed`
  - `calls_repeated`: from the upstream's own record: calls that were open, or whose answer was not saved, at a kill
  - `usd` of the batch; `usd_lines`, the sum over the lines of its files; `usd_ledger`, the sum over `ledger.charges`
  - `peak_mb`: the most memory that a process of each kind has held; `grown_mb`: against the run before
  - `seconds`, from its request to its end, the waits for leases included
- `one_line_s`: of a batch of one line, from its request to its end: the median, and the slowest
- `ok`: every line once, none failed, all dollars equal

Exit code 1 when not.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import openai
import uvloop
from openai.types import Batch
from rich.console import Console
from rich.table import Table

from bench.audit import Books
from bench.crew import Crew, Member, crew
from bench.provider_double import Running, provider
from bench.servers import LIMITS, TENANT, Stage, stage
from router.ledger import plain
from tests.acceptance.contents import leaks_of
from tools.kafka.broker import HOST

LEASE_S = 5
CONCURRENCY = 32
LIMIT_S = 600.0
LOOK_S = 0.02
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Run:
    """One batch; see above."""

    lines: int
    came_out: int
    came_out_twice: int
    failed: int
    calls_repeated: int
    usd: str
    usd_lines: str
    usd_ledger: str
    seconds: float
    peak_mb: Mapping[str, float]
    grown_mb: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Every line once, none failed, all dollars equal."""
        is_whole = self.came_out == self.lines and not self.came_out_twice and not self.failed
        return is_whole and self.usd == self.usd_lines == self.usd_ledger


@dataclass(slots=True)
class Peaks:
    """The most memory that a process of each kind has held so far, in MB."""

    most: dict[str, float] = field(default_factory=dict)

    async def follow(self, ours: Crew) -> None:
        """Look now and then, until cancelled: what a killed process held is not known afterwards."""
        while True:
            self.look(ours)
            await asyncio.sleep(LOOK_S)

    def look(self, ours: Crew) -> None:
        """Look now."""
        for member in ours.members:
            if member.is_alive:
                self.most[member.role] = max(self.most.get(member.role, 0.0), _peak_mb(member.pid))


def main() -> int:
    """Measure, print, and say with the exit code whether everything held."""
    given = _arguments()
    runs: list[Run] = []
    with provider("--service-ms", str(given.service_ms)) as upstream:
        for lines in given.lines:
            runs.append(uvloop.run(_run(given, lines, upstream, runs[-1] if runs else None)))
            print(json.dumps(asdict(runs[-1])), file=sys.stderr, flush=True)
    ones = uvloop.run(_one_line(given)) if given.ones else []
    if runs:
        _print(runs)
    ok = all(run.is_ok for run in runs)
    one_line_s = {"median": round(statistics.median(ones), 3), "slowest": round(max(ones), 3)} if ones else None
    print(json.dumps({"runs": [asdict(run) for run in runs], "one_line_s": one_line_s, "ok": ok}), flush=True)
    return 0 if ok else 1


async def _run(given: argparse.Namespace, lines: int, upstream: Running, before: Run | None) -> Run:
    seen_before = len(await asyncio.to_thread(upstream.record))
    async with stage(log=given.log, changed=_settings(upstream)) as place, crew(place) as ours:
        peaks = Peaks()
        async with asyncio.TaskGroup() as tasks, _started(place, ours) as sdk:
            following = tasks.create_task(peaks.follow(ours))
            began = time.monotonic()
            batch = await _submitted(sdk, _input(lines))
            for kill in range(1, given.kills + 1):
                await _until_done(sdk, batch, lines * kill // (given.kills + 1))
                await _killed(ours, "worker")
                await ours.worker("gpu")
                if kill == 1:
                    await _killed(ours, "sweeper")
                    await ours.sweeper()
            done = await _ended(sdk, batch)
            seconds = time.monotonic() - began
            rows = [row for each in (done.output_file_id, done.error_file_id) async for row in _rows(sdk, each)]
            peaks.look(ours)
            following.cancel()
        assert await leaks_of(ours) == []
        books = await Books.read(place)
        seen = len(await asyncio.to_thread(upstream.record)) - seen_before
    by_id = Counter(row["custom_id"] for row in rows)
    return Run(
        lines=lines,
        came_out=len(by_id),
        came_out_twice=len(rows) - len(by_id),
        failed=sum(row["error"] is not None or row["response"]["status_code"] != 200 for row in rows),
        calls_repeated=seen - lines,
        usd=_ours(done)["usd"],
        usd_lines=plain(sum((Decimal(row["pointsman"]["usd"]) for row in rows), Decimal(0))),
        usd_ledger=plain(books.usd),
        seconds=round(seconds, 1),
        peak_mb={role: round(mb, 1) for role, mb in peaks.most.items()},
        grown_mb={} if before is None else {r: round(mb - before.peak_mb[r], 1) for r, mb in peaks.most.items()},
    )


async def _one_line(given: argparse.Namespace) -> list[float]:
    """Seconds of a batch of one line, from its request to its end."""
    took = []
    async with stage(log=given.log) as place, crew(place) as ours, _started(place, ours, "echo") as sdk:
        for number in range(given.ones + 1):
            file = await sdk.files.create(file=("in.jsonl", _line(number, model="light")), purpose="batch")
            began = time.monotonic()
            batch = await sdk.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
            await _ended(sdk, batch, look_s=0.002)
            took.append(time.monotonic() - began)
    return took[1:]  # the first finds everything cold


@asynccontextmanager
async def _started(place: Stage, ours: Crew, backend: str = "gpu") -> AsyncGenerator[openai.AsyncOpenAI]:
    """The API, a sweeper and a worker, and the SDK that speaks to them."""
    http = await ours.http(place.settings.http.port)
    others = await ours.worker(backend), await ours.sweeper()
    await asyncio.gather(*(each.ready() for each in (http, *others)))
    async with openai.AsyncOpenAI(base_url=f"http://{HOST}:{http.port}/v1", api_key=await place.new_key()) as sdk:
        yield sdk


async def _submitted(sdk: openai.AsyncOpenAI, content: bytes) -> Batch:
    file = await sdk.files.create(file=("in.jsonl", content), purpose="batch")
    return await sdk.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")


async def _until_done(sdk: openai.AsyncOpenAI, batch: Batch, least: int) -> None:
    await _look_until(sdk, batch, lambda now: now.request_counts is not None and now.request_counts.completed >= least)


async def _ended(sdk: openai.AsyncOpenAI, batch: Batch, *, look_s: float = LOOK_S) -> Batch:
    return await _look_until(sdk, batch, lambda now: now.status not in OPEN, look_s=look_s)


async def _look_until(
    sdk: openai.AsyncOpenAI, batch: Batch, holds: Callable[[Batch], bool], *, look_s: float = LOOK_S
) -> Batch:
    async with asyncio.timeout(LIMIT_S):
        while True:
            if holds(batch := await sdk.batches.retrieve(batch.id)):
                return batch
            await asyncio.sleep(look_s)


async def _rows(sdk: openai.AsyncOpenAI, file_id: str | None) -> AsyncIterator[dict[str, Any]]:
    if file_id is not None:
        for line in (await sdk.files.content(file_id)).content.splitlines():
            yield json.loads(line)


async def _killed(ours: Crew, role: str) -> None:
    members: Sequence[Member] = ours.alive(role)
    await asyncio.gather(*(member.kill() for member in members))


def _ours(batch: Batch) -> dict[str, Any]:
    extra: dict[str, Any] = batch.model_extra or {}
    return dict(extra["pointsman"])


def _input(lines: int) -> bytes:
    return b"".join(_line(number, model="light") for number in range(lines))


def _line(number: int, *, model: str) -> bytes:
    text = f"n={number} out=12 Say in one line what this parcel may hold."
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 64}
    asked = {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(asked).encode() + b"\n"


def _settings(upstream: Running) -> dict[str, object]:
    deployment = {
        "backend": "gpu",
        "url": f"{upstream.url}/v1",
        "model": "any",
        "tier": "light",
        "limits": {"concurrency": CONCURRENCY, "requests_per_minute": 1e8, "tokens_per_minute": 1e11},
        "price": {"input": "0.123457", "output": "0.654321"},
    }
    return {
        "deployments": {"light": deployment},
        "tenants": {TENANT: {"limits": dict(LIMITS)}},
        "kafka": {"partitions": 4, "session_s": 6},
        "worker": {"lease_s": LEASE_S, "health_port": 0},
    }


def _peak_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 / 1_000_000 if found else 0.0


def _print(runs: Sequence[Run]) -> None:
    table = Table(*asdict(runs[0]), title="A batch whose worker is killed on the way")
    for run in runs:
        table.add_row(*(str(value) for value in asdict(run).values()))
    Console(width=200).print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.batch", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--lines", type=int, nargs="*", default=[500, 5000])
    parser.add_argument("--kills", type=int, default=2, help="of the worker, in each run")
    parser.add_argument("--ones", type=int, default=10, help="batches of one line")
    parser.add_argument("--service-ms", type=float, default=20.0, help="how long an upstream call takes")
    parser.add_argument("--log", choices=("kafka", "streams"), default="kafka")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
