"""What attempts at jobs come to, for Prometheus. Labels are from closed lists: the settings' names, never a text's."""

from collections.abc import Collection, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from consumers.meters import JobMeters
from policies.pricing import ChargeLine
from policies.quota import Exhausted, Granted, Wait
from router.job import Job, JobState

TENANTS = 50  # by name; the others share one series
OTHERS = "others"
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21_600, 86_400)
QUICK = (0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class AttemptMeters:
    """The counters of a process that runs or collects jobs of these tenants."""

    def __init__(self, registry: CollectorRegistry, tenants: Collection[str] = ()) -> None:
        self._jobs = JobMeters(registry)
        self._tenants = frozenset(sorted(tenants)[:TENANTS])
        at, whose = ["deployment"], ["deployment", "class"]
        self._attempts = Counter(
            "pointsman_attempts_total", "Attempts that were charged", ["deployment", "outcome"], registry=registry
        )
        self._retries = Counter("pointsman_retries_total", "Calls that were not a job's first", at, registry=registry)
        self._quantities = Counter(
            "pointsman_tokens_total", "What calls used, in the units of its meter", [*whose, "meter"], registry=registry
        )
        self._usd = Counter("pointsman_usd_total", "Dollars of calls", whose, registry=registry)
        self._tenant_usd = Counter(
            "pointsman_tenant_usd_total",
            "Dollars of calls, of the first tenants by name",
            ["tenant"],
            registry=registry,
        )
        self._tenant_tokens = Counter(
            "pointsman_tenant_tokens_total", "Tokens, of the first tenants by name", ["tenant"], registry=registry
        )
        lane = ["lane", "class"]
        self._waited = Histogram(
            "pointsman_job_waited_seconds",
            "From its accept to its first call",
            lane,
            buckets=SECONDS,
            registry=registry,
        )
        self._took = Histogram(
            "pointsman_job_seconds", "From its accept to its end", lane, buckets=SECONDS, registry=registry
        )
        self._calls = Histogram(
            "pointsman_call_seconds", "Calls that were answered", at, buckets=QUICK, registry=registry
        )
        self._first_token = Histogram(
            "pointsman_first_token_seconds", "Until a call's first piece", at, buckets=QUICK, registry=registry
        )
        self._in_flight = Gauge("pointsman_calls_in_flight", "Calls under way", at, registry=registry)
        self._verdicts = Counter(
            "pointsman_quota_verdicts_total", "What the limits said", ["verdict", "limit"], registry=registry
        )
        self._verdicts.labels("exhausted", "usd_per_month")  # an alert watches it
        self._duplicates = Counter(
            "pointsman_duplicates_avoided_total", "Records of jobs that were over, or run elsewhere", registry=registry
        )

    def verdict(self, verdict: Granted | Wait | Exhausted) -> None:
        """What was answered to a reservation."""
        match verdict:
            case Granted():
                self._verdicts.labels("granted", "").inc()
            case Wait():
                self._verdicts.labels("wait", verdict.limit).inc()
            case Exhausted():
                self._verdicts.labels("exhausted", verdict.limit).inc()

    def avoided(self) -> None:
        """A record came whose job needs no run."""
        self._duplicates.inc()

    def calling(self, job: Job, deployment: str, *, age_s: float, is_first: bool, is_retry: bool) -> None:
        """A call begins, at this age of its job."""
        if is_first:
            self._waited.labels(job.route.lane, job.job_class).observe(max(0.0, age_s))
        if is_retry:
            self._retries.labels(deployment).inc()
        self._in_flight.labels(deployment).inc()

    def called(self, deployment: str, seconds: float, first_token_s: float | None, *, is_answered: bool) -> None:
        """It is over."""
        self._in_flight.labels(deployment).dec()
        if is_answered:
            self._calls.labels(deployment).observe(seconds)
        if first_token_s is not None:
            self._first_token.labels(deployment).observe(first_token_s)

    def charged(self, job: Job, deployment: str, lines: Iterable[ChargeLine], tokens: int, outcome: str) -> None:
        """An attempt is on the books."""
        tenant = job.tenant if job.tenant in self._tenants else OTHERS
        self._attempts.labels(deployment, outcome).inc()
        self._tenant_tokens.labels(tenant).inc(tokens)
        for line in lines:
            self._quantities.labels(deployment, job.job_class, line.meter).inc(line.quantity)
            if line.usd is not None:
                self._usd.labels(deployment, job.job_class).inc(float(line.usd))
                self._tenant_usd.labels(tenant).inc(float(line.usd))

    def ended(self, job: Job, state: JobState, *, age_s: float) -> None:
        """A job is over, at this age."""
        self._jobs.ended(job, state)
        if state is JobState.COMPLETED:
            self._took.labels(job.route.lane, job.job_class).observe(max(0.0, age_s))
