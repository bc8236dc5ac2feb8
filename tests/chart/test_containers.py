"""Every container of the rendered chart, as a process: on Kafka behind SASL and TLS, a Valkey user, a double of AWS."""

import asyncio
import json
import secrets
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.aws import CREDENTIALS, REGION, AwsPlace, controlled
from tests.chart.charts import SMALL, Values, merged, of_kind, rendered
from tests.chart.machine import Machine, Ran, machine
from tests.doubles import OpenAIDouble, aws_double, openai_double
from tests.secure import USER, SecureStores, secure_stores
from tools.kafka.broker import free_ports

pytestmark = pytest.mark.timeout(400)

PRICE = {"input": "0.1", "output": "0.4"}
KEY = "pm-" + secrets.token_urlsafe(32)
CLOUD = "eu.model-v1:0"
LONGEST_S = 40  # of a call: the graces follow


@dataclass(frozen=True, slots=True)
class Around:
    """What an operator brings."""

    stores: SecureStores
    models: OpenAIDouble
    aws: str
    endpoint: AwsPlace


@dataclass(frozen=True, slots=True)
class Release:
    """What runs, and what became of the setup."""

    machine: Machine
    setup: dict[str, Ran]

    @property
    def http_port(self) -> int:
        [port] = of_kind(self.machine.objects, "Service")["http"]["spec"]["ports"]
        return int(port["port"])


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Generator[Around]:
    """One of each, for all tests here."""
    folder = tmp_path_factory.mktemp("stores")
    with secure_stores(folder) as stores, openai_double() as models, aws_double() as aws:
        controlled(aws, "bedrock/model", {"model": CLOUD, "upstream": f"{models.url}/v1"})
        yield Around(stores, models, aws, AwsPlace.made(aws, f"{models.url}/v1/chat/completions"))


@pytest.fixture(scope="module")
def values(around: Around) -> Values:
    """All kinds of processes. Ports are this machine's, one for each; all else is what a cluster would have."""
    http, sweeper, inbox, *others = free_ports(9)
    workers, collectors = others[:4], others[4:]
    stores, at = around.stores, around.endpoint
    return {
        "config": {
            "log": f"kafka://{stores.kafka}",
            "redis": f"rediss://{USER}:${{REDIS_PASSWORD}}@{stores.redis}/0",
            "objects": f"s3://{at.bucket}/pointsman",
            "board": {"ca_file": "/tls/ca/ca.crt"},
            "kafka": {
                "partitions": 2,
                "security": "sasl_ssl",
                "username": USER,
                "password": "${KAFKA_PASSWORD}",
                "ca_file": "/tls/ca/ca.crt",
            },
            "deployments": _deployments(around),
        },
        "workers": [
            {"backend": "gpu", "port": workers[0], "keda": {"enabled": True}},
            {"backend": "sagemaker", "port": workers[1]},
            {"backend": "bedrock", "port": workers[2]},
            {"backend": "echo", "port": workers[3]},
        ],
        "collectors": {"backends": {"sagemaker": {"port": collectors[0]}, "bedrock": {"port": collectors[1]}}},
        "inbox": {"enabled": True, "port": inbox},
        "http": {"port": http, "service": {"port": http}},
        "sweeper": {"port": sweeper},
        "bindAddress": "127.0.0.1",
        "env": {"AWS_REGION": REGION, "AWS_ENDPOINT_URL": at.url, "AWS_ALLOW_HTTP": "true"},
        "secretEnv": {
            "REDIS_PASSWORD": {"secret": "pointsman", "key": "password"},
            "KAFKA_PASSWORD": {"secret": "pointsman", "key": "password"},
            **{name: {"secret": "aws", "key": name} for name in CREDENTIALS},
        },
        "mounts": {"ca": {"secret": "ca", "path": "/tls/ca"}},
        "setup": {"apiKeys": [{"secret": "pointsman", "key": "api-key", "tenant": "default", "name": "test"}]},
        "test": {"apiKey": {"secret": "pointsman", "key": "api-key"}, "model": "light"},
    }


@pytest.fixture(scope="module")
def release(around: Around, values: Values, tmp_path_factory: pytest.TempPathFactory) -> Generator[Release]:
    """Set up, started and ready."""
    ours = {
        "pointsman": {"password": around.stores.password, "api-key": KEY},
        "ca": {"ca.crt": around.stores.ca_file.read_text(encoding="ascii")},
        "aws": dict(CREDENTIALS),
    }
    with machine(rendered(values), ours, tmp_path_factory.mktemp("release")) as running:

        async def up() -> dict[str, Ran]:
            ran = await running.run("Job/pm-pointsman-setup")
            assert not any(each.code for each in ran.values()), ran
            running.start()
            await asyncio.gather(*(each.ready() for each in running.running.values()))
            return ran

        yield Release(running, asyncio.run(up()))


