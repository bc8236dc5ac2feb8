"""What is wrong with settings that are valid each for itself but not together; the time-out chain among them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from itertools import pairwise

from gateway.settings import DAY_S, DeploymentSettings, Settings, TenantSettings
from policies.deployments import SYNC_S, Modality, Tier
from policies.pricing import BY_UNIT, Meter, Price

ROOM = 1.2  # each time-out is better a fifth longer than the one inside it
STOP_S = 10.0  # what a worker needs after its drain: to commit, to release its leases, to leave its group
AUTO = frozenset({"auto", "auto:light", "auto:heavy"})
WITHOUT_OUTPUT = frozenset({Modality.EMBEDDING})  # these use no output tokens
# These need none at all.
WITH_UNITS = frozenset({Modality.IMAGE_GENERATION, Modality.SPEECH, Modality.AUDIO, Modality.VIDEO_GENERATION})


class Level(StrEnum):
    """An error stops a start, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """`where` is the setting, as in the file; `message` says what is wrong and what to do."""

    level: Level
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.message}"


def check(settings: Settings) -> list[Finding]:
    """Everything that is found, errors first. Touches nothing outside the settings."""
    prices = {name: deployment.price for name, deployment in settings.deployments_by_name().items()}
    unpriced = [name for name, price in prices.items() if price is None]
    findings = [
        *_chain(settings),
        *_drain(settings),
        *_cluster(settings),
        *_routes(settings),
        *_ports(settings),
        *(found for name in settings.deployments for found in _deployment(settings, name, prices[name])),
        *(found for name, tenant in settings.tenants.items() for found in _tenant(settings, name, tenant, unpriced)),
    ]
    return sorted(findings, key=lambda finding: finding.level is not Level.ERROR)


def _chain(settings: Settings) -> Iterator[Finding]:
    """Pod grace > attempt total > read > first token > connect; the run lease has no part in it."""
    for name, deployment in settings.deployments.items():
        at = f"deployments.{name}.timeouts"
        timeouts = deployment.timeouts
        chain = [
            (f"{at}.connect_s", timeouts.connect_s),
            (f"{at}.first_token_s", timeouts.first_token_s),
            (f"{at}.read_s", timeouts.read_s),
            (f"{at}.total_s", timeouts.total_s),
            ("pod_grace_s", settings.pod_grace_s),
        ]
        pairs = [*pairwise(chain)]
        if "whole_s" in timeouts.model_fields_set:
            pairs.append(((f"{at}.whole_s", timeouts.whole_s), (f"{at}.total_s", timeouts.total_s)))
        for (inner, short), (outer, long) in pairs:
            shown = f"{outer} is {long:g} s and {inner} is {short:g} s"
            if long <= short:
                yield Finding(Level.ERROR, inner, f"{shown}; {outer} must be the longer one")
            elif long < short * ROOM:
                yield Finding(Level.WARNING, inner, f"{shown}; give {outer} at least {short * ROOM:g} s")


def _drain(settings: Settings) -> Iterator[Finding]:
    drain, grace = settings.worker.drain_s, settings.pod_grace_s
    if drain >= grace:
        yield Finding(
            Level.ERROR,
            "worker.drain_s",
            f"is {drain:g} s, but a pod is killed after pod_grace_s, {grace:g} s; make it at most {grace - STOP_S:g} s",
        )
    elif drain + STOP_S > grace:
        yield Finding(
            Level.WARNING,
            "worker.drain_s",
            f"leaves less than {STOP_S:g} s of pod_grace_s for the rest of a stop; set at most {grace - STOP_S:g} s",
        )
    longest = max((deployment.timeouts.total_s for deployment in settings.deployments.values()), default=0.0)
    if settings.kafka_servers and drain < longest:
        yield Finding(
            Level.WARNING,
            "worker.drain_s",
            f"is {drain:g} s while a call may take {longest:g} s; a deploy cuts longer ones, and they are paid twice",
        )


