"""What a worker tells Prometheus about replicas. Labels are the operator's own names, 256 a deployment at most."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from policies.machine_time import Bill

LABELS = ["deployment", "replica"]


class FleetMeters:
    """The gauges of one worker process. A replica that is gone has none any more."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Gauge("pointsman_replica_calls", "Calls there, of all workers", LABELS, registry=registry)
        self._cap = Gauge("pointsman_replica_cap", "Calls that it may have now", LABELS, registry=registry)
        self._ready = Gauge("pointsman_replica_ready", "1 while it may be called", LABELS, registry=registry)
        self._waiting = Gauge(
            "pointsman_replica_waiting", "Requests in its engine's own queue, where it tells", LABELS, registry=registry
        )
        self._ejected = Counter(
            "pointsman_replica_ejections_total", "Times that it was ejected, by this worker", LABELS, registry=registry
        )
        self._usd = Counter(
            "pointsman_machine_usd_total",
            "Dollars of a replica's machine; idle ones by cause",
            [*LABELS, "part"],
            registry=registry,
        )
        self._seconds = Counter(
            "pointsman_machine_seconds_total", "Time that was billed", [*LABELS, "part"], registry=registry
        )
        self._tokens = Counter(
            "pointsman_machine_tokens_total", "Tokens of calls that ended in that time", LABELS, registry=registry
        )
        self._known: dict[str, set[str]] = {}

    def show(self, deployment: str, reports: Mapping[str, Mapping[str, object]]) -> None:
        """What is known of each replica now, by name."""
        for name, report in reports.items():
            self._calls.labels(deployment, name).set(_number(report["ours"]))
            self._cap.labels(deployment, name).set(_number(report["cap"]))
            self._ready.labels(deployment, name).set(report["state"] == "ready")
            self._ejected.labels(deployment, name)  # 0 is shown as well
            if report["waiting"] is not None:
                self._waiting.labels(deployment, name).set(_number(report["waiting"]))
        self._forget(deployment, self._known.get(deployment, set()) - reports.keys())
        self._known[deployment] = set(reports)

    def ejected(self, deployment: str, replica: str) -> None:
        """One was ejected."""
        self._ejected.labels(deployment, replica).inc()

    def billed(self, deployment: str, replica: str, bill: Bill, *, tokens: int) -> None:
        """A span of its machine's time was billed by this worker; calls with so many tokens ended in it."""
        parts = {"busy": bill.busy, **{str(cause): usd for cause, usd in bill.idle.items()}}
        for part, usd in parts.items():
            self._usd.labels(deployment, replica, part).inc(usd / 1e12)
        self._seconds.labels(deployment, replica, "busy").inc(bill.busy_ms / 1000)
        self._seconds.labels(deployment, replica, "idle").inc((bill.up_ms - bill.busy_ms) / 1000)
        self._tokens.labels(deployment, replica).inc(tokens)

    def _forget(self, deployment: str, names: Iterable[str]) -> None:
        for name in names:
            for meter in (self._calls, self._cap, self._ready, self._waiting, self._ejected):
                try:
                    meter.remove(deployment, name)
                except KeyError:
                    continue  # it had none
            for meter in (self._usd, self._seconds, self._tokens):
                meter.remove_by_labels({"deployment": deployment, "replica": name})


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value
