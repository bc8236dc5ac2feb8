"""The webhooks that are owed, in Redis: which event to which URL, when next, and what came of it so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import structlog

from policies.scripts import Script, Scripts, Value
from policies.tenants import Tenant
from policies.webhooks import Endpoint
from router import compact, responses

log = structlog.get_logger(__name__)

CHANNEL = "webhooks"  # whoever sends listens here; a message is a tenant's name
MOST_DEAD = 10_000  # of a tenant; the oldest go first


@dataclass(frozen=True, slots=True)
class Notice:
    """An event as receivers get it. `url` is the one that the job itself named, beside the tenant's endpoints.

    The end of a batch's line is no news for the endpoints, which are told of the batch's.
    """

    id: str
    type: str
    created_at: int
    object_id: str
    ours: Mapping[str, object]
    url: str = ""
    is_line: bool = False

    @property
    def body(self) -> str:
        """As OpenAI's events are; what is ours alone is under `pointsman`."""
        values = {"id": self.id, "object": "event", "type": self.type, "created_at": self.created_at}
        return compact.text({**values, "data": {"id": self.object_id}, "pointsman": self.ours})


@dataclass(frozen=True, slots=True)
class Owed:
    """A webhook that is to be sent now, for the `attempt`-th time (from 1). `age_s`: since it was owed.

    It goes to an `endpoint` of the tenant's settings, or where that is empty to the job's own `url`.
    """

    tenant: str
    name: str
    attempt: int
    age_s: float
    at: int  # this second, on Redis' clock
    endpoint: str
    url: str
    type: str
    body: bytes

    @property
    def event(self) -> str:
        """The event's id; it is the same at each attempt and for each receiver."""
        return self.name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Shown:
    """A webhook as an operator sees it. Moments are on Redis' clock; `at` is when it is due, or since when dead."""

    tenant: str
    name: str
    at: float
    owed_at: float
    attempts: int
    tried_at: float | None
    endpoint: str
    url: str
    type: str
    seen: str
    is_dead: bool


