"""Opens what the settings ask for, and closes it in reverse order. The only place that names an adapter."""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, fields
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.settings import Settings, SettingsError
from policies.conditions import Conditions
from policies.deployments import Deployment, SageMaker
from policies.keys import ApiKeys
from policies.quota import Quotas, Scopes, Shadow
from policies.retries import Failure
from policies.scripts import Scripts
from policies.tenants import Tenant
from router import topics
from router.batches import CREATED, Batches
from router.board import Board
from router.epoch import Epoch
from router.files import Files
from router.job import Job, JobState
from router.keyring import Keyring
from router.log import Log, Record
from router.log_streams import StreamsLog
from router.machine_shares import MachineShares
from router.outbox import Outbox
from router.payloads import Payloads
from router.queues import Queues
from router.rebuild import Rebuild
from router.replies import Replies
from router.wakeups import Wakeups
from router.webhooks import CHANNEL, Webhooks

if TYPE_CHECKING:  # each process loads what it runs, and nothing else: it counts when four of them start at once
    from consumers.attempt import Attempt
    from consumers.aws.sagemaker_instances import Instances
    from consumers.aws.sagemaker_preflight import Preflight
    from consumers.aws.sagemaker_scaling import Scaling
    from consumers.backend import Backend
    from consumers.collector import Collector
    from consumers.lanes import Lanes
    from consumers.rebuilder import Rebuilder
    from consumers.retrier import Retrier
    from consumers.sweeper import Sweeper
    from consumers.webhook_sender import WebhookSender
    from consumers.worker import Worker
    from gateway.accept import Desk
    from gateway.batch_driver import Driver
    from gateway.inbox import Inbox
    from gateway.services import Services
    from router.lessons import Lessons
    from router.shares import Shares
    from router.sharing import Sharing
    from router.traces import Traces

log = structlog.get_logger(__name__)

CONNECTIONS = 64
ONE_MORE_DAY_S = 86_400.0
GROUP = "workers"


@dataclass(frozen=True, slots=True)
class Core:
    """What every process has open."""

    settings: Settings
    redis: Redis
    scripts: Scripts
    log: Log
    board: Board
    epoch: Epoch
    quotas: Quotas
    conditions: Conditions
    payloads: Payloads
    files: Files
    batches: Batches
    outbox: Outbox
    webhooks: Webhooks
    replies: Replies
    keys: ApiKeys
    keyring: Keyring
    tenants: dict[str, Tenant]
    deployments: dict[str, Deployment]
    trim: Callable[[], Awaitable[None]] | None
    traces: "Traces | None"

    @property
    def lessons(self) -> "Lessons":
        """What traffic teaches the router: for the processes that have numpy loaded anyway."""
        from router.lessons import Lessons

        return Lessons(self.scripts)


@asynccontextmanager
async def core(settings: Settings, *, process: str = "", gather_s: float = 0.0) -> AsyncGenerator[Core]:
    """Redis, the log and all that stands on them. `settings.redis` must be a URL; `gather_s` as in `Scripts`.

    A named `process` is traced, where the settings say so.
    """
    async with AsyncExitStack() as opened:
        redis = await opened.enter_async_context(open_redis(settings))
        log = await opened.enter_async_context(open_log(settings, redis))
        traces = None
        if process and settings.traces.url:
            traces = await opened.enter_async_context(_traces(settings, process))
        scripts = Scripts(redis, replicas=settings.board.replicas, gather_s=gather_s)
        deployments = settings.deployments_by_name()
        board = Board(scripts, tombstone_s=settings.kafka.retention_s + ONE_MORE_DAY_S)
        quotas, keys = Quotas(scripts), ApiKeys(redis)
        payloads = Payloads.open(_objects_url(settings))
        files = settings.files
        tenants = settings.tenants_by_name()
        webhooks = Webhooks(scripts, tenants, most_waiting=settings.webhooks.max_waiting)
        replies = Replies(board, log, payloads)
        yield Core(
            settings=settings,
            redis=redis,
            scripts=scripts,
            log=log,
            board=board,
            epoch=Epoch(board),
            quotas=quotas,
            conditions=Conditions(
                scripts, settings.worker.cooldown_rule(), time.monotonic, settings.worker.retry_share
            ),
            payloads=payloads,
            files=Files(scripts, payloads, most_bytes=files.max_stored, ttl_s=files.ttl_s),
            batches=Batches(scripts, most_unfinished=settings.batches.max_unfinished),
            outbox=Outbox(board, log, quotas, deployments, webhooks, replies),
            webhooks=webhooks,
            keys=keys,
            keyring=Keyring(keys, log),
            replies=replies,
            tenants=tenants,
            deployments=deployments,
            trim=_trim(log, settings) if isinstance(log, StreamsLog) else None,
            traces=traces,
        )


