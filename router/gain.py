"""How much better heavy is likely to answer than light: a linear model of counted features and hashed words.

A prompt is first compared with the kinds of prompts that the weights were trained on. Each kind has linear
weights of its own; their predictions are mixed by how well the prompt resembles each kind. What resembles none
is scored by what all kinds have in common, which is little more than length. Nothing here understands a prompt.
"""

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from router import turns
from router.complexity import Score
from router.features import IS_CHOICE, NAMES, Counted, Floats, count

THRESHOLD = 0.69  # with the shipped weights, about a fifth of public exam-type prompts score above it
EVEN, STEEPNESS = 0.2, 10.0  # the gain whose score is 0.5; a score of 0.69 is a gain of 0.28
SHIPPED = "gain.npz"
LARGEST = 4 * 1024 * 1024  # bytes of a weights file that is read
VERSION = 1
MOST_BITS = 20
CLIP, OWN_CLIP = 4.0, 3.0  # standard deviations, over all prompts and within a kind
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

_KNUTH: Final = np.uint64(0x9E3779B97F4A7C15)


class WeightsError(Exception):
    """The weights cannot be used: the file is not one of ours, or of another version. Train again."""


@dataclass(frozen=True, slots=True)
class Weights:
    """All that the score knows. Rows are kinds, columns are `features.NAMES`."""

    kinds: NDArray[np.str_]
    mean: Floats
    scale: Floats
    likeness: Floats  # kinds by features: with `likeness_base`, the logarithm of how likely a prompt is of a kind
    likeness_base: Floats
    whitening: Floats  # a matrix for each kind, in whose space the kind is a ball of radius 1 around its mean
    common: Floats  # weights that hold for every kind
    common_base: Floats  # one number
    by_hand: Floats  # two rows, set and not learned: what a unit of a plain feature adds above a floor, and the floor
    own_mean: Floats
    own_scale: Floats
    own: Floats
    own_base: Floats
    bits: NDArray[np.int64]  # a kind has 2**bits words
    word_scale: Floats
    words: NDArray[np.int8]  # of all kinds, one after the other
    offsets: NDArray[np.int64]  # where the words of each kind begin
    fifth: Floats  # one number: a fifth of the training prompts score above it

    def shown(self, kind: int) -> str:
        """What a kind is, in words."""
        name = str(self.kinds[kind])
        return KINDS.get(name, name)


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
    kinds: Floats  # how much each kind's weights counted; the rest to 1 is what all kinds have in common
    features: Floats  # standardised
    by_hand: Floats


@dataclass(frozen=True, slots=True)
class GainScore:
    """The score as `choose` takes it. Loads the shipped weights at the first call, unless it is given some."""

    weights: Weights | None = None

    def __call__(self, body: Mapping[str, object]) -> Score:
        """Score the last user turn, or, where it only says "go on", the one that it continues."""
        weights = self.weights or shipped()
        asked = turns.asked(body)
        counted = count(asked.text, asked.length)
        predicted = predict(counted, weights)
        lead = ("continues an earlier turn",) if asked.is_earlier else ()
        return Score(squeezed(predicted.gain), (*lead, *reasons(predicted, weights))[:REASONS])


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
    if found.get("version", np.array(0)).tolist() != VERSION or found.get("features", np.array("")).tolist() != [
        *NAMES
    ]:
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
        "likeness": (kinds, names),
        "likeness_base": (kinds,),
        "whitening": (kinds, names, names),
        "common": (names,),
        "common_base": (1,),
        "by_hand": (2, names),
        "own_mean": (kinds, names),
        "own_scale": (kinds, names),
        "own": (kinds, names),
        "own_base": (kinds,),
        "word_scale": (kinds,),
        "fifth": (1,),
    }
    for name, shape in shapes.items():
        array = getattr(weights, name)
        if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
            raise WeightsError(f"{name} is not what it should be: train again")
    if not kinds or weights.bits.shape != (kinds,) or not ((weights.bits >= 1) & (weights.bits <= MOST_BITS)).all():
        raise WeightsError("the words of a kind have no size: train again")
    ends = np.cumsum(1 << weights.bits)
    if weights.words.dtype != np.int8 or weights.words.shape != (ends[-1],):
        raise WeightsError("the words do not fit their sizes: train again")
    if weights.offsets.tolist() != [0, *ends[:-1].tolist()]:
        raise WeightsError("the words do not begin where they should: train again")


def dump(weights: Weights) -> bytes:
    """The same bytes for the same weights."""
    file = io.BytesIO()
    arrays = {each.name: getattr(weights, each.name) for each in fields(Weights)}
    np.savez_compressed(file, version=np.array(VERSION), features=np.array(NAMES), **arrays)
    return file.getvalue()


def squeezed(gain: float) -> float:
    """A predicted gain as a number in 0..1, in the same order: 0.5 is `EVEN`, whatever the weights."""
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, STEEPNESS * (gain - EVEN)))))


