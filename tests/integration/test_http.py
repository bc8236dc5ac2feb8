"""The HTTP door on real parts: a Valkey, Redis Streams, a worker with the echo backend, and a real server."""

import asyncio
import gzip
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ulid import ULID

from gateway.settings import HttpSettings
from router.board import Conclusion
from router.job import Job, JobState
from tests.builders import IMPATIENT_S, PATIENCE_S, until
from tests.gateway import Gateway, a_body, running

MIB = 1024 * 1024


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as gateway:
        yield gateway


async def first_job(gateway: Gateway, state: JobState = JobState.QUEUED) -> Job:
    async with asyncio.timeout(PATIENCE_S):
        while not (views := (await gateway.core.board.page("acme", states=[state], limit=1, after="")).views):
            await asyncio.sleep(0.01)
    return views[0].job


async def test_a_waiting_call_gets_the_answer_and_where_it_came_from(gateway: Gateway) -> None:
    answer = await gateway.chat("Hello there", max_tokens=10)

    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "Hello there"
    assert answer.headers["x-pointsman-lane"] == "echo.text.light"
    assert answer.headers["x-pointsman-model"] == "light"
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("way", [{"json": a_body("Hello", **{"async": True})}, {"json": a_body("Hello")}])
async def test_an_async_call_gets_a_job_that_completes(gateway: Gateway, way: dict[str, Any]) -> None:
    headers = {} if "async" in way["json"] else {"prefer": "respond-async, wait=5"}

    answer = await gateway.http.post("/v1/chat/completions", headers=headers, **way)

    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert int(answer.headers["retry-after"]) >= 1
    done = await gateway.job(job["id"])
    assert done["status"] == "completed"
    assert done["result"]["choices"][0]["message"]["content"] == "Hello"


async def test_the_sdk_creates_streams_and_retrieves(gateway: Gateway) -> None:
    async with gateway.sdk() as sdk:
        chat = sdk.chat.completions
        said = [{"role": "user", "content": "one two three"}]
        whole = await chat.create(model="auto", messages=said)  # type: ignore[arg-type]
        stream = await chat.create(  # type: ignore[call-overload]
            model="light", messages=said, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        job = await chat.create(model="small", messages=said, extra_body={"async": True})  # type: ignore[arg-type]
        await gateway.job(job.id)
        later = await chat.retrieve(job.id)

    assert whole.choices[0].message.content == later.choices[0].message.content == "one two three"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "one two three"
    assert chunks[-1].usage.completion_tokens == 3
    assert later.id == f"chatcmpl-{job.id.removeprefix('job_')}"


async def test_a_stream_ends_with_done_and_carries_its_headers(gateway: Gateway) -> None:
    answer = await gateway.chat("a b", stream=True)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-pointsman-lane"] == "echo.text.light"
    events = answer.text.split("\n\n")
    assert all(event.startswith("data: ") for event in events[:-1])
    assert events[-2:] == ["data: [DONE]", ""]


async def test_a_failure_in_the_middle_of_a_stream_is_an_error_event_without_done(tmp_path: Path) -> None:
    async with running(tmp_path, works=False) as gateway:
        reading = asyncio.create_task(gateway.chat("Hello", stream=True))
        job = await first_job(gateway)
        board, owner = gateway.core.board, "nobody|test"
        await board.claim(job, owner, lease_s=20)
        await board.start(job, owner, most_deliveries=3, microbatch="")
        await board.add_chunks(job, owner, 1, [b'{"choices":[]}'], before=0, ttl_s=60)
        error = {"message": "The stream broke.", "type": "upstream_error", "code": "cut", "param": None}
        await board.finish(job, owner, Conclusion(JobState.FAILED, "{}", error=error))
        answer = await reading

    assert answer.status_code == 200
    pieces = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-1]]
    assert pieces == [{"choices": []}, {"error": error | {"type": "server_error"}}]


async def test_what_came_before_a_stream_broke_is_told_though_the_break_was_found_at_the_same_time(
    tmp_path: Path,
) -> None:
    def says(word: str) -> bytes:
        return json.dumps({"choices": [{"index": 0, "delta": {"content": word}}]}).encode()

    async with running(tmp_path, works=False) as gateway:
        reading = asyncio.create_task(gateway.chat("Hello", stream=True))
        job = await first_job(gateway)
        board, owner = gateway.core.board, "nobody|test"
        await board.claim(job, owner, lease_s=20)
        await board.start(job, owner, most_deliveries=3, microbatch="")
        await asyncio.gather(  # in one round trip, so that they are read at once
            board.add_chunks(job, owner, 1, [says("one"), says(" two")], before=0, ttl_s=60),
            board.add_chunks(job, owner, 2, [says("three")], before=0, ttl_s=60),
        )
        answer = await reading

    pieces = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-1]]
    assert [piece["choices"][0]["delta"]["content"] for piece in pieces[:-1]] == ["one", " two"]
    assert pieces[-1]["error"]["code"] == "stream_broken"


