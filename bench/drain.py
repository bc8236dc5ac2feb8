"""How near to a provider's limits a backlog is worked off, without being refused by it.

    python -m bench.drain [--first 300] [--jobs 2000] [--rpm 600] [--tpm 500000] [--log streams|kafka] [--no-direct]
    python -m bench.drain --backend bedrock [--first 300] [--jobs 600] [--rpm 200] [--tpm 4000000]

A simulated provider (`bench/provider_double.py`), which knows nothing of Pointsman, allows so many requests and tokens
a minute and holds ten seconds' worth of them. Jobs of mixed size go through the real gateway and worker: a few at
once, and when both sides' buckets are full again, many. Then the same calls are made directly, as most programs make
them: 64 at a time, through the OpenAI SDK with the retries that it does by itself.

The least time that a backlog can take is, for requests and for tokens, what there is beyond a full bucket over what
the bucket gains a second; the larger of the two. Tokens are those that the provider counted as used in the end.

With `--backend bedrock` the provider is a double of Bedrock, which counts as Bedrock does: input and all of
`max_tokens` as a call begins, output five times as it ends. The large backlog is then of documents of 20 pages, 33,000
tokens each. Requests a minute bound the small backlog, tokens a minute the large one: as many as accounts have by
default for small models, so that all of it takes some eight minutes, in which two cores have little to do. There are
no direct calls. The answer that is the last one has to be made as well: that is part of the least time.

The last line is one JSON object, of the large backlog:

- `jobs` `succeeded`: how many were accepted, and completed
- `throttled_share`: calls that the provider refused, over all calls
- `seconds`: from the first submit to the last completion; `minimum_seconds`: the least; `efficiency`: least over actual
- `first`: the same of the small backlog; `direct`: the same of the direct calls (null with --no-direct)

Exit code 1 when a job did not complete, more than 0.1 % of the calls were refused, or (with Bedrock, unless
`--efficiency` says otherwise) a backlog took over 5 % longer than the least time.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Protocol

import aiohttp
import openai
import uvloop
from rich.console import Console
from rich.table import Table

from bench.audit import settled
from bench.crew import crew
from bench.jobs import FILLER
from bench.provider_double import CHARACTERS_PER_TOKEN, Call, Running, provider
from bench.servers import LIMITS, TENANT, Stage, stage
from router.job import JobState
from tests.acceptance.contents import leaks_of
from tests.aws import CREDENTIALS, controlled
from tests.doubles import aws_double

BURST_S = 10.0
AT_ONCE = 64
PATIENCE = 3.0  # times the least time, and a minute
MOST_THROTTLED = 0.001
PATH = "/v1/chat/completions"
BURNDOWN = 5.0
PDF_TOKENS, PDF_OUTPUT = 33_000, 900
SERVICE_MS = 500
EFFICIENCY = 0.95  # within five per cent of the least time
MODEL = "amazon.nova-lite-v1:0"


class Upstream(Protocol):
    """A provider that remembers its calls."""

    @property
    def url(self) -> str:
        """Without `/v1`."""
        ...

    def fresh(self) -> None:
        """Forget, and fill the buckets."""
        ...

    def record(self) -> list[Call]:
        """Every call so far."""
        ...


@dataclass(frozen=True, slots=True)
class BedrockProvider:
    """The double of Bedrock, as a provider."""

    url: str

    def fresh(self) -> None:
        """See `Upstream`."""
        controlled(self.url, "bedrock/fresh")

    def record(self) -> list[Call]:
        """See `Upstream`."""
        seen = controlled(self.url, "bedrock/record", {"model": MODEL})
        states = {"open": "open", "answered": "answered", "ThrottlingException": "refused"}
        return [
            Call(
                request="",
                number="",
                started=each["began"],
                prompt=each["input"],
                ended=each["ended"],
                state=states.get(each["outcome"], "aborted"),
                output=each["output"],
            )
            for each in seen
        ]


@contextmanager
def of_bedrock(behind: Running, given: argparse.Namespace) -> Iterator[BedrockProvider]:
    """One with the limits that are given, and that provider's words."""
    os.environ.update(CREDENTIALS)  # the worker has them from here
    with aws_double() as url:
        knobs = {"rpm": given.rpm, "tpm": given.tpm, "burndown": BURNDOWN, "burst_s": BURST_S}
        controlled(url, "bedrock/model", {"model": MODEL, "upstream": behind.url, **knobs})
        yield BedrockProvider(url)


@dataclass(frozen=True, slots=True)
class Drained:
    """One backlog."""

    jobs: int
    succeeded: int
    throttled_share: float
    seconds: float
    minimum_seconds: float
    efficiency: float


