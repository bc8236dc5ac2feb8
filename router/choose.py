"""Which deployment a job goes to, and why: rules first, the score only where they leave a choice."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from types import MappingProxyType
from typing import Literal

from policies.deployments import Deployment, Modality, Tier
from policies.pricing import cost
from policies.retries import Failure
from policies.tenants import Tenant
from router import complexity, modality, tokens
from router.complexity import THRESHOLD, Score
from router.expected import expected
from router.job import Alternative, Estimate, Route

# The names that leave the deployment to us, and the tier that they insist on.
TIERS: Mapping[str, Tier | None] = MappingProxyType({"auto": None, "auto:light": Tier.LIGHT, "auto:heavy": Tier.HEAVY})
HOPS = 8  # aliases that may lead from one to the next
NAMED = 20  # names that a message lists at most
SHOWN = 64  # characters of a name in a message


@dataclass(frozen=True, slots=True)
class Chosen:
    """Where the job goes, and what it may use there at most. The route names what takes it if that fails."""

    route: Route
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Nothing fits. `message` is for the caller: what is missing, and what would fit."""

    message: str
    code: Literal["model_not_found", "no_route", "context_length_exceeded"]
    param: Literal["model", "messages", "input", "prompt", "file", "pointsman.max_usd"]


@dataclass(frozen=True, slots=True)
class Option:
    """A deployment that takes the job's modality. `window` is the tokens that it must hold at once."""

    deployment: Deployment
    estimate: Estimate
    window: int

    @property
    def fits(self) -> bool:
        """Whether input and output go into the window."""
        return self.window <= self.deployment.window

    @property
    def by_price(self) -> tuple[bool, Decimal, str]:
        """Sorts the cheapest first, unknown prices last."""
        usd = self.estimate.usd
        return (usd is None, usd or Decimal(0), self.deployment.name)

    def costs_at_most(self, usd: Decimal) -> bool:
        """False where the price is unknown."""
        return self.estimate.usd is not None and self.estimate.usd <= usd


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tier to take, and why. `score` is None where a rule decided."""

    tier: Tier
    reasons: tuple[str, ...]
    score: float | None = None


def choose(
    endpoint: str,
    model: str,
    body: Mapping[str, object],
    *,
    tenant: Tenant,
    deployments: Mapping[str, Deployment],
    threshold: float = THRESHOLD,
    max_usd: Decimal | None = None,
    score: Callable[[Mapping[str, object]], Score] = complexity.score,
) -> Chosen | NoRoute:
    """Decide by name, modality, window, tier and price, in this order. `deployments` are by their names.

    `score` is asked only for `auto`, and only where both tiers fit; from `threshold` on, heavy is taken.
    Of several deployments of a tier it is the cheapest by estimate, unknown prices last.
    With `max_usd`, a deployment whose estimate is above it or unknown gives way to the cheapest that fits.
    """
    name = _resolve(model, tenant.aliases)
    allowed = {
        key: each for key, each in deployments.items() if tenant.deployments is None or key in tenant.deployments
    }
    is_named = name not in TIERS
    if name is None or (is_named and name not in allowed):
        return _not_found(model, allowed, tenant)
    pool = {name: allowed[name]} if is_named else allowed
    fallbacks = {each.deployment for deployment in pool.values() for each in deployment.fallback}
    known = pool | {key: each for key, each in allowed.items() if key in fallbacks}
    every = _options(endpoint, body, known.values())
    options = [option for option in every if option.deployment.name in pool]
    fitting = [option for option in options if option.fits]
    if not fitting and is_named and (larger := _larger(allowed[name], every)) is not None:
        fitting, options = [larger], [larger]
    if not fitting:
        others = _options(endpoint, body, allowed.values())
        return _too_long(options, others) if options else _takes_none(endpoint, body, others, is_named=is_named)

    tiers = {option.deployment.tier for option in fitting}
    if is_named:
        asked, [taken, *_] = allowed[name], fitting
        aside = () if taken.deployment is asked else (f"fallback: {name} {Failure.TOO_LONG}",)
        wanted = Wanted(taken.deployment.tier, (f"asked for {name}", *aside))
    elif len(tiers) == 1:
        wanted = _only_one_left(name, pool.values(), options, *tiers)
    elif (tier := TIERS[name]) is not None:
        wanted = Wanted(tier, (f"asked for {tier}",))
    else:
        scored = score(body)
        wanted = Wanted(Tier.HEAVY if scored.value >= threshold else Tier.LIGHT, scored.reasons, scored.value)
    alias = () if model == name else (f"alias {_shown(model)}",)
    return _settle(fitting, wanted, alias, modality.of(endpoint, body), max_usd, every)


def _resolve(model: str, aliases: Mapping[str, str]) -> str | None:
    """Where the tenant's aliases lead; None for a loop. An alias may name itself."""
    for _ in range(HOPS):
        target = aliases.get(model, model)
        if target == model:
            return model
        model = target
    return None


def _options(endpoint: str, body: Mapping[str, object], deployments: Collection[Deployment]) -> list[Option]:
    """Those that take what the job carries and make what it wants."""
    needed, has_tools, has_prefill = modality.needs(endpoint, body), _has_tools(body), _has_prefill(body)
    read = tokens.estimate_input(body)
    options = []
    for each in deployments:
        takes_it = (each.takes_tools or not has_tools) and (each.takes_prefill or not has_prefill)
        if needed <= each.modalities and takes_it:
            job = expected(endpoint, body, each, read=read)
            options.append(Option(each, Estimate.of(job.usage, cost(each.price, job.usage)), job.window))
    return options


