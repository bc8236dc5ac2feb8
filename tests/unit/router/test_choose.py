"""Rules come before the score, each with its reason; what fits nowhere is told what would."""

import random
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

import pytest

from policies.deployments import SYNC_BYTES, Deployment, Fallback, Modality, SageMaker, Tier
from policies.pricing import Meter, Price
from policies.tenants import RoutingPolicy, Tenant
from router.choose import Chosen, NoRoute, choose
from router.gain import Score
from router.job import Route
from router.shares import Shares

CHAT = "/v1/chat/completions"
SIMPLE = {"role": "user", "content": "And in one word?"}
HARD = "Prove that the square root of 2 is irrational, then discuss why the argument fails for 4."
LONG = "word " * 10_000


def a_price(usd: str) -> Price:
    return Price({Meter.INPUT: Decimal(usd), Meter.OUTPUT: Decimal(usd)}, "test")


def a_deployment(
    name: str,
    tier: Tier = Tier.LIGHT,
    *,
    usd: str | None = "1",
    window: int = 8_192,
    modalities: frozenset[Modality] = frozenset({Modality.TEXT}),
) -> Deployment:
    price = None if usd is None else a_price(usd)
    return Deployment(name, "gpu", f"model-of-{name}", tier, window=window, modalities=modalities, price=price)


LIGHT = a_deployment("small", Tier.LIGHT, usd="1")
HEAVY = a_deployment("big", Tier.HEAVY, usd="10", window=32_768)


def a_chat(content: object = "Say hello", **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}], **more}


def by_hardness(body: Mapping[str, object]) -> Score:
    """A score that a reader can foresee."""
    return Score(0.9 if "Prove" in str(body) else 0.1, ("asks for a proof",) if "Prove" in str(body) else ("short",))


def a_shares() -> Shares:
    return Shares(by_hardness, fifth=0.5, deviation=0.1)


def decide(
    model: str = "auto",
    body: Mapping[str, object] | None = None,
    *deployments: Deployment,
    tenant: Tenant | None = None,
    endpoint: str = CHAT,
    max_usd: str | None = None,
    deadline_s: float | None = None,
    shares: Shares | None = None,
    size: int = 0,
) -> Chosen | NoRoute:
    return choose(
        endpoint,
        model,
        body or a_chat(),
        tenant=tenant or Tenant("t"),
        deployments={each.name: each for each in deployments or (LIGHT, HEAVY)},
        shares=shares or a_shares(),
        max_usd=None if max_usd is None else Decimal(max_usd),
        deadline_s=deadline_s,
        size=size,
    )


def chosen(result: Chosen | NoRoute) -> Chosen:
    assert isinstance(result, Chosen), result
    return result


def refused(result: Chosen | NoRoute) -> NoRoute:
    assert isinstance(result, NoRoute), result
    return result


def test_auto_sends_easy_jobs_to_light_and_hard_ones_to_heavy_by_score() -> None:
    easy, hard = chosen(decide()).route, chosen(decide("auto", a_chat(HARD))).route

    assert (easy.deployment, easy.tier, easy.lane) == ("small", Tier.LIGHT, "gpu.text.light")
    assert (hard.deployment, hard.tier) == ("big", Tier.HEAVY)
    assert easy.score is not None and hard.score is not None and easy.score < hard.score
    assert "asks for a proof" in hard.reasons


def test_the_receipt_has_the_rule_the_score_and_the_threshold() -> None:
    route = chosen(decide("auto", a_chat(HARD))).route

    assert (route.rule, route.score, route.threshold) == ("score", 0.9, 0.5)
    named = chosen(decide("big")).route
    assert (named.rule, named.score, named.threshold) == ("named", None, None)


@pytest.mark.parametrize(("model", "expected"), [("auto:light", "small"), ("auto:heavy", "big"), ("big", "big")])
def test_a_name_decides_without_a_score(model: str, expected: str) -> None:
    route = chosen(decide(model, a_chat(HARD))).route

    assert (route.deployment, route.score) == (expected, None)
    assert route.reasons[0].startswith("asked for")