def _traces(settings: Settings, process: str) -> "AbstractAsyncContextManager[Traces]":
    with _with_extra("otel", what="traces.url"):
        from router.traces import Traces

    log = "kafka" if settings.kafka_servers else "redis_streams"
    return Traces.exported(settings.traces.url, process=process, share=settings.traces.share, log=log)


def open_redis(settings: Settings) -> Redis:
    """A client whose calls end within the settings' time-out. Closes itself as a context manager."""
    if settings.is_embedded:
        raise SettingsError("redis: embedded is for `pointsman up`, which starts it. Give a URL: redis://host:6379/0")
    timeout, authorities = settings.board.socket_timeout_s, settings.board.ca_file
    tls: dict[str, Any] = {}
    if authorities is not None and settings.redis.startswith("rediss:"):
        _trusting(authorities, "board.ca_file")
        tls = {"ssl_ca_certs": str(authorities)}
    pool = BlockingConnectionPool.from_url(
        settings.redis,
        max_connections=CONNECTIONS,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 1),  # for a connection that was closed meanwhile
        **tls,
    )
    return Redis.from_pool(pool)


async def say_what_is_not_durable(core: Core) -> None:
    """`board.durability: fsync` rests on the server's own settings; some servers do not show them."""
    if core.settings.board.durability != "fsync":
        return
    try:
        found = await core.redis.config_get("append*")
    except RedisError:
        return
    kept = {_text(name): _text(value) for name, value in found.items()}
    if kept.get("appendonly") != "yes" or kept.get("appendfsync") != "always":
        log.warning(
            "board_not_durable",
            appendonly=kept.get("appendonly"),
            appendfsync=kept.get("appendfsync"),
            fix="set appendonly yes and appendfsync always on the server, or board.durability to replicas:N",
        )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def open_log(settings: Settings, redis: Redis) -> AbstractAsyncContextManager[Log]:
    """The log that the settings name."""
    kafka = settings.kafka
    if not settings.kafka_servers:
        return nullcontext(StreamsLog(redis, prefix=kafka.prefix))
    from router.log_kafka import KafkaLog, Security  # the embedded start needs no Kafka client

    security = None
    if kafka.security != "plaintext":
        security = Security(
            protocol=kafka.security.upper(),
            ssl_context=_trusting(kafka.ca_file, "kafka.ca_file") if kafka.security.endswith("ssl") else None,
            mechanism=kafka.mechanism,
            username=kafka.username or None,
            password=kafka.password.get_secret_value() if kafka.password else None,
        )
    return KafkaLog.connect(
        ",".join(settings.kafka_servers),
        prefix=kafka.prefix,
        partitions=kafka.partitions,
        replication=kafka.replication,
        retention_s=kafka.retention_s,
        hold_s=settings.http.accept_wait_s,
        session_s=kafka.session_s,
        security=security,
    )


