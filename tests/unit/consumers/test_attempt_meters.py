"""What attempts show has as many series as the settings have names, whatever comes."""

from decimal import Decimal

from prometheus_client import CollectorRegistry, generate_latest

from consumers.attempt_meters import OTHERS, TENANTS, AttemptMeters
from policies.pricing import Usage
from router.job import JobState
from tests.builders import a_charge, a_job

NAMES = [f"tenant-{number:04}" for number in range(TENANTS + 20)]


def series(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """By tenant."""
    return {
        sample.labels["tenant"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_tenants_beyond_the_first_share_one_series_and_no_dollar_is_missing() -> None:
    registry = CollectorRegistry()
    meters = AttemptMeters(registry, NAMES)
    charged = a_charge(a_job(), usage=Usage(input=1_000_000))
    for name in [*NAMES, "who is not in the settings any more"]:
        meters.charged(a_job(tenant=name), "small", charged.lines, charged.tokens, "completed")

    dollars = series(registry, "pointsman_tenant_usd_total")

    assert dollars.keys() == {*NAMES[:TENANTS], OTHERS}
    assert round(sum(dollars.values()), 6) == float(Decimal("0.15") * (len(NAMES) + 1))
    assert sum(series(registry, "pointsman_tenant_tokens_total").values()) == 1_000_000 * (len(NAMES) + 1)


def test_no_text_of_a_client_is_shown() -> None:
    registry, marker = CollectorRegistry(), "zyxwvu-4711"
    meters, job = AttemptMeters(registry, ["acme"]), a_job(marker, model=marker, metadata={marker: marker})
    charged = a_charge(job)
    meters.calling(job, "small", age_s=1.0, is_first=True, is_retry=True)
    meters.called("small", 1.0, 0.5, is_answered=True)
    meters.charged(job, "small", charged.lines, charged.tokens, "completed")
    meters.ended(job, JobState.COMPLETED, age_s=2.0)

    shown = generate_latest(registry).decode()

    assert marker not in shown
    assert 'pointsman_calls_in_flight{deployment="small"} 0.0' in shown
    assert 'pointsman_jobs_ended_total{class="standard",lane="echo.text.light",state="completed"} 1.0' in shown
