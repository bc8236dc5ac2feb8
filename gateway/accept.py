"""From a checked request to a job that cannot be lost: quota, board, log, and only then the client's answer."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import ceil
from types import MappingProxyType
from typing import Literal

from ulid import ULID

from gateway import render
from gateway.asked import Asked
from gateway.attached import Attached
from gateway.fields import invalid
from gateway.referred import Referred
from policies.addresses import may_be_asked
from policies.deployments import Deployment
from policies.keys import KeyHolder
from policies.quota import Exhausted, Granted, Quotas, Rooms, Scope, Shadow, Wait, deployment_scope, tenant_scope
from policies.scripts import BoardUnavailableError
from policies.tenants import Tenant
from router import envelope, responses
from router.board import Accepted, BatchOver, Board, JobView, KeyReused, QueueFull, Same
from router.choose import Chosen, NoRoute, choose
from router.compact import encode
from router.conversations import Conversations, Kept, Packed
from router.epoch import Epoch
from router.job import Job, JobClass, JobState, Line, Reply
from router.log import Log, LogUnavailableError
from router.outbox import reservation_id, unclaimed_name
from router.payloads import Payloads, body_path
from router.shares import Shares

# What each endpoint calls that which the model reads, where it is not `messages`.
CONTENT: Mapping[str, Literal["input", "prompt", "file"]] = MappingProxyType(
    {
        responses.ENDPOINT: "input",
        "/v1/embeddings": "input",
        "/v1/images/generations": "prompt",
        "/v1/videos": "prompt",
        "/v1/audio/speech": "input",
        "/v1/audio/transcriptions": "file",
    }
)
WITH_FILES = ("/v1/chat/completions", responses.ENDPOINT)
INLINE_BODY = 256 * 1024
HOLD_S = 60.0  # a waiting caller's place among its tenant's concurrent ones, until a worker renews it
LONGEST_TURN_S = 30.0  # for so long a worker keeps a job that waits; one that waits longer is no answer to a caller
SHOWN_BODY = "/v1/videos"  # what was asked for is part of this object, whenever somebody looks
EARLIER_REQUEST_S = 1.0  # longer than the log takes to confirm on any good day
LOOK_S = 0.1
LINES_PART = 0.75  # of a tenant's unfinished jobs: the rest is for jobs that are no lines of batches
LINE_KEPT_S = 86_400.0  # beyond its deadline; its result is in a file of the batch long before


def _ignore(_: int) -> None:
    return


class NoRouteError(Exception):
    """No deployment fits; `route` says what is missing."""

    def __init__(self, route: NoRoute) -> None:
        super().__init__(route.message)
        self.route = route


class OverQuotaError(Exception):
    """A caller who waits in the open is over a limit of its tenant's, or would wait too long for its deployment's."""

    def __init__(self, limit: str, scope: str, seconds: float | None, rooms: Rooms) -> None:
        super().__init__(f"over {limit} of {scope}")
        self.limit = limit
        self.scope = scope
        self.seconds = seconds  # None: not before the budget's next period
        self.rooms = rooms


class QueueFullError(Exception):
    """The tenant has as many unfinished jobs as it may."""


class BatchOverError(Exception):
    """The job is a line of a batch that takes no more of them."""


class IdempotencyKeyReusedError(Exception):
    """The key came with another body before."""


class UnknownTenantError(Exception):
    """The key's tenant is not in the settings any more."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The job as it was accepted. `existing`: the idempotency key had made it before. `rooms`: for a waiting caller."""

    view: JobView
    existing: bool = False
    rooms: Rooms = field(default_factory=Rooms)
    shadows: tuple[Shadow, ...] = ()


