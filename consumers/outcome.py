"""What became of one delivery of a job."""

from policies.values import dataclass
from router.job import AtBackend, Job

LONGEST_PARK_S = 30.0  # what waits longer does so on a retry topic


@dataclass(frozen=True, slots=True)
class Concluded:
    """The job is over and its charges and event are on the log: the record need not come again."""

    usd_known: bool = True


@dataclass(frozen=True, slots=True)
class Later:
    """Look at it again in `seconds`. `due_at`, on the board's clock, where the board holds it back until then."""

    seconds: float
    reason: str
    due_at: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is no quota yet. It stays with this worker, whose gate knows how long.

    It `keeps` what the door has reserved of its tenant's: only the deployment's is lacking.
    """

    reason: str
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Dead:
    """For the dead letters, then done."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class HandedOff:
    """The backend has taken the job, and the board knows it; a collector concludes it.

    The record goes round the retry topics until then, and says which call it has: should the board be lost, it is all
    that is known of the job. A collector needs no `at`.
    """

    at: AtBackend | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """Given back as this process stops; whoever gets the record next runs it."""


@dataclass(frozen=True, slots=True)
class MovedOn:
    """It goes on at another deployment at once, as `job` says and the board knows."""

    job: Job
    reason: str


Outcome = Concluded | Later | Waiting | Dead | HandedOff | Left | MovedOn
