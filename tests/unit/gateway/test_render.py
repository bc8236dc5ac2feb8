"""Job objects, pages, chunks and headers, as clients get them."""

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from gateway import render
from policies.deployments import Modality, Tier
from policies.pricing import Basis, ChargeLine, Meter
from policies.quota import Room, Rooms
from router.board import JobView
from router.job import Estimate, Job, JobClass, JobState, Route

ID = "01KB7R3ZJ5Q8W2N4X6C9V1M3T7"


def a_view(state: JobState = JobState.QUEUED, **changes: Any) -> JobView:
    job = Job(
        id=ID,
        tenant="acme",
        endpoint="/v1/chat/completions",
        model="auto",
        job_class=JobClass.STANDARD,
        route=Route("small", "gpu", Modality.TEXT, Tier.LIGHT, ("short",), 0.21),
        estimate=Estimate(10, 100, Decimal("0.000112")),
        body=b"",
        created_at=1_796_000_000.25,
        expires_at=1_796_086_400.25,
        result_ttl_s=3600,
        metadata={"order": "17"},
    )
    return replace(JobView.of(job, state), **changes)


def a_line(usd: Decimal | None) -> ChargeLine:
    return ChargeLine(
        job=ID,
        attempt=1,
        meter=Meter.OUTPUT,
        quantity=3,
        usd_per_million=None if usd is None else usd * 1_000_000 / 3,
        usd=usd,
        basis=Basis.METERED,
        outcome="completed",
        price_source=None,
    )


def test_a_queued_job() -> None:
    assert json.loads(render.job(a_view())) == {
        "id": f"job_{ID}",
        "object": "job",
        "status": "queued",
        "endpoint": "/v1/chat/completions",
        "created_at": 1_796_000_000,
        "expires_at": 1_796_086_400,
        "started_at": None,
        "finished_at": None,
        "model": "auto",
        "metadata": {"order": "17"},
        "usage": None,
        "error": None,
        "result": None,
        "pointsman": {
            "lane": "gpu.text.light",
            "deployment": "small",
            "class": "standard",
            "reasons": ["short"],
            "score": 0.21,
            "threshold": None,
            "rule": None,
            "queue": "main",
            "estimate_usd": "0.000112",
            "starts_in_s": None,
            "warming": False,
            "waited_s": None,
            "attempts": 0,
            "microbatch": None,
            "usd": "0",
            "charges": [],
        },
    }


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState.ACCEPTING, "queued"),
        (JobState.QUEUED, "queued"),
        (JobState.RUNNING, "in_progress"),
        (JobState.COMPLETED, "completed"),
        (JobState.FAILED, "failed"),
        (JobState.CANCELLED, "cancelled"),
        (JobState.EXPIRED, "expired"),
        (JobState.REJECTED, "failed"),
    ],
)
def test_states_have_the_names_of_the_surface_and_are_found_by_them(state: JobState, status: str) -> None:
    assert json.loads(render.job(a_view(state)))["status"] == status
    assert state in render.states_of(status)


def test_an_unknown_status_has_no_states() -> None:
    assert not render.states_of("done")


def test_a_result_goes_in_byte_for_byte() -> None:
    result = b'{"id": "chatcmpl-1", "x": 1.10}'

    assert result in render.job(a_view(JobState.COMPLETED), result)
    assert json.loads(render.job(a_view(JobState.COMPLETED), result))["result"]["x"] == 1.1


def test_dollars_are_plain_decimals_and_unknown_ones_null() -> None:
    priced = json.loads(render.job(a_view(charges=(a_line(Decimal("0.0000000120")),))))["pointsman"]
    unpriced = json.loads(render.job(a_view(charges=(a_line(None),))))["pointsman"]

    assert (priced["usd"], priced["charges"][0]["usd"]) == ("0.000000012", "0.000000012")
    assert (unpriced["usd"], unpriced["charges"][0]["usd"]) == (None, None)


def test_a_page_names_its_ends() -> None:
    page = json.loads(render.page([a_view(), a_view()], more_after=ID))
    empty = json.loads(render.page([]))

    assert (page["first_id"], page["last_id"], page["has_more"], len(page["data"])) == (
        f"job_{ID}",
        f"job_{ID}",
        True,
        2,
    )
    assert empty == {"object": "list", "first_id": None, "last_id": None, "has_more": False, "data": []}


def test_a_page_on_which_nothing_was_found_yet_says_where_to_go_on() -> None:
    page = json.loads(render.page([], more_after=ID))

    assert (page["data"], page["has_more"], page["last_id"]) == ([], True, f"job_{ID}")


@pytest.mark.parametrize("text", [ID, f"job_{ID}", f"chatcmpl-{ID}", f"resp_{ID}"])
def test_an_id_is_taken_with_any_of_its_prefixes(text: str) -> None:
    assert render.job_id(text) == ID


@pytest.mark.parametrize(
    "text", ["", "job_", ID[:-1], ID + "0", ID.lower(), f"job_job_{ID}", f"{ID}\n", "8" * 26, "../" + ID, ID[:-1] + "٣"]
)
def test_what_cannot_be_an_id_is_none(text: str) -> None:
    assert render.job_id(text) is None


def test_answer_headers_say_where_it_ran_and_what_it_cost() -> None:
    done = a_view(JobState.COMPLETED, charges=(a_line(Decimal("0.003")),))

    assert render.answer_headers(done) == {
        "x-pointsman-lane": "gpu.text.light",
        "x-pointsman-model": "small",
        "x-pointsman-cost-usd": "0.003",
    }
    assert "x-pointsman-cost-usd" not in render.answer_headers(a_view())
    assert "x-pointsman-cost-usd" not in render.answer_headers(replace(done, charges=(a_line(None),)))


def test_rate_headers_name_only_the_limits_that_there_are() -> None:
    assert render.rate_headers(Rooms()) == {}
    assert render.rate_headers(Rooms(requests=Room(60, 59, 1.0))) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1.000s",
    }


def test_a_whole_answer_can_be_read_as_a_stream() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    answer = {
        "id": f"chatcmpl-{ID}",
        "object": "chat.completion",
        "created": 1,
        "model": "small",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "tool_calls": [call]},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": usage,
    }

    chunks = [json.loads(chunk) for chunk in render.chunks_of(json.dumps(answer).encode(), include_usage=True)]

    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"] == {
        "role": "assistant",
        "content": "Hi",
        "tool_calls": [{"index": 0, **call}],
    }
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:2]] == [None, "tool_calls"]
    assert (chunks[2]["choices"], chunks[2]["usage"]) == ([], usage)
    assert len(list(render.chunks_of(json.dumps(answer).encode(), include_usage=False))) == 2
