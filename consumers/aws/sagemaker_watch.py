"""Looks at an endpoint's own figures once a minute, and says aloud what SageMaker says only there."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog

from consumers.aws.sagemaker_figures import (
    COUNTS,
    FAULTS,
    IN_BACKLOG,
    LATENCY,
    LEVELS,
    NAMESPACE,
    PERIOD_S,
    WITHOUT_CAPACITY,
    Datapoint,
    Figure,
    counted,
    level,
)
from consumers.aws.sagemaker_meters import SageMakerMeters
from policies.deployments import Deployment

log = structlog.get_logger(__name__)

EVERY_S = 60.0
BACK = timedelta(minutes=10)  # CloudWatch may be some minutes late
SETTLED = timedelta(minutes=2)  # a minute's sum does not change any more
STARTS = timedelta(minutes=15)  # an instance that was to come would be there

Ask = Callable[..., Awaitable[Any]]  # CloudWatch' get_metric_statistics. Raises `BackendError`
Describe = Callable[[], Awaitable[Sequence[str]]]  # the endpoint's variants. Raises `BackendError`


class Watch:
    """Of one endpoint. A failure is counted once, in the minute after it cannot change any more."""

    def __init__(
        self, deployment: Deployment, ask: Ask, variants: Describe, meters: SageMakerMeters, *, since: datetime
    ) -> None:
        self._deployment = deployment
        self._ask = ask
        self._variants = variants
        self._meters = meters
        self._counted_until = since.replace(second=0, microsecond=0)
        self._without_since: datetime | None = None
        self.latency: float | None = None  # seconds that calls ran, on average
        self.in_backlog: float | None = None  # and that they waited

    @property
    def name(self) -> str:
        """The deployment's."""
        return self._deployment.name

    async def look(self, now: datetime) -> None:
        """Raises `BackendError`; then nothing was counted, and the next look counts it."""
        variants = await self._variants()
        levels = {figure: level(figure, await self._points(figure, variants, now)) for figure in LEVELS}
        until = (now - SETTLED).replace(second=0, microsecond=0)
        since = self._counted_until
        failed = {
            figure: counted(await self._points(figure, variants, now), since=since, until=until) for figure in COUNTS
        }
        self.latency, self.in_backlog = levels[LATENCY], levels[IN_BACKLOG]
        for figure, value in levels.items():
            self._meters.level(self.name, figure, value)
        self._counted_until = max(since, until)
        for figure, times in failed.items():
            if times:
                self._meters.failed(self.name, figure, times)
                self._say(figure, times)
        self._watch_capacity(levels[WITHOUT_CAPACITY], now)

    def _say(self, figure: Figure, times: float) -> None:
        log.error(
            "endpoint_failed_silently",
            deployment=self.name,
            figure=figure.name,
            times=times,
            fix=FAULTS.get(figure.name, "calls wait there longer than sagemaker.request_ttl_s: more instances"),
        )

    def _watch_capacity(self, lacks: float | None, now: datetime) -> None:
        if not lacks:
            self._without_since = None
            return
        self._without_since = self._without_since or now
        if now - self._without_since >= STARTS:
            log.error(
                "endpoint_has_no_instance",
                deployment=self.name,
                seconds=(now - self._without_since).total_seconds(),
                fix=f"`pointsman sagemaker scaling {self.name} --apply`, or see why none comes",
            )

    async def _points(self, figure: Figure, variants: Sequence[str], now: datetime) -> list[Datapoint]:
        of_endpoint = [{"Name": "EndpointName", "Value": self._deployment.model}]
        points: list[Datapoint] = []
        for variant in variants if figure.of_variant else ("",):
            of_variant = [{"Name": "VariantName", "Value": variant}] if variant else []
            found = await self._ask(
                Namespace=NAMESPACE,
                MetricName=figure.name,
                Dimensions=of_endpoint + of_variant,
                StartTime=now - BACK,
                EndTime=now,
                Period=PERIOD_S,
                Statistics=[figure.statistic],
            )
            points += found["Datapoints"]
        return points
