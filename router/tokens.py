"""How many tokens a job may take, guessed before it runs: for admission and window fit, never for a bill."""

import binascii
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from policies.deployments import Deployment, Modality
from policies.pricing import SECOND_TOKENS
from router import documents, images, modality, sounds

CEILING = 10_000_000  # no estimate is above it
NODES = 250_000  # a body of more lists, objects and texts than this counts as the ceiling
INPUTS = 2048  # the most inputs of an embedding call; more count as one
CHOICES = 128  # the most answers one call may ask for
MARGIN_PERCENT = 135

# Hundredths of a token for a byte of each kind. Against a tokeniser of 49,000 words, margin included, half of
# all English prompts come out under 1.4 times the count and nearly all over 0.95, code and JSON at 1.0 to 1.5,
# Chinese and Japanese at 1.1 (larger vocabularies need half of that), German at 1.0, Korean at 0.7; long runs
# of random letters at 0.6.
_KINDS = (
    (b"abcdefghijklmnopqrstuvwxyz", 27),
    (b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", 45),
    (b"0123456789", 85),
    (b" \t\r\n", 4),
    (bytes(range(128, 256)), 45),
)
_MARK = 60  # every other byte

# Of what is linked to: nobody has looked at it yet.
_LINKED: Mapping[Modality, int] = MappingProxyType(
    {Modality.IMAGE: images.UNKNOWN, Modality.DOCUMENT: 33_000, Modality.AUDIO: 1_500, Modality.VIDEO: 10_000}
)
_VIDEO_LEAST, _VIDEO_MOST, _VIDEO_BYTES = 10_000, 200_000, 750  # tokens; bytes that make one
_LONGEST_HEAD = 256  # characters before a data URL's data
_PAYLOADS = frozenset(
    {"image_url", "input_audio", "audio_url", "file", "video_url", "image", "audio", "video", "url", "data"}
    | {"file_data", "file_url", "file_id"}
)
_NODE = (str, list, dict)
_READ = ("messages", "input", "prompt", "instructions", "tools", "functions", "response_format", "text")


def estimate_input(body: Mapping[str, object]) -> int:
    """Tokens of everything that the model will read: messages, media, tools and schemas. 1 to `CEILING`.

    Linear in the size of the body. Data of images, documents, audio and video is not taken for text.
    """
    return _estimate([body[name] for name in _READ if name in body])


def longest_input(body: Mapping[str, object]) -> int:
    """Tokens of the longest of an embedding call's inputs, each of which has a window to itself. 1 to `CEILING`."""
    inputs = body.get("input")
    if isinstance(inputs, list) and 0 < len(inputs) <= INPUTS and isinstance(inputs[0], str | list):
        return max(_estimate([each]) for each in inputs)
    return _estimate([inputs])


def output_each(body: Mapping[str, object], deployment: Deployment) -> int:
    """The most tokens that one answer may have: the caller's limit, else the deployment's. At most `CEILING`."""
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        asked = body.get(name)
        if type(asked) is int and asked > 0:
            return min(asked, CEILING)
    return deployment.max_output


def max_output(body: Mapping[str, object], deployment: Deployment) -> int:
    """The most tokens that all answers of the call may have together. At most `CEILING`."""
    n = body.get("n")
    choices = min(n, CHOICES) if type(n) is int and n > 0 else 1
    return min(output_each(body, deployment) * choices, CEILING)


def _estimate(values: list[object]) -> int:
    """Walks without recursion: the depth is the caller's."""
    texts: list[str] = []
    tokens = 0
    waiting = list(values)
    for _ in range(NODES):
        if not waiting:
            return max(1, min(CEILING, tokens + _of_text("\n".join(texts))))
        value = waiting.pop()
        tokens += 1
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list):
            inside = [item for item in value if isinstance(item, _NODE)]
            tokens += len(value) - len(inside)
            waiting.extend(inside)
        elif isinstance(value, dict):
            medium = modality.of_part(value)
            if medium is not None:
                tokens += _guess(medium, value)
                value = {key: item for key, item in value.items() if key not in _PAYLOADS}
            texts.extend(value)
            waiting.extend(value.values())
    return CEILING


def _of_text(text: str) -> int:
    data = text.encode("utf-8", "surrogatepass")
    hundredths = len(data) * _MARK
    for kind, weight in _KINDS:
        hundredths += (len(data) - len(data.translate(None, kind))) * (weight - _MARK)
    return hundredths * MARGIN_PERCENT // 10_000


def _guess(medium: Modality, part: dict[str, object]) -> int:
    """What a part counts for beside its text: read from its data, where it has some."""
    text = max((each for key, value in part.items() if key in _PAYLOADS for each in _texts(value)), key=len, default="")
    size, start = _data_in(text)
    if size == 0:
        guess = _LINKED[medium]
    elif medium is Modality.DOCUMENT:
        guess = documents.tokens(_decoded(text, start, size))
    elif medium is Modality.IMAGE:
        guess = images.tokens(_decoded(text, start, images.HEAD))
    elif medium is Modality.AUDIO:
        guess = sounds.seconds(_decoded(text, start, sounds.HEAD), size) * SECOND_TOKENS
    else:
        guess = max(_VIDEO_LEAST, min(_VIDEO_MOST, size // _VIDEO_BYTES))
    return min(guess, images.LOW) if medium is Modality.IMAGE and _detail(part) == "low" else guess


def _texts(value: object) -> Iterator[str]:
    for inner in value.values() if isinstance(value, dict) else (value,):
        if isinstance(inner, str):
            yield inner


def _data_in(text: str) -> tuple[int, int]:
    """How many bytes of data are in it (0: it is a link, or nothing), and where their base64 begins."""
    start = 0
    if text[:5].lower() == "data:":
        start = text.find(",", 0, _LONGEST_HEAD) + 1
    elif "://" in text[:16]:
        return 0, 0
    return (len(text) - start) * 3 // 4, start


def _decoded(text: str, start: int, most: int) -> bytes:
    """The first `most` bytes; none where it is not base64, which the door refuses and other ways in may not."""
    try:
        return binascii.a2b_base64(text[start : start + (most + 2) // 3 * 4])
    except ValueError:  # as binascii.Error is
        return b""


def _detail(part: dict[str, object]) -> object:
    inner = part.get("image_url")
    return inner.get("detail") if isinstance(inner, dict) else part.get("detail")
