"""Asks a replica how it is: its health, its metrics, and once what it takes."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from consumers.gpu import engines
from consumers.gpu.discovery import Replica
from consumers.gpu.engines import UNKNOWN, Bounds, Facts
from consumers.gpu.health import Probe
from consumers.gpu.wire import base_of
from policies.fleets import Engine

PROBE_S = 2.0
LARGEST_METRICS = 4 * 1024 * 1024
LARGEST_WORD = 64 * 1024  # bytes of an answer of one token


@dataclass(frozen=True, slots=True)
class Probed:
    """What came of it. None is what it did not tell this time."""

    probe: Probe
    engine: Engine | None = None
    facts: Facts = UNKNOWN
    bounds: Bounds | None = None


async def ask(
    session: aiohttp.ClientSession,
    replica: Replica,
    headers: Mapping[str, str],
    *,
    engine: Engine | None,
    bounds_known: bool,
) -> Probed:
    """Within two seconds, whatever it does. `engine` None: its metrics show which it is. Never raises."""
    health = await _get(session, replica, "/health", headers)
    if isinstance(health, Probe):
        return Probed(health)
    status, _ = health
    if status == 503:
        return Probed(Probe.LOADING)
    if status >= 500:
        return Probed(Probe.SILENT)
    if engine is Engine.OPENAI:  # it has nothing more to tell
        return Probed(Probe.WELL, engine)
    metrics = await _get(session, replica, "/metrics", headers)
    if isinstance(metrics, Probe) or metrics[0] != 200:
        return Probed(Probe.WELL, engine)
    text = metrics[1].decode("utf-8", "replace")
    engine = engine or engines.recognised(text)
    bounds = None if bounds_known else await _bounds(session, replica, headers, engine, text)
    return Probed(Probe.WELL, engine, engines.facts(engine, text), bounds)


async def answers(session: aiohttp.ClientSession, replica: Replica, headers: Mapping[str, str], model: str) -> bool:
    """Whether it answers a chat with one token, all of it within two seconds. Never raises."""
    asked = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    try:
        async with (
            asyncio.timeout(PROBE_S),
            session.post(
                base_of(replica.url) + "/chat/completions",
                data=json.dumps(asked).encode(),
                headers={**headers, "content-type": "application/json"},
                allow_redirects=False,
                server_hostname=replica.host,
            ) as response,
        ):
            return response.status == 200 and bool(await _read(response, LARGEST_WORD))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return False


async def _bounds(
    session: aiohttp.ClientSession, replica: Replica, headers: Mapping[str, str], engine: Engine, metrics: str
) -> Bounds:
    path = engines.DIALECTS[engine].about
    about = None if path is None else await _get(session, replica, path, headers)
    body = about[1] if isinstance(about, tuple) and about[0] == 200 else b""
    return engines.bounds(engine, metrics, body)


async def _get(
    session: aiohttp.ClientSession, replica: Replica, path: str, headers: Mapping[str, str]
) -> tuple[int, bytes] | Probe:
    try:
        async with (
            asyncio.timeout(PROBE_S),
            session.get(
                _root(replica.url) + path, headers=headers, allow_redirects=False, server_hostname=replica.host
            ) as response,
        ):
            return response.status, await _read(response, LARGEST_METRICS)
    except aiohttp.ClientConnectorError:
        return Probe.REFUSED
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return Probe.SILENT


async def _read(response: aiohttp.ClientResponse, at_most: int) -> bytes:
    body = bytearray()
    while len(body) < at_most and (piece := await response.content.readany()):
        body += piece
    return bytes(body)


def _root(url: str) -> str:
    """The server's own pages lie beside `/v1`, not under it."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/").removesuffix("/v1"), "", ""))
