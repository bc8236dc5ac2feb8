"""What a job of each endpoint is expected to use at most, before it runs: for quota, window fit and price, no bill."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from policies.deployments import Deployment
from policies.pricing import Usage, usual_tokens
from policies.values import dataclass
from policies.videos import seconds
from router import images, sounds, tokens

MOST_IMAGES = 10  # that one call may ask for
CHARACTERS_PER_SECOND = 15  # of speech
TOKENS_PER_SECOND = 4  # of text that is heard
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")

Body = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Expected:
    """`usage` at most, and the tokens that the deployment's window must hold at once."""

    usage: Usage
    window: int = 0


def expected(endpoint: str, body: Body, deployment: Deployment, *, read: int) -> Expected:
    """`read` is what `tokens.estimate_input` said: the same for every deployment, and not cheap."""
    return _OF.get(endpoint, _answer)(body, deployment, read)


def _answer(body: Body, deployment: Deployment, read: int) -> Expected:
    made = tokens.max_output(body, deployment)
    return Expected(Usage(input=read, output=made), read + tokens.output_each(body, deployment))


def _embedding(body: Body, deployment: Deployment, read: int) -> Expected:
    return Expected(Usage(input=read), tokens.longest_input(body))


def _images(body: Body, deployment: Deployment, read: int) -> Expected:
    n = body.get("n")
    count = min(n, MOST_IMAGES) if type(n) is int and n > 0 else 1
    found = _SIZE.fullmatch(str(body.get("size")))
    each = images.of_size(int(found[1]), int(found[2])) if found else usual_tokens(Usage(images=1))
    return Expected(Usage(input=read, output=count * each, images=count), read)


def _speech(body: Body, deployment: Deployment, read: int) -> Expected:
    text = body.get("input")
    characters = max(1, len(text)) if isinstance(text, str) else 1
    seconds = -(-characters // CHARACTERS_PER_SECOND)
    spoken = usual_tokens(Usage(audio_seconds=seconds))
    return Expected(Usage(input=read, output=spoken, audio_seconds=seconds, characters=characters))


def _transcription(body: Body, deployment: Deployment, read: int) -> Expected:
    """`file` is the recording's bytes."""
    data = body.get("file")
    seconds = sounds.seconds(data[: sounds.HEAD], len(data)) if isinstance(data, bytes) else 1
    heard = usual_tokens(Usage(audio_seconds=seconds))
    return Expected(Usage(input=read + heard, output=seconds * TOKENS_PER_SECOND, audio_seconds=seconds))


def _video(body: Body, deployment: Deployment, read: int) -> Expected:
    usage = Usage(input=read, video_seconds=seconds(body, deployment.model))
    return Expected(replace(usage, output=usual_tokens(Usage(video_seconds=usage.video_seconds))), read)


_OF: Mapping[str, Callable[[Body, Deployment, int], Expected]] = MappingProxyType(
    {
        "/v1/embeddings": _embedding,
        "/v1/images/generations": _images,
        "/v1/videos": _video,
        "/v1/audio/speech": _speech,
        "/v1/audio/transcriptions": _transcription,
    }
)
