"""Ending a job at its owner's wish."""

from collections.abc import Callable
from dataclasses import dataclass

from policies.scripts import BoardUnavailableError
from router import ledger
from router.board import Board, JobView
from router.epoch import Epoch
from router.job import Job, JobState
from router.log import LogUnavailableError
from router.outbox import Outbox


@dataclass(frozen=True, slots=True)
class Cancel:
    """`ended` hears of jobs that nobody ran, which end here."""

    board: Board
    epoch: Epoch
    outbox: Outbox
    ended: Callable[[Job, JobState], None]

    async def __call__(self, view: JobView) -> None:
        """End the job, through whoever runs it; safe to repeat. Raises `BoardUnavailableError`."""
        if self.epoch.fault is not None:  # it may have ended otherwise
            raise BoardUnavailableError(self.epoch.fault)
        job = view.job
        event = ledger.event_text(job, JobState.CANCELLED, usd=view.usd, attempts=view.attempts, error_code="cancelled")
        if await self.board.cancel(job.tenant, job.id, event) is JobState.CANCELLED:
            self.ended(job, JobState.CANCELLED)
            try:
                await self.outbox.drain(job.tenant, job_id=job.id)
            except (LogUnavailableError, BoardUnavailableError):
                return  # the sweeper publishes what is left behind
