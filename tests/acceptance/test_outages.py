"""Redis and Kafka away, slow or changing hands under load, on real servers: refusals in time, then all goes on.

Nobody restarts anything of Pointsman's here: one gateway, two workers and a sweeper live through all of it.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient

from bench.audit import audit, settled
from bench.crew import Crew, crew, freeze
from bench.provider_double import Running, provider
from bench.servers import LIMITS, TENANT, Stage, stage
from router.log import Record
from router.log_kafka import KafkaLog
from tests.acceptance.clients import Clients, Refusal
from tests.acceptance.contents import leaks_of
from tests.servers import unavailable
from tools.kafka.broker import HOST, Broker, free_ports, missing

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240), pytest.mark.alone]

FROZEN_S = float(os.environ.get("POINTSMAN_TEST_FROZEN_S", "60"))
SLOW_S = 15.0
PULSE_S = 2.5  # stopped, of each 2.6 s
SOCKET_TIMEOUT_S = 2
BOARD_BOUND_S = (
    15  # a wait for a connection and two tries of a round trip, for the key and for the job; and a busy machine
)
LOG_BOUND_S = 28  # the append's hold of 20 s, and the board's fence
SETTLE_S = 90.0


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that runs."""

    place: Stage
    crew: Crew
    upstream: Running
    clients: Clients
    valkey_pid: int

    @property
    def brokers(self) -> Sequence[Broker]:
        """The three of them."""
        assert self.place.cluster is not None
        return self.place.cluster.brokers

    async def leaders(self) -> dict[tuple[str, int], int]:
        """Which broker leads which partition."""
        assert self.place.cluster is not None
        admin = AIOKafkaAdminClient(bootstrap_servers=self.place.cluster.bootstrap)
        await admin.start()
        try:
            topics = await admin.describe_topics()
        finally:
            await admin.close()
        return {(each["topic"], part["partition"]): part["leader"] for each in topics for part in each["partitions"]}

    async def assert_all_is_well(self, *, since: float, bound_s: float) -> list[Refusal]:
        """Every order became one job that ran once and was charged once; refusals were prompt and said when to come."""
        refusals = [each for each in self.clients.refusals if each.began >= since]
        assert {each.status for each in refusals} <= {503}
        assert all(each.retry_after is not None for each in refusals)
        taken = [(began, seconds) for began, seconds in self.clients.waited if began >= since]
        answers = [*taken, *((each.began, each.seconds) for each in refusals)]
        slowest = max(self.clients.waited_for_us(*each) for each in answers)
        assert slowest < bound_s
        assert await settled(self.place, SETTLE_S), "not everything ended by itself"
        found = await audit(self.place, self.clients.accepted, await asyncio.to_thread(self.upstream.record))
        assert found.is_clean, found
        assert found.duplicate_calls == 0, found
        print(f"{len(taken)} accepted, {len(refusals)} refused for a while, slowest answer {slowest:.1f} s")
        return refusals


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    """Three brokers, a Valkey that has each write on disk, a gateway, two workers, a sweeper, and an upstream."""
    if why := missing():
        unavailable(f"these tests stop brokers of their own: {why}")
    [port] = free_ports(1)
    with provider() as upstream:
        async with stage(log="kafka", brokers=3, changed=_settings(upstream)) as place, crew(place) as ours:
            members = [await ours.http(port), await ours.worker("gpu"), await ours.worker("gpu"), await ours.sweeper()]
            await asyncio.gather(*(member.ready() for member in members))
            info = await place.core.redis.info("server")
            clients = Clients(f"http://{HOST}:{port}", await place.new_key())
            yield Site(place, ours, upstream, clients, info["process_id"])
            ended = [
                f"{each.role} ended with {each.process.returncode}:\n{each.tail()}"
                for each in members
                if not each.is_alive
            ]
            assert not ended, "\n".join(ended)
            assert await leaks_of(ours, clients.refused) == []