async def test_everything_becomes_ready_by_its_own_probes(release: Release) -> None:
    assert release.machine.running.keys() == {
        f"pm-pointsman-{name}"
        for name in (
            "http",
            "sweeper",
            "inbox",
            "worker-gpu",
            "worker-sagemaker",
            "worker-bedrock",
            "worker-echo",
            "collector-sagemaker",
            "collector-bedrock",
        )
    }
    assert list(release.setup) == ["check", "topics", "key-0"]


async def test_the_job_of_helm_test_passes(release: Release) -> None:
    ran = await release.machine.run("Pod/pm-pointsman-test")

    assert ran["submit"].code == 0, ran
    answers = release.machine.folder_of("Pod/pm-pointsman-test", "/tmp") / "answers.jsonl"
    [line] = [json.loads(each) for each in answers.read_text(encoding="utf-8").splitlines()]
    assert line["custom_id"] == "helm-test"
    assert line["response"]["body"]["choices"][0]["message"]["content"]


@pytest.mark.parametrize("deployment", ["light", "patient", "cloud", "echo"])
async def test_every_worker_does_its_jobs(release: Release, deployment: str) -> None:
    async with _client(release) as client:
        answer = await client.chat.completions.create(
            model=deployment, messages=[{"role": "user", "content": "Say hello."}], max_tokens=20
        )

    assert answer.choices[0].message.content


async def test_what_keda_asks_for_is_answered(release: Release) -> None:
    [scaled] = of_kind(release.machine.objects, "ScaledObject").values()
    asked = [each["metadata"] for each in scaled["spec"]["triggers"] if each["type"] == "metrics-api"]

    assert len(asked) == 2
    for each in asked:
        answer = await asyncio.to_thread(_json, release.machine.address(each["url"]))
        assert answer[each["valueLocation"]] >= 0


def test_no_secret_is_on_a_command_line_or_in_a_log(release: Release, around: Around) -> None:
    for name, each in release.machine.running.items():
        shown = Path(f"/proc/{each.popen.pid}/cmdline").read_bytes() + each.output.read_bytes()
        for secret in (around.stores.password, KEY):
            assert secret.encode() not in shown, name
    for name, ran in release.setup.items():
        assert around.stores.password not in ran.output and KEY not in ran.output, name


async def test_a_stream_ends_whole_though_all_pods_are_told_to_stop_and_all_end_in_their_grace(
    release: Release, around: Around
) -> None:
    """Last of all: nothing runs after it."""
    async with _client(release) as client:
        stream = await client.chat.completions.create(
            model="heavy", messages=[{"role": "user", "content": "Go on."}], stream=True, max_tokens=200
        )
        words = [await anext(stream)]
        release.machine.terminate()
        words += [each async for each in stream]
    took = await asyncio.gather(*(each.ended() for each in release.machine.running.values()))

    assert words[-1].choices[0].finish_reason == "stop"
    assert sum(len((each.choices[0].delta.content or "").split()) for each in words) == 40
    assert len(took) == len(release.machine.running)


async def test_bad_settings_stop_it_before_topics_are_made(tmp_path: Path) -> None:
    deployment = {"backend": "echo", "model": "m", "tier": "light", "fallback": ["nobody"]}
    objects = rendered(merged(SMALL, {"config": {"deployments": {"light": deployment}}}))
    with machine(objects, {}, tmp_path) as here:
        ran = await here.run("Job/pm-pointsman-setup")

    assert list(ran) == ["check"]
    assert ran["check"].code == 1
    assert "names nobody, which is no deployment" in ran["check"].output


def _deployments(around: Around) -> dict[str, Any]:
    at = around.endpoint
    timeouts = {"connect_s": 4, "first_token_s": 20, "read_s": 30, "total_s": LONGEST_S}
    common = {"tier": "light", "timeouts": timeouts, "price": PRICE}
    gpu = {**common, "backend": "gpu", "url": f"{around.models.url}/v1"}
    sagemaker = {"region": REGION, "queue": at.queue, "inputs": f"s3://{at.bucket}/in", "aws_url": at.url}
    shipping = {"role": "arn:aws:iam::123456789012:role/batch", "place": f"s3://{at.bucket}/batches"}
    bedrock = {"region": REGION, "aws_url": at.url, "shipping": shipping}
    return {
        "light": {**gpu, "model": "well"},
        "heavy": {**gpu, "model": "pace-100+words-40", "tier": "heavy"},
        "patient": {**common, "backend": "sagemaker", "model": at.name, "sagemaker": sagemaker},
        "cloud": {**common, "backend": "bedrock", "model": CLOUD, "bedrock": bedrock},
        "echo": {**common, "backend": "echo", "model": "m"},
    }


def _json(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def _client(release: Release) -> openai.AsyncOpenAI:
    url = release.machine.address(f"http://pm-pointsman-http:{release.http_port}/v1")
    return openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=60)
