"""What another policy would have done with jobs that a score decided: where they would have gone, and at what price."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from policies.deployments import Deployment, Tier
from policies.pricing import Usage, cost
from policies.tenants import Tenant
from router import tracker
from router.gain import Correction, Weights, predict, squeezed
from router.lessons import Lesson
from router.tracker import Level, Target


@dataclass(slots=True)
class Way:
    """How it went, or would have gone. `quality` and `known` are of those jobs whose outcome there is known."""

    jobs: int = 0
    heavy: int = 0
    usd: Decimal = Decimal(0)
    unpriced: int = 0
    quality: float = 0.0
    known: int = 0

    def add(self, lesson: Lesson, tier: Tier, usd: Decimal | None) -> None:
        """One more job."""
        self.jobs += 1
        self.heavy += tier is Tier.HEAVY
        self.usd += usd or 0
        self.unpriced += usd is None
        if (outcome := lesson.outcomes.get(tier)) is not None:
            self.known += 1
            self.quality += outcome.quality


@dataclass(frozen=True, slots=True)
class Replayed:
    """Both ways, and how many jobs would have gone elsewhere."""

    was: Way
    would_be: Way
    moved: int


def replay(
    lessons: Iterable[Lesson],
    tenant: Tenant,
    *,
    before: Mapping[str, Deployment],
    after: Mapping[str, Deployment],
    weights: Weights,
    correction: Correction | None = None,
) -> Replayed:
    """In the order of time, with a level of its own. Prices are of the cheapest of a tier, for the tokens used."""
    was, would_be, moved = Way(), Way(), 0
    levels: dict[str, Level] = {}
    for lesson in lessons:
        share = tenant.routing.heavy_share
        if tenant.routing.mean_usd is not None:
            prices = [_usd(lesson, after.values(), tier) for tier in Tier]
            light, heavy = (None if usd is None else float(usd) for usd in prices)
            if light is not None and heavy is not None:
                dollars = tracker.share_for(float(tenant.routing.mean_usd), light_usd=light, heavy_usd=heavy)
                share = min(share, dollars)
        target = Target(share)
        level = levels.get(lesson.modality) or tracker.start(
            target, fifth=float(weights.fifth[0]), deviation=float(weights.spread[0])
        )
        score = squeezed(predict(lesson.counted, weights, correction).gain)
        decided = tracker.scored(target, level, score)
        levels[lesson.modality] = decided.level
        tier = Tier.HEAVY if decided.is_heavy else Tier.LIGHT
        moved += tier is not lesson.tier
        there = before.get(lesson.deployment)
        was.add(lesson, lesson.tier, _price(lesson, there) if there else _usd(lesson, before.values(), lesson.tier))
        would_be.add(lesson, tier, _usd(lesson, after.values(), tier))
    return Replayed(was, would_be, moved)


def _usd(lesson: Lesson, deployments: Iterable[Deployment], tier: Tier) -> Decimal | None:
    fitting = [each for each in deployments if each.tier is tier and lesson.modality in each.modalities]
    prices = [usd for each in fitting if (usd := _price(lesson, each)) is not None]
    return min(prices, default=None)


def _price(lesson: Lesson, deployment: Deployment) -> Decimal | None:
    return cost(deployment.price, Usage(input=lesson.input_tokens, output=lesson.output_tokens))
