"""Jobs that wait for a batch job of the provider, or are in one: on the board, in the slot of their deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import cast

from policies.pricing import picodollars
from policies.quota import deployment_slot
from policies.scripts import Script, Scripts, Value
from policies.shipping import Waiting

KEPT_MS = 35 * 86_400_000  # of a shipment that is over, for people,
KEPT = 1000  # and how many of them


class Phase(StrEnum):
    """Where a record, or its shipment, is."""

    NOWHERE = "nowhere"
    WAITS = "waits"
    CLOSED = "closed"  # its shipment has a name, and may or may not be known to the provider
    SENT = "sent"  # the provider has it
    ENDED = "ended"  # the provider is done; its records are being concluded
    OVER = "over"


class How(StrEnum):
    """What became of a record."""

    ANSWERED = "answered"
    FAILED = "failed"
    LIVE = "live"  # it was given back
    CANCELLED = "cancelled"
    LATE = "late"  # its attempt had been concluded otherwise


@dataclass(frozen=True, slots=True)
class Shipment:
    """A shipment as the board knows it. `arn` is the provider's name of it, '' as long as that is not known.

    `counts` are its records by what became of them. `usd` is what they cost, `usd_live` what the same tokens would have
    cost live; `unpriced` is how many have no price.
    """

    id: str
    phase: Phase
    arn: str
    status: str
    closed_at: float
    size: int
    counts: Mapping[How, int]
    usd: Decimal
    usd_live: Decimal
    unpriced: int


class Shipments:
    """Every method raises `BoardUnavailableError`, and may run twice with the same effect."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._join = _script("join")
        self._look = _script("look")
        self._waiting = _script("waiting")
        self._close = _script("close")
        self._take = _script("take")
        self._note = _script("note")
        self._records = _script("records")
        self._tenants = _script("tenants")
        self._leave = _script("leave")
        self._end = _script("end")
        self._page = _script("page")
        self._adopt = _script("adopt")
        self._epoch = _script("epoch")

    async def join(self, deployment: str, record: str, *, tenant: str, expires_at: float, patience_s: float) -> bool:
        """Let it wait, if it has so long until its deadline. True also where it waits already, or is in a shipment."""
        args: list[Value] = [record, tenant, int(expires_at * 1000), int(patience_s * 1000)]
        return bool(await self._run(self._join, deployment, *args))

    async def look(self, deployment: str, record: str) -> tuple[float, Phase]:
        """The moment on the board's clock, and where the record is."""
        now, phase = cast("list[bytes]", await self._run(self._look, deployment, record))
        return int(now) / 1000, Phase(phase.decode())

    async def waiting(self, deployment: str, *, most: int) -> tuple[float, Sequence[Waiting]]:
        """The moment on the board's clock, and those that wait, the oldest first."""
        now, *rest = cast("list[bytes]", await self._run(self._waiting, deployment, most))
        pairs = zip(rest[::2], rest[1::2], strict=True)
        return int(now) / 1000, [Waiting(record.decode(), float(joined) / 1000) for record, joined in pairs]

    async def close(self, deployment: str, id: str, records: Sequence[str], *, least: int, due_s: float = 0.0) -> int:
        """Let these go out together, under a name that nobody else has. How many; 0: too few of them still wait."""
        return cast("int", await self._run(self._close, deployment, id, least, int(due_s * 1000), *records))

    async def take(self, deployment: str, *, lease_s: float, most: int) -> Sequence[Shipment]:
        """Those that are to be looked at, for nobody else until the lease is over."""
        rows = cast("list[list[bytes]]", await self._run(self._take, deployment, int(lease_s * 1000), most))
        return [_shipment(row) for row in rows]

    async def note(self, deployment: str, id: str, *, look_s: float, **known: str) -> bool:
        """It is to be looked at again in so long; its `phase`, `arn`, `status` as far as given. False: it is over."""
        fields = [value for pair in known.items() for value in pair]
        return bool(await self._run(self._note, deployment, id, int(look_s * 1000), *fields))

    async def records(self, deployment: str, id: str) -> dict[str, str]:
        """The tenants by record of what is still to be concluded; '' where its job has not come again yet."""
        return _pairs(await self._run(self._records, deployment, id))

    async def tenants(self, deployment: str, records: Sequence[str]) -> dict[str, str]:
        """Whose these are, of those that have not left."""
        return _pairs(await self._run(self._tenants, deployment, *records))

    async def leave(
        self, deployment: str, record: str, how: How, *, usd: Decimal | None = None, usd_live: Decimal | None = None
    ) -> tuple[str, int]:
        """It is concluded, or goes on without the others. Its shipment, '' if none, and how many that still has."""
        money = ["" if each is None else picodollars(each) for each in (usd, usd_live)]
        answer = await self._run(self._leave, deployment, record, how, *money)
        id, left = cast("tuple[bytes, int]", answer)
        return ("" if id == b"waiting" else id.decode()), left

    async def end(self, deployment: str, id: str) -> None:
        """Nothing of it is left to be concluded."""
        await self._run(self._end, deployment, id, KEPT_MS, KEPT)

    async def adopt(self, deployment: str, id: str, arn: str, records: Sequence[str]) -> int:
        """Follow a batch job that a lost board knew. How many of its records are in no other; 0 where it is known."""
        return cast("int", await self._run(self._adopt, deployment, id, arn, *records))

    async def epoch(self, deployment: str, whole: str = "") -> str:
        """The epoch of the board in which all this is known to be `whole`; '' for none."""
        return cast("bytes", await self._run(self._epoch, deployment, whole)).decode()

    async def page(self, deployment: str, *, most: int) -> tuple[int, Sequence[Shipment]]:
        """How many jobs wait, and the newest shipments."""
        waiting, *rows = cast("list[int | list[bytes]]", await self._run(self._page, deployment, most))
        return cast("int", waiting), [_shipment(cast("list[bytes]", row)) for row in rows]

    async def _run(self, script: Script, deployment: str, *args: Value) -> object:
        prefix = f"{deployment_slot(deployment)}:shipment:"
        return await self._scripts.run(script, [f"{prefix}waiting"], [prefix, *args], durable=True)


def record_of(job_id: str, attempt: int) -> str:
    """The name of one attempt at one job."""
    return f"{job_id}-{attempt}"


def job_of(record: str) -> tuple[str, int]:
    """The job and the attempt of a record."""
    job_id, _, attempt = record.rpartition("-")
    return job_id, int(attempt)


def _pairs(answer: object) -> dict[str, str]:
    found = [each.decode() for each in cast("list[bytes]", answer)]
    return dict(zip(found[::2], found[1::2], strict=True))


def _shipment(row: Sequence[bytes]) -> Shipment:
    id, *rest = (each.decode() for each in row)
    fields = dict(zip(rest[::2], rest[1::2], strict=True))
    return Shipment(
        id=id,
        phase=Phase(fields.get("phase", Phase.OVER)),
        arn=fields.get("arn", ""),
        status=fields.get("status", ""),
        closed_at=int(fields.get("closed", 0)) / 1000,
        size=int(fields.get("size", 0)),
        counts={how: int(fields[how]) for how in How if how in fields},
        usd=_dollars(fields.get("usd", "0")),
        usd_live=_dollars(fields.get("usd_live", "0")),
        unpriced=int(fields.get("unpriced", 0)),
    )


def _dollars(picodollars: str) -> Decimal:
    return Decimal(picodollars).scaleb(-12)


def _script(name: str) -> Script:
    return Script.load("consumers.aws", "shipments_functions", f"shipments_{name}")
