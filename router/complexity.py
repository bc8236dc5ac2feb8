"""How much a job seems to need the heavy model: counted features, one table of weights, a reason for each.

It counts; it does not understand. Where words matter they are English ones, and other languages are
judged by length, numbers, lists and code.

Where the weights are from: the first six were fitted to public exam-type prompts that a weak and a
strong model had answered, and rounded. The others are set by hand for what such prompts lack
(proofs, designs, plans, chat); on those prompts they cost a little. `bench/routing_score.py` prints
what the whole is worth there, beside chance and prompt length.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

# About a fifth of public exam-type prompts score above it. It holds no share when traffic changes.
THRESHOLD = 0.5

SPAN = 4096  # characters read at each end of the last user turn
EARLIER = 1024  # and of the turns before it
PARTS = 200  # content parts read at each end of a message
TURNS = 60  # messages read, from the end of the conversation
SHORT = 300  # characters
CARRY = 0.3  # how much of an earlier turn's need a new question inherits
ASSENT = 80  # characters at most of a turn that only says "go on",
FEW = 2  # and words, unless it begins with one of GO_ON
OPTIONS = 3  # lines "A.", "B.", "C." make a question multiple choice
REASONS = 4
NOTABLE = 0.05  # a feature that adds less is not named

# On the hot path of every accept, so patterns begin with a fixed character (a line break is put in front of a text),
# and where that cannot be, plain search says first whether there is anything to find.
_ITEM = re.compile(r"\n[ \t]{0,8}(?:[-*•]|\d{1,3}[.)]) ")
_OPTION = re.compile(r"\n\(?[A-J][.):] ")
_NUMBER = re.compile(r"\d+")
_CODE = re.compile(r"```|\b(?:def|class|import|function|return|SELECT) |[{};]\n|=>|==|</")
_MARKS = ("```", "{\n", "}\n", ";\n", "=>", "==", "</")
_CODE_PARTS = (*_MARKS, "def ", "class ", "import ", "function ", "return ", "SELECT ")
_LETTERS = bytes(byte if byte in range(ord("a"), ord("z") + 1) else ord(" ") for byte in range(256))
_DIGITS = bytes(byte if byte in range(ord("0"), ord("9") + 1) else ord(" ") for byte in range(256))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


QUANTITY = _words(
    "many much total per twice half times more less fewer left percent average ratio rate each every same"
)
SITUATION = _words(
    "he she her his him they their my me i we had were said then after before while when but so because than another"
    " these according something two"
)
CONSTRAINT = _words(
    "must should exactly least most without only except unless both within constraint constraints requirement"
    " requirements budget cannot avoid"
)
TASKS = _words(
    "write give explain discuss describe justify compare design implement include propose create provide outline"
    " analyze analyse evaluate estimate summarize summarise derive prove plan critique argue rewrite review"
)
PROOF = _words("prove proof theorem lemma derive derivation rigorous rigorously")
DESIGN = _words(
    "design architecture architect implement refactor optimize optimise algorithm algorithms scalable distributed"
    " compare evaluate analyze analyse critique strategy plan roadmap migrate migration debug complexity tradeoffs"
)
LOOKUP = _words("what who whom when where which define translate spell say name hello hi thanks")
GO_ON = _words("yes yeah yep ok okay sure continue go proceed next please do more again right correct agreed keep")


@dataclass(frozen=True, slots=True)
class Score:
    """The need for heavy, 0 to 1, and what moved it most, in words."""

    value: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """What is counted of one turn. `read` is both its ends, `length` all its characters."""

    read: str
    length: int
    words: Counter[str]
    options: int  # of a multiple-choice question, which asks for a letter whatever else its words say

    def count(self, words: frozenset[str]) -> int:
        """How often any of the words is there."""
        return sum(map(self.words.__getitem__, words & self.words.keys()))

    def asks(self, words: frozenset[str]) -> int:
        """How many of the words are there, if the answer is to be written."""
        return 0 if self.options >= OPTIONS else len(words & self.words.keys())


@dataclass(frozen=True, slots=True)
class Feature:
    """A count squeezed into 0..1, what it adds at 1, and its reason in words."""

    words: str
    weight: float
    of: Callable[[Text], float]


def _up_to(most: int, count: int) -> float:
    """0 for none, 1 for `most` and above; the first ones count most."""
    return min(1.0, math.log1p(count) / math.log1p(most)) if count > 0 else 0.0


def _numbers(text: str) -> int:
    if text.isascii():
        return len(text.encode().translate(_DIGITS).split())
    return len(_NUMBER.findall(text))


def _code(text: str) -> int:
    return len(_CODE.findall(text)) if any(map(text.__contains__, _CODE_PARTS)) else 0


def _sentences(text: Text) -> int:
    ends = sum(map(text.read.count, (". ", ".\n", "? ", "?\n", "! ", "!\n", "。")))
    return max(0, ends - text.options)


FEATURES = (
    Feature("long", 0.14, lambda text: min(1.0, math.log2(1 + text.length / 64) / 7)),
    Feature("several sentences", 0.04, lambda text: _up_to(12, _sentences(text))),
    Feature("numbers", 0.11, lambda text: _up_to(16, _numbers(text.read))),
    Feature("quantities to work out", 0.25, lambda text: _up_to(8, text.count(QUANTITY))),
    Feature("a situation to follow", 0.34, lambda text: _up_to(24, text.count(SITUATION))),
    Feature("multiple choice", 0.11, lambda text: _up_to(10, text.options)),
    Feature("several constraints", 0.25, lambda text: _up_to(6, text.asks(CONSTRAINT))),
    Feature("several things asked", 0.30, lambda text: _up_to(4, max(0, text.asks(TASKS) - 1))),
    Feature("a list of points", 0.15, lambda text: _up_to(10, len(_ITEM.findall(f"\n{text.read}")))),
    Feature("code", 0.05, lambda text: _up_to(8, _code(text.read))),
    Feature("asks for a proof", 0.50, lambda text: _up_to(1, text.asks(PROOF))),
    Feature("asks for a design or a comparison", 0.60, lambda text: _up_to(4, text.asks(DESIGN))),
)
LONG_CONVERSATION = 0.10  # at 40 messages
TOOLS = 0.05  # at 20 tools


def score(body: Mapping[str, object]) -> Score:
    """Score the last user turn, and an earlier one as far as the last leans on it.

    Reads a bounded part of the body, and never raises whatever its shape.
    """
    turns = _turns(body)
    asked = next((read(content) for role, content in turns if role == "user"), read(""))
    own = _weigh(asked, _around(body))
    before = _before(turns)
    if before is None or before.value <= own.value:
        return own
    if _goes_on(asked):
        return Score(before.value, ("continues an earlier turn", *before.reasons)[:REASONS])
    if before.value < THRESHOLD:
        return own
    inherited = round(min(1.0, own.value + CARRY * before.value), 3)
    return Score(inherited, (*own.reasons[: REASONS - 1], "follows a harder turn"))


def _turns(body: Mapping[str, object]) -> list[tuple[object, object]]:
    """The role and content of the latest messages, the last one first."""
    messages = body.get("messages", body.get("input", body.get("prompt")))
    if isinstance(messages, str):
        return [("user", messages)]
    if not isinstance(messages, list):
        return []
    latest = messages[: -TURNS - 1 : -1]
    return [(turn.get("role"), turn.get("content")) for turn in latest if isinstance(turn, dict)]


def _before(turns: list[tuple[object, object]]) -> Score | None:
    """The score of what the last user turn may lean on: the last user turn that says more than "go on",
    and the answer in between, for a plan is often the model's own."""
    last = next((at for at, (role, _) in enumerate(turns) if role == "user"), len(turns))
    earlier = turns[last + 1 :]
    answer = next((read(content, EARLIER) for role, content in earlier if role == "assistant"), None)
    users = (read(content, EARLIER) for role, content in earlier if role == "user")
    asked = next((text for text in users if not _goes_on(text)), None)
    scores = [_weigh(text, ()) for text in (asked, answer) if text is not None]
    return max(scores, key=lambda score: score.value, default=None)


