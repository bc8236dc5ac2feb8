"""Patient jobs as batch jobs of Bedrock: through a DOUBLE of AWS, with an instant DOUBLE of a server behind it."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest
from redis.asyncio import Redis

from consumers.asked_jobs import AskedJobs
from consumers.aws import shipper
from consumers.aws.backend_shipping import ShippingBackend
from consumers.aws.shipments import How, Phase, Shipment, Shipments
from consumers.backend import NoticingBackend, PlacedBackend, RecoveringBackend
from consumers.backend_echo import EchoBackend
from consumers.retrier import Retrier
from consumers.worker import Bounds
from policies.deployments import Bedrock, Deployment, Limits
from policies.pricing import Meter, Price
from policies.shipping import Shipping
from policies.tenants import Tenant
from router import topics
from router.job import Job, JobClass, JobState
from tests.aws import REGION, controlled
from tests.builders import Bench, a_bench, a_body, a_deployment, until
from tests.doubles import OpenAIDouble, openai_double

pytestmark = pytest.mark.usefixtures("aws_credentials")

LONG_S = 40.0  # moto serves a call in tens of milliseconds on a loaded machine
BATCH_PRICE = Price(
    {Meter.INPUT: Decimal("0.15"), Meter.OUTPUT: Decimal("0.60")},
    "test",
    {"batch": {Meter.INPUT: Decimal("0.075"), Meter.OUTPUT: Decimal("0.30")}},
)


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIDouble]:
    with openai_double() as double:
        yield double


@dataclass(frozen=True)
class Place:
    """A bench whose one deployment lets jobs wait for batch jobs; live it is echo."""

    bench: Bench
    url: str
    role: str

    @property
    def deployment(self) -> Deployment:
        return self.bench.deployments["small"]

    async def turn(self, **knobs: object) -> None:
        """Change what the double does with batch jobs."""
        await asyncio.to_thread(controlled, self.url, "batches/role", {"role": self.role, **knobs})

    def gathers(self, count: int) -> None:
        """From now on jobs wait until there are so many, however long that takes."""
        assert self.deployment.shipping is not None
        rule = replace(self.deployment.shipping, least=count, most=count, quiet_s=600.0, wait_s=600.0)
        self.bench.deployments["small"] = replace(self.deployment, shipping=rule)

    async def batch_jobs(self) -> list[Mapping[str, Any]]:
        """The double's own record of ours."""
        record = await asyncio.to_thread(controlled, self.url, "batches/record")
        return [each for each in record if each["role"] == self.role]

    async def shipments(self) -> list[Shipment]:
        """The newest ones, as the board knows them."""
        _, found = await Shipments(self.bench.scripts).page("small", most=20)
        return list(found)

    async def waiting(self) -> int:
        """How many jobs wait for others."""
        return (await Shipments(self.bench.scripts).page("small", most=1))[0]

    async def patient(self, text: str = "Hello there", **fields: Any) -> Job:
        """A job that can wait."""
        return await self.bench.queued(
            text, **{"job_class": JobClass.BULK, "deadline_s": 600.0, "result_ttl_s": 600.0, **fields}
        )

    @asynccontextmanager
    async def running(
        self, *, workers: int = 1, collectors: int = 1, handed_off_s: float = 600.0
    ) -> AsyncGenerator[None]:
        """A worker, the retriers and so many collectors, each with a backend of its own."""
        stop, bench = asyncio.Event(), self.bench
        asked = AskedJobs(bench.board, bench.payloads)

        def one() -> AbstractAsyncContextManager[ShippingBackend]:
            live = EchoBackend()
            return ShippingBackend.open(live, bench.scripts, asked, bench.deployments, look_s=0.05, poll_s=0.1)

        async with AsyncExitStack() as opened, asyncio.TaskGroup() as tasks:
            backend = await opened.enter_async_context(one())
            for _ in range(workers):
                worker = bench.worker(backend, bounds=Bounds(drain_s=5.0, handed_off_s=handed_off_s))
                tasks.create_task(worker.run(stop))
            for topic in topics.RETRIES:
                tasks.create_task(Retrier(bench.log, bench.board, topic).run(stop))
            for _ in range(collectors):
                its_own = await opened.enter_async_context(one())
                collector = bench.collector(its_own)
                tasks.create_task(collector.run(stop))
            try:
                yield
            finally:
                stop.set()


