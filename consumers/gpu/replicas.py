"""Which replica of a deployment gets a job, and how many calls one of them may have. Pure."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

OVERLOADED = 1.3  # who has a prompt's beginning may have so many times the mean load
FULL_S = 0.002  # that a job waits, for each of its tokens, while all that have its beginning are full
BUSY_S = 0.0005  # while one of them has room, but more load than it should
LONGEST_S = 4.0  # that it waits at all
SLOW = 1.5  # times the usual pace
ALIKE = 1.25  # up to so much of a difference is chance
PREFIX_BYTES = 2048  # of the conversation's beginning
LEAST_PREFIX = 256  # bytes; less is prefilled faster than it is found
FULL = 0.9  # of an engine's KV cache: above it begins to throw out what runs

LOWERED = 0.7
LEARN_S = 1.0  # one change in so long a time: the calls that are under way then all tell the same
USED = 0.8  # only who uses his cap learns whether it could be higher


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may be called. `load`: calls that are there, of whoever; `cap`: how many there may be.

    `pace`: how long it takes for a token, over what is usual among them. Of two that are as good the one that was
    `given` less gets the next one.
    """

    name: str
    load: int
    cap: int
    given: int = 0
    pace: float = 1.0

    @property
    def room(self) -> int:
        """Calls that may begin there."""
        return max(0, self.cap - self.load)

    @property
    def is_slow(self) -> bool:
        """Whether a cached beginning is not worth it there."""
        return self.pace >= SLOW


def prefix_of(body: bytes) -> bytes | None:
    """What a chat's prompt has in common with the conversation's next turns; None when that is too short to matter.

    That is everything before the first answer in it, as the client wrote it, up to `PREFIX_BYTES`.
    """
    start = body.find(b'"messages"')
    if start < 0:
        return None
    answer = body.find(b'"assistant"', start)
    end = body.rfind(b"}", start, answer if answer >= 0 else body.rfind(b"]", start) + 1)
    prefix = body[start : min(max(start, end), start + PREFIX_BYTES)]
    return prefix if len(prefix) >= LEAST_PREFIX else None


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a job's prompt begins: a digest of that, and the replicas (`homes`) that have computed it not long ago.

    The job has `waited` so many seconds for one of these, and may wait for `at_most`.
    """

    digest: bytes
    homes: Collection[str] = ()
    waited: float = 0.0
    tokens: int = 0
    at_most: float = LONGEST_S

    def waits(self, *, all_full: bool) -> bool:
        """Whether it is worth more to wait for one of its homes than to be computed anew elsewhere.

        That takes its time and, what counts more where many such jobs come, it takes it from the others there.
        """
        return self.waited < min(self.tokens * (FULL_S if all_full else BUSY_S), self.at_most, LONGEST_S)


def digest_of(prefix: bytes) -> bytes:
    """A name for it that does not tell what it says."""
    return blake2b(prefix, digest_size=8).digest()


def ranked(
    candidates: Sequence[Candidate],
    *,
    beginning: Beginning | None = None,
    avoid: Collection[str] = (),
    rolls: tuple[float, float],
) -> Sequence[Candidate]:
    """Those with room, the chosen one first, the others as they would do instead; `avoid` only where nothing else is.

    One of the beginning's homes that is not overloaded, and no other. Where there is none, nobody while it is worth
    waiting for one, then the better of two that the beginning names. Without one, the better of two that `rolls` (in
    0..1) draw.
    """
    free = [each for each in candidates if each.room]
    wanted = [each for each in free if each.name not in avoid] or free
    if beginning is None:
        return _with_others(_better(wanted, rolls), wanted) if wanted else ()
    homes = [
        each for each in candidates if each.name in beginning.homes and each.name not in avoid and not each.is_slow
    ]
    most = math.ceil(OVERLOADED * (sum(each.load for each in candidates) + 1) / max(1, len(candidates)))
    at_home = [each for each in homes if each.room and each.load < most]
    if at_home:
        return sorted(at_home, key=lambda each: each.load)
    if homes and beginning.waits(all_full=not any(each.room for each in homes)):
        return ()
    others = [each for each in wanted if each not in homes] or wanted
    return _with_others(_named(others, beginning.digest), wanted) if wanted else ()


def cap(*limits: int | None, share: float = 1.0) -> int:
    """The least of those that are known; a replica that starts gets a `share` of it, and one call at least."""
    known = [limit for limit in limits if limit is not None]
    return max(1, math.floor(min(known) * share)) if known else 1


@dataclass(frozen=True, slots=True)
class Learned:
    """A cap that a replica taught us, and since when (a moment)."""

    cap: float
    at: float


def lowered(learned: Learned | None, *, in_flight: int, now: float, left: float = LOWERED) -> Learned | None:
    """It has too much with `in_flight` calls: that part of them. None: it is too early to change anything."""
    if learned is not None and now - learned.at < LEARN_S:
        return None
    at_most = in_flight if learned is None else min(learned.cap, in_flight)
    return Learned(max(1.0, at_most * left), now)


def raised(learned: Learned | None, *, in_flight: int, ceiling: int, now: float) -> Learned | None:
    """It had `in_flight` calls and was well: one more. None: nothing to change."""
    if learned is None or learned.cap >= ceiling or now - learned.at < LEARN_S or in_flight < learned.cap * USED:
        return None
    return Learned(min(float(ceiling), learned.cap + 1), now)


def _named(wanted: Sequence[Candidate], digest: bytes) -> Candidate:
    """The better of the first two in an order of the beginning's own: always the same two, whoever asks."""

    def rank(each: Candidate) -> bytes:
        return blake2b(each.name.encode() + b"\0" + digest, digest_size=8).digest()

    return min(sorted([each for each in wanted if not each.is_slow] or wanted, key=rank, reverse=True)[:2], key=_use)


def _better(wanted: Sequence[Candidate], rolls: tuple[float, float]) -> Candidate:
    one = int(rolls[0] * len(wanted))
    other = (one + 1 + int(rolls[1] * (len(wanted) - 1))) % len(wanted)
    return min(wanted[one], wanted[other], key=_use)


def _with_others(chosen: Candidate, wanted: Sequence[Candidate]) -> Sequence[Candidate]:
    return [chosen, *sorted((each for each in wanted if each is not chosen), key=_use)]


def _use(candidate: Candidate) -> tuple[float, int]:
    """What it costs a job to go there: an engine that is full takes about twice as long as one that idles."""
    pace = candidate.pace if candidate.pace >= ALIKE else 1.0
    return pace * (1 + candidate.load / candidate.cap), candidate.given
