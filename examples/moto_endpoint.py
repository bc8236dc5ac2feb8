"""Make an asynchronous SageMaker endpoint at moto, a cloud on this machine, for `docker compose --profile sagemaker`.

    python examples/moto_endpoint.py http://127.0.0.1:5000

moto runs no container: it answers the next thousand calls with one sentence. Safe to repeat.
"""

import json
import sys
import urllib.request
from typing import Any

import boto3
from botocore.exceptions import ClientError

NAME, BUCKET, ANSWERS = "pointsman-try", "pointsman-try", 1000


def main(url: str) -> None:
    """Bucket, model, endpoint; then what it answers."""

    def client(name: str) -> Any:
        return boto3.client(name, endpoint_url=url, region_name="us-east-1")

    client("s3").create_bucket(Bucket=BUCKET)
    sagemaker = client("sagemaker")
    try:
        sagemaker.describe_endpoint(EndpointName=NAME)
    except ClientError:
        role, variant = "arn:aws:iam::123456789012:role/try", {"VariantName": "AllTraffic", "ModelName": NAME}
        sagemaker.create_model(ModelName=NAME, ExecutionRoleArn=role, PrimaryContainer={"Image": "none"})
        sagemaker.create_endpoint_config(
            EndpointConfigName=NAME,
            ProductionVariants=[{**variant, "InstanceType": "ml.g4dn.xlarge", "InitialInstanceCount": 1}],
            AsyncInferenceConfig={"OutputConfig": {"S3OutputPath": f"s3://{BUCKET}/out"}},
        )
        sagemaker.create_endpoint(EndpointName=NAME, EndpointConfigName=NAME)
    say = {"role": "assistant", "content": "A real endpoint would have run your prompt."}
    answer = {
        "id": "chatcmpl-moto",
        "object": "chat.completion",
        "created": 0,
        "model": NAME,
        "choices": [{"index": 0, "message": say, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17},
    }
    results = {"results": [{"data": json.dumps(answer)}] * ANSWERS}
    request = urllib.request.Request(
        f"{url}/moto-api/static/sagemaker/async-endpoint-results",
        json.dumps(results).encode(),
        {"content-type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=30).close()


if __name__ == "__main__":
    main(sys.argv[1])
