"""What an operator can set: one YAML file and POINTSMAN_* variables, read once into one frozen model."""

import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from annotated_types import Ge, Gt, Le
from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway import settings_env, settings_file
from gateway.settings_bedrock import BedrockSettings
from gateway.settings_file import Document, Fault, KeyPath, dotted
from gateway.settings_fleet import ReplicaSettings
from gateway.settings_sagemaker import SageMakerSettings
from gateway.settings_section import Section
from gateway.settings_values import (
    AliasName,
    Budget,
    DeploymentName,
    Dollars,
    DollarsEach,
    Durability,
    EndpointName,
    EventPattern,
    HostName,
    KeyName,
    Listed,
    LogUrl,
    Number,
    ObjectUrl,
    Origin,
    RedisUrl,
    Secret,
    ServerUrl,
    Size,
    TenantName,
    TopicName,
    TopicPrefix,
    WebhookUrl,
    Whole,
)
from policies import pricebook
from policies.cooldown import CooldownRule
from policies.deployments import SYNC_S, Deployment, Fallback, Limits, Modality, Tier, Timeouts
from policies.pricebook import PriceBook, PriceBookError
from policies.pricing import Meter, Price
from policies.retries import Failure, RetryRule
from policies.shipping import Shipping
from policies.tenants import Learn, RoutingPolicy, Tenant
from policies.webhooks import Endpoint, decoded

CONFIG_VARIABLE = "POINTSMAN_CONFIG"
SHOWN_FAULTS = 20
MIB = 1024 * 1024
DAY_S = 86_400.0


class SettingsError(Exception):
    """The settings cannot be used. Its text tells the operator where and what is expected, and holds no value."""

    def __init__(self, *faults: Fault | str) -> None:
        lines = [str(fault) for fault in faults]
        if len(lines) > SHOWN_FAULTS:
            lines[SHOWN_FAULTS:] = [f"... and {len(lines) - SHOWN_FAULTS} more"]
        super().__init__(
            lines[0] if len(lines) == 1 else "\n  ".join([f"{len(faults)} faults in the settings:", *lines])
        )


def load(path: Path | None, environ: Mapping[str, str]) -> "Settings":
    """The settings of the file at `path` (else at POINTSMAN_CONFIG, else none), changed by the variables.

    Raises `SettingsError` with everything that is wrong.
    """
    if path is None and environ.get(CONFIG_VARIABLE):
        path = Path(environ[CONFIG_VARIABLE])
    document = Document("settings") if path is None else settings_file.parse(_text(path), name=str(path))
    if document.faults:
        raise SettingsError(*document.faults)
    values = document.values
    if values.get("tenants") is None:
        values = {**values, "tenants": {"default": {}}}
    variables = settings_env.read(environ, Settings, values)
    for place, value in variables.values.items():
        values = _with(values, place, value)
    origins = {place: f"{document.name}:{line}" for place, line in document.lines.items()} | dict(variables.names)
    faults = list(variables.faults)
    try:
        settings = Settings.model_validate(values, context={"environ": environ})
    except ValidationError as error:
        faults += _faults(error, origins, document.name)
    if faults:
        raise SettingsError(*faults)
    return settings._with_prices(Path() if ("prices",) in variables.values or path is None else path.parent)


class KafkaSettings(Section):
    """How topics are made and how to log in."""

    partitions: Whole = Field(default=12, ge=1, le=1000)
    replication: Whole = Field(default=1, ge=1, le=7)
    retention_s: Number = Field(default=3 * DAY_S, ge=3600, le=365 * DAY_S)
    session_s: Number = Field(default=45.0, ge=6, le=300)
    prefix: TopicPrefix = ""
    security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str = Field(default="", max_length=200)
    password: Secret | None = None
    ca_file: Path | None = None

    @model_validator(mode="after")
    def _login_is_whole(self) -> Self:
        has_login = bool(self.username) and self.password is not None
        if self.security.startswith("sasl") and not has_login:
            raise ValueError(f"security {self.security} needs username and password")
        if not self.security.startswith("sasl") and (self.username or self.password is not None):
            raise ValueError("username and password need security sasl_ssl or sasl_plaintext")
        return self


