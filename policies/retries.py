"""What follows a failed attempt: again, another deployment, or the end. One pure decision over a closed list."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Failure(StrEnum):
    """Every way in which a call to a backend can fail. Adapters translate into these, once."""

    REJECTED = "rejected"  # the client's fault: the backend refuses this request for good
    TOO_LONG = "too_long"  # it does not fit the model's window; another model may have a larger one
    FILTERED = "filtered"  # the backend's content filter refuses it
    THROTTLED = "throttled"  # 429: too fast; nothing was done
    UNAVAILABLE = "unavailable"  # refused connection, 503, reset before any byte: nothing was done
    BACKEND_ERROR = "backend_error"  # 500 and its like: work may have been done
    TIMED_OUT = "timed_out"  # no answer in time: work may have been done
    CUT = "cut"  # the stream ended before the answer did: work was done
    UNUSABLE = "unusable"  # the answer is empty, a refusal, or not as the agreed schema has it
    MISCONFIGURED = "misconfigured"  # 401, 403, 404: our settings are wrong, not the job


MAY_HAVE_RUN = frozenset({Failure.BACKEND_ERROR, Failure.TIMED_OUT, Failure.CUT})
FINAL = frozenset({Failure.REJECTED, Failure.TOO_LONG, Failure.FILTERED})  # the same deployment would say the same

# How often a job is tried at a deployment before it goes on to the next of its route. Those that a second call
# may well get past are tried again; what took long, or was paid for in part, is not.
TRIES: Mapping[Failure, int] = MappingProxyType(
    {
        Failure.THROTTLED: 3,
        Failure.UNAVAILABLE: 2,
        Failure.BACKEND_ERROR: 2,
        Failure.TIMED_OUT: 1,
        Failure.CUT: 1,
        Failure.UNUSABLE: 1,
        Failure.MISCONFIGURED: 1,
    }
)


@dataclass(frozen=True, slots=True)
class Again:
    """Try again at the same deployment in `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Go on at once with the next deployment of the route."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt; `reason` is a short code for the job's error."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tried:
    """What was tried so far, and what is left.

    `attempts` are the job's, `here` those at this deployment, this one included. `has_next`: its route names another
    deployment that takes it. `has_replicas`: another replica of this one may do better. `is_fallback`: the job was
    meant for another deployment. `may_retry`: the deployment's retry budget has room. `is_waited_for`: a caller waits.
    `most_here`: more calls at this deployment are not worth making.
    """

    attempts: int
    here: int
    seconds_left: float
    has_next: bool = False
    has_replicas: bool = False
    is_fallback: bool = False
    reruns_allowed: bool = True
    may_retry: bool = True
    is_waited_for: bool = False
    most_here: int | None = None


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often and how patiently. Seconds.

    `attempts` at one deployment, `most` in all; `patience` is the longest wait where another deployment is left.
    """

    attempts: int = 4
    first_wait: float = 0.5
    longest_wait: float = 30.0
    most: int = 8
    patience: float = 3.0

    def decide(
        self, failure: Failure, tried: Tried, *, retry_after: float | None, jitter: float
    ) -> Again | Elsewhere | GiveUp:
        """What follows an attempt that ended in `failure`.

        `jitter` in [0, 1). A backend's Retry-After is never undercut.
        """
        wait = self._wait(failure, tried, retry_after, jitter)
        if tried.has_next and tried.attempts < self.most and self._leaves(failure, tried, wait):
            return Elsewhere()
        if failure in FINAL:
            return GiveUp(failure.value)
        if failure in MAY_HAVE_RUN and not tried.reruns_allowed:
            return GiveUp("may_have_run")
        if tried.here >= min(self.attempts, tried.most_here or self.attempts) or tried.attempts >= self.most:
            return GiveUp(failure.value)
        if tried.is_waited_for and not tried.may_retry:
            return GiveUp(failure.value)
        if wait >= tried.seconds_left:
            return GiveUp("deadline")
        return Again(wait)

    def _leaves(self, failure: Failure, tried: Tried, wait: float) -> bool:
        """Whether another deployment is the better place. That it is configured is consent to a second call."""
        match failure:
            case Failure.FILTERED:
                return False
            case Failure.REJECTED:
                return tried.is_fallback  # the one that it was meant for had not said so
            case Failure.TOO_LONG:
                return True
        if not tried.may_retry or (failure in MAY_HAVE_RUN and not tried.reruns_allowed):
            return True
        tries = max(2, TRIES[failure]) if tried.has_replicas else TRIES[failure]
        return tried.here >= tries or wait > self.patience

    def _wait(self, failure: Failure, tried: Tried, retry_after: float | None, jitter: float) -> float:
        if tried.has_replicas and tried.here == 1:
            return 0.0  # what one replica said does not bind another
        ceiling = min(self.longest_wait, self.first_wait * 2.0 ** (tried.here - 1))
        return max(ceiling * (0.5 + jitter / 2), retry_after or 0.0)
