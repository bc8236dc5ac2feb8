"""The official SDK's videos against `pointsman up`, whose collector is killed: through a DOUBLE of AWS."""

import asyncio
import base64
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import boto3
import openai
import pytest
from openai.types import Video

from router import sounds
from tests.acceptance.processes import Pointsman, Process, is_alive, kill, pointsman, until
from tests.aws import CREDENTIALS, REGION, controlled
from tests.doubles import aws_double
from tools.kafka.broker import free_ports

MODEL = "amazon.nova-reel-v1:1"
DONE_S = 60.0

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),  # OpenAI's own videos end; the calls stay
]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pointsman, Process, str]]:
    folder = tmp_path_factory.mktemp("videos")
    keys = {name.lower(): value for name, value in CREDENTIALS.items()}
    with aws_double() as aws:
        controlled(aws, "bedrock/model", {"model": MODEL})
        boto3.client("s3", endpoint_url=aws, region_name=REGION, **keys).create_bucket(Bucket="films")
        deployment = {
            "backend": "bedrock",
            "model": MODEL,
            "tier": "light",
            "modalities": ["video_generation"],
            "price": MODEL,
            "bedrock": {"region": REGION, "aws_url": aws, "videos": "s3://films/ours"},
        }
        echo = {"backend": "echo", "model": "echo", "tier": "light"}
        settings = {"deployments": {"reel": deployment, "echo": echo}, "tenants": {"default": {}}}
        with pointsman(folder, settings, POINTSMAN_WORKER__LEASE_S="2", **CREDENTIALS) as ours:
            [port] = free_ports(1)
            yield ours, asyncio.run(ours.up(port).ready()), aws


async def test_the_sdk_makes_looks_at_fetches_and_deletes_a_video_whose_collector_is_killed_once(
    up: tuple[Pointsman, Process, str],
) -> None:
    ours, process, aws = up
    controlled(aws, "videos/model", {"model": MODEL, "hold": True})
    async with ours.refusals.async_sdk(process.url, ours.key, max_retries=0) as sdk:
        made = await sdk.videos.create(model="reel", prompt="A cat on a roof", seconds="12", size="1280x720")
        await until(lambda: len(_calls(aws)) == 1, "Bedrock has been asked", within=DONE_S)
        with pytest.raises(openai.ConflictError):
            await sdk.videos.download_content(made.id)
        [collector] = [pid for pid, command in ours.children(process).items() if "serve collector" in command]
        kill(collector)
        await until(lambda: not is_alive(collector), "it is gone", within=10)
        controlled(aws, "videos/model", {"model": MODEL, "hold": False})
        done = await _ended(sdk, made.id)
        film = (await sdk.videos.download_content(made.id)).content
        job: Any = await sdk.get(f"/jobs/{made.id}", cast_to=object)
        deleted = await sdk.videos.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.videos.retrieve(made.id)

    assert (made.status, made.progress, made.object, made.model) == ("queued", 0, "video", "reel")
    assert (made.prompt, made.seconds, made.size) == ("A cat on a roof", "12", "1280x720")
    assert (done.status, done.progress, done.error) == ("completed", 100, None)
    assert (done.prompt, done.seconds, done.size, done.created_at) == (
        made.prompt,
        made.seconds,
        made.size,
        made.created_at,
    )
    assert sounds.seconds(film[: sounds.HEAD], len(film)) == 12
    assert job["result"]["media_type"] == "video/mp4"
    assert Decimal(job["pointsman"]["usd"]) == 12 * Decimal("0.08")
    assert [(each["starts"], each["status"]) for each in _calls(aws)] == [(1, "Completed")]
    assert deleted.deleted


async def test_a_video_begins_with_the_image_that_the_sdk_sends_as_a_file_or_as_a_data_url(
    up: tuple[Pointsman, Process, str],
) -> None:
    ours, process, aws = up
    controlled(aws, "videos/model", {"model": MODEL, "hold": False})
    frame = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (1280).to_bytes(4) + (720).to_bytes(4) + b"\0" * 300_000
    text = base64.b64encode(frame).decode()
    async with ours.refusals.async_sdk(process.url, ours.key, max_retries=0) as sdk:
        made: list[Any] = [
            await sdk.videos.create(model="reel", prompt="A cat", input_reference=("a.png", frame)),
            await _asked(sdk, f"data:image/png;base64,{text}"),
        ]
        ended = [await _ended(sdk, video.id) for video in made]

    assert [video.status for video in ended] == ["completed"] * 2
    sent = [call["input"]["textToVideoParams"] for call in _calls(aws)[-2:]]
    assert sent == [{"text": "A cat", "images": [{"format": "png", "source": {"bytes": text}}]}] * 2


async def test_the_sdk_lists_videos_page_by_page_from_either_end(up: tuple[Pointsman, Process, str]) -> None:
    ours, process, aws = up
    controlled(aws, "videos/model", {"model": MODEL, "hold": False})
    async with ours.refusals.async_sdk(process.url, ours.key, max_retries=0) as sdk:
        made = [(await sdk.videos.create(model="reel", prompt=f"Cat {n}")).id for n in range(3)]
        await sdk.chat.completions.create(model="echo", messages=[{"role": "user", "content": "Hello"}])
        newest = [video async for video in sdk.videos.list(limit=2)]
        oldest = [video.id async for video in sdk.videos.list(limit=2, order="asc")]
        with pytest.raises(openai.BadRequestError) as after:
            await sdk.videos.list(after="no such id")

    assert [video.id for video in newest[:3]] == made[::-1]
    assert [video.prompt for video in newest[:3]] == ["Cat 2", "Cat 1", "Cat 0"]
    assert oldest == [video.id for video in newest][::-1]
    assert after.value.param == "after"


async def test_what_no_model_can_make_is_refused_at_once_or_said_on_the_video(
    up: tuple[Pointsman, Process, str],
) -> None:
    ours, process, _ = up
    async with ours.refusals.async_sdk(process.url, ours.key, max_retries=0) as sdk:
        with pytest.raises(openai.BadRequestError) as file:
            await sdk.videos.create(model="reel", prompt="A cat", input_reference=("a.png", b"not an image"))
        with pytest.raises(openai.BadRequestError) as link:
            await _asked(sdk, "http://169.254.169.254/x")
        with pytest.raises(openai.BadRequestError) as length:
            await sdk.videos.create(model="reel", prompt="A cat", seconds="soon")  # type: ignore[arg-type]
        made = await sdk.videos.create(model="reel", prompt="A cat", seconds="8")
        ended = await _ended(sdk, made.id)

    assert (file.value.param, link.value.param) == ("input_reference", "input_reference.image_url")
    assert length.value.param == "seconds"
    assert ended.status == "failed"
    assert ended.error is not None and "seconds must be one of 6, 12" in ended.error.message


async def _asked(sdk: openai.AsyncOpenAI, image: str) -> Any:
    """A video with that image, as JSON: the SDK's own call sends a form, and images in it as files only."""
    body = {"model": "reel", "prompt": "A cat", "input_reference": {"image_url": image}}
    return await sdk.post("/videos", body=body, cast_to=Video)


async def _ended(sdk: openai.AsyncOpenAI, video: str) -> Any:
    ends = time.monotonic() + DONE_S
    while (found := await sdk.videos.retrieve(video)).status not in ("completed", "failed"):
        assert time.monotonic() < ends, found
        await asyncio.sleep(0.1)
    return found


def _calls(aws: str) -> list[Any]:
    found: list[Any] = controlled(aws, "videos/record")
    return found
