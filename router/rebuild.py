"""Makes a lost board anew from the log: what is over, what it cost, which budgets it used, which API keys there are."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import structlog
from ulid import ULID

from policies.pricing import picodollars
from policies.quota import Quotas, Scopes
from policies.scripts import Scripts
from policies.used import Used
from router import ledger, topics
from router.board import Board
from router.costs import DAYS_KEPT
from router.job import JobState
from router.keyring import Keyring
from router.ledger import Charged
from router.log import Log, Marks, Record
from router.machine_sums import MachineSums, billed
from router.outbox import reservation_id

log = structlog.get_logger(__name__)

ROUNDS = 20  # of looking at budgets that move meanwhile; in the last one what is found is written all the same
AGAIN_S = 0.1
OUTBOX_MOST = 10_000  # entries of a tenant
SPARE_S = 3600.0  # before a tombstone goes
REMEMBERED = 200_000  # attempts and bills, by which one that is on the ledger twice is known; repeats come soon after


@dataclass(slots=True)
class Rebuilt:
    """What was read, and what of it the board did not know."""

    events: int = 0
    attempts: int = 0
    buried: int = 0
    recounted: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class Rebuild:
    """May be run twice, by two at once, and on a board that is whole."""

    log: Log
    board: Board
    quotas: Quotas
    scopes: Scopes
    keyring: Keyring
    scripts: Scripts

    async def __call__(self, *, progress: Callable[[Rebuilt], None] = lambda _: None) -> Rebuilt:
        """Read `keys.changes`, `jobs.events` and `ledger.charges` from their start, then begin a new epoch.

        Queued jobs need nothing: their records are on the log, and are run as usual afterwards.
        """
        done, is_lost = Rebuilt(keys=await self.keyring.restore()), await self.board.epoch() is None
        async for delivery in self.log.read(topics.EVENTS):
            event = ledger.event_of(delivery.record)
            if event is not None:
                done.events += 1
                done.buried += await self.board.bury(event.tenant, event.job_id, event.state, at=event.at)
                progress(done)
        sums = _Sums(await self.board.now(), self.board.tombstone_s)
        async for record in self._charges(sums):
            await self._count(record, sums, done)
            progress(done)
        await self._restore_budgets(sums, done, is_lost=is_lost)
        await self._restore_days(sums)
        await self.board.begin_epoch(str(ULID()), only_first=False)
        return done

    async def _charges(self, sums: "_Sums") -> AsyncGenerator[Record]:
        """What is on the ledger and was not read before."""
        async for delivery in self.log.read(topics.CHARGES, marks=sums.marks):
            yield delivery.record

    async def _unpublished(self) -> AsyncGenerator[Record]:
        """What will be on the ledger in a moment: it is settled on the board."""
        for tenant in self.scopes.tenants:
            for entry in await self.board.outbox(tenant, most=OUTBOX_MOST):
                yield entry.record

    async def _count(self, record: Record, sums: "_Sums", done: Rebuilt) -> None:
        attempt = ledger.attempt_of(record)
        if attempt is not None:
            done.attempts += 1
            done.recounted += await self._count_attempt(attempt, record.value.decode(), sums)
        elif (bill := billed(record)) is not None and not sums.is_repeat(bill.id):
            sums.machines.add(bill)

    async def _count_attempt(self, attempt: Charged, text: str, sums: "_Sums") -> bool:
        if sums.is_repeat(reservation_id(attempt.job_id, attempt.number)):
            return False
        of_tenant = self.scopes.of_tenant(attempt.tenant, deployment=attempt.deployment, key=attempt.key)
        for scope in (of_tenant, self.scopes.of_deployment(attempt.deployment)):
            sums.used.add(scope, attempt.at, attempt.usage, attempt.usd)
        if sums.is_forgotten(attempt):
            return False
        return await self.board.recount(attempt.tenant, attempt.job_id, text, at=attempt.at)

    async def _restore_budgets(self, sums: "_Sums", done: Rebuilt, *, is_lost: bool) -> None:
        """What the board says of a part is looked at, and then all that it should say is found out.

        Where it says something else by then, a call has begun or ended meanwhile, and all is looked at once more.
        """
        month, day, written = sums.used.month, sums.used.day, sums.written
        for left in reversed(range(ROUNDS if is_lost else 1)):
            keys = sums.used.parts.keys() - written
            seen = {key: await self.quotas.spent(key, month=month, day=day) for key in keys} if left else {}
            for records in (self._charges(sums), self._unpublished()):
                async for record in records:
                    await self._count(record, sums, done)
            used = await self._with_held(sums, is_lost=is_lost)
            for key in keys:
                if await self.quotas.restore(key, used.parts[key], month=month, day=day, seen=seen.get(key)):
                    written.add(key)
            if written >= sums.used.parts.keys():
                return
            await asyncio.sleep(AGAIN_S)
        if is_lost:
            log.warning("budgets_may_be_short", parts=len(sums.used.parts.keys() - written))

    async def _with_held(self, sums: "_Sums", *, is_lost: bool) -> Used:
        """And what attempts have reserved that are not charged. An older copy knows reservations of others as well."""
        used = sums.used.copy()
        async for held in self.quotas.held():
            if not sums.is_known(held.rid):
                for part in held.parts:
                    used.add_held(part)
            elif is_lost and held.is_reserved:
                await self.quotas.release(held.slot, held.rid)
                sums.written.difference_update(part.key for part in held.parts)
        return used

    async def _restore_days(self, sums: "_Sums") -> None:
        now = sums.used.now
        for (tenant, day), rows in sums.days.items():
            left = timedelta(days=DAYS_KEPT) - (_day(now) - day)
            if left > timedelta(0):
                await self.board.recount_day(tenant, day, rows, kept_s=left.total_seconds())
        await sums.machines.restore(self.scripts, now=now)


@dataclass(slots=True)
class _Sums:
    """What is added up before it is written: budgets, and the rollups of days of which the board forgets the jobs.

    A day of which it may still know jobs is counted job by job: they say what was counted already.
    """

    now: float
    tombstone_s: float
    used: Used = field(init=False)
    days: dict[tuple[str, date], dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    machines: MachineSums = field(default_factory=MachineSums)
    marks: Marks = field(default_factory=dict)  # how far the ledger was read
    written: set[str] = field(default_factory=set)  # the parts that say on the board what they should
    _seen: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.used = Used(self.now)

    def is_repeat(self, name: str) -> bool:
        """Whether it was read before."""
        if name in self._seen:
            return True
        self._seen[name] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return False

    def is_known(self, rid: str) -> bool:
        """Whether this attempt was read, not long before the end of the ledger."""
        return rid in self._seen

    def is_forgotten(self, attempt: Charged) -> bool:
        """Whether it was on a day whose jobs are forgotten: then it is added here."""
        day = _day(attempt.at)
        if day > _day(self.now - self.tombstone_s):
            return False
        rows, row = self.days[attempt.tenant, day], f"{attempt.deployment}|{attempt.lane}|"
        rows[f"{row}attempts"] += 1
        rows[f"{row}tokens"] += attempt.tokens
        rows[f"{row}jobs"] += attempt.concluded
        if attempt.usd is None:
            rows[f"{row}unpriced"] += 1
        else:
            rows[f"{row}usd"] += int(picodollars(attempt.usd))
            rows[f"{row}waste"] += 0 if attempt.is_useful else int(picodollars(attempt.usd))
        return True


async def begin(log: Log, board: Board) -> None:
    """Begin the first epoch of a board that is new together with its log; a lost board is left as it is."""
    for topic in (topics.EVENTS, topics.CHARGES):
        async for _ in log.read(topic):
            return
    await board.begin_epoch(str(ULID()), only_first=True)


async def compare(log: Log, board: Board) -> None:
    """End the epoch of a board that does not know of ends which the log has.

    It was set back while nobody followed it, as with a backup that is put in place of a stopped Redis.
    """
    epoch, now = await board.epoch(), await board.now()
    for delivery in await log.newest(topics.EVENTS):
        event = ledger.event_of(delivery.record)
        if epoch is not None and event is not None and event.at > now - board.tombstone_s + SPARE_S:
            state = await board.state(event.tenant, event.job_id)
            # A failed job may have been run again since.
            if state is None or not (state.is_terminal or event.state is JobState.FAILED):
                await board.end_epoch(epoch)
                return


def _day(moment: float) -> date:
    return datetime.fromtimestamp(moment, UTC).date()