@pytest.fixture
async def place(redis: "Redis", tmp_path: Path, aws: str, server: OpenAIDouble) -> AsyncIterator[Place]:
    async with a_place(redis, tmp_path, aws, server) as place:
        yield place


@asynccontextmanager
async def a_place(
    redis: "Redis",
    folder: Path,
    aws: str,
    server: OpenAIDouble,
    *,
    limits: Limits | None = None,
    tenant: Tenant | None = None,
    **rule: Any,
) -> AsyncGenerator[Place]:
    name = uuid4().hex[:12]
    model, role, bucket = f"made.up-{name}", f"arn:aws:iam::123456789012:role/{name}", f"b-{name}"
    s3 = boto3.client(
        "s3",
        endpoint_url=aws,
        region_name=REGION,
        aws_access_key_id="double",
        aws_secret_access_key="double",
    )
    await asyncio.to_thread(s3.create_bucket, Bucket=bucket)
    await asyncio.to_thread(controlled, aws, "bedrock/model", {"model": model, "upstream": f"{server.url}/v1"})
    usual: dict[str, Any] = {"least": 3, "quiet_s": 0.3, "wait_s": 2.0, "patience_s": 60.0, "live_before_s": 30.0}
    deployment = replace(
        a_deployment(price=BATCH_PRICE, limits=limits or Limits()),
        model=model,
        bedrock=Bedrock(region=REGION, aws_url=aws),
        shipping=Shipping(role=role, place=f"s3://{bucket}/ours", **{**usual, **rule}),
    )
    async with a_bench(redis, folder, deployments=[deployment], tenants=[tenant or Tenant("acme")]) as bench:
        yield Place(bench, aws, role)


async def test_it_is_all_that_workers_and_collectors_look_for(place: Place) -> None:
    bench = place.bench
    asked = AskedJobs(bench.board, bench.payloads)
    async with ShippingBackend.open(EchoBackend(), bench.scripts, asked, bench.deployments) as backend:
        assert isinstance(backend, NoticingBackend)
        assert isinstance(backend, RecoveringBackend)
        assert isinstance(backend, PlacedBackend)


async def test_patient_jobs_go_out_as_one_batch_job_at_the_batch_price(place: Place) -> None:
    place.gathers(5)
    jobs = [await place.patient(f"four words for {n}") for n in range(5)]
    async with place.running():
        views = await place.bench.ended(*jobs, within=LONG_S)
        await until(lambda: _is_over(place), within=LONG_S)

    assert [view.state for view in views] == [JobState.COMPLETED] * 5
    answers = [json.loads(view.result or b"{}") for view in views]
    assert [each["choices"][0]["message"]["content"] for each in answers] == [f"four words for {n}" for n in range(5)]
    assert [each["id"] for each in answers] == [f"chatcmpl-{job.id}" for job in jobs]
    [batch_job] = await place.batch_jobs()
    assert (batch_job["total_records"], batch_job["status"], batch_job["creations"]) == (5, "Completed", 1)
    charges = await place.bench.charges()
    assert {line["tier"] for row in charges for line in row["lines"]} == {"batch"}
    assert {line["usd_per_million"] for row in charges for line in row["lines"]} == {"0.075", "0.3"}
    [shipment] = await place.shipments()
    spent = sum(Decimal(row["usd"]) for row in charges)
    assert (shipment.usd, shipment.usd_live, shipment.counts) == (spent, 2 * spent, {How.ANSWERED: 5})
    assert await place.bench.events() == {f"job_{job.id}": "job.completed" for job in jobs}


