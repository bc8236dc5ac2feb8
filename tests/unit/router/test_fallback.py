"""Where a job goes on, and what it is then."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from policies.deployments import Deployment, Fallback, Modality, Tier
from policies.pricing import Meter, Price
from policies.retries import Failure
from policies.tenants import Tenant
from router.choose import Chosen, choose
from router.fallback import alternatives, moved
from router.job import Alternative, Estimate, Job, Route
from router.shares import Shares
from tests.builders import a_job

CHAT = "/v1/chat/completions"


def a_deployment(name: str, *fallback: str | Fallback, window: int = 8192, usd: str = "1", **more: Any) -> Deployment:
    names = tuple(Fallback(each) if isinstance(each, str) else each for each in fallback)
    price = Price({Meter.INPUT: Decimal(usd), Meter.OUTPUT: Decimal(usd)}, "test")
    fields: dict[str, Any] = {"tier": Tier.HEAVY, "window": window, "price": price, "fallback": names, **more}
    return Deployment(name, "gpu", "m", **fields)


def left(
    body: dict[str, object], *deployments: Deployment, tenant: Tenant | None = None, max_usd: str = ""
) -> list[str]:
    """What a job for the first of these may go on at."""
    chosen = choose(
        CHAT,
        deployments[0].name,
        {"messages": [{"role": "user", "content": "Hello"}], **body},
        tenant=tenant or Tenant("t"),
        deployments={each.name: each for each in deployments},
        shares=Shares(),
        max_usd=Decimal(max_usd) if max_usd else None,
    )
    assert isinstance(chosen, Chosen)
    return [each.fallback.deployment for each in chosen.route.left]


def test_the_order_is_that_of_the_settings_and_lists_do_not_lead_on() -> None:
    first = a_deployment("a", "c", "b")

    assert left({}, first, a_deployment("b", "a"), a_deployment("c", "d"), a_deployment("d")) == ["c", "b"]


@pytest.mark.parametrize(
    ("body", "passed_by"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, {"takes_tools": False}),
        ({"functions": [{"name": "f"}]}, {"takes_tools": False}),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            {"takes_prefill": False},
        ),
        ({"max_tokens": 900}, {"window": 512}),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]},
            {"modalities": frozenset({Modality.TEXT})},
        ),
    ],
)
def test_what_cannot_do_the_job_is_passed_by(body: dict[str, object], passed_by: dict[str, Any]) -> None:
    able: dict[str, Any] = {"modalities": frozenset({Modality.TEXT, Modality.IMAGE})}
    deployments = (
        a_deployment("a", "b", "c", **able),
        a_deployment("b", **{**able, **passed_by}),
        a_deployment("c", **able),
    )

    assert left(body, *deployments) == ["c"]
    assert left({}, *deployments) == ["b", "c"] or "window" in passed_by


def test_what_the_tenant_may_not_use_or_pay_is_passed_by() -> None:
    deployments = a_deployment("a", "b", "c"), a_deployment("b", usd="1000"), a_deployment("c")

    assert left({}, *deployments, tenant=Tenant("t", deployments=frozenset({"a", "b"}))) == ["b"]
    assert left({}, *deployments, max_usd="0.1") == ["c"]


def test_a_prompt_over_the_window_goes_to_the_first_fallback_that_holds_it() -> None:
    chosen = choose(
        CHAT,
        "a",
        {"messages": [{"role": "user", "content": "word " * 4000}]},
        tenant=Tenant("t"),
        deployments={
            each.name: each
            for each in (
                a_deployment("a", Fallback("b", frozenset({Failure.CUT})), "c", "d", window=2048),
                a_deployment("b", window=65536),
                a_deployment("c", window=4096),
                a_deployment("d", window=65536),
            )
        },
        shares=Shares(),
    )

    assert isinstance(chosen, Chosen)
    assert (chosen.route.deployment, chosen.route.reasons) == ("d", ("asked for a", "fallback: a too_long"))


def a_job_at(deployment: str, *names: str) -> Job:
    left = tuple(Alternative(Fallback(name), Estimate(10, 20 + number)) for number, name in enumerate(names))
    return a_job(route=Route(deployment, "gpu", Modality.TEXT, Tier.HEAVY, ("why",), left=left), is_reserved=True)


WINDOWS = {
    each.name: each
    for each in (
        a_deployment("here", window=100),
        a_deployment("smaller", window=50),
        a_deployment("same", window=100),
        a_deployment("larger", window=200, tier=Tier.LIGHT),
    )
}


def test_what_is_too_long_goes_to_larger_windows_first_and_never_to_smaller_ones() -> None:
    job = a_job_at("here", "smaller", "same", "larger", "gone")

    def names(failure: Failure) -> list[str]:
        return [each.fallback.deployment for each in alternatives(job, failure, WINDOWS)]

    assert names(Failure.TOO_LONG) == ["larger", "same"]
    assert names(Failure.CUT) == ["smaller", "same", "larger"]


def test_a_moved_job_knows_where_it_was_and_what_is_left() -> None:
    job = a_job_at("here", "same", "larger")

    there = moved(job, job.route.left[1], WINDOWS, attempts=3, why="cut")

    assert there.topic == "jobs.gpu.text.light.standard"
    assert there.route == Route(
        "larger",
        "gpu",
        Modality.TEXT,
        Tier.LIGHT,
        ("why", "fallback: here cut"),
        left=(job.route.left[0],),
        tried=("here",),
        spent=3,
    )
    assert (there.estimate, there.is_reserved) == (Estimate(10, 21), False)
    assert replace(there, route=job.route, estimate=job.estimate, is_reserved=True) == job
