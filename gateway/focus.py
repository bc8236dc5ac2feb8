"""The ledger in the columns of FOCUS 1.2, for whoever reads all bills in that form: an export, not a store. No I/O."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Any

from policies.deployments import Deployment
from policies.pricing import UNITS, Meter
from router.ledger import plain
from router.log import Record

MILLION = Decimal(1_000_000)
SKU_NAME = 32  # hexadecimal digits
_PROVIDERS: Mapping[str, tuple[str, str]] = {
    "bedrock": ("AWS", "Amazon Bedrock"),
    "sagemaker": ("AWS", "Amazon SageMaker"),
}
OWN = ("Pointsman", "Model servers")
UNIT_NAMES: Mapping[str, str] = {"images": "Images", "seconds": "Seconds", "characters": "1M Characters"}
COLUMNS = (
    *("BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "BillingCurrency"),
    *("ListUnitPrice", "ContractedUnitPrice", "PricingQuantity", "PricingUnit", "ConsumedQuantity", "ConsumedUnit"),
    *("ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "PricingCategory"),
    *("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"),
    *("ProviderName", "PublisherName", "InvoiceIssuerName", "ServiceName", "ServiceCategory", "ServiceSubcategory"),
    *("RegionId", "ResourceId", "ResourceName", "ResourceType", "SubAccountId"),
    *("SkuId", "SkuPriceId", "SkuMeter", "SkuPriceDetails", "Tags"),
    *("x_line_id", "x_job_id", "x_attempt", "x_microbatch", "x_outcome", "x_cost_basis"),
)

Row = Mapping[str, str]


def rows(record: Record, deployments: Mapping[str, Deployment]) -> Iterator[Row]:
    """What a record of the ledger comes to, a row a charge line. One without a price has no costs: they are unknown.

    A machine's bill is a row for each call and for each kind of idle time. Records of other kinds have none.
    """
    try:
        value = json.loads(record.value)
        kind = value["type"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    if kind == "attempt":
        at = int(record.headers["at-ms"])
        for line in value["lines"]:
            yield _of_line(line, value, at, deployments)
    elif kind == "machine":
        yield from _of_machine(value, deployments)


def _of_line(
    line: Mapping[str, Any], attempt: Mapping[str, Any], at_ms: int, deployments: Mapping[str, Deployment]
) -> Row:
    name, meter, tier = attempt["deployment"], Meter(line["meter"]), line.get("tier") or "default"
    unit, quantity = UNITS[meter], line["quantity"]
    size = Decimal(1) if unit in ("images", "seconds") else MILLION
    deployment = deployments.get(name)
    model = name if deployment is None else deployment.model
    sku = f"{model}/{tier}/{meter}"
    return {
        **_where(name, attempt["lane"].partition(".")[0], deployment),
        **_when(at_ms),
        **_costs(line, meter, size, deployment),
        "PricingQuantity": plain(quantity / size),
        "PricingUnit": UNIT_NAMES.get(unit, "1M Tokens"),
        "ConsumedQuantity": str(quantity),
        "ConsumedUnit": unit.capitalize(),
        "ChargeDescription": f"{meter} of {name}",
        "PricingCategory": "Committed" if tier == "reserved" else "Standard",
        "SkuId": sku,
        "SkuPriceId": _hashed(sku, line["price_source"], line["usd_per_million"]),
        "SkuMeter": str(meter),
        "SkuPriceDetails": _json({"x_tier": tier, "x_price_source": line["price_source"]}),
        "SubAccountId": attempt["tenant"],
        "Tags": _json({"tenant": attempt["tenant"], "lane": attempt["lane"]}),
        "x_line_id": line["id"],
        "x_job_id": line["job"],
        "x_attempt": str(line["attempt"]),
        "x_microbatch": attempt.get("microbatch") or "",
        "x_outcome": line["outcome"],
        "x_cost_basis": line["basis"],
    }


def _costs(line: Mapping[str, Any], meter: Meter, size: Decimal, deployment: Deployment | None) -> dict[str, str]:
    """The list price is that of the standard tier, by the settings of today."""
    if line["usd"] is None:
        return {}
    rate = Decimal(line["usd_per_million"])
    price = None if deployment is None else deployment.price
    listed = rate if price is None else price.per_million.get(meter, rate)
    return {
        **dict.fromkeys(("BilledCost", "EffectiveCost", "ContractedCost"), line["usd"]),
        "ListCost": plain(listed * line["quantity"] / MILLION),
        "ListUnitPrice": plain(listed * size / MILLION),
        "ContractedUnitPrice": plain(rate * size / MILLION),
    }


def _of_machine(bill: Mapping[str, Any], deployments: Mapping[str, Deployment]) -> Iterator[Row]:
    """Who sells the machine bills it elsewhere: here it is shared out, and billed nothing."""
    name, rate = bill["deployment"], Decimal(bill["usd_per_hour"])
    deployment = deployments.get(name)
    sku = f"{name}/machine"
    head = {
        **_where(name, "gpu" if deployment is None else deployment.backend, deployment),
        **_when(bill["to_ms"]),
        "ResourceId": bill["replica"],
        "BilledCost": "0",
        "ListUnitPrice": plain(rate),
        "ContractedUnitPrice": plain(rate),
        "PricingUnit": "Hours",
        "ConsumedUnit": "Seconds",
        "PricingCategory": "Other",
        "SkuId": sku,
        "SkuPriceId": _hashed(sku, "", bill["usd_per_hour"]),
        "SkuMeter": "machine",
        "x_cost_basis": "allocated",
    }
    parts = [
        (f"{share['job']}.{share['attempt']}", share["usd"], "machine time of a call", share)
        for share in bill["shares"]
    ]
    idle: list[tuple[str, str, str, Mapping[str, Any]]] = [
        (cause, usd, f"idle time of a machine: {cause}", {}) for cause, usd in bill["idle_usd"].items() if usd != "0"
    ]
    for part, text, what, share in [*parts, *idle]:
        usd = Decimal(text)
        hours = usd / rate if rate else Decimal(0)
        yield {
            **head,
            **dict.fromkeys(("EffectiveCost", "ContractedCost", "ListCost"), plain(usd)),
            "PricingQuantity": plain(round(hours, 12)),
            "ConsumedQuantity": plain(round(hours * 3600, 9)),
            "ChargeDescription": what,
            "SubAccountId": share.get("tenant", ""),
            "Tags": _json({"tenant": share["tenant"]} if share else {}),
            "x_line_id": f"{bill['id']}:{part}",
            "x_job_id": share.get("job", ""),
            "x_attempt": str(share.get("attempt", "")),
        }


def _where(name: str, backend: str, deployment: Deployment | None) -> dict[str, str]:
    provider, service = _PROVIDERS.get(backend, OWN)
    place = None if deployment is None else deployment.bedrock or deployment.sagemaker
    profile = deployment.bedrock.profile if deployment is not None and deployment.bedrock is not None else ""
    return {
        **dict.fromkeys(("ProviderName", "PublisherName", "InvoiceIssuerName"), provider),
        "ServiceName": service,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "Generative AI",
        "RegionId": "" if place is None else place.region,
        "ResourceId": profile or (name if deployment is None else deployment.model),
        "ResourceName": name,
        "ResourceType": "Model deployment",
        "BillingCurrency": "USD",
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
    }


def _when(at_ms: int) -> dict[str, str]:
    """The hour and the month (UTC) in which it was charged."""
    hour = datetime.fromtimestamp(at_ms / 1000, UTC).replace(minute=0, second=0, microsecond=0)
    month = hour.replace(day=1, hour=0)
    return {
        "BillingPeriodStart": _moment(month),
        "BillingPeriodEnd": _moment((month + timedelta(days=32)).replace(day=1)),
        "ChargePeriodStart": _moment(hour),
        "ChargePeriodEnd": _moment(hour + timedelta(hours=1)),
    }


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _hashed(*parts: object) -> str:
    return sha256("|".join(map(str, parts)).encode()).hexdigest()[:SKU_NAME]


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, separators=(",", ":"), sort_keys=True)
