"""Places on replicas, shared over workers, on a real server."""

import asyncio
from collections.abc import Sequence

from redis.asyncio import Redis

from consumers.gpu.places import Ended, Known, Places, Seen, Taken
from consumers.gpu.replicas import Learned
from policies.scripts import Scripts
from tests.builders import standing_still, until
from tests.servers import redis_client

A, B = "gpu-1:8000", "gpu-2:8000"


async def known(places: Places, *replicas: str) -> Sequence[Known]:
    _, told = await places.sync("small", [Seen(each, "{}") for each in replicas])
    return told


async def test_three_workers_together_never_have_more_places_than_the_cap(redis: "Redis") -> None:
    workers = [Places(Scripts(redis)) for _ in range(3)]

    taken = await asyncio.gather(
        *(worker.take("small", f"job{n}.{w}", [(A, 4), (B, 5)]) for w, worker in enumerate(workers) for n in range(8))
    )

    where = [each.index for each in taken]
    assert (where.count(0), where.count(1), where.count(None)) == (4, 5, 24 - 9)
    assert [each.places for each in await known(workers[0], A, B)] == [4, 5]


async def test_a_place_that_is_taken_twice_is_one_and_is_free_when_given_back_twice(redis: "Redis") -> None:
    places = Places(Scripts(redis))
    assert (await places.take("small", "job.1", [(A, 1)])).index == 0
    assert (await places.take("small", "job.1", [(B, 1), (A, 1)])).index == 1
    assert (await places.take("small", "job.2", [(A, 1)])).index is None

    for _ in range(2):
        await places.keep("small", [], [Ended(A, "job.1", 5)])

    assert (await places.take("small", "job.2", [(A, 1)])) == Taken(0, [1])


async def test_the_place_of_a_worker_that_died_is_free_after_its_lease_and_that_of_a_living_one_is_not(
    redis: "Redis",
) -> None:
    places = Places(Scripts(redis), hold_s=0.3)
    await places.take("small", "dead.1", [(A, 2)])
    await places.take("small", "alive.1", [(A, 2)])

    async def renewed_until_the_other_is_gone() -> bool:
        await places.keep("small", [(A, "alive.1")], [])
        return (await known(places, A))[0].places == 1

    await until(renewed_until_the_other_is_gone)
    assert (await places.take("small", "next.1", [(A, 2)])).index == 0
    assert (await places.take("small", "last.1", [(A, 2)])).index is None


async def test_after_redis_stood_still_calls_that_run_keep_their_places_and_those_of_the_dead_are_free_again(
    own_valkey: str,
) -> None:
    async with redis_client(own_valkey) as redis:
        places = Places(Scripts(redis), hold_s=1.0)
        for each in ("alive.1", "alive.2", "dead.1"):
            await places.take("small", each, [(A, 3)])

        async with standing_still(redis):
            await asyncio.sleep(1.2)  # longer than a lease

        assert (await places.take("small", "next.1", [(A, 3)])).index is None
        assert (await known(places, A))[0].places == 3

        async def renewed_until_the_dead_one_is_gone() -> bool:
            await places.keep("small", [(A, "alive.1"), (A, "alive.2")], [])
            return (await known(places, A))[0].places == 2

        await until(renewed_until_the_dead_one_is_gone)
        assert (await places.take("small", "next.1", [(A, 3)])).index == 0
        assert (await places.take("small", "last.1", [(A, 3)])).index is None


async def test_where_a_beginning_was_computed_one_worker_hears_from_the_other_before_it_goes_elsewhere(
    redis: "Redis",
) -> None:
    one, other = Places(Scripts(redis)), Places(Scripts(redis))
    assert await one.take("small", "job.1", [(B, 4), (A, 4)], beginning="ab") == Taken(0, [1, 0], (B,))

    told = await other.take("small", "job.2", [(A, 4), (B, 4)], beginning="ab")
    assert told == Taken(None, [0, 1], (B,))
    assert await other.take("small", "job.2", [(A, 4)], beginning="ab", homes=[B]) == Taken(0, [1], (A, B))
    assert await one.take("small", "job.3", [(A, 4)], beginning="cd") == Taken(0, [2], (A,))


async def test_beginnings_that_nobody_asks_for_any_more_are_forgotten(redis: "Redis") -> None:
    places = Places(Scripts(redis))
    await redis.hset("{b:small}:homes", mapping={f"{number}": f"1 {A}" for number in range(4999)})

    await places.take("small", "job.1", [(B, 4)], beginning="ab")
    await places.take("small", "job.2", [(B, 4)], beginning="7", homes=[A])

    assert await redis.hlen("{b:small}:homes") == 1
    assert await redis.hlen("{b:small}:homes_before") == 5000
    assert (await places.take("small", "job.3", [(A, 4)], beginning="ab")).homes == (B,)


async def test_a_place_that_the_board_lost_is_there_again_with_its_renewal(redis: "Redis") -> None:
    places = Places(Scripts(redis))
    await places.take("small", "job.1", [(A, 1)])
    await redis.flushdb()
    await places.keep("small", [(A, "job.1")], [])
    assert (await places.take("small", "job.2", [(A, 1)])).index is None


async def test_an_ejection_that_one_worker_tells_is_heard_by_the_others_and_the_longest_holds(redis: "Redis") -> None:
    one, other = Places(Scripts(redis)), Places(Scripts(redis))
    now, _ = await one.sync("small", [])
    await one.sync("small", [Seen(A, "{}", out_until=now + 20, strikes=2)])
    await other.sync("small", [Seen(A, "{}", out_until=now + 10, strikes=1)])

    [told] = await known(other, A)
    assert (round(told.out_until - now, 1), told.strikes) == (20.0, 2)


async def test_of_two_workers_that_learn_at_once_one_changes_the_cap(redis: "Redis") -> None:
    places = Places(Scripts(redis))
    first = await places.learn("small", A, None, 10.0)
    assert await places.learn("small", A, None, 7.0) == first
    assert (await known(places, A))[0].learned == first

    assert (await places.learn("small", A, first, 6.5)).cap == 6.5
    assert (await places.learn("small", A, Learned(10.0, first.at - 1), 3.0)).cap == 6.5


async def test_the_waker_is_called_by_one_worker_once(redis: "Redis") -> None:
    workers = [Places(Scripts(redis)) for _ in range(3)]

    verdicts = await asyncio.gather(*(each.may_wake("small", again_s=30) for each in workers for _ in range(5)))

    assert sum(verdicts) == 1
    assert await workers[0].may_wake("large", again_s=30)


async def test_names_that_come_and_go_do_not_pile_up(redis: "Redis") -> None:
    places = Places(Scripts(redis))
    for number in range(40):
        await places.sync("small", [Seen(f"pod-{number}", "{}")])
    await redis.hset(  # as if all of them had been seen long ago
        "{b:small}:fleet", mapping={f"pod-{number}": "1 {}" for number in range(40)}
    )

    await places.sync("small", [Seen(A, "{}")])

    assert await redis.hlen("{b:small}:fleet") == 1
