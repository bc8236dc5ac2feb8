"""Ending a job at its owner's wish."""

from policies.scripts import BoardUnavailableError
from router import ledger
from router.board import Board, JobView
from router.job import JobState
from router.log import LogUnavailableError
from router.outbox import Outbox


async def cancel(view: JobView, *, board: Board, outbox: Outbox) -> None:
    """End the job, through whoever runs it; safe to repeat. Raises `BoardUnavailableError`."""
    job = view.job
    event = ledger.event_text(job, JobState.CANCELLED, usd=view.usd, attempts=view.attempts, error_code="cancelled")
    if await board.cancel(job.tenant, job.id, event) is JobState.CANCELLED:
        try:
            await outbox.drain(job.tenant, job_id=job.id)
        except (LogUnavailableError, BoardUnavailableError):
            return  # the sweeper publishes what is left behind