def predict(counted: Counted, weights: Weights) -> Predicted:
    """The mixture of the kinds' predictions."""
    features = standardised(counted.features, weights)
    shares = resemblance(features, weights)
    ruled = by_hand(counted.features, weights.by_hand)
    common = float(features @ weights.common) + float(ruled.sum())
    gain = (1 - float(shares.sum())) * (common + float(weights.common_base[0]))
    for kind in shares.nonzero()[0].tolist():
        own = float(_own(features, kind, weights) @ weights.own[kind]) + float(weights.own_base[kind])
        gain += float(shares[kind]) * (common + own + _word_sum(counted, kind, weights))
    return Predicted(gain, shares, features, ruled)


def by_hand(features: Floats, rule: Floats) -> Floats:
    """What each feature adds by rule: nothing to a multiple-choice question, which asks for a letter."""
    points, floor = rule
    return np.asarray(np.maximum(features - floor, 0) * points * (1 - features[..., IS_CHOICE, None]), np.float32)


def standardised(features: Floats, weights: Weights) -> Floats:
    """Features in standard deviations of the training prompts; one prompt, or a row for each."""
    return _clipped((features - weights.mean) / weights.scale, CLIP)


def resemblance(features: Floats, weights: Weights) -> Floats:
    """How much each kind counts: at most 1 in all, 0 for kinds that the prompt resembles too little."""
    evidence = weights.likeness @ features + weights.likeness_base
    likelihood = np.exp(evidence - evidence.max())
    shares = likelihood / likelihood.sum()
    shares[shares < SEEN] = 0
    for kind in shares.nonzero()[0].tolist():
        away = (features - weights.own_mean[kind]) @ weights.whitening[kind]
        shares[kind] *= min(1.0, max(0.0, (FAR - float(away @ away)) / (FAR - 1)))
    return np.asarray(shares, np.float32)


def _own(features: Floats, kind: int, weights: Weights) -> Floats:
    return _clipped((features - weights.own_mean[kind]) / weights.own_scale[kind], OWN_CLIP)


def _clipped(values: Floats, most: float) -> Floats:
    clipped: Floats = np.minimum(np.maximum(values, -most), most)  # a third of the time that np.clip takes
    return clipped


def places(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """Where words and pairs lie among 2**bits."""
    return ((hashes * _KNUTH) >> np.uint64(64 - bits)).astype(np.int64)


def _word_sum(counted: Counted, kind: int, weights: Weights) -> float:
    """What all different words and pairs add for a kind."""
    at = places(np.concatenate((counted.words, counted.pairs)), int(weights.bits[kind]))
    at.sort()
    different = np.empty(len(at), np.bool_)
    different[:1] = True
    np.not_equal(at[1:], at[:-1], out=different[1:])
    at = at[different]
    total = int(np.add.reduce(weights.words[at + weights.offsets[kind]], dtype=np.int64))
    return total * float(weights.word_scale[kind]) / math.sqrt(len(at) + 1)


def word_weights(counted: Counted, kind: int, weights: Weights) -> Floats:
    """What each word, then each pair, adds for a kind; a repeated one adds at its first place only."""
    hashes = np.concatenate((counted.words, counted.pairs))
    at, first = np.unique(places(hashes, int(weights.bits[kind])), return_index=True)
    norm = float(weights.word_scale[kind]) / math.sqrt(len(at) + 1)
    added = np.zeros(len(hashes), np.float32)
    added[first] = weights.words[weights.offsets[kind] + at] * norm
    return added


def parts(counted: Counted, weights: Weights) -> list[Part]:
    """What moved the prediction, the largest first: features against the average prompt of their kind."""
    predicted = predict(counted, weights)
    features, shares = predicted.features, predicted.kinds
    typical = shares @ weights.own_mean
    by_feature = (features - typical) * weights.common + by_hand(counted.features, weights.by_hand)
    by_word = np.zeros(len(counted.words) + len(counted.pairs), np.float32)
    for kind in shares.nonzero()[0].tolist():
        by_feature += shares[kind] * _own(features, kind, weights) * weights.own[kind]
        by_word += shares[kind] * word_weights(counted, kind, weights)
    found = [Part(name, float(added), is_text=False) for name, added in zip(NAMES, by_feature, strict=True) if added]
    found += [Part(counted.shown(at), float(by_word[at]), is_text=True) for at in np.flatnonzero(by_word).tolist()]
    return sorted(found, key=lambda part: -abs(part.added))


def reasons(predicted: Predicted, weights: Weights) -> tuple[str, ...]:
    """The kind that the prompt resembles and the features that moved the score most; never words of the prompt."""
    return tuple(_named(predicted, weights))[:REASONS]


def _named(predicted: Predicted, weights: Weights) -> Iterator[str]:
    features, shares = predicted.features, predicted.kinds
    best = int(shares.argmax())
    if shares[best] >= 0.5:
        yield f"resembles {weights.shown(best)}"
        own = _own(features, best, weights)
        added = own * weights.own[best] + (features - weights.own_mean[best]) * weights.common
    else:
        yield "of no known kind"
        own = features
        added = features * weights.common
    added = added + predicted.by_hand
    order = np.argsort(-np.abs(added), kind="stable")[:REASONS]
    least = NOTABLE * float(np.abs(added[order]).sum())
    for at in order.tolist():
        if abs(float(added[at])) >= least:
            much = "much of" if own[at] > 0 else "little of"
            yield f"{much} '{NAMES[at]}' ({'+' if added[at] > 0 else '-'})"
