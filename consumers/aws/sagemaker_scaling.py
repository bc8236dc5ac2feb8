"""How an asynchronous endpoint scales to zero and back: what Application Auto Scaling is told. No I/O.

Two policies are needed. The backlog per instance has no value while there is no instance, so target tracking alone
never starts the first one; the step on `HasBacklogWithoutCapacity` does that, and nothing else. (SageMaker
developer guide, "Autoscale an asynchronous endpoint".)
"""

from collections.abc import Mapping
from dataclasses import dataclass

from consumers.aws.sagemaker_figures import NAMESPACE

COUNT = "sagemaker:variant:DesiredInstanceCount"
COMES_S = 300  # how long an instance takes to come, about: no second decision before it can have helped
ALARM_S = 120  # two minutes in a row without capacity
COLD_S = float(ALARM_S + COMES_S)  # from the first call to the first instance, about
LONGER = 1.5  # of the longest run: what looks idle may still be at work


@dataclass(frozen=True, slots=True)
class Scaling:
    """What is registered, put and alarmed on, as keyword arguments of the services' own calls."""

    target: Mapping[str, object]
    tracking: Mapping[str, object]
    step: Mapping[str, object]
    alarm: Mapping[str, object]  # its action is the step policy, whose ARN is known once it is there


def scaling(
    endpoint: str, variant: str, *, most: int, backlog_per_instance: float, invocation_timeout_s: int
) -> Scaling:
    """From none to `most` instances. `backlog_per_instance`: as many calls as one is to have before it."""
    scaled = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{endpoint}/variant/{variant}",
        "ScalableDimension": COUNT,
    }
    idle_s = int(max(COMES_S, LONGER * invocation_timeout_s))
    of_endpoint = [{"Name": "EndpointName", "Value": endpoint}]
    return Scaling(
        target={**scaled, "MinCapacity": 0, "MaxCapacity": most},
        tracking={
            **scaled,
            "PolicyName": f"{endpoint}-backlog-per-instance",
            "PolicyType": "TargetTrackingScaling",
            "TargetTrackingScalingPolicyConfiguration": {
                "TargetValue": backlog_per_instance,
                "CustomizedMetricSpecification": {
                    "MetricName": "ApproximateBacklogSizePerInstance",
                    "Namespace": NAMESPACE,
                    "Dimensions": of_endpoint,
                    "Statistic": "Average",
                },
                "ScaleOutCooldown": COMES_S,
                "ScaleInCooldown": idle_s,
            },
        },
        step={
            **scaled,
            "PolicyName": f"{endpoint}-first-instance",
            "PolicyType": "StepScaling",
            "StepScalingPolicyConfiguration": {
                "AdjustmentType": "ChangeInCapacity",
                "MetricAggregationType": "Average",
                "Cooldown": COMES_S,
                "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
            },
        },
        alarm={
            "AlarmName": f"{endpoint}-backlog-without-capacity",
            "Namespace": NAMESPACE,
            "MetricName": "HasBacklogWithoutCapacity",
            "Dimensions": of_endpoint,
            "Statistic": "Average",
            "Period": 60,
            "EvaluationPeriods": 2,
            "DatapointsToAlarm": 2,
            "Threshold": 1.0,
            "ComparisonOperator": "GreaterThanOrEqualToThreshold",
            "TreatMissingData": "missing",
        },
    )


def reasons(plan: Scaling, *, invocation_timeout_s: int) -> tuple[str, ...]:
    """Why the figures are what they are, a line each."""
    tracking = plan.tracking["TargetTrackingScalingPolicyConfiguration"]
    assert isinstance(tracking, Mapping)
    return (
        "Two policies: the backlog per instance has no value without an instance, so the step starts the first one.",
        f"Scale-out cool-down {COMES_S} s: about as long as an instance takes to come.",
        f"Scale-in cool-down {tracking['ScaleInCooldown']} s: longer than the longest run"
        f" ({invocation_timeout_s} s), as what looks idle may still be at work.",
        f"The wait for the first instance is {ALARM_S} s of the alarm and the instance's start, {COLD_S:.0f} s in all.",
    )
