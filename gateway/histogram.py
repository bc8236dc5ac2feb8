"""A histogram for one thread: the library's takes locks, which cost an accept a hundredth of its CPU."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class Histogram(Collector):
    """Seconds, by one label or by none."""

    def __init__(
        self, name: str, what: str, bounds: Sequence[float], registry: CollectorRegistry, *, label: str = ""
    ) -> None:
        self._name, self._what, self._label = name, what, label
        self._bounds = tuple(bounds)
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        if not label:
            self._begin("")
        registry.register(self)

    def observe(self, seconds: float, label: str = "") -> None:
        """Count one."""
        counts = self._counts.get(label) or self._begin(label)
        counts[bisect_left(self._bounds, seconds)] += 1
        self._sums[label] += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As Prometheus has them: each bucket holds those below it as well."""
        family = HistogramMetricFamily(self._name, self._what, labels=[self._label] if self._label else [])
        for label, counts in self._counts.items():
            total, buckets = 0, []
            for bound, count in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric([label] if self._label else [], buckets, self._sums[label])
        yield family

    def _begin(self, label: str) -> list[int]:
        self._sums[label] = 0.0
        counts = self._counts[label] = [0] * (len(self._bounds) + 1)
        return counts