class Webhooks:
    """What is owed to the tenants' receivers. Every method raises `BoardUnavailableError` and may run twice."""

    def __init__(self, scripts: Scripts, tenants: Mapping[str, Tenant], *, most_waiting: int = 100_000) -> None:
        self._scripts = scripts
        self._tenants = tenants
        self._most_waiting = most_waiting
        self._owe, self._take, self._settle, self._page, self._resend = (
            Script.load("router", "board_functions", f"webhooks_{name}")
            for name in ("owe", "take", "settle", "page", "resend")
        )

    def concerns(self, tenant: str, notice: Notice) -> bool:
        """Whether anybody may want it; a Response that turns out to be incomplete has another type."""
        has_endpoints = tenant in self._tenants and bool(self._tenants[tenant].webhooks)
        return bool(notice.url) or (has_endpoints and not notice.is_line)

    async def owe(self, tenant: str, notice: Notice) -> None:
        """Let it be sent to whom it concerns, once each however often this is called for one id."""
        for endpoint in self._receivers(tenant, notice):
            await self._owe_to(tenant, endpoint, notice)

    async def take(self, tenant: str, *, most: int, lease_s: float) -> list[Owed]:
        """Those that are due, leased to the caller for so long: settle each, or it is due again after that."""
        answer = await self._run(self._take, tenant, "", most, int(lease_s * 1000))
        now, *rows = cast("list[Any]", answer)
        at = int(now) / 1000
        return [
            Owed(
                tenant=tenant,
                name=name.decode(),
                attempt=attempt,
                age_s=at - int(owed) / 1000,
                at=int(at),
                endpoint=endpoint.decode(),
                url=url.decode(),
                type=type.decode(),
                body=body,
            )
            for name, attempt, owed, endpoint, url, type, body in rows
        ]

    async def delivered(self, owed: Owed, seen: str) -> None:
        """The receiver has it."""
        await self._settled(owed, "delivered", seen)

    async def again(self, owed: Owed, seen: str, *, wait_s: float) -> None:
        """The receiver has not said that it has it; `seen` is what happened instead."""
        await self._settled(owed, "again", seen, wait_s)

    async def unsent(self, owed: Owed, *, wait_s: float) -> None:
        """There was no room to send it now."""
        await self._settled(owed, "unsent", "", wait_s)

    async def dead(self, owed: Owed, seen: str) -> None:
        """It is not tried again by itself."""
        await self._settled(owed, "dead", seen)

    async def waiting(self, tenant: str, *, after: int = 0, most: int = 100) -> list[Shown]:
        """Those that wait, the next one first; `after` so many."""
        return await self._shown(tenant, "webhooks", after, most)

    async def given_up(self, tenant: str, *, after: int = 0, most: int = 100) -> list[Shown]:
        """The dead ones, the oldest first."""
        return await self._shown(tenant, "webhooks:dead", after, most)

    async def resend(self, tenant: str, name: str) -> bool:
        """Try it again at once, with as much patience as a new one. False when there is none of that name."""
        return bool(await self._run(self._resend, tenant, name, CHANNEL, tenant, durable=True))

    def receiver(self, owed: Owed) -> Endpoint | None:
        """Where it goes and what signs it, by the settings of now; None when they do not have it any more."""
        tenant = self._tenants.get(owed.tenant)
        if tenant is None:
            return None
        if owed.endpoint:
            return tenant.webhooks.get(owed.endpoint)
        return Endpoint(owed.url, (), tenant.webhook_secrets) if tenant.webhook_secrets else None

    def _receivers(self, tenant: str, notice: Notice) -> list[str]:
        """Names of endpoints; the URL that the job named has none."""
        known = self._tenants.get(tenant)
        endpoints = {} if known is None or notice.is_line else known.webhooks
        names = [name for name, to in endpoints.items() if to.wants(notice.type)]
        return [*names, ""] if notice.url else names

    async def _owe_to(self, tenant: str, endpoint: str, notice: Notice) -> None:
        url = "" if endpoint else notice.url
        fields: list[Value] = ["endpoint", endpoint, "url", url, "type", notice.type, "body", notice.body]
        owed = f"{notice.id}:{endpoint}" if endpoint else notice.id
        arguments: list[Value] = [self._most_waiting, CHANNEL, tenant]
        if await self._run(self._owe, tenant, owed, *arguments, *fields, durable=True) == b"full":
            log.error("webhook_dropped", tenant=tenant, webhook=owed, most_waiting=self._most_waiting)

    async def _settled(self, owed: Owed, outcome: str, seen: str, wait_s: float = 0.0) -> None:
        arguments: Sequence[Value] = [owed.attempt, outcome, int(wait_s * 1000), seen, MOST_DEAD]
        await self._run(self._settle, owed.tenant, owed.name, *arguments, durable=outcome != "unsent")

    async def _shown(self, tenant: str, which: str, after: int, most: int) -> list[Shown]:
        rows = cast("list[list[bytes]]", await self._run(self._page, tenant, "", which, after, most))
        return [
            Shown(
                tenant=tenant,
                name=name.decode(),
                at=int(at) / 1000,
                owed_at=int(owed) / 1000,
                attempts=int(attempts),
                tried_at=int(tried) / 1000 if tried else None,
                endpoint=endpoint.decode(),
                url=url.decode(),
                type=type.decode(),
                seen=seen.decode(),
                is_dead=which != "webhooks",
            )
            for name, at, owed, attempts, tried, endpoint, url, type, seen in rows
        ]

    async def _run(self, script: Script, tenant: str, name: str, *arguments: Value, durable: bool = False) -> object:
        prefix = f"{{t:{tenant}}}:"
        return await self._scripts.run(script, [f"{prefix}webhook:{name}"], [prefix, name, *arguments], durable=durable)


def of_job(event: Mapping[str, Any], *, at: float, url: str) -> Notice:
    """The notice of a job's terminal event, or of a batch's. `at` is when it ended."""
    job, kind = str(event["data"]["id"]), str(event["type"])
    if kind.startswith("job.") and event["endpoint"] == responses.ENDPOINT:  # OpenAI has none for one that expired
        end = "failed" if kind == "job.expired" else kind.removeprefix("job.")
        job, kind = job.replace("job_", "resp_", 1), f"response.{end}"
    ours = {name: event[name] for name in ("metadata", "usd", "error_code")}
    return Notice(event["id"], kind, int(at), job, ours, url, is_line=bool(event.get("batch")))
