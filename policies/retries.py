"""Whether a failed attempt is tried again, and when: one pure decision over a closed list of failures."""

from dataclasses import dataclass
from enum import StrEnum


class Failure(StrEnum):
    """Every way in which a call to a backend can fail. Adapters translate into these, once."""

    REJECTED = "rejected"  # the client's fault: the backend refuses this request for good
    THROTTLED = "throttled"  # 429: too fast; nothing was done
    UNAVAILABLE = "unavailable"  # refused connection, 503, reset before any byte: nothing was done
    BACKEND_ERROR = "backend_error"  # 500 and its like: work may have been done
    TIMED_OUT = "timed_out"  # no answer in time: work may have been done
    CUT = "cut"  # the stream ended before the answer did: work was done
    MISCONFIGURED = "misconfigured"  # 401, 403, 404: our settings are wrong, not the job


MAY_HAVE_RUN = frozenset({Failure.BACKEND_ERROR, Failure.TIMED_OUT, Failure.CUT})
FINAL = frozenset({Failure.REJECTED})


@dataclass(frozen=True, slots=True)
class Again:
    """Try again in `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt; `reason` is a short code for the job's error."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often and how patiently. Seconds."""

    attempts: int = 4
    first_wait: float = 0.5
    longest_wait: float = 30.0

    def decide(
        self,
        failure: Failure,
        *,
        attempt: int,
        seconds_left: float,
        reruns_allowed: bool,
        retry_after: float | None,
        jitter: float,
    ) -> Again | GiveUp:
        """What follows the `attempt`-th attempt (from 1) that ended in `failure`.

        `seconds_left` until the deadline; `jitter` in [0, 1). A backend's Retry-After is never undercut.
        """
        if failure in FINAL:
            return GiveUp(failure.value)
        if failure in MAY_HAVE_RUN and not reruns_allowed:
            return GiveUp("may_have_run")
        if attempt >= self.attempts:
            return GiveUp(failure.value)
        ceiling = min(self.longest_wait, self.first_wait * 2.0 ** (attempt - 1))
        wait = max(ceiling * (0.5 + jitter / 2), retry_after or 0.0)
        if wait >= seconds_left:
            return GiveUp("deadline")
        return Again(wait)