class HttpSettings(Section):
    """The door. Bytes and seconds; what is over the two bounds of what is in flight gets a 503."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    port: Whole = Field(default=4000, ge=0, le=65535)
    max_body: Size = Field(default=32 * MIB, ge=1024, le=512 * MIB)
    max_in_flight: Whole = Field(default=4000, ge=1, le=100_000)
    max_in_flight_bytes: Size = Field(default=256 * MIB, ge=1 * MIB, le=65_536 * MIB)
    sync_wait_s: Number = Field(default=600.0, ge=1, le=3600)
    accept_wait_s: Number = Field(default=20.0, ge=1, le=120)
    drain_s: Number = Field(default=10.0, ge=0, le=7200)
    cors_origins: Annotated[tuple[Origin, ...], Listed] = Field(default=(), max_length=100)

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.max_body > self.max_in_flight_bytes:
            raise ValueError("max_in_flight_bytes must be at least max_body")
        return self


class BoardSettings(Section):
    """How safe a finish is before its record is done, how long Redis may take to answer, and who mends a lost board."""

    durability: Durability = "fsync"
    rebuild: Literal["manual", "auto"] = "manual"
    socket_timeout_s: Number = Field(default=5.0, ge=0.1, le=60)
    ca_file: Path | None = None

    @property
    def replicas(self) -> int:
        """How many replicas must confirm; 0 leaves it to the server's append-only file."""
        return int(self.durability.removeprefix("replicas:")) if self.durability.startswith("replicas:") else 0


class WorkerSettings(Section):
    """One worker process. `concurrency` is what it runs at once, `look_ahead` what it holds, running jobs included."""

    lease_s: Number = Field(default=20.0, ge=1, le=60)
    max_deliveries: Whole = Field(default=3, ge=1, le=20)
    look_ahead: Whole = Field(default=1000, ge=1, le=2000)
    look_ahead_bytes: Size = Field(default=64 * MIB, ge=1 * MIB, le=16_384 * MIB)
    concurrency: Whole = Field(default=64, ge=1, le=2000)
    drain_s: Number = Field(default=30.0, ge=0, le=7200)
    attempts: Whole = Field(default=4, ge=1, le=20)
    job_attempts: Whole = Field(default=8, ge=1, le=100)
    first_wait_s: Number = Field(default=0.5, gt=0, le=60)
    longest_wait_s: Number = Field(default=30.0, gt=0, le=600)
    patience_s: Number = Field(default=3.0, ge=0, le=600)
    retry_share: Number = Field(default=0.2, ge=0, le=1)
    cooldown_s: Number = Field(default=3.0, gt=0, le=600)
    longest_cooldown_s: Number = Field(default=20.0, gt=0, le=3600)
    health_host: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    health_port: Whole = Field(default=4001, ge=0, le=65535)

    def retry_rule(self) -> RetryRule:
        """How often and how patiently a call is tried again."""
        return RetryRule(
            attempts=self.attempts,
            first_wait=self.first_wait_s,
            longest_wait=self.longest_wait_s,
            most=max(self.attempts, self.job_attempts),
            patience=self.patience_s,
        )

    def cooldown_rule(self) -> CooldownRule:
        """How long a deployment that fails is left alone."""
        return CooldownRule(first=self.cooldown_s, longest=max(self.cooldown_s, self.longest_cooldown_s))


class FileSettings(Section):
    """What clients upload. Bytes of one file, of all files of a tenant, and seconds that they are kept."""

    max_bytes: Size = Field(default=512 * MIB, ge=1024, le=8192 * MIB)
    max_stored: Size = Field(default=102_400 * MIB, ge=1 * MIB, le=1_073_741_824 * MIB)
    ttl_s: Number = Field(default=30 * DAY_S, ge=3600, le=365 * DAY_S)


class BatchSettings(Section):
    """What a batch may be, and how many of its lines may be jobs at a time. Bytes of its input."""

    max_lines: Whole = Field(default=50_000, ge=1, le=1_000_000)
    max_bytes: Size = Field(default=200 * MIB, ge=1024, le=8192 * MIB)
    open_lines: Whole = Field(default=500, ge=1, le=100_000)
    max_unfinished: Whole = Field(default=1000, ge=1, le=100_000)


class SweeperSettings(Section):
    """The process that repairs what others left behind."""

    interval_s: Number = Field(default=1.0, ge=0.05, le=60)
    health_host: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    health_port: Whole = Field(default=4002, ge=0, le=65535)


