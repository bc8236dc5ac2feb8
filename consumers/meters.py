"""What workers and senders count, for Prometheus. Labels are from closed lists, never a user's text."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from consumers import counting
from consumers.outcome import Concluded, Dead, HandedOff, Later, Left, MovedOn, Outcome, Waiting
from policies.quota import Shadow
from policies.retries import Failure
from router.job import Job, JobState
from router.log import Counts

DEAD = ("crashed", "payload_lost", "too_many_deliveries", "undecodable", "untranslatable")


class JobMeters:
    """The counter of a process that ends jobs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["lane", "class", "state"]
        self._ended = counting.Counter("pointsman_jobs_ended_total", "Jobs that are over", labels, registry)

    def ended(self, job: Job, state: JobState) -> None:
        """A job is over."""
        self._ended.add(job.route.lane, job.job_class, state)


class WorkerMeters:
    """The counters of one worker process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._outcomes = Counter(
            "pointsman_deliveries_total", "What became of deliveries", ["outcome", "reason"], registry=registry
        )
        self._moved_on = Counter(
            "pointsman_fallbacks_total",
            "Jobs that went on at another deployment",
            ["deployment", "to"],
            registry=registry,
        )
        self._failures = Counter(
            "pointsman_failures_total", "Calls that failed", ["deployment", "failure"], registry=registry
        )
        self._still = Gauge(
            "pointsman_deployment_stands_still",
            "1: it can do no job at all, for a permission, a model or a quota that is missing",
            ["deployment"],
            registry=registry,
        )
        self._dead = Counter("pointsman_dead_letters_total", "Dead letters", ["reason"], registry=registry)
        for reason in DEAD:  # what an alert watches is there from the start: the first one is an increase as well
            self._dead.labels(reason)
        self._outcomes.labels("later", "lost")
        self._takes_nothing = Gauge(
            "pointsman_worker_takes_nothing", "1 while no job is taken or run, by reason", ["reason"], registry=registry
        )
        self._unpriced = Counter(
            "pointsman_unpriced_attempts_total", "Attempts whose price is not in the book", registry=registry
        )
        self._shadows = Counter(
            "pointsman_shadow_refusals_total",
            "Calls that a limit would have refused, were it not a shadow",
            ["limit", "scope"],
            registry=registry,
        )
        self._sizes = Histogram(
            "pointsman_microbatch_jobs",
            "Jobs in a microbatch",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )

    def outcome(self, outcome: Outcome) -> None:
        """A delivery was handled."""
        match outcome:
            case Concluded(usd_known):
                self._outcomes.labels("concluded", "").inc()
                if not usd_known:
                    self._unpriced.inc()
            case Later(_, reason) | Waiting(reason):
                self._outcomes.labels("later", reason).inc()
            case Dead(reason):
                self._outcomes.labels("dead", reason).inc()
            case HandedOff():
                self._outcomes.labels("handed_off", "").inc()
            case Left():
                self._outcomes.labels("left", "").inc()
            case MovedOn(job, reason):
                self._outcomes.labels("moved_on", reason).inc()
                self._moved_on.labels(job.route.tried[-1], job.route.deployment).inc()

    def failed(self, deployment: str, failure: Failure) -> None:
        """A call has failed."""
        self._failures.labels(deployment, failure).inc()

    def watch(self, reason: str, holds: Callable[[], bool]) -> None:
        """Why no job may be taken, looked at whenever somebody asks for the metrics."""
        self._takes_nothing.labels(reason).set_function(lambda: float(holds()))

    def alarmed(self, deployment: str, stands_still: bool) -> None:
        """A deployment can do no job at all, or can again."""
        self._still.labels(deployment).set(int(stands_still))

    def dead(self, reason: str) -> None:
        """A record was put on the dead letters."""
        self._dead.labels(reason).inc()

    def shadowed(self, shadows: Iterable[Shadow]) -> None:
        """Limits that would have refused a call."""
        for shadow in shadows:
            self._shadows.labels(shadow.limit, shadow.kind).inc()

    def microbatch(self, jobs: int) -> None:
        """A microbatch was dispatched."""
        self._sizes.observe(jobs)


class LogMeters(Collector):
    """What the log of a worker has met with."""

    def __init__(self, registry: CollectorRegistry, counts: Counts) -> None:
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Since the start."""
        family = CounterMetricFamily("pointsman_log_events_total", "What happened on the log", labels=["event"])
        for event in fields(self._counts):
            family.add_metric([event.name], getattr(self._counts, event.name))
        yield family


class WebhookMeters:
    """The counter of one process that sends webhooks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sent = Counter("pointsman_webhooks_total", "What became of sent webhooks", ["outcome"], registry=registry)
        self._sent.labels("dead")  # an alert watches it

    def webhook(self, outcome: str) -> None:
        """An attempt is over: delivered, failed, or the last one, dead."""
        self._sent.labels(outcome).inc()
