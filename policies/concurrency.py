"""How many calls at once use up what a deployment's rates allow: Little's law, on moving averages."""

from dataclasses import dataclass

from policies.bucket import Limit

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


def _moved(average: float | None, newest: float) -> float:
    return newest if average is None else average + NEWEST * (newest - average)
