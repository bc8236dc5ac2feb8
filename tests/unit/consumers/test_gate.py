"""What a worker's knowledge of the quotas is good for, driven step by step."""

import random
from dataclasses import replace

import pytest

from consumers.gate import ANSWER_S, MOST_PARTS, Closed, Gate, HeldBack, enforced
from policies import bucket
from policies.bucket import Level, Limit, Short, Taken
from policies.quota import Exhausted, Granted, Kind, Part, Room, Scope, State, Wait

SMALL = Part(
    "{b:small}:quota", Kind.DEPLOYMENT, "deployment small", requests=Limit(10, 100), tokens=Limit(1000, 10_000)
)
ONE_AT_ONCE = Part("{t:acme}:quota", Kind.TENANT, "tenant acme", concurrency=1)


def state(part: Part, *, requests: float = 100, tokens: float = 10_000, places: int | None = None) -> State:
    """A verdict's figures, from levels."""

    def room(limit: Limit | None, level: float) -> Room | None:
        return None if limit is None else Room(int(limit.burst), max(0, int(level)), (limit.burst - level) / limit.rate)

    return State(part, room(part.requests, requests), room(part.tokens, tokens), None, places)


def granted(part: Part = SMALL, **levels: float) -> Granted:
    return Granted(states=(state(part, **levels),))  # type: ignore[arg-type]


def closed_for(seconds: float, part: Part = SMALL) -> Closed:
    """Up to rounding."""
    return Closed(part, pytest.approx(seconds))  # type: ignore[arg-type]


def asking(gate: Gate, job: str, tokens: int = 10, *, now: float, part: Part = SMALL) -> bool:
    """Whether it may ask; then it does."""
    if gate.closed((part,), tokens, now) is not None:
        return False
    gate.ask(job, (part,), tokens)
    return True


def test_of_a_part_that_nobody_has_asked_about_one_job_finds_out_for_the_others() -> None:
    gate = Gate()

    assert asking(gate, "a", now=0.0)
    assert gate.closed((SMALL,), 10, 0.0) == Closed(SMALL, ANSWER_S)
    gate.told("a", granted(requests=2), 0.0)
    assert [asking(gate, job, now=0.0) for job in "bcd"] == [True, True, False]


def test_the_wait_is_exact_for_what_the_job_needs() -> None:
    gate = Gate()
    gate.told("a", granted(requests=0.5, tokens=3000), 0.0)

    assert gate.closed((SMALL,), 10, 0.0) == closed_for(0.05)
    assert gate.closed((SMALL,), 3500, 0.0) == closed_for(0.5)
    assert gate.closed((SMALL,), 3500, 0.4) == closed_for(0.1)
    assert gate.closed((SMALL,), 3500, 0.5) is None
    assert gate.closed((SMALL,), 99_999, 0.0) == gate.closed((SMALL,), 10_000, 0.0)  # it waits for a full bucket


def test_those_that_are_asking_count_until_they_are_told() -> None:
    gate = Gate()
    gate.told("a", granted(requests=3), 0.0)
    assert all(asking(gate, job, now=0.0) for job in "bcd")

    gate.told("b", granted(requests=2), 0.0)
    still_two = gate.closed((SMALL,), 10, 0.0)
    gate.told("c", Wait(0.1, "requests_per_minute", SMALL.name, (state(SMALL, requests=0.0),)), 0.0)
    gate.forget("d")
    gate.forget("d")

    assert still_two is not None
    assert gate.closed((SMALL,), 10, 0.0) == closed_for(0.1)


def test_what_a_call_did_not_use_is_there_again_at_once() -> None:
    gate, scope = Gate(), Scope("{b:small}", (SMALL,))
    gate.told("a", granted(tokens=0.0, requests=0.0), 0.0)

    gate.give_back(scope, requests=1, tokens=900, now=0.0)

    assert gate.closed((SMALL,), 900, 0.0) is None
    gate.give_back(scope, requests=0, tokens=-500, now=0.0)  # that one used more than it had reserved
    assert gate.closed((SMALL,), 900, 0.0) == closed_for(0.5)
    gate.give_back(scope, requests=1000, tokens=10**9, now=0.0)
    assert gate.room(SMALL, 0.0, 0.0) == 100
    assert gate.room(SMALL, 1000.0, 0.0) == 10


