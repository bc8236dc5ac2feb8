"""What CloudWatch's values mean: units, what is missing, and each failure counted once."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from consumers.aws.sagemaker_figures import (
    BACKLOG,
    COUNTS,
    IN_BACKLOG,
    LATENCY,
    LEVELS,
    PROCESSING,
    Datapoint,
    Figure,
    counted,
    level,
)
from consumers.aws.sagemaker_meters import SageMakerMeters
from consumers.aws.sagemaker_watch import Watch
from tests.builders import a_deployment

NOW = datetime(2026, 11, 29, 10, 0, 30, tzinfo=UTC)


def a_point(figure: Figure, value: float, *, minutes_ago: float = 3.0, unit: str | None = None) -> Datapoint:
    point: Datapoint = {"Timestamp": NOW.replace(second=0) - timedelta(minutes=minutes_ago)}
    if unit != "":
        point["Unit"] = unit or figure.unit
    point[figure.statistic] = value
    return point


@pytest.mark.parametrize(
    ("figure", "value", "unit", "seconds"),
    [
        (LATENCY, 2_500_000, "Microseconds", 2.5),
        (IN_BACKLOG, 2_500_000, "Microseconds", 2.5),
        (PROCESSING, 2_500, "Milliseconds", 2.5),
        (IN_BACKLOG, 2_500, "Milliseconds", 2.5),  # what CloudWatch says stands above the table
        (PROCESSING, 2_500, "", 2.5),
        (LATENCY, 2_500_000, "", 2.5),
        (BACKLOG, 7, "Count", 7),
        (BACKLOG, 7, "None", 7),
    ],
)
def test_times_are_seconds_whatever_their_unit(figure: Figure, value: float, unit: str, seconds: float) -> None:
    assert level(figure, [a_point(figure, value, unit=unit)]) == pytest.approx(seconds)


def test_the_newest_value_counts_and_none_is_not_nothing() -> None:
    assert level(BACKLOG, [a_point(BACKLOG, 5, minutes_ago=1), a_point(BACKLOG, 9, minutes_ago=2)]) == 5
    assert level(BACKLOG, []) is None


def test_only_backlogs_have_the_endpoint_as_their_only_dimension() -> None:
    assert {figure.name for figure in (*LEVELS, *COUNTS) if not figure.of_variant} == {
        "ApproximateBacklogSize",
        "ApproximateBacklogSizePerInstance",
        "HasBacklogWithoutCapacity",
    }


@given(cuts=st.lists(st.integers(0, 60), max_size=5))
def test_whenever_it_is_looked_each_minute_is_counted_once(cuts: list[int]) -> None:
    points = [a_point(COUNTS[0], 1, minutes_ago=minutes) for minutes in range(60)]
    edges = [NOW.replace(second=0) - timedelta(minutes=60 - cut) for cut in sorted([0, *cuts, 60])]

    times = [counted(points, since=since, until=until) for since, until in pairwise(edges)]

    assert sum(times) == 59  # the last minute is not over


async def test_a_watch_counts_a_failure_once_and_shows_the_levels_until_there_are_none() -> None:
    answers: dict[str, list[Datapoint]] = {
        "NotificationFailures": [a_point(COUNTS[1], 4)],
        "ApproximateBacklogSize": [a_point(BACKLOG, 6)],
    }

    async def ask(**asked: object) -> dict[str, object]:
        return {"Datapoints": answers.get(str(asked["MetricName"]), [])}

    async def describe() -> Mapping[str, Any]:
        return {"ProductionVariants": [{"VariantName": "AllTraffic"}]}

    registry = CollectorRegistry()
    watch = Watch(a_deployment(), ask, describe, SageMakerMeters(registry), since=NOW - timedelta(minutes=5))

    await watch.look(NOW)
    shown = generate_latest(registry).decode()
    answers["ApproximateBacklogSize"] = []
    await watch.look(NOW + timedelta(minutes=1))
    later = generate_latest(registry).decode()

    failures = 'pointsman_sagemaker_failures_total{deployment="small",figure="NotificationFailures"} 4.0'
    assert failures in shown and failures in later
    assert 'pointsman_sagemaker_approximate_backlog_size{deployment="small"} 6.0' in shown
    assert "pointsman_sagemaker_approximate_backlog_size{" not in later
