"""`pointsman check --backend bedrock` and `pointsman plan`, as operators run them, before a DOUBLE of AWS."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.aws import CREDENTIALS, REGION, controlled
from tests.doubles import ROOT, aws_double, openai_double

MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
PRICE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
GOOD = {
    "backend": "bedrock",
    "model": MODEL,
    "tier": "heavy",
    "price": PRICE,
    "max_output": 4096,
    "limits": {"requests_per_minute": 100, "tokens_per_minute": 400_000, "output_burndown": 5},
}


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    with aws_double() as url, openai_double() as server:
        controlled(url, "bedrock/model", {"model": MODEL, "upstream": server.url})
        yield url


def pointsman(folder: Path, deployments: dict[str, object], *arguments: str, **environ: str) -> tuple[int, str]:
    config = folder / "pointsman.yaml"
    config.write_text(json.dumps({"deployments": deployments}))
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments, "--config", str(config)],
        cwd=ROOT,
        env={**os.environ, **CREDENTIALS, "AWS_EC2_METADATA_DISABLED": "true", **environ},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_what_is_right_has_no_finding(aws: str, tmp_path: Path) -> None:
    deployment = {**GOOD, "bedrock": {"region": REGION, "aws_url": aws}}

    code, said = pointsman(tmp_path, {"good": deployment}, "check", "--backend", "bedrock")

    assert code == 0
    assert "deployments.good" not in said


def test_models_that_embed_or_film_are_asked_as_such(aws: str, tmp_path: Path) -> None:
    at, texts, films = {"region": REGION, "aws_url": aws}, "amazon.titan-embed-text-v2:0", "amazon.nova-reel-v1:1"
    controlled(aws, "bedrock/model", {"model": texts})
    keys = {name.lower(): value for name, value in CREDENTIALS.items()}
    boto3.client("s3", endpoint_url=aws, region_name=REGION, **keys).create_bucket(Bucket="films")
    limits = GOOD["limits"]
    film = {"backend": "bedrock", "model": films, "tier": "light", "price": films, "modalities": ["video_generation"]}
    deployments: dict[str, object] = {
        "embeds": {
            "backend": "bedrock",
            "model": texts,
            "tier": "light",
            "modalities": ["embedding"],
            "price": {"input": "0.02"},
            "limits": limits,
            "bedrock": at,
        },
        "films": {**film, "limits": limits, "bedrock": {**at, "videos": "s3://films/ours"}},
        "placeless": {**film, "limits": limits, "bedrock": {**at, "videos": "s3://nowhere-at-all/ours"}},
    }

    code, said = pointsman(tmp_path, deployments, "check", "--backend", "bedrock")

    assert code == 1
    assert [line for line in said.splitlines() if "error" in line] == [
        "error: deployments.placeless: placeless: 404: Not Found"
    ]
    assert len(controlled(aws, "bedrock/record", {"model": texts})) == 1
    assert controlled(aws, "videos/record") == []


def test_pictures_and_films_with_a_guardrail_are_refused_as_it_would_not_be_asked(aws: str, tmp_path: Path) -> None:
    at = {"region": REGION, "aws_url": aws, "guardrail": "grabc123"}
    deployment = {**GOOD, "modalities": ["image_generation"], "bedrock": at}

    code, said = pointsman(tmp_path, {"paints": deployment}, "check")

    assert code == 1
    assert "without service_tier, latency and guardrail" in said


def test_each_fault_is_one_line_that_says_what_to_do(aws: str, tmp_path: Path) -> None:
    at = {"region": REGION, "aws_url": aws}
    controlled(
        aws, "bedrock/model", {"model": "closed", "error": "AccessDeniedException", "error_message": "no access"}
    )
    deployments: dict[str, object] = {
        "closed": {**GOOD, "model": MODEL, "bedrock": {**at, "profile": "closed"}},
        "unpriced": {**GOOD, "price": "nobody", "bedrock": at},
        "tierless": {**GOOD, "bedrock": {**at, "service_tier": "priority"}},
        "unlimited": {**GOOD, "limits": {}, "bedrock": at},
        "thirsty": {**GOOD, "limits": {**GOOD["limits"], "output_burndown": 1}, "bedrock": at},  # type: ignore[dict-item]
    }

    code, said = pointsman(tmp_path, deployments, "check", "--backend", "bedrock")

    assert code == 1
    assert "error: deployments.closed: closed: AccessDeniedException: no access" in said
    for name, words in (
        ("unpriced.price", "dollars are unknown"),
        ("tierless.price", "dollars are unknown"),
        ("unlimited.limits", "requests_per_minute and tokens_per_minute not set"),
        ("thirsty.limits.output_burndown", "count output five times"),
    ):
        assert any(f"deployments.{name}:" in line and words in line for line in said.splitlines()), (name, said)


def test_missing_credentials_are_said_to_be_missing(aws: str, tmp_path: Path) -> None:
    deployment = {**GOOD, "bedrock": {"region": REGION, "aws_url": aws}}
    nowhere = str(tmp_path / "none")
    gone = {**dict.fromkeys(CREDENTIALS, ""), "AWS_SHARED_CREDENTIALS_FILE": nowhere, "AWS_CONFIG_FILE": nowhere}

    code, said = pointsman(tmp_path, {"good": deployment}, "check", "--backend", "bedrock", **gone)

    assert code == 1
    assert "there are no credentials for AWS" in said


@pytest.mark.parametrize(
    ("seconds", "input_tokens", "output_tokens", "by_requests", "by_tokens"),
    [
        ("23", "33000", "1", 38.33, 4.65),  # PDFs of twenty pages
        ("23", "33000", "8192", 38.33, 3.72),  # the same with what is reserved for output
        ("23", "33000", "64000", 38.33, 1.58),  # and with the model's own maximum
        ("3", "1600", "1", 5.0, 12.49),  # single images
    ],
)
def test_a_plan_has_both_terms_and_the_smaller_one(
    tmp_path: Path, seconds: str, input_tokens: str, output_tokens: str, by_requests: float, by_tokens: float
) -> None:
    arguments = ["--seconds", seconds, "--input-tokens", input_tokens, "--output-tokens", output_tokens, "--json"]

    code, said = pointsman(tmp_path, {"m": {**GOOD, "bedrock": {"region": REGION}}}, "plan", "m", *arguments)

    plan = json.loads(said)
    assert code == 0
    assert (plan["by_requests"], plan["by_tokens"]) == (by_requests, pytest.approx(by_tokens, abs=0.01))
    assert plan["max_concurrency"] == min(plan["by_requests"], plan["by_tokens"])
    assert list(plan["timeouts"]) == ["connect", "first token", "read", "total", "pod grace"]


def test_a_plan_of_what_is_not_there_says_what_is(tmp_path: Path) -> None:
    code, said = pointsman(tmp_path, {"m": {**GOOD, "bedrock": {"region": REGION}}}, "plan", "n")

    assert code == 1
    assert "there is no deployment 'n'; there are m" in said