def _trusting(authorities: Path | None, setting: str) -> ssl.SSLContext:
    """Of a client that trusts these certificates, or the system's. Raises `SettingsError`."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:  # ssl's own errors are such as well
        raise SettingsError(f"{setting}: cannot be used: {error.strerror or 'it holds no certificates'}") from error


def wanted_topics(core: Core) -> tuple[str, ...]:
    """Every topic that must exist."""
    replies = {topic for tenant in core.tenants.values() for topic in tenant.reply_topics}
    return (*topics.all_topics(core.deployments), *sorted(replies))


def services(core: Core, wakeups: Wakeups) -> "Services":
    """What the HTTP process works with."""
    from consumers.meters import JobMeters
    from gateway.cancel import Cancel
    from gateway.delivery import Delivery
    from gateway.metrics import Metrics
    from gateway.quotes import Quotes
    from gateway.reading import Inflight
    from gateway.services import Services

    http = core.settings.http
    sharing = router_state(core)
    inflight = Inflight(most_requests=http.max_in_flight, most_bytes=http.max_in_flight_bytes)
    delivery = Delivery(core.board, core.epoch, wakeups, core.payloads, most=http.max_in_flight)
    metrics = Metrics(inflight, lambda: delivery.waiting, sharing.shares)
    sharing.shares.decided = metrics.routed
    return Services(
        keys=core.keys,
        desk=desk(core, sharing.shares),
        board=core.board,
        epoch=core.epoch,
        cancel=Cancel(core.board, core.epoch, core.outbox, JobMeters(metrics.registry).ended),
        delivery=delivery,
        log=core.log,
        tenants=core.tenants,
        deployments=core.deployments,
        http=http,
        lessons=core.lessons,
        files=core.files,
        file_settings=core.settings.files,
        batches=core.batches,
        batch_settings=core.settings.batches,
        inflight=inflight,
        metrics=metrics,
        quotes=Quotes(Queues(Scripts(core.redis))),
        sharing=sharing,
    )


def router_state(core: Core) -> "Sharing":
    """What a process that accepts jobs knows for routing, and shares with the others."""
    from router.shares import Shares
    from router.sharing import Sharing
    from router.versions import Versions

    return Sharing(core.scripts, Versions(core.scripts), Shares.of_shipped_weights())


def desk(core: Core, shares: "Shares") -> "Desk":
    """Accepts jobs, whichever door they come through."""
    from gateway.accept import Desk
    from gateway.attached import Attached
    from gateway.traced_desk import TracedDesk

    plain = Desk(
        board=core.board,
        epoch=core.epoch,
        log=core.log,
        quotas=core.quotas,
        payloads=core.payloads,
        tenants=core.tenants,
        deployments=core.deployments,
        shares=shares,
        attached=Attached(core.files, core.settings.http.max_body),
        allowed_hosts=core.settings.outbound.allowed_hosts,
    )
    if core.traces is None:
        return plain
    return TracedDesk(**{each.name: getattr(plain, each.name) for each in fields(plain)}, traces=core.traces)


def inbox(core: Core, registry: CollectorRegistry, shares: "Shares") -> "Inbox":
    """The door for records."""
    from gateway.inbox import Inbox
    from gateway.metrics import InboxMetrics

    settings = core.settings.inbox
    return Inbox(
        log=core.log,
        desk=desk(core, shares),
        keys=core.keys,
        tenants=core.tenants,
        replies=core.replies,
        metrics=InboxMetrics(registry),
        at_once=settings.at_once,
        max_body=core.settings.http.max_body,
        trusts_tenants=settings.trust_tenants,
    )


def batch_driver(
    core: Core, *, ended: "Callable[[Job, JobState], None]" = lambda job, state: None, look_s: float = 1.0
) -> "Driver":
    """A driver of all tenants' batches. `ended` hears of jobs that it ends, `look_s` is how often it looks anyway."""
    from gateway.batch_course import Bounds, Tools
    from gateway.batch_driver import Driver
    from gateway.cancel import Cancel
    from gateway.delivery import Delivery

    settings, wakeups, sharing = core.settings, Wakeups(core.redis, role="batches"), router_state(core)
    tools = Tools(
        batches=core.batches,
        board=core.board,
        desk=desk(core, sharing.shares),
        outbox=core.outbox,
        cancel=Cancel(core.board, core.epoch, core.outbox, ended),
        payloads=core.payloads,
        delivery=Delivery(core.board, core.epoch, wakeups, core.payloads, most=1),
        tenants=core.tenants,
        deployments=core.deployments,
        bounds=Bounds(
            most_lines=settings.batches.max_lines,
            longest_line=settings.http.max_body,
            most_open=settings.batches.open_lines,
            file_ttl_s=settings.files.ttl_s,
        ),
    )
    created, beside = Wakeups(core.redis, channel=CREATED), (core.epoch, sharing)
    return Driver(tools, wakeups, created, tuple(core.tenants), beside=beside, look_s=look_s)


