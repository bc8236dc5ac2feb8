"""How much better heavy is likely to answer than light: a linear model of counted features and hashed words.

A prompt is first compared with the kinds of prompts that the weights were trained on. Each kind has linear
weights of its own; their predictions are mixed by how well the prompt resembles each kind. What resembles none
is scored by what all kinds have in common, which is little more than length. Nothing here understands a prompt.
"""

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from policies.values import dataclass
from router import turns
from router.features import BITS, IS_CHOICE, NAMES, Counted, Floats, count, spelled

EVEN, STEEPNESS = 0.2, 10.0  # the gain whose score is 0.5; a score of 0.69 is a gain of 0.28
SHIPPED = "gain.npz"
LARGEST = 8 * 1024 * 1024  # bytes of a weights file that is read
VERSION = 2
MOST_KINDS = 64
CLIP = 4.0  # standard deviations
FAR = 1.3  # from this squared distance on, in radii, a prompt is of no kind; up to 1 it is wholly of it
SEEN = 0.02  # a kind that a prompt resembles less is left out
REASONS = 4
NOTABLE = 0.1  # of the sum of all that moved the score; what moved it less is not named
LONG = 24  # characters of a word in a reason

# What the sources of the shipped weights are, for receipts; other weights show their sources' own names.
KINDS: Final = MappingProxyType(
    {
        "llmrouter_code": "short programming tasks",
        "llmrouter_qa": "short questions and answers",
        "mmlu_pro": "exam questions of many options",
        "routellm_gsm8k": "word problems",
        "routellm_mmlu": "exam questions of four options",
        "routerarena": "questions with instructions around them",
        "zeroeval_crux": "what a piece of code returns",
    }
)


class WeightsError(Exception):
    """The weights cannot be used: the file is not one of ours, or of another version. Train again."""


@dataclass(frozen=True, slots=True)
class Score:
    """A number in 0..1, and what moved it most, in words. `counted`: what it was made of."""

    value: float
    reasons: tuple[str, ...]
    counted: Counted | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """All that the score knows. Columns of features are `features.NAMES`."""

    kinds: NDArray[np.str_]
    mean: Floats
    scale: Floats
    rows: Floats  # how likely a prompt is of each kind; then each kind's gain; then the gain of what is of no kind
    bases: Floats  # of each of these rows
    middle: Floats  # of each kind
    whitening: Floats  # a matrix for each kind, in whose space the kind is a ball of radius 1 around its middle
    by_hand: Floats  # two rows, set and not learned: what a unit of a plain feature adds above a floor, and the floor
    word_scale: Floats
    words: NDArray[np.int8]  # a row for each place, a column for each kind
    fifth: Floats  # one number: a fifth of the training prompts score above it
    spread: Floats  # and the standard deviation of their scores

    def shown(self, kind: int) -> str:
        """What a kind is, in words."""
        name = str(self.kinds[kind])
        return KINDS.get(name, name)


@dataclass(frozen=True, slots=True)
class Correction:
    """What an operator's own traffic adds to the gain that the weights predict."""

    features: Floats
    base: float
    words: NDArray[np.int8]
    word_scale: float

    def of(self, features: Floats, places: NDArray[np.int64]) -> float:
        """In points of quality, from standardised features."""
        summed = int(np.add.reduce(self.words.take(places), dtype=np.int64))
        words = summed * self.word_scale / math.sqrt(len(places) + 1)
        return float(self.features @ features) + self.base + words


@dataclass(frozen=True, slots=True)
class Part:
    """What one feature, word or pair adds to the predicted gain."""

    words: str
    added: float
    is_text: bool  # `words` is part of the prompt


@dataclass(frozen=True, slots=True)
class Predicted:
    """The gain of heavy over light, in points of quality (0..1), and how known the prompt's kind is."""

    gain: float
    kinds: tuple[tuple[int, float], ...]  # how much each kind counted, where it did; the rest to 1 is of no kind
    features: Floats  # standardised


