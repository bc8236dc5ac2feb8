"""What every attempt of a process works with."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import structlog
from prometheus_client import CollectorRegistry

from consumers.attempt_meters import AttemptMeters
from consumers.backend import Backend, HandOffBackend, PlacedBackend
from consumers.gate import Gate
from consumers.learning import Learning
from consumers.onward import Onward
from consumers.placeless import Placeless
from consumers.running import Leases
from consumers.unsaved import Unsaved
from policies.deployments import Deployment
from policies.quota import Quotas, Scope, Scopes, Shadow
from policies.scripts import BoardUnavailableError
from policies.tenants import Tenant
from router.board import Board
from router.conversations import Conversations
from router.epoch import Epoch
from router.job import Job
from router.log import LogUnavailableError
from router.outbox import Outbox
from router.payloads import Payloads, PayloadUnavailableError
from router.wakeups import Wakeups

if TYPE_CHECKING:
    from router.traces import Traces

log = structlog.get_logger(__name__)

AWAY_S = 1.0  # between two tries while Redis, the log or the object store is away

Kept = TypeVar("Kept")


def _ignore(_: object) -> None:
    return


@dataclass(slots=True)
class Means:
    """The stores, the backend, the rules. One for all that a process runs."""

    board: Board
    epoch: Epoch
    outbox: Outbox
    quotas: Quotas
    payloads: Payloads
    wakeups: Wakeups
    backend: Backend | HandOffBackend | PlacedBackend
    deployments: Mapping[str, Deployment]
    tenants: Mapping[str, Tenant]
    onward: Onward
    lease_s: float
    most_deliveries: int
    jitter: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic
    gate: Gate = field(default_factory=Gate)
    shadowed: Callable[[Sequence[Shadow]], None] = _ignore
    meters: AttemptMeters = field(default_factory=lambda: AttemptMeters(CollectorRegistry()))
    learning: Learning | None = None
    placeless: Placeless = field(default_factory=Placeless)
    traces: "Traces | None" = None
    places: PlacedBackend | None = field(init=False)
    leases: Leases = field(init=False)
    unsaved: Unsaved = field(init=False)
    conversations: Conversations = field(init=False)
    _scopes: Scopes = field(init=False)
    _said_at: float = -math.inf

    def __post_init__(self) -> None:
        # Once: to ask whether something has the methods of a protocol takes longer than most steps of a job.
        self.places = self.backend if isinstance(self.backend, PlacedBackend) else None
        self.leases = Leases(self.board, self.quotas, self.wakeups, self.lease_s)
        self.unsaved = Unsaved(self.clock)
        self.conversations = Conversations(self.board, self.payloads)
        self._scopes = Scopes(self.tenants, self.deployments)

    def scopes(self, job: Job) -> tuple[Scope, Scope]:
        """What it needs quota of: its tenant's, then its deployment's."""
        name, scopes = job.route.deployment, self._scopes
        return scopes.of_tenant(job.tenant, deployment=name, key=job.limited_key), scopes.of_deployment(name)

    async def until_it_works(self, act: Callable[[], Awaitable[Kept]]) -> Kept:
        """For what must not be given up: the answer is paid for, and only this process has it."""
        while True:
            try:
                return await act()
            except (BoardUnavailableError, LogUnavailableError, PayloadUnavailableError) as error:
                if self.clock() - self._said_at > AWAY_S:  # for all that wait
                    self._said_at = self.clock()
                    running = len(self.leases.running)
                    log.warning("waiting_for_what_is_away", error=type(error).__name__, running=running)
                await asyncio.sleep(AWAY_S * (0.5 + self.jitter()))
