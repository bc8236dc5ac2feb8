"""Which replicas have computed how a job's prompt begins, as the board has told this worker, and who waits for them."""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from consumers.gpu.replicas import LONGEST_S, Beginning, digest_of, prefix_of
from router.job import Job

REMEMBERED = 10_000  # beginnings, and jobs that were asked for
ASKED_AGAIN_S = 2.0  # a job that waits is asked about more often
MOST_OF_TIME = 0.05  # of all the time that a job has, it waits at most so much


@dataclass(frozen=True, slots=True)
class _Asked:
    """A job's beginning (None: too short to matter), and when it was first asked for."""

    digest: bytes | None
    at: float


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
        self._asked: OrderedDict[str, _Asked] = OrderedDict()
        self._waiting: dict[str, _Waits] = {}
        self._lines: dict[str, list[float]] = {}  # since when each waits, by replica
        self._tidied_at = clock()

    def beginning(self, job: Job) -> Beginning | None:
        """How it begins; the first time it is asked for, the job begins to wait."""
        asked = self._of(job)
        if asked.digest is None:
            return None
        return Beginning(
            asked.digest,
            self._known.get(asked.digest, ()),
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
        return not set(homes) <= set(before)

    def waits(self, job: Job) -> None:
        """It goes on waiting, for the one of its homes that had its beginning last."""
        asked = self._asked.get(job.id)
        homes = () if asked is None or asked.digest is None else self._known.get(asked.digest, ())
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
            asked = _Asked(digest_of(prefix) if prefix else None, self._clock() if asked is None else asked.at)
            self._asked[job.id] = asked
            _bound(self._asked)
        return asked


def _bound(kept: OrderedDict[str, _Asked] | OrderedDict[bytes, Sequence[str]]) -> None:
    while len(kept) > REMEMBERED:
        kept.popitem(last=False)