async def test_a_frozen_board_is_a_503_with_a_time_and_shows_in_readiness(tmp_path: Path) -> None:
    async with running(tmp_path, board={"socket_timeout_s": IMPATIENT_S}) as gateway:
        await gateway.chat("Hello")
        os.kill(gateway.redis_pid, signal.SIGSTOP)
        try:
            refused = await gateway.chat("Hello", **{"async": True})
            ready = await gateway.http.get("/readyz")
            alive = await gateway.http.get("/healthz")
        finally:
            os.kill(gateway.redis_pid, signal.SIGCONT)

        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "board_unavailable")
        assert refused.headers["x-should-retry"] == "true"
        assert int(refused.headers["retry-after"]) >= 1
        assert (ready.status_code, set(ready.json()["faults"])) == (503, {"board", "log"})
        assert alive.status_code == 200
        async with asyncio.timeout(PATIENCE_S):
            while (await gateway.http.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.1)


async def test_a_failure_before_the_first_piece_is_an_ordinary_error(gateway: Gateway) -> None:
    for stream in (False, True):
        answer = await gateway.chat("fail:rejected", stream=stream)

        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert answer.headers["x-should-retry"] == "false"


async def test_a_job_that_failed_is_its_error_when_retrieved_as_a_completion(gateway: Gateway) -> None:
    job = (await gateway.chat("fail:rejected", **{"async": True})).json()
    seen = await gateway.job(job["id"])

    answer = await gateway.http.get(f"/v1/chat/completions/{job['id']}")

    assert (seen["status"], seen["result"]) == ("failed", None)
    assert answer.status_code == 400


async def test_a_job_that_runs_is_202_and_can_be_cancelled_again_and_again(gateway: Gateway) -> None:
    job = (await gateway.chat("wait:60 please", **{"async": True})).json()
    running = await gateway.http.get(f"/v1/chat/completions/{job['id']}")

    first = await gateway.http.post(f"/v1/jobs/{job['id']}/cancel")
    ended = await gateway.job(job["id"])
    second = await gateway.http.post(f"/v1/jobs/{job['id']}/cancel")

    assert (running.status_code, first.status_code, second.status_code) == (202, 200, 200)
    assert first.json()["status"] == ended["status"] == second.json()["status"] == "cancelled"
    assert (await gateway.http.get(f"/v1/chat/completions/{job['id']}")).status_code == 409


async def test_a_job_that_is_cancelled_before_anybody_runs_it_is_counted_once(tmp_path: Path) -> None:
    async with running(tmp_path, works=False) as gateway:
        job = (await gateway.chat("Hello", **{"async": True})).json()
        for _ in range(2):
            await gateway.http.post(f"/v1/jobs/{job['id']}/cancel")

        text = (await gateway.http.get("/metrics")).text
        assert 'pointsman_jobs_ended_total{class="standard",lane="echo.text.light",state="cancelled"} 1.0' in text


async def test_while_the_board_is_lost_no_job_is_said_to_be_gone_and_none_is_cancelled(tmp_path: Path) -> None:
    async with running(tmp_path, works=False) as gateway:
        known = (await gateway.chat("Hello", **{"async": True})).json()["id"]
        lost = f"job_{ULID()}"
        before = await gateway.http.get(f"/v1/jobs/{lost}")
        name = await gateway.core.board.epoch()
        await gateway.core.board.end_epoch(name or "")
        await gateway.core.epoch.look()

        answers = [await gateway.http.get(f"/v1/jobs/{lost}"), await gateway.http.post(f"/v1/jobs/{known}/cancel")]

        assert before.status_code == 404
        assert [(each.status_code, each.json()["error"]["code"]) for each in answers] == [
            (503, "board_unavailable")
        ] * 2
        assert all("retry-after" in each.headers for each in answers)
        assert (await gateway.http.get(f"/v1/jobs/{known}")).json()["status"] == "queued"


