"""The official SDK and real models behind `pointsman up`: a voice speaks, Whisper hears it, e5 knows what is near."""

import asyncio
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from tests.acceptance.processes import Pointsman, Process, kill, pointsman
from tests.doubles import ROOT, started
from tests.servers import unavailable
from tools.kafka.broker import free_ports

SAID = "Please stand behind the yellow line. The train is coming."
START_S = 60.0

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def models() -> Iterator[str]:
    python = ROOT / ".venv-media" / "bin" / "python"
    if not python.exists():
        unavailable("there are no media models: `make .venv-media/.locked` installs them")
    with started([str(python), str(ROOT / "tests" / "media_server.py")], within=START_S) as line:
        yield line.split()[-1]


def settings(url: str, data: Path) -> dict[str, Any]:
    ours = {"backend": "gpu", "url": url, "tier": "light", "model": "media"}
    return {
        "data": str(data),
        "tenants": {"default": {}},
        "deployments": {
            "embeds": {
                **ours,
                "modalities": ["embedding"],
                "microbatch": {"size": 8, "wait_s": 0.2, "inputs": 64},
                "price": {"input": "0.02"},
            },
            "speaks": {**ours, "modalities": ["speech"], "price": {"characters": "15.00"}},
            "hears": {**ours, "modalities": ["audio"], "price": "whisper-1"},
        },
    }


@pytest.fixture(scope="module")
def up(models: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pointsman, Process]]:
    folder = tmp_path_factory.mktemp("media")
    with pointsman(folder, settings(models, folder / "data")) as ours:
        [port] = free_ports(1)
        yield ours, asyncio.run(ours.up(port).ready())


def the_client(up: tuple[Pointsman, Process]) -> openai.OpenAI:
    ours, process = up
    return ours.refusals.sdk(process.url, ours.key, max_retries=0, timeout=90)


def test_what_a_voice_says_is_heard_again(up: tuple[Pointsman, Process], tmp_path: Path) -> None:
    with the_client(up) as client:
        with client.audio.speech.with_streaming_response.create(
            model="speaks", voice="any", input=SAID, response_format="wav"
        ) as spoken:
            spoken.stream_to_file(tmp_path / "said.wav")
        heard = client.audio.transcriptions.with_raw_response.create(model="auto", file=tmp_path / "said.wav")
        told = client.audio.transcriptions.create(
            model="hears", file=tmp_path / "said.wav", response_format="verbose_json"
        )
        plain = client.audio.transcriptions.create(model="hears", file=tmp_path / "said.wav", response_format="text")

    assert spoken.headers["content-type"] == "audio/wav"
    assert Decimal(spoken.headers["x-pointsman-cost-usd"]) == Decimal("0.000015") * len(SAID)
    assert "yellow line" in heard.parse().text
    assert heard.headers["x-pointsman-lane"] == "gpu.audio.light"
    assert heard.headers["x-pointsman-cost-usd"] == format(Decimal(math.ceil(told.duration)) / 10_000, "f")
    assert "yellow line" in told.text and told.segments
    assert "yellow line" in plain


def test_texts_of_many_callers_are_embedded_together_and_each_gets_its_own(up: tuple[Pointsman, Process]) -> None:
    pairs = [("a small cat sleeps", "the kitten is asleep"), ("the stock market fell", "shares lost value today")]
    texts = [text for pair in pairs for text in pair]

    with the_client(up) as client, ThreadPoolExecutor(4) as pool:
        alone = client.embeddings.create(model="embeds", input=texts)
        later: dict[str, Any] = {"encoding_format": "float", "extra_body": {"async": True}}
        jobs = list(pool.map(lambda text: client.embeddings.create(model="auto", input=text, **later), texts))
        receipts = [ended(client, cast(Any, job).id) for job in jobs]

    vectors = [receipt["result"]["data"][0]["embedding"] for receipt in receipts]
    assert [len(vector) for vector in vectors] == [384] * 4
    assert vectors == [pytest.approx(row.embedding, abs=1e-6) for row in alone.data]
    assert near(vectors[0], vectors[1]) > near(vectors[0], vectors[2])
    assert near(vectors[2], vectors[3]) > near(vectors[1], vectors[3])
    lines = [line for receipt in receipts for line in receipt["pointsman"]["charges"]]
    assert sum(line["quantity"] for line in lines) == sum(len(text.split()) for text in texts)
    assert {receipt["status"] for receipt in receipts} == {"completed"}
    assert len({receipt["pointsman"]["microbatch"] for receipt in receipts}) < 4


def ended(client: openai.OpenAI, job_id: str) -> dict[str, Any]:
    """The job once it has ended; a loaded machine takes its time over a model."""
    for _ in range(3):
        job = cast(dict[str, Any], client.get(f"/jobs/{job_id}?wait=40", cast_to=object))
        if job["status"] not in ("queued", "in_progress"):
            break
    return job


def near(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_a_recording_that_was_accepted_is_heard_though_everything_was_killed(models: str, tmp_path: Path) -> None:
    with pointsman(tmp_path, settings(models, tmp_path / "data"), POINTSMAN_WORKER__LEASE_S="3") as ours:
        first = await ours.up(free_ports(1)[0]).ready()
        with the_client((ours, first)) as client:
            sound = client.audio.speech.create(model="speaks", voice="a", input=SAID, response_format="wav").read()
            jobs = [
                client.audio.transcriptions.create(
                    model="hears", file=("said.wav", sound), prompt=str(number), extra_body={"async": True}
                )
                for number in range(2)
            ]
            spoken = client.audio.speech.create(
                model="speaks", voice="a", input=SAID, extra_body={"async": True}
            ).json()
        kill(first.pid, ours.valkey_pid(), *ours.children(first))

        again = await ours.up(free_ports(1)[0]).ready()
        with the_client((ours, again)) as client:
            heard = [ended(client, cast(Any, job).id) for job in jobs]
            ended(client, spoken["id"])
            said = client.get(f"/jobs/{spoken['id']}/content", cast_to=openai.HttpxBinaryResponseContent)

    assert [job["status"] for job in heard] == ["completed"] * 2, heard
    assert all("yellow line" in job["result"]["text"] for job in heard)
    assert said.read()[:4] == b"RIFF"
