"""The servers behind a deployment: where they are found, and how they may be used."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

MOST_REPLICAS = 256  # of one deployment; more that are found are left alone


class Engine(StrEnum):
    """What kind of server a replica is; OPENAI is any other that speaks OpenAI's chat completions."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True)
class Listed:
    """Written down in the settings."""

    urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """Every address (A record) that the host of `url` has; looked up again as the records age."""

    url: str


@dataclass(frozen=True, slots=True)
class Served:
    """Every host and port of the SRV record that stands where the host of `url` would."""

    url: str


@dataclass(frozen=True, slots=True)
class Folder:
    """A file for each replica, which an operator changes while it runs."""

    path: str


Source = Listed | Named | Served | Folder


@dataclass(frozen=True, slots=True)
class Waker:
    """What is called when jobs wait and no replica runs: once, and again after `again_s` if none came.

    `scale` is the namespace, the name and the replicas of a Kubernetes deployment; without it `url` is called.
    """

    url: str
    again_s: float = 300.0
    scale: tuple[str, str, int] | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas of one deployment. `cap` is calls at once on one of them; `queue` how many may wait in its engine.

    `engine` None: each tells by its metrics. `resolver` is the address and port of a name server of its own.
    `affinity`: prompts that begin alike go to the same replica. `usd_per_hour` is what one of them costs.
    """

    source: Source
    engine: Engine | None = None
    cap: int = 32
    queue: int = 0
    affinity: bool = True
    probe_s: float = 1.0
    slow_start_s: float = 30.0
    resolver: tuple[str, int] | None = None
    usd_per_hour: Decimal | None = None
    waker: Waker | None = None