async def test_who_waits_while_the_board_is_lost_and_made_anew_gets_the_answer(tmp_path: Path) -> None:
    async with running(tmp_path, works=False) as gateway:
        core, owner = gateway.core, "nobody|test"
        await core.epoch.look()
        waiting = asyncio.create_task(gateway.chat("Hello"))
        job = await first_job(gateway)
        await core.redis.delete("board:epoch", f"{{t:acme}}:job:{job.id}")
        seen = await _scripts_run(gateway)
        await until(lambda: _has_looked_since(gateway, seen))
        await core.board.begin_epoch("anew", only_first=True)
        await core.board.claim(job, owner, lease_s=20)
        await core.board.finish(job, owner, Conclusion(JobState.COMPLETED, "{}", result=b'{"id":"x"}'))
        answer = await waiting

    assert (answer.status_code, answer.json()) == (200, {"id": "x"})


async def _scripts_run(gateway: Gateway) -> int:
    return int((await gateway.core.redis.info("commandstats"))["cmdstat_evalsha"]["calls"])


async def _has_looked_since(gateway: Gateway, seen: int) -> bool:
    """For the job, then for the epoch, and again."""
    return await _scripts_run(gateway) >= seen + 4


async def test_a_job_is_deleted_once_it_has_ended(gateway: Gateway) -> None:
    running = (await gateway.chat("wait:60 please", **{"async": True})).json()
    done = (await gateway.chat("Hello", **{"async": True})).json()
    await gateway.job(done["id"])

    assert (await gateway.http.delete(f"/v1/jobs/{running['id']}")).status_code == 409
    assert (await gateway.http.delete(f"/v1/jobs/{done['id']}")).json()["deleted"] is True
    assert (await gateway.http.get(f"/v1/jobs/{done['id']}")).status_code == 404
    assert (await gateway.http.delete(f"/v1/jobs/{done['id']}")).status_code == 404
    await gateway.http.post(f"/v1/jobs/{running['id']}/cancel")


async def test_pages_go_from_the_newest_to_the_oldest(gateway: Gateway) -> None:
    ids = [(await gateway.chat(f"Hello {i}", **{"async": True})).json()["id"] for i in range(3)]
    for job_id in ids:
        await gateway.job(job_id)

    first = (await gateway.http.get("/v1/jobs?limit=2&status=completed")).json()
    rest = (await gateway.http.get(f"/v1/jobs?limit=2&after={first['last_id']}")).json()

    assert sorted(job["id"] for job in first["data"] + rest["data"]) == sorted(ids)
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert (await gateway.http.get("/v1/jobs?status=failed")).json()["data"] == []


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=x", "limit"), ("status=odd", "status"), ("status=", "status"), ("after=1", "after")],
)
async def test_a_bad_query_names_its_parameter(gateway: Gateway, query: str, param: str) -> None:
    answer = await gateway.http.get(f"/v1/jobs?{query}")

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_another_tenants_job_is_not_there(gateway: Gateway) -> None:
    job = (await gateway.chat("Hello", **{"async": True})).json()
    others = {"authorization": f"Bearer {gateway.other_key}"}

    answers = [
        await gateway.http.get(f"/v1/jobs/{job['id']}", headers=others),
        await gateway.http.get(f"/v1/chat/completions/{job['id']}", headers=others),
        await gateway.http.post(f"/v1/jobs/{job['id']}/cancel", headers=others),
        await gateway.http.delete(f"/v1/jobs/{job['id']}", headers=others),
        await gateway.http.get("/v1/jobs/job_x"),
    ]

    assert [answer.status_code for answer in answers] == [404] * 5
    assert (await gateway.job(job["id"]))["status"] == "completed"


async def test_a_key_makes_one_job_of_two_requests(gateway: Gateway) -> None:
    async def create(text: str) -> httpx2.Response:
        body = a_body(text, **{"async": True})
        return await gateway.http.post("/v1/chat/completions", json=body, headers={"idempotency-key": "order-17"})

    first, second, other = await create("Hello"), await create("Hello"), await create("Goodbye")

    assert first.json()["id"] == second.json()["id"]
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


async def test_a_repeated_stream_is_read_again(gateway: Gateway) -> None:
    async def read() -> str:
        headers = {"idempotency-key": "order-18"}
        return (await gateway.http.post("/v1/chat/completions", json=a_body("a b", stream=True), headers=headers)).text

    assert await read() == await read()


