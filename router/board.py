"""The state of every job, in Redis: who runs it, what became of it. Each change is one script.

Keys of a tenant carry `{t:<tenant>}` and so share a slot. All moments come from Redis' own clock.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import date
from decimal import Decimal
from typing import cast

from policies.pricing import ChargeLine, picodollars, total
from policies.scripts import BoardUnavailableError, Script, Scripts, Value
from policies.values import dataclass
from router import compact, envelope, ledger
from router.job import JSON, NOTHING_EARLIER, AtBackend, Earlier, Job, JobState, Payload, Queue, Stay
from router.log import Record

EPOCH = "board:epoch"
CLOSED_LETTERS = "board:closed-letters"
KINDS: Mapping[str, str] = {"/v1/videos": "videos"}  # endpoints whose jobs have a list of their own as well
READ_OUT_S = 60.0  # how long the pieces of a stream that has ended are there for whoever still reads them,
REPLAYED_S = 600.0  # or may come back for them
LETTERS_KEPT_MS = 40 * 86_400_000  # since the last one was closed; longer than the topic keeps them
LOOKED_AT_ONCE, MOST_LOOKED = 2_000, 100_000  # jobs, by one script and for one page


@dataclass(frozen=True, slots=True)
class Accepted:
    """The job is on the board; it counts once the log has it and `confirm` was called."""

    created_at: float
    expires_at: float
    queue: Queue


@dataclass(frozen=True, slots=True)
class Same:
    """This idempotency key already made this job, from the same body."""

    id: str


@dataclass(frozen=True, slots=True)
class KeyReused:
    """This idempotency key already made a job from another body."""

    id: str


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The tenant has as many unfinished jobs as it may."""


@dataclass(frozen=True, slots=True)
class BatchOver:
    """The job is a line of a batch that takes no more of them."""


@dataclass(frozen=True, slots=True)
class Run:
    """The claim holds: run the job, within `seconds_left`. The owner of `open_attempt` died in it: it may have cost.

    So many `attempts` at its deployment as were `cut` off ended with their process: the backend had not failed.
    """

    attempts: int
    open_attempt: int | None
    seconds_left: float
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Cancelled(Run):
    """The claim holds; conclude the job as cancelled."""


@dataclass(frozen=True, slots=True)
class Expired(Run):
    """The claim holds; conclude the job as expired."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else runs it, for `seconds` at least."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing to run."""

    state: JobState


@dataclass(frozen=True, slots=True)
class Moved:
    """The job has gone on at another deployment since its record was written; this is it now."""

    job: Job


Claim = Run | Cancelled | Expired | Busy | Finished | Moved | AtBackend


@dataclass(frozen=True, slots=True)
class Started:
    """Make the upstream call now."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else owns the job, or it is over."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Do not start; conclude the job as cancelled."""


@dataclass(frozen=True, slots=True)
class TooLate:
    """Do not start; conclude the job as expired."""


@dataclass(frozen=True, slots=True)
class TooManyDeliveries:
    """This job's process has died so often in its call that it is taken for the reason."""

    deliveries: int


Start = Started | Lost | CancelRequested | TooLate | TooManyDeliveries


