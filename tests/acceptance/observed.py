"""A whole cluster as processes, and a bit of everything that can happen in one: for those who look at what it shows."""

import asyncio
import json
import os
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from openai import AsyncOpenAI
from redis.asyncio import Redis

from router.log import Record
from router.log_kafka import KafkaLog
from tests.acceptance.processes import ROOT, Pointsman, Process, pointsman
from tests.aws import CREDENTIALS, REGION, AwsPlace
from tests.doubles import OpenAIDouble, aws_double, openai_double
from tests.engines import EngineDouble, engine_double
from tests.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.prometheus import Prometheus, prometheus
from tests.servers import a_valkey
from tools.kafka.broker import free_ports

MARKER = "zyxwvu-marker-0815"  # in everything that a client says and a model answers
NOTE = "wvutsr-note-2342"  # a client's own text about a job
SECRET = "whsec_" + b64encode(b"hook-secret-of-the-observed-run").decode()
UPSTREAM_KEY = "sk-upstream-observed-4711"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LANE = "gpu.text.light"
RULES = ROOT / "charts" / "pointsman" / "rules" / "alerts.yaml"
ENDS_S = 60.0


@dataclass(frozen=True, slots=True)
class Observed:
    """It ran, and still does."""

    ours: Pointsman
    processes: dict[str, Process]
    traces: OtlpReceiver
    prometheus: Prometheus
    kafka: str
    prefix: str
    redis: str
    keys: tuple[str, ...]  # every API key that was used
    errors: list[str]  # bodies of all answers that were no success

    async def metrics(self, name: str) -> str:
        """What a process shows."""
        async with httpx2.AsyncClient() as http:
            return (await http.get(f"{self.processes[name].url}/metrics")).text

    @asynccontextmanager
    async def log(self) -> AsyncIterator[KafkaLog]:
        """The topics."""
        async with KafkaLog.connect(self.kafka, prefix=self.prefix) as log:
            yield log


@contextmanager
def observed(folder: Path, kafka: str) -> Iterator[Observed]:
    """All processes of a cluster; they run until the block ends. Everything has happened once it begins."""
    with ExitStack() as opened:
        traces = opened.enter_context(otlp_receiver())
        upstream, aws = opened.enter_context(openai_double()), opened.enter_context(aws_double())
        engine = opened.enter_context(engine_double("--slots", "4", "--decode", "5"))
        at = AwsPlace.made(aws, f"{upstream.url}/v1/chat/completions")
        server = opened.enter_context(a_valkey())
        prefix = f"o{os.urandom(4).hex()}."
        values = _settings(folder, upstream, engine, at, traces) | {
            "log": f"kafka://{kafka}",
            "redis": server.connection_url,
            "kafka": {"partitions": 2, "prefix": prefix, "session_s": 6},
        }
        environ = {"HOOKS_SECRET": SECRET, "UPSTREAM_KEY": UPSTREAM_KEY, **CREDENTIALS}
        ours = opened.enter_context(pointsman(folder, values, **environ))
        ours.command("topics", "--create")
        keys = {
            tenant: ours.command("keys", "create", "--tenant", tenant).split()[-1]
            for tenant in ("default", "others", "tight", "broke")
        }
        [port] = free_ports(1)
        processes = asyncio.run(_started(ours, port))
        targets = {name: each.url.removeprefix("http://") for name, each in processes.items()}
        watching = opened.enter_context(prometheus(folder, targets, RULES))
        seen = Observed(
            ours, processes, traces, watching, kafka, prefix, server.connection_url, tuple(keys.values()), []
        )
        asyncio.run(_happens(seen, keys))
        yield seen


