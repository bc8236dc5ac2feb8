"""Calls what starts replicas where there are none: an HTTP hook, or the scale of a Kubernetes deployment."""

import asyncio
import json
import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import structlog

from consumers.gpu.wire import read_most
from policies.fleets import Waker

log = structlog.get_logger(__name__)

WAKE_S = 10.0
AFTER_FAILURE_S = 10.0  # it is called again
LARGEST_SCALE = 64 * 1024  # bytes
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where every pod finds its own


async def wake(
    session: aiohttp.ClientSession, waker: Waker, deployment: str, *, account: Path = SERVICE_ACCOUNT
) -> bool:
    """Call it once. False: it did not take the call, which is logged."""
    try:
        async with asyncio.timeout(WAKE_S):
            status = await _called(session, waker, deployment, account)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        log.warning("waker_failed", deployment=deployment, error=type(error).__name__)
        return False
    if status >= 300:
        log.warning("waker_refused", deployment=deployment, status=status)
        return False
    log.info("waker_called", deployment=deployment, status=status)
    return True


async def _called(session: aiohttp.ClientSession, waker: Waker, deployment: str, account: Path) -> int:
    if waker.scale is not None:
        return await _scaled(session, waker.url, waker.scale, account)
    asked = {"deployment": deployment, "reason": "jobs_wait"}
    async with session.post(waker.url, json=asked, allow_redirects=False) as response:
        return response.status


async def _scaled(session: aiohttp.ClientSession, server: str, scale: tuple[str, str, int], account: Path) -> int:
    """At least so many replicas. Where as many are wanted already they are on their way, and none is taken away."""
    namespace, name, replicas = scale
    url = f"{server.rstrip('/')}/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"
    headers, trusted = await asyncio.to_thread(_credentials, account)
    async with session.get(url, headers=headers, ssl=trusted, allow_redirects=False) as response:
        if response.status == 200 and _wanted(await read_most(response, LARGEST_SCALE)) >= replicas:
            return 200
    body = json.dumps({"spec": {"replicas": replicas}})
    patch = {**headers, "content-type": "application/merge-patch+json"}
    async with session.patch(url, data=body, headers=patch, ssl=trusted, allow_redirects=False) as response:
        return response.status


def _credentials(account: Path) -> tuple[Mapping[str, str], ssl.SSLContext | bool]:
    """Read anew each time: Kubernetes changes the files while the pod runs. Without them, none."""
    token, authority = account / "token", account / "ca.crt"
    headers = {"authorization": f"Bearer {token.read_text(encoding='ascii').strip()}"} if token.exists() else {}
    return headers, ssl.create_default_context(cafile=str(authority)) if authority.exists() else True


def _wanted(scale: bytes) -> int:
    found = json.loads(scale).get("spec", {}).get("replicas", 0)  # zero is left out
    return found if isinstance(found, int) else 0
