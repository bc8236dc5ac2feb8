"""Which deployment a job goes to, and why: rules first, the score only where they leave a choice."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from types import MappingProxyType
from typing import Literal

from policies.deployments import Deployment, Fallback, Tier
from policies.retries import Failure
from policies.tenants import Tenant
from policies.values import dataclass
from router import modality, rules, sessions
from router.gain import Score
from router.job import Alternative, Estimate, Route
from router.rules import Ability, Option, Ruled
from router.sessions import Place
from router.shares import Name, Shares

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
class Wanted:
    """The tier to take, and why. `score` and `threshold` are None where a rule decided."""

    tier: Tier
    rule: str
    reasons: tuple[str, ...]
    score: Score | None = None
    threshold: float | None = None


def choose(
    endpoint: str,
    model: str,
    body: Mapping[str, object],
    *,
    tenant: Tenant,
    deployments: Mapping[str, Deployment],
    shares: Shares,
    max_usd: Decimal | None = None,
    deadline_s: float | None = None,
    size: int = 0,
) -> Chosen | NoRoute:
    """Decide by name, ability, window, price ceiling, deadline, the tenant's share, session and score.

    In this order; the score is asked only for `auto`, and only where both tiers are left. Of several deployments of a
    tier it is the one with the session's prompt cache, else the cheapest by estimate, unknown prices last.
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
    needs, needed = rules.needs(body), modality.needs(endpoint, body)
    every = rules.options(endpoint, body, known.values(), needed, size)
    options = [option for option in every if option.deployment.name in pool]
    fitting = [option for option in options if option.fits and rules.able(option, needs)]
    if not fitting and is_named and (larger := _larger(allowed[name], every, needs)) is not None:
        fitting, options = [larger], [larger]
    if not fitting:
        others = rules.options(endpoint, body, allowed.values(), needed, size)
        return _nothing_fits(endpoint, body, options, others, needs, is_named=is_named)
    left = rules.within(fitting, max_usd=max_usd, deadline_s=deadline_s)
    if not left.options:
        assert max_usd is not None
        return _too_dear(min(fitting, key=lambda each: each.by_price), max_usd)
    asked = Asked(name, body, tenant, shares, Name(tenant.name, modality.first(needed)))
    tiers = rules.tiers_of(left.options)
    if is_named:
        named, [taken, *_] = allowed[name], left.options
        aside = () if taken.deployment is named else (f"fallback: {name} {Failure.TOO_LONG}",)
        wanted = Wanted(taken.deployment.tier, "named", (f"asked for {name}", *aside))
    elif len(tiers) == 1:
        wanted = _only_one_left(name, tiers.pop(), rules.what_left(pool.values(), options, needs), left.ruled)
    else:
        wanted = asked.tier(left.options)
    if wanted.score is None:
        shares.force(asked.level, tenant, is_heavy=wanted.tier is Tier.HEAVY)
    shares.decided(asked.level.modality, wanted.rule, wanted.tier is Tier.HEAVY)
    alias = () if model == name else (f"alias {_shown(model)}",)
    able = [option for option in every if option.fits and rules.able(option, needs)]
    affordable = able if max_usd is None else [option for option in able if option.costs_at_most(max_usd)]
    return asked.settle(left.options, wanted, alias, affordable)


