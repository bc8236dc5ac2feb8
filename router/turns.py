"""What the last user turn asks, read from a bounded part of the body whatever its shape."""

from collections.abc import Iterator, Mapping
from itertools import islice

from policies.values import dataclass
from router.features import SPAN

TURNS = 60  # messages read, from the end of the conversation
PARTS = 200  # content parts read at each end of a message
ASSENT = 80  # characters at most of a turn that only says "go on",
FEW = 2  # and words, unless it begins with one of GO_ON
GO_ON = frozenset(
    [
        "yes",
        "yeah",
        "yep",
        "ok",
        "okay",
        "sure",
        "continue",
        "go",
        "proceed",
        "next",
        "please",
        "do",
        "more",
        "again",
        "right",
        "correct",
        "agreed",
        "keep",
    ]
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Both ends of the turn that is to be answered, and the characters of all of it."""

    text: str
    length: int
    is_earlier: bool = False  # the last turn only says "go on" to this one


def asked(body: Mapping[str, object]) -> Asked:
    """The last user turn; where that says little of its own, the last one that says more. Never raises."""
    users = islice(_users(body), TURNS)
    last = next(users, Asked("", 0))
    if not _goes_on(last):
        return last
    earlier = next((turn for turn in users if not _goes_on(turn)), None)
    return last if earlier is None else Asked(earlier.text, earlier.length, is_earlier=True)


def _users(body: Mapping[str, object]) -> Iterator[Asked]:
    """The user's turns, the last one first."""
    messages = body.get("messages", body.get("input", body.get("prompt")))
    if isinstance(messages, str):
        yield _read(messages)
    elif isinstance(messages, list):
        for message in messages[: -TURNS - 1 : -1]:
            if isinstance(message, dict) and message.get("role") == "user":
                yield _read(message.get("content"))


def _read(content: object) -> Asked:
    if not isinstance(content, str):
        content = "\n".join(_texts(content))
    text = content if len(content) <= 2 * SPAN else f"{content[:SPAN]}\n{content[-SPAN:]}"
    return Asked(text[: 2 * SPAN], len(content))


def _texts(content: object) -> Iterator[str]:
    if not isinstance(content, list):
        return
    for part in content if len(content) <= 2 * PARTS else [*content[:PARTS], *content[-PARTS:]]:
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield text


def _goes_on(turn: Asked) -> bool:
    if turn.length > ASSENT or "?" in turn.text:
        return False
    words = [word.strip(".,!:;").lower() for word in turn.text.split()]
    return len(words) <= FEW or words[0] in GO_ON
