"""The official OpenAI SDK against `pointsman up` with the example settings, as a newcomer would try it."""

import asyncio
import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import openai
import pytest
import yaml
from redis.asyncio import Redis

from router.log_streams import StreamsLog
from tests.acceptance import contents
from tests.acceptance.processes import ROOT, Pointsman, Process, pointsman
from tests.acceptance.refusals import Refused
from tools.kafka.broker import free_ports

MARKER = "zyxwvu-prompt-marker-4711"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pointsman, Process]]:
    folder = tmp_path_factory.mktemp("up")
    settings = yaml.safe_load((ROOT / "examples" / "pointsman.yaml").read_text(encoding="utf-8"))
    settings["data"] = str(folder / "data")
    with pointsman(folder, settings) as ours:
        [port] = free_ports(1)
        process = asyncio.run(ours.up(port).ready())
        yield ours, process


def the_client(up: tuple[Pointsman, Process], **options: Any) -> openai.OpenAI:
    ours, process = up
    return ours.refusals.sdk(process.url, ours.key, max_retries=0, **options)


def finished(client: openai.OpenAI, job_id: str) -> dict[str, Any]:
    job = cast(dict[str, Any], client.get(f"/jobs/{job_id}?wait=20", cast_to=object))
    assert job["status"] == "completed", job
    return job


async def test_the_sdk_waits_streams_leaves_and_comes_back(up: tuple[Pointsman, Process]) -> None:
    client = the_client(up)
    say: list[Any] = [{"role": "user", "content": "Say hello to the world"}]

    raw = client.chat.completions.with_raw_response.create(model="auto", messages=say)
    answer = raw.parse()
    streamed = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(model="light", messages=say, stream=True)
        if chunk.choices
    )
    with client.chat.completions.stream(model="light", messages=say) as helper:
        final = helper.get_final_completion()
    job = client.chat.completions.create(model="heavy", messages=say, extra_body={"async": True})
    receipt = finished(client, job.id)
    retrieved = client.chat.completions.retrieve(job.id)

    assert answer.choices[0].message.content == streamed == "Say hello to the world"
    assert final.choices[0].message.content == streamed
    assert raw.headers["x-pointsman-lane"] == "echo.text.light"
    assert raw.headers["x-request-id"].startswith("req_")
    assert retrieved.choices[0].message.content == streamed
    assert retrieved.id == f"chatcmpl-{job.id.removeprefix('job_')}"
    assert receipt["pointsman"]["lane"] == "echo.text.heavy"
    assert [line["meter"] for line in receipt["pointsman"]["charges"]] == ["input", "output"]


async def test_the_sdks_own_errors_are_raised(up: tuple[Pointsman, Process]) -> None:
    client = the_client(up)
    say: list[Any] = [{"role": "user", "content": "Hello"}]

    with pytest.raises(openai.AuthenticationError) as wrong_key:
        client.with_options(api_key="pm-not-a-key-of-anybody").models.list()
    with pytest.raises(openai.NotFoundError) as no_model:
        client.chat.completions.create(model="no-such-model", messages=say)
    with pytest.raises(openai.BadRequestError) as bad_value:
        client.chat.completions.create(model="auto", messages=say, temperature=9)
    with pytest.raises(openai.BadRequestError) as streamed_job:
        client.chat.completions.create(model="auto", messages=say, stream=True, extra_body={"async": True})
    with pytest.raises(openai.BadRequestError) as unknown_wish:
        client.chat.completions.create(model="auto", messages=say, extra_body={"pointsman": {"dedline_s": 5}})
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve("chatcmpl-01K00000000000000000000000")

    assert wrong_key.value.code == "invalid_api_key"
    assert (no_model.value.code, no_model.value.param) == ("model_not_found", "model")
    assert bad_value.value.param == "temperature"
    assert streamed_job.value.param == "stream"
    assert "dedline_s" in str(unknown_wish.value)
    kept = up[0].refusals.all
    assert any(each.key == "pm-not-a-key-of-anybody" and "invalid_api_key" in each.told for each in kept)
    assert any("no-such-model" in each.asked and "model_not_found" in each.told for each in kept)


async def test_the_sdk_example_of_the_readme_runs(up: tuple[Pointsman, Process]) -> None:
    ours, process = up
    environ = os.environ | {"OPENAI_BASE_URL": f"{process.url}/v1", "OPENAI_API_KEY": ours.key}

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(ROOT / "examples" / "sdk.py")],
        env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("completed ")
    assert done.stdout.rstrip().endswith("why the sky is blue.")


async def test_costs_keys_and_topics_are_shown_while_it_runs(up: tuple[Pointsman, Process]) -> None:
    ours, _ = up
    client = the_client(up)
    for model in ("light", "heavy"):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Count this"}])
    data = ("--data", str(ours.data))

    by = {
        name: rows(ours.command("costs", "--by", name, "--json", *data))
        for name in ("deployment", "tenant", "microbatch")
    }
    ours.command("costs", "--focus", str(ours.data / "bill.csv"), *data)
    with (ours.data / "bill.csv").open(newline="") as file:
        billed = sum(Decimal(row["EffectiveCost"]) for row in csv.DictReader(file))
    new_key = ours.command("keys", "create", "--name", "second", *data).strip()
    listed = ours.command("keys", "list", *data)
    shown = ours.command("topics", *data)

    assert {row["name"] for row in by["deployment"]} == {"light", "heavy"}
    assert sum(row["jobs"] for row in by["microbatch"]) == sum(row["jobs"] for row in by["tenant"]) >= 2
    assert {sum(Decimal(row["usd"]) for row in table) for table in by.values()} == {billed}
    assert new_key not in listed and "second" in listed and ours.key not in listed
    assert len(the_client(up).with_options(api_key=new_key).models.list().data) > 0
    assert "jobs.dead" in shown and "missing" not in shown


