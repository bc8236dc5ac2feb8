"""Patient lines of a batch go out as a batch job of Bedrock, whose collector is killed: through a DOUBLE of AWS."""

import asyncio
import io
import json
import os
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import openai
import pytest

from tests.acceptance.processes import Pointsman, is_alive, kill, pointsman, until
from tests.aws import CREDENTIALS, REGION, controlled
from tests.doubles import OpenAIDouble, aws_double
from tools.kafka.broker import free_ports

LINES = int(os.environ.get("POINTSMAN_TEST_SHIPPED", "500"))
MODEL = "amazon.nova-micro-v1:0"
ROLE = "arn:aws:iam::123456789012:role/batch"
DONE_S = 120.0

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def aws(upstream: OpenAIDouble) -> Iterator[str]:
    with aws_double() as url:
        controlled(url, "bedrock/model", {"model": MODEL, "upstream": f"{upstream.url}/v1"})
        boto3.client("s3", endpoint_url=url, region_name=REGION, **_keys()).create_bucket(Bucket="ours")
        yield url


@pytest.fixture
def ours(tmp_path: Path, aws: str) -> Iterator[Pointsman]:
    shipping = {"role": ROLE, "place": "s3://ours/shipped", "min_records": 10, "quiet_s": 5.0}
    deployment = {
        "backend": "bedrock",
        "model": MODEL,
        "tier": "light",
        "price": MODEL,
        "limits": {"concurrency": 2},
        "bedrock": {"region": REGION, "aws_url": aws, "shipping": shipping},
    }
    settings = {
        "deployments": {"nova": deployment},
        "batches": {"open_lines": LINES},
        "tenants": {"default": {"max_unfinished": 2 * LINES, "max_in_class": 2 * LINES}},
    }
    with pointsman(tmp_path, settings, POINTSMAN_WORKER__LEASE_S="2", **CREDENTIALS) as ours:
        yield ours


async def test_a_killed_collector_loses_nothing_makes_no_second_batch_job_and_half_of_the_dollars_are_saved(
    ours: Pointsman, aws: str
) -> None:
    controlled(aws, "batches/role", {"role": ROLE, "least": 10, "hold": "InProgress", "lose_create_answers": 1})
    [port] = free_ports(1)
    up = await ours.up(port).ready()
    async with ours.refusals.async_sdk(up.url, ours.key, max_retries=0) as sdk:
        lines = "\n".join(json.dumps(_line(n)) for n in range(LINES))
        file = await sdk.files.create(file=("lines.jsonl", io.BytesIO(lines.encode())), purpose="batch")
        batch = await sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )

        await until(lambda: len(_jobs(aws)) > 0, "AWS has a batch job", within=DONE_S)
        await _killed(ours, up)
        controlled(aws, "batches/role", {"role": ROLE, "hold": ""})
        await _until_counted(sdk, batch.id, 1)
        await _killed(ours, up)
        ended = await _until_counted(sdk, batch.id, LINES)
        while ended.status != "completed":
            ended = await sdk.batches.retrieve(batch.id)
        assert ended.output_file_id is not None
        output = (await sdk.files.content(ended.output_file_id)).text

    answers = {each["custom_id"]: each["response"]["body"] for each in map(json.loads, output.splitlines())}
    assert len(answers) == LINES == output.count("\n")
    assert {_said(answers[f"line-{n}"]) == f"the words of line {n}" for n in range(LINES)} == {True}
    jobs = _jobs(aws)
    assert len({each["token"] for each in jobs}) == len(jobs)
    await until(lambda: all(each["phase"] == "over" for each in _shipments(ours)), "all is concluded", within=DONE_S)
    shipments = _shipments(ours)
    assert {each["batch_job"] for each in shipments} == {each["arn"] for each in jobs}
    assert sum(each["records"] for each in shipments) == sum(each["success_records"] for each in jobs) == LINES
    usd, usd_live = (sum(Decimal(each[name]) for each in shipments) for name in ("usd", "usd_live"))
    rows = [json.loads(row) for row in ours.command("costs", "--by", "tenant", *_json(ours)).splitlines()]
    assert sum(Decimal(row["usd"]) for row in rows) == usd == usd_live / 2 > 0


def _line(number: int) -> dict[str, Any]:
    body = {"model": "nova", "messages": [{"role": "user", "content": f"the words of line {number}"}]}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def _said(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def _killed(ours: Pointsman, up: Any) -> None:
    """`kill -9` of the collector; `up` starts another."""
    [collector] = [pid for pid, command in ours.children(up).items() if "serve collector" in command]
    kill(collector)
    await until(lambda: not is_alive(collector), "it is gone", within=10)


async def _until_counted(sdk: openai.AsyncOpenAI, batch: str, least: int) -> Any:
    ends = time.monotonic() + DONE_S
    while True:
        found = await sdk.batches.retrieve(batch)
        counts = found.request_counts
        assert counts is not None and counts.failed == 0
        if counts.completed >= least:
            return found
        assert time.monotonic() < ends, f"{counts}"
        await asyncio.sleep(0.05)


def _jobs(aws: str) -> list[Any]:
    found: list[Any] = controlled(aws, "batches/record")
    return found


def _shipments(ours: Pointsman) -> list[Any]:
    [deployment] = [json.loads(row) for row in ours.command("shipments", *_json(ours)).splitlines()]
    found: list[Any] = deployment["shipments"]
    return found


def _json(ours: Pointsman) -> tuple[str, ...]:
    return "--json", "--data", str(ours.data)


def _keys() -> dict[str, str]:
    return {name.lower(): value for name, value in CREDENTIALS.items()}
