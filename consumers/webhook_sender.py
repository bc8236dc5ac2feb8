"""Sends the webhooks that are owed. Any number may run: each webhook that one sends is leased to it."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import structlog

from consumers.meters import WebhookMeters
from consumers.outbound import Outbound, OutboundError
from consumers.refusals import retry_after
from policies import webhooks as rules
from policies.ending import ended
from policies.scripts import BoardUnavailableError
from policies.webhooks import Again, GiveUp
from router.wakeups import Wakeups
from router.webhooks import Owed, Webhooks

log = structlog.get_logger(__name__)

AWAY_S = 0.5
ROOM_S = 1.0  # until one is looked at again for whose host there was no room


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many are on their way at once: from this process, of a tenant, to a host. Seconds for one attempt."""

    at_once: int = 64
    per_tenant: int = 32
    per_host: int = 8
    timeout_s: float = 15.0

    @property
    def lease_s(self) -> float:
        """Longer than an attempt and its settling take."""
        return self.timeout_s + 5.0


@dataclass(slots=True)
class WebhookSender:
    """Looks at a tenant's webhooks when it is woken for it, and at everybody's each `every_s`.

    Delivered is what was answered with a 2xx. If the process dies after that and before it is written down,
    the webhook is sent again under the same id.
    """

    webhooks: Webhooks
    outbound: Outbound
    wakeups: Wakeups
    tenants: Collection[str]
    meters: WebhookMeters
    bounds: Bounds = field(default_factory=Bounds)
    every_s: float = 1.0
    jitter: Callable[[], float] = random.random
    _to_look_at: set[str] = field(default_factory=set)
    _of_tenant: "Counter[str]" = field(default_factory=Counter)
    _to_host: "Counter[str]" = field(default_factory=Counter)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop`; what is on its way by then is finished."""
        with ExitStack() as listening:
            for tenant in self.tenants:
                listening.enter_context(self.wakeups.on(tenant, partial(self._look_at, tenant)))
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(each) for each in (self.wakeups.follow(), self._tick(), self._heed(stop))]
                while not stop.is_set():
                    self._changed.clear()
                    await self._round(tasks)
                    await self._changed.wait()
                await ended(*beside)

    def _look_at(self, *tenants: str) -> None:
        self._to_look_at.update(tenants)
        self._changed.set()

    async def _tick(self) -> None:
        while True:
            self._look_at(*self.tenants)
            await asyncio.sleep(self.every_s)

    async def _heed(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()

    async def _round(self, tasks: asyncio.TaskGroup) -> None:
        """Take what there is room for, of each tenant that may have some."""
        for tenant in sorted(self._to_look_at, key=lambda tenant: self._of_tenant[tenant]):
            room = min(self.bounds.at_once - self._of_tenant.total(), self.bounds.per_tenant - self._of_tenant[tenant])
            if room <= 0:
                continue  # it is looked at again when one of those that are under way is over
            self._to_look_at.discard(tenant)
            try:
                due = await self.webhooks.take(tenant, most=room, lease_s=self.bounds.lease_s)
            except BoardUnavailableError as error:
                log.warning("webhooks_put_off", error=type(error).__name__)
                await asyncio.sleep(AWAY_S)
                return
            if len(due) == room:
                self._to_look_at.add(tenant)
            for owed in due:
                self._of_tenant[tenant] += 1
                tasks.create_task(self._one(owed))

    async def _one(self, owed: Owed) -> None:
        try:
            await self._send(owed)
        except BoardUnavailableError:  # its lease runs out, and it is sent again
            log.warning("webhook_not_settled", tenant=owed.tenant, webhook=owed.name)
        except Exception:  # a bug, which is not to be in the way of all the others
            log.exception("webhook_crashed", tenant=owed.tenant, webhook=owed.name)
        finally:
            self._of_tenant[owed.tenant] -= 1
            if owed.tenant in self._to_look_at:
                self._changed.set()

    async def _send(self, owed: Owed) -> None:
        to = self.webhooks.receiver(owed)
        if to is None:
            await self.webhooks.dead(owed, "not_in_settings")
            self._said(owed, "dead", "not_in_settings")
            return
        host = urlsplit(to.url).netloc
        if self._to_host[host] >= self.bounds.per_host:
            await self.webhooks.unsent(owed, wait_s=ROOM_S * (1 + self.jitter()))
            return
        self._to_host[host] += 1
        try:
            headers = rules.headers(to.secrets, owed.event, owed.at, owed.body)
            answer = await self.outbound.send(
                "POST",
                to.url,
                headers={**headers, "content-type": "application/json"},
                body=owed.body,
                timeout_s=self.bounds.timeout_s,
            )
        except OutboundError as error:
            await self._failed(owed, str(error), None, None)
        else:
            if 200 <= answer.status < 300:
                await self.webhooks.delivered(owed, str(answer.status))
                self._said(owed, "delivered", str(answer.status))
            else:
                asked = retry_after(answer.headers, owed.at)
                await self._failed(owed, str(answer.status), answer.status, asked)
        finally:
            self._to_host[host] -= 1
            if not self._to_host[host]:
                del self._to_host[host]

    async def _failed(self, owed: Owed, seen: str, status: int | None, asked_s: float | None) -> None:
        verdict = rules.after_failure(
            attempt=owed.attempt, age_s=owed.age_s, status=status, retry_after=asked_s, jitter=self.jitter()
        )
        match verdict:
            case Again(seconds):
                await self.webhooks.again(owed, seen, wait_s=seconds)
                self._said(owed, "failed", seen)
            case GiveUp():
                await self.webhooks.dead(owed, seen)
                self._said(owed, "dead", seen)

    def _said(self, owed: Owed, outcome: str, seen: str) -> None:
        self.meters.webhook(outcome)
        level = 20 if outcome == "delivered" else 30
        log.log(level, f"webhook_{outcome}", tenant=owed.tenant, webhook=owed.name, attempt=owed.attempt, seen=seen)