@dataclass(slots=True)
class Asked:
    """One job's way through what rules have left."""

    name: str
    body: Mapping[str, object]
    tenant: Tenant
    shares: Shares
    level: Name  # what its share is kept with

    def tier(self, options: Sequence[Option]) -> Wanted:
        """Where both tiers are left: what was asked for, the tenant's policy, the session, then the score."""
        asked, policy = TIERS[self.name], self.tenant.routing
        if asked is not None:
            return Wanted(asked, "asked", (f"asked for {asked}",))
        if not policy.heavy_share:
            return Wanted(Tier.LIGHT, "policy", ("the tenant's heavy share is 0 %",))
        if policy.heavy_share == 1 and policy.mean_usd is None:
            return Wanted(Tier.HEAVY, "policy", ("the tenant's heavy share is 100 %",))
        place = self.place()
        if place is not None and place.is_heavy:
            return Wanted(Tier.HEAVY, "session", ("its session is with heavy",))
        score = self.shares.score(self.tenant, self.body)
        prices = None if policy.mean_usd is None else (_least_usd(options, Tier.LIGHT), _least_usd(options, Tier.HEAVY))
        verdict = self.shares.decide(self.level, self.tenant, score.value, prices)
        capped = ("the heavy share is used up",) if verdict.rule == "cap" else ()
        tier = Tier.HEAVY if verdict.is_heavy else Tier.LIGHT
        return Wanted(tier, verdict.rule, (*capped, *score.reasons), score, verdict.threshold)

    def place(self) -> Place | None:
        """Where its session is."""
        if not sessions.is_under_way(self.body):
            return None
        return self.shares.sessions.find(self.tenant.name, sessions.session_of(self.body), self.shares.clock())

    def settle(
        self, options: Sequence[Option], wanted: Wanted, alias: tuple[str, ...], every: Sequence[Option]
    ) -> Chosen:
        """The deployment, what it may use there at most, and those of `every` that take it next if it fails."""
        left = [option for option in options if option.deployment.tier is wanted.tier]
        left, reasons = self._by_effort(left, wanted)
        best = min(left, key=lambda each: each.by_price)
        if len(left) > 1 and (place := self.place()) is not None:
            kept = next((each for each in left if each.deployment.name == place.deployment), best)
            reasons += ("its prompt cache is there",) if kept is not best else ()
            best = kept
        taken, score = best.deployment, wanted.score
        if self.name in TIERS and (wanted.tier is Tier.HEAVY or len(left) > 1):
            self._note(taken)
        route = Route(
            taken.name,
            taken.backend,
            self.level.modality,
            taken.tier,
            (*alias, *wanted.reasons, *reasons),
            None if score is None else score.value,
            self._left(taken, every),
            threshold=wanted.threshold,
            rule=wanted.rule,
        )
        return Chosen(route, best.estimate)

    def _left(self, taken: Deployment, every: Sequence[Option]) -> tuple[Alternative, ...]:
        """What takes the job next if it fails; with the tenant's consent also heavy, if light's answer is no use."""
        left = _alternatives(taken, every)
        heavy = [option for option in every if option.deployment.tier is Tier.HEAVY]
        is_ours = self.name == "auto" and taken.tier is Tier.LIGHT
        if not (self.tenant.routing.escalates and is_ours and heavy):
            return left
        best = min(heavy, key=lambda each: each.by_price)
        return (*left, Alternative(Fallback(best.deployment.name, frozenset({Failure.UNUSABLE})), best.estimate))

    def _note(self, taken: Deployment) -> None:
        session = sessions.session_of(self.body)
        is_heavy = taken.tier is Tier.HEAVY
        self.shares.sessions.note(self.tenant.name, session, taken.name, is_heavy=is_heavy, now=self.shares.clock())

    def _by_effort(self, options: list[Option], wanted: Wanted) -> tuple[list[Option], tuple[str, ...]]:
        """Of deployments that differ in effort: what the caller set, else by the same score the most or the least."""
        ranks = sorted({option.deployment.effort_rank for option in options})
        if len(ranks) == 1 or self.name not in TIERS:
            return options, ()
        given = self.body.get("reasoning_effort")
        same = [option for option in options if option.deployment.effort == given]
        if given is not None:
            return (same or options), ((f"effort {given} was asked for",) if same else ())
        score = wanted.score or self.shares.score(self.tenant, self.body)
        name = self.level._replace(axis=f"effort.{wanted.tier}")
        verdict = self.shares.decide(name, self.tenant, score.value)
        taken = [o for o in options if o.deployment.effort_rank == ranks[-1 if verdict.is_heavy else 0]]
        return taken, (f"effort {taken[0].deployment.effort or 'as it is'}",)


def _least_usd(options: Sequence[Option], tier: Tier) -> Decimal | None:
    return min(option.by_price for option in options if option.deployment.tier is tier)[1] or None


def names(tenant: Tenant, deployments: Iterable[str]) -> list[str]:
    """What this tenant may put into `model`."""
    own = [name for name in deployments if tenant.deployments is None or name in tenant.deployments]
    return [*TIERS, *own, *(alias for alias in tenant.aliases if alias not in own)]


