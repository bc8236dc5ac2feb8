"""What this process counts. Labels come from closed lists only."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from consumers.counting import Histogram
from gateway.reading import Inflight
from policies.quota import Shadow
from router.shares import Shares

TENANTS = 50  # that have series of their own
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

    def __init__(self, inflight: Inflight, waiting: Callable[[], int], shares: Shares) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "pointsman_http_requests", "Answers, by route and status.", ["route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "pointsman_http_request_seconds",
            "From the request's head to the answer's first byte.",
            ["route"],
            SECONDS,
            self.registry,
        )
        self._answers: dict[tuple[str, int], Counter] = {}
        self._accepted: dict[tuple[str, str], Counter] = {}
        self._jobs = Counter(
            "pointsman_jobs_accepted", "Jobs that were accepted.", ["lane", "class"], registry=self.registry
        )
        self._accepts = Histogram(
            "pointsman_accept_seconds",
            "From a checked request to a job that cannot be lost.",
            [],
            SECONDS,
            self.registry,
        )
        self._refused = Counter(
            "pointsman_quota_refusals",
            "Callers who were over a limit, by `wait`, or `exhausted` for a budget.",
            ["verdict", "limit"],
            registry=self.registry,
        )
        self._refused.labels("exhausted", "usd_per_month")  # an alert watches it
        self._shadows = Counter(
            "pointsman_shadow_refusals",
            "Calls that a limit would have refused, were it not a shadow.",
            ["limit", "scope"],
            registry=self.registry,
        )
        self._routed = Counter(
            "pointsman_routed_jobs",
            "Decisions of the router, by what decided: `score`, `cap`, or a rule.",
            ["modality", "rule", "tier"],
            registry=self.registry,
        )
        self._decisions: dict[tuple[str, str, bool], Counter] = {}
        self.registry.register(_Levels(shares))
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
            kept = self._answers[route, status] = self._requests.labels(route, str(status))
        kept.inc()
        self._seconds.observe(seconds, route)

    def refused(self, limit: str, *, is_budget: bool) -> None:
        """A caller was over a limit."""
        self._refused.labels("exhausted" if is_budget else "wait", limit).inc()

    def accepted(self, lane: str, job_class: str, seconds: float) -> None:
        """One job was accepted, within so long."""
        self._accepts.observe(seconds)
        kept = self._accepted.get((lane, job_class))
        if kept is None:
            kept = self._accepted[lane, job_class] = self._jobs.labels(lane, job_class)
        kept.inc()

    def routed(self, modality: str, rule: str, is_heavy: bool) -> None:
        """One decision of the router."""
        kept = self._decisions.get((modality, rule, is_heavy))
        if kept is None:
            tier = "heavy" if is_heavy else "light"
            kept = self._decisions[modality, rule, is_heavy] = self._routed.labels(modality, rule, tier)
        kept.inc()

    def shadowed(self, shadows: Iterable[Shadow]) -> None:
        """Limits that would have refused a call."""
        for shadow in shadows:
            self._shadows.labels(shadow.limit, shadow.kind).inc()

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)


class _Levels(Collector):
    """What the router holds, for the first tenants by name: more would make too many series."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The levels of this process, which are those of all replicas within a second."""
        labels = ["tenant", "modality"]
        heavy = GaugeMetricFamily("pointsman_heavy_share", "Of all calls so far, forced ones included.", labels=labels)
        forced = GaugeMetricFamily("pointsman_forced_heavy_share", "Of late, of all calls.", labels=labels)
        threshold = GaugeMetricFamily("pointsman_heavy_threshold", "The score above which it is heavy.", labels=labels)
        levels = {name: level for name, level in self._shares.levels().items() if name.axis == "tier"}
        shown = set(sorted({name.tenant for name in levels})[:TENANTS])
        for name, level in levels.items():
            if name.tenant in shown:
                heavy.add_metric([name.tenant, name.modality], level.heavy_share)
                forced.add_metric([name.tenant, name.modality], level.forced_heavy_rate)
                threshold.add_metric([name.tenant, name.modality], level.threshold)
        return iter((heavy, forced, threshold))
