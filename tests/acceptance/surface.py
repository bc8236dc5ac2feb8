"""One `pointsman up` that has all of the surface, for the suites that drive it from outside."""

import asyncio
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies.deployments import Modality
from tests.acceptance.processes import Pointsman, Process, pointsman
from tools.kafka.broker import free_ports

SECRET = "whsec_" + b64encode(os.urandom(32)).decode()


@dataclass(frozen=True, slots=True)
class Surface:
    """It runs; `limited_key` is of a tenant that may make one request in two seconds."""

    ours: Pointsman
    process: Process
    limited_key: str

    @property
    def url(self) -> str:
        return f"{self.process.url}/v1"


def settings(folder: Path) -> dict[str, Any]:
    return {
        "data": str(folder / "data"),
        "http": {"sync_wait_s": 20},
        "batches": {"max_unfinished": 100_000},
        "outbound": {"allowed_hosts": ["127.0.0.1"]},
        "tenants": {
            "default": {"webhook_secret": "${HOOKS_SECRET}"},
            "limited": {"limits": {"requests_per_minute": 30, "burst_s": 2}},
        },
        "deployments": {
            tier: {
                "backend": "echo",
                "model": "echo",
                "tier": tier,
                "window": 4_000_000,
                "modalities": [str(each) for each in Modality],
            }
            for tier in ("light", "heavy")
        },
    }


@contextmanager
def surface(folder: Path) -> Iterator[Surface]:
    with pointsman(folder, settings(folder), HOOKS_SECRET=SECRET) as ours:
        [port] = free_ports(1)
        process = asyncio.run(ours.up(port).ready())
        arguments = "keys", "create", "--tenant", "limited", "--name", "test", "--data", str(ours.data)
        yield Surface(ours, process, ours.command(*arguments).strip())
