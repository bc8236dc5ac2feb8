"""Webhooks of a whole Pointsman, set up by the guide, with the official SDK at both ends."""

import asyncio
import json
import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import openai
import yaml
from aiohttp import web
from openai.types.webhooks import BatchCompletedWebhookEvent

from tests.acceptance.processes import ROOT, Pointsman, Process, kill, pointsman
from tests.receiver import answering, receiving
from tools.kafka.broker import free_ports

SECRET = "whsec_" + b64encode(os.urandom(32)).decode()


def the_settings(folder: Path, port: int) -> dict[str, Any]:
    settings = yaml.safe_load((ROOT / "examples" / "pointsman.yaml").read_text(encoding="utf-8"))
    settings["data"] = str(folder / "data")
    settings["outbound"] = {"allowed_hosts": ["127.0.0.1"]}
    settings["webhooks"] = {"timeout_s": 1}
    settings["tenants"]["default"] = {
        "webhook_secret": "${HOOKS_SECRET}",
        "webhooks": {"crm": {"url": f"http://127.0.0.1:{port}/crm", "events": ["job.cancelled", "batch.completed"]}},
    }
    return dict(settings)


async def a_job(ours: Pointsman, process: Process, text: str, **wishes: object) -> str:
    async with ours.refusals.async_sdk(process.url, ours.key, max_retries=0) as client:
        job = await client.chat.completions.create(
            model="light",
            messages=[{"role": "user", "content": text}],
            extra_body={"async": True, "pointsman": wishes},
        )
    return job.id


async def a_batch(ours: Pointsman, process: Process, text: str) -> str:
    body = {"model": "light", "messages": [{"role": "user", "content": text}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    async with ours.refusals.async_sdk(process.url, ours.key, max_retries=0) as client:
        file = await client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    return batch.id


def sweeper_of(ours: Pointsman, process: Process) -> int:
    [pid] = [pid for pid, command in ours.children(process).items() if "sweeper" in command]
    return pid


async def test_a_job_is_told_of_whoever_dies_and_the_sdk_unwraps_it(tmp_path: Path) -> None:
    forgetful = asyncio.Event()

    async def never_answers(_: web.Request) -> web.Response:
        await forgetful.wait()
        return web.Response(status=500)

    async with receiving() as receiver:
        with pointsman(tmp_path, the_settings(tmp_path, receiver.port), HOOKS_SECRET=SECRET) as ours:
            [port] = free_ports(1)
            process = await ours.up(port).ready()
            receiver.answer = never_answers
            job = await a_job(ours, process, "Hello", webhook_url=receiver.url("/own"))
            await receiver.got(1, within=20)
            kill(sweeper_of(ours, process))
            forgetful.set()
            receiver.answer = answering(200)

            first, second = await receiver.got(2, within=40)

            client = openai.OpenAI(api_key="unused", webhook_secret=SECRET)
            event: Any = client.webhooks.unwrap(second.body, dict(second.headers))
            assert (event.type, event.data.id) == ("job.completed", job)
            assert first.headers["webhook-id"] == second.headers["webhook-id"]

            batch = await a_batch(ours, process, "Hello")
            *_, told = await receiver.got(3, within=40)

            ended = client.webhooks.unwrap(told.body, dict(told.headers))
            assert isinstance(ended, BatchCompletedWebhookEvent)
            assert (told.path, ended.data.id) == ("/crm", batch)


async def test_an_operator_sees_what_was_given_up_and_sends_it_again(tmp_path: Path) -> None:
    async with receiving() as receiver:
        with pointsman(tmp_path, the_settings(tmp_path, receiver.port), HOOKS_SECRET=SECRET) as ours:
            [port] = free_ports(1)
            process = await ours.up(port).ready()
            receiver.answer = answering(410, 200)
            await a_job(ours, process, "Hello", webhook_url=receiver.url("/own?token=s3cret"))
            await receiver.got(1, within=20)

            listed = await asyncio.to_thread(ours.command, "webhooks", "list", "--json", "--data", str(ours.data))
            wrong = await asyncio.to_thread(ours.refused, "webhooks", "list", "--tenant", "x", "--data", str(ours.data))
            sent = await asyncio.to_thread(ours.command, "webhooks", "resend", "--data", str(ours.data))
            await receiver.got(2, within=20)

            [dead] = map(json.loads, listed.splitlines())
            assert (dead["state"], dead["seen"], dead["attempts"]) == ("dead", "410", 1)
            assert "s3cret" not in listed
            assert "there is no tenant 'x' in these settings, only " in wrong
            assert sent.strip() == "resend: 1"
            log = process.output.read_text(encoding="utf-8", errors="replace")
            assert "webhook_dead" in log
            assert "s3cret" not in log
            assert SECRET not in log