def worker(core: Core, backend: "Backend", name: str, registry: CollectorRegistry) -> "Worker":
    """A worker for one backend."""
    from consumers.meters import LogMeters, WorkerMeters
    from consumers.worker import Bounds, Worker

    settings, meters = core.settings.worker, WorkerMeters(registry)
    LogMeters(registry, core.log.counts)
    for each in core.deployments.values():
        if each.backend == name:
            meters.alarmed(each.name, False)
    return Worker(
        log=core.log,
        topics=topics.for_backend(name, core.deployments),
        group=f"{GROUP}.{name}",
        attempt=attempt(
            core, backend, registry, shadowed=meters.shadowed, failed=meters.failed, alarmed=meters.alarmed
        ),
        deployments=core.deployments,
        bounds=Bounds(
            look_ahead=settings.look_ahead,
            look_ahead_bytes=settings.look_ahead_bytes,
            slots=settings.concurrency,
            drain_s=settings.drain_s,
        ),
        meters=meters,
        queues=Queues(Scripts(core.redis)),
    )


def attempt(
    core: Core,
    backend: "Backend",
    registry: CollectorRegistry,
    *,
    shadowed: "Callable[[Sequence[Shadow]], None]" = lambda _: None,
    failed: "Callable[[str, Failure], None]" = lambda deployment, failure: None,
    alarmed: "Callable[[str, bool], None]" = lambda deployment, stands_still: None,
) -> "Attempt":
    """What runs one delivery of a job, and counts in the registry.

    `shadowed` hears of limits that would have refused it, `failed` of the deployment and failure of each bad call,
    `alarmed` of a deployment that can do no job at all, and when it can again.
    """
    from consumers.attempt import Attempt
    from consumers.attempt_meters import AttemptMeters
    from consumers.learning import Learning
    from consumers.onward import Onward
    from consumers.shadows import Shadows

    settings = core.settings.worker
    return Attempt(
        board=core.board,
        epoch=core.epoch,
        outbox=core.outbox,
        quotas=core.quotas,
        payloads=core.payloads,
        wakeups=Wakeups(core.redis, role="worker"),
        backend=backend,
        deployments=core.deployments,
        tenants=core.tenants,
        learning=Learning(
            core.lessons,
            core.tenants,
            Shadows(core.board, core.log, core.lessons, core.tenants, core.deployments),
        ),
        onward=Onward(
            deployments=core.deployments,
            retries=settings.retry_rule(),
            conditions=core.conditions,
            jitter=random.random,
            clock=time.monotonic,
            counted=failed,
            alarmed=alarmed,
        ),
        lease_s=settings.lease_s,
        most_deliveries=settings.max_deliveries,
        shadowed=shadowed,
        meters=AttemptMeters(registry, core.tenants),
        traces=core.traces,
    )


@asynccontextmanager
async def open_backend(
    core: Core, name: str, registry: CollectorRegistry, *, calls: bool = True
) -> AsyncGenerator["Backend"]:
    """The backend of that name. Only a process that needs a client library loads it: a collector `calls` nobody."""
    settings = core.settings
    match name:
        case "gpu":
            from consumers.gpu.backend_gpu import GpuBackend
            from consumers.gpu.fleet_meters import FleetMeters
            from consumers.gpu.machine_bills import MachineBills
            from consumers.gpu.places import Places

            secrets = {deployment: settings.secret_for(deployment) for deployment in settings.deployments}
            scripts, meters = Scripts(core.redis), FleetMeters(registry)
            ours = [each for each in core.deployments.values() if each.backend == name]
            async with GpuBackend.open(
                secrets,
                places=Places(scripts, hold_s=settings.worker.lease_s * 2),
                deployments=ours,
                meters=meters,
                bills=MachineBills(scripts, partial(_append_bill, core), meters, waits=partial(_is_lost, core)),
            ) as backend:
                yield backend
        case "echo":
            from consumers.backend_echo import EchoBackend

            yield EchoBackend()
        case "sagemaker":
            with _with_extra("sagemaker"):
                from consumers.aws.backend_sagemaker import SageMakerBackend
            from consumers.aws.sagemaker_meters import SageMakerMeters

            sagemaker = SageMakerMeters(registry)
            instances = _instances(core, registry)
            async with SageMakerBackend.open(
                core.deployments, tuple(core.tenants), core.scripts, sagemaker, instances
            ) as taking:
                yield taking
        case "bedrock" if not calls:
            theirs = {each.name: each for each in core.deployments.values() if each.backend == name}
            async with _shipping(core, None, theirs) as shipping:
                yield shipping
        case "bedrock":
            with _with_extra("bedrock"):
                from consumers.aws.backend_bedrock import BedrockBackend

            theirs = {each.name: each for each in core.deployments.values() if each.backend == name}
            async with BedrockBackend.open(theirs) as calling, _shipping(core, calling, theirs) as shipping:
                yield shipping
        case _:
            raise SettingsError(f"there is no backend {name!r} here; there are gpu, bedrock, sagemaker and echo")


