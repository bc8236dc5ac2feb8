"""The jobs of the fleet drill, and the card that its engines are."""

import math
import random
from dataclasses import dataclass
from typing import Any

from bench.engine_double import BLOCK, CHARACTERS
from bench.jobs import FILLER

ENGINES = 6
SLOW, LIAR, DIES, RESTARTED = 5, 4, 3, (0, 1)
SLOTS, PREFILL, DECODE, BLOCKS = 8, 3000.0, 20.0, 2000
SLOWNESS = 0.5
SETTLING = 2  # times that each family comes before jobs count
SETTLING_USE = 2 / 3  # of what the engines can compute, if nothing is in a cache
SHORT = 4  # tokens of an answer then
OWN = 275  # tokens of a prompt that follow its beginning, on average
Due = tuple[float, dict[str, Any]]  # when a job comes, and its body


@dataclass(frozen=True, slots=True)
class Traffic:
    """What jobs are like: families and the characters that begin each, tokens of answers (median, sigma, most).

    `rate` is jobs a second.
    """

    families: int
    characters: int
    answer: tuple[float, float, int]
    rate: float

    def beginning(self, family: int) -> str:
        """What its prompts begin with."""
        return _text(f"Family {family}. ", self.characters)


TRAFFIC = {
    "chat": Traffic(families=160, characters=3200, answer=(129.0, 0.8, 1000), rate=3.75),
    "extraction": Traffic(families=64, characters=8000, answer=(24.5, 0.6, 120), rate=14.0),
}


def jobs(deployment: str, traffic: Traffic, seconds: float, rate: float, *, seed: int) -> list[Due]:
    """When each comes, and its body. The same seed, the same jobs."""
    draw, (median, sigma, most) = random.Random(seed), traffic.answer
    found: list[Due] = []
    at = 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        family, number = draw.randrange(traffic.families), len(found)
        messages = _messages(traffic, family, f"Job {seed}-{number}. ", draw)
        output = min(most, max(4, round(draw.lognormvariate(math.log(median), sigma))))
        found.append((at, {"model": deployment, "messages": messages, "max_tokens": output}))
    return found


def settling(deployment: str, traffic: Traffic, faster: float, *, seed: int) -> list[Due]:
    """Each family some times, in an order drawn anew each time."""
    draw = random.Random(seed)
    rate = SETTLING_USE * (ENGINES - 1) * PREFILL * faster / (traffic.characters / CHARACTERS + OWN)
    found: list[Due] = []
    at = 0.0
    for family in [each for _ in range(SETTLING) for each in draw.sample(range(traffic.families), traffic.families)]:
        at += draw.expovariate(rate)
        messages = _messages(traffic, family, f"Before {len(found)}. ", draw)
        found.append((at, {"model": deployment, "messages": messages, "max_tokens": SHORT}))
    return found


def _messages(traffic: Traffic, family: int, own: str, draw: random.Random) -> list[dict[str, str]]:
    asked = min(8000, round(draw.lognormvariate(6.6, 0.9)))  # characters: 735 in the middle
    return [
        {"role": "system", "content": traffic.beginning(family)},
        {"role": "user", "content": _text(own, asked)},
    ]


def _text(beginning: str, characters: int) -> str:
    return (beginning * 5 + FILLER * (characters // len(FILLER) + 1))[:characters]


def prompt_of(body: dict[str, Any]) -> str:
    return "\n".join(each["content"] for each in body["messages"])


def blocks_of(prompt: str) -> list[object]:
    """Its blocks, each named by all of the prompt up to its end."""
    size = BLOCK * CHARACTERS
    return [hash(prompt[: start + size]) for start in range(0, len(prompt) - size + 1, size)]
