"""Calls what starts replicas where there are none: an HTTP hook, or the scale of a Kubernetes deployment."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import structlog

from policies.fleets import Waker

log = structlog.get_logger(__name__)

WAKE_S = 10.0
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where every pod finds its own


async def wake(session: aiohttp.ClientSession, waker: Waker, deployment: str) -> None:
    """Call it once. A failure is logged; it is called again when `again_s` are over and jobs still wait."""
    try:
        async with asyncio.timeout(WAKE_S):
            status = await _called(session, waker, deployment)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        log.warning("waker_failed", deployment=deployment, error=type(error).__name__)
        return
    log.info("waker_called", deployment=deployment, status=status)


async def _called(session: aiohttp.ClientSession, waker: Waker, deployment: str) -> int:
    if waker.scale is None:
        async with session.post(waker.url, json={"deployment": deployment, "reason": "jobs_wait"}) as response:
            return response.status
    namespace, name, replicas = waker.scale
    headers = {"content-type": "application/merge-patch+json"}
    token = SERVICE_ACCOUNT / "token"
    if token.exists():
        headers["authorization"] = f"Bearer {await asyncio.to_thread(token.read_text)}"
    authority = SERVICE_ACCOUNT / "ca.crt"
    trusted = ssl.create_default_context(cafile=str(authority)) if authority.exists() else True
    url = f"{waker.url.rstrip('/')}/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"
    body = f'{{"spec":{{"replicas":{replicas}}}}}'
    async with session.patch(url, data=body, headers=headers, ssl=trusted) as response:
        return response.status
