"""What decides before any score: which deployments can do the job at all, and what that leaves."""

from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal

from policies.deployments import Deployment, Modality, Tier
from policies.pricing import cost
from policies.values import dataclass
from router import tokens
from router.expected import expected
from router.job import Estimate


@dataclass(frozen=True, slots=True)
class Option:
    """A deployment that takes the job's modality.

    `window` is the tokens that it must hold at once, `size` the bytes of the body.
    """

    deployment: Deployment
    estimate: Estimate
    window: int
    size: int = 0

    @property
    def fits(self) -> bool:
        """Whether input and output go into the window, the body into a call, and the answer into its bounds."""
        return self.window <= self.deployment.window and self.takes_size and self.makes_all

    @property
    def takes_size(self) -> bool:
        """Whether the body goes into a call."""
        most = self.deployment.max_body
        return most is None or self.size <= most

    @property
    def makes_all(self) -> bool:
        """Whether a call has the time and the bytes for so long an answer."""
        most = self.deployment.most_made
        return most is None or self.estimate.output_tokens <= most

    @property
    def by_price(self) -> tuple[bool, Decimal, str]:
        """Sorts the cheapest first, unknown prices last."""
        usd = self.estimate.usd
        return (usd is None, usd or Decimal(0), self.deployment.name)

    def costs_at_most(self, usd: Decimal) -> bool:
        """False where the price is unknown."""
        return self.estimate.usd is not None and self.estimate.usd <= usd


@dataclass(frozen=True, slots=True)
class Ruled:
    """What a rule left of the tiers: its name (for metrics) and its reason in words."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """The options that every rule left, and those rules that took a whole tier away."""

    options: Sequence[Option]
    ruled: Sequence[Ruled]


@dataclass(frozen=True, slots=True)
class Ability:
    """What a job may ask for and a deployment may lack. `rule` is its name, `word` is for people."""

    rule: str
    word: str
    is_asked: Callable[[Mapping[str, object]], bool]
    is_there: Callable[[Deployment], bool]


def _has_prefill(body: Mapping[str, object]) -> bool:
    """Whether the answer's beginning is there already, to be gone on with."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, dict) and last.get("role") == "assistant"


def _wants_schema(body: Mapping[str, object]) -> bool:
    wanted = body.get("response_format")
    return isinstance(wanted, dict) and wanted.get("type") == "json_schema"


ABILITIES = (
    Ability("tools", "tools", lambda body: bool(body.get("tools") or body.get("functions")), lambda it: it.takes_tools),
    Ability("prefill", "prefill", _has_prefill, lambda it: it.takes_prefill),
    Ability("schema", "a JSON schema", _wants_schema, lambda it: it.takes_schema),
)


def needs(body: Mapping[str, object]) -> list[Ability]:
    """What the job asks for beside its modality."""
    return [each for each in ABILITIES if each.is_asked(body)]


def able(option: Option, needed: Sequence[Ability]) -> bool:
    """Whether the deployment can do all of these."""
    return all(each.is_there(option.deployment) for each in needed)


def options(
    endpoint: str,
    body: Mapping[str, object],
    deployments: Collection[Deployment],
    needed: frozenset[Modality],
    size: int = 0,
) -> list[Option]:
    """Those that take what the job carries and make what it wants: `needed`, as `modality.needs` says.

    `size` is that of the body, in bytes.
    """
    read = tokens.estimate_input(body)
    found = []
    for each in deployments:
        if needed <= each.modalities:
            job = expected(endpoint, body, each, read=read)
            found.append(Option(each, Estimate.of(job.usage, cost(each.price, job.usage)), job.window, size))
    return found


def within(found: Sequence[Option], *, max_usd: Decimal | None, deadline_s: float | None) -> Left:
    """Those that the price ceiling and the deadline leave. None within the ceiling: none at all; none in time: the
    fastest, as a guess at a duration refuses nothing."""
    ruled: list[Ruled] = []
    left = found
    if max_usd is not None:
        left = [option for option in left if option.costs_at_most(max_usd)]
        _note(ruled, found, left, "max_usd", "max_usd: only {tier} is within it")
    if deadline_s is not None and len(left) > 1:
        before = left
        left = [option for option in left if _in_time(option, deadline_s)] or [min(left, key=_seconds)]
        _note(ruled, before, left, "deadline", "deadline: only {tier} is fast enough")
    return Left(left, ruled)


def _note(ruled: list[Ruled], before: Sequence[Option], left: Sequence[Option], rule: str, words: str) -> None:
    tiers = tiers_of(left)
    if len(tiers) == 1 and tiers != tiers_of(before):
        ruled.append(Ruled(rule, words.format(tier=next(iter(tiers)))))


def _in_time(option: Option, deadline_s: float) -> bool:
    return option.deployment.typical_s is None or option.deployment.typical_s <= deadline_s


def _seconds(option: Option) -> float:
    return option.deployment.typical_s or 0.0


def tiers_of(found: Collection[Option]) -> set[Tier]:
    """The tiers that these are of."""
    return {option.deployment.tier for option in found}


def what_left(pool: Collection[Deployment], found: Sequence[Option], needed: Sequence[Ability]) -> Ruled | None:
    """Why only one tier fits, of the rules about what a deployment can do. None where both do."""
    tiers = tiers_of([option for option in found if option.fits and able(option, needed)])
    if len(tiers) != 1:
        return None
    [tier] = tiers
    if len({each.tier for each in pool}) == 1:
        return Ruled("only", f"only {tier} is there")
    if len(tiers_of(found)) == 1:
        return Ruled("modality", f"only {tier} takes this modality")
    for each in needed:
        if len(tiers_of([option for option in found if each.is_there(option.deployment)])) == 1:
            return Ruled(each.rule, f"only {tier} does {each.word}")
    if len(tiers_of([option for option in found if option.takes_size])) == 1:
        return Ruled("size", f"only {tier} takes a body of this size")
    if len(tiers_of([option for option in found if option.makes_all])) == 1:
        return Ruled("length", f"only {tier} gives so long an answer")
    return Ruled("window", f"about {min(option.window for option in found):,} tokens fit only {tier}")
