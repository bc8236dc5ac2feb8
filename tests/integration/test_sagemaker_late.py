"""What ends at an endpoint after its attempt was given up, through a DOUBLE of AWS: charged once, told of or not."""

from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from router import ledger
from router.job import Job, JobState
from tests.builders import until
from tests.doubles import OpenAIDouble, openai_double
from tests.endpoint_place import LONG_S, Place, a_place, ended, is_empty, is_handed_off, is_over_there, submitted

pytestmark = pytest.mark.usefixtures("aws_credentials")


@pytest.fixture(scope="module")
def container() -> Iterator[OpenAIDouble]:
    with openai_double() as double:
        yield double


@pytest.fixture
async def place(redis: "Redis", tmp_path: Path, aws: str, container: OpenAIDouble) -> AsyncIterator[Place]:
    async with a_place(redis, tmp_path, aws, container) as place:
        yield place


async def test_a_cancelled_job_ends_at_once_and_what_its_late_result_used_is_charged_once(place: Place) -> None:
    await place.at.turn(container_s=4.0, double_messages=1.0)
    job = await place.bench.queued()
    async with place.running():
        await submitted(place, 1)
        await until(lambda: is_handed_off(place, job), within=LONG_S)
        await place.bench.board.cancel(job.tenant, job.id, "{}")
        assert await ended(place, job) == [JobState.CANCELLED]
        await until(lambda: is_over_there(place), within=LONG_S)
        await until(lambda: is_empty(place), within=LONG_S)

    first, late = (await _by_attempt(place)).values()
    assert (first["attempt"], late["attempt"], late["concluded"]) == (1, ledger.LATE + 1, False)
    assert late["microbatch"] == first["microbatch"]
    assert {line["outcome"] for line in late["lines"]} == {"late"}
    used = sum(line["quantity"] for row in (first, late) for line in row["lines"] if line["meter"] == "output")
    assert used == 2  # the words of the answer; the estimate at the cancel was of its input only
    view = await place.bench.view(job)
    [microbatch] = await place.bench.costs("microbatch")
    assert microbatch.usd == view.usd == await _spent(place) == sum(Decimal(row["usd"]) for row in (first, late))
    assert await place.bench.events() == {f"job_{job.id}": "job.cancelled"}


async def test_a_late_result_that_no_message_tells_of_is_looked_for_and_charged_once(place: Place) -> None:
    await place.at.turn(instances=0, drop_messages=1.0)
    cancelled, late_for = await place.bench.queued("four words for it"), await place.bench.queued(deadline_s=12.0)
    async with place.running(collectors=2):
        await submitted(place, 2)
        await until(lambda: is_handed_off(place, cancelled), within=LONG_S)
        await place.bench.board.cancel(cancelled.tenant, cancelled.id, "{}")
        assert await ended(place, cancelled, late_for) == [JobState.CANCELLED, JobState.EXPIRED]
        await place.at.turn(instances=1)
        await until(lambda: _is_charged_late(place, cancelled), within=LONG_S)
        await until(lambda: _is_charged_late(place, late_for), within=LONG_S)
        await until(lambda: _all_are_heard(place), within=LONG_S)

    for job in (cancelled, late_for):
        view = await place.bench.view(job)
        assert {line.outcome for line in view.charges if line.attempt == ledger.LATE + 1} == {"late"}
    assert await _spent(place) == sum(Decimal(row["usd"]) for row in (await _by_attempt(place)).values())


async def _is_charged_late(place: Place, job: Job) -> bool:
    return any(line.attempt == ledger.LATE + 1 for line in (await place.bench.view(job)).charges)


async def _all_are_heard(place: Place) -> bool:
    return not await place.bench.redis.exists("{t:acme}:unheard")


async def _by_attempt(place: Place) -> dict[tuple[str, int], dict[str, Any]]:
    """The ledger as its readers take it: a record may come twice, and then says the same."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in await place.bench.charges():
        assert found.setdefault((row["job"], int(row["attempt"])), row) == row
    return dict(sorted(found.items()))


async def _spent(place: Place) -> Decimal:
    """What the rollups say."""
    return sum((row.usd for row in await place.bench.costs()), Decimal(0))
