"""What this process counts. Labels come from closed lists only."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.reading import Inflight
from policies.quota import Shadow

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class InboxMetrics:
    """What the inbox counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._records = Counter(
            "pointsman_inbox_records", "What became of records on the inbox.", ["outcome"], registry=registry
        )

    def record(self, outcome: str) -> None:
        """One was handled: accepted, repeated, refused or crashed."""
        self._records.labels(outcome).inc()


class Metrics:
    """The gateway's metrics, in a registry of their own."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, inflight: Inflight, waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "pointsman_http_requests", "Answers, by route and status.", ["route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "pointsman_http_request_seconds",
            "From the request's head to the answer's first byte.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._answers: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._accepted: dict[tuple[str, str], Counter] = {}
        self._jobs = Counter(
            "pointsman_jobs_accepted", "Jobs that were accepted.", ["lane", "class"], registry=self.registry
        )
        self._shadows = Counter(
            "pointsman_shadow_refusals",
            "Calls that a limit would have refused, were it not a shadow.",
            ["limit", "scope"],
            registry=self.registry,
        )
        self.hang_ups = Counter(
            "pointsman_http_hang_ups", "Callers who left before their answer.", registry=self.registry
        )
        callers = Gauge("pointsman_http_waiting", "Callers who wait for an answer.", registry=self.registry)
        callers.set_function(waiting)
        held = Gauge("pointsman_http_inflight_requests", "Requests being read or accepted.", registry=self.registry)
        held.set_function(lambda: inflight.requests)
        size = Gauge("pointsman_http_inflight_bytes", "Bytes of their bodies.", registry=self.registry)
        size.set_function(lambda: inflight.bytes)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """One answer has begun. `route` is a route's template, never a path."""
        kept = self._answers.get((route, status))
        if kept is None:  # to look labels up takes longer than to count
            kept = self._answers[route, status] = (
                self._requests.labels(route, str(status)),
                self._seconds.labels(route),
            )
        kept[0].inc()
        kept[1].observe(seconds)

    def accepted(self, lane: str, job_class: str) -> None:
        """One job was accepted."""
        kept = self._accepted.get((lane, job_class))
        if kept is None:
            kept = self._accepted[lane, job_class] = self._jobs.labels(lane, job_class)
        kept.inc()

    def shadowed(self, shadows: Iterable[Shadow]) -> None:
        """Limits that would have refused a call."""
        for shadow in shadows:
            self._shadows.labels(shadow.limit, shadow.kind).inc()

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)
