"""The official SDK against `pointsman up`, with an endpoint at a DOUBLE of AWS whose container is a real model."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest

from tests import model
from tests.acceptance.processes import Pointsman, Process, pointsman
from tests.aws import CREDENTIALS, REGION, AwsPlace
from tests.doubles import aws_double
from tests.servers import unavailable
from tools.kafka.broker import free_ports

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pointsman, Process]]:
    if not model.is_installed():
        unavailable(model.MISSING)
    folder = tmp_path_factory.mktemp("sagemaker")
    with model.real_model() as container, aws_double() as aws:
        at = AwsPlace.made(aws, f"{container}/v1/chat/completions")
        with pointsman(folder, _settings(at, folder), **CREDENTIALS) as ours:
            [port] = free_ports(1)
            yield ours, asyncio.run(ours.up(port).ready())


def test_a_chat_waits_for_a_real_model_behind_an_asynchronous_endpoint_and_as_a_job(
    up: tuple[Pointsman, Process],
) -> None:
    ours, process = up
    client = ours.refusals.sdk(process.url, ours.key, max_retries=0)
    say: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]

    answer = client.chat.completions.create(model="patient", messages=say, max_tokens=12, temperature=0)
    taken = client.chat.completions.create(
        model="patient", messages=say, max_tokens=12, temperature=0, extra_body={"async": True}
    )
    job = cast(dict[str, Any], client.get(f"/jobs/{taken.id}?wait=60", cast_to=object))

    said = answer.choices[0].message.content
    assert answer.usage is not None and said
    assert job["status"] == "completed", job
    assert job["result"]["choices"][0]["message"]["content"] == said
    assert job["usage"]["completion_tokens"] == answer.usage.completion_tokens > 0
    assert job["usage"]["basis"] == "metered"
    spent = job["usage"]["prompt_tokens"] * Decimal("0.1") + job["usage"]["completion_tokens"] * Decimal("0.4")
    assert Decimal(job["pointsman"]["usd"]) == spent / 1_000_000


def _settings(at: AwsPlace, folder: Path) -> dict[str, Any]:
    deployment = {
        "backend": "sagemaker",
        "model": at.name,
        "tier": "light",
        "price": {"input": "0.1", "output": "0.4"},
        "sagemaker": {"region": REGION, "queue": at.queue, "inputs": f"s3://{at.bucket}/in", "aws_url": at.url},
    }
    return {"data": str(folder / "data"), "tenants": {"default": {}}, "deployments": {"patient": deployment}}
