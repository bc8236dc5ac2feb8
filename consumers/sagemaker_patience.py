"""How long a submitted call is waited for, and how often its result is looked for meanwhile: no I/O. All in seconds."""

from collections import deque

from policies.deployments import SageMaker

SOONEST_S, LATEST_S = 2.0, 60.0  # between two looks, where no message can come
SOONEST_WITH_MESSAGES_S = 10.0  # a message was lost if it was not here by then
SLACK_S = 120.0  # beyond time to live and run before a call counts as lost
UNSURE_S, LEAST_UNSURE_S = 300.0, 15.0  # is waited for the result of a call that may not have been taken
TIMES = 4.0  # as long as others took
REMEMBERED = 100


class Waits:
    """How long the last calls of an endpoint took, from being taken to their end."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, seconds: float) -> None:
        """One has ended."""
        self._last.append(seconds)

    @property
    def longest(self) -> float | None:
        """None where none has ended yet, as far as is known here."""
        return max(self._last, default=None)


def next_look(age: float, *, has_messages: bool) -> float:
    """When to look again for the result of a call of this age.

    Waits grow with the age, so that a lost message makes a call at most half as long again, and a call of six hours
    is still looked for once a minute.
    """
    soonest, share = (SOONEST_WITH_MESSAGES_S, 2) if has_messages else (SOONEST_S, 5)
    return min(LATEST_S, max(soonest, age / share))


def longest(place: SageMaker, *, is_sure: bool, others: float | None) -> float:
    """At what age a call without a result counts as lost. `others`: how long the slowest of the last ones took.

    A call that the endpoint took ends by itself, in its bounds. One that it may not have taken is waited for as long
    as it would have taken, and some more: calls begin in the order in which they came.
    """
    if is_sure:
        return place.request_ttl_s + place.invocation_timeout_s + SLACK_S
    if others is None:
        return UNSURE_S
    return min(UNSURE_S, LEAST_UNSURE_S + TIMES * others)
