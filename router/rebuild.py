"""Makes a lost board anew from the log: what is over, what it cost, which budgets it used, which API keys there are."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import structlog
from ulid import ULID

from policies.pricing import picodollars
from policies.quota import Held, Quotas, Scopes
from policies.scripts import Scripts
from policies.used import Used
from router import ledger, topics
from router.board import Board
from router.costs import DAYS_KEPT
from router.job import JobState
from router.keyring import Keyring
from router.ledger import Charged
from router.log import Delivery, Log, Marks, Record
from router.machine_sums import MachineSums, billed
from router.outbox import reservation_id

log = structlog.get_logger(__name__)

ROUNDS = 20  # of looking at budgets that move meanwhile; in the last one what is found is written all the same
AGAIN_S = 0.1
OUTBOX_MOST = 10_000  # entries of a tenant
SPARE_S = 3600.0  # before a tombstone goes
AT_ONCE = 256  # records
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
        async for group in _groups(self.log.read(topics.EVENTS)):
            ends = [event for each in group if (event := ledger.event_of(each.record)) is not None]
            done.events += len(ends)
            buried = (self.board.bury(each.tenant, each.job_id, each.state, at=each.at) for each in ends)
            done.buried += sum(await asyncio.gather(*buried))
            progress(done)
        sums = _Sums(await self.board.now(), self.board.tombstone_s)
        await self._restore_budgets(sums, done, progress, is_lost=is_lost)
        await self._restore_days(sums)
        await self.board.begin_epoch(str(ULID()), only_first=False)
        return done

    async def _restore_budgets(
        self, sums: "_Sums", done: Rebuilt, progress: Callable[[Rebuilt], None], *, is_lost: bool
    ) -> None:
        """What the board says of a part is looked at, and then all that it should say is found out.

        Where it says something else by then, a call has begun or ended meanwhile, and all is looked at once more. On a
        board that is whole, it is right.
        """
        await self._open(sums)
        await self._read_ledger(sums, done, progress)
        month, day, written = sums.used.month, sums.used.day, sums.written
        for left in reversed(range(ROUNDS if is_lost else 1)):
            keys = sums.used.parts.keys() - written
            looks = left or not is_lost
            seen = {key: await self.quotas.spent(key, month=month, day=day) for key in keys} if looks else {}
            # In the way that an attempt goes, so that one which goes on meanwhile is met at its next place.
            held, unpublished = await self._open(sums)
            await self._read_ledger(sums, done, progress)
            await self._count(unpublished, sums, done)
            used = await self._with_held(held, sums, is_lost=is_lost)
            for key in keys:
                if await self.quotas.restore(key, used.parts[key], month=month, day=day, seen=seen.get(key)):
                    written.add(key)
            if written >= sums.used.parts.keys():
                return
            await asyncio.sleep(AGAIN_S)
        if is_lost:
            log.warning("budgets_may_be_short", parts=len(sums.used.parts.keys() - written))

    async def _open(self, sums: "_Sums") -> tuple[Sequence[Held], Sequence[Record]]:
        """What is reserved, and then what will be on the ledger in a moment: it is settled on the board."""
        held = [each async for each in self.quotas.held()]
        outboxes = [await self.board.outbox(tenant, most=OUTBOX_MOST) for tenant in self.scopes.tenants]
        entries = [entry for outbox in outboxes for entry in outbox if not entry.is_event]
        sums.watched.update(each.rid for each in held)
        sums.watched.update(entry.field for entry in entries)
        return held, [entry.record for entry in entries]

    async def _read_ledger(self, sums: "_Sums", done: Rebuilt, progress: Callable[[Rebuilt], None]) -> None:
        """What was not read before."""
        async for group in _groups(self.log.read(topics.CHARGES, marks=sums.marks)):
            await self._count([each.record for each in group], sums, done)
            progress(done)

    async def _count(self, records: Sequence[Record], sums: "_Sums", done: Rebuilt) -> None:
        recounts = []
        for record in records:
            attempt = ledger.attempt_of(record)
            if attempt is not None:
                done.attempts += 1
                if self._is_of_known_day(attempt, sums):
                    text = record.value.decode()
                    recounts.append(self.board.recount(attempt.tenant, attempt.job_id, text, at=attempt.at))
            elif (bill := billed(record)) is not None and not sums.is_repeat(bill.id):
                sums.machines.add(bill)
        done.recounted += sum(await asyncio.gather(*recounts))

    def _is_of_known_day(self, attempt: Charged, sums: "_Sums") -> bool:
        """Whether its job may say whether it is counted already. In budgets it is now, once."""
        if sums.is_repeat(reservation_id(attempt.job_id, attempt.number)):
            return False
        of_tenant = self.scopes.of_tenant(attempt.tenant, deployment=attempt.deployment, key=attempt.key)
        for scope in (of_tenant, self.scopes.of_deployment(attempt.deployment)):
            sums.used.add(scope, attempt.at, attempt.usage, attempt.usd)
        return not sums.is_forgotten(attempt)

    async def _with_held(self, held: Sequence[Held], sums: "_Sums", *, is_lost: bool) -> Used:
        """And what attempts have reserved that are not charged. An older copy knows reservations of others as well."""
        used = sums.used.copy()
        for each in held:
            if not sums.is_known(each.rid):
                for part in each.parts:
                    used.add_held(part)
            elif is_lost and each.is_reserved and await self.quotas.release(each.slot, each.rid):
                sums.written.difference_update(part.key for part in each.parts)
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
    watched: set[str] = field(default_factory=set)  # attempts of which the board says that they are open
    _ended: set[str] = field(default_factory=set)  # those of them that were read, however long ago
    _seen: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.used = Used(self.now)

    def is_repeat(self, name: str) -> bool:
        """Whether it was read before."""
        if self.is_known(name):
            return True
        if name in self.watched:
            self._ended.add(name)
        self._seen[name] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return False

    def is_known(self, rid: str) -> bool:
        """Whether this attempt was read: not long ago, or ever where it is watched."""
        return rid in self._ended or rid in self._seen

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


async def _groups(records: AsyncGenerator[Delivery]) -> AsyncGenerator[list[Delivery]]:
    """Many, for one round trip each; in the order that they came."""
    group: list[Delivery] = []
    async for record in records:
        group.append(record)
        if len(group) == AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def _day(moment: float) -> date:
    return datetime.fromtimestamp(moment, UTC).date()
