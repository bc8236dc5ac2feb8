"""Jobs on asynchronous SageMaker endpoints: through a DOUBLE of AWS, with an instant DOUBLE as the container."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
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
from consumers.backend import Answer, BackendError, SoFar, Submitted
from consumers.collector import Collector
from consumers.gpu.machine_bills import MachineBills
from consumers.gpu.places import Places
from consumers.retrier import Retrier
from gateway.quotes import Quotes
from policies.deployments import SYNC_BYTES, Deployment
from policies.retries import Failure
from policies.scripts import Scripts
from router import ledger, topics
from router.job import Job, JobState
from router.machine_shares import MachineShares
from router.queues import Queues
from tests.aws import AwsPlace
from tests.builders import Bench, a_bench, a_deployment, until
from tests.doubles import OpenAIDouble, openai_double

pytestmark = pytest.mark.usefixtures("aws_credentials")

LONG_S = 40.0  # moto serves a call in tens of milliseconds on a loaded machine


@pytest.fixture(scope="module")
def container() -> Iterator[OpenAIDouble]:
    with openai_double() as double:
        yield double


@dataclass(frozen=True)
class Place:
    """A bench whose one deployment is an endpoint at the double."""

    bench: Bench
    at: AwsPlace

    @property
    def deployment(self) -> Deployment:
        return self.bench.deployments["small"]

    @asynccontextmanager
    async def backend(self) -> AsyncGenerator[SageMakerBackend]:
        async with SageMakerBackend.open(
            self.bench.deployments, tuple(self.bench.tenants), self.bench.scripts
        ) as backend:
            yield backend

    @asynccontextmanager
    async def running(self, *, collectors: int = 1) -> AsyncGenerator[None]:
        """A worker, the retriers and so many collectors, each with clients of its own."""
        stop = asyncio.Event()
        bench = self.bench
        async with self.backend() as backend, asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.worker(backend).run(stop))
            for topic in topics.RETRIES:
                tasks.create_task(Retrier(bench.log, bench.board, topic).run(stop))
            for _ in range(collectors):
                collector = Collector(bench.log, bench.attempt(backend), "echo", tuple(bench.tenants), every_s=0.05)
                tasks.create_task(collector.run(stop))
            try:
                yield
            finally:
                stop.set()


@pytest.fixture
async def place(redis: "Redis", tmp_path: Path, aws: str, container: OpenAIDouble) -> AsyncIterator[Place]:
    at = await asyncio.to_thread(AwsPlace.made, aws, f"{container.url}/v1/chat/completions")
    async with a_bench(redis, tmp_path, deployments=[at.deployment(a_deployment())]) as bench:
        yield Place(bench, at)


async def ended(place: Place, *jobs: Job) -> list[JobState]:
    return [view.state for view in await place.bench.ended(*jobs, within=LONG_S)]


async def submitted(place: Place, count: int) -> None:
    async def taken() -> bool:
        return len(await place.at.invocations()) >= count

    await until(taken, within=LONG_S)


async def test_a_job_is_answered_and_charged_and_its_message_leaves_the_queue(place: Place) -> None:
    job = await place.bench.queued("four words for it")
    async with place.running():
        states = await ended(place, job)
        await until(lambda: _is_empty(place), within=LONG_S)

    view = await place.bench.view(job)
    assert states == [JobState.COMPLETED]
    answer = json.loads(view.result or b"{}")
    assert answer["choices"][0]["message"]["content"] == "four words for it"
    assert (answer["id"], answer["model"], answer["object"]) == (f"chatcmpl-{job.id}", "small", "chat.completion")
    assert view.stay is not None and 0 <= view.stay.seconds < LONG_S
    [charge] = await place.bench.charges()
    assert charge["tokens"] == answer["usage"]["total_tokens"] > 0


async def test_a_body_over_the_inline_limit_goes_through_s3(place: Place) -> None:
    job = await place.bench.queued("word " * 30_000)
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]

    [call] = await place.at.invocations()
    assert call["input_at"].startswith(f"s3://{place.at.bucket}/in/acme/")


async def test_a_submit_whose_answer_was_lost_is_found_and_not_made_again(place: Place) -> None:
    await place.at.turn(lose_submit_answers=1.0)
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]

    assert len(await place.at.invocations()) == 1


@pytest.mark.parametrize("names", ["appended", "ending"])
async def test_the_result_of_a_lost_submit_is_found_however_the_service_joins_its_name(
    place: Place, names: str
) -> None:
    await place.at.turn(lose_submit_answers=1.0, names=names, drop_messages=1.0)
    jobs = [await place.bench.queued(), await place.bench.queued("double:error-400 no such thing")]
    async with place.running():
        states = await ended(place, *jobs)

    assert states == [JobState.COMPLETED, JobState.FAILED]
    calls = [call["id"] for call in await place.at.invocations()]
    assert len(calls) == len(set(calls)) == 1 + place.bench.retries.attempts  # without a message nobody says "400"


async def test_a_call_may_wait_and_run_for_as_long_as_its_job_has_left_and_no_longer_than_the_settings_say(
    place: Place,
) -> None:
    jobs = [await place.bench.job(deadline_s=seconds) for seconds in (30.0, 500.0, 100_000.0)]
    async with place.backend() as backend:
        for job in jobs:
            await backend.call(job, place.deployment, attempt=1, on_chunk=None, so_far=SoFar())

    bounds = {call["id"].partition(".")[0]: (call["ttl_s"], call["timeout_s"]) for call in await place.at.invocations()}
    short, middle, long = (bounds[job.id] for job in jobs)
    assert short[0] == 60 and short[1] <= 30  # AWS lets every call wait for a minute
    assert 490 <= middle[0] == middle[1] <= 500
    assert long == (21_600, 900)


async def test_a_worker_that_died_between_the_call_and_its_hand_off_makes_no_second_call(place: Place) -> None:
    job = await place.bench.queued()
    async with place.backend() as backend:  # what the dead one did
        await place.bench.board.claim(job, "dead", lease_s=0.3)
        await place.bench.board.start(job, "dead", most_deliveries=3, microbatch="mb_1")
        taken = await backend.call(job, place.deployment, attempt=1, on_chunk=None, so_far=SoFar())
        assert isinstance(taken, Submitted)
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]

    assert len(await place.at.invocations()) == 1
    assert [row["attempt"] for row in await place.bench.charges()] == [1]


async def test_a_message_that_never_comes_is_made_up_for_by_looking(place: Place) -> None:
    await place.at.turn(drop_messages=1.0)
    deployment = place.at.deployment(place.deployment, listens=False)
    place.bench.deployments["small"] = deployment
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]


async def test_a_message_that_comes_twice_concludes_once(place: Place) -> None:
    await place.at.turn(double_messages=1.0)
    jobs = [await place.bench.queued() for _ in range(5)]
    async with place.running(collectors=2):
        states = await ended(place, *jobs)
        await until(lambda: _is_empty(place), within=LONG_S)

    assert states == [JobState.COMPLETED] * 5
    assert len(await place.bench.charges()) == 5
    assert len(await place.bench.events()) == 5


async def test_the_answer_in_the_message_is_enough(place: Place) -> None:
    await place.at.turn(message_with_answer=True)
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]


async def test_what_the_container_refuses_fails_with_its_own_words_and_is_not_tried_again(place: Place) -> None:
    job = await place.bench.queued("double:error-400 no such thing")
    async with place.running():
        assert await ended(place, job) == [JobState.FAILED]

    view = await place.bench.view(job)
    assert view.error is not None and "400" in str(view.error["message"])
    assert len(await place.at.invocations()) == 1


async def test_a_container_that_fails_is_asked_again_under_another_name_as_often_as_the_rule_says(place: Place) -> None:
    job = await place.bench.queued("double:error-500 Hello")
    async with place.running():
        assert await ended(place, job) == [JobState.FAILED]

    attempts = place.bench.retries.attempts
    assert len({call["id"] for call in await place.at.invocations()}) == attempts
    assert len(await place.bench.charges()) == attempts


async def test_the_double_fails_aloud_when_its_container_is_away(place: Place) -> None:
    await place.at.turn(container="http://127.0.0.1:1/v1/chat/completions")
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.FAILED]

    view = await place.bench.view(job)
    assert view.error is not None and "DOUBLE: no container" in str(view.error["message"])


async def test_a_throttled_submit_is_made_again_later(place: Place) -> None:
    await place.at.turn(throttle=1.0)
    job = await place.bench.queued()
    async with place.running():
        await until(lambda: _was_tried(place, job), within=LONG_S)
        await place.at.turn(throttle=0.0)
        assert await ended(place, job) == [JobState.COMPLETED]


async def test_a_job_without_capacity_waits_until_its_deadline_and_expires(place: Place) -> None:
    await place.at.turn(instances=0)
    job = await place.bench.queued(deadline_s=3.0)
    async with place.running():
        assert await ended(place, job) == [JobState.EXPIRED]


async def test_a_call_that_expired_at_the_endpoint_is_made_again_as_soon_as_its_message_says_so(place: Place) -> None:
    await place.at.turn(instances=0, ttl_divisor=21_600)  # its time to live is over in a second
    job = await place.bench.queued()
    async with place.running():
        await until(lambda: _was_tried(place, job), within=LONG_S)
        await place.at.turn(instances=1, ttl_divisor=1)
        assert await ended(place, job) == [JobState.COMPLETED]

    outcomes = [call["outcome"] for call in await place.at.invocations()]
    assert outcomes[0] == "expired" and outcomes[-1] == "completed"


async def test_results_that_s3_denies_are_still_found_by_their_messages(place: Place) -> None:
    await place.at.turn(hide_missing=True)
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]


async def test_an_input_that_the_role_may_not_read_fails_with_what_the_service_says(place: Place) -> None:
    await place.at.turn(download_fails=True)
    job = await place.bench.queued("word " * 30_000)
    async with place.running():
        assert await ended(place, job) == [JobState.FAILED]

    view = await place.bench.view(job)
    assert view.error is not None and "could not be read" in str(view.error["message"])


async def test_a_cancelled_job_ends_at_once_and_what_its_late_result_used_is_charged_once(place: Place) -> None:
    await place.at.turn(container_s=2.0, double_messages=1.0)
    job = await place.bench.queued()
    async with place.running():
        await submitted(place, 1)
        await until(lambda: _is_handed_off(place, job), within=LONG_S)
        await place.bench.board.cancel(job.tenant, job.id, "{}")
        assert await ended(place, job) == [JobState.CANCELLED]
        await until(lambda: _is_over_there(place), within=LONG_S)
        await until(lambda: _is_empty(place), within=LONG_S)

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
    cancelled, late_for = await place.bench.queued("four words for it"), await place.bench.queued(deadline_s=9.0)
    async with place.running(collectors=2):
        await submitted(place, 2)
        await until(lambda: _is_handed_off(place, cancelled), within=LONG_S)
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
        await until(lambda: _is_over_there(place), within=LONG_S)
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
        await until(lambda: _is_over_there(place), within=LONG_S)
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
        await until(lambda: _is_over_there(place), within=LONG_S)
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
        collector = Collector(bench.log, bench.attempt(backend), "echo", tuple(bench.tenants), queues=queues)
        tasks.create_task(collector.run(stop))
        tasks.create_task(bench.worker(backend).run(stop))

        async def is_at_the_endpoint() -> bool:
            return (await bench.view(job)).state is JobState.RUNNING and await quoted(job) is not None

        await until(is_at_the_endpoint, within=LONG_S)
        left = await quoted(job)
        stop.set()

    assert left is not None and COLD_S - LONG_S < left <= COLD_S


async def test_an_unknown_endpoint_is_a_fault_of_the_settings(place: Place) -> None:
    nowhere = replace(place.deployment, model="nobody")
    async with place.backend() as backend:
        with pytest.raises(BackendError) as caught:
            job = await place.bench.job()
            await backend.call(job, nowhere, attempt=1, on_chunk=None, so_far=SoFar())
        assert caught.value.failure is Failure.MISCONFIGURED
        assert "nobody" in str(await backend.ping(nowhere))
        assert await backend.ping(place.deployment) is None


async def test_a_synchronous_endpoint_answers_at_once_and_refuses_what_is_too_large(
    place: Place, aws: str, container: OpenAIDouble
) -> None:
    at = await asyncio.to_thread(AwsPlace.made, aws, f"{container.url}/v1/chat/completions", is_realtime=True)
    deployment = at.deployment(place.deployment)
    assert deployment.sagemaker is not None
    realtime = replace(deployment, sagemaker=replace(deployment.sagemaker, is_realtime=True))
    async with place.backend() as backend:
        answer = await backend.call(await place.bench.job("Hello"), realtime, attempt=1, on_chunk=None, so_far=SoFar())
        assert isinstance(answer, Answer) and b"Hello" in answer.body
        large = replace(
            await place.bench.job(), body=b'{"messages":[{"role":"user","content":"%s"}]}' % (b"x" * 7_000_000)
        )
        with pytest.raises(BackendError) as caught:
            await backend.call(large, realtime, attempt=1, on_chunk=None, so_far=SoFar())
    assert caught.value.failure is Failure.REJECTED
    assert str(SYNC_BYTES) in caught.value.detail


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


async def _is_empty(place: Place) -> bool:
    return await place.at.messages_left() == 0


async def _is_over_there(place: Place) -> bool:
    return all(call["outcome"] != "queued" for call in await place.at.invocations())


async def _was_tried(place: Place, job: Job) -> bool:
    return (await place.bench.view(job)).attempts >= 2


async def _is_handed_off(place: Place, job: Job) -> bool:
    return await place.bench.log.backlog(job.topic, group="workers.echo") == 0
