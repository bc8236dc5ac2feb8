"""What this process runs: how far each attempt has come, and the leases that keep its job to it."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from consumers.backend import Answer, Submitted
from consumers.tally import Tally
from consumers.unsaved import LetThrough
from policies.deployments import Deployment
from policies.pricing import Usage
from policies.quota import Quotas, Scope
from policies.scripts import BoardUnavailableError
from router.board import Board, CancelRequested, Lost
from router.job import Job
from router.outbox import reservation_id
from router.wakeups import Wakeups


class Stop(StrEnum):
    """Why a running call is closed before its answer."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    LOST = "lost"  # somebody else owns the job now
    DRAIN = "drain"  # this process stops


@dataclass(slots=True)
class Running:
    """One attempt at a job that this process owns.

    `rid` is its reservation's, `born_at` and `ends_at` the job's accept and deadline on this process' steady clock.
    `is_open` once its call may have been made, until then nothing is charged for it; `is_rerun` where an earlier
    attempt was, so that the board knows more charges than this one's. `epoch` is the board's that it was claimed on;
    `is_unreserved` where it was begun on a board that was lost. `cut` attempts at its deployment ended with their
    process. `traceparent` names its span, where there are any.
    """

    job: Job
    owner: str
    deployment: Deployment
    tally: Tally
    scopes: tuple[Scope, Scope]
    number: int
    ends_at: float
    rid: str
    born_at: float
    is_rerun: bool
    cut: int = 0
    epoch: str | None = None
    is_granted: bool = False
    is_unreserved: bool = False
    is_open: bool = False
    is_probe: bool = False
    used: Usage | None = None
    traceparent: str | None = None
    let_through: LetThrough | None = None
    call: asyncio.Task[Answer | Submitted] | None = None
    stop: Stop | None = None

    @property
    def calls_before(self) -> int:
        """The calls at its deployment before this one that showed what the backend does: one more is a retry of it."""
        return self.number - 1 - self.job.route.spent - self.cut

    def seconds_left(self, now: float) -> float:
        """Until its deadline."""
        return max(0.0, self.ends_at - now)

    def goes_on(self, attempt: int) -> None:
        """It is no new attempt: the call of this one is under way."""
        self.number, self.rid = attempt, reservation_id(self.job.id, attempt)

    def close(self, why: Stop) -> None:
        """Close its upstream call, for the first reason given."""
        if self.stop is None:
            self.stop = why
            if self.call is not None:
                self.call.cancel()


@dataclass(slots=True)
class Leases:
    """Of all that runs. `keep` and `heed` run beside the attempts."""

    board: Board
    quotas: Quotas
    wakeups: Wakeups
    lease_s: float
    running: dict[str, Running] = field(default_factory=dict)
    _woken: set[str] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep(self) -> None:
        """For ever: renew the leases of all that runs, every third of a lease. One lost or cancelled is closed."""
        while True:
            await asyncio.sleep(self.lease_s / 3)
            await self._renew_all(list(self.running))

    async def heed(self) -> None:
        """For ever: look at those that a wake-up is about. It only says that something may have changed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            woken = list(self._woken)
            self._woken.clear()
            await self._renew_all(woken)

    @contextmanager
    def of(self, running: Running) -> Iterator[None]:
        """Keep this one's, meanwhile."""
        about = f"{running.job.tenant} {running.job.id}"
        name = f"{about} {running.owner}"  # a job that was lost to another owner may come to this process again

        def wake() -> None:
            self._woken.add(name)
            self._wake.set()

        self.running[name] = running
        try:
            with self.wakeups.on(about, wake):
                yield
        finally:
            del self.running[name]

    async def _renew_all(self, names: Sequence[str]) -> None:
        await asyncio.gather(*(self._renew(self.running[name]) for name in names if name in self.running))

    async def _renew(self, running: Running) -> None:
        try:
            verdict = await self.board.renew(running.job, running.owner, lease_s=self.lease_s)
            match verdict:
                case CancelRequested():
                    running.close(Stop.CANCELLED)
                case Lost():
                    running.close(Stop.LOST)
            for scope in running.scopes:
                await self.quotas.renew(scope, running.rid, hold_s=self.lease_s * 2)
        except BoardUnavailableError:
            return  # what runs goes on; the lease is looked at again next time
