"""What every call to a server over HTTP needs: where it goes, why nothing came, and no more read than allowed."""

import asyncio
import re

import aiohttp

from consumers.refusals import Refusal
from policies.retries import Failure


def base_of(url: str) -> str:
    """With or without `/v1` at its end, a url means the same server."""
    base = url.rstrip("/")
    return base if re.search(r"/v\d+$", base) else f"{base}/v1"


def unreachable(error: Exception) -> Refusal:
    """Why no response came. Its text holds no address: a url may carry a password."""
    match error:
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return Refusal(Failure.MISCONFIGURED, "the deployment's url is not an http address", "invalid_url")
        case aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError():
            return Refusal(Failure.MISCONFIGURED, "the backend's certificate or TLS is not accepted", "tls_error")
        case aiohttp.ClientConnectorError():
            return Refusal(
                Failure.UNAVAILABLE, "no connection: does the server run, is its url right?", "no_connection"
            )
        case aiohttp.ClientConnectionError() | ConnectionError():
            return Refusal(Failure.UNAVAILABLE, "the backend hung up before it answered", "disconnected")
        case aiohttp.ClientResponseError():
            return Refusal(Failure.BACKEND_ERROR, "the backend's answer is not HTTP", "bad_http")
        case ValueError():
            return Refusal(Failure.MISCONFIGURED, "the deployment's url or key cannot be sent", "invalid_setting")
        case _:
            return Refusal(Failure.BACKEND_ERROR, "the call to the backend failed", "call_failed")


class PausedError(Exception):
    """Nothing came for too long."""


async def read_most(response: aiohttp.ClientResponse, at_most: int, *, pause_s: float | None = None) -> bytes:
    """The body, or its first `at_most` bytes. Raises what aiohttp does, and `PausedError` after a pause that long."""
    body = bytearray()
    while len(body) < at_most and (piece := await _piece(response.content, pause_s)):
        body += piece
    return bytes(body[:at_most])


async def next_piece(content: aiohttp.StreamReader) -> bytes:
    """What has come, as soon as something has; nothing at the end, however it ended.

    Of what came together with a break, or before it and was not read yet, aiohttp's own way to read gives nothing.
    """
    try:
        return await content.readany()
    except (aiohttp.ClientError, OSError):
        return content._read_nowait(-1)


async def _piece(content: aiohttp.StreamReader, pause_s: float | None) -> bytes:
    limit = asyncio.timeout(pause_s)
    try:
        async with limit:
            return await content.readany()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise PausedError(f"nothing for {pause_s:g} s") from error
