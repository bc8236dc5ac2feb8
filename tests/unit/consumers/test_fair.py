"""What the fair queue promises, driven step by step."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from consumers.fair import FLOORS, MOST_IN_DEBT, FairQueue, Turn
from router.job import JobClass, Queue

INTERACTIVE, STANDARD, BULK, OVERFLOW = FLOORS
MANY = 1_000_000  # slots: no tenant ever holds half of them


class Desk:
    """A queue, and what it is told. Items are numbered per tenant: `a0`, `a1`..."""

    def __init__(
        self,
        slots: int = MANY,
        *,
        weights: Mapping[str, float] | None = None,
        expected: Mapping[str, float] | None = None,
    ) -> None:
        self.weights = weights or {}
        self.expected = dict(expected or {})
        self.queue: FairQueue[str] = FairQueue(
            slots,
            weight=lambda tenant: self.weights.get(tenant, 1.0),
            expected=lambda tenant: self.expected.get(tenant, 1.0),
        )
        self._numbers: Counter[str] = Counter()

    def put(self, tenants: Iterable[str], *, band: str = STANDARD, **ages: Any) -> None:
        for tenant in tenants:
            self.queue.put(f"{tenant}{self._numbers[tenant]}", tenant=tenant, band=band, **ages)
            self._numbers[tenant] += 1

    def take(self, now: float = 0.0) -> Turn[str]:
        turn = self.queue.take(now)
        assert turn is not None
        return turn

    def items(self, number: int, now: float = 0.0) -> list[str]:
        return [self.take(now).item for _ in range(number)]

    def tenants(self, number: int) -> Counter[str]:
        """Who gets so many turns, each of which ends as expected before the next."""
        taken: Counter[str] = Counter()
        for _ in range(number):
            turn = self.take()
            self.queue.finish(turn, turn.seconds)
            taken[turn.tenant] += 1
        return taken

    def bands(self, number: int) -> Counter[str]:
        return Counter(self.take().band for _ in range(number))


def test_an_empty_queue_has_nothing() -> None:
    desk = Desk()

    assert len(desk.queue) == 0
    assert desk.queue.take(0.0) is None


def test_one_tenants_jobs_come_in_the_order_in_which_they_were_put() -> None:
    desk = Desk()
    desk.put("aaa")

    assert desk.items(3) == ["a0", "a1", "a2"]
    assert len(desk.queue) == 0


def test_tenants_take_turns() -> None:
    desk = Desk()
    desk.put("aaabbc")

    assert desk.items(6) == ["a0", "b0", "c0", "a1", "b1", "a2"]


def test_who_comes_late_is_next_however_long_the_others_queues_are() -> None:
    desk = Desk()
    desk.put("n" * 1000)
    desk.items(100)

    desk.put("q")

    assert "q0" in desk.items(2)


# Classes


def test_with_everything_waiting_each_class_has_its_share_and_the_overflow_a_twentieth() -> None:
    desk = Desk()
    for band in FLOORS:
        desk.put(["a"] * 4000, band=band)

    assert desk.bands(4000) == pytest.approx({INTERACTIVE: 2660, STANDARD: 950, BULK: 190, OVERFLOW: 200}, abs=4)


def test_without_overflow_the_classes_share_70_25_5() -> None:
    desk = Desk()
    for band in (INTERACTIVE, STANDARD, BULK):
        desk.put(["a"] * 4000, band=band)

    taken = desk.bands(4000)

    assert taken[INTERACTIVE] >= 0.70 * 4000
    assert taken[STANDARD] == pytest.approx(0.25 * 4000, rel=0.06)
    assert taken[BULK] == pytest.approx(0.05 * 4000, rel=0.06)


@pytest.mark.parametrize(
    ("waiting", "first", "floor"),
    [
        ((STANDARD, BULK), STANDARD, BULK),
        ((INTERACTIVE, BULK), INTERACTIVE, BULK),
        ((STANDARD, OVERFLOW), STANDARD, OVERFLOW),
        ((BULK, OVERFLOW), BULK, OVERFLOW),
    ],
)
def test_a_share_that_nobody_uses_goes_to_the_most_urgent_class_that_waits(
    waiting: tuple[str, str], first: str, floor: str
) -> None:
    desk = Desk()
    for band in waiting:
        desk.put(["a"] * 1000, band=band)

    taken = desk.bands(1000)

    assert taken[first] >= 940
    assert taken[floor] >= 45


@pytest.mark.parametrize("band", FLOORS)
def test_a_class_alone_has_every_slot(band: str) -> None:
    desk = Desk()
    desk.put(["a"] * 100, band=band)

    assert desk.bands(100) == {band: 100}


def test_an_urgent_job_that_comes_while_others_wait_is_next() -> None:
    desk = Desk()
    desk.put("b" * 100, band=BULK)
    desk.put("o" * 100, band=OVERFLOW)
    desk.items(10)

    desk.put("i", band=INTERACTIVE)

    assert "i0" in desk.items(2)  # one floor may be owed at this moment


def test_the_overflow_has_idle_slots_and_waits_for_the_main_queue_otherwise() -> None:
    desk = Desk()
    desk.put("o" * 20, band=OVERFLOW)
    assert desk.items(2) == ["o0", "o1"]

    desk.put("m" * 5)

    assert desk.items(6) == ["m0", "m1", "m2", "m3", "m4", "o2"]


def test_a_class_that_had_nothing_to_do_has_saved_nothing() -> None:
    desk = Desk()
    desk.put("i" * 5000, band=INTERACTIVE)
    desk.items(3000)

    desk.put("s" * 1000, band=STANDARD)

    assert desk.bands(400)[STANDARD] <= 101


# Tenants


def test_tenants_share_seconds_not_jobs() -> None:
    desk = Desk(expected={"long": 60.0, "short": 1.0})
    desk.put(["long", "short"] * 1000)

    taken = desk.tenants(610)

    assert taken["short"] == pytest.approx(60 * taken["long"], abs=60)


@pytest.mark.parametrize(("weight", "seconds"), [(2.0, 1.0), (0.5, 1.0), (5.0, 7.0), (3.0, 0.02)])
def test_a_tenants_share_is_by_its_weight(weight: float, seconds: float) -> None:
    desk = Desk(weights={"a": weight}, expected={"a": seconds, "b": seconds})
    desk.put(["a", "b"] * 2000)

    taken = desk.tenants(1200)

    assert taken["a"] / taken["b"] == pytest.approx(weight, rel=0.02)


def test_a_job_that_took_longer_than_expected_is_paid_for_later() -> None:
    desk = Desk()
    desk.put("a" * 50 + "b" * 50)
    long = desk.take()

    desk.queue.finish(long, 21.0)

    assert desk.tenants(20) == {"b": 20}
    assert desk.tenants(10)["a"] >= 4


def test_a_job_that_took_less_than_expected_is_paid_back_at_once() -> None:
    desk = Desk(expected={"a": 1000.0})
    desk.put("a" * 50 + "b" * 50)
    first = desk.take()
    assert first.tenant == "a"
    assert desk.tenants(3) == {"b": 3}

    desk.queue.finish(first, 1.0)
    desk.expected["a"] = 1.0

    assert desk.tenants(20)["a"] >= 10


def test_a_debt_is_carried_over_while_others_wait() -> None:
    desk = Desk(expected={"a": 30.0})
    desk.put("ab" + "c" * 100)
    turn = next(turn for turn in (desk.take(), desk.take(), desk.take()) if turn.tenant == "a")
    desk.queue.finish(turn, 30.0)  # nothing of a's waits or runs now

    desk.put("a" * 5)

    assert "a" not in desk.tenants(25)
    assert "a" in desk.tenants(10)


def test_a_debt_ends_when_nobody_waits() -> None:
    desk = Desk(expected={"a": 1000.0})
    desk.put("a")
    desk.queue.finish(desk.take(), 1000.0)
    desk.expected.clear()

    desk.put("bababa")

    assert desk.tenants(6) == {"a": 3, "b": 3}
    assert len(desk.queue) == 0


def test_nobody_saves_credit_up_by_staying_away() -> None:
    desk = Desk()
    desk.put("ab" + "b" * 1000)
    desk.tenants(500)

    desk.put("a" * 500)

    assert desk.tenants(100)["a"] <= 51


def test_credit_is_not_saved_up_by_expecting_too_much() -> None:
    desk = Desk(expected={"a": 100.0})
    desk.put("a" * 200)
    turns = [desk.take() for _ in range(100)]
    desk.put("b" * 200)
    for turn in turns:
        desk.queue.finish(turn, 1.0)
    desk.expected.clear()

    assert desk.tenants(40)["b"] >= 19


# Slots


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (16, 8)])
def test_one_tenant_holds_at_most_half_of_the_slots_while_others_wait(slots: int, most: int) -> None:
    desk = Desk(slots, weights={"n": 100.0})
    desk.put("n" * 100 + "q" * 100)

    taken = Counter(item[0] for item in desk.items(min(slots, 2 * most)))

    assert taken["n"] == most


def test_one_tenant_has_every_slot_while_nobody_else_waits() -> None:
    desk = Desk(slots=16)
    desk.put("n" * 100)

    assert len(desk.items(16)) == 16


def test_a_slot_never_idles_because_all_who_wait_hold_enough() -> None:
    desk = Desk(slots=3)
    desk.put("aabb")

    assert len(desk.items(3)) == 3


def test_a_tenant_with_too_many_slots_gives_them_up_as_its_jobs_end() -> None:
    desk = Desk(slots=8)
    desk.put("n" * 100)
    running = deque(desk.take() for _ in range(8))
    desk.put("q" * 100)
    ended = []
    for _ in range(4):
        desk.queue.finish(running.popleft(), 1.0)
        ended.append(desk.take().tenant)

    assert ended == ["q"] * 4


def test_the_half_counts_over_all_classes() -> None:
    desk = Desk(slots=4)
    desk.put("nn", band=BULK)
    desk.put("n" * 10, band=INTERACTIVE)
    desk.put("q", band=BULK)
    desk.items(2)

    assert desk.take().item == "q0"


def test_a_tenant_that_held_enough_has_its_turn_again_when_a_job_of_its_ends() -> None:
    desk = Desk(slots=4)
    desk.put("n" * 10 + "q" * 10)
    turns = [desk.take() for _ in range(4)]
    ended = next(turn for turn in turns if turn.tenant == "n")

    desk.queue.finish(ended, 1.0)

    assert desk.take().tenant == "n"


# Ageing


def test_a_job_that_has_aged_goes_before_its_tenants_others() -> None:
    desk = Desk()
    desk.put("aaa", ages_at=100.0)
    desk.put("a", ages_at=50.0)

    assert desk.items(2, now=49.0) == ["a0", "a1"]
    assert desk.items(2, now=50.0) == ["a3", "a2"]


def test_those_that_have_aged_come_in_the_order_in_which_they_aged() -> None:
    desk = Desk()
    for ages_at in (40.0, 20.0, 30.0, 10.0):
        desk.put("a", ages_at=ages_at)

    assert desk.items(4, now=35.0) == ["a3", "a1", "a2", "a0"]


def test_a_job_that_has_aged_does_not_go_before_other_tenants() -> None:
    desk = Desk()
    desk.put("aab", ages_at=10.0)

    assert desk.items(3, now=20.0) == ["a0", "b0", "a1"]


# Memory


def _stored(queue: FairQueue[str]) -> int:
    """Everything that the queue keeps, in entries of its containers."""
    total = len(queue._held)
    for band in queue._bands.values():
        total += len(band._accounts)
        for ordered in (band.ready, band.aside, band._in_debt):
            total += len(ordered._heap) + len(ordered._entries)
        for account in band._accounts.values():
            total += len(account.line._items) + len(account.line._ages._heap) + len(account.line._ages._entries)
    return total


FIXED = 4 * 3 * 16  # what the lists of four bands may hold of what has left


def test_tenants_without_jobs_are_forgotten() -> None:
    desk = Desk(slots=64)
    for number in range(5000):
        desk.put([f"t{number}"], ages_at=1e9)
        desk.queue.finish(desk.take(), 3.0)

    assert _stored(desk.queue) <= FIXED


def test_tenants_that_owe_something_are_forgotten_once_the_others_have_caught_up() -> None:
    desk = Desk()
    desk.put(["busy"] * 200)
    for number in range(100):
        desk.put([f"t{number}"])
    for _ in range(101):
        turn = desk.take()
        desk.queue.finish(turn, 5.0)
    before = _stored(desk.queue)

    desk.tenants(10)

    assert before > 200 + 100
    assert _stored(desk.queue) < 2 * len(desk.queue) + FIXED


def test_of_those_that_owe_something_only_so_many_are_remembered() -> None:
    desk = Desk()
    desk.put(["busy"] * 3)
    for number in range(3 * MOST_IN_DEBT):
        desk.put([f"t{number}"])
        desk.expected[f"t{number}"] = 1e6
    for _ in range(3 * MOST_IN_DEBT):
        turn = desk.take()
        desk.queue.finish(turn, 1e6)

    assert sum(len(band._accounts) for band in desk.queue._bands.values()) <= MOST_IN_DEBT + 2


def test_a_long_backlog_with_jobs_of_all_ages_takes_no_more_than_what_waits() -> None:
    desk = Desk()
    desk.put("a" * 50, ages_at=5.0)
    for number in range(5000):
        desk.put("a", ages_at=5.0 + (number % 2) * 1e6)
        desk.take()

    assert _stored(desk.queue) <= 4 * len(desk.queue) + 2 * FIXED


# Nobody starves


@settings(max_examples=60)
@given(
    slots=st.integers(1, 8),
    band=st.sampled_from([INTERACTIVE, STANDARD, BULK, OVERFLOW]),
    rivals=st.lists(
        st.tuples(st.sampled_from("bcd"), st.sampled_from([INTERACTIVE, STANDARD, BULK, OVERFLOW])),
        min_size=1,
        max_size=6,
    ),
    cost=st.floats(1.0, 50.0),
    weight=st.floats(0.1, 3.0),
    debt=st.floats(0.0, 30.0),
)
def test_whoever_waits_has_a_turn_whatever_the_others_put(
    slots: int, band: str, rivals: list[tuple[str, str]], cost: float, weight: float, debt: float
) -> None:
    desk = Desk(slots, weights={"b": weight}, expected=dict.fromkeys("bcd", cost))
    desk.put("ab", band=band)
    for turn in (desk.take(), desk.take()):
        desk.queue.finish(turn, debt if turn.tenant == "a" else 0.0)
    desk.put("a", band=band)
    running: deque[Turn[str]] = deque()
    # At worst a's band has its floor alone (1 of 22), and there each rival has worked off a's debt before.
    patience = 22 * (3 + sum(max(1.0, debt / cost) * max(1.0, weight) for _ in range(3)))
    steps = 0
    while not any(turn.tenant == "a" for turn in running):
        for rival, rivals_band in rivals:
            desk.put(rival, band=rivals_band)
        running.append(desk.take())
        if len(running) == slots and running[-1].tenant != "a":
            desk.queue.finish(running.popleft(), cost)
        steps += 1
        assert steps <= patience


class AnyUse(RuleBasedStateMachine):
    """Whatever is put comes out once, and no slot idles or goes to the wrong tenant while something waits."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue(6, weight=lambda t: 1.0 + len(t), expected=lambda t: float(len(t)))
        self.waiting: dict[int, tuple[str, str]] = {}
        self.running: list[Turn[int]] = []
        self.next = 0
        self.now = 0.0

    @rule(
        tenant=st.sampled_from(["", "a", "bb", "ccc"]),
        band=st.sampled_from([*JobClass, Queue.OVERFLOW]),
        ages_in=st.floats(0, 10),
        jobs=st.integers(1, 5),
    )
    def put(self, tenant: str, band: str, ages_in: float, jobs: int) -> None:
        for _ in range(jobs):
            self.queue.put(self.next, tenant=tenant, band=band, ages_at=self.now + ages_in)
            self.waiting[self.next] = (tenant, str(band))
            self.next += 1

    @rule(passed=st.floats(0, 5))
    def take(self, passed: float) -> None:
        self.now += passed
        turn = self.queue.take(self.now)
        if not self.waiting:
            assert turn is None
            return
        assert turn is not None
        assert self.waiting.pop(turn.item) == (turn.tenant, turn.band)
        held = Counter(each.tenant for each in self.running)
        if held[turn.tenant] >= 3:
            assert all(held[tenant] >= 3 for tenant, _ in self.waiting.values())
        self.running.append(turn)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 1000), seconds=st.floats(0, 100))
    def finish(self, which: int, seconds: float) -> None:
        turn = self.running.pop(which % len(self.running))
        self.queue.finish(turn, seconds)

    @invariant()
    def counts_what_waits(self) -> None:
        assert len(self.queue) == len(self.waiting)


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=60, stateful_step_count=60)