def main() -> int:
    """Measure, print, and say with the exit code whether all succeeded and nearly none was refused."""
    given = _arguments()
    if given.backend == "bedrock":
        with provider() as behind, of_bedrock(behind, given) as upstream:
            first, many = uvloop.run(_through_pointsman(given, upstream))
        return _told(first, many, None, given)
    limits = ("--rpm", str(given.rpm), "--tpm", str(given.tpm), "--burst-s", str(BURST_S))
    with provider(*limits, "--service-ms", str(given.service_ms)) as upstream:
        first, many = uvloop.run(_through_pointsman(given, upstream))
        direct = None if given.no_direct else uvloop.run(_directly(given, upstream))
    return _told(first, many, direct, given)


def _told(first: Drained, many: Drained, direct: Drained | None, given: argparse.Namespace) -> int:
    _print({"first": first, "backlog": many, "direct": direct}, given)
    print(json.dumps({**asdict(many), "first": asdict(first), "direct": direct and asdict(direct)}), flush=True)
    return 0 if all(_is_good(each, given.efficiency) for each in (first, many)) else 1


def _is_good(run: Drained, efficiency: float) -> bool:
    all_came = run.succeeded == run.jobs and run.throttled_share < MOST_THROTTLED
    return all_came and run.efficiency >= efficiency


async def _through_pointsman(given: argparse.Namespace, upstream: Upstream) -> tuple[Drained, Drained]:
    async with stage(log=given.log, changed=_settings(given, upstream)) as place, crew(place) as ours:
        key = await place.new_key()
        api = await ours.http(place.settings.http.port)
        started = [api, await ours.sweeper(), await ours.worker(given.backend)]
        await asyncio.gather(*(each.ready() for each in started))
        first = await _drain(place, key, given, upstream, bodies(given.first, seed=1))
        await asyncio.sleep(BURST_S + 1)
        wanted = documents(given.jobs) if given.backend == "bedrock" else bodies(given.jobs, seed=2)
        many = await _drain(place, key, given, upstream, wanted)
        assert await leaks_of(ours) == []
    return first, many


async def _drain(
    place: Stage, key: str, given: argparse.Namespace, upstream: Upstream, jobs: Sequence[dict[str, object]]
) -> Drained:
    await asyncio.to_thread(upstream.fresh)
    began = time.time()
    ids = await _submit(place, key, jobs)
    await settled(place, PATIENCE * _least(given, len(jobs), sum(map(_tokens, jobs))) + 60)
    views = await asyncio.gather(*(place.core.board.view(TENANT, job) for job in ids))
    completed = [view for view in views if view is not None and view.state is JobState.COMPLETED]
    last = max((view.finished_at or 0.0 for view in completed), default=began)
    return _drained(given, len(jobs), len(completed), last - began, await asyncio.to_thread(upstream.record))


async def _submit(place: Stage, key: str, jobs: Sequence[dict[str, object]]) -> list[str]:
    """All of them, as fast as the door takes them."""
    headers = {"authorization": f"Bearer {key}"}
    waiting = iter(jobs)
    ids: list[str] = []
    async with aiohttp.ClientSession(f"http://127.0.0.1:{place.settings.http.port}", headers=headers) as client:

        async def submit() -> None:
            for job in waiting:
                async with client.post(PATH, json={**job, "async": True}) as answer:
                    answer.raise_for_status()
                    ids.append((await answer.json())["id"].removeprefix("job_"))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(submit())
    return ids


async def _directly(given: argparse.Namespace, upstream: Upstream) -> Drained:
    """As most programs do it: so many at a time, each with the SDK's own retries."""
    await asyncio.to_thread(upstream.fresh)
    waiting = iter(bodies(given.jobs, seed=2))
    succeeded = 0
    async with openai.AsyncOpenAI(base_url=f"{upstream.url}/v1", api_key="none") as client:

        async def call() -> None:
            nonlocal succeeded
            for job in waiting:
                with suppress(openai.APIError):
                    await client.chat.completions.create(**job)  # type: ignore[call-overload]
                    succeeded += 1

        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(call())
        seconds = time.monotonic() - began
    return _drained(given, given.jobs, succeeded, seconds, await asyncio.to_thread(upstream.record))


def bodies(count: int, *, seed: int) -> list[dict[str, object]]:
    """Chat completions of mixed size: most are short, some are pages. No two backlogs of one seed differ."""
    draw = random.Random(seed)
    return [_body(number, draw) for number in range(count)]


