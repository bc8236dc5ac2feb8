"""The door for other services: records on the inbox become jobs, by the same rules as requests over HTTP."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import structlog

from consumers.dead import bury
from gateway import body
from gateway.accept import Acceptance, Desk, UnknownTenantError
from gateway.asked import idempotency_key, trace
from gateway.auth import authenticate
from gateway.body import InvalidRequestError
from gateway.errors import ApiError, as_api_error
from gateway.metrics import InboxMetrics
from gateway.parsers import PARSERS
from gateway.reading import TooLargeError
from policies.ending import ended
from policies.keys import ApiKeys, KeyHolder
from policies.scripts import BoardUnavailableError
from policies.tenants import Tenant
from router import topics
from router.job import Reply
from router.log import Delivery, Log, LogUnavailableError, Record, Subscription, subscribed
from router.payloads import PayloadUnavailableError
from router.replies import Replies

log = structlog.get_logger(__name__)

GROUP = "inbox"
ENDPOINTS = tuple(sorted(PARSERS.keys() - {"/v1/audio/transcriptions"}))  # all but the one that takes a form
LONGEST_CORRELATION = 255  # characters
KEPT = ("endpoint", "idempotency-key", "reply-topic", "correlation-id", "traceparent")  # headers of a buried record
DRAIN_S = 5.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0
AWAY = (BoardUnavailableError, LogUnavailableError, PayloadUnavailableError)  # waiting helps


@dataclass(slots=True)
class Inbox:
    """Takes records off the inbox, at most `at_once` at the same time. Any number may run.

    A record is done once its job is on the log, or once it is buried and its refusal answered. A process that dies
    before that leaves the record to another one: the job is then the same, and a refusal comes again under its id.
    `trusts_tenants`: who may write to the topic may say for whom.
    """

    log: Log
    desk: Desk
    keys: ApiKeys
    tenants: Mapping[str, Tenant]
    replies: Replies
    metrics: InboxMetrics
    at_once: int
    max_body: int
    trusts_tenants: bool

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`; what is not done then comes again elsewhere."""
        async with (
            subscribed(self.log, [topics.INBOX], group=GROUP) as subscription,
            asyncio.TaskGroup() as tasks,
        ):
            under_way: set[asyncio.Task[None]] = set()
            while not stop.is_set():
                try:
                    deliveries = await subscription.take(self.at_once - len(under_way))
                except LogUnavailableError as error:
                    log.warning("inbox_put_off", error=type(error).__name__)
                    await asyncio.sleep(FIRST_WAIT_S)
                    continue
                for delivery in deliveries:
                    task = tasks.create_task(self._until_done(subscription, delivery))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            if under_way:
                await asyncio.wait(under_way, timeout=DRAIN_S)
            await ended(*under_way)

    async def _until_done(self, subscription: Subscription, delivery: Delivery) -> None:
        """Handle one, however long what it needs is away."""
        wait = FIRST_WAIT_S
        while True:
            try:
                await self.handle(delivery)
                await subscription.done(delivery)
                return
            except AWAY as error:
                log.warning("inbox_record_put_off", position=delivery.position, error=type(error).__name__)
                await asyncio.sleep(wait)
                wait = min(LONGEST_WAIT_S, 2 * wait)

    async def handle(self, delivery: Delivery) -> None:
        """Make it a job, or bury it and answer why not. Raises those of `AWAY`; then nothing is lost by a repeat."""
        letter = Letter(delivery)
        try:
            accepted = await self._accept(letter)
        except AWAY:
            raise
        except Exception as error:  # by the record's fault, or a bug: it must not be in the way of the others
            await self._refuse(letter, error)
            return
        self.metrics.record("repeated" if accepted.existing else "accepted")
        if accepted.existing and accepted.view.state.is_terminal and letter.reply.topic:
            await self.replies.again(accepted.view, letter.reply)

    async def _accept(self, letter: "Letter") -> Acceptance:
        headers, raw = letter.delivery.record.headers, letter.delivery.record.value
        letter.read_correlation()
        letter.holder = await self._holder(headers)
        letter.read_reply(self.tenants[letter.holder.tenant].reply_topics)
        endpoint = headers.get("endpoint", "")
        if endpoint not in ENDPOINTS:
            known = ", ".join(ENDPOINTS)
            raise InvalidRequestError(f"Invalid 'endpoint': expected one of {known}.", "endpoint", "invalid_value")
        if len(raw) > self.max_body:
            raise TooLargeError(self.max_body)
        key = idempotency_key(headers.get("idempotency-key"))
        values = body.parse(raw)
        asked = PARSERS[endpoint](values, prefers_async=True)
        return await self.desk.accept(
            letter.holder,
            asked,
            endpoint=endpoint,
            raw=raw,
            values=values,
            idempotency_key=letter.name if key is None else key,
            traceparent=trace(headers.get("traceparent", "")),
            reply=letter.reply,
        )

    async def _holder(self, headers: Mapping[str, str]) -> KeyHolder:
        tenant = headers.get("tenant")
        if self.trusts_tenants and tenant is not None and "authorization" not in headers:
            if tenant not in self.tenants:
                raise UnknownTenantError(tenant)
            return KeyHolder(tenant, "")
        return await authenticate(self.keys, self.tenants, self.desk.epoch, headers.get("authorization"))

    async def _refuse(self, letter: "Letter", error: Exception) -> None:
        """Bury it, and say why to whoever asked, or where nobody is known to have, on the events."""
        shown = as_api_error(error, request_id=letter.id)
        if shown.status >= 500:
            log.error("inbox_record_crashed", position=letter.delivery.position, exc_info=error)
        reason, now = "crashed" if shown.status >= 500 else "refused", await self.desk.board.now()
        await bury(self.log, letter.without_key, reason, shown.message)
        await self.replies.refuse(letter.refusal(shown), letter.reply, at=now)
        self.metrics.record(reason)