def _goes_on(text: Text) -> bool:
    """Whether a turn says little of its own."""
    first = next(iter(text.words), "")
    return text.length <= ASSENT and "?" not in text.read and (first in GO_ON or text.words.total() <= FEW)


def _around(body: Mapping[str, object]) -> tuple[tuple[float, str], ...]:
    """What the rest of the body adds."""
    messages, tools = body.get("messages"), body.get("tools")
    return (
        (LONG_CONVERSATION * _up_to(36, max(0, _length(messages) - 4)), "long conversation"),
        (TOOLS * _up_to(20, _length(tools)), "tools"),
    )


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _weigh(text: Text, around: tuple[tuple[float, str], ...]) -> Score:
    counted = [(each.weight * count, each.words) for each in FEATURES if (count := each.of(text))]
    added = sorted((*counted, *around), reverse=True)
    value = min(1.0, sum(amount for amount, _ in added))
    notable = (words for amount, words in added if amount >= NOTABLE)
    return Score(round(value, 3), tuple(islice(chain(notable, _plain(text)), REASONS)))


def _plain(text: Text) -> Iterator[str]:
    """Reasons that add nothing."""
    if text.length <= SHORT:
        yield "short"
    if text.read.count("?") == 1:
        yield "one question"
    if text.length <= SHORT and next(iter(text.words), "") in LOOKUP:
        yield "a look-up"


def read(content: object, span: int = SPAN) -> Text:
    """The text of a message's content: `span` characters at both ends of it."""
    texts = content if isinstance(content, str) else "\n".join(_texts(content))
    ends = _ends(texts, span)
    words = ends.lower().encode("ascii", "replace").translate(_LETTERS).decode().split()
    return Text(ends, len(texts), Counter(words), len(_OPTION.findall(f"\n{ends}")))


def _texts(content: object) -> Iterator[str]:
    if not isinstance(content, list):
        return
    parts = content if len(content) <= 2 * PARTS else [*content[:PARTS], *content[-PARTS:]]
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield text


def _ends(text: str, span: int) -> str:
    return text if len(text) <= 2 * span else f"{text[:span]}\n{text[-span:]}"
