"""A job as a backend is asked, from the board: what a batch job is filled from long after its record has gone."""

from dataclasses import dataclass, field, replace

from router import responses
from router.board import Board
from router.conversations import ConversationLostError, Conversations
from router.job import Job
from router.payloads import PayloadLostError, Payloads
from router.responses import UntranslatableError


@dataclass(slots=True)
class AskedJobs:
    """Finds them. Raises `BoardUnavailableError` and `PayloadUnavailableError`."""

    board: Board
    payloads: Payloads
    _conversations: Conversations = field(init=False)

    def __post_init__(self) -> None:
        self._conversations = Conversations(self.board, self.payloads)

    async def of_attempt(self, tenant: str, job_id: str, attempt: int) -> Job | None:
        """The job while this attempt at it is open and a backend has it, in its chat form; else None."""
        view = await self.board.view(tenant, job_id)
        if view is None or view.state.is_terminal or view.open_attempt != attempt or view.job.payload is None:
            return None
        return await self.of(view.job)

    async def of(self, job: Job) -> Job | None:
        """The job with its body, in its chat form; None where that is lost."""
        try:
            if job.payload is not None:
                job = replace(job, body=await self.payloads.get(job.payload))
            if job.endpoint == responses.ENDPOINT:
                job = replace(job, endpoint=responses.CHAT, body=await self._conversations.chat(job))
        except (PayloadLostError, ConversationLostError, UntranslatableError):
            return None
        return job