async def test_the_models_are_the_tenants_own(gateway: Gateway) -> None:
    mine = (await gateway.http.get("/v1/models")).json()["data"]
    others = await gateway.http.get("/v1/models", headers={"authorization": f"Bearer {gateway.other_key}"})

    assert [m["id"] for m in mine] == ["auto", "auto:light", "auto:heavy", "light", "heavy", "small"]
    assert [m["id"] for m in others.json()["data"]] == ["auto", "auto:light", "auto:heavy", "heavy"]
    assert (await gateway.http.get("/v1/models/auto:light")).json()["id"] == "auto:light"
    assert (await gateway.http.get("/v1/models/gpt-9")).json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_who_hangs_up_cancels_the_job_unless_it_is_to_be_stored(gateway: Gateway, stream: bool) -> None:
    for store, text, expected in ((False, "wait:60 please", "cancelled"), (True, "wait:1 please", "completed")):
        waiting = asyncio.create_task(gateway.chat(text, stream=stream, store=store))
        job = await first_job(gateway, JobState.RUNNING)
        waiting.cancel()
        await asyncio.wait([waiting])

        assert (await gateway.job(job.id))["status"] == expected


async def test_a_long_poll_ends_when_its_time_is_over(gateway: Gateway) -> None:
    job = (await gateway.chat("wait:60 please", **{"async": True})).json()

    answer = await gateway.http.get(f"/v1/jobs/{job['id']}?wait=1")

    assert answer.json()["status"] in ("queued", "in_progress")
    await gateway.http.post(f"/v1/jobs/{job['id']}/cancel")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer pm-wrong-but-long-enough-key", "Basic abc"])
async def test_without_a_key_nothing_is_read(gateway: Gateway, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    async with httpx2.AsyncClient(base_url=gateway.url) as client:
        answer = await client.post("/v1/chat/completions", content=b"x" * 8 * MIB, headers=headers)

    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"model": NaN}', "application/json", 400),
        (b'{"a":' * 200, "application/json", 400),
        (b'{"model": "auto", "messages": []}', "application/json; charset=utf-8", 400),
        (b'{"model": "gpt-9", "messages": [{"role": "user", "content": "a"}]}', "application/json", 404),
        (b"{}", "text/plain", 415),
        (b"{}", "application/json; charset=latin-1", 415),
        (b"{}", "", 415),
    ],
)
async def test_bad_input_is_a_clean_refusal_and_no_job(
    gateway: Gateway, content: bytes, content_type: str, status: int
) -> None:
    answer = await gateway.http.post(
        "/v1/chat/completions", content=content, headers={"content-type": content_type} if content_type else {}
    )

    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert (await gateway.http.get("/v1/jobs")).json()["data"] == []


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/v1/chat/completions", "application/json"),
        ("/v1/files", "multipart/form-data; boundary=b"),
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=b"),
    ],
)
async def test_a_compressed_body_is_refused_as_what_it_is(gateway: Gateway, path: str, content_type: str) -> None:
    headers = {"content-type": content_type, "content-encoding": "gzip"}

    answer = await gateway.http.post(path, content=gzip.compress(b"{}"), headers=headers)

    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert "Content-Encoding" in answer.json()["error"]["message"]


PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}


async def test_pages_may_call_where_the_operator_named_their_origin(tmp_path: Path) -> None:
    ours, theirs = {"origin": "http://localhost:3000"}, {"origin": "https://elsewhere.example"}
    async with running(tmp_path, http=HttpSettings(cors_origins=(ours["origin"],))) as gateway:
        asked = await gateway.http.options("/v1/chat/completions", headers=ours | PREFLIGHT)
        stranger = await gateway.http.options("/v1/chat/completions", headers=theirs | PREFLIGHT)
        body = a_body("Hello", stream=True)
        answer = await gateway.http.post("/v1/chat/completions", json=body, headers=ours)
        refused = await gateway.http.post("/v1/chat/completions", json={}, headers=ours)
        other = await gateway.http.post("/v1/chat/completions", json=body, headers=theirs)

    assert asked.status_code == 200
    assert set(PREFLIGHT["access-control-request-headers"].split(",")) <= set(
        asked.headers["access-control-allow-headers"].split(",")
    )
    assert "POST" in asked.headers["access-control-allow-methods"]
    for seen in (asked, answer, refused):
        assert seen.headers["access-control-allow-origin"] == ours["origin"]
        assert "access-control-allow-credentials" not in seen.headers
    assert (answer.status_code, refused.status_code, other.status_code) == (200, 400, 200)
    assert "x-request-id" in refused.headers["access-control-expose-headers"]
    assert "[DONE]" in answer.text
    for unseen in (stranger, other):
        assert "access-control-allow-origin" not in unseen.headers


