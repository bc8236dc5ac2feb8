"""Choosing a replica: who is never chosen, who is as a rule, and how a cap moves. Nothing here reads a clock."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from consumers.gpu.discovery import Replica
from consumers.gpu.members import Member
from consumers.gpu.replicas import (
    LEARN_S,
    LEAST_PREFIX,
    LONGEST_S,
    LOWERED,
    OVERLOADED,
    PREFIX_BYTES,
    Beginning,
    Candidate,
    Learned,
    Work,
    cap,
    lowered,
    prefix_of,
    raised,
    ranked,
)
from consumers.gpu.speeds import Speed

names = st.lists(st.from_regex(r"[a-z]{1,8}:[0-9]{2,4}", fullmatch=True), min_size=1, max_size=8, unique=True)
rolls = st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    return [Candidate(name, draw(st.integers(0, 20)), draw(st.integers(1, 20))) for name in draw(names)]


@st.composite
def beginnings(draw: st.DrawFn) -> Beginning:
    return Beginning(draw(st.binary(min_size=8, max_size=8)), waited=draw(st.floats(0, 2 * LONGEST_S)))


works = st.builds(Work, prompt=st.floats(256, 10_000), answer=st.floats(1, 1000))


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


@given(candidates(), beginnings(), works, rolls, st.data())
def test_a_job_goes_where_its_beginning_was_computed_unless_that_has_more_than_its_share(
    each: list[Candidate], beginning: Beginning, work: Work, roll: tuple[float, float], data: st.DataObject
) -> None:
    homes = data.draw(st.sets(st.sampled_from([one.name for one in each]), min_size=1))
    most = math.ceil(OVERLOADED * (sum(one.load for one in each) + 1) / len(each))
    idle = [replace(one, cap=30) for one in each]  # so that room is not what decides

    found = ranked(idle, work=work, beginning=replace(beginning, homes=homes), rolls=roll)

    well = [one for one in idle if one.name in homes and one.load < most]
    others = [one for one in idle if one.name not in homes]
    if any(one.seconds(work) <= min((it.seconds(work) for it in others), default=math.inf) for one in well):
        assert found and found[0].name in homes
        assert found[0].seconds(work, most=most) == min(
            one.seconds(work, most=most) for one in idle if one.name in homes
        )


def test_what_it_takes_to_compute_a_beginning_again_is_what_a_job_waits_for_and_no_more() -> None:
    home, other = Candidate("home", 8, 8), Candidate("other", 0, 8)
    long, short = Work(prompt=8000.0), Work(prompt=400.0)
    asked = Beginning(b"12345678", homes=["home"])

    assert ranked([home, other], work=long, beginning=asked, rolls=(0.0, 0.0)) == ()
    assert ranked([home, other], work=short, beginning=asked, rolls=(0.0, 0.0)) == [other]
    queued = replace(asked, ahead={"home": 30})
    assert ranked([home, other], work=long, beginning=queued, rolls=(0.0, 0.0)) == [other], "too many are before it"
    with_both = replace(asked, ahead={"home": 30, "other": 40})
    assert ranked([home, other], work=long, beginning=with_both, rolls=(0.0, 0.0)) == (), "nor is it better there"


@given(candidates(), beginnings(), works, rolls, st.data())
def test_a_job_waits_for_a_replica_that_has_its_beginning_only_while_that_is_full_and_for_a_while(
    each: list[Candidate], beginning: Beginning, work: Work, roll: tuple[float, float], data: st.DataObject
) -> None:
    home = data.draw(st.sampled_from(each))
    asked = replace(beginning, homes=[home.name])

    found = ranked(each, work=work, beginning=asked, rolls=roll)

    if not found and any(one.room for one in each):
        assert not home.room and asked.waited < asked.at_most


@given(candidates(), beginnings(), works, rolls)
def test_a_job_never_waits_for_a_replica_that_is_gone_or_has_failed_it(
    each: list[Candidate], beginning: Beginning, work: Work, roll: tuple[float, float]
) -> None:
    [home, *others] = each
    asked = replace(beginning, homes=[home.name], waited=0.0)

    for these, avoid in ((others, ()), (each, (home.name,))):
        found = ranked(these, work=work, beginning=asked, avoid=avoid, rolls=roll)

        assert bool(found) == any(one.room for one in these)


def test_a_slow_replica_that_has_the_beginning_is_used_where_prompts_are_the_work_and_not_where_answers_are() -> None:
    slow, quick = Speed(0.0006, 0.06, 5.0), Speed(0.0003, 0.03, 5.0)
    each = [Candidate("home", 0, 8, speed=slow), Candidate("other", 0, 8, speed=quick)]
    asked = Beginning(b"12345678", homes=["home"])

    prompts = ranked(each, work=Work(prompt=2000.0, answer=25.0), beginning=asked, rolls=(0.0, 0.0))
    answers = ranked(each, work=Work(prompt=500.0, answer=500.0), beginning=asked, rolls=(0.0, 0.0))

    assert [one.name for one in prompts] == ["home"]
    assert answers[0].name == "other"


def test_where_prompts_are_being_computed_a_job_begins_later() -> None:
    busy, idle = Candidate("busy", 3, 8, computing=9000.0), Candidate("idle", 4, 8)

    assert ranked([busy, idle], work=Work(prompt=1000.0), rolls=(0.0, 0.0))[0] is idle


def test_calls_of_other_workers_are_taken_to_compute_as_much_as_ours() -> None:
    member = Member(Replica("gpu-1", "http://gpu-1:8000"), everyone=6, ours=2, computes={"a.1": 900.0, "b.1": 100.0})
    assert member.computing == 3000.0

    member.everyone = 2
    assert member.computing == 1000.0


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


def test_a_new_beginning_goes_to_the_one_of_its_two_that_was_given_less_lately() -> None:
    each = [Candidate(name, 2, 30) for name in "abcdef"]
    for number in range(20):
        beginning = Beginning(bytes([number] * 8))
        first = ranked(each, beginning=beginning, rolls=(0.0, 0.0))[0]

        given_more = [replace(one, given=600.0) if one is first else one for one in each]
        assert ranked(given_more, beginning=beginning, rolls=(0.0, 0.0))[0].name != first.name


def test_who_was_given_more_than_its_share_keeps_a_beginning_only_where_that_is_done_no_sooner_elsewhere() -> None:
    work, asked = Work(prompt=2000.0), Beginning(b"12345678", homes=["home"])
    busy = [Candidate(name, 4, 8, given=50.0) for name in "abcd"]
    one_idle = [*busy, Candidate("e", 1, 8, given=50.0)]
    home = Candidate("home", 4, 8, given=55.0)

    def first(home: Candidate, others: list[Candidate]) -> str:
        return ranked([home, *others], work=work, beginning=asked, rolls=(0.0, 0.0))[0].name

    assert first(home, one_idle) == "home", "it had its share, and a call"
    assert first(replace(home, given=100.0), one_idle) == "e"
    assert first(replace(home, given=100.0), busy) == "home"
    assert first(replace(home, given=100.0, cap=16), one_idle) == "home", "its share is larger"


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
