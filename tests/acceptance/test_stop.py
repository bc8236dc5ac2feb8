"""SIGTERM while Redis or the log is away: a process ends all the same, in bounded time, and nothing is lost by it."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
import pytest_asyncio

from bench.audit import audit, settled
from bench.crew import Crew, Member, crew
from bench.provider_double import Running, provider
from bench.servers import LIMITS, TENANT, Stage, stage
from gateway.check import STOP_S
from tests.acceptance.clients import Clients
from tests.acceptance.contents import leaks_of
from tests.builders import until
from tests.servers import unavailable
from tools.kafka.broker import HOST, free_ports, missing

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(200)]

DRAIN_S = 2
LEASE_S = 3
EXIT_S = 15.0  # to close what is open on a machine that does much else; the clients' own time-outs are shorter
SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that runs."""

    place: Stage
    crew: Crew
    upstream: Running
    clients: Clients
    valkey_pid: int

    @property
    def broker_pid(self) -> int:
        """The one broker."""
        assert self.place.cluster is not None
        [broker] = self.place.cluster.brokers
        assert broker.process is not None
        return broker.process.pid

    async def calls_are_open(self) -> bool:
        """Whether upstream is at work."""
        return any(call.state == "open" for call in await asyncio.to_thread(self.upstream.record))

    async def assert_all_is_well(self) -> None:
        """Every order became one job that was completed and charged once."""
        assert await settled(self.place, SETTLE_S), "not everything ended by itself"
        found = await audit(self.place, self.clients.accepted, await asyncio.to_thread(self.upstream.record))
        assert found.is_clean, found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    """A broker, a Valkey, a gateway and a worker."""
    if why := missing():
        unavailable(f"these tests stop a broker of their own: {why}")
    [port] = free_ports(1)
    with provider() as upstream:
        async with stage(log="kafka", changed=_settings(upstream)) as place, crew(place) as ours:
            await asyncio.gather(*(member.ready() for member in [await ours.http(port), await ours.worker("gpu")]))
            info = await place.core.redis.info("server")
            clients = Clients(f"http://{HOST}:{port}", await place.new_key())
            yield Site(place, ours, upstream, clients, info["process_id"])
            assert await leaks_of(ours, clients.refused) == []


def _settings(upstream: Running) -> dict[str, object]:
    deployment = {"backend": "gpu", "url": f"{upstream.url}/v1", "model": "any", "tier": "light"}
    price = {"input": "0.123457", "output": "0.654321"}
    return {
        "kafka": {"partitions": 4, "session_s": 6},
        "board": {"socket_timeout_s": 1},
        "deployments": {"light": {**deployment, "limits": {"concurrency": 16}, "price": price}},
        "tenants": {TENANT: {"limits": dict(LIMITS), "max_unfinished": 100_000}},
        "worker": {"health_port": 0, "lease_s": LEASE_S, "drain_s": DRAIN_S},
    }


@asynccontextmanager
async def stopped(pids: Sequence[int]) -> AsyncGenerator[None]:
    """These processes stand still for as long as the block runs."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def ends(member: Member, within: float) -> float:
    """The seconds that it took to end by itself after SIGTERM."""
    began = time.monotonic()
    member.terminate()
    try:
        async with asyncio.timeout(within):
            await member.process.wait()
    except TimeoutError:
        raise AssertionError(f"it did not end within {within} s:\n{member.tail()}") from None
    return time.monotonic() - began


@pytest.mark.parametrize("away", ["redis", "log", "both"])
async def test_a_worker_that_is_told_to_stop_while_what_it_needs_is_away_ends_in_time_and_loses_nothing(
    site: Site, away: str
) -> None:
    [worker] = site.crew.alive("worker")
    pids = {"redis": [site.valkey_pid], "log": [site.broker_pid], "both": [site.valkey_pid, site.broker_pid]}[away]
    async with site.clients.sending():
        await until(site.calls_are_open)
        await asyncio.sleep(1)
    async with stopped(pids):
        took = await ends(worker, DRAIN_S + STOP_S + EXIT_S)
    await (await site.crew.worker("gpu")).ready()

    await site.assert_all_is_well()
    print(f"{away} away: ended after {took:.1f} s")


async def test_a_gateway_that_is_told_to_stop_while_redis_and_the_log_are_away_ends_in_time(site: Site) -> None:
    [gateway] = site.crew.alive("http")
    async with stopped([site.valkey_pid, site.broker_pid]):
        took = await ends(gateway, STOP_S + EXIT_S)

    print(f"ended after {took:.1f} s")
