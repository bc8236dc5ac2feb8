"""Batches on the board: what was asked for, how far it is, what became of it. Each change is one script.

The counts are kept by the scripts that conclude jobs, and so are exact whatever dies when.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from hashlib import sha256
from typing import Any, cast

from ulid import ULID

from policies.scripts import Script, Scripts, Value
from router import compact
from router.files import Purpose, file_path
from router.ledger import plain

CREATED = "batches"  # the channel on which every driver hears of new ones
KEPT_S = 30 * 86_400.0  # after its end


class BatchState(StrEnum):
    """Where a batch is, as OpenAI names it. The last four never change any more."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether this state never changes."""
        return self in ENDS


ENDS = frozenset({BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED})


@dataclass(frozen=True, slots=True)
class Order:
    """What a client asked for. Seconds; `key_id` and `key_name` are of the API key that brought it."""

    endpoint: str
    input: str
    input_bytes: int
    window_s: float
    metadata: Mapping[str, str]
    key_id: str
    key_name: str
    output_ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as the board knows it now. Moments are seconds since the epoch, on Redis' clock.

    `total` is None until the input was read. `offset` is how many of its bytes were made into jobs (or written as never
    run), `written` how many lines that have ended are in segments of the files, `to_write` how many are not.
    `ending` is how it will end. `usd` is what is priced, `wasted` what of it bought no answer; `unpriced` counts the
    attempts that have no price.
    """

    id: str
    tenant: str
    order: Order
    state: BatchState
    created_at: float
    expires_at: float
    now: float
    moments: Mapping[BatchState, float]
    total: int | None
    offset: int
    written: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    open: int
    to_write: int
    ending: BatchState | None
    usd: Decimal
    wasted: Decimal
    unpriced: int
    attempts: int
    concluded: int
    tokens: Mapping[str, int]
    errors: Sequence[Mapping[str, object]]
    output: str | None
    error: str | None
    events: int

    @property
    def name(self) -> str:
        """What wakes those who follow it."""
        return batch_key(self.tenant, self.id)

    @property
    def ended(self) -> int:
        """Lines that are over, however."""
        return self.completed + self.failed + self.cancelled + self.expired

    @property
    def estimate_of_rest(self) -> Decimal | None:
        """Dollars, at what a line has cost so far; None until that is known."""
        if not self.concluded or self.unpriced or self.total is None:
            return None
        rest = 0 if self.state.is_terminal else max(0, self.total - self.ended)
        return round(self.usd / self.concluded * rest, 12)

    @property
    def items_per_minute(self) -> float | None:
        """Lines that ended, a minute; None before the first."""
        began = self.moments.get(BatchState.IN_PROGRESS)
        until = min([self.now, *(self.moments[end] for end in ENDS if end in self.moments)])
        if began is None or not self.ended or until <= began:
            return None
        return round(self.ended * 60 / (until - began), 1)

    @property
    def is_read(self) -> bool:
        """Whether no line is left to be made into a job."""
        return self.offset >= self.order.input_bytes


@dataclass(frozen=True, slots=True)
class Created:
    """The batch is there; `existing`: its idempotency key had made it before."""

    id: str
    existing: bool


@dataclass(frozen=True, slots=True)
class KeyReused:
    """This idempotency key already made a batch from another body."""


@dataclass(frozen=True, slots=True)
class TooManyBatches:
    """The tenant has as many unfinished batches as it may."""


@dataclass(frozen=True, slots=True)
class NoInput:
    """The input file is not there any more."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that a batch made."""

    id: str
    name: str
    size: int


