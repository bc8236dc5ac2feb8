"""`pointsman submit|watch|jobs|cancel|pilot` and `router` against a gateway that runs, as its user types them."""

import asyncio
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from tests.acceptance.processes import ROOT, Pointsman, Process, pointsman
from tools.kafka.broker import free_ports

LIMIT_S = 120  # only so that nothing hangs


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pointsman, Process]]:
    folder = tmp_path_factory.mktemp("up")
    price = {"input": "0.1", "output": "0.4"}
    light = {"backend": "echo", "model": "echo", "tier": "light", "price": price, "limits": {"concurrency": 8}}
    heavy = light | {"tier": "heavy", "price": {"input": "2", "output": "8"}, "limits": {"concurrency": 8}}
    deployments = {"light": light, "heavy": heavy}
    with pointsman(folder, {"data": str(folder / "data"), "deployments": deployments}) as ours:
        [port] = free_ports(1)
        yield ours, asyncio.run(ours.up(port).ready())


def command(up: tuple[Pointsman, Process], *words: str) -> "subprocess.Popen[str]":
    ours, process = up
    environ = os.environ | {"OPENAI_BASE_URL": f"{process.url}/v1", "POINTSMAN_API_KEY": ours.key, "COLUMNS": "200"}
    command = [sys.executable, "-m", "gateway.cli", *words]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(up: tuple[Pointsman, Process], *words: str, code: int = 0) -> tuple[str, str]:
    """What a command prints, and what it says beside."""
    with command(up, *words) as running:
        out, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == code, out + err
    return out, err


def client(up: tuple[Pointsman, Process]) -> openai.OpenAI:
    ours, process = up
    return ours.refusals.sdk(process.url, ours.key)


def an_input(path: Path, lines: int, text: str, **change: Any) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for number in range(lines):
            body = {"model": "light", "messages": [{"role": "user", "content": f"{text} {number}"}]}
            asked = {"custom_id": f"l{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(asked | change) + "\n")
    return path


def ids(path: Path) -> list[str]:
    return sorted(json.loads(line)["custom_id"] for line in path.read_text(encoding="utf-8").splitlines())


def test_submit_goes_on_after_ctrl_c_with_the_same_batch(up: tuple[Pointsman, Process], tmp_path: Path) -> None:
    file = an_input(tmp_path / "in.jsonl", 120, "wait:0.8")  # twelve seconds, however late this reads what is said
    with client(up) as sdk:
        before = {batch.id for batch in sdk.batches.list()}
        with command(up, "submit", str(file)) as running:
            assert running.stderr is not None
            while "is submitted" not in running.stderr.readline():
                assert running.poll() is None
            running.send_signal(signal.SIGINT)
            _, told = running.communicate(timeout=LIMIT_S)
        assert running.returncode == 130, told
        assert "takes it up again" in told

        out, _ = said(up, "submit", str(file))
        [batch] = [batch for batch in sdk.batches.list() if batch.id not in before]

    assert batch.status == "completed"
    assert "120 of 120 lines" in out
    assert ids(tmp_path / "in.out.jsonl") == sorted(f"l{number}" for number in range(120))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "in.out.jsonl"]


def test_submit_says_that_the_gateway_is_away_and_goes_on_once_it_is_there(tmp_path: Path) -> None:
    file, [port] = an_input(tmp_path / "in.jsonl", 3, "Hello"), free_ports(1)
    light = {"backend": "echo", "model": "echo", "tier": "light"}
    with pointsman(tmp_path / "late", {"data": str(tmp_path / "data"), "deployments": {"light": light}}) as ours:
        late = ours, Process("up", None, tmp_path, port)  # type: ignore[arg-type]
        with command(late, "submit", str(file)) as running:
            assert running.stderr is not None
            away = running.stderr.readline()
            asyncio.run(ours.up(port).ready())
            out, _ = running.communicate(timeout=LIMIT_S)

    assert "does not answer" in away and "asked again" in away
    assert running.returncode == 0
    assert "3 of 3 lines" in out
    assert ids(tmp_path / "in.out.jsonl") == ["l0", "l1", "l2"]


