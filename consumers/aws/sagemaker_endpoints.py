"""What AWS says of the endpoints themselves: asked once where that does not change, else once a minute."""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from consumers.aws.sagemaker_aws import Aws
from consumers.aws.sagemaker_instances import LOOKED_AT_EVERY, SEEN_EVERY_S, Instances
from consumers.aws.sagemaker_meters import SageMakerMeters
from consumers.aws.sagemaker_patience import OpenCalls
from consumers.aws.sagemaker_scaling import COLD_S, COMES_S
from consumers.aws.sagemaker_watch import EVERY_S, Watch
from consumers.backend import BackendError
from policies.deployments import Deployment, SageMaker
from policies.retries import Failure
from router.queues import Cold

log = structlog.get_logger(__name__)


class Endpoints:
    """Of these deployments, by their names. `instances` have a price."""

    def __init__(
        self,
        aws: Aws,
        deployments: Mapping[str, Deployment],
        meters: SageMakerMeters,
        instances: Mapping[str, Instances],
        open_calls: OpenCalls,
    ) -> None:
        self._aws = aws
        self._open_calls = open_calls
        self._deployments = deployments
        self._meters = meters
        self._instances = instances
        self._has_none: dict[str, bool] = {}
        self._last_cold: dict[str, float] = {}
        self._paths: dict[str, tuple[str, str]] = {}
        self._watches: Mapping[str, Watch] = {}

    async def described(self, deployment: Deployment) -> Mapping[str, Any]:
        """As it is now. Raises `BackendError`."""
        described: Mapping[str, Any] = await self._aws.ask(
            place_of(deployment), "sagemaker", "describe_endpoint", EndpointName=deployment.model
        )
        counts = [each.get("CurrentInstanceCount") for each in described.get("ProductionVariants", [])]
        self._has_none[deployment.name] = bool(counts) and not any(count != 0 for count in counts)
        if self._has_none[deployment.name]:
            self._last_cold[deployment.name] = time.time()
        return described

    async def paths(self, deployment: Deployment) -> tuple[str, str]:
        """Where it writes outputs and failures; '' where that is not to be had."""
        if deployment.model not in self._paths:
            try:
                endpoint = await self.described(deployment)
                name = endpoint["EndpointConfigName"]
                place = place_of(deployment)
                config = await self._aws.ask(place, "sagemaker", "describe_endpoint_config", EndpointConfigName=name)
            except BackendError as error:
                log.warning("endpoint_not_described", endpoint=deployment.model, error=error.code)
                return "", ""
            output = config.get("AsyncInferenceConfig", {}).get("OutputConfig", {})
            paths = output.get("S3OutputPath", "").rstrip("/"), output.get("S3FailurePath", "").rstrip("/")
            self._paths[deployment.model] = paths
            if not paths[1]:
                log.error(
                    "endpoint_without_failure_path",
                    deployment=deployment.name,
                    fix="set S3FailurePath: a failure whose message is lost leaves nothing that can be found",
                )
        return self._paths[deployment.model]

    def cold(self) -> Mapping[str, Cold]:
        """The endpoints without an instance, as they were when they were looked at last."""
        return {name: self._cold(name) for name, has_none in self._has_none.items() if has_none}

    def last_cold(self, name: str) -> float:
        """When it was last seen without an instance; 0 for never."""
        return self._last_cold.get(name, 0.0)

    def _cold(self, name: str) -> Cold:
        rate = place_of(self._deployments[name]).usd_per_hour
        return Cold(COLD_S, None if rate is None else rate * COMES_S / 3600)

    def running_s(self, deployment: str, stay_s: float) -> float | None:
        """How long of its stay a call ran there, about: no call's own time is told, only means of a minute."""
        watch = self._watches.get(deployment)
        if watch is not None and watch.latency is not None:
            return min(watch.latency, stay_s)
        if watch is not None and watch.in_backlog is not None:
            return max(0.0, stay_s - watch.in_backlog)
        return None

    async def watch(self) -> None:
        """For ever: the endpoints' own figures and their instances, once a minute."""
        await asyncio.gather(self._watch_figures(), self._watch_instances())

    async def _watch_instances(self) -> None:
        while self._instances:
            for name, instances in self._instances.items():
                try:
                    await instances.looked(await self.described(self._deployments[name]))
                except BackendError as error:
                    log.warning("instances_not_seen", deployment=name, code=error.code)
            for _ in range(LOOKED_AT_EVERY):
                await asyncio.sleep(SEEN_EVERY_S)
                for instances in self._instances.values():
                    await instances.seen()

    async def _watch_figures(self) -> None:
        ours = [(each, place_of(each)) for each in self._deployments.values()]
        self._watches = {each.name: self._watch(each, place) for each, place in ours if not place.is_realtime}
        while True:
            for each in self._watches.values():
                try:
                    await each.look(datetime.now(UTC))
                except BackendError as error:
                    log.warning("endpoint_not_watched", deployment=each.name, code=error.code)
            await asyncio.sleep(EVERY_S)

    def _watch(self, deployment: Deployment, place: SageMaker) -> Watch:
        ask = partial(self._aws.ask, place, "cloudwatch", "get_metric_statistics")
        describe = partial(self.described, deployment)
        oldest = partial(self._open_calls.oldest, deployment.name)
        return Watch(deployment, ask, describe, self._meters, since=datetime.now(UTC), oldest=oldest)


def place_of(deployment: Deployment) -> SageMaker:
    """Raises `BackendError` where the settings are not of an endpoint."""
    if deployment.sagemaker is None:
        raise BackendError(Failure.MISCONFIGURED, "the deployment has no sagemaker section", code="settings")
    return deployment.sagemaker