@dataclass(frozen=True, slots=True)
class GainScore:
    """The score as `choose` takes it. Loads the shipped weights at the first call, unless it is given some."""

    weights: Weights | None = None
    correction: Correction | None = None

    def __call__(self, body: Mapping[str, object]) -> Score:
        """Score the last user turn, or, where it only says "go on", the one that it continues."""
        weights = self.weights or shipped()
        asked = turns.asked(body)
        counted = count(asked.text, asked.length)
        predicted = predict(counted, weights, self.correction)
        named = reasons(predicted, weights)
        if asked.is_earlier:
            named = ("continues an earlier turn", *named)[:REASONS]
        return Score(squeezed(predicted.gain), named, counted)


@cache
def shipped() -> Weights:
    """The weights in the package. Read once, when first asked for."""
    return load(io.BytesIO(resources.files("router").joinpath(SHIPPED).read_bytes()))


def load(file: BinaryIO) -> Weights:
    """Read what `dump` wrote. Raises WeightsError."""
    raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise WeightsError(f"a weights file has at most {LARGEST} bytes")
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise WeightsError("this is not a weights file") from error
    names = found.get("features", np.array("")).tolist()
    if found.get("version", np.array(0)).tolist() != VERSION or names != [*NAMES]:
        raise WeightsError("these weights are of another version: train again")
    try:
        weights = Weights(**{each.name: found[each.name] for each in fields(Weights)})
    except KeyError as error:
        raise WeightsError("a part of the weights is missing: train again") from error
    _check(weights)
    return weights


def _check(weights: Weights) -> None:
    kinds, names = len(weights.kinds), len(NAMES)
    shapes = {
        "mean": (names,),
        "scale": (names,),
        "rows": (2 * kinds + 1, names),
        "bases": (2 * kinds + 1,),
        "middle": (kinds, names),
        "whitening": (kinds, names, names),
        "by_hand": (2, names),
        "word_scale": (kinds,),
        "fifth": (1,),
        "spread": (1,),
    }
    for name, shape in shapes.items():
        array = getattr(weights, name)
        if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
            raise WeightsError(f"{name} is not what it should be: train again")
    if not 0 < kinds <= MOST_KINDS or not (weights.scale > 0).all():
        raise WeightsError("kinds or scale are not what they should be: train again")
    if weights.words.dtype != np.int8 or weights.words.shape != (1 << BITS, kinds):
        raise WeightsError("words is not what it should be: train again")


def dump(weights: Weights) -> bytes:
    """The same bytes for the same weights."""
    file = io.BytesIO()
    arrays = {each.name: getattr(weights, each.name) for each in fields(Weights)}
    np.savez_compressed(file, version=np.array(VERSION), features=np.array(NAMES), **arrays)
    return file.getvalue()


def squeezed(gain: float) -> float:
    """A predicted gain as a number in 0..1, in the same order: 0.5 is `EVEN`, whatever the weights."""
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, STEEPNESS * (gain - EVEN)))))


def predict(counted: Counted, weights: Weights, correction: Correction | None = None) -> Predicted:
    """The mixture of the kinds' predictions, and what own traffic has taught beside it."""
    features = standardised(counted.features, weights)
    values = (weights.rows @ features + weights.bases).tolist()
    kinds = len(weights.kinds)
    shares = _resemblance(values[:kinds], features, weights)
    gain = by_hand(counted.features, weights) + (1 - sum(share for _, share in shares)) * values[-1]
    if shares:
        words = np.add.reduce(weights.words.take(counted.places, axis=0), axis=0, dtype=np.int64).tolist()
        norm = 1 / math.sqrt(len(counted.places) + 1)
        for kind, share in shares:
            gain += share * (values[kinds + kind] + words[kind] * float(weights.word_scale[kind]) * norm)
    if correction is not None:
        gain += correction.of(features, counted.places)
    return Predicted(gain, shares, features)


