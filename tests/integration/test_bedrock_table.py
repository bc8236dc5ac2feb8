"""What follows each error of Bedrock's, job by job: through a DOUBLE of its runtime, on a real Valkey."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from consumers.outcome import Later
from policies.pricebook import builtin
from router.job import Job, JobState
from tests.builders import Bench, a_bench, a_deployment, a_tally, keeping
from tests.integration.test_bedrock import (  # noqa: F401  # fixtures
    MODEL,
    Place,
    place,
    server,
)

pytestmark = pytest.mark.usefixtures("aws_credentials")

MOST_CALLS = 3
LONG_S = 1.0  # a wait that a test does not wait for


@dataclass(frozen=True)
class Row:
    """Of a model that always says so: how many calls a job makes of it (of those that are made soon, `MOST_CALLS` at
    most), how the job stands then, how long it waits before the second.

    `is_slowed`: fewer calls at once are made from now on. `is_owed`: it may be billed, by what was sent.
    """

    code: str
    calls: int
    state: JobState
    wait_s: float = 0.0
    is_slowed: bool = False
    is_owed: bool = False
    says: str = ""


TABLE = (
    Row("ThrottlingException", MOST_CALLS, JobState.QUEUED, is_slowed=True),
    Row("ModelNotReadyException", 1, JobState.QUEUED, wait_s=15.0),
    Row("ServiceUnavailableException", MOST_CALLS, JobState.QUEUED, is_slowed=True),
    Row("InternalServerException", MOST_CALLS, JobState.QUEUED),
    Row("ModelTimeoutException", 2, JobState.FAILED, is_owed=True),
    Row("ModelErrorException", 2, JobState.FAILED),
    Row("ModelStreamErrorException", 2, JobState.FAILED, is_owed=True),
    Row("ServiceQuotaExceededException", 1, JobState.QUEUED, wait_s=300.0),
    Row("ValidationException", 1, JobState.FAILED, says="the double was told to"),
    Row("ConflictException", 1, JobState.FAILED, says="the double was told to"),
    Row("AccessDeniedException", 1, JobState.QUEUED, wait_s=60.0),
    Row("ResourceNotFoundException", 1, JobState.QUEUED, wait_s=60.0),
)


@pytest.fixture
async def bench(redis: "Redis", tmp_path: Path, place: Place) -> AsyncIterator[Bench]:  # noqa: F811
    deployment = replace(a_deployment(price=builtin().find(MODEL)), model=MODEL, bedrock=place.deployment.bedrock)
    async with a_bench(redis, tmp_path, deployments=[deployment]) as found:
        yield found


async def delivered(bench: Bench, place: Place, job: Job) -> float:  # noqa: F811
    """Again and again, until it has ended, has made enough calls, or waits long. The first wait; 0 for none."""
    attempt, waits = bench.attempt(place.backend), list[float]()
    async with keeping(attempt), asyncio.timeout(30):
        while len(place.record()) < MOST_CALLS:
            outcome = await attempt(job, f"worker:ann|jobs|1-0|{len(waits)}", a_tally())
            if not isinstance(outcome, Later):
                break
            waits.append(outcome.seconds)
            if outcome.seconds > LONG_S:
                break
            await asyncio.sleep(outcome.seconds)
    return next(iter(waits), 0.0)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.code)
async def test_each_error_is_followed_by_what_the_table_says(bench: Bench, place: Place, row: Row) -> None:  # noqa: F811
    place.turn(error=row.code)
    job = await bench.job(deadline_s=3600.0)

    wait_s = await delivered(bench, place, job)

    view, charges = await bench.view(job), await bench.charges()
    assert (len(place.record()), view.state) == (row.calls, row.state)
    assert wait_s == row.wait_s if row.wait_s else wait_s < LONG_S
    assert (place.backend.room("small", 0) is not None) is row.is_slowed
    assert {line["basis"] for charge in charges for line in charge["lines"]} == (
        {"estimated"} if row.is_owed else set()
    )
    assert row.says in str(view.error)


async def test_what_bedrock_asks_us_to_wait_is_waited(bench: Bench, place: Place) -> None:  # noqa: F811
    place.turn(error="ThrottlingException", retry_after="7")

    assert await delivered(bench, place, await bench.job(deadline_s=3600.0)) >= 7.0


async def test_a_day_that_is_used_up_stops_the_deployment(bench: Bench, place: Place) -> None:  # noqa: F811
    place.turn(error="ThrottlingException", error_message="Too many tokens per day, please wait before trying again.")

    assert await delivered(bench, place, await bench.job(deadline_s=3600.0)) == 300.0
    assert place.backend.room("small", 0) is None  # no fewer calls at once, once there is quota again