def _cluster(settings: Settings) -> Iterator[Finding]:
    if settings.board.ca_file is not None and not settings.redis.startswith("rediss:"):
        yield Finding(Level.ERROR, "board.ca_file", "is for a redis with TLS; write rediss:// there, or take this out")
    if not settings.kafka_servers:
        return
    if settings.kafka.replication == 1:
        yield Finding(
            Level.WARNING,
            "kafka.replication",
            "is 1: a job is lost with its broker; set 3 where there are three brokers",
        )
    if settings.kafka.security in ("plaintext", "sasl_plaintext"):
        yield Finding(Level.WARNING, "kafka.security", f"is {settings.kafka.security}: prompts travel unencrypted")
    if settings.is_embedded:
        yield Finding(
            Level.WARNING, "redis", "is embedded, on this machine only; processes elsewhere need a redis:// URL"
        )
    if settings.objects.startswith("file:"):
        yield Finding(
            Level.WARNING, "objects", "is a folder; processes on other machines need s3://, gs:// or az:// instead"
        )
    longest = max(tenant.deadline_s for tenant in settings.tenants.values())
    if settings.kafka.retention_s < longest + DAY_S:
        yield Finding(
            Level.ERROR,
            "kafka.retention_s",
            f"must be the longest deadline_s of a tenant and a day more, {longest + DAY_S:g} s, or jobs vanish unrun",
        )


def _routes(settings: Settings) -> Iterator[Finding]:
    if not settings.deployments:
        yield Finding(Level.WARNING, "deployments", "there are none, so every job is refused; name at least one")
        return
    tiers = {found.tier for found in settings.deployments.values() if Modality.TEXT in found.modalities}
    for tier in Tier:
        if tiers and tier not in tiers:
            yield Finding(
                Level.WARNING,
                "deployments",
                f"none has the tier {tier}, so auto has no choice and auto:{tier} is refused",
            )


def _ports(settings: Settings) -> Iterator[Finding]:
    ports: dict[int, str] = {}
    for where, port in (
        ("http.port", settings.http.port),
        ("worker.health_port", settings.worker.health_port),
        ("sweeper.health_port", settings.sweeper.health_port),
        ("inbox.health_port", settings.inbox.health_port),
    ):
        if port and port in ports:
            yield Finding(Level.WARNING, where, f"is {port}, as is {ports[port]}; on one machine they need one each")
        ports[port] = where


def _deployment(settings: Settings, name: str, price: Price | None) -> Iterator[Finding]:
    deployment = settings.deployments[name]
    at = f"deployments.{name}"
    if deployment.max_output >= deployment.window:
        yield Finding(
            Level.ERROR,
            f"{at}.max_output",
            f"is {deployment.max_output}, which leaves no room for a prompt in a window of {deployment.window}",
        )
    if deployment.backend in ("bedrock", "sagemaker") and deployment.url:
        yield Finding(Level.WARNING, f"{at}.url", f"is not used by {deployment.backend}")
    if deployment.sagemaker is not None and deployment.sagemaker.realtime and deployment.timeouts.total_s > SYNC_S:
        yield Finding(
            Level.WARNING,
            f"{at}.timeouts.total_s",
            f"is {deployment.timeouts.total_s:g} s, but a synchronous endpoint gives up after {SYNC_S:g} s; set that,"
            " or use an asynchronous one for what takes longer",
        )
    yield from _price(settings, f"{at}.price", deployment, price)
    yield from _fallback(settings, name, deployment)


def _fallback(settings: Settings, name: str, deployment: DeploymentSettings) -> Iterator[Finding]:
    """Lists do not lead on from one to the next, so that two deployments may well stand in for each other."""
    seen: set[str] = set()
    for index, each in enumerate(deployment.fallback):
        at, target = f"deployments.{name}.fallback[{index}]", each.deployment
        if target not in settings.deployments:
            yield Finding(Level.ERROR, at, f"names {target}, which is no deployment; {_near(target, settings)}")
            continue
        if target == name:
            yield Finding(Level.ERROR, at, "names the deployment itself; it is tried again anyway")
        if target in seen:
            yield Finding(Level.ERROR, at, f"names {target} a second time; keep one")
        seen.add(target)
        other = settings.deployments[target]
        lacks = [str(each) for each in deployment.modalities if each not in other.modalities]
        lacks += ["tools"] if deployment.tools and not other.tools else []
        lacks += ["prefill"] if deployment.prefill and not other.prefill else []
        if lacks:
            yield Finding(Level.WARNING, at, f"{target} does not do {', '.join(lacks)}: such jobs pass it by")
        if other.window < deployment.window:
            yield Finding(
                Level.WARNING,
                at,
                f"{target} has a window of {other.window} and {name} of {deployment.window}: longer jobs pass it by",
            )


