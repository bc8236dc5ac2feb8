"""An endpoint's figures, and the dollars of its instances, through a DOUBLE of AWS."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from redis.asyncio import Redis

from consumers.aws.backend_sagemaker import SageMakerBackend
from consumers.aws.sagemaker_figures import NAMESPACE
from consumers.aws.sagemaker_instances import Instances
from consumers.aws.sagemaker_meters import SageMakerMeters
from consumers.aws.sagemaker_scaling import COLD_S, COMES_S
from consumers.backend import Answer, SoFar, Submitted
from consumers.gpu.machine_bills import MachineBills
from consumers.gpu.places import Places
from gateway.quotes import Quotes
from policies.scripts import Scripts
from router.job import Job, JobState
from router.machine_shares import MachineShares
from router.queues import Queues
from tests.builders import until
from tests.doubles import OpenAIDouble, openai_double
from tests.endpoint_place import LONG_S, Place, a_place, is_over_there

pytestmark = pytest.mark.usefixtures("aws_credentials")


@pytest.fixture(scope="module")
def container() -> Iterator[OpenAIDouble]:
    with openai_double() as double:
        yield double


@pytest.fixture
async def place(redis: "Redis", tmp_path: Path, aws: str, container: OpenAIDouble) -> AsyncIterator[Place]:
    async with a_place(redis, tmp_path, aws, container) as place:
        yield place


async def test_the_endpoint_s_own_figures_and_the_ways_of_results_are_metrics(place: Place) -> None:
    registry = CollectorRegistry()
    await place.at.turn(instances=0)
    bench = place.bench
    async with SageMakerBackend.open(
        bench.deployments, tuple(bench.tenants), bench.scripts, SageMakerMeters(registry)
    ) as backend:
        job = await bench.job()
        taken = await backend.call(job, place.deployment, attempt=1, on_chunk=None, so_far=SoFar())
        assert isinstance(taken, Submitted)
        await until(lambda: _lacks_capacity(place), within=LONG_S)
        watching = asyncio.create_task(backend.watch())
        await until(lambda: _says(registry, 'has_backlog_without_capacity{deployment="small"} 1.0'), within=LONG_S)
        watching.cancel()
        await backend.collect(job, place.deployment, taken.reference, attempt=1)
        await place.at.turn(instances=1)
        await until(lambda: is_over_there(place), within=LONG_S)
        await backend.collect(job, place.deployment, taken.reference, attempt=1)

    assert await _says(registry, 'approximate_backlog_size{deployment="small"} 1.0')
    assert await _says(registry, 'results_total{deployment="small",how="found_late"} 1.0')


def _variants(there: int, wanted: int) -> Mapping[str, Any]:
    return {"ProductionVariants": [{"CurrentInstanceCount": there, "DesiredInstanceCount": wanted}]}


def _add_up(record: Mapping[str, Any]) -> None:
    """Every picodollar of it is a call's or idle, and they are the price of the instances' time."""
    parts = [*(share["usd"] for share in record["shares"]), *record["idle_usd"].values()]
    assert sum(map(Decimal, parts)) == Decimal(record["usd"])
    milliseconds = round(record["up_s"] * 1000)
    assert Decimal(record["usd"]) == Decimal(record["usd_per_hour"]) * milliseconds / 3_600_000


async def test_the_endpoint_s_instances_are_billed_and_split_over_its_calls_to_the_last_picodollar(
    place: Place, scripts: Scripts
) -> None:
    records: dict[str, dict[str, Any]] = {}

    async def append(id: str, record: str) -> None:
        records[id] = json.loads(record)

    bills = MachineBills(scripts, append)
    instances = Instances("small", Decimal("3.60"), Places(scripts, hold_s=100.0), bills, lag_s=100.0)
    bench = place.bench
    await place.at.turn(container_s=1.5)
    opening = SageMakerBackend.open(bench.deployments, tuple(bench.tenants), bench.scripts, None, {"small": instances})
    async with opening as backend:
        await instances.looked(_variants(0, 2))
        await asyncio.sleep(1.1)  # bills are of a second at least
        await instances.looked(_variants(1, 1))
        jobs = [await bench.job(), await bench.job()]
        taken = [await backend.call(job, place.deployment, attempt=1, on_chunk=None, so_far=SoFar()) for job in jobs]
        await instances.looked(_variants(3, 3))
        await until(lambda: is_over_there(place), within=LONG_S)
        for job, each in zip(jobs, taken, strict=True):
            assert isinstance(each, Submitted)
            for _ in range(2):  # looked at again after a crash
                assert isinstance(await backend.collect(job, place.deployment, each.reference, attempt=1), Answer)
        await asyncio.sleep(1.1)
        await instances.looked(_variants(3, 1))
        await asyncio.sleep(1.1)
        await instances.looked(_variants(0, 0))

    warm_up, *others = sorted(records.values(), key=lambda record: int(record["from_ms"]))
    assert 2 * 1.1 <= warm_up["up_s"] <= 2 * (warm_up["to_ms"] - warm_up["from_ms"]) / 1000  # two were coming
    assert Decimal(warm_up["idle_usd"]["warm_up"]) >= Decimal("0.0022")
    assert {share["job"] for record in others for share in record["shares"]} == {job.id for job in jobs}
    for record, after in pairwise([warm_up, *others]):
        assert record["to_ms"] == after["from_ms"]
    for record in (warm_up, *others):
        _add_up(record)
    idle = {cause: sum(Decimal(record["idle_usd"][cause]) for record in others) for cause in ("gap", "cool_down")}
    assert min(idle.values()) > 0


async def test_what_a_call_waited_at_the_endpoint_is_not_its_share_and_is_told_apart(
    place: Place, scripts: Scripts
) -> None:
    records: dict[str, dict[str, Any]] = {}

    async def append(id: str, record: str) -> None:
        records[id] = json.loads(record)
        await MachineShares(scripts).add(record)

    registry, bench = CollectorRegistry(), place.bench
    bills = MachineBills(scripts, append)
    instances = Instances("small", Decimal("3.60"), Places(scripts, hold_s=100.0), bills, lag_s=100.0)
    await place.at.turn(instances=0, container_s=1.0)
    opening = SageMakerBackend.open(
        bench.deployments, tuple(bench.tenants), bench.scripts, SageMakerMeters(registry), {"small": instances}
    )
    async with opening as backend:
        await instances.looked(_variants(0, 0))
        job = await bench.job()
        taken = await backend.call(job, place.deployment, attempt=1, on_chunk=None, so_far=SoFar())
        assert isinstance(taken, Submitted)
        await instances.looked(_variants(0, 1))
        await asyncio.sleep(4.0)  # it waits there
        await instances.looked(_variants(1, 1))  # a bill does not go beyond a call of which nothing is known yet
        assert not any(record["shares"] for record in records.values())
        await place.at.turn(instances=1)
        await until(lambda: is_over_there(place), within=LONG_S)
        await until(lambda: _has_latency(place), within=LONG_S)
        watching = asyncio.create_task(backend.watch())
        await until(lambda: _says(registry, 'model_latency_seconds{deployment="small"}'), within=LONG_S)
        watching.cancel()
        await backend.listen()
        answer = await backend.collect(job, place.deployment, taken.reference, attempt=1)
        await asyncio.sleep(1.1)
        await instances.looked(_variants(1, 1))

    assert isinstance(answer, Answer) and answer.stay is not None and answer.stay.running is not None
    waited_s = answer.stay.seconds - answer.stay.running
    assert waited_s >= 4.0
    shares = [share for record in records.values() for share in record["shares"]]
    assert sum(share["seconds"] for share in shares) == pytest.approx(answer.stay.running, abs=0.05)
    for record in records.values():
        _add_up(record)
    warm_up = sum(Decimal(record["idle_usd"]["warm_up"]) for record in records.values())
    assert {record["woken_by"]["job"] for record in records.values() if "woken_by" in record} == {job.id}
    view = await bench.view(job)
    assert view.wake_usd == warm_up >= Decimal("0.004")
    assert view.machine_usd == sum(Decimal(share["usd"]) for share in shares)


async def test_a_job_for_an_endpoint_without_an_instance_is_told_how_long_one_takes_to_come(
    place: Place, scripts: Scripts
) -> None:
    scale = [{"VariantName": "AllTraffic", "DesiredInstanceCount": 0}]
    control = place.at.client("sagemaker")
    await asyncio.to_thread(
        control.update_endpoint_weights_and_capacities,
        EndpointName=place.at.name,
        DesiredWeightsAndCapacities=scale,
    )
    await place.at.turn(instances=0)
    assert place.deployment.sagemaker is not None
    priced = replace(place.deployment.sagemaker, usd_per_hour=Decimal("3.60"))
    place.bench.deployments["small"] = replace(place.deployment, sagemaker=priced)
    queues, bench, stop = Queues(scripts), place.bench, asyncio.Event()
    quotes = Quotes(queues)

    async def quoted(job: Job) -> float | None:
        await quotes.hear()
        quote = quotes.of(await bench.view(job))
        assert quote.starts_in_s is None or quote.wake_usd == Decimal("3.60") * COMES_S / 3600
        return quote.starts_in_s

    job = await bench.queued()
    async with place.backend() as backend, asyncio.TaskGroup() as tasks:
        collector = bench.collector(backend, queues=queues)
        tasks.create_task(collector.run(stop))
        tasks.create_task(bench.worker(backend).run(stop))

        async def is_at_the_endpoint() -> bool:
            return (await bench.view(job)).state is JobState.RUNNING and await quoted(job) is not None

        await until(is_at_the_endpoint, within=LONG_S)
        left = await quoted(job)
        stop.set()

    assert left is not None and COLD_S - LONG_S < left <= COLD_S


async def _lacks_capacity(place: Place) -> bool:
    return 1 in await _figure(place, "HasBacklogWithoutCapacity")


async def _has_latency(place: Place) -> bool:
    return bool(await _figure(place, "ModelLatency", {"Name": "VariantName", "Value": "AllTraffic"}))


async def _figure(place: Place, name: str, *more: Mapping[str, str]) -> list[float]:
    found = await asyncio.to_thread(
        place.at.client("cloudwatch").get_metric_statistics,
        Namespace=NAMESPACE,
        MetricName=name,
        Dimensions=[{"Name": "EndpointName", "Value": place.at.name}, *more],
        StartTime=datetime.now(UTC) - timedelta(minutes=10),
        EndTime=datetime.now(UTC),
        Period=60,
        Statistics=["Maximum"],
    )
    return [point["Maximum"] for point in found["Datapoints"]]


async def _says(registry: CollectorRegistry, line: str) -> bool:
    return f"pointsman_sagemaker_{line}" in generate_latest(registry).decode()