def test_a_place_is_free_when_a_call_ends_here_and_is_looked_for_by_one_when_it_may_have_ended_elsewhere() -> None:
    gate, parts = Gate(), (ONE_AT_ONCE,)
    gate.told("a", granted(ONE_AT_ONCE, places=0), 0.0)

    assert gate.closed(parts, 1, 0.0) == Closed(ONE_AT_ONCE, 0.25)
    assert [asking(gate, job, now=0.25, part=ONE_AT_ONCE) for job in "bc"] == [True, False]
    gate.told("b", Wait(0.25, "concurrency", ONE_AT_ONCE.name, (state(ONE_AT_ONCE, places=0),)), 0.26)
    assert gate.closed(parts, 1, 0.3) == closed_for(0.21, ONE_AT_ONCE)
    gate.give_back(Scope("{t:acme}", parts), requests=0, tokens=0, now=0.3)
    assert [asking(gate, job, now=0.3, part=ONE_AT_ONCE) for job in "de"] == [True, False]


def test_tokens_that_others_may_have_given_back_are_looked_for_once_a_second_by_one() -> None:
    gate = Gate()
    gate.told("a", granted(tokens=-8000), 0.0)

    assert gate.closed((SMALL,), 5000, 0.0) == Closed(SMALL, 1.0)  # it would take 13 seconds without them
    assert [asking(gate, job, 5000, now=1.0) for job in "bc"] == [True, False]


def test_who_has_to_wait_for_long_asks_so_as_to_wait_elsewhere() -> None:
    slow = replace(SMALL, requests=Limit(0.01, 1))
    gate = Gate()
    gate.told("a", granted(slow, requests=0.0), 0.0)

    assert asking(gate, "b", now=0.0, part=slow)
    gate.forget("b")
    assert gate.closed((slow,), 10, 75.0) == closed_for(25.0, slow)


def test_a_day_that_is_nearly_over_is_waited_for() -> None:
    daily = Part("{t:acme}:quota", Kind.TENANT, "tenant acme", tokens_per_day=100)
    gate = Gate()

    gate.told("a", Wait(12.0, "tokens_per_day", "tenant acme", (state(daily),)), 0.0)

    assert gate.closed((daily,), 10, 2.0) == Closed(daily, 10.0)
    assert gate.closed((daily,), 10, 12.0) is None


def test_the_part_that_keeps_a_job_longest_is_named_and_shadows_are_not_looked_at() -> None:
    shadow = replace(ONE_AT_ONCE, shadow=True)
    gate = Gate()
    gate.told("a", granted(ONE_AT_ONCE, places=0), 0.0)
    gate.told("b", granted(requests=-4), 0.0)
    gate.told("c", granted(shadow, places=0), 0.0)

    assert gate.closed((ONE_AT_ONCE, SMALL), 1, 0.0) == Closed(SMALL, 0.5)
    assert enforced(Scope("{t:acme}", (shadow,)), Scope("{b:small}", (SMALL,))) == (SMALL,)


def test_a_budget_that_is_spent_closes_nothing() -> None:
    gate = Gate()

    gate.told("a", Exhausted("usd_per_month", 9e9, SMALL.name, (state(SMALL),)), 0.0)

    assert gate.closed((SMALL,), 10, 0.0) is None


def test_of_many_parts_the_first_are_forgotten() -> None:
    gate = Gate(most_parts=10)
    for number in range(1000):
        part = replace(ONE_AT_ONCE, key=f"{{t:{number}}}:quota")
        assert asking(gate, str(number), now=0.0, part=part)
        gate.told(str(number), granted(part, places=0), 0.0)

    assert len(gate) == 10 < MOST_PARTS


