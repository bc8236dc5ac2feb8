"""What a sweeper shows, for Prometheus: the lanes, the deployments, and the jobs that it ended."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from consumers.lanes import Lanes
from policies.conditions import Conditions
from policies.deployments import Deployment


class LaneMeters(Collector):
    """As they were counted last; nothing once that is too long ago."""

    def __init__(self, registry: CollectorRegistry, lanes: Lanes) -> None:
        self._lanes = lanes
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All lanes that the settings name."""

        def gauge(name: str, what: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"pointsman_lane_{name}", what, labels=["lane", "queue"])

        backlog = gauge("backlog", "Records that are not done, those of running jobs included")
        running = gauge("running", "Jobs that workers run")
        oldest = gauge("oldest_seconds", "Age of the oldest record that is not done, while any waits")
        workers = gauge("workers", "Workers that take its jobs")
        for key, load in self._lanes.by_queue().items() if self._lanes.is_known else ():
            backlog.add_metric(key, load.backlog)
            running.add_metric(key, load.running)
            oldest.add_metric(key, load.oldest_s)
            workers.add_metric(key, load.workers)
        return iter((backlog, running, oldest, workers))


class DeploymentMeters(Collector):
    """Which deployments are left alone, because they fail. `look` asks Redis."""

    def __init__(
        self, registry: CollectorRegistry, conditions: Conditions, deployments: Mapping[str, Deployment]
    ) -> None:
        self._conditions = conditions
        self._well = dict.fromkeys(deployments, True)
        registry.register(self)

    async def look(self) -> None:
        """Look at each. Raises `BoardUnavailableError`."""
        for name in self._well:
            self._well[name] = await self._conditions.is_well(name)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As they were seen last."""
        cooling = GaugeMetricFamily(
            "pointsman_deployment_cooling", "1 while it is left alone or tested, as it fails", labels=["deployment"]
        )
        for name, is_well in self._well.items():
            cooling.add_metric([name], float(not is_well))
        return iter((cooling,))
