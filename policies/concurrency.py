"""How many calls at once use up what a deployment's rates allow: Little's law, on moving averages."""

from dataclasses import dataclass

from policies.bucket import Limit
from policies.deployments import Limits

NEWEST = 0.1  # how much the newest call counts


@dataclass(slots=True)
class Usual:
    """What a call takes as a rule: seconds, and the tokens that are reserved for it. None before the first one."""

    seconds: float | None = None
    tokens: float | None = None

    def add(self, seconds: float, tokens: int) -> None:
        """A call has ended."""
        self.seconds = _moved(self.seconds, seconds)
        self.tokens = _moved(self.tokens, float(tokens))


def places(usual: Usual, requests: Limit | None, tokens: Limit | None) -> float | None:
    """Calls that run at once when they begin as fast as the rates allow. None: not known, or no rate limits them."""
    if usual.seconds is None or usual.tokens is None:
        return None
    rates = [] if requests is None else [requests.rate]
    if tokens is not None and usual.tokens > 0:
        rates.append(tokens.rate / usual.tokens)
    return min(rates) * usual.seconds if rates else None


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Calls that run at once when they begin as fast as each rate allows. None: that rate has no limit."""

    by_requests: float | None
    by_tokens: float | None

    @property
    def most(self) -> float | None:
        """The smaller of the two."""
        return min((each for each in (self.by_requests, self.by_tokens) if each is not None), default=None)


def concurrency(limits: Limits, *, seconds: float, reserved: int) -> Concurrency:
    """Of calls that take so long and for which so many tokens are reserved: input, and all that may be put out."""
    requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
    return Concurrency(
        None if requests is None else requests * seconds / 60,
        None if tokens is None else tokens * seconds / (60 * max(1, reserved)),
    )


def _moved(average: float | None, newest: float) -> float:
    return newest if average is None else average + NEWEST * (newest - average)