def test_aliases_lead_to_a_deployment_or_to_auto_and_are_told() -> None:
    tenant = Tenant("t", aliases={"gpt-4o": "best", "best": "auto:heavy", "small": "small"})

    assert chosen(decide("gpt-4o", tenant=tenant)).route.deployment == "big"
    assert chosen(decide("gpt-4o", tenant=tenant)).route.reasons == ("alias 'gpt-4o'", "asked for heavy")
    assert chosen(decide("small", tenant=tenant)).route.deployment == "small"


@pytest.mark.parametrize(
    "aliases",
    [{"x": "y", "y": "x"}, {"x": "nowhere"}, {f"{n}": f"{n + 1}" for n in range(100)} | {"x": "0"}, {}],
)
def test_what_leads_nowhere_is_not_found_and_says_what_there_is(aliases: dict[str, str]) -> None:
    result = refused(decide("x", tenant=Tenant("t", aliases=aliases)))

    assert (result.code, result.param) == ("model_not_found", "model")
    assert "'auto:heavy'" in result.message and "'small'" in result.message


def test_a_message_shows_a_bounded_part_of_a_name() -> None:
    result = refused(decide("x" * 1_000_000))

    assert len(result.message) < 500


def test_a_deployment_that_the_tenant_may_not_use_is_not_found_and_never_chosen() -> None:
    tenant = Tenant("t", deployments=frozenset({"small"}))

    assert refused(decide("big", tenant=tenant)).code == "model_not_found"
    assert "'big'" not in refused(decide("other", tenant=tenant)).message
    route = chosen(decide("auto", a_chat(HARD), tenant=tenant)).route
    assert (route.deployment, route.score, route.reasons) == ("small", None, ("only light is there",))


def test_a_long_chat_that_ends_in_ok_continue_goes_where_it_fits() -> None:
    body: dict[str, object] = {
        "messages": [{"role": "user", "content": LONG}, {"role": "user", "content": "ok continue"}]
    }
    route = chosen(decide("auto", body)).route

    assert (route.deployment, route.score) == ("big", None)
    assert "tokens fit only heavy" in route.reasons[-1]


def test_the_other_tier_is_taken_when_the_wanted_one_does_not_fit() -> None:
    route = chosen(decide("auto:light", a_chat(LONG))).route

    assert route.deployment == "big"
    assert route.reasons[0] == "asked for light"
    assert "fit only heavy" in route.reasons[1]


def test_the_room_for_the_answer_is_part_of_the_window() -> None:
    assert chosen(decide("small", a_chat(max_tokens=8_000))).estimate.output_tokens == 8_000
    assert refused(decide("small", a_chat(max_tokens=8_192))).code == "context_length_exceeded"


def test_several_answers_share_a_window_but_are_all_paid() -> None:
    assert chosen(decide("small", a_chat(max_tokens=8_000, n=3))).estimate.output_tokens == 24_000


def test_too_long_for_all_is_told_with_the_largest_window() -> None:
    result = refused(decide("auto", a_chat(LONG * 10)))

    assert (result.code, result.param) == ("context_length_exceeded", "messages")
    assert "32,768" in result.message and "'big'" in result.message


SYNC = replace(LIGHT, name="sync", backend="sagemaker", sagemaker=SageMaker("us-east-1", is_realtime=True))


def test_a_body_over_what_a_synchronous_endpoint_takes_goes_elsewhere_or_is_told_why() -> None:
    assert chosen(decide("sync", None, SYNC, HEAVY, size=SYNC_BYTES)).route.deployment == "sync"

    auto = chosen(decide("auto", None, SYNC, HEAVY, size=SYNC_BYTES + 1))
    named = refused(decide("sync", None, SYNC, HEAVY, size=SYNC_BYTES + 1))

    assert (auto.route.deployment, auto.route.reasons) == ("big", ("only heavy takes a body of this size",))
    assert named.code == "no_route"
    assert "6,291,457 bytes, and 'sync' takes 6,291,456 at most. Would fit: 'big'." in named.message