class Batches:
    """The batches of all tenants. Raises `BoardUnavailableError`; every method may run twice with the same effect.

    Whoever drives a batch is its `owner`, a text that begins with the channel on which it is woken, then `|`. What an
    owner writes after another took over is refused: then the method returns False, or None.
    """

    def __init__(self, scripts: Scripts, *, most_unfinished: int) -> None:
        self._scripts = scripts
        self._most_unfinished = most_unfinished
        names = (
            "create claim renew look page begin advance ended open commit segments finalize cancel close tidied events"
        )
        self._by_name = {name: _script(name) for name in names.split()}

    async def create(
        self, tenant: str, batch_id: str, order: Order, *, idempotency: tuple[str, str] | None
    ) -> Created | KeyReused | TooManyBatches | NoInput:
        """Write a batch as `validating`, and wake whoever drives batches. `idempotency`: digests of key and body."""
        key, body = idempotency or ("", "")
        about = compact.text(
            {
                "endpoint": order.endpoint,
                "input": order.input,
                "input_bytes": order.input_bytes,
                "window_s": order.window_s,
                "metadata": dict(order.metadata),
                "key_id": order.key_id,
                "key_name": order.key_name,
                "output_ttl_s": order.output_ttl_s,
            }
        )
        arguments: list[Value] = ["", key, body, int(order.window_s * 1000), about, order.input, self._most_unfinished]
        answer = await self._run("create", tenant, batch_id, *arguments, durable=True)
        match cast("list[bytes]", answer):
            case [b"created", made]:
                return Created(made.decode(), existing=False)
            case [b"same", known]:
                return Created(known.decode(), existing=True)
            case [b"reused", _]:
                return KeyReused()
            case [b"missing", _]:
                return NoInput()
        return TooManyBatches()

    async def view(self, tenant: str, batch_id: str, *, channel: str = "") -> Batch | None:
        """The batch as it is now. With a channel, that is woken at every further event."""
        return _batch(tenant, batch_id, await self._run("look", tenant, batch_id, "", channel))

    async def page(self, tenant: str, *, after: str, limit: int) -> list[Batch]:
        """Batches after that id ("" is the start), the newest first."""
        rows = cast("list[list[Any]]", await self._run("page", tenant, "", "", after, limit))
        found = [_batch(tenant, each.decode(), [fields, now, 0, 0]) for each, fields, now in rows]
        return [batch for batch in found if batch is not None]

    async def cancel(self, tenant: str, batch_id: str) -> None:
        """Let it end; one that has ended, or is about to, stays as it is."""
        await self._run("cancel", tenant, batch_id, durable=True)

    async def events(self, tenant: str, batch_id: str, after: int) -> list[tuple[int, bytes]]:
        """Up to 200 events after a number, with their numbers. The oldest are forgotten in time."""
        rows = cast("list[tuple[bytes, list[bytes]]]", await self._run("events", tenant, batch_id, "", after))
        return [(int(name.partition(b"-")[0]), fields[1]) for name, fields in rows]

    async def claim(self, tenant: str, owner: str, *, lease_s: float, most: int) -> list[str]:
        """Ids of batches that nobody drove, and `owner` does now."""
        answer = await self._run("claim", tenant, "", owner, int(lease_s * 1000), most)
        return [each.decode() for each in cast("list[bytes]", answer)]

    async def renew(self, tenant: str, batch_id: str, owner: str, *, lease_s: float) -> bool:
        """Keep it; with 0 seconds leave it to the next."""
        return bool(await self._run("renew", tenant, batch_id, owner, int(lease_s * 1000)))

    async def look(self, tenant: str, batch_id: str, owner: str) -> Batch | None:
        """The batch as it is now; its owner is woken when something happens after this."""
        return _batch(tenant, batch_id, await self._run("look", tenant, batch_id, owner, ""))

    async def begin(self, batch: Batch, owner: str, *, total: int) -> bool:
        """The input is good, and has so many lines."""
        return bool(await self._run("begin", batch.tenant, batch.id, owner, total, durable=True))

    async def refuse(self, batch: Batch, owner: str, errors: Sequence[Mapping[str, object]], event: str) -> bool:
        """The input is not good: the batch has failed."""
        arguments: list[Value] = [compact.text(list(errors)), event, int(KEPT_S * 1000)]
        return bool(await self._run("begin", batch.tenant, batch.id, owner, *arguments, durable=True))

    async def advance(self, batch: Batch, owner: str, *, offset: int, refused: Sequence[bytes]) -> bool:
        """The lines up to `offset` are jobs, or are refused, and go to the error file as they are here."""
        arguments: list[Value] = [batch.offset, offset, *refused]
        return bool(await self._run("advance", batch.tenant, batch.id, owner, *arguments, durable=True))

    async def ended(self, batch: Batch, most: int) -> list[bytes]:
        """Lines to be written: ids of jobs that have ended, and refused lines as they were given to `advance`."""
        return cast("list[bytes]", await self._run("ended", batch.tenant, batch.id, "", most))

    async def unfinished(self, batch: Batch, most: int) -> list[str]:
        """Ids of its jobs that have not ended."""
        answer = await self._run("open", batch.tenant, batch.id, "", most)
        return [each.decode() for each in cast("list[bytes]", answer)]

    async def commit(self, batch: Batch, owner: str, *, count: int, offset: int, output: str, error: str) -> bool:
        """The next `count` ended lines, or the never run ones up to `offset`, are in segments at these paths."""
        arguments: list[Value] = [batch.written, count, batch.offset, offset, output, error]
        return bool(await self._run("commit", batch.tenant, batch.id, owner, *arguments, durable=True))

    async def segments(self, batch: Batch) -> tuple[list[str], list[str]]:
        """The paths of the segments of the output and of the error file, in order."""
        output, error = cast("list[list[bytes]]", await self._run("segments", batch.tenant, batch.id))
        return [each.decode() for each in output], [each.decode() for each in error]

    async def finalize(
        self, batch: Batch, owner: str, ending: BatchState, errors: Sequence[Mapping[str, object]] = ()
    ) -> bool:
        """No more lines are made into jobs."""
        text = compact.text(list(errors)) if errors else ""
        return bool(await self._run("finalize", batch.tenant, batch.id, owner, str(ending), text, durable=True))

    async def close(
        self, batch: Batch, owner: str, state: BatchState, event: str, *, ttl_s: float, files: Sequence[Written | None]
    ) -> bool:
        """The batch has ended; `files` are its output and its error file."""
        arguments: list[Value] = [str(state), event, int(KEPT_S * 1000), int(ttl_s * 1000)]
        for file in files:
            about = compact.text({"name": file.name, "purpose": Purpose.BATCH_OUTPUT}) if file else ""
            arguments += [file.id, about, file.size, file_path(batch.tenant, file.id)] if file else ["", "", 0, ""]
        return bool(await self._run("close", batch.tenant, batch.id, owner, *arguments, durable=True))

    async def tidied(self, tenant: str, batch_id: str) -> None:
        """It has ended, and nothing is left of it but itself and its files."""
        await self._run("tidied", tenant, batch_id)

    async def _run(self, name: str, tenant: str, batch_id: str, *arguments: Value, durable: bool = False) -> object:
        prefix = f"{{t:{tenant}}}:"
        keys, values = [f"{prefix}batch:{batch_id}"], [prefix, batch_id, *arguments]
        return await self._scripts.run(self._by_name[name], keys, values, durable=durable)


