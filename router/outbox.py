"""What the board holds until it is on the log: charges and events. Ids make repeats harmless."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from policies.deployments import Deployment
from policies.quota import Quotas, Scopes, deployment_slot, tenant_slot
from router import compact, ledger, topics
from router.board import Board, OutboxEntry
from router.job import JobState, Reply
from router.log import Log, Record
from router.replies import Replies
from router.webhooks import Webhooks, of_job


@dataclass(slots=True)
class Outbox:
    """Publishes what finished jobs left behind, and settles the quota of their deployment.

    The ends of jobs are owed to the webhooks of their tenants from then on. What was reserved for a job's next attempt
    is given back.
    """

    board: Board
    log: Log
    quotas: Quotas
    deployments: Mapping[str, Deployment]
    webhooks: Webhooks
    replies: Replies
    _scopes: Scopes = field(init=False)

    def __post_init__(self) -> None:
        self._scopes = Scopes({}, self.deployments)

    async def publish(self, tenant: str, entries: Sequence[OutboxEntry]) -> None:
        """Put these on their topics, then strike them off. Raises what log or board raise; then call it again."""
        for entry in entries:  # one after the other: of a job there are two, and tasks cost more than that saves
            await self._publish(entry)
        await self._strike(tenant, entries)

    async def drain(self, tenant: str, *, job_id: str = "", age_s: float = 0.0, most: int = 100) -> int:
        """Publish what waits, of one job or of any; returns how many entries that were."""
        entries = await self.board.outbox(tenant, job_id=job_id, age_s=age_s, most=most)
        await asyncio.gather(*(self._publish(entry) for entry in entries))
        await self._strike(tenant, entries)
        return len(entries)

    async def _strike(self, tenant: str, entries: Sequence[OutboxEntry]) -> None:
        if entries:
            await self.board.published(tenant, [entry.field for entry in entries])

    async def _publish(self, entry: OutboxEntry) -> None:
        if entry.is_event:
            await self._publish_event(entry)
            return
        await self.log.append(topics.CHARGES, entry.record)
        attempt = json.loads(entry.text)
        usd = None if attempt["usd"] is None else Decimal(attempt["usd"])
        rid = reservation_id(attempt["job"], attempt["attempt"])
        scope = self._scopes.of_deployment(attempt["deployment"])
        await self.quotas.settle(scope, rid, tokens=scope.counted(ledger.used(attempt["lines"])), usd=usd)

    async def _publish_event(self, entry: OutboxEntry) -> None:
        event, headers = json.loads(entry.text), entry.record.headers
        private = event.pop("private", {})
        reply = Reply(**private["reply"]) if "reply" in private else Reply()
        if reply.correlation_id:
            headers = {**headers, "correlation-id": reply.correlation_id}
        text = compact.text(event) if private else entry.text
        await self.log.append(topics.EVENTS, Record(text.encode(), headers))
        if reply.topic:
            await self.replies.send(event, reply, at=entry.at)
        await self._owe_webhooks(event, at=entry.at, url=private.get("webhook_url", ""))
        job, _, attempts = event["id"].removeprefix("evt_").rpartition(".")
        if "deployment" in event and event["type"] != f"job.{JobState.COMPLETED}":  # a batch has none
            await self.give_back(event["tenant"], event["deployment"], job, attempt=int(attempts) + 1)

    async def _owe_webhooks(self, event: Mapping[str, Any], *, at: float, url: str) -> None:
        notice = of_job(event, at=at, url=url)
        if not self.webhooks.concerns(event["tenant"], notice):
            return
        if notice.type == "response.completed" and await self.replies.is_cut_short(event):
            notice = replace(notice, type="response.incomplete")
        await self.webhooks.owe(event["tenant"], notice)

    async def give_back(self, tenant: str, deployment: str, job_id: str, *, attempt: int = 1) -> None:
        """What may be reserved for a call that is not made: by the door, or a worker that died before it."""
        rid = reservation_id(job_id, attempt)
        await self.quotas.release(deployment_slot(deployment), rid)
        await self.quotas.release(tenant_slot(tenant), rid, unclaimed=unclaimed_name(rid, deployment))


def unclaimed_name(rid: str, deployment: str) -> str:
    """What a sweeper needs to give back a reservation of the door's, should its job never come."""
    return f"{rid} {deployment}"


def reservation_id(job_id: str, attempt: int) -> str:
    """The name under which an attempt reserves its quota, at the door or in the worker."""
    return f"{job_id}:{attempt}"
