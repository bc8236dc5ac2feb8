"""What a test has at the double of AWS: buckets, a queue that two topics feed, and endpoints."""

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import boto3

from policies.deployments import Deployment, PayloadFormat, SageMaker

REGION = "us-east-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "double", "AWS_SECRET_ACCESS_KEY": "double"}


def controlled(url: str, path: str, given: object = None) -> Any:
    """Set or read the double at that address."""
    with urllib.request.urlopen(f"{url}/double/{path}", data=json.dumps(given).encode(), timeout=30) as answer:
        return json.load(answer)


@dataclass(frozen=True, slots=True)
class AwsPlace:
    """One endpoint at the double, with all that belongs to it."""

    url: str
    name: str
    bucket: str
    queue: str
    notifies: bool = True

    @classmethod
    def made(
        cls,
        url: str,
        container: str,
        *,
        concurrency: int = 8,
        has_failures: bool = True,
        is_realtime: bool = False,
        key: str = "",
    ) -> "AwsPlace":
        """Make an endpoint whose container is at that address."""
        name = f"e-{uuid4().hex[:12]}"
        place = cls(url, name, f"b-{name}", "")
        place.client("s3").create_bucket(Bucket=place.bucket)
        queue: str = place.client("sqs").create_queue(QueueName=name)["QueueUrl"]
        place = replace(place, queue=queue)
        output: dict[str, Any] = {"S3OutputPath": f"s3://{place.bucket}/out"}
        if has_failures:
            output["S3FailurePath"] = f"s3://{place.bucket}/failures"
        if key:
            output["KmsKeyId"] = key
        output["NotificationConfig"] = {"SuccessTopic": place._topic("ok"), "ErrorTopic": place._topic("errors")}
        asynchronous = {"ClientConfig": {"MaxConcurrentInvocationsPerInstance": concurrency}, "OutputConfig": output}
        control = place.client("sagemaker")
        control.create_model(
            ModelName=name, ExecutionRoleArn="arn:aws:iam::123456789012:role/r", PrimaryContainer={"Image": "image"}
        )
        control.create_endpoint_config(
            EndpointConfigName=name,
            ProductionVariants=[
                {
                    "VariantName": "AllTraffic",
                    "ModelName": name,
                    "InstanceType": "ml.g4dn.xlarge",
                    "InitialInstanceCount": 1,
                }
            ],
            **({} if is_realtime else {"AsyncInferenceConfig": asynchronous}),
        )
        control.create_endpoint(EndpointName=name, EndpointConfigName=name)
        place.control("endpoint", {"name": name, "container": container})
        return place

    def client(self, name: str) -> Any:
        """A client of AWS' own library at the double."""
        return boto3.client(
            name,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id="double",
            aws_secret_access_key="double",
        )

    def control(self, path: str, given: object = None) -> Any:
        """Set or read the double."""
        return controlled(self.url, path, given)

    async def turn(self, **knobs: object) -> None:
        """Change what the endpoint does."""
        await asyncio.to_thread(self.control, "endpoint", {"name": self.name, **knobs})

    async def invocations(self) -> list[Mapping[str, Any]]:
        """The double's own record of this endpoint."""
        record = await asyncio.to_thread(self.control, "record")
        return [each for each in record if each["endpoint"] == self.name]

    async def messages_left(self) -> int:
        """How many messages lie in the queue or were taken and not acknowledged."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        sqs = self.client("sqs")
        found = await asyncio.to_thread(sqs.get_queue_attributes, QueueUrl=self.queue, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)

    def deployment(self, like: Deployment, *, listens: bool = True, payload: str = "openai") -> Deployment:
        """The same deployment, at this endpoint."""
        sagemaker = SageMaker(
            region=REGION,
            inputs=f"s3://{self.bucket}/in",
            queue=self.queue if listens else "",
            payload=PayloadFormat(payload),
            aws_url=self.url,
        )
        return replace(like, model=self.name, sagemaker=sagemaker)

    def _topic(self, kind: str) -> str:
        sns, sqs = self.client("sns"), self.client("sqs")
        topic: str = sns.create_topic(Name=f"{self.name}-{kind}")["TopicArn"]
        queue = sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        raw = {"RawMessageDelivery": "true"}
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue, Attributes=raw)
        return topic