async def test_what_cannot_wait_or_cannot_be_carried_is_called_live_at_once(place: Place) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    jobs = [
        await place.patient(job_class=JobClass.STANDARD),
        await place.patient(deadline_s=50.0),
        await place.patient(stream=True),
        await place.patient(body=a_body(tools=[tool])),
        await place.patient(body=a_body(response_format={"type": "json_object"})),
        await place.patient(body=a_body(reasoning_effort="low")),
    ]
    async with place.running():
        views = await place.bench.ended(*jobs)

    assert [(view.state, view.attempts) for view in views] == [(JobState.COMPLETED, 1)] * len(jobs)
    assert await place.batch_jobs() == []
    assert {line["tier"] for row in await place.bench.charges() for line in row["lines"] if "tier" in line} <= {""}


async def test_too_few_are_called_live_when_they_have_waited_long_enough_and_pay_once(place: Place) -> None:
    jobs = [await place.patient() for _ in range(2)]
    async with place.running():
        views = await place.bench.ended(*jobs, within=LONG_S)
        await until(lambda: _none_waits(place))

    assert [(view.state, view.attempts) for view in views] == [(JobState.COMPLETED, 2)] * 2
    assert await place.batch_jobs() == []
    charged = [row for row in await place.bench.charges() if row["attempt"] == 1]
    assert [row["tokens"] for row in charged] == [0, 0]


async def test_records_come_back_in_any_order_and_those_that_failed_or_are_missing_are_called_live_alone(
    place: Place,
) -> None:
    await place.turn(fails=0.3, drops=0.2, seed=3)
    place.gathers(20)
    jobs = [await place.patient(f"words of job {n}") for n in range(20)]
    async with place.running():
        views = await place.bench.ended(*jobs, within=LONG_S)
        await until(lambda: _is_over(place), within=LONG_S)

    assert {view.state for view in views} == {JobState.COMPLETED}
    said = [json.loads(view.result or b"{}")["choices"][0]["message"]["content"] for view in views]
    assert said == [f"words of job {n}" for n in range(20)]
    [batch_job] = await place.batch_jobs()
    [shipment] = await place.shipments()
    assert batch_job["status"] == "PartiallyCompleted"
    assert 0 < shipment.counts[How.FAILED] <= batch_job["error_records"]
    assert shipment.counts[How.LIVE] > 0
    assert sum(shipment.counts.values()) == 20
    assert Counter(view.attempts for view in views)[2] == shipment.counts[How.FAILED] + shipment.counts[How.LIVE]
    assert len(await place.bench.events()) == 20


@pytest.mark.parametrize(
    "knobs",
    [
        {"least": 100},
        {"ends": "Failed", "runs": 0.0},
        {"ends": "Expired", "runs": 0.5},
        {"ends": "Stopped", "runs": 0.5},
    ],
    ids=["under the minimum", "failed", "expired half way", "stopped half way"],
)
async def test_whatever_becomes_of_the_batch_job_each_job_is_answered_and_what_was_run_is_used(
    place: Place, knobs: dict[str, Any]
) -> None:
    await place.turn(**knobs)
    place.gathers(8)
    jobs = [await place.patient() for _ in range(8)]
    async with place.running():
        views = await place.bench.ended(*jobs, within=LONG_S)
        await until(lambda: _is_over(place), within=LONG_S)

    assert {view.state for view in views} == {JobState.COMPLETED}
    [batch_job] = await place.batch_jobs()
    [shipment] = await place.shipments()
    assert shipment.counts.get(How.ANSWERED, 0) == batch_job.get("success_records", 0)
    assert sum(shipment.counts.values()) == 8
    assert len(await place.bench.events()) == 8