def _settings(
    folder: Path, upstream: OpenAIDouble, engine: EngineDouble, at: AwsPlace, traces: OtlpReceiver
) -> dict[str, Any]:
    def served(tier: str, model: str = "double", **further: Any) -> dict[str, Any]:
        at_url = {"backend": "gpu", "url": f"{upstream.url}/v1", "api_key": "${UPSTREAM_KEY}"}
        return {**at_url, "model": model, "tier": tier, "price": _price(), **further}

    return {
        "data": str(folder / "data"),
        "worker": {"lease_s": 2, "first_wait_s": 0.1, "attempts": 2, "cooldown_s": 30, "longest_cooldown_s": 60},
        "outbound": {"allowed_hosts": ["127.0.0.1"]},
        "traces": {"url": f"{traces.url}/v1/traces"},
        "routing": {"heavy_percent": 30},
        "tenants": {
            "default": {"webhook_secret": "${HOOKS_SECRET}", "deployments": ["light", "heavy"]},
            "others": {"limits": {"requests_per_minute": 1, "burst_s": 1, "shadow": True}},
            "tight": {"limits": {"requests_per_minute": 1, "burst_s": 60}},
            "broke": {"limits": {"usd_per_month": "0"}},
        },
        "deployments": {
            "light": served("light", modalities=["text", "embedding"]),
            "heavy": served("heavy"),
            "failing": served("light", "error-503", fallback=["light"]),
            "free": {key: value for key, value in served("light").items() if key != "price"},
            "many": {
                "backend": "gpu",
                "model": "any",
                "tier": "light",
                "price": _price(),
                "replicas": {"urls": [engine.url], "cap": 4, "probe_s": 0.2, "usd_per_hour": "3.60"},
            },
            "patient": {
                "backend": "sagemaker",
                "model": at.name,
                "tier": "light",
                "price": _price(),
                "sagemaker": {"region": REGION, "queue": at.queue, "inputs": f"s3://{at.bucket}/in", "aws_url": at.url},
            },
        },
    }


def _price() -> dict[str, str]:
    return {"input": "0.5", "output": "1.5"}


async def _started(ours: Pointsman, port: int) -> dict[str, Process]:
    """One after the other: at once they would need all of a machine."""
    return {
        "http": await ours.http(port).ready(),
        "worker": await ours.worker("gpu").ready(),
        "takes": await ours.worker("sagemaker").ready(),
        "collector": await ours.collector("sagemaker").ready(),
        "sweeper": await ours.sweeper().ready(),
        "inbox": await ours.inbox().ready(),
    }


async def _happens(seen: Observed, keys: dict[str, str]) -> None:
    url = seen.processes["http"].url
    async with (
        seen.ours.refusals.async_sdk(url, keys["default"], max_retries=0) as sdk,
        seen.ours.refusals.http(url, timeout=60) as http,
    ):
        await _Everything(seen, sdk, http, keys).happens()