@pytest.mark.parametrize("seed", range(5))
def test_one_worker_works_off_a_backlog_without_losing_time_and_asks_in_vain_once_a_second_at_most(seed: int) -> None:
    dice = random.Random(seed)
    limit = Limit(1000, 10_000)
    gate, now, level = Gate(), 100.0, Level(10_000, 0)
    waiting = [(str(number), dice.randint(10, 4000)) for number in range(400)]
    total, refused = sum(tokens for _, tokens in waiting), 0
    while waiting:
        job, tokens = waiting[0]
        while (closed := gate.closed((SMALL,), tokens, now)) is not None:
            now += closed.seconds
        gate.ask(job, (SMALL,), tokens)
        now += dice.uniform(0.0, 0.002)  # on the way to Redis
        match bucket.take(limit, level, tokens, int(now * 1e6)):
            case Short(ms):
                refused += 1
                level = bucket.refilled(limit, level, int(now * 1e6))
                verdict: Wait | Granted = Wait(ms / 1000, "tokens", SMALL.name, (state(SMALL, tokens=level.tokens),))
            case Taken(level):
                waiting.pop(0)
                verdict = granted(tokens=level.tokens)
        now += dice.uniform(0.0, 0.002)  # and back
        gate.told(job, verdict, now)

    assert now - 100.0 <= (total - 10_000) / 1000 + 0.01
    assert refused <= now - 100.0


# Held back


def test_the_most_urgent_come_first_then_as_they_were_held_back() -> None:
    held: HeldBack[str] = HeldBack()
    for item, urgency in [("a", 2), ("b", 1), ("c", 2), ("d", 1)]:
        held.put(ONE_AT_ONCE, item, urgency=urgency, until=1.0)

    assert held.take(ONE_AT_ONCE, 3) == ["b", "d", "a"]
    assert len(held) == 1


def test_a_job_that_is_held_back_again_has_its_old_place() -> None:
    held: HeldBack[str] = HeldBack()
    places = {item: held.put(ONE_AT_ONCE, item, urgency=1, until=1.0) for item in "abc"}
    [first] = held.take(ONE_AT_ONCE, 1)

    held.put(ONE_AT_ONCE, first, urgency=1, until=2.0, number=places[first])

    assert held.take(ONE_AT_ONCE, 9) == ["a", "b", "c"]
    assert len(held) == 0


def test_a_part_is_due_when_its_first_job_is_or_when_it_is_woken() -> None:
    held: HeldBack[str] = HeldBack()
    held.put(ONE_AT_ONCE, "a", urgency=1, until=5.0)
    held.put(ONE_AT_ONCE, "b", urgency=1, until=4.0)
    held.put(SMALL, "c", urgency=1, until=9.0)

    assert held.next_due() == 4.0
    assert held.due(3.9) is None
    assert (held.due(4.0), held.due(5.0)) == (ONE_AT_ONCE, None)
    held.wake((SMALL,), 6.0)
    assert (held.due(6.0), held.due(99.0)) == (SMALL, None)


def test_the_last_of_a_line_are_found_but_for_those_less_urgent() -> None:
    held: HeldBack[str] = HeldBack()
    assert held.longest() == (None, [])
    held.put(SMALL, "x", urgency=1, until=1.0)
    for item, urgency in [("a", 2), ("b", 3), ("c", 1), ("d", 2)]:
        held.put(ONE_AT_ONCE, item, urgency=urgency, until=1.0)

    part, line = held.longest()

    assert (part, sorted(line)) == (ONE_AT_ONCE, ["a", "b", "c", "d"])
    assert held.last(ONE_AT_ONCE, 0, least_urgent=2) == []
    assert held.last(ONE_AT_ONCE, 2, least_urgent=2) == ["d", "a"]
    assert held.take(ONE_AT_ONCE, 9) == ["c", "b"]
    assert held.last(SMALL, 9, least_urgent=2) == ["x"]
    assert len(held) == 0


def test_how_many_go_soon_is_what_there_is_and_what_comes() -> None:
    gate = Gate()
    gate.told("a", granted(requests=7, tokens=500), 0.0)

    assert gate.within(SMALL, 30, tokens=10, held_s=1.0, now=0.0) == 7 + 300
    assert gate.within(SMALL, 30, tokens=500, held_s=1.0, now=0.0) == 1 + 60
    assert gate.within(ONE_AT_ONCE, 30, tokens=10, held_s=60.0, now=0.0) == 1


def test_what_has_left_takes_no_room() -> None:
    held: HeldBack[int] = HeldBack()
    for number in range(5000):
        held.put(ONE_AT_ONCE, number, urgency=1, until=float(number))
        held.wake((ONE_AT_ONCE,), float(number))
        assert held.due(float(number)) == ONE_AT_ONCE
        assert held.take(ONE_AT_ONCE, 1) == [number]

    assert len(held) == 0 and held.due(1e9) is None and held.next_due() is None
