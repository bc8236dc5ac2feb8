"""The split of a machine's dollars: its sums are exact whatever ran. Nothing here reads a clock."""

from decimal import Decimal
from itertools import pairwise
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from policies.machine_time import MS_PER_HOUR, Idle, Phase, Ran, split

RATE = Decimal("3.60")  # a thousandth of a dollar each second: 10**9 picodollars
Held = TypeVar("Held")
moments = st.integers(0, 10_000)
phase_lists = st.lists(st.tuples(moments, st.sampled_from(list(Phase))), max_size=8)
soon = st.integers(0, 200)
number_lists = st.lists(st.tuples(soon, st.integers(0, 8)), max_size=6, unique_by=lambda pair: pair[0])
rates = st.decimals(min_value=0, max_value=1000, places=6)


@st.composite
def call_lists(draw: st.DrawFn, starts: st.SearchStrategy[int] = moments) -> list[Ran]:
    spans = draw(st.lists(st.tuples(starts, st.integers(0, 3000)), max_size=12))
    return [Ran(f"job{number}", start, start + length) for number, (start, length) in enumerate(spans)]


def last(told: list[tuple[int, Held]], at: int, first: Held) -> Held:
    """What held at a moment."""
    found = sorted((pair for pair in told if pair[0] <= at), key=lambda pair: pair[0])
    return found[-1][1] if found else first


def pico(usd_per_hour: Decimal) -> int:
    return int(usd_per_hour.scaleb(12))


@given(rates, phase_lists, call_lists(), moments, st.integers(0, 10_000), st.integers(0, MS_PER_HOUR - 1))
def test_shares_and_idle_add_up_to_rate_times_uptime_exactly(
    rate: Decimal, phases: list[tuple[int, Phase]], calls: list[Ran], since: int, length: int, carry: int
) -> None:
    bill = split(rate, phases, calls, since=since, until=since + length, carry=carry)

    assert bill.busy + sum(bill.idle.values()) == bill.total
    assert bill.total * MS_PER_HOUR + bill.carry == pico(rate) * bill.up_ms + carry
    assert 0 <= bill.busy_ms <= bill.up_ms <= length
    assert min(bill.shares.values(), default=0) >= 0


@given(rates, phase_lists, call_lists(), st.lists(moments, min_size=2, max_size=6))
def test_many_spans_cost_what_one_does(
    rate: Decimal, phases: list[tuple[int, Phase]], calls: list[Ran], cuts: list[int]
) -> None:
    edges = sorted(set(cuts))
    total = carry = up_ms = 0
    for since, until in pairwise(edges):
        bill = split(rate, phases, calls, since=since, until=until, carry=carry)
        total, carry, up_ms = total + bill.total, bill.carry, up_ms + bill.up_ms

    whole = split(rate, phases, calls, since=edges[0], until=edges[-1])
    assert (total, carry, up_ms) == (whole.total, whole.carry, whole.up_ms)


@given(
    rates,
    st.lists(st.tuples(soon, st.sampled_from(list(Phase))), max_size=8),
    number_lists,
    call_lists(soon),
    st.lists(soon, min_size=2, max_size=6),
)
def test_instances_that_come_and_go_cost_their_number_times_their_time_exactly(
    rate: Decimal,
    phases: list[tuple[int, Phase]],
    numbers: list[tuple[int, int]],
    calls: list[Ran],
    cuts: list[int],
) -> None:
    edges = sorted(set(cuts))
    total = carry = owed = 0
    for since, until in pairwise(edges):
        bill = split(rate, phases, calls, since=since, until=until, carry=carry, machines=numbers)
        assert bill.busy + sum(bill.idle.values()) == bill.total
        total, carry = total + bill.total, bill.carry
    for at in range(edges[0], edges[-1]):  # one millisecond after the other, told without any of split's cleverness
        is_up = any(call.start <= at < call.end for call in calls) or last(phases, at, Phase.OFF) is not Phase.OFF
        owed += pico(rate) * is_up * last(numbers, at, 1)

    assert total * MS_PER_HOUR + carry == owed


@given(rates, call_lists(), moments)
def test_a_machine_without_uptime_costs_nothing_whoever_is_there(rate: Decimal, calls: list[Ran], at: int) -> None:
    nothing = split(rate, [(0, Phase.UP)], calls, since=at, until=at)
    none = split(rate, [(0, Phase.UP)], calls, since=0, until=10_000, machines=[(0, 0)])

    for bill in (nothing, none):
        assert (bill.total, bill.busy, sum(bill.idle.values()), bill.up_ms, bill.carry) == (0, 0, 0, 0, 0)


@given(st.integers(1, 30), rates, moments, st.integers(1, 5000))
def test_calls_that_are_there_at_the_very_same_time_pay_the_same_but_for_a_picodollar_s_rest(
    count: int, rate: Decimal, start: int, length: int
) -> None:
    calls = [Ran(f"job{number}", start, start + length) for number in range(count)]

    bill = split(rate, [(0, Phase.UP)], calls, since=0, until=20_000)

    assert max(bill.shares.values()) - min(bill.shares.values()) < count


@given(phase_lists, call_lists())
def test_each_call_pays_for_no_more_than_the_time_it_was_there(
    phases: list[tuple[int, Phase]], calls: list[Ran]
) -> None:
    bill = split(RATE, phases, calls, since=0, until=20_000)

    for call in calls:
        if call.end > call.start:
            assert bill.held_ms[call.id] == call.end - call.start
            assert bill.shares[call.id] <= (call.end - call.start) * 10**6 + len(calls) * len(phases) + 100


def test_calls_side_by_side_share_their_time_and_idle_time_is_named() -> None:
    phases = [(0, Phase.WARM_UP), (1000, Phase.UP), (7000, Phase.COOL_DOWN), (9000, Phase.OFF)]
    calls = [Ran("a", 2000, 4000), Ran("b", 3000, 5000), Ran("c", 7000, 8000)]

    bill = split(RATE, phases, calls, since=0, until=10_000)

    second = 10**9
    assert bill.shares == {"a": 1.5 * second, "b": 1.5 * second, "c": second}
    assert bill.idle == {Idle.WARM_UP: second, Idle.GAP: 3 * second, Idle.COOL_DOWN: second}
    assert bill.total == 9 * second
    assert (bill.up_ms, bill.busy_ms) == (9000, 4000)


def test_a_machine_that_was_not_seen_costs_as_long_as_calls_ran_there() -> None:
    bill = split(RATE, [(0, Phase.OFF)], [Ran("a", 1000, 2000)], since=0, until=5000)

    assert (bill.total, bill.up_ms) == (10**9, 1000)


def test_what_is_left_of_a_picodollar_goes_to_the_last_and_the_rest_to_the_next_span() -> None:
    rate = Decimal("0.000001")  # 10**6 picodollars an hour: 0.27 in a millisecond
    calls = [Ran("a", 0, 5), Ran("b", 0, 5)]

    bill = split(rate, [], calls, since=0, until=5)

    assert bill.shares == {"a": 0, "b": 1}
    assert bill.carry == 5 * 10**6 - MS_PER_HOUR