async def test_no_page_may_call_where_nobody_said_so(gateway: Gateway) -> None:
    headers = {"origin": "http://localhost:3000"}

    asked = await gateway.http.options("/v1/chat/completions", headers=headers | PREFLIGHT)
    answer = await gateway.http.get("/v1/models", headers=headers)

    assert (asked.status_code, answer.status_code) == (405, 200)
    assert not [name for name in (*asked.headers, *answer.headers) if name.startswith("access-control")]


async def test_what_is_not_there_has_openais_error_body(gateway: Gateway) -> None:
    for method, path, status in [
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/jobs/", 404),
        ("PUT", "/v1/jobs", 405),
        ("GET", "/v1/chat/completions", 405),
    ]:
        answer = await gateway.http.request(method, path)

        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"]


async def test_a_body_that_is_too_large_is_refused_by_its_length_and_as_it_comes(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * MIB

    headers = {"content-type": "application/json"}
    async with running(tmp_path, http=HttpSettings(max_body=MIB)) as gateway:
        for content in (b" " * 40 * MIB, pieces()):
            answer = await gateway.http.post("/v1/chat/completions", content=content, headers=headers)

            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


async def test_more_in_flight_than_allowed_is_refused_with_a_time(tmp_path: Path) -> None:
    may_go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        body = json.dumps(a_body("Hello")).encode()
        yield body[:10]
        await may_go_on.wait()
        yield body[10:]

    async with running(tmp_path, http=HttpSettings(max_in_flight=1)) as gateway:
        headers = {"content-type": "application/json"}
        slow = asyncio.create_task(gateway.http.post("/v1/chat/completions", content=slowly(), headers=headers))
        await until(lambda: _in_flight(gateway, 1))
        refused = await gateway.chat("Hello")
        may_go_on.set()

        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after-ms"]) > 0
        assert (await slow).status_code == 200


async def _in_flight(gateway: Gateway, requests: int) -> bool:
    metrics = await gateway.http.get("/metrics")
    return f"pointsman_http_inflight_requests {requests:.1f}\n" in metrics.text


async def test_health_readiness_and_metrics_need_no_key(gateway: Gateway) -> None:
    await gateway.chat("Hello")
    async with httpx2.AsyncClient(base_url=gateway.url) as client:
        alive, ready, metrics = [await client.get(path) for path in ("/healthz", "/readyz", "/metrics")]

    assert (alive.status_code, ready.status_code) == (200, 200)
    assert ready.json() == {"ready": True, "faults": {}}
    assert 'pointsman_http_requests_total{route="/v1/chat/completions",status="200"} 1.0' in metrics.text


async def test_paths_and_models_that_are_not_there_make_no_series(gateway: Gateway) -> None:
    for i in range(5):
        await gateway.http.get(f"/v1/nothing/{i}")
        await gateway.chat("Hello", model=f"gpt-{i}")

    text = (await gateway.http.get("/metrics")).text
    assert "nothing" not in text
    assert "gpt-" not in text


async def test_an_outcome_may_be_told_as_soon_as_the_job_is_accepted(tmp_path: Path) -> None:
    async with running(tmp_path, works=False) as gateway:
        kept = []
        for model in ("auto", "small"):
            job = (await gateway.chat("Where is Pemba?", model=model, **{"async": True})).json()["id"]
            kept.append((await gateway.http.post(f"/v1/jobs/{job}/outcome", json={"score": 1})).json()["kept"])

    assert kept == [True, False]


async def test_an_outcome_is_kept_for_jobs_that_a_score_decided(gateway: Gateway) -> None:
    scored, named = [(await gateway.chat("Where is Pemba?", model=name)).json()["id"] for name in ("auto", "small")]

    async def tell(completion: str, **fields: Any) -> httpx2.Response:
        return await gateway.http.post(f"/v1/jobs/{completion}/outcome", json=fields)

    told = (await tell(scored, score=0.5)).json()
    assert (told["object"], told["score"], told["kept"]) == ("job.outcome", 0.5, True)
    assert (await tell(named, score=1)).json()["kept"] is False
    for wrong in ({}, {"score": 2}, {"score": True}, {"score": "1"}, {"score": 1, "text": "x"}):
        assert (await tell(scored, **wrong)).status_code == 400
    assert (await tell("job_01KB7M4Q3M7C9V2W6T8X0Y1Z2A", score=1)).status_code == 404
    [lesson] = [lesson async for lesson in gateway.core.lessons.read("acme")]
    assert [outcome.quality for outcome in lesson.outcomes.values()] == [0.5]