def test_the_dollars_of_each_batch_are_shown(up: tuple[Pointsman, Process], tmp_path: Path) -> None:
    ours, _ = up
    file = an_input(tmp_path / "in.jsonl", 30, "some words")
    said(up, "submit", str(file))
    with client(up) as sdk:
        batch = next(iter(sdk.batches.list()))

    printed = ours.command("costs", "--by", "batch", "--json", "--data", str(ours.data))
    rows = {row["name"]: row for row in map(json.loads, printed.splitlines())}
    lines = [json.loads(line) for line in (tmp_path / "in.out.jsonl").read_text(encoding="utf-8").splitlines()]

    mine = rows[batch.id]
    assert Decimal(mine["usd"]) == sum(Decimal(line["pointsman"]["usd"]) for line in lines) > 0
    assert (mine["jobs"], mine["retries"]) == (30, 0)
    assert batch.usage is not None and mine["tokens"] == batch.usage.total_tokens
    assert all(name.startswith("batch_") for name in rows)


def test_submit_keeps_both_files_and_says_by_its_exit_code_that_a_line_failed(
    up: tuple[Pointsman, Process], tmp_path: Path
) -> None:
    file = an_input(tmp_path / "in.jsonl", 3, "fail:rejected")

    out, _ = said(up, "submit", str(file), "--output", str(tmp_path / "o"), "--errors", str(tmp_path / "e"), code=1)

    assert "0 of 3 lines" in out
    assert ids(tmp_path / "e") == ["l0", "l1", "l2"]
    assert not (tmp_path / "o").exists()


def test_submit_names_the_lines_that_cannot_be_used(up: tuple[Pointsman, Process], tmp_path: Path) -> None:
    file = an_input(tmp_path / "in.jsonl", 2, "Hello", method="GET")

    _, err = said(up, "submit", str(file), code=1)

    assert "line 1: The method of this line must be POST. (invalid_method)" in err
    assert "line 2" in err


def test_pilot_says_what_all_lines_cost_and_submits_them_when_told(
    up: tuple[Pointsman, Process], tmp_path: Path
) -> None:
    file = an_input(tmp_path / "in.jsonl", 60, "wait:0.02 some words")

    out, _ = said(up, "pilot", str(file), "--items", "20", "--seed", "1")
    assert "20 of 20 lines completed, out of 60 in the file" in out
    assert "dollars" in out and "minutes" in out and " to " in out
    assert not (tmp_path / "in.out.jsonl").exists()

    out, _ = said(up, "pilot", str(file), "--items", "20", "--yes")
    assert "60 of 60 lines" in out
    assert len(ids(tmp_path / "in.out.jsonl")) == 60


