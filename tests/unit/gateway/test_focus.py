"""Charges in the columns of FOCUS: every dollar is there once, and none that nobody knows."""

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from gateway.focus import COLUMNS, Row, rows
from policies.deployments import Bedrock
from policies.pricing import Meter, Price, Usage
from router.log import Record
from tests.builders import PRICE, a_charge, a_deployment, a_job

AT = {"at-ms": "1798761599000"}  # the last second of 2026
MODEL = "anthropic.claude-3-haiku-20240307-v1:0"


def charged(**fields: Any) -> list[Row]:
    job, deployment = a_job(), replace(a_deployment(price=PRICE), model=MODEL, bedrock=Bedrock("eu-central-1"))
    text = a_charge(job, **fields).text(job, concluded=True)
    return list(rows(Record(text.encode(), AT), {deployment.name: deployment}))


def total(found: list[Row], column: str) -> Decimal:
    return sum((Decimal(row[column]) for row in found), Decimal(0))


def test_each_line_is_a_row_whose_costs_are_the_ledgers_own() -> None:
    usage = Usage(input=1_234_567, output=3)

    found = charged(usage=usage)

    assert [row["SkuMeter"] for row in found] == ["input", "output"]
    exact = sum(line.usd or 0 for line in a_charge(a_job(), usage=usage).lines)
    assert total(found, "EffectiveCost") == total(found, "BilledCost") == total(found, "ListCost") == exact
    for row in found:
        assert set(row) <= set(COLUMNS)
        assert Decimal(row["PricingQuantity"]) * Decimal(row["ContractedUnitPrice"]) == Decimal(row["EffectiveCost"])
        assert (row["PricingUnit"], row["RegionId"], row["ResourceId"]) == ("1M Tokens", "eu-central-1", MODEL)
        assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == ("2026-12-31T23:00:00Z", "2027-01-01T00:00:00Z")
        assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
        assert json.loads(row["Tags"])["tenant"] == row["SubAccountId"] == "acme"


def test_what_a_cheaper_tier_saves_is_the_list_cost_less_the_cost() -> None:
    half = {meter: rate / 2 for meter, rate in PRICE.per_million.items()}
    price = replace(PRICE, tiers={"batch": half})

    found = charged(price=price, usage=Usage(input=1000, output=100, tier="batch"))

    assert total(found, "ListCost") == 2 * total(found, "EffectiveCost") > 0
    assert {json.loads(row["SkuPriceDetails"])["x_tier"] for row in found} == {"batch"}


def test_images_are_priced_one_by_one() -> None:
    price = Price({Meter.IMAGES: Decimal("40000")}, "book")

    [row] = charged(price=price, usage=Usage(images=3))

    assert (row["PricingQuantity"], row["PricingUnit"], row["ContractedUnitPrice"]) == ("3", "Images", "0.04")
    assert row["EffectiveCost"] == "0.12"


def test_a_line_without_a_price_has_no_cost_which_is_not_nothing() -> None:
    assert not [row for row in charged(price=None) if "EffectiveCost" in row or "ListCost" in row]


def test_a_machines_bill_is_shared_out_to_the_last_picodollar_and_billed_elsewhere() -> None:
    shares = [{"job": "J", "attempt": n, "tenant": "acme", "seconds": 1.5, "usd": f"0.00{n}000000001"} for n in (1, 2)]
    bill = {
        "type": "machine",
        "id": "machine:small:gpu:1",
        "deployment": "small",
        "replica": "gpu",
        "to_ms": 1_798_761_599_000,
        "usd_per_hour": "3.6",
        "usd": "0.013000000002",
        "idle_usd": {"warm_up": "0", "gap": "0.01", "cool_down": "0"},
        "shares": shares,
    }

    found = list(rows(Record(json.dumps(bill).encode()), {}))

    assert total(found, "EffectiveCost") == Decimal(bill["usd"])  # type: ignore[arg-type]
    assert total(found, "BilledCost") == 0
    assert len({row["x_line_id"] for row in found}) == 3
    assert [row["SubAccountId"] for row in found] == ["acme", "acme", ""]


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{}", b'{"type": "microbatch"}', b"\xff"])
def test_other_records_have_no_rows(text: bytes) -> None:
    assert list(rows(Record(text, AT), {})) == []
