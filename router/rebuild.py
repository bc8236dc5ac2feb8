"""Makes a lost board anew from the log: what is over, what it cost, which budgets it used."""

from collections.abc import Callable
from dataclasses import dataclass

from ulid import ULID

from router import ledger, topics
from router.board import Board
from router.log import Log


@dataclass(slots=True)
class Rebuilt:
    """What was read, and what of it the board did not know."""

    events: int = 0
    attempts: int = 0
    buried: int = 0
    recounted: int = 0


async def rebuild(log: Log, board: Board, *, progress: Callable[[Rebuilt], None] = lambda _: None) -> Rebuilt:
    """Read `jobs.events` and `ledger.charges` from their start, then begin a new epoch. Safe to repeat and to race.

    Queued jobs need nothing: their records are on the log, and are run as usual afterwards.
    """
    done = Rebuilt()
    async for delivery in log.read(topics.EVENTS):
        event = ledger.event_of(delivery.record)
        if event is not None:
            done.events += 1
            done.buried += await board.bury(event.tenant, event.job_id, event.state)
            progress(done)
    async for delivery in log.read(topics.CHARGES):
        attempt = ledger.attempt_of(delivery.record)
        if attempt is not None:
            done.attempts += 1
            text = delivery.record.value.decode()
            done.recounted += await board.recount(attempt.tenant, attempt.job_id, text, at=attempt.at)
            progress(done)
    await board.begin_epoch(str(ULID()), only_first=False)
    return done


async def begin(log: Log, board: Board) -> None:
    """Begin the first epoch of a board that is new together with its log; a lost board is left as it is."""
    async for _ in log.read(topics.EVENTS):
        return
    async for _ in log.read(topics.CHARGES):
        return
    await board.begin_epoch(str(ULID()), only_first=True)
