"""Replicas that share what they learn through Redis hold a share together, and agree on sessions."""

import asyncio
import random
from typing import Any

import pytest
from redis.asyncio import Redis

from policies.deployments import Modality
from policies.scripts import BoardUnavailableError, Scripts
from policies.tenants import Tenant
from router import tracker
from router.gain import Score
from router.shares import Name, Shares
from router.sharing import Sharing
from router.versions import Versions
from tests.builders import impatient_client, standing_still
from tests.unit.router.test_tracker import drifting

TENANT = Tenant("acme")
NAME = Name("acme", Modality.TEXT)
WINDOW = 500


def a_replica(redis: "Redis") -> Sharing:
    return Sharing(
        Scripts(redis), Versions(Scripts(redis)), Shares(lambda _: Score(0.5, ()), fifth=0.534, deviation=0.1)
    )


def decide(replica: Sharing, score: float) -> bool:
    return replica.shares.decide(NAME, TENANT, score).is_heavy


@pytest.mark.parametrize("replicas", [1, 4])
async def test_every_window_keeps_near_the_share_while_traffic_drifts(redis: "Redis", replicas: int) -> None:
    dice, those = random.Random(1), [a_replica(redis) for _ in range(replicas)]
    heavy = []
    for at, score in enumerate(drifting(24_000, 1)):
        heavy.append(decide(dice.choice(those), score))
        if at % 100 == 99:
            await asyncio.gather(*(each.merge() for each in those))

    windows = [sum(heavy[at : at + WINDOW]) / WINDOW for at in range(0, len(heavy), WINDOW)]
    assert all(0.15 <= share <= 0.25 for share in windows)
    await those[0].merge()
    level = those[0].shares.levels()[NAME]
    assert (level.scored, level.scored_heavy) == (24_000, sum(heavy))


async def test_the_script_does_as_its_model(redis: "Redis") -> None:
    dice, replica = random.Random(2), a_replica(redis)
    expected = None
    for _ in range(20):
        for _ in range(dice.randrange(1, 60)):
            if dice.random() < 0.2:
                replica.shares.force(NAME, TENANT, is_heavy=dice.random() < 0.5)
            else:
                decide(replica, dice.random())
        [change] = replica.shares.changes()
        base = expected or change.began
        expected = tracker.absorbed(change.target, base, change.moved, replicas=1)
        await replica.merge()

        assert replica.shares.levels()[NAME] == expected


async def test_a_replica_that_starts_goes_on_where_the_others_are(redis: "Redis") -> None:
    first, second = a_replica(redis), a_replica(redis)
    for _ in range(300):
        decide(first, 0.9)
    await first.merge()

    decide(second, 0.6)
    await second.merge()

    common, level = first.shares.levels()[NAME], second.shares.levels()[NAME]
    assert level.scored == common.scored + 1
    assert level.threshold == pytest.approx(common.threshold, abs=0.02)


async def test_what_is_decided_while_redis_is_away_is_told_later(redis: "Redis", redis_url: str) -> None:
    client = impatient_client(redis_url)
    replica = Sharing(Scripts(client), Versions(Scripts(client)), a_replica(redis).shares)
    decide(replica, 0.9)
    async with standing_still(redis):
        with pytest.raises(BoardUnavailableError):
            await replica.merge()
        decide(replica, 0.1)
    other = a_replica(redis)
    await asyncio.sleep(0.6)  # the breaker's pause

    await replica.merge()
    decide(other, 0.1)
    await other.merge()

    assert other.shares.levels()[NAME].scored in (3, 4)  # a round whose answer was lost may count twice, never less
    await client.aclose()


async def test_a_session_is_known_to_all_replicas(redis: "Redis") -> None:
    first, second = a_replica(redis), a_replica(redis)
    first.shares.sessions.note("acme", "s1", "big", is_heavy=True, now=first.shares.clock())
    await first.merge()
    decide(second, 0.5)

    await second.merge()

    place = second.shares.sessions.find("acme", "s1", second.shares.clock())
    assert place is not None and (place.deployment, place.is_heavy) == ("big", True)
    assert second.shares.sessions.find("other", "s1", second.shares.clock()) is None


async def test_all_keys_of_a_tenant_are_in_its_slot(redis: "Redis") -> None:
    replica = a_replica(redis)
    decide(replica, 0.5)
    replica.shares.sessions.note("acme", "s1", "big", is_heavy=True, now=0.0)
    await replica.merge()

    keys: Any = await redis.keys("*")
    assert len(keys) == 3 and all(key.startswith(b"{t:acme}:") for key in keys)