async def gpu_troubles(settings: Settings) -> list[tuple[str, str]]:
    """What is wrong with the servers of the deployments on `gpu`, by deployment; after five seconds at most."""
    from consumers.gpu.backend_gpu import GpuBackend

    ours = {name: each for name, each in settings.deployments_by_name().items() if each.backend == "gpu"}
    async with GpuBackend.open({name: settings.secret_for(name) for name in ours}) as backend:
        found = await asyncio.gather(*(backend.ping(each) for each in ours.values()))
    troubles = zip(ours, found, strict=True)
    return [(name, trouble.removeprefix(f"{name}: ")) for name, trouble in troubles if trouble is not None]


async def bedrock_troubles(deployments: dict[str, Deployment]) -> list[tuple[str, str]]:
    """What is wrong with models of Bedrock, by deployment: one call to each, and nothing that is dear.

    Raises `SettingsError` without litellm.
    """
    with _with_extra("bedrock"):
        from consumers.aws.backend_bedrock import BedrockBackend
        from consumers.aws.videos import trouble

    films = {name: each for name, each in deployments.items() if each.bedrock is not None and each.bedrock.videos}
    found = [(name, await asyncio.to_thread(trouble, each)) for name, each in films.items()]
    async with BedrockBackend.open(deployments) as backend:
        found += [(name, await backend.ping(each)) for name, each in deployments.items() if name not in films]
    return [(name, trouble) for name, trouble in found if trouble is not None]


@asynccontextmanager
async def _shipping(core: Core, live: "Backend | None", theirs: Mapping[str, Deployment]) -> AsyncGenerator["Backend"]:
    """In front of the live backend, where jobs of any deployment may go out as batch jobs, or make videos."""
    if live is not None and not any(each.is_answered_later for each in theirs.values()):
        yield live
        return
    with _with_extra("bedrock"):
        from consumers.asked_jobs import AskedJobs
        from consumers.aws.backend_shipping import ShippingBackend

    asked = AskedJobs(core.board, core.payloads)
    async with ShippingBackend.open(live, core.scripts, asked, theirs) as backend:
        yield backend


def _is_lost(core: Core) -> bool:
    return core.epoch.fault is not None


async def _append_bill(core: Core, id: str, record: str) -> None:
    await core.log.append(topics.CHARGES, Record(record.encode(), {"version": "1", "id": id}))
    await MachineShares(core.scripts).add(record)


def _instances(core: Core, registry: CollectorRegistry) -> "dict[str, Instances]":
    """Of the SageMaker deployments whose instances have a price."""
    from consumers.aws.sagemaker_instances import KNOWN_S, Instances
    from consumers.aws.sagemaker_patience import over_after
    from consumers.gpu.fleet_meters import FleetMeters
    from consumers.gpu.machine_bills import MachineBills
    from consumers.gpu.places import Places

    scripts = Scripts(core.redis)
    bills = MachineBills(scripts, partial(_append_bill, core), FleetMeters(registry), waits=partial(_is_lost, core))
    found = {}
    for name, deployment in core.deployments.items():
        place = deployment.sagemaker
        if place is not None and place.usd_per_hour is not None:
            hold_s = over_after(place.request_ttl_s, place.invocation_timeout_s)
            places = Places(scripts, hold_s=hold_s)
            lag_s = None if place.is_realtime else place.invocation_timeout_s + KNOWN_S
            found[name] = Instances(name, place.usd_per_hour, places, bills, lag_s=lag_s)
    return found


def preflight(deployment: Deployment, place: SageMaker) -> "Preflight":
    """Looks at one SageMaker endpoint."""
    with _with_extra("sagemaker"):
        from consumers.aws.sagemaker_clients import AwsClients
        from consumers.aws.sagemaker_preflight import Preflight

    return Preflight(deployment, place, partial(AwsClients().of, place))


def apply_scaling(plan: "Scaling", place: SageMaker) -> None:
    """Tell AWS how an endpoint scales. Raises `SettingsError` where it refuses."""
    with _with_extra("sagemaker"):
        from consumers.aws.sagemaker_clients import AwsClients, AwsError
        from consumers.aws.sagemaker_scaler import apply

    try:
        apply(plan, partial(AwsClients().of, place))
    except AwsError as error:
        raise SettingsError(str(error)) from error


