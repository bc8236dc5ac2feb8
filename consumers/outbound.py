"""The only way to a URL that a client named: it reaches the public internet, and nothing of our own network."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver

from policies.addresses import host_of, is_public, may_be_asked

DRAINED = 16 * 1024  # bytes of an answer that are read so that its connection can serve again
LONGEST_LINE = 8190  # of an answer's headers
KEEP_ALIVE_S = 15.0


class OutboundError(Exception):
    """There was no answer; the text is one of a closed list of codes."""


class _NotAllowedError(OSError):
    """This address is not the public internet's."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a server said. Header names are lower case. `body` is at most what was asked for."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Outbound:
    """Requests for clients. Every address is judged at the moment of its connection, whatever a name led to before.

    Only https, no redirects, no proxies, no cookies. A host of `allowed_hosts` (the operator's) may be anywhere and
    may speak http.
    """

    def __init__(self, guarded: aiohttp.ClientSession, free: aiohttp.ClientSession, allowed: Collection[str]) -> None:
        self._guarded = guarded
        self._free = free
        self._allowed = allowed

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        allowed_hosts: Collection[str] = (),
        *,
        connections: int = 256,
        tls: ssl.SSLContext | None = None,
        resolver: AbstractResolver | None = None,
    ) -> AsyncGenerator["Outbound"]:
        """One for a process. `tls` says whom to trust, `resolver` what names mean; as the system has it when None."""
        async with (
            _session(connections, tls, resolver, socket_factory=_public_socket) as guarded,
            _session(connections, tls, resolver, socket_factory=None) as free,
        ):
            yield cls(guarded, free, frozenset(host.lower() for host in allowed_hosts))

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None, timeout_s: float, most: int = 0
    ) -> Answered:
        """One request, without any retry; reads at most `most` bytes of the answer. Raises `OutboundError`."""
        session = self._session_for(url)
        try:
            async with (
                asyncio.timeout(timeout_s),
                session.request(method, url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                read = await _up_to(response.content, most or DRAINED)
                if not response.content.at_eof():
                    response.close()
                shown = {name.lower(): value for name, value in response.headers.items()}
                return Answered(response.status, shown, read[:most])
        except TimeoutError:
            raise OutboundError("timed_out") from None
        except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError) as error:
            raise OutboundError(_code(error)) from error

    def _session_for(self, url: str) -> aiohttp.ClientSession:
        if not may_be_asked(url, self._allowed):
            raise OutboundError("address_not_allowed")
        return self._free if host_of(url) in self._allowed else self._guarded


def _session(
    connections: int, tls: ssl.SSLContext | None, resolver: AbstractResolver | None, *, socket_factory: Any
) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=connections,
        use_dns_cache=False,
        keepalive_timeout=KEEP_ALIVE_S,
        ssl=True if tls is None else tls,
        resolver=resolver,
        socket_factory=socket_factory,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"user-agent": "pointsman", "accept-encoding": "identity"},
        auto_decompress=False,
        trust_env=False,
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
    )


def _public_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for exactly the address that is connected to next. Raises for one that is not public."""
    family, kind, protocol, _, where = address
    if not is_public(str(where[0]).partition("%")[0]):
        raise _NotAllowedError("the address is not a public one")
    return socket.socket(family=family, type=kind, proto=protocol)


async def _up_to(content: aiohttp.StreamReader, most: int) -> bytes:
    read = bytearray()
    while len(read) < most and (piece := await content.read(most - len(read))):
        read += piece
    return bytes(read)


def _code(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, _NotAllowedError):
        return "address_not_allowed"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError | ssl.SSLError):
        return "tls_failed"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "unknown_host"
    if isinstance(error, aiohttp.ClientConnectionError | OSError):
        return "unreachable"
    return "bad_answer"