@dataclass(slots=True)
class Letter:
    """A record, and what is known of it so far. Until its holder is, nobody has the right to an answer elsewhere."""

    delivery: Delivery
    holder: KeyHolder | None = None
    reply: Reply = field(default_factory=Reply)

    @property
    def name(self) -> str:
        """Stands for this record as an idempotency key, and is none that a client can send."""
        digest = sha256(self.delivery.record.value).hexdigest()
        return f"\0{self.delivery.topic} {self.delivery.position} {digest}"

    @property
    def id(self) -> str:
        """The same whenever this record comes."""
        return sha256(self.name.encode()).hexdigest()[:26]

    @property
    def without_key(self) -> Delivery:
        """As it is buried: with the key's id in place of the key, and with no header that could make it a job."""
        record = self.delivery.record
        headers = {name: record.headers[name] for name in KEPT if name in record.headers}
        if self.holder is not None:
            headers |= {"tenant": self.holder.tenant, "key": self.holder.id}
        return replace(self.delivery, record=Record(record.value, headers))

    def read_correlation(self) -> None:
        """Raises `InvalidRequestError`."""
        given = self.delivery.record.headers.get("correlation-id", "")
        if len(given) > LONGEST_CORRELATION or not (given.isascii() and (given.isprintable() or not given)):
            raise _wrong("correlation-id", f"expected at most {LONGEST_CORRELATION} visible ASCII characters")
        self.reply = Reply("", given)

    def read_reply(self, allowed: Collection[str]) -> None:
        """Raises `InvalidRequestError`."""
        topic = self.delivery.record.headers.get("reply-topic", "")
        if topic and topic not in allowed:
            raise _wrong("reply-topic", "the operator has not allowed it for this tenant (its setting 'reply_topics')")
        self.reply = replace(self.reply, topic=topic)

    def refusal(self, error: ApiError) -> dict[str, object]:
        """The answer: an event like a failed job's, of no job."""
        return {
            "id": f"evt_{self.id}",
            "type": "job.failed",
            "tenant": self.holder.tenant if self.holder else None,
            "data": {"id": None},
            "error_code": error.code or error.type,
            "error": error.body["error"],
            "result": None,
        }


def _wrong(header: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"Invalid '{header}': {why}.", header, "invalid_value")
