"""The promises of a backend once more, for Bedrock through a second, independent DOUBLE: MiniStack.

It has no errors to choose from, no tiers, no validation, and one piece for a whole answer; what it can do must hold
there as well. Where the server behind it is away it answers with a text of its own, as if all were well: the tests
compare texts, and count calls.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from consumers.aws.backend_bedrock import BedrockBackend
from consumers.backend import Answer
from policies.deployments import Bedrock, Deployment, Tier
from tests.aws import CREDENTIALS, REGION
from tests.builders import until
from tests.contracts.test_backend import (  # noqa: F401  # they run here, on this module's `subject`
    Subject,
    test_a_body_that_is_none_is_the_clients_fault,
    test_a_deployment_that_answers_is_fine,
    test_an_answer_is_a_whole_openai_object_under_our_names,
    test_an_error_of_the_listener_is_passed_on_as_it_is,
    test_calls_at_the_same_time_do_not_mix,
    test_choices_are_as_many_as_were_asked_for_or_refused,
    test_usage_in_the_object_is_the_usage_that_is_charged,
)
from tests.doubles import ROOT, OpenAIDouble, openai_double
from tests.servers import unavailable
from tools.kafka.broker import free_ports

MODEL = "anthropic.claude-3-haiku-20240307-v1:0"
SERVER = ROOT / ".venv-ministack" / "bin" / "ministack"
START_S = 60.0


@contextmanager
def ministack(upstream: str) -> Iterator[str]:
    """Its address. It ends with the block."""
    if not SERVER.exists():
        unavailable("there is no MiniStack: `make .venv-ministack/.locked` installs it")
    [port] = free_ports(1)
    environ = {
        **os.environ,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_BEDROCK_PROXY_URL": upstream,
    }
    with subprocess.Popen([SERVER], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


async def listens(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with suppress(OSError):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        return True
    return False


@pytest.fixture(scope="module")
def double() -> Iterator[OpenAIDouble]:
    with openai_double() as running:
        yield running


@pytest.fixture(scope="module")
def second(double: OpenAIDouble) -> Iterator[str]:
    with ministack(double.url) as url:
        yield url


@pytest.fixture
async def subject(second: str, double: OpenAIDouble, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Subject]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    await until(lambda: listens(second), within=START_S)
    deployment = Deployment(
        "light", "bedrock", MODEL, Tier.LIGHT, max_output=50, bedrock=Bedrock(region=REGION, aws_url=second)
    )
    async with BedrockBackend.open({"light": deployment}) as backend:
        yield Subject(backend, deployment, {}, "", lambda job: asyncio.sleep(0), takes_choices=False)


async def test_it_is_the_server_behind_that_answers_and_not_a_canned_text(
    subject: Subject, double: OpenAIDouble
) -> None:
    before = (await asyncio.to_thread(double.calls)).total

    answer = await subject.call("Hello there, world")

    assert said(answer) == "Hello there, world"
    assert (await asyncio.to_thread(double.calls)).total == before + 1


async def test_a_canned_text_would_fail_these_tests(subject: Subject) -> None:
    """Without a server behind it answers all the same, and with another text: what the test above would not take."""
    with ministack("http://127.0.0.1:1") as alone:
        await until(lambda: listens(alone), within=START_S)
        place = Bedrock(region=REGION, aws_url=alone)
        dead = replace(subject, deployment=replace(subject.deployment, bedrock=place))

        answer = await dead.call("Hello there, world")

    assert said(answer) != "Hello there, world"


def said(answer: Answer) -> str:
    text: str = json.loads(answer.body)["choices"][0]["message"]["content"]
    return text
