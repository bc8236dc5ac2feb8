"""A drill of asynchronous SageMaker endpoints, through a DOUBLE of AWS: its messages get lost or come twice, and the
processes that submit and collect are killed.

    python -m bench.endpoints [--jobs 500] [--kills 2] [--deadline 240] [--log kafka]

A quarter of the bodies are over 128 KB and go through S3, a tenth of the messages never comes, a tenth comes twice.
`pointsman serve worker` and `pointsman serve collector` are each killed (kill -9) that many times, spread over the run,
and others take over. The container is a server that counts tokens in a known way, so that the dollars of every job are
known beforehand. Leases are short (5 s), which changes nothing but how long the rest waits.

The last line is one JSON object:

- `jobs` `large`; `completed` `lost` (without an end, a result or a charge) `completed_twice` `past_deadline`
- `calls`, as the double counted them, and `repeated`, those beyond one a job; `open_at_kills` bounds it: calls that
  were open on the board when a worker was killed
- `dollars_off`: the largest difference between what the jobs should cost and the sums of their completed charges, and
  between the sums of the ledger, of the rollups and of the jobs; `usd`, and `usd_waste`, the part that delivered
  nothing
- `messages_left` in the queue; `slowest_s` from the accept to the end; `seconds` of the whole drill
- `ok`: all completed in time, none twice, not a picodollar off

Exit code 1 when not.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import ceil
from typing import cast

import uvloop

from bench.audit import Books, Row, outcome_of, settled, views_of
from bench.crew import Crew, crew
from bench.fill import fill
from bench.provider_double import provider
from bench.servers import LIMITS, TENANT, Stage, stage
from router.costs import spent
from router.job import JobState
from tests.acceptance.contents import leaks_of
from tests.aws import CREDENTIALS, REGION, AwsPlace
from tests.doubles import aws_double

LEASE_S = 5
LATE_S = 2 * LEASE_S  # an end is written that long after a deadline at most, when nothing is killed then
LIMIT_S = 60.0  # more than the deadline
LOOK_S = 0.1
LARGE = 130_000  # characters
INPUT, OUTPUT = Decimal("0.123457"), Decimal("0.654321")  # dollars per million
OUT_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Drilled:
    """See above."""

    jobs: int
    large: int
    completed: int
    lost: int
    completed_twice: int
    past_deadline: int
    calls: int
    repeated: int
    open_at_kills: int
    dollars_off: str
    usd: str
    usd_waste: str
    messages_left: int
    slowest_s: float
    seconds: float

    @property
    def is_ok(self) -> bool:
        """Nothing lost, done twice, late or off."""
        wrong = self.lost or self.completed_twice or self.past_deadline or self.messages_left
        return not wrong and self.completed == self.jobs and self.dollars_off == "0"


def main() -> int:
    """Drill, print, and say with the exit code whether everything held."""
    given = _arguments()
    os.environ.update(CREDENTIALS)
    with aws_double() as url, provider("--service-ms", "100") as container:
        at = AwsPlace.made(url, f"{container.url}/v1/chat/completions")
        at.control("endpoint", {"name": at.name, "drop_messages": 0.1, "double_messages": 0.1})
        found = uvloop.run(_drill(given, at))
    print(json.dumps({**asdict(found), "ok": found.is_ok}), flush=True)
    return 0 if found.is_ok else 1


async def _drill(given: argparse.Namespace, at: AwsPlace) -> Drilled:
    async with stage(log=given.log, changed=_settings(at, given.deadline)) as place, crew(place) as ours:
        accepted = await fill(place, given.jobs, _body)
        began = time.monotonic()
        await ours.sweeper()
        killed = [
            _killed("worker", ours, given, lambda: _taken(at), lambda: _open_calls(place)),
            _killed("collector", ours, given, lambda: _ended(place, given.jobs), _nothing),
        ]
        open_calls = sum(await asyncio.gather(*killed))
        limit_s = given.deadline + LIMIT_S
        done = await settled(place, limit_s)
        left = await _messages_left(at, limit_s)
        seconds = time.monotonic() - began
        found = await _audit(place, accepted, at, open_calls, left, seconds)
        assert await leaks_of(ours) == []
    if not done:
        for member in ours.members:
            print(f"{member.role}:\n{member.tail()}", file=sys.stderr)
    return found


async def _killed(
    role: str,
    ours: Crew,
    given: argparse.Namespace,
    progress: Callable[[], Awaitable[int]],
    count: Callable[[], Awaitable[int]],
) -> int:
    """Kill one of a role as often as asked, as the jobs go on; the sum of what `count` says at each kill."""
    start = {"worker": ours.worker, "collector": ours.collector}[role]
    member, counted = await start("sagemaker"), 0
    for kill in range(given.kills):
        await member.ready()
        at_least, ends = given.jobs * (kill + 1) // (given.kills + 1), time.monotonic() + given.deadline
        while await progress() < at_least:
            if time.monotonic() > ends:
                raise RuntimeError(f"not at {at_least} after {given.deadline:.0f} s:\n{member.tail()}")
            await asyncio.sleep(LOOK_S)
        await member.kill()
        counted += await count()
        member = await start("sagemaker")
    return counted


async def _taken(at: AwsPlace) -> int:
    state = await asyncio.to_thread(at.control, "state")
    return int(state[at.name]["taken"])


async def _ended(place: Stage, jobs: int) -> int:
    return jobs - int(await place.core.redis.zcard(f"{{t:{TENANT}}}:unfinished"))


async def _nothing() -> int:
    return 0


async def _open_calls(place: Stage) -> int:
    """Attempts that were begun and not handed off: the only worker is dead, so that all of them were its."""
    redis, prefix = place.core.redis, f"{{t:{TENANT}}}:"
    names = cast("list[bytes]", await redis.zrange(f"{prefix}running", 0, -1))
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.hexists(f"{prefix}job:{name.decode()}", "open")
    return sum(map(bool, await pipeline.execute()))


async def _messages_left(at: AwsPlace, limit_s: float) -> int:
    ends = time.monotonic() + limit_s
    while (left := await at.messages_left()) and time.monotonic() < ends:  # noqa: ASYNC110 - another server's state
        await asyncio.sleep(LOOK_S)
    return left


async def _audit(
    place: Stage, accepted: Mapping[str, str], at: AwsPlace, open_calls: int, left: int, seconds: float
) -> Drilled:
    books, views = await Books.read(place), await views_of(place, list(accepted.values()))
    by_job: dict[str, list[Row]] = defaultdict(list)
    for row in books.attempts.values():
        by_job[row["job"]].append(row)
    delivered = [row for row in books.attempts.values() if outcome_of(row) == "completed"]
    events = Counter(row["data"]["id"].removeprefix("job_") for row in books.events.values())
    ids = [str(call["id"]) for call in await at.invocations()]
    expected = sum((_price(int(number)) for number in accepted), Decimal(0))
    useful = _usd(delivered)
    today = datetime.now(UTC).date()
    rows = await spent(place.core.redis, [TENANT], by="tenant", days=[today, today - timedelta(days=1)])
    rollups = sum((row.usd for row in rows), Decimal(0))
    jobs = sum((view.usd or Decimal(0) for view in views.values()), Decimal(0))
    sums = (books.usd, rollups, jobs)
    completed = [job for job, view in views.items() if view.state is JobState.COMPLETED]
    waits = [(view.finished_at or time.time()) - view.job.created_at for view in views.values()]
    return Drilled(
        jobs=len(accepted),
        large=sum(_is_large(int(number)) for number in accepted),
        completed=len(completed),
        lost=sum(not events[job] or not by_job[job] or job not in views for job in accepted.values()),
        completed_twice=sum(count > 1 for count in events.values())
        + sum(count > 1 for count in Counter(row["job"] for row in delivered).values()),
        past_deadline=sum(
            view.finished_at is None or view.finished_at > view.job.expires_at + LATE_S for view in views.values()
        ),
        calls=len(ids),
        repeated=len(ids) - len({id.partition(".")[0] for id in ids}),
        open_at_kills=open_calls,
        dollars_off=f"{max(abs(expected - useful), max(sums) - min(sums)):f}".rstrip("0").rstrip(".") or "0",
        usd=f"{books.usd:f}",
        usd_waste=f"{books.usd - useful:f}",
        messages_left=left,
        slowest_s=round(max(waits), 1),
        seconds=round(seconds, 1),
    )


def _usd(rows: Sequence[Row]) -> Decimal:
    return sum((Decimal(line["usd"]) for row in rows for line in row["lines"]), Decimal(0))


def _is_large(number: int) -> bool:
    return number % 4 == 0


def _text(number: int) -> str:
    return f"n={number} out={OUT_TOKENS} " + ("parcel " * (LARGE // 7 + 1) if _is_large(number) else "What is in it?")


def _price(number: int) -> Decimal:
    """What the container counts, at the price of the settings."""
    return (ceil(len(_text(number)) / 4) * INPUT + OUT_TOKENS * OUTPUT) / 1_000_000


def _body(number: int) -> bytes:
    message = {"role": "user", "content": _text(number)}
    metadata = {"number": str(number)}
    return json.dumps(
        {"model": "light", "messages": [message], "max_tokens": 64, "metadata": metadata, "async": True}
    ).encode()


def _settings(at: AwsPlace, deadline_s: float) -> dict[str, object]:
    deployment = {
        "backend": "sagemaker",
        "model": at.name,
        "tier": "light",
        "window": 200_000,
        "limits": {"concurrency": 40},
        "price": {"input": str(INPUT), "output": str(OUTPUT)},
        "sagemaker": {"region": REGION, "queue": at.queue, "inputs": f"s3://{at.bucket}/in", "aws_url": at.url},
    }
    tenant = {"limits": dict(LIMITS), "max_unfinished": 1_000_000, "max_in_class": 100_000, "deadline_s": deadline_s}
    return {
        "deployments": {"light": deployment},
        "tenants": {TENANT: tenant},
        "worker": {"lease_s": LEASE_S, "health_port": 0},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.endpoints", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--kills", type=int, default=2, help="of each of the two processes")
    parser.add_argument("--deadline", type=float, default=240.0, help="of each job, in seconds")
    parser.add_argument("--log", choices=("kafka", "streams"), default="streams")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
