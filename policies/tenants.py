"""Who pays, and what they may do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from policies.deployments import Limits
from policies.webhooks import Endpoint, Secrets


class Learn(StrEnum):
    """What may be kept of a tenant's jobs for the router."""

    OFF = "off"
    FEATURES = "features"  # numbers, and places of hashed words
    TEXT = "text"  # and what was asked


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """How much of a tenant's `auto` goes to heavy: at most this share (0..1), and where `mean_usd` is given only so
    much that a call is expected to cost that on average. `effort_share`: of the calls in a tier whose deployments
    differ in effort, those that get the most. Of at most `lessons` jobs is kept what `learn` allows. With `escalates`
    a job goes once to heavy when light's answer is empty, a refusal or not as the schema has it.
    `shadow_share` of what light answers is also asked of heavy, for so many dollars a day.
    """

    heavy_share: float = 0.2
    mean_usd: Decimal | None = None
    effort_share: float = 0.2
    learn: Learn = Learn.FEATURES
    lessons: int = 5_000
    escalates: bool = False
    shadow_share: float = 0.0
    shadow_usd_per_day: Decimal = Decimal(1)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's policy. Seconds; `aliases` maps a model name of the tenant's to a deployment or `auto...`.

    `key_limits` are of its API keys of that name together, `model_limits` what it may use of a deployment.
    Of a class `max_in_class` unfinished jobs are in the main queue, what is more is in the overflow. `weight` is its
    part of the slots beside other tenants'. `webhook_secrets` sign what goes to URLs that its jobs name: without one
    they may name none. `reply_topics` are those that its records on the inbox may name.
    """

    name: str
    limits: Limits = field(default_factory=Limits)
    key_limits: Mapping[str, Limits] = field(default_factory=dict)
    model_limits: Mapping[str, Limits] = field(default_factory=dict)
    deployments: frozenset[str] | None = None  # None: all
    aliases: Mapping[str, str] = field(default_factory=dict)
    max_unfinished: int = 100_000
    max_in_class: int = 500
    weight: float = 1.0
    routing: RoutingPolicy = field(default_factory=RoutingPolicy)
    deadline_s: float = 86_400.0
    result_ttl_s: float = 86_400.0
    max_result_ttl_s: float = 604_800.0
    reruns_allowed: bool = True
    webhook_secrets: Secrets = field(default=(), repr=False)
    webhooks: Mapping[str, Endpoint] = field(default_factory=dict)
    reply_topics: frozenset[str] = frozenset()
