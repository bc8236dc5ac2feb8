"""What a job carries or wants, from its endpoint and the parts of its content."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from policies.deployments import Modality

# What is wanted comes before what is carried, then the heaviest first.
ORDER = (
    Modality.EMBEDDING,
    Modality.VIDEO_GENERATION,
    Modality.IMAGE_GENERATION,
    Modality.SPEECH,
    Modality.VIDEO,
    Modality.AUDIO,
    Modality.DOCUMENT,
    Modality.IMAGE,
    Modality.TEXT,
)

_ENDPOINTS: Mapping[str, Modality] = MappingProxyType(
    {
        "/v1/embeddings": Modality.EMBEDDING,
        "/v1/images/generations": Modality.IMAGE_GENERATION,
        "/v1/videos": Modality.VIDEO_GENERATION,
        "/v1/audio/speech": Modality.SPEECH,
        "/v1/audio/transcriptions": Modality.AUDIO,
    }
)

# OpenAI's part types of chat and responses, and those that common servers add.
_PARTS: Mapping[str, Modality] = MappingProxyType(
    {
        "image_url": Modality.IMAGE,
        "input_image": Modality.IMAGE,
        "image": Modality.IMAGE,
        "file": Modality.DOCUMENT,
        "input_file": Modality.DOCUMENT,
        "document": Modality.DOCUMENT,
        "input_audio": Modality.AUDIO,
        "audio": Modality.AUDIO,
        "audio_url": Modality.AUDIO,
        "video": Modality.VIDEO,
        "video_url": Modality.VIDEO,
        "input_video": Modality.VIDEO,
    }
)


def first(needed: frozenset[Modality]) -> Modality:
    """Of what a job needs, the one that decides the lane."""
    return next(modality for modality in ORDER if modality in needed)


def needs(endpoint: str, body: Mapping[str, object]) -> frozenset[Modality]:
    """All that a deployment must take or make for this job; TEXT only where there is nothing else."""
    if endpoint in _ENDPOINTS:
        return frozenset({_ENDPOINTS[endpoint]})
    found = {kind for kind in map(of_part, _parts(body)) if kind is not None}
    wanted = body.get("modalities")
    if isinstance(wanted, list) and "audio" in wanted:
        found.add(Modality.SPEECH)
    return frozenset(found or {Modality.TEXT})


def of_part(part: object) -> Modality | None:
    """What a content part carries besides text."""
    kind = part.get("type") if isinstance(part, dict) else None
    return _PARTS.get(kind) if isinstance(kind, str) else None


def _parts(body: Mapping[str, object]) -> Iterator[object]:
    """The content parts of every message: earlier images are sent again with each turn."""
    messages = body.get("messages", body.get("input"))
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            yield from content