@contextmanager
def _with_extra(name: str, *, what: str = "") -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{what or f'the backend {name}'} needs {error.name}, which is not here: "
            f"pip install '.[{name}]' in a checkout of Pointsman"
        ) from error


def lanes(core: Core) -> "Lanes":
    """Counts what waits in each lane."""
    from consumers.lanes import Lanes

    backends = sorted({deployment.backend for deployment in core.deployments.values()})
    groups = {
        topic: f"{GROUP}.{backend}" for backend in backends for topic in topics.for_backend(backend, core.deployments)
    }
    return Lanes(core.log, Queues(Scripts(core.redis)), groups)


def sweeper(core: Core, lanes: "Lanes", registry: CollectorRegistry) -> "Sweeper":
    """A sweeper for all tenants."""
    from consumers.meters import JobMeters
    from consumers.sweeper import Sweeper
    from consumers.sweeper_meters import DeploymentMeters, LaneMeters

    LaneMeters(registry, lanes)
    deployments = DeploymentMeters(registry, core.conditions, core.deployments)

    async def look() -> None:
        await deployments.look()
        await lanes.count()

    return Sweeper(
        board=core.board,
        epoch=core.epoch,
        outbox=core.outbox,
        payloads=core.payloads,
        tenants=tuple(core.tenants),
        lease_s=core.settings.worker.lease_s,
        limited=Scopes(core.tenants, core.deployments).all(),
        trim=core.trim,
        look=look,
        ended=JobMeters(registry).ended,
        every_s=core.settings.sweeper.interval_s,
        unpublished_s=3 * core.settings.http.accept_wait_s,
    )


def collector(core: Core, backend: "Backend", name: str, registry: CollectorRegistry) -> "Collector":
    """Concludes what a backend works on while nobody waits."""
    from consumers.collector import Collector

    queues = Queues(Scripts(core.redis))
    return Collector(core.log, attempt(core, backend, registry), name, tuple(core.tenants), core.epoch, queues=queues)


@asynccontextmanager
async def open_webhook_sender(core: Core, registry: CollectorRegistry) -> AsyncGenerator["WebhookSender"]:
    """Sends what is owed to all tenants' receivers."""
    from consumers.meters import WebhookMeters
    from consumers.outbound import Outbound
    from consumers.webhook_sender import Bounds, WebhookSender

    settings, outward = core.settings.webhooks, core.settings.outbound
    tls = _trusting(outward.ca_file, "outbound.ca_file") if outward.ca_file else None
    async with Outbound.open(outward.allowed_hosts, connections=settings.at_once, tls=tls) as outbound:
        yield WebhookSender(
            webhooks=core.webhooks,
            outbound=outbound,
            wakeups=Wakeups(core.redis, channel=CHANNEL),
            tenants=tuple(core.tenants),
            meters=WebhookMeters(registry),
            bounds=Bounds(settings.at_once, settings.per_tenant, settings.per_host, settings.timeout_s),
        )


def rebuild(core: Core) -> Rebuild:
    """Makes a lost board anew."""
    scopes = Scopes(core.tenants, core.deployments)
    return Rebuild(core.log, core.board, core.quotas, scopes, core.keyring, core.scripts)


def rebuilder(core: Core) -> "Rebuilder":
    """Does so by itself."""
    from consumers.rebuilder import Rebuilder

    return Rebuilder(core.epoch, rebuild(core))


def retriers(core: Core) -> "list[Retrier]":
    """One for each retry topic."""
    from consumers.retrier import Retrier

    return [Retrier(core.log, core.board, topic) for topic in topics.RETRIES]


def _objects_url(settings: Settings) -> str:
    if settings.objects == "file:":
        return f"file://{(settings.data / 'objects').resolve()}"
    return settings.objects


def _trim(log: StreamsLog, settings: Settings) -> Callable[[], Awaitable[None]]:
    async def trim() -> None:
        for topic in await log.topics():
            is_lane = topic.startswith("jobs.") and topic not in topics.FIXED
            kept_s = topics.kept_s(topic, settings.kafka.retention_s)
            if is_lane:
                await log.trim(topic, 0.0)
            elif isfinite(kept_s):
                await log.trim(topic, kept_s, unread_s=kept_s)

    return trim
