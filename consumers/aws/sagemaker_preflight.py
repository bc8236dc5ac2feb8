"""What is wrong with a SageMaker endpoint before the first job finds out: one line for each finding.

Most of these faults are silent: a role that may not write leaves neither a result nor an error. Nothing is changed,
but an object is put below `inputs` and taken away again, and a message goes through each topic to the queue.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from botocore.exceptions import BotoCoreError, ClientError

from consumers.aws.sagemaker_clients import words
from consumers.aws.sagemaker_figures import (
    COUNTS,
    FAULTS,
    LEVELS,
    NAMESPACE,
    NEVER_PUBLISHED,
    TIMES,
    WITHOUT_CAPACITY,
    Figure,
    dimensions,
    odd_unit,
)
from consumers.aws.sagemaker_notices import CANARY
from policies.deployments import Deployment, SageMaker

CANARY_S = 20.0
DAY = timedelta(days=1)
AWS_KEY = "alias/aws/sqs"  # a queue on it takes nothing from a topic, as its policy cannot be changed


@dataclass(frozen=True, slots=True)
class Trouble:
    """`is_error`: jobs will be lost sight of or fail; else they may be slow, dear or hard to see."""

    is_error: bool
    message: str


class Preflight:
    """Checks one deployment. `client` gives AWS' client of a service by its name."""

    def __init__(
        self, deployment: Deployment, place: SageMaker, client: Callable[[str], Any], *, canary_s: float = CANARY_S
    ) -> None:
        self._name = deployment.model
        self._has_price = deployment.price is not None
        self._place = place
        self._client = client
        self._canary_s = canary_s

    def troubles(self) -> Iterator[Trouble]:
        """All that is found. What AWS refuses to show is found as well, and the rest goes on."""
        if not self._has_price:
            yield Trouble(False, "no price: its jobs' dollars are unknown, never 0")
        try:
            endpoint = self._client("sagemaker").describe_endpoint(EndpointName=self._name)
            config = self._client("sagemaker").describe_endpoint_config(
                EndpointConfigName=endpoint["EndpointConfigName"]
            )
        except (ClientError, BotoCoreError) as error:
            yield Trouble(True, f"the endpoint cannot be seen: {words(error)}")
            return
        if endpoint["EndpointStatus"] != "InService":
            yield Trouble(True, f"the endpoint is {endpoint['EndpointStatus']}, not InService")
        asynchronous = config.get("AsyncInferenceConfig")
        if bool(asynchronous) == self._place.is_realtime:
            kind = "asynchronous" if asynchronous else "synchronous"
            yield Trouble(True, f"the endpoint is {kind}: sagemaker.realtime must be {str(not asynchronous).lower()}")
        if not asynchronous:
            return
        output = asynchronous["OutputConfig"]
        checks: tuple[tuple[str, Callable[[], Iterator[Trouble]]], ...] = (
            ("its configuration", partial(self._of_config, asynchronous)),
            ("its key", partial(self._of_key, output)),
            ("its places in S3", partial(self._of_places, output)),
            ("its queue and topics", partial(self._of_messages, output.get("NotificationConfig", {}))),
            ("its metrics", partial(self._of_figures, endpoint)),
            ("its scaling", partial(self._of_scaling, endpoint)),
        )
        for what, check in checks:
            try:
                yield from check()
            except ClientError as error:  # what may not be looked at may well be in order
                yield Trouble(not _is_refused(error), f"{what} could not be checked: {words(error)}")
            except BotoCoreError as error:
                yield Trouble(True, f"{what} could not be checked: {words(error)}")

    def _of_config(self, config: Mapping[str, Any]) -> Iterator[Trouble]:
        if not config["OutputConfig"].get("S3FailurePath"):
            yield Trouble(True, "S3FailurePath is not set: a failure leaves nothing that can be found by looking")
        if not config.get("ClientConfig", {}).get("MaxConcurrentInvocationsPerInstance"):
            yield Trouble(
                False, "MaxConcurrentInvocationsPerInstance is not set: set what the model server really takes"
            )

    def _of_key(self, output: Mapping[str, Any]) -> Iterator[Trouble]:
        if output.get("KmsKeyId"):
            state = self._client("kms").describe_key(KeyId=output["KmsKeyId"])["KeyMetadata"]["KeyState"]
            if state != "Enabled":
                yield Trouble(True, f"the key of its output is {state}: nothing can be written or read")

    def _of_places(self, output: Mapping[str, Any]) -> Iterator[Trouble]:
        s3 = self._client("s3")
        for name in ("S3OutputPath", "S3FailurePath"):
            if output.get(name):
                bucket, key = _split(output[name])
                status = _status(partial(s3.head_object, Bucket=bucket, Key=f"{key}/{uuid4().hex}"))
                if status == 403:
                    yield Trouble(
                        True, f"{name}: S3 says 403 for a key that is not there: grant s3:ListBucket on {bucket}"
                    )
                elif status != 404:
                    yield Trouble(True, f"{name}: {bucket} cannot be read (status {status})")
        if not self._place.inputs:
            yield Trouble(False, "sagemaker.inputs is not set: bodies over 128,000 bytes will fail")
            return
        bucket, key = _split(self._place.inputs)
        probe = f"{key.rstrip('/')}/pointsman-check-{uuid4().hex}".lstrip("/")
        status = _status(partial(s3.put_object, Bucket=bucket, Key=probe, Body=b""))
        if status != 200:
            yield Trouble(True, f"inputs: {bucket} cannot be written (status {status}): grant s3:PutObject")
        else:
            s3.delete_object(Bucket=bucket, Key=probe)

    def _of_messages(self, config: Mapping[str, Any]) -> Iterator[Trouble]:
        if not self._place.queue:
            yield Trouble(False, "sagemaker.queue is not set: results are looked for in S3, which is slower")
            return
        sqs, sns = self._client("sqs"), self._client("sns")
        queue = sqs.get_queue_attributes(QueueUrl=self._place.queue, AttributeNames=["All"])["Attributes"]
        if queue.get("KmsMasterKeyId") == AWS_KEY:
            yield Trouble(
                True,
                f"the queue's key is {AWS_KEY}, with which no topic can reach it: use SSE-SQS or a key of your own",
            )
        if int(queue.get("VisibilityTimeout", 30)) > 900:
            yield Trouble(False, "the queue hides a message for more than 15 minutes after a collector died with it")
        for name in ("SuccessTopic", "ErrorTopic"):
            topic = config.get(name)
            if not topic:
                yield Trouble(True, f"{name} is not set: no message will come, and each result is found by looking")
                continue
            found = sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
            if not any(each["Endpoint"] == queue["QueueArn"] for each in found):
                yield Trouble(True, f"{name}: the queue is not subscribed to it")
                continue
            arrived, others = self._arrives(topic)
            if not arrived:
                yield Trouble(
                    not others,  # behind many others' messages it may only be late
                    f"{name}: a message did not reach the queue in {self._canary_s:.0f} s"
                    f" ({others} others did): see the queue's policy and its key, and the subscription's filter",
                )

    def _arrives(self, topic: str) -> tuple[bool, int]:
        """Whether a message of ours comes through, and how many others came, which are put back."""
        sns, sqs, mark = self._client("sns"), self._client("sqs"), uuid4().hex
        sns.publish(TopicArn=topic, Message=json.dumps({CANARY: mark}))
        ends, others = time.monotonic() + self._canary_s, 0
        while time.monotonic() < ends:
            found = sqs.receive_message(QueueUrl=self._place.queue, MaxNumberOfMessages=10, WaitTimeSeconds=2)
            for message in found.get("Messages", []):
                if mark in message["Body"]:
                    sqs.delete_message(QueueUrl=self._place.queue, ReceiptHandle=message["ReceiptHandle"])
                    return True, others
                others += 1
                sqs.change_message_visibility(
                    QueueUrl=self._place.queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
                )
        return False, others

    def _of_figures(self, endpoint: Mapping[str, Any]) -> Iterator[Trouble]:
        """What failed silently during the last day."""
        for variant in endpoint.get("ProductionVariants", []):
            name = variant["VariantName"]
            for figure in COUNTS:
                failed = sum(point["Sum"] for point in self._last_day(figure, name))
                if failed:
                    yield Trouble(True, f"{figure.name}: {failed:.0f} in the last day: {FAULTS[figure.name]}")
            for figure in TIMES:
                unit = odd_unit(figure, self._last_day(figure, name))
                if unit is not None:
                    yield Trouble(False, f"{figure.name} is in {unit} and documented in {figure.unit}: read graphs so")
            yield from self._deaf_alarms(name)

    def _last_day(self, figure: Figure, variant: str) -> Sequence[Any]:
        now = datetime.now(UTC)
        found = self._client("cloudwatch").get_metric_statistics(
            Namespace=NAMESPACE,
            MetricName=figure.name,
            Dimensions=dimensions(self._name, variant),
            StartTime=now - DAY,
            EndTime=now + timedelta(minutes=1),
            Period=int(DAY.total_seconds()),
            Statistics=[figure.statistic],
        )
        return list(found["Datapoints"])

    def _deaf_alarms(self, variant: str) -> Iterator[Trouble]:
        """Alarms of the operator's on series that stay empty, and so never ring."""
        backlogs = [figure.name for figure in LEVELS if not figure.of_variant]
        wrong = [(name, variant, "is only by EndpointName, without VariantName") for name in backlogs]
        others = [figure.name for figure in (*LEVELS, *COUNTS) if figure.of_variant]
        wrong += [(name, "", "is only by EndpointName and VariantName") for name in others]
        wrong += [(name, each, "is not published") for name in NEVER_PUBLISHED for each in ("", variant)]
        for metric, of_variant, why in wrong:
            for alarm in self._alarms(metric, of_variant):
                yield Trouble(False, f"the alarm {alarm['AlarmName']} never rings: {metric} {why}")

    def _alarms(self, metric: str, variant: str) -> Iterator[Mapping[str, Any]]:
        wanted = dimensions(self._name, variant)
        found = self._client("cloudwatch").describe_alarms_for_metric(
            Namespace=NAMESPACE, MetricName=metric, Dimensions=wanted
        )
        for alarm in found["MetricAlarms"]:
            if sorted(each["Name"] + each["Value"] for each in alarm["Dimensions"]) == sorted(
                each["Name"] + each["Value"] for each in wanted
            ):
                yield alarm

    def _of_scaling(self, endpoint: Mapping[str, Any]) -> Iterator[Trouble]:
        client = self._client("application-autoscaling")
        for variant in endpoint.get("ProductionVariants", []):
            at = f"endpoint/{self._name}/variant/{variant['VariantName']}"
            targets = client.describe_scalable_targets(ServiceNamespace="sagemaker", ResourceIds=[at])[
                "ScalableTargets"
            ]
            policies = client.describe_scaling_policies(ServiceNamespace="sagemaker", ResourceId=at)["ScalingPolicies"]
            least = targets[0]["MinCapacity"] if targets else None
            steps = [policy["PolicyARN"] for policy in policies if policy["PolicyType"] == "StepScaling"]
            rung = [arn for alarm in self._alarms(WITHOUT_CAPACITY.name, "") for arn in alarm["AlarmActions"]]
            if least == 0 and steps and not set(steps) & set(rung):
                yield Trouble(
                    True,
                    f"no alarm on {WITHOUT_CAPACITY.name} has its step policy as its action: nothing starts the first"
                    f" instance. `pointsman sagemaker scaling {self._name} --apply` makes it",
                )
            if least == 0 and not steps:
                yield Trouble(
                    True,
                    "it scales to zero without a step policy on HasBacklogWithoutCapacity: nothing starts the first"
                    f" instance. `pointsman sagemaker scaling {self._name} --apply` makes both policies",
                )
            if least is None and variant.get("CurrentInstanceCount") == 0:
                yield Trouble(True, "it has no instance and nothing that would start one")
            for policy in policies:
                cooldown = policy.get("TargetTrackingScalingPolicyConfiguration", {}).get("ScaleInCooldown")
                if cooldown is not None and cooldown < self._place.invocation_timeout_s:
                    yield Trouble(
                        False,
                        f"its scale-in cool-down of {cooldown} s is shorter than a run may take"
                        f" ({self._place.invocation_timeout_s} s): jobs may die when it scales in",
                    )


def _is_refused(error: ClientError) -> bool:
    code = str(error.response.get("Error", {}).get("Code", ""))
    return code in ("403", "Forbidden") or any(word in code for word in ("AccessDenied", "Authoriz"))


def _status(act: Callable[[], Any]) -> int:
    try:
        answer = act()
    except ClientError as error:
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return int(answer["ResponseMetadata"]["HTTPStatusCode"])


def _split(at: str) -> tuple[str, str]:
    bucket, _, key = at.removeprefix("s3://").partition("/")
    return bucket, key.rstrip("/")