class RoutingSettings(Section):
    """What `auto` does where both tiers can do a job: at most so much of it goes to heavy, in percent of the calls, and
    with `mean_usd` only so much that a call is expected to cost that on average."""

    heavy_percent: Number = Field(default=20.0, ge=0, le=100)
    mean_usd: Budget = None
    effort_percent: Number = Field(default=20.0, ge=0, le=100)
    learn: Learn = Learn.FEATURES
    lessons: Whole = Field(default=5_000, ge=0, le=1_000_000)
    escalate: bool = False
    shadow_percent: Number = Field(default=0.0, ge=0, le=100)
    shadow_usd_per_day: Dollars = Decimal(1)


class TenantRoutingSettings(Section):
    """The same for one tenant; what is not there is as for all."""

    heavy_percent: Number | None = Field(default=None, ge=0, le=100)
    mean_usd: Budget = None
    effort_percent: Number | None = Field(default=None, ge=0, le=100)
    learn: Learn | None = None
    lessons: Whole | None = Field(default=None, ge=0, le=1_000_000)
    escalate: bool | None = None
    shadow_percent: Number | None = Field(default=None, ge=0, le=100)
    shadow_usd_per_day: Dollars | None = None


class LimitSettings(Section):
    """What may be used at most. A setting that is not there is no limit."""

    requests_per_minute: Number | None = Field(default=None, gt=0, le=1e9)
    tokens_per_minute: Number | None = Field(default=None, gt=0, le=1e12)
    concurrency: Whole | None = Field(default=None, ge=1, le=100_000)
    usd_per_month: Budget = None
    burst_s: Number = Field(default=60.0, gt=0, le=3600)
    tokens_per_day: Number | None = Field(default=None, ge=1, le=1e15)
    shadow: bool = False

    def limits(self) -> Limits:
        """The domain's value."""
        return Limits(**dict(self))


class DeploymentLimitSettings(LimitSettings):
    """The same, and how the provider counts tokens: for its quota, not for its price."""

    output_burndown: Number = Field(default=1.0, ge=1, le=100)
    cache_reads_count: bool = True


def _signing_keys(secret: Secret | None) -> tuple[bytes, ...]:
    """One, or while it is being changed two with a comma between them."""
    texts = secret.get_secret_value().split(",") if secret is not None else []
    return tuple(decoded(text.strip()) for text in texts)


class InboxSettings(Section):
    """The door for records on Kafka. `trust_tenants`: ACLs say who may write to it, so a record may say for whom."""

    trust_tenants: bool = False
    at_once: Whole = Field(default=64, ge=1, le=1000)
    health_host: str = Field(default="127.0.0.1", min_length=1, max_length=253)
    health_port: Whole = Field(default=4003, ge=0, le=65535)


class OutboundSettings(Section):
    """Requests to URLs that clients name. `allowed_hosts` may be on a private network and may speak http."""

    allowed_hosts: Annotated[tuple[HostName, ...], Listed] = Field(default=(), max_length=1000)
    ca_file: Path | None = None


class WebhookSettings(Section):
    """How the sweepers send webhooks; seconds, and how many at once from one process, of a tenant, to a host."""

    timeout_s: Number = Field(default=15.0, ge=1, le=60)
    at_once: Whole = Field(default=64, ge=1, le=1000)
    per_tenant: Whole = Field(default=32, ge=1, le=1000)
    per_host: Whole = Field(default=8, ge=1, le=1000)
    max_waiting: Whole = Field(default=100_000, ge=1, le=10_000_000)


class TraceSettings(Section):
    """Where spans of OpenTelemetry go; nowhere without a `url`."""

    url: ServerUrl = ""
    share: Number = Field(default=1.0, ge=0, le=1)


class EndpointSettings(Section):
    """Where a tenant wants events sent. Signed with the tenant's secret where it has none of its own."""

    url: WebhookUrl = Field(max_length=2000)
    events: Annotated[tuple[EventPattern, ...], Listed] = Field(default=("*",), min_length=1, max_length=20)
    secret: Secret | None = None

    @model_validator(mode="after")
    def _secret_is_one(self) -> Self:
        _signing_keys(self.secret)
        return self


