"""What SageMaker tells CloudWatch of an asynchronous endpoint, in our units, and what is wrong with it: no I/O.

Backlogs have the endpoint as their only dimension, all others the variant too. `Invocations` and `OverheadLatency` are
not published for such endpoints. `ModelLatency` and `TimeInBacklog` are microseconds, `TotalProcessingTime` is
milliseconds: CloudWatch says the unit with each value, and that is believed before this table. (Developer guide,
"Alarms and logs for tracking metrics from asynchronous endpoints".)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict

NAMESPACE = "AWS/SageMaker"
PERIOD_S = 60
SECONDS: Mapping[str, float] = {"Microseconds": 1e-6, "Milliseconds": 1e-3, "Seconds": 1.0}


@dataclass(frozen=True, slots=True)
class Figure:
    """One of AWS' metrics. `unit` is the documented one."""

    name: str
    statistic: Literal["Average", "Maximum", "Sum"]
    unit: str
    of_variant: bool = True


class Datapoint(TypedDict, total=False):
    """As CloudWatch gives it, with its statistic under the statistic's name."""

    Timestamp: datetime
    Unit: str
    Average: float
    Maximum: float
    Sum: float


BACKLOG = Figure("ApproximateBacklogSize", "Maximum", "Count", of_variant=False)
PER_INSTANCE = Figure("ApproximateBacklogSizePerInstance", "Average", "Count", of_variant=False)
WITHOUT_CAPACITY = Figure("HasBacklogWithoutCapacity", "Maximum", "Count", of_variant=False)
IN_BACKLOG = Figure("TimeInBacklog", "Average", "Microseconds")
PROCESSING = Figure("TotalProcessingTime", "Average", "Milliseconds")
LATENCY = Figure("ModelLatency", "Average", "Microseconds")
LEVELS = (BACKLOG, PER_INSTANCE, WITHOUT_CAPACITY, IN_BACKLOG, PROCESSING, LATENCY)

FAULTS: Mapping[str, str] = {
    "ExpiredRequests": "calls wait there longer than sagemaker.request_ttl_s: more instances, or one at all",
    "NotificationFailures": "the endpoint's role may not publish to its topics, or not use their key: grant sns:Publish"
    " (and kms:GenerateDataKey*)",
    "ResponseUploadFailures": "the endpoint's role may not write its output: grant s3:PutObject"
    " (and kms:GenerateDataKey)",
    "RequestDownloadFailures": "the endpoint's role may not read its input: grant s3:GetObject (and kms:Decrypt)",
}
TIMES = (IN_BACKLOG, PROCESSING, LATENCY)
NEVER_PUBLISHED = ("Invocations", "OverheadLatency")  # of an asynchronous endpoint
COUNTS = tuple(Figure(name, "Sum", "Count") for name in FAULTS)


def level(figure: Figure, points: Iterable[Datapoint]) -> float | None:
    """The newest value, times in seconds; None where there is none, which is not 0."""
    newest = max(points, key=lambda point: point["Timestamp"], default=None)
    return None if newest is None else newest[figure.statistic] * _scale(figure, newest)


def counted(points: Iterable[Datapoint], *, since: datetime, until: datetime) -> float:
    """How many there were in the minutes that began from `since` on and were over at `until`."""
    return sum(point["Sum"] for point in points if since <= point["Timestamp"] < until)


def odd_unit(figure: Figure, points: Iterable[Datapoint]) -> str | None:
    """A unit of CloudWatch's that is not the documented one: whoever reads its graphs by the documents is wrong."""
    return next((unit for point in points if (unit := point.get("Unit")) and unit != figure.unit), None)


def dimensions(endpoint: str, variant: str = "") -> list[dict[str, str]]:
    """Of the endpoint's series, or of its variant's, which are others."""
    found = [{"Name": "EndpointName", "Value": endpoint}]
    return [*found, {"Name": "VariantName", "Value": variant}] if variant else found


def _scale(figure: Figure, point: Datapoint) -> float:
    return SECONDS.get(point.get("Unit") or figure.unit, 1.0)
