"""The topics of the log: their names, and which of them a set of deployments needs.

Names are without the operator's prefix.
"""

from collections.abc import Iterable, Mapping
from math import inf
from types import MappingProxyType

from policies.deployments import Deployment
from router.job import JobClass

INBOX = "jobs.inbox"
DEAD = "jobs.dead"
EVENTS = "jobs.events"
CHARGES = "ledger.charges"
KEYS = "keys.changes"

# Seconds that a record waits on each.
RETRIES: Mapping[str, float] = MappingProxyType(
    {"jobs.retry.30s": 30.0, "jobs.retry.2m": 120.0, "jobs.retry.10m": 600.0}
)

FIXED = (INBOX, *RETRIES, DEAD, EVENTS, CHARGES, KEYS)

# Seconds that these are kept at least, whatever the others' retention is: a month's dollars are counted anew from
# the ledger, and an API key has no end.
KEPT_LONGER: Mapping[str, float] = MappingProxyType({CHARGES: 40 * 86_400.0, KEYS: inf})


def kept_s(topic: str, others_s: float) -> float:
    """How long records stay on a topic; `inf` is for ever."""
    return max(others_s, KEPT_LONGER.get(topic, 0.0))


def retry_topic(seconds: float) -> str:
    """Where a record waits that is due in so many seconds; what is due later goes round more than once."""
    fitting = [topic for topic, longest in RETRIES.items() if seconds <= longest]
    return fitting[0] if fitting else list(RETRIES)[-1]


OVERFLOW = "overflow"  # a tenant's excess; a queue that no client can ask for
QUEUES = (JobClass.INTERACTIVE.value, JobClass.STANDARD.value, JobClass.BULK.value, OVERFLOW)  # most urgent first


def name(lane: str, queue: str) -> str:
    """The topic of a lane (backend.modality.tier) for a class or for `OVERFLOW`."""
    return f"jobs.{lane}.{queue}"


def all_topics(deployments: Mapping[str, Deployment]) -> tuple[str, ...]:
    """Every topic that must exist: the lanes', sorted, then the fixed ones."""
    lanes = _lanes(deployments.values())
    return (*(name(lane, queue) for lane in lanes for queue in QUEUES), *FIXED)


def for_backend(backend: str, deployments: Mapping[str, Deployment]) -> tuple[str, ...]:
    """What a worker of the backend reads, the most urgent class of all its lanes first."""
    lanes = _lanes(each for each in deployments.values() if each.backend == backend)
    return tuple(name(lane, queue) for queue in QUEUES for lane in lanes)


def _lanes(deployments: Iterable[Deployment]) -> tuple[str, ...]:
    return tuple(
        sorted({f"{each.backend}.{modality}.{each.tier}" for each in deployments for modality in each.modalities})
    )
