"""Requests to clients' URLs, with a real server that must not be reached, and one that may."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
import trustme
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from consumers.outbound import Answered, Outbound, OutboundError
from tests.receiver import Receiver, answering, receiving

HOST = "hooks.example.com"


class Names(AbstractResolver):
    """A name server that answers one list of addresses after the other; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.asked = 0
        self._answers = answers

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        self.asked += 1
        found = self._answers[min(self.asked, len(self._answers)) - 1]
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def post(outbound: Outbound, url: str, *, timeout_s: float = 5.0, most: int = 0) -> Answered:
    return await outbound.send("POST", url, headers={}, body=b"{}", timeout_s=timeout_s, most=most)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["169.254.169.254"],
        ["fe80::1"],
        ["127.0.0.1", "10.0.0.1", "::1"],
    ],
)
async def test_a_name_that_leads_inside_is_not_connected_to(receiver: Receiver, addresses: list[str]) -> None:
    async with Outbound.open(resolver=Names(addresses)) as outbound:
        with pytest.raises(OutboundError, match="address_not_allowed"):
            await post(outbound, receiver.url(host=HOST, scheme="https"))

    assert receiver.connections == 0


async def test_a_name_that_changes_its_mind_is_judged_by_what_is_connected_to(receiver: Receiver) -> None:
    names = Names(["192.0.2.1"], ["127.0.0.1"])  # a test network, where nobody answers; then our own machine
    async with Outbound.open(resolver=names) as outbound:
        url = receiver.url(host=HOST, scheme="https")
        for _ in range(3):
            with pytest.raises(OutboundError, match="address_not_allowed"):
                await post(outbound, url)

    assert names.asked == 3  # no answer is remembered
    assert receiver.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "2130706433", "[::ffff:127.0.0.1]", "127.1"])
async def test_an_address_in_the_url_is_judged_as_well(receiver: Receiver, host: str) -> None:
    async with Outbound.open() as outbound:
        for scheme in ("http", "https"):
            with pytest.raises(OutboundError, match="address_not_allowed"):
                await post(outbound, receiver.url(host=host, scheme=scheme))

    assert receiver.connections == 0


async def test_a_host_that_the_operator_names_may_be_inside(receiver: Receiver) -> None:
    async with Outbound.open(["127.0.0.1"]) as outbound:
        answer = await post(outbound, receiver.url())

    assert answer.status == 200
    assert receiver.seen[0].body == b"{}"


async def test_a_redirect_is_an_answer_like_any_other(receiver: Receiver) -> None:
    receiver.answer = answering(307, location="http://127.0.0.1:1/elsewhere")
    async with Outbound.open(["127.0.0.1"]) as outbound:
        answer = await post(outbound, receiver.url())

    assert answer.status == 307
    assert len(receiver.seen) == 1


async def test_tls_is_for_the_name_that_was_asked_for_not_for_the_address() -> None:
    authority = trustme.CA()
    asked_for: list[str | None] = []
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(HOST).configure_cert(serving)
    serving.sni_callback = lambda _, name, __: asked_for.append(name)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    hosts = [HOST, "another.example.com"]
    async with (
        receiving(tls=serving) as receiver,
        Outbound.open(hosts, tls=trusting, resolver=Names(["127.0.0.1"])) as outbound,
    ):
        answer = await post(outbound, receiver.url(host=HOST, scheme="https"))
        with pytest.raises(OutboundError, match="tls_failed"):
            await post(outbound, receiver.url(host="another.example.com", scheme="https"))

        assert answer.status == 200
        assert asked_for[0] == HOST
        assert [seen.headers["host"] for seen in receiver.seen] == [f"{HOST}:{receiver.port}"]


async def test_of_an_endless_answer_only_so_much_is_read(receiver: Receiver) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    receiver.answer = endless
    async with Outbound.open(["127.0.0.1"]) as outbound:
        answer = await post(outbound, receiver.url(), most=100)

    assert answer.body == b"x" * 100


async def test_what_takes_too_long_ends(receiver: Receiver) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    receiver.answer = never
    async with Outbound.open(["127.0.0.1"]) as outbound:
        with pytest.raises(OutboundError, match="timed_out"):
            await post(outbound, receiver.url(), timeout_s=0.2)


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n")
    writer.close()


async def test_an_answer_that_is_none_is_an_error(receiver: Receiver) -> None:
    opened: AbstractAsyncContextManager[asyncio.Server] = await asyncio.start_server(garbage, "127.0.0.1", 0)
    async with opened as server, Outbound.open(["127.0.0.1"]) as outbound:
        with pytest.raises(OutboundError, match=r"bad_answer|unreachable"):
            await post(outbound, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