@pytest.mark.parametrize(("speed", "most"), [(20.0, 1200), (None, SYNC_BYTES // 6)])
def test_an_answer_that_a_synchronous_endpoint_has_no_time_or_room_for_goes_elsewhere_or_is_told_why(
    speed: float | None, most: int
) -> None:
    place = SageMaker("us-east-1", is_realtime=True, tokens_per_s=speed)
    sync = replace(SYNC, sagemaker=place, window=10_000_000, max_output=5_000_000)
    big = replace(HEAVY, window=10_000_000, max_output=5_000_000)
    fitting, longer = ({**a_chat("Tell me all"), "max_tokens": tokens} for tokens in (most, most + 1))
    assert chosen(decide("sync", fitting, sync, big)).route.deployment == "sync"

    auto = chosen(decide("auto", longer, sync, big))
    named = refused(decide("sync", longer, sync, big))
    behind = chosen(decide("big", longer, replace(big, fallback=(Fallback("sync"),)), sync))

    assert (auto.route.deployment, auto.route.reasons) == ("big", ("only heavy gives so long an answer",))
    assert named.code == "no_route"
    assert f"'sync' makes {most:,} at most in one call. Would fit: 'big'." in named.message
    assert behind.route.left == ()


def test_a_synchronous_endpoint_is_no_fallback_for_what_it_does_not_take() -> None:
    first = replace(HEAVY, fallback=(Fallback("sync"),))

    small, large = (chosen(decide("big", None, first, SYNC, size=size)) for size in (10, SYNC_BYTES + 1))

    assert [each.fallback.deployment for each in small.route.left] == ["sync"]
    assert large.route.left == ()


def test_too_long_for_the_named_one_is_told_what_would_fit() -> None:
    result = refused(decide("small", a_chat(LONG)))

    assert result.code == "context_length_exceeded"
    assert "Would fit: 'big'" in result.message


def test_a_modality_goes_only_where_it_is_taken() -> None:
    sees = a_deployment("sees", Tier.HEAVY, modalities=frozenset({Modality.TEXT, Modality.IMAGE}))
    picture = a_chat([{"type": "text", "text": "What is it?"}, {"type": "image_url"}])

    route = chosen(decide("auto", picture, LIGHT, sees)).route
    assert (route.deployment, route.lane) == ("sees", "gpu.image.heavy")
    assert route.reasons == ("only heavy takes this modality",)
    named = refused(decide("small", picture, LIGHT, sees))
    assert (named.code, named.param) == ("no_route", "model")
    assert "image" in named.message and "Would fit: 'sees'" in named.message
    nobody = refused(decide("auto", picture))
    assert (nobody.code, nobody.param) == ("no_route", "messages")
    assert "image" in nobody.message


def test_all_modalities_of_a_job_must_be_taken_by_one_deployment() -> None:
    sees = a_deployment("sees", modalities=frozenset({Modality.IMAGE}))
    reads = a_deployment("reads", modalities=frozenset({Modality.DOCUMENT}))
    both = a_chat([{"type": "image_url"}, {"type": "file"}])

    assert "document and image" in refused(decide("auto", both, sees, reads)).message


def test_embeddings_are_fitted_by_their_longest_input_and_have_no_output() -> None:
    embeds = a_deployment("embeds", window=512, modalities=frozenset({Modality.EMBEDDING}))
    body: dict[str, object] = {"input": ["word " * 100] * 50}

    result = chosen(decide("auto", body, embeds, endpoint="/v1/embeddings"))

    assert result.route.modality is Modality.EMBEDDING
    assert result.estimate.output_tokens == 0
    assert result.estimate.input_tokens > 512


def test_of_one_tier_the_cheapest_is_taken_unknown_prices_last_and_ties_by_name() -> None:
    dear, unknown = a_deployment("a", usd="5"), a_deployment("b", usd=None)
    cheap, twin = a_deployment("d", usd="1"), a_deployment("c", usd="1")

    assert chosen(decide("auto", None, dear, unknown, cheap, twin)).route.deployment == "c"
    assert chosen(decide("auto", None, unknown, dear)).route.deployment == "a"
    assert chosen(decide("auto", None, unknown)).route.deployment == "b"


def test_the_estimate_is_priced_exactly_and_unknown_is_none() -> None:
    estimate = chosen(decide("small", a_chat(max_tokens=1_000))).estimate

    assert estimate.usd == Decimal(estimate.input_tokens + 1_000) / 1_000_000
    assert chosen(decide("auto", None, a_deployment("b", usd=None))).estimate.usd is None


def test_a_tier_above_max_usd_is_not_taken_and_that_is_told() -> None:
    route = chosen(decide("auto", a_chat(HARD), max_usd="0.002")).route

    assert (route.deployment, route.rule, route.score) == ("small", "max_usd", None)
    assert route.reasons == ("max_usd: only light is within it",)


def test_within_max_usd_nothing_changes() -> None:
    assert chosen(decide("auto", a_chat(HARD), max_usd="1")).route.deployment == "big"


def test_above_max_usd_everywhere_is_refused_with_the_price() -> None:
    result = refused(decide("auto", a_chat(max_tokens=1_000), max_usd="0.0001"))

    assert (result.code, result.param) == ("no_route", "pointsman.max_usd")
    assert "'small'" in result.message and "$0.0010" in result.message


def test_an_unknown_price_is_above_every_max_usd() -> None:
    unknown = a_deployment("free", usd=None)

    assert "no known price" in refused(decide("auto", None, unknown, max_usd="1000")).message
    assert chosen(decide("auto", None, unknown, HEAVY, max_usd="1")).route.deployment == "big"


def test_the_callers_text_is_in_no_message_or_reason() -> None:
    body = a_chat("xyzzy " * 100_000)

    assert "xyzzy" not in refused(decide("auto", body)).message
    assert "xyzzy" not in " ".join(chosen(decide("auto", a_chat("Prove xyzzy"))).route.reasons)


def test_without_any_deployment_the_operator_is_named() -> None:
    assert "operator" in refused(decide("auto", tenant=Tenant("t", deployments=frozenset()))).message


@pytest.mark.parametrize("body", [{"messages": [None]}, {"messages": [{"role": [], "content": {"a": 1}}]}, {}])
def test_odd_bodies_are_routed_not_raised(body: dict[str, object]) -> None:
    assert isinstance(decide("auto", body, LIGHT), Chosen)


# What a model can do, and how long it takes


def test_tools_and_schemas_go_only_where_they_are_known() -> None:
    plain = replace(LIGHT, takes_tools=False, takes_schema=False)
    tools = chosen(decide("auto", a_chat(tools=[{"type": "function"}]), plain, HEAVY)).route
    schema = chosen(decide("auto", a_chat(response_format={"type": "json_schema"}), plain, HEAVY)).route

    assert (tools.deployment, tools.rule, tools.reasons) == ("big", "tools", ("only heavy does tools",))
    assert (schema.deployment, schema.rule, schema.reasons) == ("big", "schema", ("only heavy does a JSON schema",))
    assert chosen(decide("auto", a_chat(), plain, HEAVY)).route.rule == "score"
    nobody = refused(decide("small", a_chat(tools=[{"type": "function"}]), plain, HEAVY))
    assert nobody.code == "no_route" and "tools" in nobody.message and "Would fit: 'big'" in nobody.message


def test_a_deadline_keeps_a_job_from_what_is_too_slow_and_refuses_nothing() -> None:
    slow, slower = replace(LIGHT, typical_s=20.0), replace(HEAVY, typical_s=60.0)

    route = chosen(decide("auto", a_chat(HARD), slow, slower, deadline_s=30.0)).route
    assert (route.deployment, route.rule) == ("small", "deadline")
    assert route.reasons == ("deadline: only light is fast enough",)
    assert chosen(decide("auto", a_chat(HARD), slow, slower, deadline_s=5.0)).route.deployment == "small"
    assert chosen(decide("auto", a_chat(HARD), slow, slower, deadline_s=90.0)).route.rule == "score"


# The tenant's share


def test_a_share_of_nothing_and_of_everything_asks_for_no_score() -> None:
    for share, expected in ((0.0, "small"), (1.0, "big")):
        route = chosen(decide(tenant=Tenant("t", routing=RoutingPolicy(heavy_share=share)))).route
        assert (route.deployment, route.rule, route.score) == (expected, "policy", None)


def test_the_share_is_held_however_hard_the_prompts_are_and_the_cap_is_told() -> None:
    shares = a_shares()
    routes = [chosen(decide("auto", a_chat(HARD), shares=shares)).route for _ in range(500)]

    assert sum(route.tier is Tier.HEAVY for route in routes) <= 125
    assert any(route.rule == "cap" and route.reasons[0] == "the heavy share is used up" for route in routes)


def test_forced_calls_are_counted_and_teach_nothing() -> None:
    shares = a_shares()
    for _ in range(50):
        decide("auto:heavy", shares=shares)
    decide("big", shares=shares)

    [level] = shares.levels().values()
    assert (level.forced, level.forced_heavy, level.scored, level.threshold) == (51, 51, 0, 0.5)


def test_a_mean_price_keeps_the_mean_of_the_estimates() -> None:
    tenant = Tenant("t", routing=RoutingPolicy(heavy_share=1.0, mean_usd=Decimal("0.002")))
    dice, shares, spent = random.Random(1), a_shares(), []
    shares.scorer = lambda body: Score(dice.random(), ())
    for _ in range(2_000):
        usd = chosen(decide("auto", a_chat(max_tokens=1_000), tenant=tenant, shares=shares)).estimate.usd
        spent.append(float(usd or 0))

    assert sum(spent) / len(spent) == pytest.approx(0.002, rel=0.1)


# Sessions


def test_a_session_never_goes_down_and_stays_where_its_cache_is() -> None:
    shares = a_shares()
    twin = a_deployment("also-big", Tier.HEAVY, usd="9", window=32_768)
    first = chosen(decide("auto", a_chat(HARD), LIGHT, HEAVY, shares=shares)).route
    after = {"messages": [*[{"role": "user", "content": HARD}], {"role": "assistant", "content": "..."}, SIMPLE]}

    second = chosen(decide("auto", after, LIGHT, HEAVY, twin, shares=shares)).route

    assert first.deployment == "big"
    assert (second.tier, second.rule, second.score) == (Tier.HEAVY, "session", None)
    assert second.deployment == "big"
    assert second.reasons == ("its session is with heavy", "its prompt cache is there")
    elsewhere = chosen(decide("auto", after, LIGHT, HEAVY, tenant=Tenant("other"), shares=shares)).route
    assert elsewhere.rule == "score"


def test_a_cache_key_of_the_callers_names_a_session() -> None:
    shares = a_shares()
    decide("auto", a_chat(HARD, prompt_cache_key="agent-7"), shares=shares)

    assert chosen(decide("auto", a_chat("ok", prompt_cache_key="agent-7"), shares=shares)).route.rule == "session"
    assert chosen(decide("auto", a_chat("ok", prompt_cache_key="agent-8"), shares=shares)).route.rule == "score"


def test_a_new_question_with_the_same_words_is_no_session() -> None:
    shares = a_shares()
    decide("auto", a_chat(HARD), shares=shares)

    assert chosen(decide("auto", a_chat(HARD), shares=shares)).route.rule == "score"


# Effort


def test_of_a_tier_with_several_efforts_the_score_takes_the_most_or_the_least() -> None:
    little, much = replace(LIGHT, name="little", effort="low"), replace(LIGHT, name="much", effort="high")
    shares = a_shares()

    def route(text: str, **more: object) -> Route:
        return chosen(decide("auto", a_chat(text, **more), little, much, shares=shares)).route

    assert route("Say hello").deployment == "little"
    assert route(HARD).deployment == "much"
    assert route(HARD).reasons[-1] == "effort high"
    assert route(HARD, reasoning_effort="low").deployment == "little"
    assert {name.axis for name in shares.levels()} == {"tier", "effort.light"}