@dataclass(frozen=True, slots=True)
class Desk:
    """Accepts jobs.

    Webhooks may go to `allowed_hosts` wherever these are.
    """

    board: Board
    epoch: Epoch
    log: Log
    quotas: Quotas
    payloads: Payloads
    tenants: Mapping[str, Tenant]
    deployments: Mapping[str, Deployment]
    shares: Shares
    attached: Attached
    allowed_hosts: Collection[str] = ()

    async def accept(
        self,
        holder: KeyHolder,
        asked: Asked,
        *,
        endpoint: str,
        raw: bytes,
        values: Mapping[str, object],
        idempotency_key: str | None = None,
        channel: str = "",
        traceparent: str | None = None,
        job_id: str | None = None,
        deadline_s: float | None = None,
        hold: Callable[[int], None] = _ignore,
        reply: Reply | None = None,
        line: Line | None = None,
    ) -> Acceptance:
        """Return once the log has the job. With a `channel` the caller waits: its tenant's quota is taken or refused.

        Callers other than HTTP may give the `job_id` (a ULID, the same for the same work: twice is then once), and a
        `deadline_s` that stands above the request's and the tenant's. `hold` is told how many bytes more are held.
        `reply` is where the job's answer goes. A batch's `line` is of class bulk, and its result is kept until
        the batch has it. `values` are changed where they name uploaded files, or items of earlier responses:
        these are put in.
        Raises the errors of this module, of `gateway.attached` and `gateway.referred`, `LogUnavailableError`,
        `BoardUnavailableError`, `PayloadUnavailableError`.
        """
        if self.epoch.fault is not None:  # an idempotency key would be taken for a new one
            raise BoardUnavailableError(self.epoch.fault)
        tenant = self.tenants.get(holder.tenant)
        if tenant is None:
            raise UnknownTenantError(holder.tenant)
        if asked.wishes.webhook_url:
            self._check_webhook(asked.wishes.webhook_url, tenant)
        digests = _digests(idempotency_key, endpoint, raw)
        raw = await self._with_what_it_names(tenant.name, endpoint, raw, values, hold)
        job_id = job_id or str(ULID())
        conversation = None
        if endpoint == responses.ENDPOINT:
            values, conversation = await self._in_chat_form(tenant.name, job_id, values)
            hold(len(conversation.items))
        chosen = self._choose(endpoint, asked, values, tenant, len(raw))
        job = _job(job_id, holder, tenant, asked, chosen, endpoint=endpoint, raw=raw, traceparent=traceparent)
        if deadline_s is None:
            deadline_s = min(asked.wishes.deadline_s or tenant.deadline_s, tenant.deadline_s)
        most_unfinished = tenant.max_unfinished
        if line is not None:
            job = replace(job, line=line, job_class=JobClass.BULK, result_ttl_s=deadline_s + LINE_KEPT_S)
            most_unfinished = ceil(most_unfinished * LINES_PART)
        scope, granted = None, Granted()
        if channel:
            scope = tenant_scope(tenant, deployment=chosen.route.deployment, key=holder.name)
            granted = await self._reserve(job, scope, deadline_s)
            job = replace(job, is_reserved=bool(scope.parts), is_waited_for=True)
        if reply is not None:
            job = replace(job, reply=reply)
        try:
            if len(raw) > INLINE_BODY or endpoint == SHOWN_BODY:
                job = replace(job, payload=await self.payloads.put(body_path(job.tenant, job.id), raw))
            headers = envelope.to_headers(job)
            answer = await self.board.accept(
                job,
                headers=headers,
                deadline_s=deadline_s,
                idempotency=digests,
                most_unfinished=most_unfinished,
                most_in_class=tenant.max_in_class,
                channel=channel,
                unclaimed=_unclaimed(job, scope),
            )
            if isinstance(answer, Accepted):
                job = replace(job, created_at=answer.created_at, expires_at=answer.expires_at, queue=answer.queue)
                queued = await self._enqueue(job, conversation, headers)
                return Acceptance(queued, rooms=granted.rooms, shadows=granted.shadows)
        except BaseException:
            await self._give_back(job, scope)
            raise
        await self._give_back(job, scope)
        if job.payload is not None:
            await self.payloads.remove(job.payload.path)
        return await self._refused(answer, job, conversation, channel)

    async def where(
        self, holder: KeyHolder, asked: Asked, endpoint: str, values: Mapping[str, object], *, size: int
    ) -> Chosen:
        """Where such a job would go. Raises as `accept` does, for what it looks at up to there."""
        tenant = self.tenants.get(holder.tenant)
        if tenant is None:
            raise UnknownTenantError(holder.tenant)
        if endpoint == responses.ENDPOINT:
            await self._referred.put_in(tenant.name, values, size=size, hold=_ignore)
            values, _ = await self._in_chat_form(tenant.name, str(ULID()), values)
        return self._choose(endpoint, asked, values, tenant, size)

    async def _with_what_it_names(
        self, tenant: str, endpoint: str, raw: bytes, values: Mapping[str, object], hold: Callable[[int], None]
    ) -> bytes:
        """The request with items of earlier responses, and then uploaded files, in the place of their ids."""
        if endpoint == responses.ENDPOINT and await self._referred.put_in(tenant, values, size=len(raw), hold=hold):
            raw = encode(values)
            hold(len(raw))
        if endpoint in WITH_FILES and await self.attached.put_in(tenant, values, size=len(raw), hold=hold):
            raw = encode(values)
            hold(len(raw))
        return raw

    @property
    def _referred(self) -> Referred:
        return Referred(self._conversations, self.attached.most)

    @property
    def _conversations(self) -> Conversations:
        return Conversations(self.board, self.payloads)

    async def _in_chat_form(
        self, tenant: str, job_id: str, values: Mapping[str, object]
    ) -> tuple[Mapping[str, object], Packed]:
        """What the model will read, for the router, and what is to be kept of it."""
        items = []
        if (previous := values.get("previous_response_id")) is not None:
            items = await self._conversations.until(tenant, render.job_id(str(previous)) or "")
        items += responses.items_of(values, job_id, first=len(items))
        return responses.to_chat(values, items), Kept(responses.echo_of(values), items).packed

    def _check_webhook(self, url: str, tenant: Tenant) -> None:
        path = "pointsman.webhook_url"
        if not tenant.webhook_secrets:
            raise invalid(path, "this tenant has no secret to sign with; the operator sets its 'webhook_secret'")
        if not may_be_asked(url, self.allowed_hosts):
            raise invalid(path, "expected an https URL that leads to a public host")

    def _choose(self, endpoint: str, asked: Asked, values: Mapping[str, object], tenant: Tenant, size: int) -> Chosen:
        route = choose(
            endpoint,
            asked.model,
            values,
            tenant=tenant,
            deployments=self.deployments,
            shares=self.shares,
            max_usd=asked.wishes.max_usd,
            deadline_s=asked.wishes.deadline_s,
            size=size,
        )
        if isinstance(route, NoRoute):
            if route.param == "messages":
                route = replace(route, param=CONTENT.get(endpoint, "messages"))
            raise NoRouteError(route)
        return route

    async def _reserve(self, job: Job, scope: Scope, deadline_s: float) -> Granted:
        """Take its tenant's part, and see that its deployment's can be had soon: its worker takes that in turn."""
        deployment = deployment_scope(self.deployments[job.route.deployment]).without_places
        there = await self.quotas.look(deployment, tokens=job.estimate.tokens, usd=job.estimate.usd)
        if isinstance(there, Exhausted) or (isinstance(there, Wait) and there.seconds > LONGEST_TURN_S):
            raise _over(there)
        verdict = await self.quotas.reserve(
            scope,
            reservation_id(job.id, 1),
            tokens=job.estimate.tokens,
            usd=job.estimate.usd,
            hold_s=HOLD_S,
            ttl_s=deadline_s + 3600,
            unclaimed=_unclaimed(job, scope),
        )
        if not isinstance(verdict, Granted):
            raise _over(verdict)
        return replace(verdict, states=verdict.states + there.states)

    async def _give_back(self, job: Job, scope: Scope | None) -> None:
        if scope is not None:
            with suppress(BoardUnavailableError):
                await self.quotas.refund(scope, reservation_id(job.id, 1), unclaimed=_unclaimed(job, scope))

    async def _enqueue(
        self, job: Job, conversation: Packed | None, headers: Mapping[str, str] | None = None
    ) -> JobView:
        """Put it on the log. One that the log does not confirm is fenced off, unless a worker already has it."""
        if conversation is not None:  # before a worker may ask for it
            kept_s = job.expires_at - job.created_at + job.result_ttl_s
            await self._conversations.keep(job, conversation, ttl_s=kept_s)
        try:
            await self.log.append(job.topic, envelope.to_record(job, headers))
            state = await self.board.confirm(job.tenant, job.id)
        except LogUnavailableError:
            state = await self.board.reject(job.tenant, job.id)
            if state is JobState.REJECTED:
                raise
        if state is JobState.REJECTED:
            raise LogUnavailableError("the log confirmed so late that the job had been given up")
        return JobView.of(job, state)

    async def _refused(
        self, answer: Same | KeyReused | QueueFull | BatchOver, again: Job, conversation: Packed | None, channel: str
    ) -> Acceptance:
        match answer:
            case Same(known):
                return Acceptance(await self._confirmed(known, again, conversation, channel), existing=True)
            case KeyReused():
                raise IdempotencyKeyReusedError
            case QueueFull():
                raise QueueFullError
            case BatchOver():
                raise BatchOverError

    async def _confirmed(self, job_id: str, again: Job, conversation: Packed | None, channel: str) -> JobView:
        """The job of an earlier request with the same body, once the log has it.

        That request may still be under way. Its gateway may have died as well: then the job goes on the log from
        here. Should it be there twice, it is run once all the same.
        """
        view = await self._known(job_id, again, channel)
        for _ in range(int(EARLIER_REQUEST_S / LOOK_S)):
            if view.state is not JobState.ACCEPTING:
                return view
            await asyncio.sleep(LOOK_S)
            view = await self._known(job_id, again, channel)
        if view.state is JobState.ACCEPTING:
            await self._enqueue(replace(view.job, body=again.body), conversation)
        return await self._known(job_id, again, channel)

    async def _known(self, job_id: str, again: Job, channel: str) -> JobView:
        view = await self.board.view(again.tenant, job_id, channel=channel)
        if view is None or view.state is JobState.REJECTED:
            raise LogUnavailableError("an earlier request with this idempotency key was not confirmed")
        return view


