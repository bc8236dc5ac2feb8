"""What a call used that was over only after its attempt had been given up: paid for, delivering nothing."""

from dataclasses import replace

import structlog

from consumers.backend import Notice, NoticingBackend
from consumers.means import Means
from policies.pricing import beyond, charge
from router import ledger
from router.board import Attempted

log = structlog.get_logger(__name__)


async def charge_late(means: Means, backend: NoticingBackend, notice: Notice) -> None:
    """Charge it, once however often it is said. Raises `BackendError` and what board and log raise.

    The attempt was charged as an estimate or not at all. What was used beyond that goes on the ledger as an attempt of
    its own; an estimate that was too high stays. A repeat of what concluded the attempt is nothing new.
    """
    view = await means.board.view(notice.tenant, notice.job_id, even_gone=True)
    if view is None:
        return
    number = ledger.LATE + notice.attempt
    charged = [line for line in view.charges if line.attempt == notice.attempt]
    if any(line.outcome == "completed" for line in charged):
        return
    if any(line.attempt == number for line in view.charges):  # and what is on the board gets to the ledger
        return
    late = await backend.late(view.job, notice)
    if late is None:
        return
    more = beyond(late.usage, charged)
    price = late.deployment.price
    of_all = None if price is None else price.of(late.usage)
    lines = charge(of_all, more, job=notice.job_id, attempt=number, outcome="late")
    log.warning("late_result", job=notice.job_id, attempt=notice.attempt, deployment=late.deployment.name)
    if not lines:
        return
    # It may have gone on elsewhere since.
    route = replace(view.job.route, deployment=late.deployment.name, backend=late.deployment.backend)
    job = replace(view.job, route=route)
    closed = await means.board.close_attempt(job, Attempted(number, view.microbatch or "", lines, more.total))
    await means.outbox.publish(job.tenant, [closed.charge])
