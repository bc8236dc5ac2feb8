"""How each endpoint that makes jobs reads a request; every door (HTTP, a batch's line, the inbox) looks here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from gateway.asked import Asked
from gateway.fields import Values
from gateway.openai import parse_chat
from gateway.openai_media import parse_embeddings, parse_images, parse_speech, parse_transcription, parse_videos
from gateway.openai_responses import parse_responses


class Parser(Protocol):
    """A request's body, checked. `prefers_async`: a header asked for it. Raises `InvalidRequestError`."""

    def __call__(self, values: Values, *, prefers_async: bool = False) -> Asked: ...


PARSERS: Mapping[str, Parser] = MappingProxyType(
    {
        "/v1/chat/completions": parse_chat,
        "/v1/responses": parse_responses,
        "/v1/embeddings": parse_embeddings,
        "/v1/images/generations": parse_images,
        "/v1/videos": parse_videos,
        "/v1/audio/speech": parse_speech,
        "/v1/audio/transcriptions": parse_transcription,
    }
)