def _job(
    job_id: str,
    holder: KeyHolder,
    tenant: Tenant,
    asked: Asked,
    chosen: Chosen,
    *,
    endpoint: str,
    raw: bytes,
    traceparent: str | None,
) -> Job:
    wishes = asked.wishes
    return Job(
        id=job_id,
        tenant=tenant.name,
        endpoint=endpoint,
        model=asked.model,
        job_class=asked.job_class or (JobClass.INTERACTIVE if asked.waits else JobClass.STANDARD),
        route=chosen.route,
        estimate=chosen.estimate,
        body=raw,
        created_at=0.0,
        expires_at=0.0,
        result_ttl_s=min(wishes.result_ttl_s or tenant.result_ttl_s, tenant.max_result_ttl_s),
        stream=asked.stream,
        metadata=asked.metadata,
        traceparent=traceparent,
        reruns_allowed=tenant.reruns_allowed,
        max_usd=wishes.max_usd,
        webhook_url=wishes.webhook_url,
        key_id=holder.id,
        limited_key=holder.name if holder.name in tenant.key_limits else "",
    )


def _over(verdict: Wait | Exhausted) -> OverQuotaError:
    seconds = verdict.seconds if isinstance(verdict, Wait) else None
    return OverQuotaError(verdict.limit, verdict.scope, seconds, verdict.rooms)


def _unclaimed(job: Job, scope: Scope | None) -> str:
    """The name of what is reserved for it, until the board has it; empty when that is nothing."""
    is_reserved = scope is not None and bool(scope.parts)
    return unclaimed_name(reservation_id(job.id, 1), job.route.deployment) if is_reserved else ""


def _digests(key: str | None, endpoint: str, raw: bytes) -> tuple[str, str] | None:
    if key is None:
        return None
    return sha256(key.encode()).hexdigest(), sha256(endpoint.encode() + b"\0" + raw).hexdigest()
