"""Tells Application Auto Scaling how an endpoint scales."""

from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from consumers.aws.sagemaker_clients import AwsError, words
from consumers.aws.sagemaker_scaling import Scaling


def apply(plan: Scaling, client: Callable[[str], Any]) -> None:
    """Register the target, put both policies and the alarm. Safe to repeat, also after half of it. Raises `AwsError`.

    `client` gives AWS' client of a service by its name.
    """
    scaling = client("application-autoscaling")
    try:
        scaling.register_scalable_target(**plan.target)
        scaling.put_scaling_policy(**plan.tracking)
        step = scaling.put_scaling_policy(**plan.step)["PolicyARN"]
        client("cloudwatch").put_metric_alarm(**plan.alarm, AlarmActions=[step])
    except (ClientError, BotoCoreError) as error:
        raise AwsError(f"not all of it was applied; it is safe to repeat: {words(error)}") from error