def batch_key(tenant: str, batch_id: str) -> str:
    """What wakes those who follow a batch; the scripts make it as well."""
    return f"{tenant} batch:{batch_id}"


def created_key(tenant: str) -> str:
    """What wakes those who drive batches of this tenant."""
    return f"{tenant} batches"


def derived_id(batch_id: str, kind: str, name: str = "") -> str:
    """The one id that a line's job or a file of this batch has, however often it is made: a ULID of its time."""
    digest = sha256(f"{batch_id} {kind} {name}".encode()).digest()
    return str(ULID.from_bytes(ULID.from_str(batch_id).bytes[:6] + digest[:10]))


def event_text(batch: Batch, state: BatchState) -> str:
    """The batch's terminal event as a JSON object, without content."""
    usd = None if batch.unpriced else plain(batch.usd)
    return compact.text(
        {
            "id": f"evt_{batch.id}.1",
            "type": f"batch.{state}",
            "tenant": batch.tenant,
            "data": {"id": f"batch_{batch.id}"},
            "endpoint": batch.order.endpoint,
            "metadata": dict(batch.order.metadata),
            "usd": usd,
            "error_code": str(batch.errors[0]["code"]) if batch.errors else None,
        }
    )


def _script(name: str) -> Script:
    return Script.load("router", "board_functions", "files_functions", "batches_functions", f"batches_{name}")


def _batch(tenant: str, batch_id: str, answer: Any) -> Batch | None:
    if not answer:
        return None
    pairs, now, open_jobs, to_write = answer
    fields = {name.decode(): value.decode() for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
    about = json.loads(fields["about"])
    return Batch(
        id=batch_id,
        tenant=tenant,
        order=Order(**about),
        state=BatchState(fields["state"]),
        created_at=int(fields["created"]) / 1000,
        expires_at=int(fields["expires"]) / 1000,
        now=int(now) / 1000,
        moments={BatchState(name[3:]): int(value) / 1000 for name, value in fields.items() if name.startswith("at:")},
        total=int(fields["total"]) if "total" in fields else None,
        offset=int(fields.get("offset", 0)),
        written=int(fields.get("written", 0)),
        completed=int(fields.get("completed", 0)),
        failed=int(fields.get("failed", 0)),
        cancelled=int(fields.get("cancelled", 0)),
        expired=int(fields.get("expired", 0)),
        open=int(open_jobs),
        to_write=int(to_write),
        ending=BatchState(fields["ending"]) if "ending" in fields else None,
        usd=Decimal(fields.get("usd", 0)).scaleb(-12),
        wasted=Decimal(fields.get("waste", 0)).scaleb(-12),
        unpriced=int(fields.get("unpriced", 0)),
        attempts=int(fields.get("attempts", 0)),
        concluded=int(fields.get("concluded", 0)),
        tokens={name[6:]: int(value) for name, value in fields.items() if name.startswith("meter:")},
        errors=json.loads(fields.get("errors", "[]")),
        output=fields.get("output"),
        error=fields.get("error"),
        events=int(fields.get("seq", 0)),
    )