def _price(settings: Settings, where: str, deployment: DeploymentSettings, price: Price | None) -> Iterator[Finding]:
    if price is None:
        yield Finding(Level.WARNING, where, f"is unknown, so its dollars are null; {_price_hint(settings, deployment)}")
        return
    if set(deployment.modalities) <= WITH_UNITS and BY_UNIT & price.per_million.keys():
        return
    needed = [Meter.INPUT]
    if not set(deployment.modalities) <= WITHOUT_OUTPUT:
        needed.append(Meter.OUTPUT)
    ships = deployment.bedrock is not None and deployment.bedrock.shipping is not None
    if ships and price.served("batch") is None:
        yield Finding(
            Level.WARNING, where, "has no tier batch, so the dollars of batch jobs are null; add it to the book"
        )
    missing = [meter for meter in needed if meter not in price.per_million]
    if missing:
        yield Finding(Level.WARNING, where, f"has no {' and no '.join(missing)}, so its dollars are null; add it")


def _price_hint(settings: Settings, deployment: DeploymentSettings) -> str:
    names = list(settings.price_book.prices)
    if deployment.price is None or deployment.price.name is None:
        if deployment.model in settings.price_book.prices:
            return f"the price book has `price: {deployment.model}`"
        return 'write price: {input: "0.15", output: "0.60"}, in dollars per million tokens ("0" if it is free)'
    near = get_close_matches(deployment.price.name, names, n=1, cutoff=0.6)
    known = f"did you mean {near[0]}?" if near else f"known are {', '.join(names[:10])}"
    return f"the price book has no {deployment.price.name}; {known}"


def _tenant(settings: Settings, name: str, tenant: TenantSettings, unpriced: Sequence[str]) -> Iterator[Finding]:
    at = f"tenants.{name}"
    if tenant.result_ttl_s > tenant.max_result_ttl_s:
        yield Finding(
            Level.ERROR,
            f"{at}.result_ttl_s",
            f"is {tenant.result_ttl_s:g} s, above max_result_ttl_s, {tenant.max_result_ttl_s:g} s; change one of them",
        )
    yield from _allowed(settings, at, tenant)
    yield from _aliases(settings, at, tenant)
    for target in tenant.model_limits:
        if target not in settings.deployments:
            yield Finding(Level.ERROR, f"{at}.model_limits.{target}", f"is no deployment; {_near(target, settings)}")
    yield from _budget(at, tenant, unpriced)


def _allowed(settings: Settings, at: str, tenant: TenantSettings) -> Iterator[Finding]:
    if tenant.deployments is None:
        return
    if not tenant.deployments:
        yield Finding(
            Level.WARNING, f"{at}.deployments", "is empty, so every job is refused; leave it out to allow all"
        )
    for target in tenant.deployments:
        if target not in settings.deployments:
            yield Finding(
                Level.ERROR, f"{at}.deployments", f"names {target}, which is no deployment; {_near(target, settings)}"
            )


def _aliases(settings: Settings, at: str, tenant: TenantSettings) -> Iterator[Finding]:
    for alias, target in tenant.aliases.items():
        where = f"{at}.aliases.{alias}"
        if alias in settings.deployments:
            yield Finding(Level.WARNING, where, "hides the deployment of the same name; give the alias another one")
        if target in AUTO:
            continue
        if target not in settings.deployments:
            yield Finding(Level.ERROR, where, f"points to {target}, which is no deployment; {_near(target, settings)}")
        elif tenant.deployments is not None and target not in tenant.deployments:
            yield Finding(Level.ERROR, where, f"points to {target}, which is not among {at}.deployments; add it there")


def _budget(at: str, tenant: TenantSettings, unpriced: Sequence[str]) -> Iterator[Finding]:
    uncounted = [name for name in unpriced if tenant.deployments is None or name in tenant.deployments]
    budgets = {"limits": tenant.limits} | {f"key_limits.{name}": limits for name, limits in tenant.key_limits.items()}
    for where, limits in budgets.items():
        if limits.usd_per_month is not None and uncounted:
            yield Finding(
                Level.WARNING,
                f"{at}.{where}.usd_per_month",
                f"cannot count what has no price: {', '.join(uncounted[:5])}; give it one",
            )


def _near(target: str, settings: Settings) -> str:
    names = [*settings.deployments, *AUTO]
    near = get_close_matches(target, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(list(settings.deployments)[:10]) or 'none'}"
