"""Choosing a replica: who is never chosen, who is as a rule, and how a cap moves. Nothing here reads a clock."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from consumers.gpu.replicas import (
    FULL_S,
    LEARN_S,
    LEAST_PREFIX,
    LONGEST_S,
    LOWERED,
    OVERLOADED,
    PREFIX_BYTES,
    SLOW,
    Beginning,
    Candidate,
    Learned,
    cap,
    lowered,
    prefix_of,
    raised,
    ranked,
)

names = st.lists(st.from_regex(r"[a-z]{1,8}:[0-9]{2,4}", fullmatch=True), min_size=1, max_size=8, unique=True)
rolls = st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    return [Candidate(name, draw(st.integers(0, 20)), draw(st.integers(1, 20))) for name in draw(names)]


@st.composite
def beginnings(draw: st.DrawFn) -> Beginning:
    return Beginning(draw(st.binary(min_size=8, max_size=8)), (), draw(st.floats(0, 10)), draw(st.integers(0, 10_000)))


@given(candidates(), st.one_of(st.none(), beginnings()), rolls)
def test_only_who_has_room_is_chosen_and_somebody_is_if_anybody_has(
    each: list[Candidate], beginning: Beginning | None, roll: tuple[float, float]
) -> None:
    found = ranked(each, beginning=beginning, rolls=roll)

    free = [one for one in each if one.load < one.cap]
    assert sorted(one.name for one in found) == sorted(one.name for one in free)


def permuted(each: list[Candidate]) -> Iterator[list[Candidate]]:
    """The same replicas, with their loads handed on in a ring."""
    for by in range(len(each)):
        yield [replace(one, load=each[(at + by) % len(each)].load) for at, one in enumerate(each)]


@given(candidates(), rolls, st.data())
def test_a_replica_that_failed_the_job_is_avoided_while_another_has_room(
    each: list[Candidate], roll: tuple[float, float], data: st.DataObject
) -> None:
    avoid = data.draw(st.sets(st.sampled_from([one.name for one in each])))

    found = ranked(each, avoid=avoid, rolls=roll)

    others = [one for one in each if one.room and one.name not in avoid]
    if others:
        assert not avoid & {one.name for one in found}
    else:
        assert len(found) == len([one for one in each if one.room])


@given(candidates(), rolls)
def test_of_two_that_are_drawn_the_less_loaded_is_taken_so_never_the_most_loaded_of_all(
    each: list[Candidate], roll: tuple[float, float]
) -> None:
    found = ranked(each, rolls=roll)

    use = [one.load / one.cap for one in found]
    if len(found) > 1 and max(use) > sorted(use)[-2]:
        assert use[0] < max(use)


@given(candidates(), beginnings(), rolls, st.data())
def test_a_job_goes_where_its_beginning_was_computed_unless_that_has_more_than_its_share(
    each: list[Candidate], beginning: Beginning, roll: tuple[float, float], data: st.DataObject
) -> None:
    homes = data.draw(st.sets(st.sampled_from([one.name for one in each]), min_size=1))
    most = math.ceil(OVERLOADED * (sum(one.load for one in each) + 1) / len(each))

    found = ranked(each, beginning=replace(beginning, homes=homes), rolls=roll)

    well = [one for one in each if one.name in homes and one.room and one.load < most]
    if well:
        assert sorted(one.name for one in found) == sorted(one.name for one in well)
        assert found[0].load == min(one.load for one in well)


@given(candidates(), beginnings(), rolls, st.data())
def test_a_job_waits_for_the_replica_that_has_its_beginning_for_a_while_and_then_goes_elsewhere(
    each: list[Candidate], beginning: Beginning, roll: tuple[float, float], data: st.DataObject
) -> None:
    home = data.draw(st.sampled_from(each))
    full = [replace(one, load=one.cap) if one is home else one for one in each]
    asked = replace(beginning, homes=[home.name])
    patience = min(asked.tokens * FULL_S, LONGEST_S)

    found = ranked(full, beginning=asked, rolls=roll)

    if asked.waited < patience:
        assert not found
    else:
        assert [one.name for one in found if one.name == home.name] == []
        assert bool(found) == any(one.room for one in full)


@given(candidates(), beginnings(), rolls)
def test_a_job_never_waits_for_a_replica_that_is_gone_has_failed_it_or_is_slow(
    each: list[Candidate], beginning: Beginning, roll: tuple[float, float]
) -> None:
    [home, *others] = each
    asked = replace(beginning, homes=[home.name], waited=0.0)
    slow = replace(home, pace=SLOW)

    for these, avoid in ((others, ()), (each, (home.name,)), ([slow, *others], ())):
        found = ranked(these, beginning=asked, avoid=avoid, rolls=roll)

        assert bool(found) == any(one.room for one in these)


@given(names, st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=30))
def test_when_a_replica_goes_only_its_own_beginnings_move(these: list[str], digests: list[bytes]) -> None:
    def homes(of: list[str]) -> dict[bytes, str]:
        idle = [Candidate(name, 0, 1) for name in of]
        return {each: ranked(idle, beginning=Beginning(each), rolls=(0.0, 0.0))[0].name for each in digests}

    before, gone = homes(these), these[0]
    after = homes(these[1:]) if len(these) > 1 else {}

    assert all(after.get(each, home) == home for each, home in before.items() if home != gone)


@given(candidates(), beginnings())
def test_a_beginning_is_computed_on_one_of_the_same_two_replicas_whoever_asks(
    each: list[Candidate], beginning: Beginning
) -> None:
    free = [replace(one, cap=30) for one in each]
    first = {ranked(each, beginning=beginning, rolls=(0.0, 0.0))[0].name for each in permuted(free)}

    assert len(first) <= 2


def test_equals_get_equal_shares() -> None:
    loads = Counter({name: 0 for name in "abcdef"})
    for number in range(600):
        each = [Candidate(name, load, 1000) for name, load in sorted(loads.items())]
        roll = (number * 0.754877666 % 1.0, number * 0.569840296 % 1.0)
        loads[ranked(each, rolls=roll)[0].name] += 1

    assert max(loads.values()) - min(loads.values()) <= 10


@given(st.lists(st.one_of(st.none(), st.integers(1, 1000)), min_size=1), st.floats(0, 1))
def test_a_cap_is_the_least_of_what_is_known_and_never_nothing(limits: list[int | None], share: float) -> None:
    known = [each for each in limits if each is not None]

    assert 1 <= cap(*limits, share=share) <= max(1, min(known, default=1))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 64), st.floats(0, 5)), max_size=60), st.integers(1, 64))
def test_a_learned_cap_stays_between_one_and_the_ceiling_and_moves_once_in_a_second(
    steps: list[tuple[bool, int, float]], ceiling: int
) -> None:
    learned: Learned | None = None
    now = 1000.0
    for is_bad, in_flight, seconds in steps:
        now += seconds
        before = learned
        calls = min(in_flight, ceiling)
        if is_bad:
            learned = lowered(learned, in_flight=max(1, calls), now=now) or learned
        else:
            learned = raised(learned, in_flight=calls, ceiling=ceiling, now=now) or learned
        if learned is not None and before is not None and learned is not before:
            assert now - before.at >= LEARN_S
            assert learned.cap <= before.cap if is_bad else learned.cap <= before.cap + 1
        assert learned is None or 1 <= learned.cap <= ceiling


def test_too_much_lowers_a_cap_at_once_and_wellbeing_raises_it_slowly() -> None:
    first = lowered(None, in_flight=20, now=0.0)
    assert first == Learned(20 * LOWERED, 0.0)
    assert raised(first, in_flight=14, ceiling=32, now=LEARN_S) == Learned(20 * LOWERED + 1, LEARN_S)
    assert raised(first, in_flight=2, ceiling=32, now=LEARN_S) is None


def test_a_conversations_next_turn_has_the_same_prefix() -> None:
    system = {"role": "system", "content": "You are terse. " * 30}
    first = [system, {"role": "user", "content": "What is a pointsman?"}]
    second = [*first, {"role": "assistant", "content": "He sets points."}, {"role": "user", "content": "And who pays?"}]
    bodies = [json.dumps({"messages": each, "model": "auto", "stop": ["x"]}).encode() for each in (first, second)]

    assert prefix_of(bodies[0]) == prefix_of(bodies[1]) is not None
    other = json.dumps({"messages": [system, {"role": "user", "content": "What is a signal?"}]}).encode()
    assert prefix_of(other) != prefix_of(bodies[0])


@given(st.binary(max_size=3000))
def test_any_body_has_a_prefix_or_none(body: bytes) -> None:
    found = prefix_of(body)

    assert found is None or (LEAST_PREFIX <= len(found) <= PREFIX_BYTES and found in body)