async def test_a_record_that_is_no_job_is_seen_shown_and_dropped_from_the_command_line(
    up: tuple[Pointsman, Process],
) -> None:
    ours, _ = up
    data = ("--data", str(ours.data))
    redis = Redis(unix_socket_path=str(ours.data / "valkey" / "valkey.sock"))
    try:
        await redis.xadd("log:jobs.echo.text.light.standard", {b"v": b"not a job", b"h:tenant": b"default"})
        async with asyncio.timeout(20):
            while not await redis.xlen("log:jobs.dead"):
                await asyncio.sleep(0.05)
    finally:
        await redis.aclose()

    [letter] = rows(ours.command("dlq", "list", "--json", *data))
    shown = ours.command("dlq", "show", letter["id"], *data)
    dry = ours.command("dlq", "drop", letter["id"], "--dry-run", *data)
    ours.command("dlq", "drop", letter["id"], *data)
    wrong = ours.refused("dlq", "drop", letter["id"], *data)

    assert (letter["reason"], letter["tenant"], letter["bytes"]) == ("undecodable", "default", 9)
    assert "not a job" in shown
    assert "would drop: 1" in dry
    assert f"no open letter '{letter['id']}'" in wrong
    assert rows(ours.command("dlq", "list", "--json", *data)) == []


def rows(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


async def test_no_prompt_and_no_key_is_in_a_log_a_metric_an_error_a_header_or_a_redis_key(
    up: tuple[Pointsman, Process],
) -> None:
    ours, _ = up
    client = the_client(up)
    say: list[Any] = [{"role": "user", "content": f"Say it to me: {MARKER}"}]
    client.chat.completions.create(model="auto", messages=say)
    job = client.chat.completions.create(model="auto", messages=say, extra_body={"async": True})
    finished(client, job.id)
    for text in (f"fail:rejected Say {MARKER}", f"fail:misconfigured Say {MARKER}"):
        with pytest.raises(openai.APIStatusError):
            client.chat.completions.create(model="auto", messages=[{"role": "user", "content": text}])
    events = list(client.responses.create(model="auto", input=f"fail:rejected Say {MARKER}", stream=True))
    errors = []
    for bad in ({"temperature": MARKER}, {"messages": MARKER}, {"stop": {MARKER: 1}}, {"metadata": {"a": [MARKER]}}):
        with pytest.raises(openai.APIStatusError) as refused:
            client.post("/chat/completions", body={"model": "auto", "messages": say, **bad}, cast_to=object)
        errors.append(str(refused.value.body))

    assert events[-1].type == "response.failed"
    assert any('"input":' in each.asked and "invalid_prompt" in each.told for each in ours.refusals.all)
    assert [place[:300] for place in errors if MARKER in place] == []
    assert await ours.leaks() == []


def test_no_client_of_an_acceptance_test_forgets_what_it_was_refused_with() -> None:
    makes, keep = re.compile(r"(?:OpenAI|Client)\(base_url|ClientSession\("), ("refusals.py", "clients.py")
    files = [each for each in (ROOT / "tests" / "acceptance").glob("*.py") if each.name not in keep]

    assert [each.name for each in files if makes.search(each.read_text(encoding="utf-8"))] == []


async def test_what_should_not_be_there_is_found_wherever_it_is(up: tuple[Pointsman, Process], tmp_path: Path) -> None:
    ours, process = up
    client = the_client(up)
    client.chat.completions.create(model="light", messages=[{"role": "user", "content": "The words to look for"}])
    output = tmp_path / "some.log"
    output.write_text(f"it was asked: The words to look for\nby {ours.key}\n", encoding="utf-8")
    async with Redis(unix_socket_path=str(ours.data / "valkey" / "valkey.sock")) as redis:
        await redis.set("The words to look for", ours.key)
        await redis.hset("some job", "error", "of The words to look for")
        event = await redis.xadd("log:jobs.events", {b"v": ours.key, b"h:note": b"The words to look for"})

        found = await contents.leaks(
            redis,
            StreamsLog(redis),
            outputs=[output],
            urls=[process.url],
            refused=[
                Refused('{"prompt": "What nobody may repeat"}', "nobodys-key", "What nobody may repeat is wrong"),
                Refused("", ours.key, "by nobodys-key"),
            ],
        )

        await redis.delete("The words to look for", "some job")
        await redis.xdel("log:jobs.events", event)
    assert set(found) == {
        "a text in what some.log has",
        "a text in names in Redis",
        "a text in errors of jobs",
        "a text in headers of jobs.events",
        "a text in bodies of refusals",
        "a key in bodies of refusals",
        "a key in what some.log has",
        "a key in the value of The words to look for",
        "a key in values of jobs.events",
        "a key in the value of log:jobs.events",
    }
    assert await ours.leaks() == []
