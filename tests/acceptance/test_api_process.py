"""The API process is light: it loads no client of a backend, and stays small."""

import asyncio
import json
import re
import subprocess
import sys

from redis.asyncio import Redis

from gateway.settings import load
from policies.keys import ApiKeys
from policies.scripts import Scripts
from router import rebuild, topics
from router.board import Board
from router.log_streams import StreamsLog
from tests.acceptance.processes import ROOT
from tools.kafka.broker import free_ports

KEY = "pm-this-key-is-for-one-test-only-0123456789"
MIB = 1024 * 1024
SERVED = """
import asyncio, json, os, signal, sys, urllib.error, urllib.request
from pathlib import Path
from gateway import logs, processes
from gateway.settings import load

url, key, config, routes = sys.argv[1:]

def call(method, path, body=None):
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as got:
            return got.status, got.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()

def drive():
    say = {"model": "auto", "messages": [{"role": "user", "content": "hello"}], "async": True}
    statuses = {}
    status, made = call("POST", "/v1/chat/completions", say)
    statuses["create"] = status
    job = json.loads(made)["id"]
    for name, method, path in [
        ("completion", "GET", f"/v1/chat/completions/{job}"), ("job", "GET", f"/v1/jobs/{job}"),
        ("jobs", "GET", "/v1/jobs"),
        ("cancel", "POST", f"/v1/jobs/{job}/cancel"), ("delete", "DELETE", f"/v1/jobs/{job}"),
        ("models", "GET", "/v1/models"), ("model", "GET", "/v1/models/auto"), ("healthz", "GET", "/healthz"),
        ("readyz", "GET", "/readyz"), ("metrics", "GET", "/metrics"), ("nothing", "GET", "/v1/nothing"),
    ]:
        statuses[name] = call(method, path)[0]
    for method, path in json.loads(routes):
        nobody_waits = {"input": "hello", "model": "auto", "async": True, "background": True}
        body = nobody_waits if method == "POST" else None
        status, answered = call(method, path.replace("{id:path}", "nothing").replace("{id}", "nothing"), body)
        if status >= 500 or (status == 404 and b"unknown_url" in answered):
            statuses[f"{method} {path}"] = status
    return statuses

async def main():
    serving = asyncio.create_task(processes.http(load(Path(config), os.environ)))
    while not serving.done():
        try:
            if (await asyncio.to_thread(call, "GET", "/healthz"))[0] == 200:
                break
        except OSError:
            await asyncio.sleep(0.05)
    statuses = await asyncio.to_thread(drive)
    lines = Path("/proc/self/status").read_text().splitlines()  # getrusage would tell the peak of who started this
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    print(json.dumps({"statuses": statuses, "modules": sorted(sys.modules), "peak": peak}))
    os.kill(os.getpid(), signal.SIGTERM)
    await serving

logs.configure()
asyncio.run(main())
"""


async def test_a_process_that_has_served_every_endpoint_has_loaded_no_backend_and_is_small(
    redis: "Redis", redis_url: str
) -> None:
    config = ROOT / "examples" / "pointsman.yaml"
    [port] = free_ports(1)
    environ = {"POINTSMAN_REDIS": redis_url, "POINTSMAN_HTTP__PORT": str(port)}
    log = StreamsLog(redis)
    await log.create(topics.all_topics(load(config, environ).deployments_by_name()))
    await rebuild.begin(log, Board(Scripts(redis)))
    await ApiKeys(redis).adopt(KEY, "default", "test")

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", SERVED, f"http://127.0.0.1:{port}", KEY, str(config), json.dumps(_routes())],
        env={**environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["statuses"] == {
        "create": 202, "completion": 202, "job": 200, "jobs": 200, "cancel": 200, "delete": 200, "models": 200,
        "model": 200, "healthz": 200, "readyz": 200, "metrics": 200, "nothing": 404,
    }  # fmt: skip
    loaded = {module.partition(".")[0] for module in shown["modules"]}
    assert loaded.isdisjoint({"litellm", "boto3", "botocore", "openai", "aiohttp", "xllamacpp", "aiokafka"})
    assert "router.traces" not in shown["modules"]
    assert shown["peak"] < 150 * MIB


def _routes() -> list[tuple[str, str]]:
    """Method and address of every endpoint, as the code names them."""
    found = re.findall(r'_route\("([A-Z]+)", "([^"]+)"', (ROOT / "gateway" / "app.py").read_text(encoding="utf-8"))
    assert len(found) > 20
    return found
