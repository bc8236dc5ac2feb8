"""Videos of Bedrock, asked for and collected: through a DOUBLE of its asynchronous calls, which makes empty films."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest
from redis.asyncio import Redis

from consumers.asked_jobs import AskedJobs
from consumers.aws import videos
from consumers.aws.backend_shipping import ShippingBackend
from consumers.backend import Answer, BackendError, SoFar, Submitted
from consumers.backend_echo import EchoBackend
from consumers.retrier import Retrier
from policies.deployments import Bedrock, Deployment, Modality
from policies.pricebook import builtin
from policies.retries import Failure
from router import sounds, topics
from router.job import Estimate, Job, JobState
from router.payloads import body_path
from tests.aws import REGION, controlled
from tests.builders import Bench, a_bench, a_deployment, until

pytestmark = pytest.mark.usefixtures("aws_credentials")

MODEL = "amazon.nova-reel-v1:1"
LONG_S = 40.0


def a_frame(width: int, height: int, kind: str = "png") -> str:
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4)
    return f"data:image/{kind};base64,{base64.b64encode(head).decode()}"


@dataclass(frozen=True)
class Place:
    """A bench whose one deployment makes videos, under a profile of its own."""

    bench: Bench
    url: str
    profile: str

    @property
    def deployment(self) -> Deployment:
        return self.bench.deployments["small"]

    async def turn(self, **knobs: object) -> None:
        """Change what the double does with videos."""
        await asyncio.to_thread(controlled, self.url, "videos/model", {"model": self.profile, **knobs})

    async def refuse(self, code: str, **more: object) -> None:
        """Let it answer so."""
        given = {"model": self.profile, "error": code, **more}
        await asyncio.to_thread(controlled, self.url, "bedrock/model", given)

    async def calls(self) -> list[Mapping[str, Any]]:
        """The double's own record of ours."""
        record = await asyncio.to_thread(controlled, self.url, "videos/record")
        return [each for each in record if each["model"] == self.profile]

    async def wanted(self, length: int = 6, **asked: object) -> Job:
        """A job for a video."""
        body = json.dumps({"prompt": "A cat on a roof", "seconds": str(length), **asked}).encode()
        job = await self.bench.job(endpoint="/v1/videos", body=body, estimate=Estimate(4, 9600, video_seconds=length))
        payload = await self.bench.payloads.put(body_path(job.tenant, job.id), body)
        return await self.bench.queued(
            id=job.id, endpoint="/v1/videos", body=body, payload=payload, estimate=job.estimate, result_ttl_s=600.0
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """A worker, the retriers and a collector."""
        stop, bench = asyncio.Event(), self.bench
        asked = AskedJobs(bench.board, bench.payloads)
        opened = ShippingBackend.open(EchoBackend(), bench.scripts, asked, bench.deployments, look_s=0.05, poll_s=0.1)
        async with opened as backend, asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.worker(backend).run(stop))
            for topic in topics.RETRIES:
                tasks.create_task(Retrier(bench.log, bench.board, topic).run(stop))
            collector = bench.collector(backend)
            tasks.create_task(collector.run(stop))
            try:
                yield
            finally:
                stop.set()