@dataclass(frozen=True, slots=True)
class Attempted:
    """What an attempt used, to be charged. `settle` are the keys and arguments of its tenant quota's settle."""

    attempt: int
    microbatch: str
    lines: tuple[ChargeLine, ...]
    tokens: int
    settle: tuple[Sequence[str], Sequence[Value]] = ((), ())
    _texts: dict[bool, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def text(self, job: Job, *, concluded: bool) -> str:
        """As it goes to the ledger. Made once: board and log both get it."""
        if concluded not in self._texts:
            made = ledger.attempt_text(job, self.attempt, self.microbatch, self.lines, self.tokens, concluded=concluded)
            self._texts[concluded] = made
        return self._texts[concluded]


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How a job ended. A large result lies at `result_at`. `usage` and `error` are JSON-ready, as clients see them."""

    state: JobState
    event: str
    attempted: Attempted | None = None
    result: bytes = b""
    result_at: Payload | None = None
    usage: Mapping[str, object] | None = None
    error: Mapping[str, object] | None = None
    stay: Stay | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the board knows it now."""

    job: Job
    state: JobState
    attempts: int
    started_at: float | None
    finished_at: float | None
    error: Mapping[str, object] | None
    usage: Mapping[str, object] | None
    result: bytes | None
    result_at: Payload | None
    charges: tuple[ChargeLine, ...]
    microbatch: str | None
    open_attempt: int | None = None
    problem: Mapping[str, object] | None = None  # why the deployment that it was meant for failed
    stay: Stay | None = None
    machine_usd: Decimal | None = None  # of the machines' time, as far as it is billed; beside `usd`
    wake_usd: Decimal | None = None  # of the time in which a machine was started for it; idle time

    @classmethod
    def of(cls, job: Job, state: JobState) -> "JobView":
        """A job that was just accepted."""
        return cls(job, state, 0, None, None, None, None, None, None, (), None)

    @property
    def usd(self) -> Decimal | None:
        """Dollars so far; None when a line has no price."""
        return total(self.charges)

    @property
    def media_type(self) -> str:
        """What the result is."""
        return self.result_at.media_type if self.result_at is not None else JSON


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs. `last` is the id of the one that was looked at last; empty where there are no more behind it."""

    views: list[JobView]
    last: str


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that a backend has: its name there, the attempt that submitted it, and how long it may still take."""

    job_id: str
    reference: str
    attempt: int
    seconds_left: float
    is_cancelled: bool
    is_unreserved: bool = False  # its reservation went with a lost board


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweeper is to do: ids never confirmed, ids past their deadline, paths that nobody needs any more.

    `unclaimed` are reservations of the door whose job never came, as job id and deployment.
    """

    unpublished: Sequence[str]
    overdue: Sequence[str]
    objects: Sequence[str]
    unclaimed: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed answer, as JSON, and the attempt that it is from."""

    attempt: int
    data: bytes


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """Something that waits to be on the log: an event, or the charge lines of an attempt (JSON text)."""

    field: str
    at: float
    text: str

    @property
    def is_event(self) -> bool:
        """Whether this is the job's terminal event; otherwise it is an attempt's charge lines."""
        return self.field.endswith(":event")

    @property
    def record(self) -> Record:
        """As it goes on the log; an event leaves behind what is private to the outbox."""
        return Record(self.text.encode(), {"version": "1", "id": self.field, "at-ms": f"{self.at * 1000:.0f}"})


@dataclass(frozen=True, slots=True)
class Closed:
    """The charge of an attempt that stands. A job that is not known ran on a board that was lost since."""

    charge: OutboxEntry
    is_known: bool


class Board:
    """The board. Every method raises `BoardUnavailableError`; every method may run twice with the same effect.

    `tombstone_s`: how long a terminal state is kept at least; longer than any topic's retention.
    """

    def __init__(self, scripts: Scripts, *, tombstone_s: float = 4 * 86_400.0) -> None:
        self._scripts = scripts
        self.tombstone_s = tombstone_s
        self._keep_ms = int(tombstone_s * 1000)
        self._accept = _script("accept")
        self._confirm = _script("confirm")
        self._reject = _script("reject")
        self._claim = _script("claim")
        self._start = _script("start")
        self._renew = _script("renew")
        self._release = _script("release")
        self._reroute = _script("reroute")
        self._close = _settling_script("close")
        self._submit = _script("submit")
        self._collect = _script("collect")
        self._finish = _settling_script("finish")
        self._end = _script("end")
        self._view = _script("view")
        self._page = _script("page")
        self._delete = _script("delete")
        self._chunks = _script("chunks")
        self._chunks_after = _script("chunks_after")
        self._keep_input = _script("keep_input")
        self._input = _script("input")
        self._outbox = _script("outbox")
        self._published = _script("published")
        self._sweep = _script("sweep")
        self._forget_objects = _script("forget_objects")
        self._bury = _script("bury")
        self._recount = _script("recount")
        self._costs = _script("costs")
        self._revive = _script("revive")
        self._letters = Script.load("router", "board_letters")
        self._begin = Script.load("router", "board_epoch")

    async def accept(
        self,
        job: Job,
        *,
        deadline_s: float,
        idempotency: tuple[str, str] | None,
        most_unfinished: int,
        most_in_class: int = 500,
        channel: str = "",
        headers: Mapping[str, str] | None = None,
        unclaimed: str = "",
    ) -> Accepted | Same | KeyReused | QueueFull | BatchOver:
        """Write a job as `accepting`. `idempotency`: digests of the key and of the body; `channel` watches it.

        `headers` are its own, where the caller has them already: to make them takes longer than to send them.
        `unclaimed` is the name of a reservation, which is this job's from now on.

        When the tenant has `most_in_class` unfinished jobs in the main queue of its class, it goes to the overflow.
        """
        key, body = idempotency or ("", "")
        fields = _fields(job, headers)
        if channel:
            fields += ["watchers", channel]
        kept_ms = int((deadline_s + job.result_ttl_s) * 1000)
        answer = await self._run(
            self._accept,
            job.tenant,
            job.id,
            key,
            body,
            int(deadline_s * 1000),
            kept_ms,
            most_unfinished,
            str(job.job_class),
            most_in_class,
            job.payload.path if job.payload else "",
            self._keep_ms,
            unclaimed,
            job.line.batch if job.line else "",
            *fields,
        )
        match cast("list[bytes]", answer):
            case [b"accepted", created, expires, queue]:
                return Accepted(int(created) / 1000, int(expires) / 1000, Queue(queue.decode()))
            case [b"same", known]:
                return Same(known.decode())
            case [b"reused", known]:
                return KeyReused(known.decode())
            case [b"over", _]:
                return BatchOver()
        return QueueFull()

    async def confirm(self, tenant: str, job_id: str) -> JobState:
        """The log has it. Returns the state that holds now."""
        return _state(await self._run(self._confirm, tenant, job_id, durable=True))

    async def reject(self, tenant: str, job_id: str) -> JobState:
        """The log did not confirm. Returns `rejected`, or the state of a job that was claimed all the same."""
        return _state(await self._run(self._reject, tenant, job_id, self._keep_ms))

    async def claim(self, job: Job, owner: str, *, lease_s: float, earlier: Earlier = NOTHING_EARLIER) -> Claim:
        """Take the run lease. `owner` begins with the channel on which a cancel reaches it, then `|`.

        A job that the board has lost is written anew from its record; where that says that a backend has taken it, that
        attempt is open.
        """
        arguments: list[Value] = [owner, int(lease_s * 1000), len(job.route.tried)]
        kept = earlier.at_backend
        arguments += [0 if kept is None else kept.attempt, round(earlier.replayed_at * 1000)]
        answer = cast("list[bytes]", await self._run(self._claim, job.tenant, job.id, *arguments))
        if answer[0] == b"missing":
            if await self.epoch() is None:  # all is lost, and what is over is not known before it is rebuilt
                return Busy(1.0)
            created, expires = int(job.created_at * 1000), int(job.expires_at * 1000)
            seed = [*_fields(job), "created", created, "expires", expires, "class", job.job_class, "queue", job.queue]
            seed += ["hop", len(job.route.tried)]
            answer = cast("list[bytes]", await self._run(self._claim, job.tenant, job.id, *arguments, *seed))
        match answer:
            case [b"busy", left]:
                return Busy(int(left) / 1000)
            case [b"finished", state, _]:
                return Finished(JobState(state.decode()))
            case [b"submitted", attempt, reference]:
                return AtBackend(int(attempt), reference.decode())
            case [b"moved", about]:
                return Moved(_as_known(job, about))
        kind = {b"run": Run, b"cancelled": Cancelled, b"expired": Expired}[answer[0]]
        return kind(int(answer[1]), int(answer[2]) if answer[2] else None, int(answer[3]) / 1000, int(answer[4]))

    async def start(self, job: Job, owner: str, *, most_deliveries: int, microbatch: str) -> Start:
        """Count a delivery and open an attempt; the upstream call comes next."""
        answer = await self._run(
            self._start, job.tenant, job.id, _name(job), owner, most_deliveries, microbatch, durable=True
        )
        match cast("list[bytes | int]", answer):
            case [b"started", attempt]:
                return Started(int(attempt))
            case [b"dead", deliveries]:
                return TooManyDeliveries(int(deliveries))
            case [b"cancelled"]:
                return CancelRequested()
            case [b"expired"]:
                return TooLate()
        return Lost()

    async def renew(self, job: Job, owner: str, *, lease_s: float) -> CancelRequested | Lost | None:
        """Keep the lease; None when all is well."""
        answer = cast("list[int]", await self._run(self._renew, job.tenant, job.id, owner, int(lease_s * 1000)))
        if answer == [0]:
            return Lost()
        return CancelRequested() if answer[1] else None

    async def release(self, job: Job, owner: str, *, undo_delivery: bool, wait_s: float = 0.0) -> float | None:
        """Give the lease back; nobody claims the job for `wait_s`. Says when it is due; None when it is another's."""
        wait_ms = int(wait_s * 1000)
        answer = await self._run(self._release, job.tenant, job.id, owner, int(undo_delivery), wait_ms)
        return None if answer is None else (int(cast(bytes, answer)) + wait_ms) / 1000

    async def reroute(self, job: Job, owner: str, *, problem: Mapping[str, object] | None) -> bool:
        """The job goes on at another deployment, as `job` says: give the lease back. False when it is another's.

        Records with its earlier routes are void from now on: whoever claims one gets `Moved`. The first `problem` is
        kept: why the deployment that the job was meant for failed.
        """
        told = "" if problem is None else json.dumps(problem)
        arguments: list[Value] = [owner, len(job.route.tried), envelope.about(job), told]
        return bool(await self._run(self._reroute, job.tenant, job.id, *arguments, durable=True))

    async def now(self) -> float:
        """The board's clock."""
        seconds, micros = await self._scripts.time()
        return seconds + micros / 1e6

    async def close_attempt(self, job: Job, attempted: Attempted, *, is_cut: bool = False) -> Closed:
        """Charge an attempt that did not conclude the job (failed, cut off, lost, late), unless it is charged already.

        `is_cut`: it ended with its process, and says nothing of the backend. The charge that stands is to be published.
        """
        keys, arguments = attempted.settle
        answer = await self._run(
            self._close,
            job.tenant,
            job.id,
            *_charge(job, attempted, concluded=False),
            "1" if is_cut else "",
            *arguments,
            keys=keys,
            durable=True,
        )
        at, text, known = cast("tuple[bytes, bytes, int]", answer)
        return Closed(OutboxEntry(f"{job.id}:{attempted.attempt}", int(at) / 1000, text.decode()), bool(known))

    async def submit(self, job: Job, owner: str, reference: str, *, check_in_s: float) -> bool:
        """The backend has taken the job, which is known from now on as `job`. False when it is another's."""
        arguments: list[Value] = [owner, reference, int(check_in_s * 1000), envelope.about(job), job.route.backend]
        return bool(await self._run(self._submit, job.tenant, job.id, *arguments, durable=True))

    async def collect(
        self, tenant: str, owner: str, *, backend: str, lease_s: float, most: int, job_id: str = ""
    ) -> list[Submission]:
        """Jobs that this backend has and that are to be looked at, each leased to `owner`.

        With a `job_id` only that one, whenever it is to be looked at, unless somebody has it.
        """
        answer = await self._run(self._collect, tenant, job_id, owner, int(lease_s * 1000), most, backend)
        rows = cast("list[list[bytes]]", answer)
        return [
            Submission(i.decode(), reference.decode(), int(attempt), int(left) / 1000, cancel == b"1", lost == b"1")
            for i, reference, attempt, left, cancel, lost in rows
        ]

    async def finish(self, job: Job, owner: str, conclusion: Conclusion) -> float | None:
        """Conclude the job, once, and say when. None when another ended or owns it: nothing was written."""
        keys, arguments = conclusion.attempted.settle if conclusion.attempted else ((), ())
        fields: list[Value] = []
        if conclusion.usage is not None:
            fields += ["usage", compact.text(conclusion.usage)]
        if conclusion.error is not None:
            fields += ["error", json.dumps(conclusion.error)]  # escaped: an upstream may cut a character in two
        if conclusion.stay is not None:
            fields += ["stay", json.dumps([conclusion.stay.seconds, conclusion.stay.running])]
        if conclusion.result_at is not None:
            fields += ["result_at", envelope.payload_text(conclusion.result_at)]
        answer = await self._run(
            self._finish,
            job.tenant,
            job.id,
            _name(job),
            owner,
            str(conclusion.state),
            conclusion.event,
            self._keep_ms,
            *(_charge(job, conclusion.attempted, concluded=True) if conclusion.attempted else [""] * 7),
            conclusion.result_at.path if conclusion.result_at else "",
            job.payload.path if job.payload else "",
            len(fields) // 2,
            *fields,
            conclusion.result,
            int((REPLAYED_S if job.is_replayed else READ_OUT_S) * 1000),
            *arguments,
            keys=keys,
            durable=True,
        )
        match cast("list[bytes]", answer):
            case [b"finished", at]:
                return int(at) / 1000
        return None

    async def cancel(self, tenant: str, job_id: str, event: str) -> JobState | None:
        """Ask for a job's end. One that nobody runs ends here, with `event`; one that runs ends through its owner."""
        return await self._end_unowned(tenant, job_id, "cancel", event)

    async def expire(self, tenant: str, job_id: str, event: str) -> JobState | None:
        """End a job that nobody runs and whose deadline is over."""
        return await self._end_unowned(tenant, job_id, "expire", event)

    async def view(self, tenant: str, job_id: str, *, channel: str = "", even_gone: bool = False) -> JobView | None:
        """The job as it is now. With a channel, that is woken at every further change.

        `even_gone`: also one that was deleted, or whose result's time is over; never one of which a rebuild has found
        nothing but the end.
        """
        answer = await self._run(self._view, tenant, job_id, channel, int(even_gone))
        if not answer:
            return None
        pairs, result = cast("tuple[list[bytes], bytes | None]", answer)
        return _view(tenant, job_id, pairs, result) if b"about" in pairs[::2] else None

    async def state(self, tenant: str, job_id: str) -> JobState | None:
        """Where a job is, also one of which there is nothing more than how it ended."""
        answer = await self._run(self._view, tenant, job_id, "", 1)
        if not answer:
            return None
        pairs = cast("tuple[list[bytes], bytes | None]", answer)[0]
        return JobState(pairs[pairs.index(b"state") + 1].decode())

    async def page(
        self,
        tenant: str,
        *,
        states: Sequence[JobState],
        limit: int,
        after: str,
        kind: str = "",
        is_oldest_first: bool = False,
        look: int = MOST_LOOKED,
    ) -> JobPage:
        """Jobs, newest first, after that id ("" is the start), in one of these states (none given: any). No results.

        Of one `kind` (one of `KINDS`) or of all. A page may have fewer than `limit` where few of so many as it may
        `look` at are in these states.
        """
        views: list[JobView] = []
        of, order = ",".join(states), "asc" if is_oldest_first else "desc"
        for begun in range(0, look, LOOKED_AT_ONCE):
            most, at_once = limit - len(views), min(LOOKED_AT_ONCE, look - begun)
            answer = await self._run(self._page, tenant, after, most, of, kind, order, at_once)
            rows, last = cast("tuple[list[tuple[bytes, list[bytes]]], bytes]", answer)
            views += [_view(tenant, job_id.decode(), pairs, None) for job_id, pairs in rows]
            after = last.decode()
            if not after or len(views) == limit:
                break
        return JobPage(views, after)

    async def delete(self, tenant: str, job_id: str) -> JobState | None:
        """Forget a finished job. Returns its state: one that is not terminal was left alone. None: no such job."""
        answer = await self._run(self._delete, tenant, job_id)
        return _state(answer) if answer else None

    async def add_chunks(
        self, job: Job, owner: str, attempt: int, chunks: Sequence[bytes], *, before: int, ttl_s: float
    ) -> bool:
        """Pieces of a stream for those who wait; False when this owner no longer is the owner.

        So many of this attempt's came `before` these: what is there already is not added again.
        """
        arguments: list[Value] = [_name(job), owner, int(ttl_s * 1000), attempt, before, *chunks]
        return bool(await self._run(self._chunks, job.tenant, job.id, *arguments))

    async def chunks(self, tenant: str, job_id: str, after: str) -> tuple[str, list[Chunk]]:
        """Up to 500 pieces after a cursor ("0" is the start), and the next cursor."""
        rows = cast("list[tuple[bytes, list[bytes]]]", await self._run(self._chunks_after, tenant, job_id, after))
        chunks = [Chunk(int(values[0]), values[1]) for _, values in rows]
        return (rows[-1][0].decode() if rows else after), chunks

    async def keep_input(self, job: Job, text: str, *, ttl_s: float, path: str = "") -> None:
        """What a response was asked, or a pointer to the object at `path`, until then or until its result goes."""
        await self._run(self._keep_input, job.tenant, job.id, text, int(ttl_s * 1000), path)

    async def input(self, tenant: str, job_id: str) -> str | None:
        """What `keep_input` got; None when it is gone."""
        answer = await self._run(self._input, tenant, job_id)
        return cast(bytes, answer).decode() if answer else None

    async def outbox(self, tenant: str, *, job_id: str = "", age_s: float = 0.0, most: int = 100) -> list[OutboxEntry]:
        """What waits to be published, of one job or of any."""
        flat = cast("list[bytes]", await self._run(self._outbox, tenant, job_id, int(age_s * 1000), most))
        entries = []
        for name, text in zip(flat[::2], flat[1::2], strict=True):
            at, _, rest = text.decode().partition("\n")
            entries.append(OutboxEntry(name.decode(), int(at) / 1000, rest))
        return entries

    async def published(self, tenant: str, fields: Sequence[str]) -> None:
        """These entries are on the log."""
        await self._run(self._published, tenant, "", *fields)

    async def sweep(self, tenant: str, *, unpublished_s: float, lease_s: float, most: int) -> Swept:
        """Stamp the tenant's leases as watched, and say what is to be done, at most so many of each."""
        answer = await self._run(self._sweep, tenant, "", int(unpublished_s * 1000), most, int(lease_s * 1000))
        unpublished, overdue, objects, unclaimed = (
            [name.decode() for name in names] for names in cast("list[list[bytes]]", answer)
        )
        pairs = [name.split(" ", 1) for name in unclaimed]
        return Swept(unpublished, overdue, objects, [(rid.partition(":")[0], at) for rid, at in pairs])

    async def forget_objects(self, tenant: str, paths: Sequence[str]) -> None:
        """These are no longer in the object store."""
        await self._run(self._forget_objects, tenant, "", *paths)

    async def bury(self, tenant: str, job_id: str, state: JobState, *, at: float) -> bool:
        """Rebuild: the log says that this job was over by then. False when that was known, or it runs again since."""
        return bool(await self._run(self._bury, tenant, job_id, state, self._keep_ms, round(at * 1000)))

    async def recount(self, tenant: str, job_id: str, text: str, *, at: float) -> bool:
        """Rebuild: the ledger has this attempt (`Attempted.text`). False when that was known."""
        row = json.loads(text)
        usd = "" if row["usd"] is None else picodollars(Decimal(row["usd"]))
        arguments = [row["attempt"], text, usd, row["tokens"], row["deployment"], row["lane"], row["microbatch"] or ""]
        moments = [int(row["concluded"]), int(at * 1000), self._keep_ms]
        return bool(await self._run(self._recount, tenant, job_id, *arguments, *moments))

    async def recount_day(self, tenant: str, day: date, rows: Mapping[str, int], *, kept_s: float) -> None:
        """Rebuild: what a day's rollup holds at least; it is kept for so long."""
        flat = [each for row in rows.items() for each in row]
        await self._run(self._costs, tenant, "", day.isoformat(), max(1, int(kept_s * 1000)), *flat)

    async def revive(self, job: Job, letter: str) -> JobState | None:
        """Queue a failed job anew, until `job.expires_at`; the state that holds now, None for an unknown job."""
        arguments: list[Value] = [letter, int(job.expires_at * 1000), envelope.about(job)]
        answer = await self._run(self._revive, job.tenant, job.id, *arguments, durable=True)
        return _state(answer) if answer else None

    async def closed_letters(self) -> set[str]:
        """The ids of dead letters that were replayed or dropped."""
        names = cast("list[bytes]", await self._scripts.run(self._letters, [CLOSED_LETTERS], ["", ""]))
        return {name.decode() for name in names}

    async def close_letter(self, letter: str, how: str) -> None:
        """A dead letter was replayed or dropped."""
        await self._scripts.run(self._letters, [CLOSED_LETTERS], [letter, how, LETTERS_KEPT_MS], durable=True)

    async def epoch(self) -> str | None:
        """The name of this board's life; None when the board is lost, or was never used."""
        return (await self._heart())[0]

    async def begin_epoch(self, name: str, *, only_first: bool) -> None:
        """The board is whole from now on. `only_first`: unless it has an epoch."""
        await self._scripts.run(self._begin, [EPOCH], [name, int(only_first)], durable=True)

    async def heartbeat(self) -> tuple[str | None, int]:
        """The epoch, and a number that only grows while this board lives."""
        return await self._heart()

    async def end_epoch(self, name: str) -> None:
        """Somebody saw that this board was set back: nobody runs anything on it any more, whenever they started."""
        await self._scripts.run(self._begin, [EPOCH], [name, 4], durable=True)

    async def beat(self) -> None:
        """Let that number grow; the sweeper does, about once a second."""
        await self._scripts.run(self._begin, [EPOCH], ["", 2])

    async def _heart(self) -> tuple[str | None, int]:
        epoch, beat = cast("list[bytes | None]", await self._scripts.run(self._begin, [EPOCH], ["", 3]))
        return (epoch.decode() if epoch else None), int(beat or 0)

    async def ping(self) -> None:
        """Return when the board answers and is whole; raise `BoardUnavailableError` otherwise."""
        if await self.epoch() is None:
            raise BoardUnavailableError("the board has no epoch: Redis is new or was wiped")

    async def _end_unowned(self, tenant: str, job_id: str, mode: str, event: str) -> JobState | None:
        answer = await self._run(
            self._end, tenant, job_id, f"{tenant} {job_id}", mode, event, self._keep_ms, durable=True
        )
        return _state(answer) if answer else None

    async def _run(
        self,
        script: Script,
        tenant: str,
        job_id: str,
        *arguments: Value,
        keys: Sequence[str] = (),
        durable: bool = False,
    ) -> object:
        prefix = f"{{t:{tenant}}}:"
        return await self._scripts.run(
            script, [f"{prefix}job:{job_id}", *keys], [prefix, job_id, *arguments], durable=durable
        )


def _script(name: str) -> Script:
    return Script.load("router", "board_functions", f"board_{name}")


def _settling_script(name: str) -> Script:
    functions = Script.load("policies", "quota_functions").text
    return Script.load("router", "board_functions", "board_settle", f"board_{name}", before=functions)


def _name(job: Job) -> str:
    return f"{job.tenant} {job.id}"


def _fields(job: Job, headers: Mapping[str, str] | None = None) -> list[Value]:
    about = compact.text(headers) if headers else envelope.about(job)
    fields: list[Value] = ["about", about, "result_ttl", int(job.result_ttl_s * 1000)]
    fields += ["kind", KINDS[job.endpoint]] if job.endpoint in KINDS else []
    return [*fields, "batch", job.line.batch] if job.line else fields


def _charge(job: Job, attempted: Attempted, *, concluded: bool) -> list[Value]:
    usd = total(attempted.lines)
    return [
        attempted.attempt,
        attempted.text(job, concluded=concluded),
        "" if usd is None else picodollars(usd),
        attempted.tokens,
        job.route.deployment,
        job.route.lane,
        attempted.microbatch,
    ]


def _state(answer: object) -> JobState:
    return JobState(cast(bytes, answer).decode())


def _view(tenant: str, job_id: str, pairs: Sequence[bytes], result: bytes | None) -> JobView:
    fields = {name.decode(): value for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
    given = {"created-ms": "created", "deadline-ms": "expires", "queue": "queue"}
    headers = json.loads(fields["about"]) | {header: fields[name].decode() for header, name in given.items()}
    charged = sorted((int(name[8:]), text) for name, text in fields.items() if name.startswith("charged:"))
    return JobView(
        job=envelope.from_headers(headers, b""),
        state=JobState(fields["state"].decode()),
        attempts=int(fields.get("attempts", b"0")),
        started_at=_seconds(fields.get("started")),
        finished_at=_seconds(fields.get("finished")),
        error=json.loads(fields["error"]) if "error" in fields else None,
        usage=json.loads(fields["usage"]) if "usage" in fields else None,
        result=result,
        result_at=envelope.payload_of(fields["result_at"].decode()) if "result_at" in fields else None,
        charges=tuple(line for _, text in charged for line in ledger.lines_of(text)),
        microbatch=fields["microbatch"].decode() if fields.get("microbatch") else None,
        open_attempt=int(fields["open"]) if fields.get("open") else None,
        problem=json.loads(fields["problem"]) if "problem" in fields else None,
        stay=Stay(*json.loads(fields["stay"])) if "stay" in fields else None,
        machine_usd=_dollars(fields.get("machine")),
        wake_usd=_dollars(fields.get("wake")),
    )


def _dollars(picodollars: bytes | None) -> Decimal | None:
    return None if picodollars is None else Decimal(int(picodollars)).scaleb(-12)


def _as_known(job: Job, about: bytes) -> Job:
    """The job of a record, as the board knows it since."""
    moments = {"created-ms": f"{job.created_at * 1000:.0f}", "deadline-ms": f"{job.expires_at * 1000:.0f}"}
    return envelope.from_headers(json.loads(about) | moments | {"queue": str(job.queue)}, job.body)


def _seconds(value: bytes | None) -> float | None:
    return None if value is None else int(value) / 1000
