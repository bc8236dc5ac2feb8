"""The desk, with spans around what it does: used where traces are wanted, so that they cost nothing where not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ulid import ULID

from gateway.accept import Acceptance, Desk
from gateway.asked import Asked
from policies.keys import KeyHolder
from router.board import JobView
from router.conversations import Packed
from router.job import Job

if TYPE_CHECKING:
    from router.traces import Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedDesk(Desk):
    """Accepts jobs as the desk does. A job's record carries on the trace of its accept."""

    traces: "Traces"

    async def accept(
        self,
        holder: KeyHolder,
        asked: Asked,
        *,
        endpoint: str,
        traceparent: str | None = None,
        job_id: str | None = None,
        **further: Any,
    ) -> Acceptance:
        """See the desk."""
        job_id = job_id or str(ULID())
        with self.traces.accepting(endpoint, job_id, holder.tenant, traceparent) as span:
            accepted = await Desk.accept(
                self, holder, asked, endpoint=endpoint, traceparent=span.traceparent, job_id=job_id, **further
            )
            job = accepted.view.job
            span.note(lane=job.route.lane, rule=job.route.rule, new=not accepted.existing)
            return accepted

    async def _enqueue(
        self, job: Job, conversation: Packed | None, headers: Mapping[str, str] | None = None
    ) -> JobView:
        with self.traces.appending(job):
            return await Desk._enqueue(self, job, conversation, headers)