async def test_a_job_whose_deadline_comes_near_in_a_batch_job_is_called_live_and_owes_both(
    redis: "Redis", tmp_path: Path, aws: str, server: OpenAIDouble
) -> None:
    async with a_place(redis, tmp_path, aws, server, patience_s=22.0, live_before_s=20.0) as place:
        await place.turn(hold="InProgress")
        hurried = await place.patient(deadline_s=28.0)
        others = [await place.patient() for _ in range(2)]
        async with place.running():
            [view] = await place.bench.ended(hurried)
            assert not any([(await place.bench.state(job)).is_terminal for job in others])
            await place.turn(hold="")
            await place.bench.ended(*others, within=LONG_S)

        assert (view.state, view.attempts) == (JobState.COMPLETED, 2)
        [first] = [row for row in await place.bench.charges() if row["attempt"] == 1 and row["job"] == hurried.id]
        assert [(line["meter"], line["basis"], line["tier"]) for line in first["lines"]] == [
            ("input", "estimated", "batch")
        ]
        assert len(await place.bench.events()) == 3


async def test_a_creation_whose_answer_was_lost_makes_no_second_batch_job(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper, "AWAY_S", 0.1)
    await place.turn(lose_create_answers=2)
    place.gathers(4)
    jobs = [await place.patient() for _ in range(4)]
    async with place.running(collectors=2):
        await place.bench.ended(*jobs, within=LONG_S)

    [batch_job] = await place.batch_jobs()
    assert batch_job["total_records"] == 4


async def test_jobs_that_wait_hold_no_place_of_anybody(
    redis: "Redis", tmp_path: Path, aws: str, server: OpenAIDouble
) -> None:
    limits = Limits(concurrency=1)
    async with a_place(redis, tmp_path, aws, server, limits=limits, tenant=Tenant("acme", limits)) as place:
        place.gathers(6)
        jobs = [await place.patient() for _ in range(6)]
        async with place.running():
            await place.bench.ended(*jobs, within=LONG_S)

        assert [each["total_records"] for each in await place.batch_jobs()] == [6]


async def test_one_that_is_cancelled_while_it_waits_costs_nothing(place: Place) -> None:
    place.gathers(3)
    cancelled, _ = [await place.patient() for _ in range(2)]
    async with place.running():
        await until(lambda: _wait(place, 2))
        await place.bench.board.cancel("acme", cancelled.id, "{}")
        [view] = await place.bench.ended(cancelled, within=LONG_S)

    [charge] = await place.bench.charges()
    assert (view.state, charge["tokens"]) == (JobState.CANCELLED, 0)


async def test_a_batch_job_that_nobody_wants_any_more_is_stopped(place: Place) -> None:
    await place.turn(hold="InProgress")
    jobs = [await place.patient() for _ in range(3)]
    async with place.running():
        await until(lambda: _is_at_aws(place, 1), within=LONG_S)
        for job in jobs:
            await place.bench.board.cancel("acme", job.id, "{}")
        views = await place.bench.ended(*jobs)
        await until(lambda: _has_status(place, "Stopped"), within=LONG_S)
        await until(lambda: _is_over(place), within=LONG_S)

    assert {view.state for view in views} == {JobState.CANCELLED}
    [shipment] = await place.shipments()
    assert shipment.counts == {How.CANCELLED: 3}


async def test_several_workers_and_collectors_make_one_batch_job_and_conclude_each_job_once(place: Place) -> None:
    place.gathers(30)
    jobs = [await place.patient() for _ in range(30)]
    async with place.running(workers=2, collectors=3):
        await place.bench.ended(*jobs, within=LONG_S)
        await until(lambda: _is_over(place), within=LONG_S)

    assert [each["total_records"] for each in await place.batch_jobs()] == [30]
    assert len(await place.bench.events()) == 30
    assert len(await place.bench.charges()) == 30