@pytest.fixture
async def place(redis: "Redis", tmp_path: Path, aws: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(videos, "SOON_S", 0.1)
    name = uuid4().hex[:12]
    profile, bucket = f"{MODEL}:{name}", f"b-{name}"
    keys = {"aws_access_key_id": "double", "aws_secret_access_key": "double"}
    s3 = boto3.client("s3", endpoint_url=aws, region_name=REGION, **keys)
    await asyncio.to_thread(s3.create_bucket, Bucket=bucket)
    await asyncio.to_thread(controlled, aws, "bedrock/model", {"model": profile})
    deployment = replace(
        a_deployment(price=builtin().find(MODEL)),
        model=MODEL,
        modalities=frozenset({Modality.TEXT, Modality.VIDEO_GENERATION}),
        bedrock=Bedrock(region=REGION, profile=profile, videos=f"s3://{bucket}/ours", aws_url=aws),
    )
    async with a_bench(redis, tmp_path, deployments=[deployment]) as bench:
        yield Place(bench, aws, profile)


@pytest.mark.parametrize(("length", "task"), [(6, "TEXT_VIDEO"), (12, "MULTI_SHOT_AUTOMATED")])
async def test_a_video_is_made_fetched_and_charged_by_its_seconds(place: Place, length: int, task: str) -> None:
    job = await place.wanted(length)
    async with place.running():
        [view] = await place.bench.ended(job, within=LONG_S)

    assert (view.state, view.attempts, view.media_type) == (JobState.COMPLETED, 1, "video/mp4")
    assert view.result_at is not None
    film = await place.bench.payloads.get(view.result_at)
    assert sounds.seconds(film[: sounds.HEAD], len(film)) == length
    [call] = await place.calls()
    assert (call["starts"], call["token"], call["input"]["taskType"]) == (1, f"{job.id}-1", task)
    assert call["input"]["videoGenerationConfig"] == {"durationSeconds": length, "fps": 24, "dimension": "1280x720"}
    [charge] = await place.bench.charges()
    assert [(line["meter"], line["quantity"], line["basis"]) for line in charge["lines"]] == [
        ("video_seconds", length, "metered")
    ]
    assert Decimal(charge["usd"]) == length * Decimal("0.08")


async def test_an_answer_that_was_lost_makes_no_second_call(place: Place) -> None:
    await place.turn(lose_answers=1)
    job = await place.wanted()
    async with place.running():
        [view] = await place.bench.ended(job, within=LONG_S)

    assert (view.state, view.attempts) == (JobState.COMPLETED, 1)
    assert [(call["token"], call["starts"]) for call in await place.calls()] == [(f"{job.id}-1", 2)]
    assert len(await place.bench.charges()) == 1


async def test_answers_that_are_lost_again_and_again_make_no_second_call(place: Place) -> None:
    await place.turn(lose_answers=3)
    job = await place.wanted()
    asked = AskedJobs(place.bench.board, place.bench.payloads)
    async with ShippingBackend.open(None, place.bench.scripts, asked, place.bench.deployments) as backend:
        taken = await backend.call(job, place.deployment, attempt=1, on_chunk=None, so_far=SoFar())
        assert isinstance(taken, Submitted)
        for _ in range(2):
            with pytest.raises(BackendError) as caught:
                await backend.collect(job, place.deployment, taken.reference, attempt=1)
            assert caught.value.failure is Failure.UNAVAILABLE  # it could not be asked
        answer = await backend.collect(job, place.deployment, taken.reference, attempt=1)

    assert isinstance(answer, Answer)
    assert [(call["token"], call["starts"]) for call in await place.calls()] == [(f"{job.id}-1", 4)]


async def test_a_worker_that_died_after_it_had_asked_makes_no_second_call(place: Place) -> None:
    job = await place.wanted()
    board = place.bench.board
    await board.claim(job, "dead|1", lease_s=0.3)
    await board.start(job, "dead|1", most_deliveries=3, microbatch="mb_1")
    asked = AskedJobs(board, place.bench.payloads)
    async with ShippingBackend.open(None, place.bench.scripts, asked, place.bench.deployments) as dead:
        await dead.recover(job, place.deployment, attempt=1, reference=None)
        await dead._videos.call(job, place.deployment, attempt=1)  # and now it dies

    async with place.running():
        [view] = await place.bench.ended(job, within=LONG_S)

    assert (view.state, view.attempts) == (JobState.COMPLETED, 1)
    assert [call["token"] for call in await place.calls()] == [f"{job.id}-1"]


async def test_a_video_that_fails_is_tried_once_more_and_costs_nothing(place: Place) -> None:
    await place.turn(fails="The model could not do it.")
    job = await place.wanted()
    async with place.running():
        [view] = await place.bench.ended(job, within=LONG_S)

    assert (view.state, view.attempts) == (JobState.FAILED, 2)
    assert [call["status"] for call in await place.calls()] == ["Failed"] * 2
    assert [charge["lines"] for charge in await place.bench.charges()] == [[], []]


async def test_what_a_filter_stops_is_told_to_the_client_and_not_tried_again(place: Place) -> None:
    await place.turn(fails="The prompt was blocked by our content filters.")
    job = await place.wanted()
    async with place.running():
        [view] = await place.bench.ended(job, within=LONG_S)

    assert (view.state, view.attempts) == (JobState.FAILED, 1)
    assert view.error is not None
    assert view.error["message"] == "The prompt was blocked by our content filters."


async def test_a_video_that_is_not_in_its_place_is_paid_for_and_fails(place: Place) -> None:
    await place.turn(nothing=True)
    job = await place.wanted()
    async with place.running():
        [view] = await place.bench.ended(job, within=LONG_S)

    assert (view.state, view.attempts) == (JobState.FAILED, 1)
    [charge] = await place.bench.charges()
    assert [(line["meter"], line["basis"]) for line in charge["lines"]] == [("video_seconds", "estimated")]


async def test_one_that_is_cancelled_is_paid_for_as_it_is_made_to_its_end(place: Place) -> None:
    await place.turn(hold=True)
    job = await place.wanted()
    async with place.running():
        await until(lambda: _has_call(place), within=LONG_S)
        await place.bench.board.cancel("acme", job.id, "{}")
        [view] = await place.bench.ended(job, within=LONG_S)

    assert view.state is JobState.CANCELLED
    [charge] = await place.bench.charges()
    assert [(line["meter"], line["basis"], line["quantity"]) for line in charge["lines"]] == [
        ("video_seconds", "estimated", 6)
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"length": 7}, "seconds must be one of 6, 12"),
        ({"size": "720x1280"}, "size must be 1280x720"),
        ({"prompt": "x" * 513}, "at most 512 characters"),
        ({"input_reference": {"image_url": a_frame(1280, 720)}, "length": 12}, "seconds must be 6"),
        ({"input_reference": {"image_url": a_frame(1280, 721)}}, "as large as the video, 1280x720"),
        ({"input_reference": {"image_url": a_frame(1280, 720, "gif")}}, "PNG or a JPEG"),
    ],
)
async def test_what_the_model_cannot_make_is_refused_and_not_asked_for(
    place: Place, asked: dict[str, Any], words: str
) -> None:
    job = await place.wanted(**asked)
    async with place.running():
        [view] = await place.bench.ended(job, within=LONG_S)

    assert view.state is JobState.FAILED
    assert view.error is not None and words in str(view.error["message"])
    assert await place.calls() == []


@pytest.mark.parametrize("code", ["ThrottlingException", "ServiceUnavailableException"])
async def test_a_refusal_that_passes_is_tried_again(place: Place, code: str) -> None:
    await place.refuse(code, errors=1)
    job = await place.wanted()
    async with place.running():
        [view] = await place.bench.ended(job, within=LONG_S)

    assert (view.state, view.attempts) == (JobState.COMPLETED, 2)
    assert len(await place.calls()) == 1


async def _has_call(place: Place) -> bool:
    return len(await place.calls()) == 1