def _resolve(model: str, aliases: Mapping[str, str]) -> str | None:
    """Where the tenant's aliases lead; None for a loop. An alias may name itself."""
    for _ in range(HOPS):
        target = aliases.get(model, model)
        if target == model:
            return model
        model = target
    return None


def _larger(asked: Deployment, every: Collection[Option], needs: Sequence[Ability]) -> Option | None:
    """The first of its fallbacks that holds what it does not."""
    by_name = {option.deployment.name: option for option in every if option.fits and rules.able(option, needs)}
    for each in asked.fallback:
        option = by_name.get(each.deployment)
        if option is not None and (each.on is None or Failure.TOO_LONG in each.on):
            return option
    return None


def _only_one_left(name: str, tier: Tier, able: Ruled | None, ruled: Sequence[Ruled]) -> Wanted:
    """Only one tier is left: say which rule left it, unless it is what was asked for."""
    wanted = TIERS[name]
    if wanted is tier:
        return Wanted(tier, "asked", (f"asked for {tier}",))
    lead = () if wanted is None else (f"asked for {wanted}",)
    by = able or ruled[0]
    return Wanted(tier, by.rule, (*lead, by.reason))


def _alternatives(taken: Deployment, every: Collection[Option]) -> tuple[Alternative, ...]:
    """What the job may go on at, in the order of the settings."""
    estimates = {option.deployment.name: option.estimate for option in every}
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


def _nothing_fits(
    endpoint: str,
    body: Mapping[str, object],
    options: Sequence[Option],
    others: Sequence[Option],
    needs: Sequence[Ability],
    *,
    is_named: bool,
) -> NoRoute:
    able = [option for option in options if rules.able(option, needs)]
    if able and not any(option.takes_size for option in able):
        return _too_large(able[0], others, needs)
    if able and not any(option.makes_all for option in able):
        return _too_slow(able[0], others, needs)
    if able:
        return _too_long(options, others, needs)
    needed = " and ".join([*sorted(modality.needs(endpoint, body)), *(each.word for each in needs)])
    if any(rules.able(option, needs) for option in others):
        message = f"This model does not do {needed}. {_would_fit(others, needs)}"
    else:
        message = f"No deployment that you may use does {needed}. The operator can add one that does."
    return NoRoute(message, "no_route", "model" if is_named else "messages")


def _too_long(options: Collection[Option], others: Collection[Option], needs: Sequence[Ability]) -> NoRoute:
    largest = max(options, key=lambda option: option.deployment.window - option.window)
    return NoRoute(
        f"About {largest.window:,} tokens are needed (the input, and room for the answer), and the window of"
        f" {_shown(largest.deployment.name)} has {largest.deployment.window:,}. {_would_fit(others, needs)}"
        " Or shorten the input or lower max_tokens.",
        "context_length_exceeded",
        "messages",
    )


def _too_large(option: Option, others: Collection[Option], needs: Sequence[Ability]) -> NoRoute:
    return NoRoute(
        f"The request has {option.size:,} bytes, and {_shown(option.deployment.name)} takes"
        f" {option.deployment.max_body:,} at most. {_would_fit(others, needs)}",
        "no_route",
        "messages",
    )


def _too_slow(option: Option, others: Collection[Option], needs: Sequence[Ability]) -> NoRoute:
    return NoRoute(
        f"Up to {option.estimate.output_tokens:,} tokens are asked for, and {_shown(option.deployment.name)} makes"
        f" {option.deployment.most_made:,} at most in one call. {_would_fit(others, needs)} Or lower max_tokens.",
        "no_route",
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


def _would_fit(options: Collection[Option], needs: Sequence[Ability]) -> str:
    names = sorted(option.deployment.name for option in options if option.fits and rules.able(option, needs))
    return f"Would fit: {_listed(names)}." if names else "No deployment that you may use would fit."


def _listed(names: Collection[str]) -> str:
    return ", ".join([*map(_shown, islice(names, NAMED)), *(["..."] if len(names) > NAMED else [])])


def _shown(name: str) -> str:
    """A name fit for a message, whatever the caller sent."""
    return repr(name if len(name) <= SHOWN else f"{name[:SHOWN]}...")
