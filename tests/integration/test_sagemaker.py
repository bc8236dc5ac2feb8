"""Jobs on asynchronous SageMaker endpoints: through a DOUBLE of AWS, with an instant DOUBLE as the container."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from consumers.aws.sagemaker_notices import CallName
from consumers.aws.sagemaker_patience import UNSURE_S, over_after
from consumers.aws.sagemaker_reference import Reference
from consumers.backend import Answer, BackendError, Pending, SoFar, Submitted
from policies.deployments import SYNC_BYTES
from policies.pricing import Basis, Usage
from policies.retries import Failure
from router.job import Job, JobState
from tests.aws import AwsPlace
from tests.builders import until
from tests.doubles import OpenAIDouble, openai_double
from tests.endpoint_place import LONG_S, Place, a_place, ended, is_empty, is_handed_off, is_over_there, submitted

pytestmark = pytest.mark.usefixtures("aws_credentials")


@pytest.fixture(scope="module")
def container() -> Iterator[OpenAIDouble]:
    with openai_double() as double:
        yield double


@pytest.fixture
async def place(redis: "Redis", tmp_path: Path, aws: str, container: OpenAIDouble) -> AsyncIterator[Place]:
    async with a_place(redis, tmp_path, aws, container) as place:
        yield place


async def test_a_job_is_answered_and_charged_and_its_message_leaves_the_queue(place: Place) -> None:
    job = await place.bench.queued("four words for it")
    async with place.running():
        states = await ended(place, job)
        await until(lambda: is_empty(place), within=LONG_S)

    view = await place.bench.view(job)
    assert states == [JobState.COMPLETED]
    answer = json.loads(view.result or b"{}")
    assert answer["choices"][0]["message"]["content"] == "four words for it"
    assert (answer["id"], answer["model"], answer["object"]) == (f"chatcmpl-{job.id}", "small", "chat.completion")
    assert view.stay is not None and 0 <= view.stay.seconds < LONG_S
    [charge] = await place.bench.charges()
    assert charge["tokens"] == answer["usage"]["total_tokens"] > 0


async def test_a_body_over_the_inline_limit_goes_through_s3(place: Place) -> None:
    job = await place.bench.queued("word " * 30_000)
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]

    [call] = await place.at.invocations()
    assert call["input_at"].startswith(f"s3://{place.at.bucket}/in/acme/")


async def test_a_submit_whose_answer_was_lost_is_found_and_not_made_again(place: Place) -> None:
    await place.at.turn(lose_submit_answers=1.0)
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]

    assert len(await place.at.invocations()) == 1


@pytest.mark.parametrize("names", ["appended", "ending"])
async def test_the_result_of_a_lost_submit_is_found_however_the_service_joins_its_name(
    place: Place, names: str
) -> None:
    await place.at.turn(lose_submit_answers=1.0, names=names, drop_messages=1.0)
    jobs = [await place.bench.queued(), await place.bench.queued("double:error-400 no such thing")]
    async with place.running():
        states = await ended(place, *jobs)

    assert states == [JobState.COMPLETED, JobState.FAILED]
    calls = [call["id"] for call in await place.at.invocations()]
    assert (
        len(calls) == len(set(calls)) == 1 + place.bench.retries.attempts
    )  # neither a message nor the body says "400"


async def test_a_call_may_wait_and_run_for_as_long_as_its_job_has_left_and_no_longer_than_the_settings_say(
    place: Place,
) -> None:
    jobs = [await place.bench.job(deadline_s=seconds) for seconds in (30.0, 500.0, 100_000.0)]
    async with place.backend() as backend:
        for job in jobs:
            await backend.call(job, place.deployment, attempt=1, on_chunk=None, so_far=SoFar())

    bounds = {call["id"].partition(".")[0]: (call["ttl_s"], call["timeout_s"]) for call in await place.at.invocations()}
    short, middle, long = (bounds[job.id] for job in jobs)
    assert short[0] == 60 and short[1] <= 30  # AWS lets every call wait for a minute
    assert 490 <= middle[0] == middle[1] <= 500
    assert long == (21_600, 900)


async def test_a_worker_that_died_between_the_call_and_its_hand_off_makes_no_second_call(place: Place) -> None:
    job = await place.bench.queued()
    async with place.backend() as backend:  # what the dead one did
        await place.bench.board.claim(job, "dead", lease_s=0.3)
        await place.bench.board.start(job, "dead", most_deliveries=3, microbatch="mb_1")
        taken = await backend.call(job, place.deployment, attempt=1, on_chunk=None, so_far=SoFar())
        assert isinstance(taken, Submitted)
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]

    assert len(await place.at.invocations()) == 1
    assert [row["attempt"] for row in await place.bench.charges()] == [1]


async def test_a_call_that_ends_while_the_board_does_not_know_of_it_is_not_made_again_and_charged_once(
    place: Place,
) -> None:
    await place.at.turn(instances=0)
    job = await place.bench.queued()
    async with place.running(handed_off_s=2.0):
        await submitted(place, 1)
        await until(lambda: is_handed_off(place, job), within=LONG_S)
        await place.bench.wipe()
        await place.bench.rebuild()
        await place.at.turn(instances=1)
        await until(lambda: is_over_there(place), within=LONG_S)
        await until(lambda: _is_known(place, job), within=LONG_S)
        assert await ended(place, job) == [JobState.COMPLETED]
        await until(lambda: is_empty(place), within=LONG_S)

    assert len(await place.at.invocations()) == 1
    assert [(row["attempt"], row["concluded"]) for row in await place.bench.charges()] == [(1, True)]


async def _is_known(place: Place, job: Job) -> bool:
    return await place.bench.board.view(job.tenant, job.id) is not None


async def test_a_message_that_never_comes_is_made_up_for_by_looking(place: Place) -> None:
    await place.at.turn(drop_messages=1.0)
    deployment = place.at.deployment(place.deployment, listens=False)
    place.bench.deployments["small"] = deployment
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]


async def test_a_message_that_comes_twice_concludes_once(place: Place) -> None:
    await place.at.turn(double_messages=1.0)
    jobs = [await place.bench.queued() for _ in range(5)]
    async with place.running(collectors=2):
        states = await ended(place, *jobs)
        await until(lambda: is_empty(place), within=LONG_S)

    assert states == [JobState.COMPLETED] * 5
    assert len(await place.bench.charges()) == 5
    assert len(await place.bench.events()) == 5


async def test_the_answer_in_the_message_is_enough(place: Place) -> None:
    await place.at.turn(message_with_answer=True)
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]


async def test_a_result_that_breaks_off_on_its_way_is_read_again_and_not_paid_for_again(place: Place) -> None:
    await place.at.turn(break_answers=1)
    job = await place.bench.queued("four words for it")
    async with place.backend() as backend:
        taken = await backend.call(job, place.deployment, attempt=1, on_chunk=None, so_far=SoFar())
        assert isinstance(taken, Submitted)
        await until(lambda: is_over_there(place), within=LONG_S)
        with pytest.raises(BackendError) as caught:
            await backend.collect(job, place.deployment, taken.reference, attempt=1)
        answer = await backend.collect(job, place.deployment, taken.reference, attempt=1)

    assert caught.value.failure is Failure.UNAVAILABLE  # it could not be asked
    assert isinstance(answer, Answer) and b"four words for it" in answer.body


async def test_a_refusal_that_no_message_tells_of_is_known_by_the_containers_own_words(place: Place) -> None:
    await place.at.turn(drop_messages=1.0)
    place.bench.deployments["small"] = place.at.deployment(place.deployment, listens=False)
    job = await place.bench.queued("double:context-400 no such thing")
    async with place.running():
        assert await ended(place, job) == [JobState.FAILED]

    assert len(await place.at.invocations()) == 1


async def test_a_submit_whose_answer_was_lost_is_told_of_by_its_message_where_nobody_may_see_the_endpoints_paths(
    place: Place,
) -> None:
    await place.at.turn(lose_submit_answers=1.0, hide_config=True)
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]

    assert len(await place.at.invocations()) == 1


async def test_a_call_that_may_not_have_been_taken_is_not_lost_while_the_endpoint_has_no_instance(place: Place) -> None:
    await _scaled(place, 0)
    job = await place.bench.job()
    known = Reference(
        call=str(CallName.of("acme", job.id, 1)),
        output_at=f"s3://{place.at.bucket}/out/acme/today/nothing",
        failure_at="",
        submitted_at=time.time() - UNSURE_S - 100,
        is_sure=False,
        extension="acme/today",
    )
    async with place.backend() as backend:
        await backend.ping(place.deployment)
        cold = await backend.collect(job, place.deployment, str(known), attempt=1)
        await _scaled(place, 1)
        await backend.ping(place.deployment)
        woken = await backend.collect(job, place.deployment, str(known), attempt=1)

    assert isinstance(cold, Pending) and isinstance(woken, Pending)


@pytest.mark.parametrize("is_sure", [True, False])
async def test_a_call_without_a_result_when_all_its_time_is_over_is_lost_and_made_once_more_at_most(
    place: Place, is_sure: bool
) -> None:
    job = await place.bench.job()
    age_s = 1 + (over_after(600, 600) if is_sure else UNSURE_S)
    known = Reference(
        call=str(CallName.of("acme", job.id, 1)),
        output_at=f"s3://{place.at.bucket}/out/acme/today/nothing",
        failure_at="",
        submitted_at=time.time() - age_s,
        is_sure=is_sure,
        extension="acme/today",
        ttl_s=600,
        timeout_s=600,
    )
    younger = replace(known, submitted_at=known.submitted_at + 20)
    async with place.backend() as backend:
        with pytest.raises(BackendError) as caught:
            await backend.collect(job, place.deployment, str(known), attempt=1)
        waits = await backend.collect(job, place.deployment, str(younger), attempt=1)

    lost = caught.value
    assert (lost.failure, lost.code, lost.most_tries) == (Failure.TIMED_OUT, "lost", 2)
    assert lost.usage == (Usage(job.estimate.input_tokens, basis=Basis.ESTIMATED) if is_sure else Usage())
    assert isinstance(waits, Pending)


async def test_what_the_container_refuses_fails_with_its_own_words_and_is_not_tried_again(place: Place) -> None:
    job = await place.bench.queued("double:error-400 no such thing")
    async with place.running():
        assert await ended(place, job) == [JobState.FAILED]

    view = await place.bench.view(job)
    assert view.error is not None and "400" in str(view.error["message"])
    assert len(await place.at.invocations()) == 1


async def test_a_container_that_fails_is_asked_again_under_another_name_as_often_as_the_rule_says(place: Place) -> None:
    job = await place.bench.queued("double:error-500 Hello")
    async with place.running():
        assert await ended(place, job) == [JobState.FAILED]

    attempts = place.bench.retries.attempts
    assert len({call["id"] for call in await place.at.invocations()}) == attempts
    assert len(await place.bench.charges()) == attempts


async def test_the_double_fails_aloud_when_its_container_is_away(place: Place) -> None:
    await place.at.turn(container="http://127.0.0.1:1/v1/chat/completions")
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.FAILED]

    view = await place.bench.view(job)
    assert view.error is not None and "DOUBLE: no container" in str(view.error["message"])


async def test_a_throttled_submit_is_made_again_later(place: Place) -> None:
    await place.at.turn(throttle=1.0)
    job = await place.bench.queued()
    async with place.running():
        await until(lambda: was_tried(place, job), within=LONG_S)
        await place.at.turn(throttle=0.0)
        assert await ended(place, job) == [JobState.COMPLETED]


async def test_a_job_without_capacity_waits_until_its_deadline_and_expires(place: Place) -> None:
    await place.at.turn(instances=0)
    job = await place.bench.queued(deadline_s=3.0)
    async with place.running():
        assert await ended(place, job) == [JobState.EXPIRED]


async def test_a_call_that_expired_at_the_endpoint_is_made_again_as_soon_as_its_message_says_so(place: Place) -> None:
    await place.at.turn(instances=0, ttl_divisor=21_600)  # its time to live is over in a second
    job = await place.bench.queued()
    async with place.running():
        await until(lambda: was_tried(place, job), within=LONG_S)
        await place.at.turn(instances=1, ttl_divisor=1)
        assert await ended(place, job) == [JobState.COMPLETED]

    outcomes = [call["outcome"] for call in await place.at.invocations()]
    assert outcomes[0] == "expired" and outcomes[-1] == "completed"


async def test_results_that_s3_denies_are_still_found_by_their_messages(place: Place) -> None:
    await place.at.turn(hide_missing=True)
    job = await place.bench.queued()
    async with place.running():
        assert await ended(place, job) == [JobState.COMPLETED]


async def test_an_input_that_the_role_may_not_read_fails_with_what_the_service_says(place: Place) -> None:
    await place.at.turn(download_fails=True)
    job = await place.bench.queued("word " * 30_000)
    async with place.running():
        assert await ended(place, job) == [JobState.FAILED]

    view = await place.bench.view(job)
    assert view.error is not None and "could not be read" in str(view.error["message"])


async def test_an_unknown_endpoint_is_a_fault_of_the_settings(place: Place) -> None:
    nowhere = replace(place.deployment, model="nobody")
    async with place.backend() as backend:
        with pytest.raises(BackendError) as caught:
            job = await place.bench.job()
            await backend.call(job, nowhere, attempt=1, on_chunk=None, so_far=SoFar())
        assert caught.value.failure is Failure.MISCONFIGURED
        assert "nobody" in str(await backend.ping(nowhere))
        assert await backend.ping(place.deployment) is None


async def test_a_synchronous_endpoint_answers_at_once_and_refuses_what_is_too_large(
    place: Place, aws: str, container: OpenAIDouble
) -> None:
    at = await asyncio.to_thread(AwsPlace.made, aws, f"{container.url}/v1/chat/completions", is_realtime=True)
    deployment = at.deployment(place.deployment)
    assert deployment.sagemaker is not None
    realtime = replace(deployment, sagemaker=replace(deployment.sagemaker, is_realtime=True))
    async with place.backend() as backend:
        answer = await backend.call(await place.bench.job("Hello"), realtime, attempt=1, on_chunk=None, so_far=SoFar())
        assert isinstance(answer, Answer) and b"Hello" in answer.body
        large = replace(
            await place.bench.job(), body=b'{"messages":[{"role":"user","content":"%s"}]}' % (b"x" * 7_000_000)
        )
        with pytest.raises(BackendError) as caught:
            await backend.call(large, realtime, attempt=1, on_chunk=None, so_far=SoFar())
    assert caught.value.failure is Failure.REJECTED
    assert str(SYNC_BYTES) in caught.value.detail


async def _scaled(place: Place, instances: int) -> None:
    """What the control plane says of it."""
    wanted = [{"VariantName": "AllTraffic", "DesiredInstanceCount": instances}]
    scale = place.at.client("sagemaker").update_endpoint_weights_and_capacities
    await asyncio.to_thread(scale, EndpointName=place.at.name, DesiredWeightsAndCapacities=wanted)


async def was_tried(place: Place, job: Job) -> bool:
    return (await place.bench.view(job)).attempts >= 2