@pytest.mark.parametrize("joined", [False, True])
async def test_a_worker_that_died_before_it_said_that_a_job_waits_cost_nothing(place: Place, joined: bool) -> None:
    job = await place.patient()
    others = [await place.patient() for _ in range(2)]
    board = place.bench.board
    await board.claim(job, "dead|1", lease_s=0.3)
    await board.start(job, "dead|1", most_deliveries=3, microbatch="mb_1")
    if joined:
        await Shipments(place.bench.scripts).join(
            "small", f"{job.id}-1", tenant="acme", expires_at=job.expires_at, patience_s=60.0
        )
    async with place.running():
        views = await place.bench.ended(job, *others, within=LONG_S)

    assert [(view.state, view.attempts) for view in views] == [(JobState.COMPLETED, 1)] * 3
    assert [each["total_records"] for each in await place.batch_jobs()] == [3]
    assert {line["outcome"] for row in await place.bench.charges() for line in row["lines"]} == {"completed"}


async def test_a_board_that_was_lost_finds_its_batch_job_again_and_nothing_is_run_or_paid_twice(place: Place) -> None:
    await place.turn(hold="InProgress")
    place.gathers(5)
    jobs = [await place.patient(f"words of job {n}") for n in range(5)]
    async with place.running(handed_off_s=1.0):
        await until(lambda: _is_at_aws(place, 1), within=LONG_S)
    await place.bench.wipe()
    await place.bench.rebuild()
    async with place.running(handed_off_s=1.0):
        await until(lambda: _has_tenants(place, 5), within=LONG_S)
        await place.turn(hold="")
        views = await place.bench.ended(*jobs, within=LONG_S)
        await until(lambda: _is_over(place), within=LONG_S)

    assert [(view.state, view.attempts) for view in views] == [(JobState.COMPLETED, 1)] * 5
    said = [json.loads(view.result or b"{}")["choices"][0]["message"]["content"] for view in views]
    assert said == [f"words of job {n}" for n in range(5)]
    [batch_job] = await place.batch_jobs()
    assert (batch_job["creations"], batch_job["total_records"]) == (1, 5)
    charges = await place.bench.charges()
    assert len(charges) == 5
    assert {line["tier"] for row in charges for line in row["lines"]} == {"batch"}
    [shipment] = await place.shipments()
    assert shipment.counts == {How.ANSWERED: 5}


async def test_a_batch_job_that_was_concluded_before_the_board_was_lost_is_not_charged_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper, "STRANGERS_S", 0.5)
    monkeypatch.setattr(shipper, "PASS_S", 0.1)
    jobs = [await place.patient() for _ in range(3)]
    async with place.running():
        await place.bench.ended(*jobs, within=LONG_S)
        await until(lambda: _is_over(place), within=LONG_S)
    await place.bench.wipe()
    await place.bench.rebuild()
    async with place.running():
        await until(lambda: _has_shipments(place, 1), within=LONG_S)
        await until(lambda: _is_over(place), within=LONG_S)

    [shipment] = await place.shipments()
    assert shipment.counts == {How.LATE: 3}
    assert len(await place.batch_jobs()) == 1
    assert len(await place.bench.charges()) == 3


async def _has_tenants(place: Place, count: int) -> bool:
    """Whether so many jobs have come again."""
    found = [await Shipments(place.bench.scripts).records("small", each.id) for each in await place.shipments()]
    return sum(bool(tenant) for records in found for tenant in records.values()) == count


async def _has_shipments(place: Place, count: int) -> bool:
    return len(await place.shipments()) == count


async def _is_over(place: Place) -> bool:
    return all(each.phase is Phase.OVER for each in await place.shipments())


async def _none_waits(place: Place) -> bool:
    return await place.waiting() == 0


async def _wait(place: Place, count: int) -> bool:
    return await place.waiting() == count


async def _is_at_aws(place: Place, count: int) -> bool:
    return len(await place.batch_jobs()) == count


async def _has_status(place: Place, status: str) -> bool:
    return [each["status"] for each in await place.batch_jobs()] == [status]