def _larger(asked: Deployment, every: Collection[Option]) -> Option | None:
    """The first of its fallbacks that holds what it does not."""
    by_name = {option.deployment.name: option for option in every}
    for each in asked.fallback:
        option = by_name.get(each.deployment)
        if option is not None and option.fits and (each.on is None or Failure.TOO_LONG in each.on):
            return option
    return None


def _has_tools(body: Mapping[str, object]) -> bool:
    return bool(body.get("tools") or body.get("functions"))


def _has_prefill(body: Mapping[str, object]) -> bool:
    """Whether the answer's beginning is there already, to be gone on with."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, dict) and last.get("role") == "assistant"


def _only_one_left(name: str, pool: Collection[Deployment], options: Collection[Option], tier: Tier) -> Wanted:
    """Only one tier fits: say which rule left it, unless it is what was asked for."""
    asked = TIERS[name]
    lead = () if asked is None else (f"asked for {asked}",)
    if asked is tier:
        return Wanted(tier, lead)
    if len({each.tier for each in pool}) == 1:
        return Wanted(tier, (*lead, f"only {tier} is there"))
    if len({option.deployment.tier for option in options}) == 1:
        return Wanted(tier, (*lead, f"only {tier} takes this modality"))
    window = min(option.window for option in options)
    return Wanted(tier, (*lead, f"about {window:,} tokens fit only {tier}"))


def _settle(
    fitting: Collection[Option],
    wanted: Wanted,
    alias: tuple[str, ...],
    kind: Modality,
    max_usd: Decimal | None,
    every: Collection[Option],
) -> Chosen | NoRoute:
    best = min((each for each in fitting if each.deployment.tier is wanted.tier), key=lambda each: each.by_price)
    reasons = (*alias, *wanted.reasons)
    if max_usd is not None and not best.costs_at_most(max_usd):
        best = min(fitting, key=lambda each: each.by_price)
        reasons = (*reasons, "max_usd: the cheapest that fits")
        if not best.costs_at_most(max_usd):
            return _too_dear(best, max_usd)
    taken = best.deployment
    left = _left(taken, every, max_usd)
    return Chosen(Route(taken.name, taken.backend, kind, taken.tier, reasons, wanted.score, left), best.estimate)


def _left(taken: Deployment, every: Collection[Option], max_usd: Decimal | None) -> tuple[Alternative, ...]:
    """What the job may go on at, in the order of the settings: only what takes it, holds it and is not too dear."""
    estimates = {
        option.deployment.name: option.estimate
        for option in every
        if option.fits and (max_usd is None or option.costs_at_most(max_usd))
    }
    return tuple(
        Alternative(each, estimates[each.deployment]) for each in taken.fallback if each.deployment in estimates
    )


def _not_found(model: str, allowed: Collection[str], tenant: Tenant) -> NoRoute:
    return NoRoute(
        f"The model {_shown(model)} does not exist or you do not have access to it."
        f" Use one of: {_listed([*TIERS, *sorted(allowed), *sorted(tenant.aliases)])}.",
        "model_not_found",
        "model",
    )


def _takes_none(endpoint: str, body: Mapping[str, object], others: Collection[Option], *, is_named: bool) -> NoRoute:
    has = [name for name, there in (("tools", _has_tools(body)), ("prefill", _has_prefill(body))) if there]
    needed = " and ".join([*sorted(modality.needs(endpoint, body)), *has])
    if others:
        message = f"This model does not do {needed}. {_would_fit(others)}"
    else:
        message = f"No deployment that you may use does {needed}. The operator can add one with these modalities."
    return NoRoute(message, "no_route", "model" if is_named else "messages")


def _too_long(options: Collection[Option], others: Collection[Option]) -> NoRoute:
    largest = max(options, key=lambda option: option.deployment.window - option.window)
    return NoRoute(
        f"About {largest.window:,} tokens are needed (the input, and room for the answer), and the window of"
        f" {_shown(largest.deployment.name)} has {largest.deployment.window:,}. {_would_fit(others)}"
        " Or shorten the input or lower max_tokens.",
        "context_length_exceeded",
        "messages",
    )


def _too_dear(cheapest: Option, max_usd: Decimal) -> NoRoute:
    name, usd = _shown(cheapest.deployment.name), cheapest.estimate.usd
    price = f"may cost up to ${usd:f}" if usd is not None else "has no known price"
    return NoRoute(
        f"The cheapest deployment that fits, {name}, {price}, and max_usd is ${max_usd:f}."
        " Raise it, shorten the input or lower max_tokens.",
        "no_route",
        "pointsman.max_usd",
    )


def _would_fit(options: Collection[Option]) -> str:
    names = sorted(option.deployment.name for option in options if option.fits)
    return f"Would fit: {_listed(names)}." if names else "No deployment that you may use would fit."


def _listed(names: Collection[str]) -> str:
    return ", ".join([*map(_shown, islice(names, NAMED)), *(["..."] if len(names) > NAMED else [])])


def _shown(name: str) -> str:
    """A name fit for a message, whatever the caller sent."""
    return repr(name if len(name) <= SHOWN else f"{name[:SHOWN]}...")