def _body(number: int, draw: random.Random) -> dict[str, object]:
    prompt = min(5000, round(draw.lognormvariate(5.9, 0.8)))  # tokens: 365 in the middle, 500 on average
    output = min(800, round(draw.lognormvariate(4.5, 0.7)))  # 90 and 115
    text = f"n={number} out={output} " + FILLER * (prompt * CHARACTERS_PER_TOKEN // len(FILLER) + 1)
    return {
        "model": "light",
        "messages": [{"role": "user", "content": text[: prompt * CHARACTERS_PER_TOKEN]}],
        "max_tokens": 2 * output,
        "metadata": {"number": str(number)},
    }


def documents(count: int) -> list[dict[str, object]]:
    """Of twenty pages each, as many tokens."""
    text = (FILLER * (PDF_TOKENS * CHARACTERS_PER_TOKEN // len(FILLER) + 1))[: PDF_TOKENS * CHARACTERS_PER_TOKEN - 40]
    return [
        {
            "model": "light",
            "messages": [{"role": "user", "content": f"n={number} out={PDF_OUTPUT} ms={SERVICE_MS} {text}"}],
            "max_tokens": 2 * PDF_OUTPUT,
        }
        for number in range(count)
    ]


def _tokens(body: Mapping[str, object]) -> int:
    return len(json.dumps(body)) // CHARACTERS_PER_TOKEN + 200  # only for how long to be patient


def _drained(given: argparse.Namespace, jobs: int, succeeded: int, seconds: float, seen: Sequence[Call]) -> Drained:
    burndown = BURNDOWN if given.backend == "bedrock" else 1.0
    tokens = sum(call.prompt + int(call.output * burndown) for call in seen if call.state == "answered")
    last_s = SERVICE_MS / 1000 if given.backend == "bedrock" and jobs == given.jobs else 0.0
    minimum = _least(given, sum(call.state == "answered" for call in seen), tokens) + last_s
    return Drained(
        jobs=jobs,
        succeeded=succeeded,
        throttled_share=round(sum(call.state == "refused" for call in seen) / max(1, len(seen)), 5),
        seconds=round(seconds, 2),
        minimum_seconds=round(minimum, 2),
        efficiency=round(minimum / seconds, 4) if seconds else 0.0,
    )


def _least(given: argparse.Namespace, requests: int, tokens: int) -> float:
    """What is beyond a full bucket, over what it gains a second."""
    wanted: Sequence[tuple[float, float]] = ((requests, given.rpm), (tokens, given.tpm))
    return max(0.0, *(amount * 60 / per_minute - BURST_S for amount, per_minute in wanted))


def _settings(given: argparse.Namespace, upstream: Upstream) -> dict[str, object]:
    limits: dict[str, object] = {
        "requests_per_minute": given.rpm,
        "tokens_per_minute": given.tpm,
        "burst_s": BURST_S,
    }
    where: dict[str, object] = {"backend": "gpu", "url": f"{upstream.url}/v1", "model": "any"}
    if given.backend == "bedrock":
        limits |= {"output_burndown": BURNDOWN, "cache_reads_count": False}
        place = {"region": "us-east-1", "aws_url": upstream.url}
        where = {"backend": "bedrock", "model": MODEL, "bedrock": place, "window": 200_000}
    deployment = {
        **where,
        "tier": "light",
        "max_output": 2000,
        "limits": {**limits, "concurrency": AT_ONCE},
        "price": {"input": "0.10", "output": "0.40"},
    }
    tenant = {"limits": dict(LIMITS), "max_unfinished": 1_000_000, "max_in_class": 100_000}
    return {"deployments": {"light": deployment}, "tenants": {TENANT: tenant}}


def _print(runs: Mapping[str, Drained | None], given: argparse.Namespace) -> None:
    names = ("jobs", "succeeded", "throttled_share", "seconds", "minimum_seconds", "efficiency")
    rate = f"{given.rpm:g} requests and {given.tpm:g} tokens a minute, {BURST_S:g} s of them at once"
    table = Table("run", *names, title=f"Working off a backlog at {rate}")
    for name, run in runs.items():
        if run is not None:
            table.add_row(name, *(str(asdict(run)[each]) for each in names))
    console = Console(width=110)
    console.print(table)
    console.print(
        "minimum_seconds: the larger of (requests - burst) / rate and (tokens - burst) / rate, "
        f"with bursts of {given.rpm / 60 * BURST_S:g} and {given.tpm / 60 * BURST_S:g}",
        soft_wrap=True,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.drain", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--backend", choices=("gpu", "bedrock"), default="gpu")
    parser.add_argument("--first", type=int, default=300, help="jobs of the small backlog")
    parser.add_argument("--jobs", type=int, help="of the large one; 2000, or 600 with bedrock")
    parser.add_argument("--rpm", type=float, help="600, or 200 with bedrock")
    parser.add_argument("--tpm", type=float, help="500,000, or 4 millions with bedrock")
    parser.add_argument("--efficiency", type=float, help="what each backlog must reach; 0.95 with bedrock, else 0")
    parser.add_argument("--service-ms", type=float, default=0.0, help="how long the provider takes for a call")
    parser.add_argument("--log", choices=("kafka", "streams"), default="streams")
    parser.add_argument("--no-direct", action="store_true", help="without the direct calls")
    given = parser.parse_args()
    is_bedrock = given.backend == "bedrock"
    usual = (600, 200.0, 4_000_000.0, EFFICIENCY) if is_bedrock else (2000, 600.0, 500_000.0, 0.0)
    for name, value in zip(("jobs", "rpm", "tpm", "efficiency"), usual, strict=True):
        if getattr(given, name) is None:
            setattr(given, name, value)
    return given


if __name__ == "__main__":
    sys.exit(main())
