"""The dead letters: what they are, which of them are still open, and how they run again."""

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, replace

from ulid import ULID

from router import envelope, topics
from router.board import Board
from router.envelope import EnvelopeError
from router.job import Job, JobState
from router.log import RECORD_LIMIT, Log, Record

PREFIX = "dead-"
LONGEST_DETAIL = 2000
LARGEST_HEADERS = 100_000  # bytes


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that nobody could run, as it was, and why. `at` is when it was put here, on its worker's clock."""

    id: str
    at: float
    reason: str
    detail: str
    topic: str
    position: str
    tenant: str | None
    job_id: str | None
    record: Record


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of them; what is empty or None does not choose."""

    ids: Collection[str] = ()
    reason: str | None = None
    tenant: str | None = None
    since: float | None = None
    until: float | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Whether this one is meant."""
        return (
            (not self.ids or letter.id in self.ids or f"job_{letter.job_id}" in self.ids)
            and self.reason in (None, letter.reason)
            and self.tenant in (None, letter.tenant)
            and (self.since is None or letter.at >= self.since)
            and (self.until is None or letter.at < self.until)
        )


class NotReplayableError(Exception):
    """This letter cannot run again; the message says why."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Reads and closes them. The topic keeps all; which are closed is on the board."""

    log: Log
    board: Board

    async def open(self, wanted: Wanted) -> AsyncGenerator[DeadLetter]:
        """Those that were neither replayed nor dropped, oldest first by partition. Raises what the log raises."""
        closed = await self.board.closed_letters()
        async for delivery in self.log.read(topics.DEAD):
            letter = of_record(delivery.record)
            if letter is not None and letter.id not in closed and wanted.takes(letter):
                yield letter

    async def replay(self, letter: DeadLetter) -> Job:
        """Run it again under its id, with a new deadline as long as the first. Raises `NotReplayableError`.

        Its ledger and its idempotency key stay. May run twice: the board then knows it for the same replay.
        """
        try:
            job = envelope.from_record(letter.record)
        except EnvelopeError as error:
            raise NotReplayableError(f"it is not a job: {error}") from None
        now = await self.board.now()
        job = replace(job, created_at=now, expires_at=now + (job.expires_at - job.created_at))
        state = await self.board.revive(job, letter.id)
        if state not in (JobState.QUEUED, None):
            raise NotReplayableError(f"its job is {state}, and only a failed one runs again")
        await self.log.append(job.topic, envelope.replayed(envelope.to_record(job), at=now))
        await self.board.close_letter(letter.id, "replayed")
        return job

    async def drop(self, letter: DeadLetter) -> None:
        """Close it. It stays on the topic until that forgets it."""
        await self.board.close_letter(letter.id, "dropped")


def to_record(record: Record, *, topic: str, position: str, reason: str, detail: str) -> Record:
    """A record as a dead letter: its bytes untouched, its headers with the reason beside them.

    What would be too large for the topic, as a record of somebody else's may be, is cut.
    """
    headers = {name: value for name, value in record.headers.items() if name != "authorization"}
    if sum(4 * len(name) + 4 * len(value) for name, value in headers.items()) > LARGEST_HEADERS:
        headers = {}
    value, most = record.value, RECORD_LIMIT - LARGEST_HEADERS - 8 * LONGEST_DETAIL
    if len(value) > most:
        headers[f"{PREFIX}cut"] = str(len(value))
        value = value[:most]
    headers |= {
        f"{PREFIX}id": f"dead_{ULID()}",
        f"{PREFIX}reason": reason,
        f"{PREFIX}detail": detail[:LONGEST_DETAIL],
        f"{PREFIX}topic": topic,
        f"{PREFIX}position": position,
    }
    return Record(value, headers)


def of_record(record: Record) -> DeadLetter | None:
    """The dead letter of a record on `jobs.dead`; None when something else was put there."""
    headers = record.headers
    letter_id = headers.get(f"{PREFIX}id", "")
    try:
        at = ULID.from_str(letter_id.removeprefix("dead_")).timestamp
    except ValueError:
        return None
    return DeadLetter(
        id=letter_id,
        at=at,
        reason=headers.get(f"{PREFIX}reason", ""),
        detail=headers.get(f"{PREFIX}detail", ""),
        topic=headers.get(f"{PREFIX}topic", ""),
        position=headers.get(f"{PREFIX}position", ""),
        tenant=headers.get("tenant"),
        job_id=headers.get("job"),
        record=Record(record.value, {name: value for name, value in headers.items() if not name.startswith(PREFIX)}),
    )
