"""What each board shows: rows of panels, each a title, a unit and its queries."""

from dataclasses import dataclass, field

RATE = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `queries` by legend; `what` is said when one points at it. Without a `unit` they are plain numbers."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    what: str = ""
    kind: str = "timeseries"
    width: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One board; its file is called after its name."""

    name: str
    title: str
    rows: tuple[Row, ...] = field(default=())


def quantiles(metric: str, by: str, *, legend: str = "") -> dict[str, str]:
    """The median and the 95th percentile of a histogram."""
    shown = legend or "{{" + by + "}}"
    return {
        f"{shown} p{percent}": f"histogram_quantile(0.{percent}, sum by (le, {by}) (rate({metric}_bucket[{RATE}])))"
        for percent in (50, 95)
    }


def rate(metric: str, by: str, legend: str = "") -> dict[str, str]:
    """How often it happens in a second."""
    return {legend or " ".join("{{" + each.strip() + "}}" for each in by.split(",")): _rate(metric, by)}


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[{RATE}]))"


def most(metric: str, by: str) -> dict[str, str]:
    """Of what several processes tell alike, one."""
    return {" ".join("{{" + each.strip() + "}}" for each in by.split(",")): f"max by ({by}) ({metric})"}


COMPLETED = 'pointsman_jobs_ended_total{state="completed"}'
ENDED = 'pointsman_jobs_ended_total{state=~"completed|failed|expired"}'

OVERVIEW = Board(
    "overview",
    "Pointsman: overview",
    (
        Row(
            "Now",
            (
                Panel(
                    "Jobs that completed",
                    {"of those that ended in an hour": f"sum(increase({COMPLETED}[1h])) / sum(increase({ENDED}[1h]))"},
                    "percentunit",
                    "Of those that completed, failed or expired. An alert watches 95 %.",
                    "stat",
                    6,
                ),
                Panel(
                    "Waiting",
                    {"jobs": "sum(max by (lane, queue) (pointsman_lane_backlog - pointsman_lane_running))"},
                    kind="stat",
                    width=6,
                ),
                Panel("Oldest", {"age": "max(pointsman_lane_oldest_seconds)"}, "s", kind="stat", width=6),
                Panel(
                    "Dead letters in a day",
                    {"records": "sum(increase(pointsman_dead_letters_total[1d]))"},
                    kind="stat",
                    width=6,
                ),
            ),
        ),
        Row(
            "The door",
            (
                Panel("Requests", rate("pointsman_http_requests_total", "route, status"), "reqps"),
                Panel("Accepting a job", quantiles("pointsman_accept_seconds", "job", legend="accept"), "s"),
                Panel(
                    "Callers",
                    {
                        "wait": "sum(pointsman_http_waiting)",
                        "are being read": "sum(pointsman_http_inflight_requests)",
                        "hung up, a second": f"sum(rate(pointsman_http_hang_ups_total[{RATE}]))",
                    },
                ),
                Panel("Answers begin after", quantiles("pointsman_http_request_seconds", "route"), "s", width=12),
                Panel("Bytes being read", {"bytes": "sum(pointsman_http_inflight_bytes)"}, "bytes", width=12),
            ),
        ),
        Row(
            "Jobs",
            (
                Panel("Accepted", rate("pointsman_jobs_accepted_total", "lane, class"), "cps"),
                Panel("Ended", rate("pointsman_jobs_ended_total", "state"), "cps"),
                Panel("From accept to end", quantiles("pointsman_job_seconds", "lane"), "s"),
            ),
        ),
        Row(
            "Routing",
            (
                Panel("Heavy share", most("pointsman_heavy_share", "tenant, modality"), "percentunit"),
                Panel(
                    "Sent to heavy by rules", most("pointsman_forced_heavy_share", "tenant, modality"), "percentunit"
                ),
                Panel("Threshold", most("pointsman_heavy_threshold", "tenant, modality"), "none"),
                Panel("What decided", rate("pointsman_routed_jobs_total", "rule, tier"), "cps", width=24),
            ),
        ),
    ),
)

LANES = Board(
    "lanes",
    "Pointsman: lanes",
    (
        Row(
            "Queues",
            (
                Panel("Records that are not done", most("pointsman_lane_backlog", "lane, queue")),
                Panel("Jobs that run", most("pointsman_lane_running", "lane, queue")),
                Panel("Age of the oldest", most("pointsman_lane_oldest_seconds", "lane, queue"), "s"),
                Panel("Workers", most("pointsman_lane_workers", "lane, queue"), width=12),
                Panel(
                    "From accept to the first call", quantiles("pointsman_job_waited_seconds", "lane"), "s", width=12
                ),
            ),
        ),
        Row(
            "Deliveries",
            (
                Panel("What became of them", rate("pointsman_deliveries_total", "outcome"), "cps"),
                Panel(
                    "Put off, and why",
                    {"{{reason}}": f'sum by (reason) (rate(pointsman_deliveries_total{{outcome="later"}}[{RATE}]))'},
                    "cps",
                    "busy: another worker has it. lost: this one had it. cooling: its deployment fails.",
                ),
                Panel("Dead letters", {"{{reason}}": "sum by (reason) (increase(pointsman_dead_letters_total[1h]))"}),
                Panel(
                    "Came twice, ran once",
                    {"records": f"sum(rate(pointsman_duplicates_avoided_total[{RATE}]))"},
                    "cps",
                ),
                Panel("Jobs in a microbatch", quantiles("pointsman_microbatch_jobs", "job", legend="jobs")),
                Panel("Takes nothing", most("pointsman_worker_takes_nothing", "reason")),
            ),
        ),
        Row(
            "The inbox, and who is told",
            (
                Panel("Records on the inbox", rate("pointsman_inbox_records_total", "outcome"), "cps", width=12),
                Panel("Webhooks", rate("pointsman_webhooks_total", "outcome"), "cps", width=12),
            ),
        ),
    ),
)

TENANTS = Board(
    "tenants",
    "Pointsman: tenants and dollars",
    (
        Row(
            "Dollars",
            (
                Panel(
                    "In a day, by tenant",
                    {"{{tenant}}": "sum by (tenant) (increase(pointsman_tenant_usd_total[1d]))"},
                    "currencyUSD",
                ),
                Panel(
                    "An hour, by tenant",
                    {"{{tenant}}": f"3600 * sum by (tenant) (rate(pointsman_tenant_usd_total[{RATE}]))"},
                    "currencyUSD",
                ),
                Panel(
                    "An hour, by deployment and class",
                    {"{{deployment}} {{class}}": f"3600 * {_rate('pointsman_usd_total', 'deployment, class')}"},
                    "currencyUSD",
                ),
                Panel(
                    "Calls without a price",
                    {"calls": "sum(increase(pointsman_unpriced_attempts_total[1h]))"},
                    what="Should be 0: see `pointsman check`.",
                ),
                Panel(
                    "Machines, an hour",
                    {"{{part}}": f"3600 * sum by (part) (rate(pointsman_machine_usd_total[{RATE}]))"},
                    "currencyUSD",
                ),
                Panel("Machines busy and idle", rate("pointsman_machine_seconds_total", "part"), "none"),
            ),
        ),
        Row(
            "Tokens",
            (
                Panel("By tenant", rate("pointsman_tenant_tokens_total", "tenant"), "none", width=12),
                Panel("By deployment and meter", rate("pointsman_tokens_total", "deployment, meter"), "none", width=12),
            ),
        ),
        Row(
            "Limits",
            (
                Panel("Callers refused", rate("pointsman_quota_refusals_total", "verdict, limit"), "cps"),
                Panel("Queued jobs", rate("pointsman_quota_verdicts_total", "verdict, limit"), "cps"),
                Panel(
                    "Would be refused, were it no shadow",
                    rate("pointsman_shadow_refusals_total", "limit, scope"),
                    "cps",
                ),
            ),
        ),
    ),
)

ENGINES = Board(
    "engines",
    "Pointsman: engine health",
    (
        Row(
            "Calls",
            (
                Panel("Under way", {"{{deployment}}": "sum by (deployment) (pointsman_calls_in_flight)"}),
                Panel("Take", quantiles("pointsman_call_seconds", "deployment"), "s"),
                Panel("First token after", quantiles("pointsman_first_token_seconds", "deployment"), "s"),
                Panel("Attempts", rate("pointsman_attempts_total", "deployment, outcome"), "cps"),
                Panel("Failures", rate("pointsman_failures_total", "deployment, failure"), "cps"),
                Panel("Tried again", rate("pointsman_retries_total", "deployment"), "cps"),
                Panel("Went on elsewhere", rate("pointsman_fallbacks_total", "deployment, to"), "cps"),
                Panel(
                    "Left alone, as it fails",
                    most("pointsman_deployment_cooling", "deployment"),
                    what="1 while its calls failed one after the other, until one that tests it is answered.",
                ),
                Panel("Can do no job", most("pointsman_deployment_stands_still", "deployment")),
            ),
        ),
        Row(
            "Replicas",
            (
                Panel("Calls", most("pointsman_replica_calls", "deployment, replica")),
                Panel("May have", most("pointsman_replica_cap", "deployment, replica")),
                Panel("Ready", most("pointsman_replica_ready", "deployment, replica")),
                Panel("Wait in the engine", most("pointsman_replica_waiting", "deployment, replica"), width=12),
                Panel("Ejected", rate("pointsman_replica_ejections_total", "deployment, replica"), "cps", width=12),
            ),
        ),
        Row(
            "SageMaker",
            (
                Panel("Backlog", most("pointsman_sagemaker_approximate_backlog_size", "deployment")),
                Panel(
                    "Backlog without an instance",
                    most("pointsman_sagemaker_has_backlog_without_capacity", "deployment"),
                ),
                Panel("Oldest call", most("pointsman_sagemaker_oldest_seconds", "deployment"), "s"),
                Panel(
                    "Waited, and took",
                    {
                        "{{deployment}} waited": "max by (deployment) (pointsman_sagemaker_time_in_backlog_seconds)",
                        "{{deployment}} model": "max by (deployment) (pointsman_sagemaker_model_latency_seconds)",
                    },
                    "s",
                ),
                Panel("How ends became known", rate("pointsman_sagemaker_results_total", "deployment, how"), "cps"),
                Panel(
                    "What only AWS sees fail", rate("pointsman_sagemaker_failures_total", "deployment, figure"), "cps"
                ),
            ),
        ),
    ),
)

BOARDS = (OVERVIEW, LANES, TENANTS, ENGINES)
