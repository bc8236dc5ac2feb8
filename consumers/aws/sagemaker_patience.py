"""How long a submitted call is waited for, and how often its result is looked for meanwhile: no I/O. All in seconds."""

import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable

SOONEST_S, LATEST_S = 2.0, 60.0  # between two looks, where no message can come
SOONEST_WITH_MESSAGES_S = 10.0  # a message was lost if it was not here by then
SLACK_S = 120.0  # beyond time to live and run before a call counts as lost
UNSURE_S, LEAST_UNSURE_S = 300.0, 15.0  # is waited for the result of a call that may not have been taken
TIMES = 4.0  # as long as others took
REMEMBERED = 100
MOST_OPEN = 10_000
ANOTHERS_S = 2 * LATEST_S + 30.0


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


class OpenCalls:
    """When the calls were submitted that were looked for and had no result, as far as this process has looked."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seen: dict[str, OrderedDict[str, tuple[float, float]]] = defaultdict(OrderedDict)

    def note(self, deployment: str, call: str, submitted_at: float) -> None:
        """It has none yet."""
        seen = self._seen[deployment]
        seen[call] = (submitted_at, self._clock())
        seen.move_to_end(call)
        while len(seen) > MOST_OPEN:
            seen.popitem(last=False)

    def forget(self, deployment: str, call: str) -> None:
        """It may have one now."""
        self._seen[deployment].pop(call, None)

    def oldest(self, deployment: str) -> float:
        """The age of the oldest in seconds; 0 where there is none. One that was not looked for again is another's."""
        now, seen = self._clock(), self._seen[deployment]
        while seen and now - next(iter(seen.values()))[1] > ANOTHERS_S:
            seen.popitem(last=False)
        return max((now - submitted_at for submitted_at, _ in seen.values()), default=0.0)


def next_look(age: float, *, has_messages: bool) -> float:
    """When to look again for the result of a call of this age.

    Waits grow with the age, so that a lost message makes a call at most half as long again, and a call of six hours
    is still looked for once a minute.
    """
    soonest, share = (SOONEST_WITH_MESSAGES_S, 2) if has_messages else (SOONEST_S, 5)
    return min(LATEST_S, max(soonest, age / share))


def over_after(ttl_s: float, timeout_s: float) -> float:
    """The age at which a call is over whatever happens, with some time for its result to be written."""
    return ttl_s + timeout_s + SLACK_S


def unsure(others: float | None) -> float:
    """How old a call without a result gets that the endpoint may not have taken.

    As old as it would have got, and some more: calls begin in the order in which they came. `others`: how long the
    slowest of the last ones took.
    """
    return UNSURE_S if others is None else min(UNSURE_S, LEAST_UNSURE_S + TIMES * others)
