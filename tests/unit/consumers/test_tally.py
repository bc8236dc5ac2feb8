"""The sums of a microbatch, exact to the picodollar."""

import json
from decimal import Decimal
from typing import Any

from consumers.tally import Tally

PICODOLLAR = Decimal("0.000000000001")


def a_tally(*attempts: tuple[int, Decimal | None, bool]) -> Tally:
    """One with these attempts: tokens, dollars, whether it concluded its job."""
    tally = Tally("mb_1", "small", "echo.text.light", started=100.0)
    for tokens, usd, concluded in attempts:
        tally.add(tokens=tokens, usd=usd, concluded=concluded, retried=not concluded)
    return tally


def record(tally: Tally, now: float = 130.0) -> dict[str, Any]:
    text: dict[str, Any] = json.loads(tally.text(now))
    return text


def test_attempts_are_summed_exactly() -> None:
    tally = a_tally(*[(3, PICODOLLAR, True)] * 7, (5, Decimal("1234567.1"), False))

    assert record(tally) == {
        "type": "microbatch",
        "id": "mb_1",
        "deployment": "small",
        "lane": "echo.text.light",
        "jobs": 7,
        "attempts": 8,
        "retries": 1,
        "tokens": 26,
        "usd": "1234567.100000000007",
        "priced_usd": "1234567.100000000007",
        "unpriced": 0,
        "seconds": 30.0,
        "items_per_minute": 14.0,
    }


def test_an_attempt_without_a_price_makes_the_sum_unknown_and_never_smaller() -> None:
    text = record(a_tally((3, Decimal("0.5"), True), (3, None, True)))

    assert (text["usd"], text["priced_usd"], text["unpriced"]) == (None, "0.5", 1)


def test_money_has_no_exponent_however_small() -> None:
    assert record(a_tally((1, PICODOLLAR, True)))["usd"] == "0.000000000001"


def test_one_that_took_no_time_has_no_rate() -> None:
    assert record(a_tally((1, PICODOLLAR, True)), now=100.0)["items_per_minute"] is None
