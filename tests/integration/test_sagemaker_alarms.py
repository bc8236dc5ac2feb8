"""What is said aloud at run time of each silent failure of an asynchronous endpoint, through a DOUBLE of AWS."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from consumers.aws.backend_sagemaker import SageMakerBackend
from consumers.aws.sagemaker_aws import Aws
from consumers.aws.sagemaker_figures import NAMESPACE, dimensions
from consumers.aws.sagemaker_meters import SageMakerMeters
from consumers.aws.sagemaker_watch import Watch
from consumers.backend import BackendError, SoFar, Submitted
from policies.deployments import Deployment
from tests.aws import AwsPlace
from tests.builders import Bench, a_bench, a_deployment, until
from tests.doubles import OpenAIDouble, openai_double

pytestmark = pytest.mark.usefixtures("aws_credentials")

LONG_S = 40.0
SETTLED = timedelta(minutes=3)  # what is counted does not change any more
Logs = Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def container() -> Iterator[OpenAIDouble]:
    with openai_double() as double:
        yield double


@pytest.fixture
async def scene(redis: "Redis", tmp_path: Path, aws: str, container: OpenAIDouble) -> AsyncIterator["Scene"]:
    at = await asyncio.to_thread(AwsPlace.made, aws, f"{container.url}/v1/chat/completions")
    async with a_bench(redis, tmp_path, deployments=[at.deployment(a_deployment())]) as bench:
        yield Scene(bench, at)


class Scene:
    """One endpoint, and what is seen of it."""

    def __init__(self, bench: Bench, at: AwsPlace) -> None:
        self.bench = bench
        self.at = at
        self.registry = CollectorRegistry()
        self.meters = SageMakerMeters(self.registry)

    @property
    def deployment(self) -> Deployment:
        return self.bench.deployments["small"]

    async def called(self, text: str = "Hello there") -> str:
        """Submit one call, wait until the endpoint is done with it, and look for its result."""
        opening = SageMakerBackend.open(self.bench.deployments, ["acme"], self.bench.scripts, self.meters)
        async with opening as backend:
            job = await self.bench.job(text)
            taken = await backend.call(job, self.deployment, attempt=1, on_chunk=None, so_far=SoFar())
            assert isinstance(taken, Submitted)
            await until(self._is_over, within=LONG_S)
            try:
                await backend.collect(job, self.deployment, taken.reference, attempt=1)
            except BackendError as error:
                return error.code
        return ""

    async def watched(self, *moments: datetime, oldest: float = 0.0, **variant: int) -> Logs:
        """What is said at these moments."""
        with ThreadPoolExecutor(4) as threads, capture_logs() as logs:
            place = self.deployment.sagemaker
            assert place is not None
            ask: Callable[..., Any] = partial(Aws(threads).ask, place, "cloudwatch", "get_metric_statistics")

            async def describe() -> Mapping[str, Any]:
                return {"ProductionVariants": [{"VariantName": "AllTraffic", **variant}]}

            since = datetime.now(UTC) - timedelta(minutes=5)
            watch = Watch(self.deployment, ask, describe, self.meters, since=since, oldest=lambda: oldest)
            for moment in moments or [datetime.now(UTC) + SETTLED]:
                await watch.look(moment)
        return [entry for entry in logs if entry["log_level"] in ("error", "warning")]

    async def figure(self, name: str, value: float, *, unit: str, at: datetime, of_variant: bool) -> None:
        """CloudWatch has it."""
        data = {
            "MetricName": name,
            "Value": value,
            "Unit": unit,
            "Timestamp": at,
            "Dimensions": dimensions(self.at.name, "AllTraffic" if of_variant else ""),
        }
        await asyncio.to_thread(self.at.client("cloudwatch").put_metric_data, Namespace=NAMESPACE, MetricData=[data])

    async def has(self, metric: str) -> bool:
        found = await asyncio.to_thread(self.at.client("cloudwatch").list_metrics, Namespace=NAMESPACE)
        ours = [each for each in found["Metrics"] if any(it["Value"] == self.at.name for it in each["Dimensions"])]
        return metric in {each["MetricName"] for each in ours}

    async def _is_over(self) -> bool:
        return all(call["outcome"] != "queued" for call in await self.at.invocations())


@pytest.mark.parametrize(
    ("knob", "figure", "fix"),
    [
        ({"topic_fails": True}, "NotificationFailures", "sns:Publish"),
        ({"upload_fails": True}, "ResponseUploadFailures", "s3:PutObject"),
        ({"download_fails": True}, "RequestDownloadFailures", "s3:GetObject"),
        ({"instances": 0, "ttl_divisor": 21_600}, "ExpiredRequests", "more instances"),
    ],
)
async def test_what_only_aws_sees_is_an_error_that_says_what_to_grant_and_is_counted(
    scene: Scene, knob: Mapping[str, Any], figure: str, fix: str
) -> None:
    await scene.at.turn(**knob)
    await scene.called("word " * 30_000 if "download_fails" in knob else "Hello")
    await until(lambda: scene.has(figure), within=LONG_S)

    [entry] = await scene.watched()

    assert (entry["event"], entry["figure"], entry["deployment"]) == ("endpoint_failed_silently", figure, "small")
    assert fix in entry["fix"]
    shown = generate_latest(scene.registry).decode()
    assert f'pointsman_sagemaker_failures_total{{deployment="small",figure="{figure}"}} 1.0' in shown


async def test_no_instance_while_calls_wait_is_an_error_once_one_should_have_come(scene: Scene) -> None:
    await scene.at.turn(instances=0)
    now = datetime.now(UTC)
    for minutes in (0, 16):
        moment = now + timedelta(minutes=minutes)
        await scene.figure("HasBacklogWithoutCapacity", 1, unit="Count", at=moment, of_variant=False)

    logs = await scene.watched(now + timedelta(minutes=1), now + timedelta(minutes=17))

    [entry] = [entry for entry in logs if entry["event"] == "endpoint_has_no_instance"]
    assert "pointsman sagemaker scaling small --apply" in entry["fix"]


async def test_a_result_that_s3_denies_is_an_error_that_says_what_to_grant(scene: Scene) -> None:
    await scene.at.turn(hide_missing=True, drop_messages=1.0, upload_fails=True)
    with capture_logs() as logs:
        code = await scene.called()

    denied = [entry for entry in logs if entry["event"] == "result_denied"]
    assert code == "AccessDenied"
    assert denied and f"s3:ListBucket on {scene.at.bucket}" in denied[0]["fix"]
    shown = generate_latest(scene.registry).decode()
    assert 'pointsman_sagemaker_denied_total{deployment="small"}' in shown
    assert 'pointsman_sagemaker_denied_total{deployment="small"} 0.0' not in shown


async def test_an_endpoint_without_a_place_for_failures_is_an_error_at_its_first_call(
    redis: "Redis", tmp_path: Path, aws: str, container: OpenAIDouble
) -> None:
    url = f"{container.url}/v1/chat/completions"
    at = await asyncio.to_thread(partial(AwsPlace.made, aws, url, has_failures=False))
    async with a_bench(redis, tmp_path, deployments=[at.deployment(a_deployment())]) as bench:
        with capture_logs() as logs:
            await Scene(bench, at).called()

    [entry] = [entry for entry in logs if entry["event"] == "endpoint_without_failure_path"]
    assert "S3FailurePath" in entry["fix"]


async def test_an_instance_that_goes_while_calls_are_there_is_an_error(scene: Scene) -> None:
    now = datetime.now(UTC)
    await scene.figure("ApproximateBacklogSize", 3, unit="Count", at=now, of_variant=False)

    shrinking = await scene.watched(now + SETTLED, CurrentInstanceCount=2, DesiredInstanceCount=1)
    steady = await scene.watched(now + SETTLED, CurrentInstanceCount=2, DesiredInstanceCount=2)

    [entry] = shrinking
    assert entry["event"] == "endpoint_scales_in_with_calls" and "cool-down" in entry["fix"]
    assert steady == []


async def test_a_time_in_another_unit_than_documented_is_said_once_and_read_by_its_own(scene: Scene) -> None:
    now = datetime.now(UTC)
    await scene.figure("TimeInBacklog", 2_500, unit="Milliseconds", at=now, of_variant=True)

    [entry] = await scene.watched(now + SETTLED, now + SETTLED)

    assert (entry["event"], entry["unit"], entry["documented"]) == (
        "figure_in_another_unit",
        "Milliseconds",
        "Microseconds",
    )
    assert 'time_in_backlog_seconds{deployment="small"} 2.5' in generate_latest(scene.registry).decode()


async def test_figures_that_do_not_come_while_calls_are_there_are_an_error_and_not_a_nought(scene: Scene) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)

    waiting, quiet = await scene.watched(later, oldest=1000.0), await scene.watched(later)

    [entry] = waiting
    assert entry["event"] == "endpoint_has_no_figures" and "cloudwatch:GetMetricStatistics" in entry["fix"]
    assert quiet == []
