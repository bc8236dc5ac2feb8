"""What can run a job: deployments, their limits and what they can do."""

from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum

from policies.fleets import Fleet
from policies.pricing import Price
from policies.retries import Failure
from policies.shipping import Shipping


class Tier(StrEnum):
    """Which size of model a job needs."""

    LIGHT = "light"
    HEAVY = "heavy"


class Modality(StrEnum):
    """What a job carries or wants."""

    TEXT = "text"
    IMAGE = "image"
    DOCUMENT = "document"
    AUDIO = "audio"
    VIDEO = "video"
    EMBEDDING = "embedding"
    SPEECH = "speech"
    IMAGE_GENERATION = "image_generation"
    VIDEO_GENERATION = "video_generation"


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be used at most; None is no limit. A bucket holds `burst_s` seconds' worth of its rate.

    A day is a UTC day. A `shadow` is judged and counted, and refuses nothing. The last two say how a provider counts
    tokens (quota only, not price): an output token so many times, and those read from a cache or not.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    concurrency: int | None = None
    usd_per_month: Decimal | None = None
    burst_s: float = 60.0
    tokens_per_day: float | None = None
    shadow: bool = False
    output_burndown: float = 1.0
    cache_reads_count: bool = True


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds, for one call: each is longer than the one before it.

    An answer that comes whole has to begin within `whole`; then `read` and `total` hold as for a stream.
    `first_token` grows with the prompt, by `first_token_per_1k` for each 1,000 tokens. The last two are for where the
    route has another deployment left: then there is better to do than to wait.
    """

    connect: float = 5.0
    first_token: float = 60.0
    read: float = 90.0  # between two pieces of an answer
    total: float = 300.0  # the whole attempt
    first_token_per_1k: float = 1.0
    hurried_first_token: float = 10.0
    hurried_read: float = 20.0
    whole: float = 240.0

    def of_call(self, input_tokens: int, *, has_next: bool) -> "Timeouts":
        """Those of a call with a prompt of so many tokens."""
        first = min(self.first_token, self.hurried_first_token) if has_next else self.first_token
        first += self.first_token_per_1k * input_tokens / 1000
        read = min(self.read, self.hurried_read) if has_next else self.read
        return replace(self, first_token=min(first, self.total), read=read)


@dataclass(frozen=True, slots=True)
class Fallback:
    """Where a job goes on when its deployment fails, in the order of a list; only `on` these failures, if given."""

    deployment: str
    on: frozenset[Failure] | None = None


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")  # least first


SYNC_BYTES = 6_291_456  # a synchronous SageMaker endpoint's most, both ways; API reference of InvokeEndpoint
SYNC_S = 60.0  # the longest that it runs; there
TOKEN_BYTES = 6  # that a token of an answer may take on the wire, generously
SHORTEST_TTL_S, LONGEST_TTL_S = 60, 21_600  # that a call may wait at an asynchronous one; of InvokeEndpointAsync
LONGEST_RUN_S, USUAL_RUN_S = 3_600, 900  # that it may run there, and where nothing is said; there


class PayloadFormat(StrEnum):
    """What a SageMaker container speaks: OpenAI's chat (vLLM, LMI), text-generation-inference's, or its own."""

    OPENAI = "openai"
    TGI = "tgi"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class SageMaker:
    """Where a SageMaker endpoint is and how it is asked; the deployment's `model` is its name.

    `inputs` is `s3://bucket/prefix` for bodies that are too large to go along. `queue` is the URL of the queue that
    both of the endpoint's topics feed; without one only the objects are looked at. `served_model` is named to
    containers that ask for it. A call waits `request_ttl_s` at most and runs `invocation_timeout_s` at most, and
    neither for longer than its job has left (but AWS lets it wait for a minute).
    """

    region: str
    inputs: str = ""
    queue: str = ""
    payload: PayloadFormat = PayloadFormat.OPENAI
    served_model: str = ""
    request_ttl_s: int = LONGEST_TTL_S
    invocation_timeout_s: int = USUAL_RUN_S
    is_realtime: bool = False
    tokens_per_s: float | None = None  # that one call of a synchronous endpoint makes
    usd_per_hour: Decimal | None = None  # of one instance
    aws_url: str = ""  # of a server that speaks AWS' protocols, in place of AWS


@dataclass(frozen=True, slots=True)
class Bedrock:
    """How a model of Bedrock is called; the deployment's `model` is its id there.

    `profile` is the id or ARN of an inference profile that stands for it. `service_tier` and `latency` are asked for,
    `guardrail` (with its version) is applied. `videos` is `s3://bucket/prefix` for those that it makes. `aws_url` is of
    a server that speaks AWS' protocols, in place of AWS.
    """

    region: str
    profile: str = ""
    service_tier: str = ""
    latency: str = ""
    guardrail: str = ""
    guardrail_version: str = "DRAFT"
    videos: str = ""
    aws_url: str = ""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model on one backend. `model` is its name there; `window` and `max_output` are tokens.

    So many inputs at most are in an embedding call that several jobs of a microbatch share. With a `fleet` its servers
    are those, and there is no `url`.

    `takes_tools`: it can be given tools. `takes_prefill`: the conversation may end with the beginning of its answer.
    `takes_schema`: it keeps to a JSON schema. `effort` is how much it is told to reason (one of `EFFORTS`; empty: as
    it is). `typical_s` is how long its calls usually take, where that is known.
    """

    name: str
    backend: str
    model: str
    tier: Tier
    url: str = ""
    modalities: frozenset[Modality] = frozenset({Modality.TEXT})
    window: int = 8192
    max_output: int = 1024
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    price: Price | None = None
    effort: str = ""
    typical_s: float | None = None
    microbatch_size: int = 16
    microbatch_wait_s: float = 0.01
    microbatch_inputs: int = 256
    fleet: Fleet | None = None
    fallback: tuple[Fallback, ...] = ()
    takes_tools: bool = True
    takes_prefill: bool = True
    sagemaker: SageMaker | None = None
    bedrock: Bedrock | None = None
    shipping: Shipping | None = None
    takes_schema: bool = True

    @property
    def is_answered_later(self) -> bool:
        """Whether it may take jobs that a collector then concludes."""
        is_kept = self.sagemaker is not None or self.shipping is not None
        return is_kept or (self.bedrock is not None and bool(self.bedrock.videos))

    @property
    def effort_rank(self) -> int:
        """The more the higher; what is not told anything is in the middle."""
        return EFFORTS.index(self.effort or "medium")

    @property
    def max_body(self) -> int | None:
        """Bytes that a call may have; None: any number."""
        return SYNC_BYTES if self.sagemaker is not None and self.sagemaker.is_realtime else None

    @property
    def most_made(self) -> int | None:
        """Tokens that a call may make in the time and the bytes that it has; None: any number."""
        if self.sagemaker is None or not self.sagemaker.is_realtime:
            return None
        by_size, speed = SYNC_BYTES // TOKEN_BYTES, self.sagemaker.tokens_per_s
        return by_size if speed is None else min(by_size, int(speed * SYNC_S))