def test_a_pilot_counts_with_where_auto_would_send_each_line_of_the_whole_file(
    up: tuple[Pointsman, Process], tmp_path: Path
) -> None:
    file, draw = tmp_path / "in.jsonl", random.Random(1)
    with file.open("w", encoding="utf-8") as lines:
        for number in range(240):
            hard = "Prove by induction, step by step, that the algorithm is correct and derive its complexity: "
            text = (hard if number % 6 == 0 else "Say hello ") + " ".join(["word"] * draw.randrange(5, 60))
            body = {"model": "auto", "messages": [{"role": "user", "content": f"{text} {number}"}]}
            asked = {"custom_id": f"l{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            lines.write(json.dumps(asked) + "\n")

    out, _ = said(up, "pilot", str(file), "--items", "24", "--seed", "4")
    [row] = [line for line in out.splitlines() if "dollars" in line and "not known" not in line]
    by_tier = [line for line in out.splitlines() if "lines at" in line]
    least, most = map(float, re.findall(r"[0-9.]+", row)[-2:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]
    said(up, "submit", str(file))
    answers = [json.loads(line) for line in (tmp_path / "in.out.jsonl").read_text(encoding="utf-8").splitlines()]
    usd = sum(Decimal(line["pointsman"]["usd"]) for line in answers)
    heavy = sum(line["pointsman"]["deployment"] == "heavy" for line in answers)

    assert len(by_tier) == 2 and 0 < heavy < 240
    [told] = [int(found[1]) for line in by_tier if (found := re.search(r"([0-9]+) lines at heavy", line))]
    assert abs(told - heavy) <= 2 * math.sqrt(told)  # the share moves on with every call
    assert least <= usd <= most


def test_watch_jobs_and_cancel(up: tuple[Pointsman, Process], tmp_path: Path) -> None:
    with client(up) as sdk:
        job = sdk.chat.completions.create(
            model="light", messages=[{"role": "user", "content": "Hello"}], extra_body={"async": True}
        )
    watched, _ = said(up, "watch", job.id)
    file = an_input(tmp_path / "in.jsonl", 30, "wait:60")
    _, err = said(up, "submit", str(file), "--no-wait")
    batch_id = next(word for word in err.split() if word.startswith("batch_"))

    listed, _ = said(up, "jobs", "--status", "completed", "--json")
    cancelled, _ = said(up, "cancel", batch_id)
    ended, _ = said(up, "watch", batch_id, code=1)

    assert json.loads(watched)["status"] == "completed"
    assert job.id in {json.loads(line)["id"] for line in listed.splitlines()}
    assert cancelled == f"{batch_id}: cancelling\n"
    assert "cancelled: 0 of 30 lines" in ended


async def test_the_router_says_what_it_has_learned_and_what_another_policy_would_do(
    up: tuple[Pointsman, Process], tmp_path: Path
) -> None:
    ours, _ = up
    of = ("--tenant", "default")
    kept = yaml.safe_load(ours.config.read_text(encoding="utf-8"))
    other = {"deployments": kept["deployments"], "routing": {"heavy_percent": 0}}  # and no folder in which one runs
    policy = tmp_path / "other.yaml"
    policy.write_text(yaml.safe_dump(other), encoding="utf-8")
    with client(up) as sdk:
        for text in ("Prove that there are infinitely many primes.", "Hello"):
            job = sdk.chat.completions.create(
                model="auto", messages=[{"role": "user", "content": text}], extra_body={"async": True}
            )
            sdk.post(f"/jobs/{job.id}/outcome", body={"score": 1}, cast_to=object)

    def replayed() -> dict[str, Any]:
        return dict(json.loads(ours.command("router", "replay", *of, "--policy", str(policy))))

    async with asyncio.timeout(LIMIT_S):
        while (found := await asyncio.to_thread(replayed))["was"]["outcomes"] < 2:
            await asyncio.sleep(0.1)

    assert found["jobs"] >= 2 and found["would_be"]["heavy_percent"] == 0
    assert "are too few" in ours.refused("router", "fit", *of)
    assert ours.command("router", "versions", *of) == "the shipped weights are in use\n"
    assert "there is no version 7" in ours.refused("router", "rollback", *of, "--to", "7")
    assert "there is no tenant 'acme'" in ours.refused("router", "fit", "--tenant", "acme")


def test_what_is_wrong_is_said_in_one_line(up: tuple[Pointsman, Process], tmp_path: Path) -> None:
    file = an_input(tmp_path / "in.jsonl", 1, "Hello")
    for words, what in (
        (("jobs", "--key", "sk-pm-not-a-key-of-anybody-4711"), "Incorrect API key"),
        (("watch", "batch_01K00000000000000000000000"), "There is no such batch"),
        (("jobs", "--url", "http://127.0.0.1:1/v1"), "does not answer at http://127.0.0.1:1/v1"),
        (("submit", str(file), "--window", "25h"), "completion_window"),
        (("jobs", "--url", up[1].url + "/metrics?"), "is this the address of a Pointsman"),
        (("jobs", "--url", "127.0.0.1:4000/v1"), "reads like http://"),
        (("jobs", "--key", f"{up[0].key}\r"), "such as an end of line"),
        (("jobs", "--status", "done"), "'in_progress'"),
    ):
        _, err = said(up, *words, code=1)
        assert what in err and "Traceback" not in err
        assert "ten minutes" not in err, "that is for those who go on"


def test_submit_sends_nothing_when_its_answers_could_not_be_kept(up: tuple[Pointsman, Process], tmp_path: Path) -> None:
    file = an_input(tmp_path / "in.jsonl", 1, "Hello")
    with client(up) as sdk:
        before = [each.id for each in sdk.files.list()]
        for words in (("--output", "nowhere/out.jsonl"), ("--errors", str(tmp_path)), ("--output", str(file))):
            _, err = said(up, "submit", str(file), *words, code=2)
            assert words[0] in err
        assert [each.id for each in sdk.files.list()] == before
    assert ids(file) == ["l0"]
