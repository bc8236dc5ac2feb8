"""Answers on reply topics: a job's terminal event with its result, where the record that brought the job named one."""

import json
from collections.abc import Mapping
from typing import Any

import structlog

from router import compact, ledger, responses, topics
from router.board import Board, JobView
from router.conversations import Conversations
from router.job import JSON, JobState, Reply
from router.log import RECORD_LIMIT, Log, Record, TopicMissingError
from router.payloads import PayloadLostError, Payloads

log = structlog.get_logger(__name__)


class Replies:
    """Sends answers. Raises what board, log and object store raise; safe to repeat: an answer's id stays the same."""

    def __init__(self, board: Board, job_log: Log, payloads: Payloads) -> None:
        self._board = board
        self._log = job_log
        self._payloads = payloads
        self._conversations = Conversations(board, payloads)

    async def send(self, event: Mapping[str, Any], to: Reply, *, at: float) -> None:
        """The answer of a job that ended `at` this moment. A topic that is gone or forbidden is said in the log."""
        view = await self._board.view(event["tenant"], event["data"]["id"].removeprefix("job_"))
        result = await self._result(view) if view is not None else None
        whole = {**event, "error": view.error if view is not None else None, "result": result}
        if view is not None and view.media_type != JSON:
            whole["result_omitted"] = "not_json"
        record = as_record(whole, to, at=at)
        if record.size > RECORD_LIMIT:
            record = as_record({**whole, "result": None, "result_omitted": "too_large"}, to, at=at)
        await self._append(to.topic, record)

    async def again(self, view: JobView, to: Reply) -> None:
        """The answer of a job that ended before, for a record that asked for the same."""
        code = str((view.error or {}).get("code") or "") or None
        text = ledger.event_text(view.job, view.state, usd=view.usd, attempts=view.attempts, error_code=code)
        event = {name: value for name, value in json.loads(text).items() if name != "private"}
        await self.send(event, to, at=view.finished_at or view.job.created_at)

    async def refuse(self, event: Mapping[str, Any], to: Reply, *, at: float) -> None:
        """The answer to a record that became no job; on the events where no topic was named, or it is gone."""
        record = as_record(event, to, at=at)
        if not to.topic or not await self._append(to.topic, record):
            await self._log.append(topics.EVENTS, record)

    async def is_cut_short(self, event: Mapping[str, Any]) -> bool:
        """Whether the Response of a completed job is incomplete, as OpenAI has it."""
        view = await self._board.view(event["tenant"], event["data"]["id"].removeprefix("job_"))
        result = await self._result(view) if view is not None else None
        return isinstance(result, dict) and result.get("status") == "incomplete"

    async def _append(self, topic: str, record: Record) -> bool:
        try:
            await self._log.append(topic, record)
        except TopicMissingError:
            log.error("reply_topic_missing", topic=topic, id=record.headers["id"])
            return False
        return True

    async def _result(self, view: JobView) -> object:
        """The OpenAI object; None when there is none, or it is gone already."""
        if view.state is not JobState.COMPLETED or view.media_type != JSON:
            return None
        try:
            if view.job.endpoint == responses.ENDPOINT:
                return await self._conversations.response(view)
            return json.loads(await self._payloads.get(view.result_at) if view.result_at else view.result or b"null")
        except (PayloadLostError, ValueError):
            return None


def as_record(event: Mapping[str, Any], to: Reply, *, at: float) -> Record:
    """An event as it goes to whoever asked; `at` is when it happened."""
    headers = {"version": "1", "id": str(event["id"]), "at-ms": f"{at * 1000:.0f}"}
    if to.correlation_id:
        headers["correlation-id"] = to.correlation_id
    return Record(compact.encode(event), headers)
