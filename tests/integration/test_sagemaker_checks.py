"""What `pointsman check --backend sagemaker` finds and `pointsman sagemaker scaling` does, through a DOUBLE of AWS.

One test for each silent failure of an asynchronous endpoint, and one for an endpoint that has none of them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from consumers.aws.sagemaker_clients import AwsClients
from consumers.aws.sagemaker_preflight import Preflight, Trouble
from gateway.cli import app
from policies.deployments import SageMaker
from tests.aws import REGION, AwsPlace
from tests.builders import a_deployment

pytestmark = pytest.mark.usefixtures("aws_credentials")

ROOT = Path(__file__).parents[2]
CLIENTS = AwsClients()  # they take longer to make than a check takes


@pytest.fixture
def at(aws: str) -> AwsPlace:
    return AwsPlace.made(aws, "http://127.0.0.1:1/never-called")


def troubles(at: AwsPlace, **changes: Any) -> list[Trouble]:
    deployment = at.deployment(a_deployment(price={"input": "1", "output": "2"}))
    assert deployment.sagemaker is not None
    place = SageMaker(**{**_fields(deployment.sagemaker), **changes})
    return list(Preflight(deployment, place, partial(CLIENTS.of, place), canary_s=3.0).troubles())


def errors(at: AwsPlace, **changes: Any) -> list[str]:
    return [each.message for each in troubles(at, **changes) if each.is_error]


def test_an_endpoint_in_order_has_no_findings_and_nothing_is_left_behind(at: AwsPlace) -> None:
    assert troubles(at) == []

    queue = at.client("sqs").get_queue_attributes(QueueUrl=at.queue, AttributeNames=["ApproximateNumberOfMessages"])
    assert queue["Attributes"]["ApproximateNumberOfMessages"] == "0"
    assert "Contents" not in at.client("s3").list_objects_v2(Bucket=at.bucket)


def test_an_endpoint_that_is_not_there_is_named(at: AwsPlace) -> None:
    at.client("sagemaker").delete_endpoint(EndpointName=at.name)

    [error] = errors(at)

    assert at.name in error


def test_a_kind_that_is_not_the_settings_kind_is_an_error(at: AwsPlace) -> None:
    [error] = errors(at, is_realtime=True, queue="", inputs="")

    assert "sagemaker.realtime must be false" in error


@pytest.mark.parametrize(
    ("figure", "grant"),
    [
        ("NotificationFailures", "sns:Publish"),
        ("ResponseUploadFailures", "s3:PutObject"),
        ("RequestDownloadFailures", "s3:GetObject"),
        ("ExpiredRequests", "more instances"),
    ],
)
def test_what_the_role_may_not_do_is_found_in_the_endpoint_s_own_metrics(at: AwsPlace, figure: str, grant: str) -> None:
    at.client("cloudwatch").put_metric_data(
        Namespace="AWS/SageMaker",
        MetricData=[{"MetricName": figure, "Value": 2, "Unit": "Count", "Dimensions": _dimensions(at)}],
    )

    [error] = errors(at)

    assert error.startswith(f"{figure}: 2 in the last day") and grant in error


def test_a_queue_on_the_key_of_aws_is_an_error_as_no_topic_reaches_it(at: AwsPlace) -> None:
    at.client("sqs").set_queue_attributes(QueueUrl=at.queue, Attributes={"KmsMasterKeyId": "alias/aws/sqs"})

    [error] = errors(at)

    assert "alias/aws/sqs" in error and "SSE-SQS" in error


def test_a_key_that_is_disabled_is_an_error(aws: str) -> None:
    key = CLIENTS.of(SageMaker(REGION, aws_url=aws), "kms").create_key()["KeyMetadata"]["KeyId"]
    at = AwsPlace.made(aws, "http://127.0.0.1:1/", key=key)
    assert errors(at) == []
    at.client("kms").disable_key(KeyId=key)

    [error] = errors(at)

    assert "Disabled" in error


def test_a_queue_that_no_topic_feeds_is_an_error(at: AwsPlace) -> None:
    sns = at.client("sns")
    for subscription in sns.list_subscriptions()["Subscriptions"]:
        if at.name in subscription["TopicArn"]:
            sns.unsubscribe(SubscriptionArn=subscription["SubscriptionArn"])

    assert [error.partition(":")[0] for error in errors(at)] == ["SuccessTopic", "ErrorTopic"]


def test_a_message_that_does_not_arrive_is_an_error(at: AwsPlace) -> None:
    sns = at.client("sns")
    for subscription in sns.list_subscriptions()["Subscriptions"]:
        if subscription["TopicArn"].endswith(f"{at.name}-errors"):
            sns.set_subscription_attributes(
                SubscriptionArn=subscription["SubscriptionArn"],
                AttributeName="FilterPolicy",
                AttributeValue=json.dumps({"nobody": ["sends this"]}),
            )

    [error] = errors(at)

    assert error.startswith("ErrorTopic: a message did not reach the queue")


def test_a_queue_that_is_not_there_is_an_error(at: AwsPlace) -> None:
    [error] = errors(at, queue=f"{at.queue}-nobody")

    assert error.startswith("its queue and topics could not be checked")


def test_an_endpoint_without_a_place_for_failures_is_an_error(aws: str) -> None:
    [error] = errors(AwsPlace.made(aws, "http://127.0.0.1:1/", has_failures=False))

    assert "S3FailurePath" in error


def test_a_bucket_that_says_403_of_a_missing_key_is_an_error(at: AwsPlace) -> None:
    at.control("endpoint", {"name": at.name, "hide_missing": True})

    found = errors(at)

    assert [error.partition(":")[0] for error in found] == ["S3OutputPath", "S3FailurePath"]
    assert all(f"grant s3:ListBucket on {at.bucket}" in error for error in found)


def test_a_bucket_for_inputs_that_is_not_there_is_an_error(at: AwsPlace) -> None:
    [error] = errors(at, inputs="s3://no-such-bucket-of-ours/in")

    assert "s3:PutObject" in error


def test_zero_instances_without_the_second_policy_are_an_error_until_it_is_applied(
    at: AwsPlace, tmp_path: Path
) -> None:
    scaling = at.client("application-autoscaling")
    scaling.register_scalable_target(
        ServiceNamespace="sagemaker",
        ResourceId=f"endpoint/{at.name}/variant/AllTraffic",
        ScalableDimension="sagemaker:variant:DesiredInstanceCount",
        MinCapacity=0,
        MaxCapacity=2,
    )
    [error] = errors(at)
    assert f"pointsman sagemaker scaling {at.name} --apply" in error

    for _ in range(2):  # it may be applied again
        done = run(_settings(at, tmp_path), "sagemaker", "scaling", at.name, "--most", "3", "--apply")
        assert done.exit_code == 0, done.output

    assert troubles(at) == []
    policies = scaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
    ours = {each["PolicyType"]: each for each in policies if at.name in each["ResourceId"]}
    [alarm] = at.client("cloudwatch").describe_alarms(AlarmNamePrefix=at.name)["MetricAlarms"]
    assert alarm["AlarmActions"] == [ours["StepScaling"]["PolicyARN"]]
    assert alarm["Dimensions"] == [{"Name": "EndpointName", "Value": at.name}]
    [target] = scaling.describe_scalable_targets(
        ServiceNamespace="sagemaker", ResourceIds=[f"endpoint/{at.name}/variant/AllTraffic"]
    )["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (0, 3)


def test_a_step_policy_that_no_alarm_rings_is_an_error(at: AwsPlace, tmp_path: Path) -> None:
    assert run(_settings(at, tmp_path), "sagemaker", "scaling", "patient", "--apply").exit_code == 0
    at.client("cloudwatch").delete_alarms(AlarmNames=[f"{at.name}-backlog-without-capacity"])

    [error] = errors(at)

    assert "no alarm on HasBacklogWithoutCapacity" in error and "--apply" in error


@pytest.mark.parametrize(
    ("metric", "by_variant", "why"),
    [
        ("Invocations", True, "is not published"),
        ("OverheadLatency", False, "is not published"),
        ("ApproximateBacklogSize", True, "is only by EndpointName, without VariantName"),
        ("ResponseUploadFailures", False, "is only by EndpointName and VariantName"),
    ],
)
def test_an_alarm_on_a_series_that_stays_empty_is_a_warning(
    at: AwsPlace, metric: str, by_variant: bool, why: str
) -> None:
    at.client("cloudwatch").put_metric_alarm(
        AlarmName="mine", Namespace="AWS/SageMaker", MetricName=metric, Dimensions=_dimensions(at)[: 1 + by_variant],
        Statistic="Sum", Period=60, EvaluationPeriods=1, Threshold=1.0, ComparisonOperator="GreaterThanThreshold",
    )  # fmt: skip

    found = [(each.is_error, each.message) for each in troubles(at)]
    at.client("cloudwatch").delete_alarms(AlarmNames=["mine"])

    assert found == [(False, f"the alarm mine never rings: {metric} {why}")]


def test_a_time_in_another_unit_than_the_documented_one_is_a_warning(at: AwsPlace) -> None:
    at.client("cloudwatch").put_metric_data(
        Namespace="AWS/SageMaker",
        MetricData=[{"MetricName": "TimeInBacklog", "Value": 2, "Unit": "Milliseconds", "Dimensions": _dimensions(at)}],
    )

    [trouble] = troubles(at)

    assert not trouble.is_error
    assert trouble.message.startswith("TimeInBacklog is in Milliseconds and documented in Microseconds")


def test_a_cool_down_shorter_than_a_run_is_a_warning(at: AwsPlace, tmp_path: Path) -> None:
    assert run(_settings(at, tmp_path), "sagemaker", "scaling", "patient", "--apply").exit_code == 0
    assert troubles(at, invocation_timeout_s=1_350) == []

    [trouble] = troubles(at, invocation_timeout_s=3_600)

    assert not trouble.is_error and "cool-down of 1350 s" in trouble.message


def test_a_plan_is_shown_with_its_reasons_and_changes_nothing(at: AwsPlace, tmp_path: Path) -> None:
    config = _settings(at, tmp_path)

    shown = json.loads(run(config, "sagemaker", "scaling", "patient", "--json").stdout)
    text = run(config, "sagemaker", "scaling", "patient").stdout

    assert shown["applied"] is False and len(shown["reasons"]) >= 4
    assert shown["register_scalable_target"]["MinCapacity"] == 0
    assert "Nothing was changed" in text and all(reason in text for reason in shown["reasons"])
    targets = at.client("application-autoscaling").describe_scalable_targets(ServiceNamespace="sagemaker")
    assert not [each for each in targets["ScalableTargets"] if at.name in each["ResourceId"]]


def test_an_endpoint_that_no_deployment_has_is_refused_with_those_that_there_are(at: AwsPlace, tmp_path: Path) -> None:
    done = run(_settings(at, tmp_path), "sagemaker", "scaling", "nobody")

    assert done.exit_code == 1 and "there are patient" in done.output


def test_the_check_says_each_finding_in_a_line_and_ends_with_1_for_errors(at: AwsPlace, tmp_path: Path) -> None:
    config = _settings(at, tmp_path)
    assert run(config, "check", "--backend", "sagemaker").exit_code == 0
    at.control("endpoint", {"name": at.name, "hide_missing": True})

    done = run(config, "check", "--backend", "sagemaker")

    assert done.exit_code == 1
    assert sum(line.startswith("error: deployments.patient: S3") for line in done.stdout.splitlines()) == 2


def test_without_aws_library_the_check_and_the_worker_say_what_to_install(at: AwsPlace, tmp_path: Path) -> None:
    config = _settings(at, tmp_path)
    without = "import sys; sys.modules['boto3'] = None; from gateway.cli import main; sys.argv[0] = 'pointsman'; main()"
    for command in (["check", "--backend", "sagemaker"], ["sagemaker", "scaling", "patient", "--apply"]):
        done = subprocess.run(
            [sys.executable, "-c", without, *command, "--config", str(config)],
            cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert "pip install '.[sagemaker]'" in done.stderr and "Traceback" not in done.stderr


def run(config: Path, *command: str) -> Result:
    return CliRunner().invoke(app, [*command, "--config", str(config)])


def _settings(at: AwsPlace, folder: Path) -> Path:
    deployment = {
        "backend": "sagemaker",
        "model": at.name,
        "tier": "heavy",
        "price": {"input": "1", "output": "2"},
        "sagemaker": {"region": REGION, "queue": at.queue, "inputs": f"s3://{at.bucket}/in", "aws_url": at.url},
    }
    path = folder / "pointsman.yaml"
    path.write_text(yaml.safe_dump({"deployments": {"patient": deployment}}), encoding="utf-8")
    return path


def _dimensions(at: AwsPlace) -> list[Mapping[str, str]]:
    return [{"Name": "EndpointName", "Value": at.name}, {"Name": "VariantName", "Value": "AllTraffic"}]


def _fields(place: SageMaker) -> dict[str, Any]:
    return {name: getattr(place, name) for name in place.__slots__}
