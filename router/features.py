"""What is counted of a prompt: some hundred numbers and the hashes of its words, in time linear in what is read.

There are no regular expressions: one table sorts the bytes into letters, digits, blanks and marks, and the rest
is arithmetic on arrays, so that no text is slower than another of its length.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

SPAN = 4096  # characters read at each end of a text
READ = 8 * SPAN + 2  # and so at most these bytes
OPTIONS = 3  # lines "A.", "B.", "C." make a question multiple choice

Floats = NDArray[np.float32]
Hashes = NDArray[np.uint64]
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
    "quotation marks": b"\"'`",
    "parentheses": b"()",
    "square brackets": b"[]",
    "braces": b"{}",
    "operators": b"=+*/<>-",
    "formula marks": b"\\^$_",
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
    "capitalised words within sentences",
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
    "unevenness of the words",
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

_BLANK, _LETTER, _DIGIT = 0, 1, 2  # any other byte is a mark of its own
_BASE = 0x9E3779B97F4A7C15  # of the polynomial that hashes a word; odd, so that it has an inverse
_FIRST, _SECOND, _PAIR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0xD6E8FEB86659FD93)
_NEWLINE, _SPACE, _OPEN, _DOT, _QUERY, _COLON = b"\n (.?:"


@dataclass(frozen=True, slots=True)
class Counted:
    """What a text is to the router. `words` and `pairs` are hashes, in the order of the text."""

    features: Floats  # one for each of NAMES
    words: Hashes
    pairs: Hashes
    starts: Places
    ends: Places
    read: bytes  # `read[starts[i]:ends[i]]` is what `words[i]` was made of

    def shown(self, at: int) -> str:
        """The word or pair at a place in `words` followed by `pairs`, as it was written (in small letters)."""
        first = at if at < len(self.words) else at - len(self.words)
        last = first if at < len(self.words) else first + 1
        spans = (self.read[self.starts[each] : self.ends[each]] for each in range(first, last + 1))
        return " ".join(span.decode("utf-8", "replace") for span in spans)


@dataclass(frozen=True, slots=True)
class _Tables:
    kind: NDArray[np.uint8]
    lower: NDArray[np.uint8]
    marks: Floats
    powers: Hashes
    inverses: Hashes
    listed: Hashes  # sorted
    member: Floats


def count(text: str, length: int | None = None) -> Counted:
    """Count a text. `length` is that of the whole where `text` is already cut. Never raises."""
    whole = len(text) if length is None else length
    if len(text) > 2 * SPAN:
        text = f"{text[:SPAN]}\n{text[-SPAN:]}"
    tables = _tables()
    raw = text.encode("utf-8", "surrogatepass")[:READ]
    data = np.frombuffer(raw, np.uint8)
    low = tables.lower[data]
    starts, ends, kinds, words = _tokens(low, tables)
    pairs = _mix(words[:-1] * _PAIR + words[1:])
    features = _features(whole, raw, data, starts, ends, kinds, words, tables)
    return Counted(features, words, pairs, starts, ends, low.tobytes())


def _tokens(low: NDArray[np.uint8], tables: _Tables) -> tuple[Places, Places, NDArray[np.uint8], Hashes]:
    """Runs of letters, runs of digits, and single marks: where each starts and ends, its kind and its hash."""
    kind = tables.kind[low]
    begins = np.empty(len(low), np.bool_)
    if len(low):
        begins[0] = kind[0] != _BLANK
        begins[1:] = ((kind[1:] != kind[:-1]) | (kind[1:] > _DIGIT)) & (kind[1:] != _BLANK)
    starts = begins.nonzero()[0]
    changes = (begins | (kind == _BLANK)).nonzero()[0]
    after = changes.searchsorted(starts, side="right")
    ends = _with(changes, len(low))[after]
    # A number is hashed as if it were zeros: how long it is matters, not which it is.
    shape = np.where(kind == _DIGIT, np.uint8(48), low).astype(np.uint64)
    sums = np.zeros(len(low) + 1, np.uint64)
    np.cumsum(shape * tables.powers[: len(low)], out=sums[1:])
    return starts, ends, kind[starts], _mix((sums[ends] - sums[starts]) * tables.inverses[starts])


def _with(values: Places, last: int) -> Places:
    """The values and one more; np.append takes three times as long."""
    more = np.empty(len(values) + 1, np.int64)
    more[:-1], more[-1] = values, last
    return more


def _mix(hashes: Hashes) -> Hashes:
    mixed = (hashes ^ (hashes >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def _features(
    whole: int,
    raw: bytes,
    data: NDArray[np.uint8],
    starts: Places,
    ends: Places,
    kinds: NDArray[np.uint8],
    hashes: Hashes,
    tables: _Tables,
) -> Floats:
    size = len(raw) or 1
    marks = np.bincount(data, minlength=256).astype(np.float32) @ tables.marks
    lengths = ends - starts
    is_word = kinds == _LETTER
    letters = lengths[is_word]
    digits = lengths[kinds == _DIGIT]
    words = len(letters) or 1
    long = int(np.count_nonzero(letters >= 9))
    spelled = hashes[is_word]
    listed, first = _membership(spelled, tables)
    spelled.sort()
    different = int(np.count_nonzero(spelled[1:] != spelled[:-1])) + bool(len(spelled))
    letters_mean, letters_deviation = _spread(letters)

    newlines = (data == _NEWLINE).nonzero()[0]
    options = _options(data, newlines)
    is_choice = len(options) >= OPTIONS
    stem_ends = int(options[0]) if is_choice else size
    apart_mean, apart_deviation = _spread(_with(options[1:], size) - options) if is_choice else (0.0, 0.0)
    stem = raw[:stem_ends].rstrip()
    lines = _Lines.of(data, newlines)
    last = lines.last(raw)
    calls, methods = _calls(data, starts, ends, is_word, tables) if b"(" in raw else (0, 0)
    counts = (
        whole,
        len(letters),
        len(newlines) + 1,
        size / (len(newlines) + 1),
        long,
        different,
        len(digits),
        int(np.count_nonzero(digits == 4)),
        stem_ends if is_choice else 0,
        apart_mean,
        apart_deviation,
        _capitalised(data),
        raw.count(b"```"),
        raw.count(b"\n    "),
        raw.count(b"\n\n"),
        calls,
        raw.count(b". ") + raw.count(b"? "),
        len(last),
        lines.deepest,
        lines.deep,
        lines.deeper,
        lines.longest,
        methods,
        last.count(b","),
        _digits(last),
        last.count(b"'") + last.count(b'"'),
        last.count(b" "),
    )
    tail = raw[stem_ends:]
    ratios = (
        letters_mean,
        letters_deviation,
        long / words,
        int(np.count_nonzero(letters >= 12)) / words,
        int(np.count_nonzero(letters <= 3)) / words,
        different / words,
        int(digits.sum()) / (len(digits) or 1),
        min(12, int(digits.max())) if len(digits) else 0,
        len(digits) / (len(kinds) or 1),
        len(options),
        float(is_choice),
        _digits(tail) / (len(tail) or 1),
        float(stem.endswith(b"?")),
        float(stem.endswith(b":")),
        float(b"__" in stem),
        float(raw.rstrip().endswith(b"Answer:")),
    )
    return np.concatenate(
        (
            np.log1p(np.concatenate((np.array(counts, np.float32), marks, listed))),
            np.array(ratios, np.float32),
            marks[_shared()] / np.float32(size),
            listed[_rated()] / np.float32(words),
            first,
        )
    )


def _membership(words: Hashes, tables: _Tables) -> tuple[Floats, Floats]:
    """How many of the words each list holds, and which starts the first word is."""
    at = tables.listed.searchsorted(words)
    at[at == len(tables.listed)] = 0
    is_listed = tables.listed[at] == words
    listed = np.add.reduce(tables.member[at[is_listed]], axis=0)[: len(_LISTS)]
    if len(words) and is_listed[0]:
        return listed, tables.member[at[0], len(_LISTS) :]
    return listed, np.zeros(len(_STARTS), np.float32)


def _digits(text: bytes) -> int:
    return len(text) - len(text.translate(None, _MARKS["digits"]))


def _calls(
    data: NDArray[np.uint8], starts: Places, ends: Places, is_word: NDArray[np.bool_], tables: _Tables
) -> tuple[int, int]:
    """How often a letter, and how often a word after a full stop, is followed by a parenthesis."""
    opened = (data[1:] == _OPEN).nonzero()[0]
    calls = np.count_nonzero(tables.kind[data[opened] | 32] == _LETTER)
    is_dot = data[np.maximum(starts - 1, 0)] == _DOT
    methods = np.count_nonzero(is_dot & is_word & (data[np.minimum(ends, len(data) - 1)] == _OPEN))
    return int(calls), int(methods)


def _spread(values: Places) -> tuple[float, float]:
    """Mean and standard deviation, 0 for nothing."""
    if not len(values):
        return 0.0, 0.0
    mean = int(values.sum()) / len(values)
    return mean, math.sqrt(max(0.0, int(values @ values) / len(values) - mean * mean))


def _options(data: NDArray[np.uint8], newlines: Places) -> Places:
    """Where the lines "A. ", "(b) ", "C: " begin."""
    if not len(newlines):
        return newlines
    padded = np.append(data, np.zeros(4, np.uint8))
    letter = newlines + 1 + (padded[newlines + 1] == _OPEN)
    following, blank = padded[letter + 1], padded[letter + 2]
    capital = padded[letter] & 0xDF
    is_option = (capital >= ord("A")) & (capital <= ord("J"))
    is_option &= (following == _DOT) | (following == _COLON) | (following == ord(")"))
    is_option &= (blank == _SPACE) | (blank == ord("\t"))
    return np.asarray(newlines[is_option])


def _capitalised(data: NDArray[np.uint8]) -> int:
    if len(data) < 4:
        return 0
    before, blank, first, second = data[:-3], data[1:-2], data[2:-1], data[3:]
    is_inner = ((before >= ord("a")) & (before <= ord("z"))) | (before == ord(","))
    is_name = (first >= ord("A")) & (first <= ord("Z")) & (second >= ord("a")) & (second <= ord("z"))
    return int(np.count_nonzero(is_inner & is_name & (blank == _SPACE)))


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines that are not blank."""

    begins: Places
    ends: Places
    deepest: int
    deep: int
    deeper: int
    longest: int

    @classmethod
    def of(cls, data: NDArray[np.uint8], newlines: Places) -> "_Lines":
        begins = np.empty(len(newlines) + 1, np.int64)
        ends = np.empty(len(newlines) + 1, np.int64)
        begins[0], begins[1:] = 0, newlines + 1
        ends[:-1], ends[-1] = newlines, len(data)
        solid = _with(((data != _SPACE) & (data != _NEWLINE)).nonzero()[0], len(data))
        at = solid[solid.searchsorted(begins)]
        is_full = at < ends
        begins, ends, indents = begins[is_full], ends[is_full], (at - begins)[is_full]
        if not len(begins):
            return cls(begins, ends, 0, 0, 0, 0)
        deep, deeper = np.count_nonzero(indents >= 8), np.count_nonzero(indents >= 12)
        return cls(begins, ends, int(indents.max()), int(deep), int(deeper), int((ends - begins).max()))

    def last(self, raw: bytes) -> bytes:
        """The last line that says something."""
        for at in range(len(self.begins) - 1, max(-1, len(self.begins) - 3), -1):
            line = raw[self.begins[at] : self.ends[at]].strip()
            if line != b"Answer:" and not line.startswith(b"[/"):
                return line
        return b""


