"""Which replica of a deployment gets a job, and how many calls one of them may have. Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from statistics import median_low

from consumers.gpu.speeds import USUAL, Speed

OVERLOADED = 1.3  # who has a prompt's beginning may have so many times the mean load
CACHED = 0.75  # of such a prompt need not be computed there, as a rule
PRICE = 6.0  # seconds that a second of computing it again costs all: it takes the time, and pushes out what others find
SLACK = 2.5  # calls that a replica may have been given beyond its share
SPARE = 1.5  # times the free part of all places: so much of that price is let off who was given more
LONGEST_S = 30.0  # that a job waits for who has its beginning
PREFIX_BYTES = 2048  # of the conversation's beginning
LEAST_PREFIX = 256  # bytes; less is prefilled faster than it is found
FULL = 0.9  # of an engine's KV cache: above it begins to throw out what runs

LOWERED = 0.7
LEARN_S = 1.0  # one change in so long a time: the calls that are under way then all tell the same
USED = 0.8  # only who uses his cap learns whether it could be higher


@dataclass(frozen=True, slots=True)
class Work:
    """What a job is likely to be, in tokens: its prompt, and the answers that are usual."""

    prompt: float = 0.0
    answer: float = 100.0


UNKNOWN = Work()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may be called. `load`: calls that are there, of whoever; `cap`: how many there may be.

    `computing`: tokens of prompts that are being computed there. `given`: seconds of calls that it got lately; of two
    that are as good the one with less gets the next one.
    """

    name: str
    load: int
    cap: int
    given: float = 0.0
    speed: Speed = USUAL
    computing: float = 0.0

    @property
    def room(self) -> int:
        """Calls that may begin there."""
        return max(0, self.cap - self.load)

    def seconds(self, work: Work, *, most: int | None = None, cached: float = 0.0, ahead: int = 0) -> float:
        """How long the job is likely to take there, when it may have `most` calls and has a part of the prompt.

        So many jobs have their turn `ahead` of it. An engine that is full takes about twice as long for an answer as
        one that idles.
        """
        limit = max(1, self.cap if most is None else min(self.cap, most))
        waits = max(0, self.load + ahead + 1 - limit) / limit * self.speed.call_s
        prompt = self.speed.prompt_s * (self.computing + work.prompt * (1 - cached))
        return waits + prompt + self.speed.token_s * work.answer * (1 + self.load / self.cap)


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


def instructions_of(body: bytes) -> tuple[bytes, float] | None:
    """What stands before the first question, up to `PREFIX_BYTES`, and what part of the body all of that is.

    Other conversations have it as well. None when it is too short to matter.
    """
    start = body.find(b'"messages"')
    asked = body.find(b'"user"', start)
    end = body.rfind(b"{", start, asked) if start >= 0 and asked >= 0 else -1
    return (
        (body[start : min(end, start + PREFIX_BYTES)], (end - start) / len(body))
        if end - start >= LEAST_PREFIX
        else None
    )


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a job's prompt begins: a digest of that, and the replicas (`homes`) that have computed it not long ago.

    The job has `waited` so many seconds for one of these, and may wait for `at_most`; so many that began to wait before
    it are `ahead` of it at each replica. `cached` is the part of its prompt that a home need not compute.
    """

    digest: bytes
    homes: Collection[str] = ()
    cached: float = CACHED
    ahead: Mapping[str, int] = field(default_factory=dict)
    waited: float = 0.0
    at_most: float = LONGEST_S


def digest_of(prefix: bytes) -> bytes:
    """A name for it that does not tell what it says."""
    return blake2b(prefix, digest_size=8).digest()


def ranked(
    candidates: Sequence[Candidate],
    *,
    work: Work = UNKNOWN,
    beginning: Beginning | None = None,
    avoid: Collection[str] = (),
    rolls: tuple[float, float],
) -> Sequence[Candidate]:
    """Those with room, the chosen one first, the others as they would do instead; `avoid` only where nothing else is.

    One of the beginning's homes and no other, or nobody while it is worth waiting for one: as long as that, and to wait
    until the home has no more than its share, takes less than to compute the beginning elsewhere costs all; that cost
    counts less for who was given more than its share lately, the more places are free. Where there is no home, the
    better of two that the beginning names; without one, of two that `rolls` (in 0..1) draw.
    """
    free = [each for each in candidates if each.room]
    wanted = [each for each in free if each.name not in avoid] or free
    if not wanted:
        return ()
    if beginning is None:
        return _with_others(_better(wanted, work, rolls), wanted, work)
    homes = {each.name for each in candidates if each.name in beginning.homes and each.name not in avoid}
    if not homes:
        return _with_others(_named(wanted, work, beginning.digest), wanted, work)
    most = math.ceil(OVERLOADED * (sum(each.load for each in candidates) + 1) / len(candidates))
    again_s = PRICE * median_low(each.speed.prompt_s for each in candidates) * work.prompt * beginning.cached
    beyond, let_off_s = _beyond(candidates), again_s * min(1.0, SPARE * _free_share(candidates))

    def cost(each: Candidate) -> tuple[float, float]:
        ahead, more_s = beginning.ahead.get(each.name, 0), min(beyond[each.name], let_off_s)
        if each.name in homes:
            return each.seconds(work, most=most, cached=beginning.cached, ahead=ahead) + more_s, each.given
        return each.seconds(work, ahead=ahead) + again_s + more_s, each.given

    best = min((each for each in candidates if each.name in homes or each in wanted), key=cost)
    if not best.room and beginning.waited < beginning.at_most:
        return ()
    is_home = best.room > 0 and best.name in homes
    return sorted([each for each in wanted if (each.name in homes) == is_home] or wanted, key=cost)


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


def _beyond(candidates: Sequence[Candidate]) -> Mapping[str, float]:
    """Seconds of calls that each was given lately beyond its share, which is by its cap, and a little more."""
    share = sum(each.given for each in candidates) / sum(each.cap for each in candidates)
    return {each.name: max(0.0, each.given - share * each.cap - SLACK * each.speed.call_s) for each in candidates}


def _free_share(candidates: Sequence[Candidate]) -> float:
    return sum(each.room for each in candidates) / sum(each.cap for each in candidates)


def _named(wanted: Sequence[Candidate], work: Work, digest: bytes) -> Candidate:
    """The better of the first two in an order of the beginning's own: always the same two, whoever asks.

    It will have the beginning for long, so that what it was given lately counts as well as what it does now.
    """

    def rank(each: Candidate) -> bytes:
        return blake2b(each.name.encode() + b"\0" + digest, digest_size=8).digest()

    return min(sorted(wanted, key=rank, reverse=True)[:2], key=lambda each: each.given + each.seconds(work))


def _better(wanted: Sequence[Candidate], work: Work, rolls: tuple[float, float]) -> Candidate:
    one = int(rolls[0] * len(wanted))
    other = (one + 1 + int(rolls[1] * (len(wanted) - 1))) % len(wanted)
    return min(wanted[one], wanted[other], key=lambda each: _use(each, work))


def _with_others(chosen: Candidate, wanted: Sequence[Candidate], work: Work) -> Sequence[Candidate]:
    return [chosen, *sorted((each for each in wanted if each is not chosen), key=lambda each: _use(each, work))]


def _use(candidate: Candidate, work: Work) -> tuple[float, float]:
    return candidate.seconds(work), candidate.given
