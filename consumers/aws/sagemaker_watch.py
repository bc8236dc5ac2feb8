"""Looks at an endpoint's own figures once a minute, and says aloud what SageMaker says only there."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog

from consumers.aws.sagemaker_figures import (
    BACKLOG,
    COUNTS,
    FAULTS,
    IN_BACKLOG,
    LATENCY,
    LEVELS,
    NAMESPACE,
    PERIOD_S,
    TIMES,
    WITHOUT_CAPACITY,
    Datapoint,
    Figure,
    counted,
    dimensions,
    level,
    odd_unit,
)
from consumers.aws.sagemaker_meters import SageMakerMeters
from policies.deployments import Deployment

log = structlog.get_logger(__name__)

EVERY_S = 60.0
BACK = timedelta(minutes=10)  # CloudWatch may be some minutes late
SETTLED = timedelta(minutes=2)  # a minute's sum does not change any more
STARTS = timedelta(minutes=15)  # an instance that was to come would be there

Ask = Callable[..., Awaitable[Any]]  # CloudWatch' get_metric_statistics. Raises `BackendError`
Describe = Callable[[], Awaitable[Mapping[str, Any]]]  # the endpoint, as AWS does. Raises `BackendError`


class Watch:
    """Of one endpoint. A failure is counted once, in the minute after it cannot change any more.

    `oldest` is the age of the oldest call that is known to be there, in seconds.
    """

    def __init__(
        self,
        deployment: Deployment,
        ask: Ask,
        describe: Describe,
        meters: SageMakerMeters,
        *,
        since: datetime,
        oldest: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._deployment = deployment
        self._ask = ask
        self._describe = describe
        self._oldest = oldest
        self._odd: set[tuple[str, str]] = set()
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
        variants = (await self._describe()).get("ProductionVariants", [])
        names = [each["VariantName"] for each in variants]
        points = {figure: await self._points(figure, names, now) for figure in LEVELS}
        levels = {figure: level(figure, found) for figure, found in points.items()}
        until = (now - SETTLED).replace(second=0, microsecond=0)
        since = self._counted_until
        failed = {
            figure: counted(await self._points(figure, names, now), since=since, until=until) for figure in COUNTS
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
        self._watch_scaling(variants, levels[BACKLOG])
        self._watch_silence(levels[BACKLOG])
        self._watch_units(points)

    def _say(self, figure: Figure, times: float) -> None:
        log.error(
            "endpoint_failed_silently",
            deployment=self.name,
            figure=figure.name,
            times=times,
            fix=FAULTS[figure.name],
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

    def _watch_scaling(self, variants: Iterable[Mapping[str, Any]], backlog: float | None) -> None:
        """An instance that goes takes the call with it that it runs."""
        goes = any(each.get("DesiredInstanceCount", 0) < each.get("CurrentInstanceCount", 0) for each in variants)
        if goes and backlog:
            log.error(
                "endpoint_scales_in_with_calls",
                deployment=self.name,
                calls=backlog,
                fix="a scale-in cool-down longer than sagemaker.invocation_timeout_s:"
                f" `pointsman sagemaker scaling {self.name} --apply`",
            )

    def _watch_silence(self, backlog: float | None) -> None:
        """No figure is not a figure of 0."""
        if backlog is None and self._oldest() >= STARTS.total_seconds():
            log.error(
                "endpoint_has_no_figures",
                deployment=self.name,
                oldest_s=round(self._oldest()),
                fix="see whether cloudwatch:GetMetricStatistics is granted and the endpoint's name is right; alarms on"
                " these series, and the scaling by them, do nothing meanwhile",
            )

    def _watch_units(self, points: Mapping[Figure, Iterable[Datapoint]]) -> None:
        for figure in TIMES:
            unit = odd_unit(figure, points[figure])
            if unit is not None and (figure.name, unit) not in self._odd:
                self._odd.add((figure.name, unit))
                log.warning("figure_in_another_unit", figure=figure.name, unit=unit, documented=figure.unit)

    async def _points(self, figure: Figure, variants: Sequence[str], now: datetime) -> list[Datapoint]:
        points: list[Datapoint] = []
        for variant in variants if figure.of_variant else ("",):
            found = await self._ask(
                Namespace=NAMESPACE,
                MetricName=figure.name,
                Dimensions=dimensions(self._deployment.model, variant),
                StartTime=now - BACK,
                EndTime=now,
                Period=PERIOD_S,
                Statistics=[figure.statistic],
            )
            points += found["Datapoints"]
        return points