def by_hand(features: Floats, weights: Weights) -> float:
    """What is added by rule: nothing to a multiple-choice question, which asks for a letter."""
    if features[IS_CHOICE]:
        return 0.0
    points, floor = weights.by_hand
    return float(np.maximum(features - floor, 0) @ points)


def standardised(features: Floats, weights: Weights) -> Floats:
    """Features in standard deviations of the training prompts; one prompt, or a row for each."""
    found = features - weights.mean
    found /= weights.scale
    np.minimum(found, CLIP, out=found)  # with the next a third of the time that np.clip takes
    np.maximum(found, -CLIP, out=found)
    return found


def _resemblance(evidence: list[float], features: Floats, weights: Weights) -> tuple[tuple[int, float], ...]:
    """How much each kind counts: at most 1 in all, and nothing of a kind that the prompt resembles too little."""
    top = max(evidence)
    likely = [math.exp(each - top) for each in evidence]
    least = SEEN * sum(likely)
    found = []
    for kind, likelihood in enumerate(likely):
        if likelihood >= least:
            away = (features - weights.middle[kind]) @ weights.whitening[kind]
            known = min(1.0, (FAR - float(away @ away)) / (FAR - 1))
            if known > 0:
                found.append((kind, known * likelihood * SEEN / least))
    return tuple(found)


def parts(text: str, counted: Counted, weights: Weights, correction: Correction | None = None) -> list[Part]:
    """What moved the prediction, the largest first: features against the average prompt of their kind."""
    predicted = predict(counted, weights, correction)
    features, kinds = predicted.features, len(weights.kinds)
    norm = 1 / math.sqrt(len(counted.places) + 1)
    shown, places = spelled(text)
    by_word = np.zeros(len(places))
    rest = 1 - sum(share for _, share in predicted.kinds)
    by_feature = rest * features * weights.rows[-1]
    for kind, share in predicted.kinds:
        by_feature += share * (features - weights.middle[kind]) * weights.rows[kinds + kind]
        by_word += share * norm * float(weights.word_scale[kind]) * weights.words[places, kind]
    if correction is not None:
        by_feature += features * correction.features
        by_word += norm * correction.word_scale * correction.words[places]
    if not counted.features[IS_CHOICE]:
        by_feature += np.maximum(counted.features - weights.by_hand[1], 0) * weights.by_hand[0]
    first = np.unique(places, return_index=True)[1]  # a repeated one adds at its first place only
    found = [Part(name, float(added), is_text=False) for name, added in zip(NAMES, by_feature, strict=True) if added]
    found += [Part(shown[at], float(by_word[at]), is_text=True) for at in first.tolist() if by_word[at]]
    return sorted(found, key=lambda part: -abs(part.added))


def reasons(predicted: Predicted, weights: Weights) -> tuple[str, ...]:
    """The kind that the prompt resembles and the features that moved the score most; never words of the prompt."""
    return tuple(_named(predicted, weights))[:REASONS]


def _named(predicted: Predicted, weights: Weights) -> Iterator[str]:
    features, kinds = predicted.features, len(weights.kinds)
    best, share = max(predicted.kinds, key=lambda each: each[1], default=(0, 0.0))
    if share >= 0.5:
        yield f"resembles {weights.shown(best)}"
        off = features - weights.middle[best]
        added = off * weights.rows[kinds + best]
    else:
        yield "of no known kind"
        off, added = features, features * weights.rows[-1]
    much = np.abs(added)
    order = much.argpartition(-REASONS)[-REASONS:]
    found = sorted(zip(much[order].tolist(), order.tolist(), strict=True), reverse=True)
    least = NOTABLE * sum(each for each, _ in found)
    for each, at in found:
        if each >= least:
            yield f"{'much of' if off[at] > 0 else 'little of'} '{NAMES[at]}' ({'+' if added[at] > 0 else '-'})"
