"""What a call costs: exact to the last digit, and never 0 for what nobody knows."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pricing import Basis, Meter, Price, Usage, beyond, charge, cost, picodollars, total

CLAUDE_37 = Price(
    {
        Meter.INPUT: Decimal("3.00"),
        Meter.OUTPUT: Decimal("15.00"),
        Meter.CACHE_READ: Decimal("0.30"),
        Meter.CACHE_WRITE: Decimal("3.75"),
    },
    "test",
)

rates = st.decimals(min_value=0, max_value=10_000, places=6, allow_nan=False, allow_infinity=False)
prices = st.builds(
    lambda found: Price({meter: rate.normalize() for meter, rate in found.items()}, "test"),
    st.fixed_dictionaries(
        {Meter.INPUT: rates, Meter.OUTPUT: rates}, optional={Meter.CACHE_READ: rates, Meter.CACHE_WRITE: rates}
    ),
)
tokens = st.integers(min_value=0, max_value=10_000_000)
usages = st.builds(Usage, input=tokens, cache_read=tokens, cache_write=tokens, output=tokens)


@given(prices, usages)
def test_the_parts_sum_exactly_to_the_total(price: Price, usage: Usage) -> None:
    lines = charge(price, usage, job="job_1", attempt=1, outcome="completed")

    expected = Fraction(0)
    for meter, quantity in usage.quantities().items():
        rate = price.per_million.get(meter, price.per_million[Meter.INPUT])
        expected += Fraction(rate) * quantity / 1_000_000
    amount = total(lines)
    assert amount is not None
    assert Fraction(amount) == expected
    assert sum(Fraction(line.usd) for line in lines if line.usd is not None) == expected


@given(prices, usages)
def test_picodollars_lose_nothing(price: Price, usage: Usage) -> None:
    lines = charge(price, usage, job="job_1", attempt=1, outcome="completed")

    amount = total(lines)
    assert amount is not None
    assert sum(picodollars(line.usd) for line in lines if line.usd is not None) == picodollars(amount)
    assert Decimal(picodollars(amount)).scaleb(-12) == amount


def test_one_token_at_the_smallest_price_is_one_picodollar() -> None:
    price = Price({Meter.INPUT: Decimal("0.000001")}, "test")

    [line] = charge(price, Usage(input=1), job="job_1", attempt=1, outcome="completed")

    assert line.usd is not None
    assert picodollars(line.usd) == 1


@pytest.mark.parametrize(
    ("price", "usage", "usd"),
    [
        pytest.param(
            CLAUDE_37,
            Usage(input=3, cache_write=12_304, output=550),
            "0.054399",
            id="tokens written to the cache are paid once, at their own price",
        ),
        pytest.param(
            Price(
                {Meter.INPUT: Decimal("1.25"), Meter.OUTPUT: Decimal("10"), Meter.CACHE_READ: Decimal("0.625")}, "test"
            ),
            Usage(input=262_960 - 257_955, cache_read=257_955, output=1_744),
            "0.184918125",
            id="tokens read from the cache are not paid at the full price as well",
        ),
        pytest.param(
            Price({Meter.INPUT: Decimal("2"), Meter.OUTPUT: Decimal("8")}, "test"),
            Usage(input=10, cache_read=1_000, cache_write=100, output=5),
            "0.00226",
            id="cached tokens without a price of their own cost what input costs",
        ),
        pytest.param(
            Price({Meter.INPUT: Decimal(0), Meter.OUTPUT: Decimal(0)}, "test"),
            Usage(input=10, output=5),
            "0",
            id="a price of 0 is known, and is 0",
        ),
    ],
)
def test_a_call_costs(price: Price, usage: Usage, usd: str) -> None:
    lines = charge(price, usage, job="job_1", attempt=1, outcome="completed")

    assert total(lines) == Decimal(usd)


@given(usages.filter(lambda usage: usage.total > 0))
def test_an_unknown_price_is_none_and_never_0(usage: Usage) -> None:
    lines = charge(None, usage, job="job_1", attempt=1, outcome="completed")

    assert total(lines) is None
    assert {line.usd for line in lines} == {None}
    assert {line.usd_per_million for line in lines} == {None}
    assert sum(line.quantity for line in lines) == usage.total


def test_one_unpriced_meter_makes_the_total_unknown_and_leaves_the_others_priced() -> None:
    price = Price({Meter.INPUT: Decimal("2")}, "test")

    lines = charge(price, Usage(input=1_000_000, output=7), job="job_1", attempt=1, outcome="completed")

    assert {line.meter: line.usd for line in lines} == {Meter.INPUT: Decimal(2), Meter.OUTPUT: None}
    assert total(lines) is None


def test_a_meter_that_counted_nothing_has_no_line() -> None:
    lines = charge(CLAUDE_37, Usage(output=5), job="job_1", attempt=1, outcome="completed")

    assert [line.meter for line in lines] == [Meter.OUTPUT]


def test_a_call_that_used_nothing_costs_0_whatever_the_price() -> None:
    assert total(charge(None, Usage(), job="job_1", attempt=1, outcome="failed")) == 0


def test_a_line_has_one_id_for_the_same_job_attempt_and_meter_only() -> None:
    usage = Usage(input=1, cache_read=1, cache_write=1, output=1)

    ids = [
        line.id
        for job in ("job_1", "job_2")
        for attempt in (1, 2)
        for line in charge(CLAUDE_37, usage, job=job, attempt=attempt, outcome="completed")
    ]
    again = charge(CLAUDE_37, usage, job="job_1", attempt=1, outcome="completed")

    assert len(set(ids)) == len(ids) == 16
    assert [line.id for line in again] == ids[:4]


def test_a_line_says_where_quantity_and_price_come_from() -> None:
    usage = Usage(input=2, basis=Basis.ESTIMATED)

    [line] = charge(CLAUDE_37, usage, job="job_1", attempt=3, outcome="failed")

    assert line.basis is Basis.ESTIMATED
    assert line.price_source == "test"
    assert line.outcome == "failed"
    assert line.usd_per_million == Decimal("3.00")


TIERED = Price(
    {Meter.INPUT: Decimal("0.80"), Meter.OUTPUT: Decimal("3.20")},
    "test",
    {
        "flex": {Meter.INPUT: Decimal("0.40"), Meter.OUTPUT: Decimal("1.60")},
        "priority": {Meter.INPUT: Decimal("1.40"), Meter.OUTPUT: Decimal("5.60")},
    },
)


@pytest.mark.parametrize(
    ("tier", "usd"),
    [("", "4"), ("default", "4"), ("standard", "4"), ("flex", "2"), ("priority", "7"), ("reserved", None)],
)
def test_a_call_is_charged_by_the_tier_that_served_it_and_one_that_the_book_does_not_know_is_unpriced(
    tier: str, usd: str | None
) -> None:
    usage = Usage(input=1_000_000, output=1_000_000, tier=tier)

    lines = charge(TIERED, usage, job="job_1", attempt=1, outcome="completed")

    assert total(lines) == (None if usd is None else Decimal(usd))
    assert cost(TIERED, usage) == total(lines)
    assert {line.tier for line in lines} == {tier}


def test_a_deployment_that_asks_for_a_tier_is_estimated_by_it_and_charged_by_what_it_got() -> None:
    price = TIERED.asked("priority")
    assert price is not None

    assert cost(price, Usage(input=1_000_000)) == Decimal("1.40")
    assert cost(price, Usage(input=1_000_000, tier="priority")) == Decimal("1.40")
    assert cost(price, Usage(input=1_000_000, tier="default")) == Decimal("0.80")
    assert TIERED.asked("reserved") is None


def test_a_cache_write_for_an_hour_is_never_charged_as_one_for_five_minutes() -> None:
    usage = Usage(cache_write_1h=1_000_000)

    assert cost(CLAUDE_37, usage) is None
    assert cost(Price({**CLAUDE_37.per_million, Meter.CACHE_WRITE_1H: Decimal("6")}, "test"), usage) == Decimal("6")


@given(prices, usages, tokens)
def test_what_is_charged_later_comes_to_the_larger_of_estimate_and_truth(
    price: Price, usage: Usage, estimate: int
) -> None:
    first = charge(price, Usage(input=estimate, basis=Basis.ESTIMATED), job="job_1", attempt=1, outcome="lost")

    more = beyond(usage, first)

    prompt = usage.input + usage.cache_read + usage.cache_write
    assert more.output == usage.output
    assert estimate + more.total - more.output == max(estimate, prompt)
    assert beyond(usage, charge(price, usage, job="job_1", attempt=1, outcome="completed")).total == 0


LONG = Price(
    {Meter.INPUT: Decimal("6"), Meter.OUTPUT: Decimal("22.5"), Meter.CACHE_READ: Decimal("0.6")},
    "test, above 200000 tokens",
)
BANDED = replace(CLAUDE_37, tiers={"flex": {Meter.INPUT: Decimal("1.5")}}, bands={200_000: LONG})


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        (Usage(input=200_000, output=1000), "0.615"),
        (Usage(input=200_001, output=1000), "1.222506"),  # all of it, output too
        (Usage(input=1, cache_read=200_000, output=10), "0.120231"),  # what was cached is prompt
        (Usage(input=100, output=300_000), "4.5003"),  # output is not
    ],
)
def test_a_long_prompt_has_a_price_of_its_own_for_the_whole_call(usage: Usage, usd: str) -> None:
    lines = charge(BANDED, usage, job="job_1", attempt=1, outcome="completed")

    assert cost(BANDED, usage) == total(lines) == Decimal(usd)
    is_long = usage.total - usage.output > 200_000
    assert {line.price_source for line in lines} == {LONG.source if is_long else "test"}


def test_a_long_prompt_in_a_tier_that_the_book_does_not_have_for_it_is_unpriced() -> None:
    flex = BANDED.asked("flex")
    assert flex is not None

    assert cost(flex, Usage(input=1000)) == Decimal("0.0015")
    assert cost(flex, Usage(input=300_000)) is None
    assert cost(BANDED, Usage(input=300_000, tier="flex")) is None
    assert cost(flex, Usage(input=300_000, tier="default")) == Decimal("1.8")