class TenantSettings(Section):
    """Who pays. `deployments` are the ones it may use; all of them when it is not there.

    Beside the limits of all of it there are those of its API keys, by their names, and those at single deployments.
    """

    limits: LimitSettings = LimitSettings()
    key_limits: Mapping[KeyName, LimitSettings] = Field(default_factory=dict, max_length=1000)
    model_limits: Mapping[DeploymentName, LimitSettings] = Field(default_factory=dict, max_length=500)
    deployments: Annotated[tuple[str, ...], Listed] | None = Field(default=None, max_length=500)
    aliases: Mapping[AliasName, str] = Field(default_factory=dict, max_length=1000)
    max_unfinished: Whole = Field(default=100_000, ge=1, le=10_000_000)
    max_in_class: Whole = Field(default=500, ge=1, le=100_000)
    weight: Number = Field(default=1.0, ge=0.01, le=1000)
    routing: TenantRoutingSettings = TenantRoutingSettings()
    deadline_s: Number = Field(default=DAY_S, ge=1, le=30 * DAY_S)
    result_ttl_s: Number = Field(default=DAY_S, ge=1, le=90 * DAY_S)
    max_result_ttl_s: Number = Field(default=7 * DAY_S, ge=1, le=90 * DAY_S)
    reruns: Literal["allow", "refuse"] = "allow"
    webhook_secret: Secret | None = None
    webhooks: Mapping[EndpointName, EndpointSettings] = Field(default_factory=dict, max_length=20)
    reply_topics: Annotated[tuple[TopicName, ...], Listed] = Field(default=(), max_length=100)

    @model_validator(mode="after")
    def _webhooks_are_signed(self) -> Self:
        if not _signing_keys(self.webhook_secret):
            unsigned = [name for name, endpoint in self.webhooks.items() if not _signing_keys(endpoint.secret)]
            if unsigned:
                raise ValueError(f"webhooks.{unsigned[0]} needs a secret, or the tenant a webhook_secret")
        return self


class TimeoutSettings(Section):
    """Seconds, for one call to a backend: each longer than the one before it."""

    connect_s: Number = Field(default=5.0, gt=0, le=120)
    first_token_s: Number = Field(default=60.0, gt=0, le=3600)
    read_s: Number = Field(default=90.0, gt=0, le=3600)
    total_s: Number = Field(default=300.0, gt=0, le=7200)
    first_token_per_1k_s: Number = Field(default=1.0, ge=0, le=600)
    hurried_first_token_s: Number = Field(default=10.0, gt=0, le=3600)
    hurried_read_s: Number = Field(default=20.0, gt=0, le=3600)
    whole_s: Number = Field(default=240.0, gt=0, le=7200)

    def timeouts(self) -> Timeouts:
        """The domain's value."""
        return Timeouts(**{name.removesuffix("_s"): value for name, value in self})


UNGUARDED = frozenset({Modality.IMAGE_GENERATION, Modality.VIDEO_GENERATION})  # nobody carries these for them


class PriceSettings(Section):
    """Dollars per million tokens or characters, for an image, for a second of audio or video.

    Or only `name`, an entry of the price book, which `price: NAME` is short for.
    """

    name: str | None = Field(default=None, min_length=1, max_length=200)
    input: Dollars | None = None
    output: Dollars | None = None
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None
    cache_write_1h: Dollars | None = None
    images: DollarsEach | None = None
    audio_seconds: DollarsEach | None = None
    characters: Dollars | None = None
    video_seconds: DollarsEach | None = None
    source: str = Field(default="settings", min_length=1, max_length=200)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.name is None) == (not self.rates()):
            raise ValueError("must be a name in the price book, or input and output in dollars per million tokens")
        return self

    def rates(self) -> dict[Meter, Decimal]:
        """What is priced here."""
        rates = {
            Meter.INPUT: self.input,
            Meter.OUTPUT: self.output,
            Meter.CACHE_READ: self.cache_read,
            Meter.CACHE_WRITE: self.cache_write,
            Meter.CACHE_WRITE_1H: self.cache_write_1h,
            Meter.IMAGES: self.images,
            Meter.AUDIO_SECONDS: self.audio_seconds,
            Meter.CHARACTERS: self.characters,
            Meter.VIDEO_SECONDS: self.video_seconds,
        }
        return {meter: rate for meter, rate in rates.items() if rate is not None}


