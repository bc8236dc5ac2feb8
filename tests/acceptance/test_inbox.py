"""The door for other services on a real Kafka: the examples as their readers run them, and a door that is killed."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.acceptance.processes import ROOT, Pointsman, pointsman
from tests.builders import until
from tests.servers import a_valkey

pytestmark = pytest.mark.timeout(200)

JOBS = 120


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, kafka_bootstrap: str) -> Iterator[Pointsman]:
    folder = tmp_path_factory.mktemp("inbox")
    settings = yaml.safe_load((ROOT / "examples" / "pointsman.yaml").read_text(encoding="utf-8"))
    settings["tenants"] = {"default": {"reply_topics": ["answers", "acme.answers"]}}
    with a_valkey() as server:
        settings |= {
            "log": f"kafka://{kafka_bootstrap}",
            "redis": server.connection_url,
            "data": str(folder / "data"),
            "kafka": {"partitions": 4, "prefix": f"i{os.urandom(4).hex()}.", "session_s": 6},
        }
        with pointsman(folder, settings) as ours:
            ours.command("topics", "--create")
            ours.key = ours.command("keys", "create").split()[-1]
            asyncio.run(ours.worker("echo").ready())
            yield ours


@pytest.fixture
def prefix(ours: Pointsman) -> str:
    return str(yaml.safe_load(ours.config.read_text(encoding="utf-8"))["kafka"]["prefix"])


@pytest.mark.parametrize("example", ["producer_aiokafka.py", "producer_confluent.py"])
async def test_the_examples_ask_and_get_their_answer(
    ours: Pointsman, prefix: str, kafka_bootstrap: str, example: str
) -> None:
    door = await ours.inbox().ready()
    environ = os.environ | {
        "KAFKA": kafka_bootstrap,
        "KAFKA_PREFIX": prefix,
        "REPLY_TOPIC": "answers",
        "POINTSMAN_KEY": ours.key,
    }

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(ROOT / "examples" / example)],
        env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr + door.tail()
    assert done.stdout.strip() == "Why is the sky blue?"
    assert ours.key not in door.output.read_text(encoding="utf-8")
    door.popen.terminate()
    assert await asyncio.to_thread(door.popen.wait, 20) == 0


def kcat(folder: Path) -> str:
    """A folder that has a `kcat`: the real one, or one that reads the same arguments where it is not installed."""
    if (found := shutil.which("kcat")) is not None:
        return str(Path(found).parent)
    double = folder / "kcat"
    double.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.doubles.kcat_double "$@"\n', encoding="utf-8")
    double.chmod(0o755)
    return str(folder)


async def test_the_lines_of_kcat_in_the_guide_ask_and_show_the_answer(
    ours: Pointsman, prefix: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    guide = (ROOT / "docs" / "guides" / "kafka.md").read_text(encoding="utf-8")
    [lines] = re.findall(r"```text\n(echo .*?)```", guide, re.DOTALL)
    ask, look = re.split(r"^(?=kcat -C)", lines, flags=re.MULTILINE)
    environ = os.environ | {"KEY": ours.key, "PATH": f"{kcat(tmp_path)}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    door = await ours.inbox().ready()

    def here(line: str) -> str:
        """Run it as it stands there, with the address and the prefix of this broker."""
        line = line.replace("localhost:9092", kafka_bootstrap).replace(" -t ", f" -t {prefix}")
        done = subprocess.run(
            ["bash", "-c", line], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def answered() -> bool:
        return "order-7" in await asyncio.to_thread(here, look)

    await asyncio.to_thread(here, ask)
    await until(answered, within=60)
    headers, answer = (await asyncio.to_thread(here, look)).strip().splitlines()

    assert "correlation-id=order-7" in headers
    assert json.loads(answer)["result"]["choices"][0]["message"]["content"] == "Why is the sky blue?"
    door.popen.terminate()
    assert await asyncio.to_thread(door.popen.wait, 20) == 0


async def test_a_door_that_is_killed_again_and_again_loses_nothing_and_makes_nothing_twice(
    ours: Pointsman, prefix: str, kafka_bootstrap: str
) -> None:
    door = await ours.inbox().ready()
    asked = [str(uuid.uuid4()) for _ in range(JOBS)]
    answers: Counter[str] = Counter()
    jobs: dict[str, set[str]] = {number: set() for number in asked}

    async with (
        AIOKafkaConsumer(
            f"{prefix}answers", bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest"
        ) as consumer,
        AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all") as producer,
    ):
        for index, number in enumerate(asked):
            body = {"model": "auto", "messages": [{"role": "user", "content": number}]}
            named = {
                "endpoint": "/v1/chat/completions",
                "authorization": f"Bearer {ours.key}",
                "correlation-id": number,
                "reply-topic": "answers",
            }
            await producer.send(
                f"{prefix}jobs.inbox",
                json.dumps(body if index % 4 else "no body").encode(),
                headers=[(name, text.encode()) for name, text in named.items()],
            )
            if index in (JOBS // 3, 2 * JOBS // 3):
                await producer.flush()
                door.kill()
                door = await ours.inbox().ready()
        await producer.flush()
        async with asyncio.timeout(120):
            while len(answers) < JOBS:
                for number, answer in await read(consumer):
                    if number in jobs:
                        answers[number] += 1
                        jobs[number].add(answer["id"])
    door.popen.terminate()

    assert set(answers) == set(asked)
    assert all(len(ids) == 1 for ids in jobs.values())  # an answer may come again, but no job was made twice
    print(f"{JOBS} records, {answers.total() - JOBS} answers came again")


async def read(consumer: Any) -> list[tuple[str, dict[str, Any]]]:
    batches = await consumer.getmany(timeout_ms=500)
    return [
        (dict(record.headers).get("correlation-id", b"").decode(), json.loads(record.value))
        for records in batches.values()
        for record in records
    ]
