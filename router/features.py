"""What is counted of a prompt: some hundred numbers and the places of its words, in time linear in what is read.

On the hot path of every accept, and most prompts are short: there a call of numpy costs as much as a method of
bytes on the whole text, so that arrays are used only where one replaces many. The regular expressions begin with a
fixed character or have a fixed length.
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from operator import mul
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from policies.values import dataclass

SPAN = 4096  # characters read at each end of a text
READ = 8 * SPAN + 2  # and so at most these bytes
OPTIONS = 3  # lines "A.", "B.", "C." make a question multiple choice
LINES = 200  # read at each end of a text
BITS = 17  # words and pairs are hashed to one of 2**BITS places

Floats = NDArray[np.float32]
Places = NDArray[np.int64]

_LISTS: Final = {
    "quantities": "many much total per twice half times more less fewer left percent average ratio rate each every same"
    " cost price",
    "a situation to follow": "he she her his him they their them my me i we had our were was said then after before"
    " while when but so because than another these something two",
    "negations": "not except incorrect false never none neither nor cannot no without least unlikely",
    "question words": "what who whom whose when where which why how",
    "things to write": "write give explain discuss describe justify compare design implement include propose create"
    " provide outline analyze analyse evaluate estimate summarize derive prove plan critique argue rewrite review"
    " generate list make build develop act",
    "small words": "the of a an to in and is that for on with as by at from it be this or are was which if",
    "calculation": "calculate compute determine solve evaluate find value equation function number sum product"
    " probability maximum minimum equal ratio",
    "logic": "if then all some every only unless therefore implies either both follows assume suppose given",
    "science": "energy force mass velocity pressure temperature volume charge current voltage reaction acid solution"
    " mol cell gene protein atom electron",
    "law": "court law state statute contract defendant plaintiff liable property evidence action",
    "hedges": "should must could would may might can will likely best most primarily",
    "above and following": "above following",
    "words of code": "def return print import class for while if else elif function int str list len range assert true"
    " false",
    "first and second person": "i me my you your please",
    "loops": "for while",
    "branches": "if elif else",
    "list and text operations": "break continue pop insert remove del join split replace sort sorted reverse index find"
    " count append strip isdigit",
    "numbered statements": "statement ii iii iv",
    "words of proof": "prove proof theorem lemma derive derivation rigorous rigorously",
    "words of design": "design architecture architect implement refactor optimize optimise algorithm algorithms"
    " scalable distributed compare evaluate analyze analyse critique strategy strategies plan roadmap migrate"
    " migration debug complexity tradeoffs",
    "constraints": "must should exactly least most without only except unless both within constraint constraints"
    " requirement requirements budget cannot avoid",
}
_STARTS: Final = {
    "what": "what",
    "which": "which",
    "who, when or where": "who whom whose when where",
    "how": "how",
    "why": "why",
    "an article or a condition": "a an the this these in for if",
    "an order": _LISTS["things to write"],
    "code": "def from import",
}
_RATED: Final = ("quantities", "a situation to follow", "small words", "negations", "words of code", "calculation")
# Each byte is of one class at most.
_MARKS: Final = {
    "capital letters": b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "small letters": b"abcdefghijklmnopqrstuvwxyz",
    "digits": b"0123456789",
    "blanks": b" \t",
    "line breaks": b"\n",
    "full stops": b".",
    "commas": b",",
    "question marks": b"?",
    "colons": b";:",
    "quotation marks": b"\"'",
    "parentheses": b"()",
    "square brackets": b"[]",
    "braces": b"{}",
    "operators": b"+*/<>-",
    "formula marks": b"\\^",
    "underscores": b"_",
    "percent signs": b"%",
    "dollar signs": b"$",
    "equals signs": b"=",
    "exclamation marks": b"!",
    "hashes and backticks": b"`#",
    "bars": b"|",
    "letters beyond ASCII": bytes(range(128, 256)),
}
_SHARED: Final = (0, 2, 4, 6, 10, 13, 14, 9, 22)  # marks whose share of the text counts too

_COUNTS: Final = (
    "characters",
    "words",
    "lines",
    "characters per line",
    "words of 9 letters and more",
    "different words",
    "numbers",
    "numbers of 4 digits",
    "characters of the question before its options",
    "characters per option",
    "unevenness of the options",
    "code fences",
    "indented lines",
    "paragraphs",
    "calls",
    "sentences",
    "characters of the last line",
    "deepest indent",
    "lines indented by 8 and more",
    "lines indented by 12 and more",
    "characters of the longest line",
    "methods called",
    "commas in the last line",
    "digits in the last line",
    "quotation marks in the last line",
    "blanks in the last line",
)
_RATIOS: Final = (
    "letters per word",
    "share of words of 9 letters and more",
    "share of words of 12 letters and more",
    "share of words of up to 3 letters",
    "share of different words",
    "digits per number",
    "digits of the longest number",
    "share of numbers",
    "options",
    "multiple choice",
    "share of digits in the options",
    "ends its question with a question mark",
    "ends its question with a colon",
    "a gap to fill",
    "ends with 'Answer:'",
)
NAMES: Final = (
    *_COUNTS,
    *_MARKS,
    *_LISTS,
    *_RATIOS,
    *(f"share of {list(_MARKS)[at]}" for at in _SHARED),
    *(f"share of {name}" for name in _RATED),
    *(f"starts with {name}" for name in _STARTS),
)
LENGTH = NAMES.index("characters")
IS_CHOICE = NAMES.index("multiple choice")

_SPELLED: Final = bytes(  # small letters; a digit is 0, as how long a number is matters, not which it is
    byte + 32
    if chr(byte) in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    else 48
    if chr(byte) in "0123456789"
    else byte
    if byte >= 128 or chr(byte) in "abcdefghijklmnopqrstuvwxyz"
    else 32
    for byte in range(256)
)
_DIGITS: Final = _MARKS["digits"]
_NUMBERS: Final = bytes(byte if byte in _DIGITS else 32 for byte in range(256))
_OPTION: Final = re.compile(rb"\n\(?[A-Ja-j][.:)][ \t]")
_METHOD: Final = re.compile(rb"\.[A-Za-z]{1,40}\(")
_MIX, _PAIR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_SHIFT: Final = np.uint64(64 - BITS)
_LISTED: Final = len(_LISTS)
_COUNTED: Final = len(_COUNTS) + len(_MARKS) + _LISTED  # the first ones, whose logarithm is taken
_DIGITS_AT: Final = list(_MARKS).index("digits")
_RATED_AT: Final = tuple(list(_LISTS).index(name) for name in _RATED)
_NO_START: Final = (0,) * len(_STARTS)


@dataclass(frozen=True, slots=True)
class Counted:
    """What a text is to the router: nothing that could be turned back into it."""

    features: Floats  # one for each of NAMES
    places: Places  # of all different words and pairs, sorted


@dataclass(frozen=True, slots=True)
class _Tables:
    classes: bytes  # of each byte, which of the marks it is
    lists: Mapping[bytes, Sequence[int]]  # the lists that a word is in
    starts: Mapping[bytes, Sequence[int]]  # what a text is that starts with the word: one number for each of `_STARTS`


def count(text: str, length: int | None = None) -> Counted:
    """Count a text. `length` is that of the whole where `text` is already cut. Never raises."""
    raw = _read(text)
    words = raw.translate(_SPELLED).split()
    places = _places(words)
    places.sort()
    if len(places):
        places = places[np.concatenate((_ONE, places[1:] != places[:-1]))]
    return Counted(_features(len(text) if length is None else length, raw, words, _tables()), places)


_ONE: Final = np.ones(1, np.bool_)


def spelled(text: str) -> tuple[list[str], Places]:
    """The words and pairs of a text, and the place of each: for whoever wants a score explained."""
    words = _read(text).translate(_SPELLED).split()
    shown = [word.decode("utf-8", "replace") for word in words]
    return [*shown, *map(" ".join, pairwise(shown))], _places(words)


def _read(text: str) -> bytes:
    if len(text) > 2 * SPAN:
        text = f"{text[:SPAN]}\n{text[-SPAN:]}"
    return text.encode("utf-8", "surrogatepass")[:READ]


def _places(words: Sequence[bytes]) -> Places:
    """Of each word, then of each pair."""
    hashes = np.fromiter(map(crc32, words), np.uint64, len(words))
    hashes = np.concatenate((hashes, hashes[:-1] * _PAIR + hashes[1:]))
    hashes *= _MIX
    hashes >>= _SHIFT
    return hashes.view(np.int64)


def _features(whole: int, raw: bytes, words: list[bytes], tables: _Tables) -> Floats:
    size, spoken = len(raw) or 1, len(words) or 1
    marks = np.bincount(np.frombuffer(raw.translate(tables.classes), np.uint8), minlength=len(_MARKS) + 1).tolist()
    lengths = sorted(map(len, words))
    long, different = len(words) - bisect_left(lengths, 9), len(set(words))
    numbers = list(map(len, raw.translate(_NUMBERS).split())) if marks[_DIGITS_AT] else []
    lines = raw.split(b"\n")
    breaks = len(lines) - 1
    if breaks >= 2 * LINES:
        lines = lines[:LINES] + lines[-LINES:]

    options = [found.start() for found in _OPTION.finditer(raw)] if breaks >= OPTIONS else []
    is_choice = len(options) >= OPTIONS
    stem_ends = options[0] if is_choice else size
    apart_mean, apart_deviation = _spread(_apart(options, size)) if is_choice else (0.0, 0.0)
    stem = raw[:stem_ends].rstrip()
    tail_digits = _digits(raw[stem_ends:]) / (size - stem_ends or 1) if is_choice else 0
    indents = _indents(lines) if b"\n " in raw else []
    last = _last(lines)
    opened = raw.count(b"(")
    listed = [0] * _LISTED
    for word in words:
        if word in tables.lists:
            for at in tables.lists[word]:
                listed[at] += 1
    found = np.array(
        [
            whole,
            len(words),
            breaks + 1,
            size / (breaks + 1),
            long,
            different,
            len(numbers),
            numbers.count(4),
            stem_ends if is_choice else 0,
            apart_mean,
            apart_deviation,
            raw.count(b"```"),
            raw.count(b"\n    "),
            raw.count(b"\n\n"),
            opened - raw.count(b" (") - raw.count(b"\n(") if opened else 0,
            raw.count(b". ") + raw.count(b"? "),
            len(last),
            max(indents, default=0),
            sum(indent >= 8 for indent in indents) if indents else 0,
            sum(indent >= 12 for indent in indents) if indents else 0,
            max(map(len, lines)),
            len(_METHOD.findall(raw)) if opened else 0,
            last.count(b","),
            _digits(last),
            last.count(b"'") + last.count(b'"'),
            last.count(b" "),
            *marks[: len(_MARKS)],
            *listed,
            (marks[0] + marks[1]) / spoken,
            long / spoken,
            (len(words) - bisect_left(lengths, 12)) / spoken,
            bisect_right(lengths, 3) / spoken,
            different / spoken,
            sum(numbers) / (len(numbers) or 1),
            min(12, max(numbers, default=0)),
            len(numbers) / spoken,
            len(options),
            is_choice,
            tail_digits,
            stem.endswith(b"?"),
            stem.endswith(b":"),
            b"__" in stem,
            raw.rstrip().endswith(b"Answer:"),
            *[marks[at] / size for at in _SHARED],
            *[listed[at] / spoken for at in _RATED_AT],
            *(tables.starts.get(words[0], _NO_START) if words else _NO_START),
        ],
        np.float32,
    )
    counts = found[:_COUNTED]
    np.log1p(counts, out=counts)
    return found


def _digits(text: bytes) -> int:
    return len(text) - len(text.translate(None, _DIGITS))


def _spread(values: Sequence[int]) -> tuple[float, float]:
    """Mean and standard deviation, 0 for nothing."""
    if not values:
        return 0.0, 0.0
    mean = sum(values) / len(values)
    return mean, math.sqrt(max(0.0, sum(map(mul, values, values)) / len(values) - mean * mean))


def _apart(options: Sequence[int], size: int) -> list[int]:
    """How long each option is."""
    return [end - start for start, end in zip(options, [*options[1:], size], strict=True)]


def _indents(lines: Sequence[bytes]) -> list[int]:
    """Of the lines that are not blank."""
    return [len(line) - len(bare) for line in lines if (bare := line.lstrip(b" "))]


def _last(lines: Sequence[bytes]) -> bytes:
    """The last line that says something."""
    for line in reversed(lines):
        bare = line.strip()
        if bare and bare != b"Answer:" and not bare.startswith(b"[/"):
            return bare
    return b""


@cache
def _tables() -> _Tables:
    classes = bytearray([len(_MARKS)] * 256)
    for at, those in enumerate(_MARKS.values()):
        for byte in those:
            classes[byte] = at
    lists: dict[bytes, tuple[int, ...]] = {}
    for at, group in enumerate(_LISTS.values()):
        for word in group.split():
            lists[word.encode()] = (*lists.get(word.encode(), ()), at)
    starts: dict[bytes, list[int]] = {}
    for at, group in enumerate(_STARTS.values()):
        for word in group.split():
            starts.setdefault(word.encode(), [0] * len(_STARTS))[at] = 1
    return _Tables(bytes(classes), lists, starts)
