"""How long the videos are that models make: what may be asked for, and what who does not say gets."""

from collections.abc import Mapping, Sequence

USUAL_S = 6  # of a model that is not known here
MOST_DIGITS = 3
_LENGTHS: Mapping[str, Sequence[int]] = {
    "amazon.nova-reel-v1:0": (6,),
    "amazon.nova-reel-v1:1": tuple(range(6, 121, 6)),
    "luma.ray-v2:0": (5, 9),
}  # Bedrock's user guide, parameters of these models


def lengths(model: str) -> Sequence[int]:
    """The seconds that the model can make, the usual ones first; none for a model that is not known here."""
    return _LENGTHS.get(model, ())


def seconds(body: Mapping[str, object], model: str) -> int:
    """How long a video of this request is."""
    asked = str(body.get("seconds"))
    if asked.isdecimal() and 0 < len(asked) <= MOST_DIGITS:
        return max(1, int(asked))
    return next(iter(lengths(model)), USUAL_S)
