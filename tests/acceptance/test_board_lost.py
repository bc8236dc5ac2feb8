"""A board that is wiped or set back to an older copy, under load on a real Kafka: it is made anew by itself."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from bench.crew import Crew, crew
from bench.provider_double import Running, provider
from bench.servers import TENANT, Stage, stage
from router import topics
from router.epoch import SET_BACK
from tests.acceptance.clients import Clients
from tests.acceptance.contents import leaks_of
from tests.builders import copy_of, set_back, until
from tests.servers import unavailable
from tools.kafka.broker import HOST, free_ports, missing

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(200)]

LEASE_S = 3
SETTLE_S = 60.0
OPEN = 4  # calls at once
LIMITS = {"usd_per_month": "1000", "tokens_per_day": 10_000_000}


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that runs."""

    place: Stage
    crew: Crew
    port: int
    upstream: Running
    clients: Clients

    async def start(self) -> None:
        """A gateway, two workers and a sweeper that may rebuild; return once all are ready."""
        ours = self.crew
        members = [await ours.http(self.port), await ours.worker("gpu"), await ours.worker("gpu"), await ours.sweeper()]
        await asyncio.gather(*(member.ready() for member in members))

    async def ended(self) -> list[str]:
        """The jobs that are completed, as often as the log says so (repeats of a record dropped)."""
        events = {row["id"]: row for row in await self._rows(topics.EVENTS)}
        assert {row["type"] for row in events.values()} <= {"job.completed"}
        return [row["data"]["id"].removeprefix("job_") for row in events.values()]

    async def attempts(self) -> dict[str, Any]:
        """All attempts that are on the ledger, by the name that upstream knows them by."""
        rows = [row for row in await self._rows(topics.CHARGES) if row["type"] == "attempt"]
        return {f"{row['job']}.{row['attempt']}": row for row in rows}

    async def everything_has_ended(self) -> bool:
        """All that was accepted."""
        return set(self.clients.accepted.values()) <= set(await self.ended())

    async def calls(self) -> dict[str, int]:
        """How often upstream was called for each job that has ended."""
        ended = await self.ended()
        seen = await asyncio.to_thread(self.upstream.record)
        calls = Counter(call.request.rpartition(".")[0] for call in seen)
        return {job: calls[job] for job in ended}

    async def assert_nothing_is_lost_or_repeated(self, before: Mapping[str, int]) -> None:
        """`before`: the calls of jobs that had ended before the board was lost."""
        await until(self.everything_has_ended, within=SETTLE_S)
        ended, calls = Counter(await self.ended()), await self.calls()
        assert {job: ended[job] for job in self.clients.accepted.values() if ended[job] != 1} == {}
        assert {job: calls[job] for job in before if calls[job] != before[job]} == {}
        assert {each.status for each in self.clients.refusals} <= {503}

        attempts = await self.attempts()
        completed = Counter(row["job"] for row in attempts.values() if row["concluded"])
        assert {job: completed[job] for job in self.clients.accepted.values() if completed[job] != 1} == {}
        await self._assert_budgets_agree(attempts)

    async def _assert_budgets_agree(self, attempts: Mapping[str, Any]) -> None:
        """Redis' counters say what the ledger says, once the last calls are settled."""
        tokens = sum(row["tokens"] for row in attempts.values())
        found: list[int] = []

        async def agree() -> bool:
            counted = await self.place.core.redis.hvals(f"{{t:{TENANT}}}:quota:day")
            of_key = await self.place.core.redis.hvals(f"{{t:{TENANT}}}:quota:key:ci:day")
            of_deployment = await self.place.core.redis.hvals("{b:light}:quota:day")
            found[:] = [int(each[0]) for each in (counted, of_key, of_deployment) if each]
            return len(found) == 3 and set(found) == {tokens}

        try:
            await until(agree)
        except TimeoutError:
            raise AssertionError(f"the ledger says {tokens} tokens, tenant, key and deployment {found}") from None

    async def _rows(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(delivery.record.value) async for delivery in self.place.core.log.read(topic)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    """A broker, a Valkey, and everything of Pointsman's."""
    if why := missing():
        unavailable(f"the log of these tests is a Kafka of their own: {why}")
    [port] = free_ports(1)
    with provider() as upstream:
        async with stage(log="kafka", changed=_settings(upstream)) as place, crew(place) as ours:
            key = await place.core.keyring.create(TENANT, "ci")
            everything = Site(place, ours, port, upstream, Clients(f"http://{HOST}:{port}", key.text))
            await everything.start()
            yield everything
            assert await leaks_of(ours, everything.clients.refused) == []


def _settings(upstream: Running) -> dict[str, object]:
    deployment = {"backend": "gpu", "url": f"{upstream.url}/v1", "model": "any", "tier": "light"}
    price = {"input": "0.123457", "output": "0.654321"}
    return {
        "kafka": {"partitions": 4},
        "board": {"rebuild": "auto"},
        "deployments": {"light": {**deployment, "limits": {**LIMITS, "concurrency": OPEN}, "price": price}},
        "tenants": {TENANT: {"limits": LIMITS, "key_limits": {"ci": LIMITS}, "max_unfinished": 100_000}},
        "worker": {"health_port": 0, "lease_s": LEASE_S},
    }


async def test_a_wiped_board_is_made_anew_by_itself_and_no_job_is_lost_or_repeated(site: Site) -> None:
    async with site.clients.sending():
        await until(lambda: _some_have_ended(site, 20))
        over, epoch = await site.calls(), await site.place.core.board.epoch()
        await site.place.core.redis.flushall()
        await until(lambda: _is_made_anew(site, epoch), within=SETTLE_S)
        await until(lambda: _some_have_ended(site, len(over) + 10), within=SETTLE_S)

    await site.assert_nothing_is_lost_or_repeated(over)


async def test_a_board_that_is_set_back_is_made_anew_by_itself_and_no_job_is_lost_or_repeated(site: Site) -> None:
    before = len(await site.ended())
    async with site.clients.sending():
        await until(lambda: _some_have_ended(site, before + 10))
        copy = await copy_of(site.place.core.redis)
        epoch, beat = await site.place.core.board.heartbeat()
        await until(lambda: _has_beaten(site, beat + 2 * SET_BACK), within=SETTLE_S)
        await until(lambda: _some_have_ended(site, before + 25))
        over = await site.calls()
        await set_back(site.place.core.redis, copy)
        await until(lambda: _is_made_anew(site, epoch), within=SETTLE_S)
        await until(lambda: _some_have_ended(site, len(over) + 10), within=SETTLE_S)

    await site.assert_nothing_is_lost_or_repeated(over)


async def test_an_older_copy_that_is_put_in_place_while_nothing_runs_is_made_anew_too(site: Site) -> None:
    before = len(await site.ended())
    async with site.clients.sending():
        await until(lambda: _some_have_ended(site, before + 5))
        copy = await copy_of(site.place.core.redis)
        await until(lambda: _some_have_ended(site, before + 20))
    await until(site.everything_has_ended, within=SETTLE_S)
    over = await site.calls()
    await site.crew.end()
    await set_back(site.place.core.redis, copy)
    await site.start()
    async with site.clients.sending():
        await until(lambda: _some_have_ended(site, len(over) + 5), within=SETTLE_S)

    await site.assert_nothing_is_lost_or_repeated(over)


async def _some_have_ended(site: Site, count: int) -> bool:
    return len(await site.ended()) >= count


async def _is_made_anew(site: Site, epoch: str | None) -> bool:
    return await site.place.core.board.epoch() not in (None, epoch)


async def _has_beaten(site: Site, beat: int) -> bool:
    return (await site.place.core.board.heartbeat())[1] >= beat
