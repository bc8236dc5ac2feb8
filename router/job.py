"""What a job is: one frozen value, carried from the door to the end."""

from collections.abc import Mapping
from dataclasses import field
from decimal import Decimal
from enum import StrEnum

from policies.deployments import Fallback, Modality, Tier
from policies.pricing import Basis, Usage
from policies.values import dataclass

JSON = "application/json"


class JobState(StrEnum):
    """Where a job is. The last five never change any more."""

    ACCEPTING = "accepting"  # on the board, not yet confirmed by the log
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"  # the log did not confirm; the client was told so

    @property
    def is_terminal(self) -> bool:
        """Whether this state never changes."""
        return self in TERMINAL


TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED, JobState.REJECTED})


class JobClass(StrEnum):
    """How urgent a job is."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BULK = "bulk"


class Queue(StrEnum):
    """Where a job waits: with its class, or behind as what is more than a tenant's part of it."""

    MAIN = "main"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job may use at most, before it runs. `usd` is None where the price is unknown.

    Images, seconds of audio or video and characters are another count of the same work.
    """

    input_tokens: int
    output_tokens: int
    usd: Decimal | None = None
    images: int = 0
    audio_seconds: int = 0
    characters: int = 0
    video_seconds: int = 0

    @classmethod
    def of(cls, usage: Usage, usd: Decimal | None) -> "Estimate":
        """Of what it is expected to use."""
        return cls(
            usage.input,
            usage.output,
            usd,
            usage.images,
            usage.audio_seconds,
            usage.characters,
            usage.video_seconds,
        )

    @property
    def owed(self) -> Usage:
        """What a call may be billed whose answer nobody has: its input, and what is not counted in tokens."""
        return Usage(
            input=self.input_tokens,
            basis=Basis.ESTIMATED,
            images=self.images,
            audio_seconds=self.audio_seconds,
            characters=self.characters,
            video_seconds=self.video_seconds,
        )

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Alternative:
    """A deployment that a job may go on at, and what it may use there at most."""

    fallback: Fallback
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Route:
    """Where a job goes, and why: the rule that decided, and its reasons in words.

    `score` in 0..1 and the `threshold` that it was held against are None where no score was asked for.

    `left` are the deployments that take it next if this one fails; `tried` those that it was at before, with `spent`
    attempts in all.
    """

    deployment: str
    backend: str
    modality: Modality
    tier: Tier
    reasons: tuple[str, ...] = ()
    score: float | None = None
    left: tuple[Alternative, ...] = ()
    tried: tuple[str, ...] = ()
    spent: int = 0
    threshold: float | None = None
    rule: str = ""

    @property
    def lane(self) -> str:
        """Backend x modality x tier."""
        return f"{self.backend}.{self.modality}.{self.tier}"


@dataclass(frozen=True, slots=True)
class Payload:
    """Where in the object store a body or a result lies, what it is, and the SHA-256 of its bytes, in hex."""

    path: str
    sha256: str
    size: int
    media_type: str = JSON


@dataclass(frozen=True, slots=True)
class Reply:
    """Where the answer to a record on the inbox goes. Without a topic it is the event on `jobs.events` alone."""

    topic: str = ""
    correlation_id: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Which line of which batch a job is; `custom_id` is the client's name for it."""

    batch: str
    custom_id: str


@dataclass(frozen=True, slots=True)
class Job:
    """One model call. Moments are seconds since the epoch, on Redis' clock.

    `body` is the client's, byte for byte; it is empty while it lies at `payload`.
    `expires_at` is the deadline to start and finish; the result is kept `result_ttl_s` after that.
    `key_id` is the API key that brought it, `limited_key` that key's name where it has limits of its own. When
    `is_reserved`, its first attempt has its quota from the door. When `is_waited_for`, a caller holds the line.
    `webhook_url` is to be told of its end, and `reply` is where its answer goes.
    """

    id: str
    tenant: str
    endpoint: str
    model: str
    job_class: JobClass
    route: Route
    estimate: Estimate
    body: bytes
    created_at: float
    expires_at: float
    result_ttl_s: float
    stream: bool = False
    payload: Payload | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    traceparent: str | None = None
    reruns_allowed: bool = True
    max_usd: Decimal | None = None
    queue: Queue = Queue.MAIN
    key_id: str = ""
    limited_key: str = ""
    is_reserved: bool = False
    webhook_url: str = field(default="", repr=False)
    is_waited_for: bool = False
    reply: Reply | None = None
    line: Line | None = None

    @property
    def band(self) -> str:
        """Whom it waits with: its class, or the overflow."""
        return str(self.job_class if self.queue is Queue.MAIN else self.queue)

    @property
    def topic(self) -> str:
        """The topic of its lane and band, without the operator's prefix."""
        return f"jobs.{self.route.lane}.{self.band}"

    @property
    def is_replayed(self) -> bool:
        """Whether its stream may be taken up again, also after its end."""
        return self.stream and self.endpoint == "/v1/responses"

    @property
    def ages_at(self) -> float:
        """Half of its time to live is over: from now on it goes before others of its tenant."""
        return (self.created_at + self.expires_at) / 2


@dataclass(frozen=True, slots=True)
class AtBackend:
    """A backend has it, by this name of the attempt's call, and a collector will conclude it."""

    attempt: int
    reference: str


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a record says of its job's past, should the board have lost it since. `replayed_at`: 0.0 is never."""

    at_backend: AtBackend | None = None
    replayed_at: float = 0.0


NOTHING_EARLIER = Earlier()


@dataclass(frozen=True, slots=True)
class Stay:
    """How long a call was at a backend that has a queue of its own, in seconds; `running` of it about, where known."""

    seconds: float
    running: float | None = None