def _settings(upstream: Running) -> dict[str, object]:
    deployment = {"backend": "gpu", "url": f"{upstream.url}/v1", "model": "any", "tier": "light"}
    limits = {"requests_per_minute": 1e7, "tokens_per_minute": 1e10, "concurrency": 64}
    return {
        "kafka": {"replication": 3, "partitions": 4},
        "board": {"socket_timeout_s": SOCKET_TIMEOUT_S},
        "deployments": {
            "light": {**deployment, "limits": limits, "price": {"input": "0.123457", "output": "0.654321"}}
        },
        "tenants": {TENANT: {"limits": dict(LIMITS), "max_unfinished": 100_000, "max_in_class": 10_000}},
        "worker": {"health_port": 0},
    }


async def pulses(pids: Callable[[], Sequence[int]], seconds: float) -> None:
    """Stopped for most of the time, so that each write takes seconds: what a slow disk does to whoever waits for it."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        await asyncio.gather(*(freeze(pid, PULSE_S) for pid in pids()))
        await asyncio.sleep(0.1)


async def test_a_redis_that_stands_still_for_a_minute_is_refused_in_time_and_then_all_goes_on(site: Site) -> None:
    since = time.monotonic()
    async with site.clients.sending():
        await asyncio.sleep(2)
        await freeze(site.valkey_pid, FROZEN_S)
        await asyncio.sleep(3)

    refusals = await site.assert_all_is_well(since=since, bound_s=BOARD_BOUND_S)
    assert refusals, "nobody was refused while Redis stood still"


async def test_a_redis_as_slow_as_a_bad_disk_loses_and_repeats_nothing(site: Site) -> None:
    since = time.monotonic()
    async with site.clients.sending():
        await pulses(lambda: [site.valkey_pid], SLOW_S)

    await site.assert_all_is_well(since=since, bound_s=4 * SOCKET_TIMEOUT_S + PULSE_S)


async def test_brokers_as_slow_as_a_bad_disk_lose_and_repeat_nothing(site: Site) -> None:
    since = time.monotonic()
    async with site.clients.sending():
        await pulses(lambda: [broker.process.pid for broker in site.brokers if broker.process is not None], SLOW_S)

    await site.assert_all_is_well(since=since, bound_s=LOG_BOUND_S)


async def test_a_broker_that_is_restarted_and_leaders_that_move_back_to_it_lose_and_repeat_nothing(site: Site) -> None:
    since, cluster = time.monotonic(), site.place.cluster
    assert cluster is not None
    broker = cluster.brokers[1]
    before = await site.leaders()
    async with site.clients.sending():
        assert broker.process is not None
        broker.process.terminate()
        await asyncio.to_thread(broker.process.wait, 60)
        broker.process = None
        away = await site.leaders()
        await asyncio.sleep(2)
        cluster.relaunch(1)
        await asyncio.to_thread(cluster.wait_until_ready)
        back = await _led_again(site, broker.node)
        await asyncio.sleep(2)

    assert broker.node in before.values() and broker.node in back.values()
    assert broker.node not in away.values()
    await site.assert_all_is_well(since=since, bound_s=LOG_BOUND_S)


async def test_nothing_is_confirmed_that_only_one_of_three_brokers_has(site: Site) -> None:
    """The leader that lives takes its records; they are safe only once another has them too."""
    assert site.place.cluster is not None
    others = [broker.process.pid for broker in site.brokers[1:] if broker.process is not None]
    async with KafkaLog.connect(site.place.cluster.bootstrap, prefix="one.", partitions=3, replication=3) as log:
        await log.create(["jobs"])
        frozen = [asyncio.create_task(freeze(pid, 4.0)) for pid in others]
        appends = [asyncio.create_task(log.append("jobs", Record(b"hello"))) for _ in range(60)]  # to each partition
        told, _ = await asyncio.wait(appends, timeout=3.0)
        confirmed = [each for each in told if each.exception() is None]
        await asyncio.gather(*frozen, *appends, return_exceptions=True)

    assert len(others) == 2
    assert confirmed == []


async def _led_again(site: Site, node: int) -> dict[tuple[str, int], int]:
    """The leaders, once this broker follows all its partitions again and an election has made it lead its own."""
    cluster = site.place.cluster
    assert cluster is not None
    deadline = time.monotonic() + 90
    while node not in (leaders := await site.leaders()).values():
        assert time.monotonic() < deadline, "the broker leads nothing again"
        await asyncio.to_thread(cluster.elect_preferred_leaders)
        await asyncio.sleep(0.5)
    return leaders
