"""Counters and histograms for one thread: the library's take locks, which cost a job a tenth of a worker's CPU."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class Counter(Collector):
    """Counts by labels. A `level` may go down as well."""

    def __init__(
        self, name: str, what: str, labels: Sequence[str], registry: CollectorRegistry, *, is_level: bool = False
    ) -> None:
        self._name, self._what, self._labels, self._is_level = name, what, tuple(labels), is_level
        self._values: dict[tuple[str, ...], float] = {}
        if not labels:
            self._values[()] = 0.0
        registry.register(self)

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Count one, or so many."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """As Prometheus has them."""
        kind = GaugeMetricFamily if self._is_level else CounterMetricFamily
        family = kind(self._name, self._what, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class Histogram(Collector):
    """Seconds by labels."""

    def __init__(
        self, name: str, what: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name, self._what, self._labels = name, what, tuple(labels)
        self._bounds = tuple(bounds)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        if not labels:
            self._begin(())
        registry.register(self)

    def observe(self, seconds: float, *labels: str) -> None:
        """Count one."""
        counts = self._counts.get(labels) or self._begin(labels)
        counts[bisect_left(self._bounds, seconds)] += 1
        self._sums[labels] += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As Prometheus has them: each bucket holds those below it as well."""
        family = HistogramMetricFamily(self._name, self._what, labels=self._labels)
        for labels, counts in self._counts.items():
            total, buckets = 0, []
            for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric(labels, buckets, self._sums[labels])
        yield family

    def _begin(self, labels: tuple[str, ...]) -> list[int]:
        self._sums[labels] = 0.0
        counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
        return counts
