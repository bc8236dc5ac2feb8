"""Which replicas have computed how a job's prompt begins, as the board has told this worker, and who waits for them."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from consumers.gpu.replicas import CACHED, LONGEST_S, Beginning, digest_of, instructions_of, prefix_of
from router.job import Job

REMEMBERED = 10_000  # beginnings, and jobs that were asked for
SHARED_S = 20.0  # without a call, who has instructions is thought to have them no more, but for the last one
ASKED_AGAIN_S = 2.0  # a job that waits is asked about more often
MOST_OF_TIME = 0.05  # of all the time that a job has, it waits at most so much


@dataclass(frozen=True, slots=True)
class _Asked:
    """A job's beginning (None: too short to matter), and when it was first asked for.

    `shared` is that of its instructions alone, where the beginning has more than these, and `part` what they are of it.
    """

    digest: bytes | None
    at: float
    shared: bytes | None = None
    part: float = 0.0


@dataclass(slots=True)
class _Waits:
    """A job waits for this replica `since` a moment; it was last asked about `at` another."""

    home: str
    since: float
    at: float


class Homes:
    """Of one deployment. `clock` is a steady one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, Sequence[str]] = OrderedDict()
        self._shared: OrderedDict[bytes, dict[str, float]] = OrderedDict()  # since when, as this worker has seen it
        self._asked: OrderedDict[str, _Asked] = OrderedDict()
        self._waiting: dict[str, _Waits] = {}
        self._lines: dict[str, list[float]] = {}  # since when each waits, by replica
        self._tidied_at = clock()

    def beginning(self, job: Job) -> Beginning | None:
        """How it begins; the first time it is asked for, the job begins to wait."""
        asked = self._of(job)
        if asked.digest is None:
            return None
        named, homes, cached = self._named(asked, asked.digest)
        return Beginning(
            named,
            homes,
            cached,
            self._ahead(asked.at),
            self._clock() - asked.at,
            min(LONGEST_S, MOST_OF_TIME * (job.expires_at - job.created_at)),
        )

    def known(self, job: Job) -> tuple[str, Sequence[str]]:
        """As the board is told: the digest, '' for none, and its homes."""
        asked = self._asked.get(job.id)
        if asked is None or asked.digest is None:
            return "", ()
        return asked.digest.hex(), self._known.get(asked.digest, ())

    def told(self, job: Job, homes: Sequence[str]) -> bool:
        """The board's word on them. True: there are some that were not known."""
        asked = self._asked.get(job.id)
        if asked is None or asked.digest is None:
            return False
        before = self._known.get(asked.digest, ())
        self._known[asked.digest] = homes
        self._known.move_to_end(asked.digest)
        _bound(self._known)
        if asked.shared is not None and homes:
            now, had = self._clock(), self._shared.get(asked.shared, {})
            self._shared[asked.shared] = {each: at for each, at in had.items() if now - at <= SHARED_S} | {
                homes[0]: now
            }
            self._shared.move_to_end(asked.shared)
            _bound(self._shared)
        return not set(homes) <= set(before)

    def waits(self, job: Job) -> None:
        """It goes on waiting, for the one of its homes that had its beginning last."""
        asked = self._asked.get(job.id)
        homes = () if asked is None or asked.digest is None else self._named(asked, asked.digest)[1]
        waits = self._waiting.get(job.id)
        if waits is not None and waits.home in homes:
            waits.at = self._clock()
            return
        self.waits_no_more(job.id)
        if asked is not None and homes:
            self._waiting[job.id] = _Waits(homes[0], asked.at, self._clock())
            insort(self._lines.setdefault(homes[0], []), asked.at)

    def waits_no_more(self, job_id: str) -> None:
        """It has found its place, or is not to have one."""
        waits = self._waiting.pop(job_id, None)
        if waits is not None:
            line = self._lines[waits.home]
            del line[bisect_left(line, waits.since)]
            if not line:
                del self._lines[waits.home]

    def _named(self, asked: _Asked, digest: bytes) -> tuple[bytes, Sequence[str], float]:
        """What names it, its homes, and the part of its prompt that they have.

        Where nobody has all of its beginning, who has its instructions: others may have been given the same.
        """
        homes = self._known.get(digest, ())
        if homes or asked.shared is None:
            return digest, homes, CACHED
        return asked.shared, tuple(self._shared.get(asked.shared, ())), min(CACHED, asked.part)

    def _ahead(self, since: float) -> Mapping[str, int]:
        """Those that began to wait before, by replica."""
        now = self._clock()
        if now - self._tidied_at >= ASKED_AGAIN_S:
            self._tidied_at = now
            for id in [id for id, each in self._waiting.items() if now - each.at >= ASKED_AGAIN_S]:
                self.waits_no_more(id)
        return {home: bisect_left(line, since) for home, line in self._lines.items()}

    def _of(self, job: Job) -> _Asked:
        asked = self._asked.get(job.id)
        if asked is None or (asked.digest is None and job.body):
            prefix = prefix_of(job.body)
            at = self._clock() if asked is None else asked.at
            instructions = instructions_of(job.body)
            if prefix is None or instructions is None or instructions[0] == prefix:
                asked = _Asked(digest_of(prefix) if prefix else None, at)
            else:
                asked = _Asked(digest_of(prefix), at, digest_of(instructions[0]), instructions[1])
            self._asked[job.id] = asked
            _bound(self._asked)
        return asked


def _bound(
    kept: OrderedDict[str, _Asked] | OrderedDict[bytes, Sequence[str]] | OrderedDict[bytes, dict[str, float]],
) -> None:
    while len(kept) > REMEMBERED:
        kept.popitem(last=False)
