"""What a collector tells Prometheus of SageMaker endpoints. Labels are deployments' names and closed lists."""

from collections.abc import Callable, Mapping
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge

from consumers.aws.sagemaker_figures import (
    BACKLOG,
    IN_BACKLOG,
    LATENCY,
    PER_INSTANCE,
    PROCESSING,
    WITHOUT_CAPACITY,
    Figure,
)


class Result(StrEnum):
    """How a call's end became known."""

    MESSAGE = "message"
    LOOKING = "looking"
    FOUND_LATE = "found_late"  # by looking, though a message should have come
    EXPIRED = "expired"  # it waited at the endpoint for too long
    LOST = "lost"  # it has no result, and will not get one
    LATE = "late"  # its attempt had been concluded before


class SageMakerMeters:
    """The gauges and counters of one collector."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"pointsman_sagemaker_{name}", what, ["deployment"], registry=registry)

        self._levels: Mapping[Figure, Gauge] = {
            BACKLOG: gauge("approximate_backlog_size", "Calls that wait or run there"),
            PER_INSTANCE: gauge("approximate_backlog_size_per_instance", "The same by instance"),
            WITHOUT_CAPACITY: gauge("has_backlog_without_capacity", "1 while calls wait and there is no instance"),
            IN_BACKLOG: gauge("time_in_backlog_seconds", "How long calls waited there, on average"),
            PROCESSING: gauge("total_processing_time_seconds", "From taken to ended, on average"),
            LATENCY: gauge("model_latency_seconds", "How long the container took, on average"),
        }
        self._shown: set[tuple[Figure, str]] = set()
        self._oldest = gauge("oldest_seconds", "Age of the oldest call without a result, of those seen here")
        self._failures = Counter(
            "pointsman_sagemaker_failures_total",
            "Failures that only AWS sees",
            ["deployment", "figure"],
            registry=registry,
        )
        self._denied = Counter(
            "pointsman_sagemaker_denied_total", "Looks at S3 that it did not allow", ["deployment"], registry=registry
        )
        self._results = Counter(
            "pointsman_sagemaker_results_total",
            "How the ends of calls became known",
            ["deployment", "how"],
            registry=registry,
        )

    def level(self, deployment: str, figure: Figure, value: float | None) -> None:
        """What CloudWatch says; None takes it away, as there is no value."""
        if value is not None:
            self._levels[figure].labels(deployment).set(value)
            self._shown.add((figure, deployment))
        elif (figure, deployment) in self._shown:
            self._levels[figure].remove(deployment)
            self._shown.discard((figure, deployment))

    def failed(self, deployment: str, figure: Figure, times: float) -> None:
        """So many more, by AWS' name of it."""
        self._failures.labels(deployment, figure.name).inc(times)

    def result(self, deployment: str, how: Result) -> None:
        """A call's end became known, or did not."""
        self._results.labels(deployment, how).inc()

    def denied(self, deployment: str) -> None:
        """S3 does not let us see whether there is a result."""
        self._denied.labels(deployment).inc()

    def oldest(self, deployment: str, seconds: Callable[[], float]) -> None:
        """Where to ask for it."""
        self._oldest.labels(deployment).set_function(seconds)
        self._failures.labels(deployment, "NotificationFailures")  # an alert watches it
        self._denied.labels(deployment)