def _price(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class MicrobatchSettings(Section):
    """Jobs that go out together: at `size`, or after `wait_s`."""

    size: Whole = Field(default=16, ge=1, le=1000)
    wait_s: Number = Field(default=0.01, ge=0, le=60)
    inputs: Whole = Field(default=256, ge=1, le=2048)


class FallbackSettings(Section):
    """Where jobs go on when their deployment fails; without `on` after any failure that another may not have."""

    deployment: DeploymentName
    on: Annotated[tuple[Failure, ...], Listed] | None = Field(default=None, min_length=1, max_length=len(Failure))

    def fallback(self) -> Fallback:
        """The domain's value."""
        return Fallback(self.deployment, None if self.on is None else frozenset(self.on))


def _fallback(value: object) -> object:
    return {"deployment": value} if isinstance(value, str) else value


class DeploymentSettings(Section):
    """One model on one backend. `fallback` is in the order in which it is gone through."""

    backend: Literal["gpu", "echo", "bedrock", "sagemaker"]
    model: str = Field(min_length=1, max_length=300)
    tier: Tier
    url: ServerUrl = Field(default="", max_length=2000)
    api_key: Secret | None = None
    modalities: Annotated[tuple[Modality, ...], Listed] = Field(
        default=(Modality.TEXT,), min_length=1, max_length=len(Modality)
    )
    window: Whole = Field(default=8192, ge=16, le=100_000_000)
    max_output: Whole = Field(default=1024, ge=1, le=10_000_000)
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    typical_s: Number | None = Field(default=None, gt=0, le=7200)
    limits: DeploymentLimitSettings = DeploymentLimitSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    price: Annotated[PriceSettings | None, BeforeValidator(_price)] = None
    microbatch: MicrobatchSettings = MicrobatchSettings()
    replicas: ReplicaSettings | None = None
    fallback: Annotated[tuple[Annotated[FallbackSettings, BeforeValidator(_fallback)], ...], Listed] = Field(
        default=(), max_length=10
    )
    tools: bool = True
    prefill: bool = True
    sagemaker: SageMakerSettings | None = None
    bedrock: BedrockSettings | None = None
    json_schema: bool = True

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.backend == "gpu" and not self.url and self.replicas is None:
            raise ValueError("a gpu deployment needs its server's url, such as http://127.0.0.1:8000/v1, or replicas")
        if self.replicas is not None and (self.url or self.backend != "gpu"):
            raise ValueError("replicas are for a gpu deployment, and stand in place of its url")
        if (self.sagemaker is not None) != (self.backend == "sagemaker"):
            raise ValueError("a sagemaker deployment, and no other, has a sagemaker section with at least its region")
        if self.sagemaker is not None and self.sagemaker.realtime and (self.typical_s or 0.0) > SYNC_S:
            raise ValueError(f"a realtime endpoint has {SYNC_S:.0f} s for a call, and typical_s is more")
        if (self.bedrock is not None) != (self.backend == "bedrock"):
            raise ValueError("a bedrock deployment, and no other, has a bedrock section with at least its region")
        if self.bedrock is not None and (Modality.VIDEO_GENERATION in self.modalities) != bool(self.bedrock.videos):
            raise ValueError("a bedrock deployment of modality video_generation, and no other, has bedrock.videos")
        if self.bedrock is not None and self.bedrock.is_asked_for_more and set(self.modalities) & UNGUARDED:
            raise ValueError("bedrock: images and videos are made without service_tier, latency and guardrail")
        return self


class Settings(Section):
    """Everything. The defaults start the embedded gateway with one tenant; `load` makes one from file and variables."""

    log: LogUrl = "streams:"
    redis: RedisUrl = Field(default="embedded", repr=False)
    data: Path = Path("pointsman-data")
    objects: ObjectUrl = "file:"
    kafka: KafkaSettings = KafkaSettings()
    http: HttpSettings = HttpSettings()
    board: BoardSettings = BoardSettings()
    worker: WorkerSettings = WorkerSettings()
    sweeper: SweeperSettings = SweeperSettings()
    files: FileSettings = FileSettings()
    inbox: InboxSettings = InboxSettings()
    batches: BatchSettings = BatchSettings()
    outbound: OutboundSettings = OutboundSettings()
    webhooks: WebhookSettings = WebhookSettings()
    traces: TraceSettings = TraceSettings()
    pod_grace_s: Number = Field(default=360.0, ge=1, le=7200)
    routing: RoutingSettings = RoutingSettings()
    tenants: Mapping[TenantName, TenantSettings] = Field(
        default_factory=lambda: {"default": TenantSettings()}, min_length=1, max_length=10_000
    )
    deployments: Mapping[DeploymentName, DeploymentSettings] = Field(default_factory=dict, max_length=500)
    prices: Path | None = None

    _book: PriceBook = PrivateAttr(default_factory=pricebook.builtin)

    @property
    def is_embedded(self) -> bool:
        """Whether Pointsman starts its own Redis."""
        return self.redis == "embedded"

    @property
    def kafka_servers(self) -> tuple[str, ...]:
        """host:port of each broker to ask first; none when the log is Redis Streams."""
        return tuple(self.log.removeprefix("kafka://").split(",")) if self.log.startswith("kafka://") else ()

    @property
    def price_book(self) -> PriceBook:
        """The shipped book, with the operator's own entries over it."""
        return self._book

    def tenants_by_name(self) -> dict[str, Tenant]:
        """The tenants as the policies know them."""
        return {name: _tenant(name, tenant, self.routing) for name, tenant in self.tenants.items()}

    def deployments_by_name(self) -> dict[str, Deployment]:
        """The deployments as the policies know them. An unknown price is None."""
        return {name: self._deployment(name, deployment) for name, deployment in self.deployments.items()}

    def secret_for(self, deployment: str) -> str | None:
        """The key that the deployment's server wants."""
        found = self.deployments.get(deployment)
        return found.api_key.get_secret_value() if found is not None and found.api_key is not None else None

    def with_deployment(self, name: str, values: Mapping[str, object]) -> "Settings":
        """With one more deployment, or another one in its place, checked like the file's. Raises `SettingsError`."""
        try:
            part = Settings.model_validate({"deployments": {name: values}})
        except ValidationError as error:
            raise SettingsError(*_faults(error, {}, "command line")) from None
        return self.model_copy(update={"deployments": {**self.deployments, **part.deployments}})

    def _with_prices(self, folder: Path) -> "Settings":
        if self.prices is not None:
            path = folder / self.prices
            try:
                self._book = self._book.overlaid(pricebook.parse(_text(path), name=str(path)))
            except PriceBookError as error:
                raise SettingsError(str(error)) from error
        return self

    def _deployment(self, name: str, deployment: DeploymentSettings) -> Deployment:
        return Deployment(
            name=name,
            backend=deployment.backend,
            model=deployment.model,
            tier=deployment.tier,
            url=deployment.url,
            modalities=frozenset(deployment.modalities),
            window=deployment.window,
            max_output=deployment.max_output,
            limits=deployment.limits.limits(),
            timeouts=deployment.timeouts.timeouts(),
            price=_asked(self._price_of(deployment.price), deployment.bedrock),
            effort=deployment.effort or "",
            typical_s=deployment.typical_s,
            microbatch_size=deployment.microbatch.size,
            microbatch_wait_s=deployment.microbatch.wait_s,
            microbatch_inputs=deployment.microbatch.inputs,
            fleet=None if deployment.replicas is None else deployment.replicas.fleet(),
            fallback=tuple(each.fallback() for each in deployment.fallback),
            takes_tools=deployment.tools,
            takes_prefill=deployment.prefill,
            sagemaker=None if deployment.sagemaker is None else deployment.sagemaker.sagemaker(),
            bedrock=None if deployment.bedrock is None else deployment.bedrock.bedrock(),
            shipping=_shipping(deployment.bedrock),
            takes_schema=deployment.json_schema,
        )

    def _price_of(self, price: PriceSettings | None) -> Price | None:
        if price is None:
            return None
        if price.name is not None:
            return self._book.find(price.name)
        return Price(price.rates(), price.source)


def _shipping(bedrock: BedrockSettings | None) -> Shipping | None:
    return None if bedrock is None or bedrock.shipping is None else bedrock.shipping.shipping()


def _asked(price: Price | None, bedrock: BedrockSettings | None) -> Price | None:
    return price if price is None or bedrock is None else price.asked(bedrock.service_tier or "")


def _routing(own: TenantRoutingSettings, of_all: RoutingSettings) -> RoutingPolicy:
    set_here = {name: value for name, value in own if value is not None}
    both = RoutingSettings.model_validate({**dict(of_all), **set_here})
    return RoutingPolicy(
        heavy_share=both.heavy_percent / 100,
        mean_usd=both.mean_usd,
        effort_share=both.effort_percent / 100,
        learn=both.learn if both.lessons else Learn.OFF,
        lessons=both.lessons,
        escalates=both.escalate,
        shadow_share=both.shadow_percent / 100,
        shadow_usd_per_day=both.shadow_usd_per_day,
    )


def _tenant(name: str, tenant: TenantSettings, routing: RoutingSettings) -> Tenant:
    return Tenant(
        name=name,
        limits=tenant.limits.limits(),
        key_limits={name: limits.limits() for name, limits in tenant.key_limits.items()},
        model_limits={name: limits.limits() for name, limits in tenant.model_limits.items()},
        deployments=None if tenant.deployments is None else frozenset(tenant.deployments),
        aliases=dict(tenant.aliases),
        max_unfinished=tenant.max_unfinished,
        max_in_class=tenant.max_in_class,
        weight=tenant.weight,
        routing=_routing(tenant.routing, routing),
        deadline_s=tenant.deadline_s,
        result_ttl_s=tenant.result_ttl_s,
        max_result_ttl_s=tenant.max_result_ttl_s,
        reruns_allowed=tenant.reruns == "allow",
        webhook_secrets=_signing_keys(tenant.webhook_secret),
        webhooks={
            name: Endpoint(to.url, to.events, _signing_keys(to.secret) or _signing_keys(tenant.webhook_secret))
            for name, to in tenant.webhooks.items()
        },
        reply_topics=frozenset(tenant.reply_topics),
    )


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > settings_file.LARGEST_FILE:
            raise SettingsError(f"{path}: is larger than {settings_file.LARGEST_FILE} bytes")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error


def _with(values: Mapping[str, object], path: KeyPath, value: str) -> dict[str, object]:
    """The values with one changed; what is in the way of the path gives way."""
    first, *rest = path
    if not rest:
        return {**values, str(first): value}
    inner = values.get(str(first))
    return {**values, str(first): _with(inner if isinstance(inner, Mapping) else {}, tuple(rest), value)}


def _faults(error: ValidationError, origins: Mapping[KeyPath, str], name: str) -> list[Fault]:
    faults = []
    for details in error.errors(include_url=False, include_input=False):
        path = details["loc"]
        if details["type"] == "value_error" and path[-1] == "[key]":  # pydantic's mark for what is wrong with a name
            path = path[:-1]
        nearest = next((origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in origins), name)
        faults.append(Fault(nearest, dotted(path), _problem(details, path)))
    return sorted(faults, key=_line)


def _line(fault: Fault) -> int:
    line = fault.where.rpartition(":")[2]
    return int(line) if line.isdecimal() else 0


def _problem(details: ErrorDetails, path: KeyPath) -> str:
    """What is expected, without a word of what is there."""
    context = details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            hint = settings_env.suggestion(str(path[-1]), settings_env.known_at(Settings, path[:-1]), Settings)
            return f"unknown setting; {hint}"
        case "missing":
            return "is missing"
        case "value_error":
            return str(context["error"])
        case "literal_error" | "enum":
            return f"must be {context['expected']}"
        case "model_type" | "model_attributes_type" | "dict_type" | "mapping_type":
            return "must be a section with settings of its own"
        case "string_type" | "path_type":
            return "must be text; put it in quotes"
        case "tuple_type":
            return "must be a list"
        case "number" | "finite_number" | "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            return _number(settings_env.field_at(Settings, path))
        case kind if kind.startswith(("int_", "float_")):
            return _number(settings_env.field_at(Settings, path))
        case _:
            return re.sub(r"^(\w+) should", "must", details["msg"])


def _number(field: FieldInfo | None) -> str:
    """The kind and bounds of a number, as text."""
    if field is None:
        return "must be a number"
    bounds = []
    for bound in field.metadata:
        match bound:
            case Ge(ge):
                bounds.append(f"at least {ge}")
            case Gt(gt):
                bounds.append(f"more than {gt}")
            case Le(le):
                bounds.append(f"at most {le}")
    kind = "a whole number" if "int" in str(field.annotation) else "a number"
    return " ".join([f"must be {kind}", " and ".join(bounds)]).rstrip()
