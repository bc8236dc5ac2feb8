"""How fast each replica is, as its calls have shown. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

NEWEST = 0.2  # how much the newest call counts in an average
LEAST_TOKENS = 256  # of a prompt; what is shorter says nothing about how long a token takes
ALIKE = 1.25  # up to so much of a difference is chance


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds that a token of a prompt takes, a token of an answer, and a call; a usual server's until one is known."""

    prompt_s: float = 0.0003
    token_s: float = 0.03
    call_s: float = 5.0


USUAL = Speed()


@dataclass(slots=True)
class Shown:
    """What one replica has shown; None is unknown. Moving averages."""

    prompt_s: float | None = None
    token_s: float | None = None
    call_s: float | None = None

    def answered(self, *, seconds: float, first_s: float, prompt: float, answer: int) -> None:
        """A call was answered after `seconds`, and began to be after `first_s`.

        `prompt`: tokens that were computed first, those of others included that had come before; 0 is not known.
        """
        self.call_s = _moved(self.call_s, seconds)
        if prompt >= LEAST_TOKENS:
            self.prompt_s = _moved(self.prompt_s, first_s / prompt)
        if answer > 1:
            self.token_s = _moved(self.token_s, (seconds - first_s) / answer)


def speeds(shown: Sequence[Shown]) -> list[Speed]:
    """Of each: its own, where that is known and differs by more than chance from what is usual among them."""
    prompts = _told([each.prompt_s for each in shown], USUAL.prompt_s)
    tokens = _told([each.token_s for each in shown], USUAL.token_s)
    calls = _told([each.call_s for each in shown], USUAL.call_s)
    return [Speed(*each) for each in zip(prompts, tokens, calls, strict=True)]


def _told(shown: Sequence[float | None], otherwise: float) -> list[float]:
    known = [each for each in shown if each]
    usual = median_low(known) if known else otherwise
    return [each if each and not usual / ALIKE <= each <= usual * ALIKE else usual for each in shown]


def _moved(average: float | None, newest: float) -> float:
    return newest if average is None else average + NEWEST * (newest - average)