@dataclass(slots=True)
class _Everything:
    seen: Observed
    sdk: AsyncOpenAI
    http: httpx2.AsyncClient
    keys: dict[str, str]

    async def happens(self) -> None:
        """In an order in which no step hinders the next."""
        say = f"{MARKER} why is the sky blue?"
        answer = await self._chat(say, traceparent=TRACEPARENT)
        assert MARKER in answer.json()["choices"][0]["message"]["content"]
        await self._chat(say, tenant="tight", model="light")
        ended = [await self._job(say) for _ in range(6)]
        for model in ("many", "free", "patient"):
            await self._ended(await self._job(say, tenant="others", model=model), "others")
        ended += [await self._job(f"double:once-500 {say}", model="light")]
        ended += [await self._job(say, model="heavy"), await self._job(f"double:error-400 {say}", model="light")]
        ended += [await self._job(f"double:mute {say}", model="light", pointsman={"deadline_s": 2})]
        ended += [await self._job(say, pointsman={"webhook_url": f"{self.seen.traces.url}/hook"})]
        await asyncio.gather(*(self._job(say, tenant="tight", model="light") for _ in range(2)))  # they wait for long
        await self._job(say, tenant="broke", model="light")
        cancelled = await self._job(f"double:mute {say}", model="light")
        await self._post(f"/v1/jobs/{cancelled}/cancel", {})
        for tenant, model in (("tight", "light"), ("broke", "light")):
            assert (await self._chat(say, tenant=tenant, model=model)).status_code == 429
        await self.sdk.embeddings.create(model="light", input=[say, say])
        stream = await self.sdk.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": say}], stream=True
        )
        assert [chunk async for chunk in stream]
        response = await self.sdk.responses.create(model="auto", input=say, background=True)
        await self._wrong(say)
        batch = await self._batch(say)
        await self._records(say)
        for job in [*ended, response.id.replace("resp_", "job_")]:
            await self._ended(job)
        for _ in range(4):  # until it cools
            await self._ended(await self._job(say, tenant="others", model="failing"), "others")
        while (await self.sdk.batches.retrieve(batch)).status != "completed":
            await asyncio.sleep(0.2)

    async def _wrong(self, say: str) -> None:
        for body in (b"{" + say.encode(), json.dumps({"model": say, "messages": say}).encode(), b"\xff" + say.encode()):
            answer = await self.http.post("/v1/chat/completions", content=body, headers=self._headers())
            assert answer.status_code in (400, 404), answer.text
            self.seen.errors.append(answer.text)
        stranger = await self.http.post("/v1/chat/completions", json={}, headers={"authorization": "Bearer sk-pm-no"})
        assert stranger.status_code == 401

    async def _batch(self, say: str) -> str:
        lines = [
            {"custom_id": f"{n}", "method": "POST", "url": "/v1/chat/completions", "body": self._body(say, "light")}
            for n in range(3)
        ]
        text = "\n".join(map(json.dumps, lines)).encode()
        file = await self.sdk.files.create(file=("lines.jsonl", text), purpose="batch")
        made = await self.sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        return made.id

    async def _records(self, say: str) -> None:
        """What other services put on the topics: a request, a wrong one, one twice, and none."""
        asked = {"endpoint": "/v1/chat/completions", "authorization": f"Bearer {self.keys['default']}"}
        async with self.seen.log() as log:
            await log.append("jobs.inbox", Record(json.dumps(self._body(say, "light")).encode(), asked))
            await log.append("jobs.inbox", Record(say.encode(), asked))
            topic = f"jobs.{LANE}.standard"
            known = [each.record async for each in log.read(topic)]
            await log.append(topic, known[0])
            await log.append(topic, Record(say.encode(), {"job": "none"}))

    def _headers(self, tenant: str = "default") -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[tenant]}", "content-type": "application/json"}

    def _body(self, say: str, model: str) -> dict[str, Any]:
        return {"model": model, "messages": [{"role": "user", "content": say}], "max_tokens": 20}

    async def _chat(self, say: str, *, tenant: str = "default", model: str = "auto", **headers: str) -> httpx2.Response:
        return await self._post("/v1/chat/completions", self._body(say, model), tenant, **headers)

    async def _job(self, say: str, *, tenant: str = "default", model: str = "auto", **fields: Any) -> str:
        answer = await self._post(
            "/v1/chat/completions",
            self._body(say, model) | {"async": True, "metadata": {"note": NOTE}} | fields,
            tenant,
        )
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def _post(self, path: str, body: dict[str, Any], tenant: str = "default", **headers: str) -> httpx2.Response:
        answer = await self.http.post(path, json=body, headers=self._headers(tenant) | headers)
        if answer.status_code >= 400:
            self.seen.errors.append(answer.text)
        return answer

    async def _ended(self, job: str, tenant: str = "default") -> None:
        until = time.monotonic() + ENDS_S
        while True:
            view = (await self.http.get(f"/v1/jobs/{job}?wait=10", headers=self._headers(tenant))).json()
            if view["status"] in ("completed", "failed", "expired", "cancelled"):
                if view["error"] is not None:
                    self.seen.errors.append(json.dumps(view["error"]))
                return
            assert time.monotonic() < until, view


def redis_of(seen: Observed) -> "Redis":
    """A client of its board."""
    return Redis.from_url(seen.redis)