@cache
def _shared() -> Places:
    return np.array(_SHARED)


@cache
def _rated() -> Places:
    return np.array([list(_LISTS).index(name) for name in _RATED])


@cache
def _tables() -> _Tables:
    kind = np.full(256, 3, np.uint8)
    kind[list(b" \t\r\n\x0b\x0c")] = _BLANK
    kind[[*range(ord("a"), ord("z") + 1), *range(128, 256)]] = _LETTER
    kind[[*range(ord("0"), ord("9") + 1)]] = _DIGIT
    lower = np.arange(256, dtype=np.uint8)
    lower[ord("A") : ord("Z") + 1] += 32
    marks = np.zeros((256, len(_MARKS)), np.float32)
    for at, those in enumerate(_MARKS.values()):
        marks[list(those), at] = 1
    powers, inverses = _powers(_BASE), _powers(pow(_BASE, -1, 2**64))
    bare = _Tables(kind, lower, marks, powers, inverses, np.zeros(0, np.uint64), np.zeros((0, 0), np.float32))

    rows: dict[int, NDArray[np.float32]] = {}
    for at, group in enumerate((*_LISTS.values(), *_STARTS.values())):
        for word in group.split():
            [hashed] = _tokens(np.frombuffer(word.encode(), np.uint8), bare)[3]
            rows.setdefault(int(hashed), np.zeros(len(_LISTS) + len(_STARTS), np.float32))[at] = 1
    ordered = sorted(rows)
    member = np.array([rows[each] for each in ordered], np.float32)
    return _Tables(kind, lower, marks, powers, inverses, np.array(ordered, np.uint64), member)


def _powers(base: int) -> Hashes:
    """1, base, base squared and so on, modulo 2**64."""
    powers = np.full(READ + 1, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)
