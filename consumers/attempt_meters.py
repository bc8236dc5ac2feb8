"""What attempts at jobs come to, for Prometheus. Labels are from closed lists: the settings' names, never a text's."""

from collections.abc import Collection, Iterable

from prometheus_client import CollectorRegistry

from consumers.counting import Counter, Histogram
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
        self._attempts = Counter(
            "pointsman_attempts_total", "Attempts that were charged", ["deployment", "outcome"], registry
        )
        self._retries = Counter(
            "pointsman_retries_total", "Calls that were not a job's first", ["deployment"], registry
        )
        self._quantities = Counter(
            "pointsman_tokens_total",
            "What calls used, in the units of its meter",
            ["deployment", "class", "meter"],
            registry,
        )
        self._usd = Counter("pointsman_usd_total", "Dollars of calls", ["deployment", "class"], registry)
        self._tenant_usd = Counter(
            "pointsman_tenant_usd_total", "Dollars of calls, of the first tenants by name", ["tenant"], registry
        )
        self._tenant_tokens = Counter(
            "pointsman_tenant_tokens_total", "Tokens, of the first tenants by name", ["tenant"], registry
        )
        self._waited = Histogram(
            "pointsman_job_waited_seconds", "From its accept to its first call", ["lane", "class"], SECONDS, registry
        )
        self._took = Histogram(
            "pointsman_job_seconds", "From its accept to its end", ["lane", "class"], SECONDS, registry
        )
        self._calls = Histogram("pointsman_call_seconds", "Calls that were answered", ["deployment"], QUICK, registry)
        self._first_token = Histogram(
            "pointsman_first_token_seconds", "Until a call's first piece", ["deployment"], QUICK, registry
        )
        self._in_flight = Counter(
            "pointsman_calls_in_flight", "Calls under way", ["deployment"], registry, is_level=True
        )
        self._verdicts = Counter(
            "pointsman_quota_verdicts_total", "What the limits said", ["verdict", "limit"], registry
        )
        self._verdicts.add("exhausted", "usd_per_month", amount=0.0)  # an alert watches it
        self._duplicates = Counter(
            "pointsman_duplicates_avoided_total", "Records that came again, whose job was over", [], registry
        )

    def verdict(self, verdict: Granted | Wait | Exhausted) -> None:
        """What was answered to a reservation."""
        match verdict:
            case Granted():
                self._verdicts.add("granted", "")
            case Wait():
                self._verdicts.add("wait", verdict.limit)
            case Exhausted():
                self._verdicts.add("exhausted", verdict.limit)

    def avoided(self) -> None:
        """A record came whose job needs no run."""
        self._duplicates.add()

    def calling(self, job: Job, deployment: str, *, age_s: float, is_first: bool, is_retry: bool) -> None:
        """A call begins, at this age of its job."""
        if is_first:
            self._waited.observe(max(0.0, age_s), job.route.lane, job.job_class)
        if is_retry:
            self._retries.add(deployment)
        self._in_flight.add(deployment)

    def called(self, deployment: str, seconds: float, first_token_s: float | None, *, is_answered: bool) -> None:
        """It is over."""
        self._in_flight.add(deployment, amount=-1.0)
        if is_answered:
            self._calls.observe(seconds, deployment)
        if first_token_s is not None:
            self._first_token.observe(first_token_s, deployment)

    def charged(self, job: Job, deployment: str, lines: Iterable[ChargeLine], tokens: int, outcome: str) -> None:
        """An attempt is on the books."""
        tenant = job.tenant if job.tenant in self._tenants else OTHERS
        self._attempts.add(deployment, outcome)
        self._tenant_tokens.add(tenant, amount=tokens)
        for line in lines:
            self._quantities.add(deployment, job.job_class, line.meter, amount=line.quantity)
            if line.usd is not None:
                self._usd.add(deployment, job.job_class, amount=float(line.usd))
                self._tenant_usd.add(tenant, amount=float(line.usd))

    def ended(self, job: Job, state: JobState, *, age_s: float) -> None:
        """A job is over, at this age."""
        self._jobs.ended(job, state)
        if state is JobState.COMPLETED:
            self._took.observe(max(0.0, age_s), job.route.lane, job.job_class)
