"""One `pointsman up` that has all of the surface, for the suites that drive it from outside."""

import asyncio
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from policies.deployments import Modality
from policies.keys import ApiKeys
from tests.acceptance.processes import Pointsman, Process, pointsman
from tests.doubles import OpenAIDouble, openai_double
from tools.kafka.broker import free_ports

SECRET = "whsec_" + b64encode(os.urandom(32)).decode()


@dataclass(frozen=True, slots=True)
class Surface:
    """It runs. `limited_key` is of a tenant that may make one request in two seconds; `watched_key` of one whose
    deployments are `watched` and `crowded`, which takes four calls at once; the server of both is `upstream`.
    """

    ours: Pointsman
    process: Process
    upstream: OpenAIDouble
    limited_key: str
    watched_key: str

    @property
    def url(self) -> str:
        return f"{self.process.url}/v1"


def settings(folder: Path, upstream: OpenAIDouble) -> dict[str, Any]:
    deployments: dict[str, Any] = {
        tier: {
            "backend": "echo",
            "model": "echo",
            "tier": tier,
            "window": 4_000_000,
            "modalities": [str(each) for each in Modality],
        }
        for tier in ("light", "heavy")
    }
    watched = {"backend": "gpu", "url": f"{upstream.url}/v1", "model": "double", "tier": "light"}
    crowded = {**watched, "model": "crowded", "limits": {"concurrency": 4}}
    return {
        "data": str(folder / "data"),
        "http": {"sync_wait_s": 20},
        "batches": {"max_unfinished": 100_000},
        "outbound": {"allowed_hosts": ["127.0.0.1"]},
        "tenants": {
            "default": {"webhook_secret": "${HOOKS_SECRET}", "deployments": ["light", "heavy"]},
            "watched": {"deployments": ["watched", "crowded"]},
            "limited": {"limits": {"requests_per_minute": 30, "burst_s": 2}},
        },
        "deployments": {**deployments, "watched": watched, "crowded": crowded},
    }


@contextmanager
def surface(folder: Path) -> Iterator[Surface]:
    """Started, and ended with the block."""
    with openai_double() as upstream, pointsman(folder, settings(folder, upstream), HOOKS_SECRET=SECRET) as ours:
        [port] = free_ports(1)
        process = asyncio.run(ours.up(port).ready())
        yield Surface(ours, process, upstream, *asyncio.run(new_keys(ours.data, "limited", "watched")))


async def new_keys(data: Path, *tenants: str) -> list[str]:
    redis = Redis(unix_socket_path=str(data / "valkey" / "valkey.sock"))
    try:
        return [(await ApiKeys(redis).create(tenant, "test")).text for tenant in tenants]
    finally:
        await redis.aclose()
