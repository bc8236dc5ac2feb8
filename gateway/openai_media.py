"""What clients send for embeddings, images, videos, speech and transcriptions: checked as a chat is."""

import re
from dataclasses import replace

from gateway.asked import Asked
from gateway.body import InvalidRequestError
from gateway.fields import (
    Values,
    a_choice,
    a_text,
    an_array,
    an_object,
    flag,
    integer,
    invalid,
    number,
    required,
    wrong_type,
)
from gateway.media import check_data_url, is_sound

MAX_INPUTS = 2048
MAX_CHARACTERS = 2_000_000  # of one input of an embedding
LARGEST_TOKEN = 2**31
MAX_DIMENSIONS = 65_536
MAX_IMAGES = 10
MAX_PROMPT = 32_000  # characters
MAX_VIDEO_S = 120
MAX_SPOKEN = 4096  # characters
MAX_LANGUAGE = 35  # characters: as long as a language tag gets

SPEECH_FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
TRANSCRIPTION_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_SIZE = re.compile(r"auto|[1-9]\d{1,4}x[1-9]\d{1,4}")
_SECONDS = re.compile(r"[1-9]\d{0,2}")


def parse_embeddings(values: Values, *, prefers_async: bool = False) -> Asked:
    """An embeddings request. Raises `InvalidRequestError`, which names the parameter."""
    _refuse_stream(values)
    asked = Asked.read(values, prefers_async=prefers_async)
    _check_inputs(required(values, "input"))
    integer(values, "dimensions", 1, MAX_DIMENSIONS)
    if values.get("encoding_format") is not None:
        a_choice(values["encoding_format"], "encoding_format", ("float", "base64"))
    return asked


def parse_images(values: Values, *, prefers_async: bool = False) -> Asked:
    """A request for images. Raises as `parse_embeddings` does."""
    _refuse_stream(values)
    asked = Asked.read(values, prefers_async=prefers_async)
    a_text(required(values, "prompt"), "prompt", most=MAX_PROMPT)
    integer(values, "n", 1, MAX_IMAGES)
    size = values.get("size")
    if size is not None and not (type(size) is str and _SIZE.fullmatch(size)):
        raise invalid("size", "expected WIDTHxHEIGHT in pixels, such as '1024x1024', or 'auto'")
    for name, known in (("response_format", ("url", "b64_json")), ("output_format", ("png", "jpeg", "webp"))):
        if values.get(name) is not None:
            a_choice(values[name], name, known)
    return asked


def parse_videos(values: Values, *, prefers_async: bool = False) -> Asked:
    """A request for a video, which nobody waits for in the open. Raises as `parse_embeddings` does."""
    _refuse_stream(values)
    asked = Asked.read(values, prefers_async=prefers_async)
    a_text(required(values, "prompt"), "prompt", most=MAX_PROMPT)
    length = values.get("seconds")
    is_said = type(length) in (int, str) and _SECONDS.fullmatch(str(length)) is not None
    if length is not None and not (is_said and int(str(length)) <= MAX_VIDEO_S):
        raise invalid("seconds", f"expected whole seconds from 1 to {MAX_VIDEO_S}, such as '6'")
    size = values.get("size")
    if size is not None and not (type(size) is str and size != "auto" and _SIZE.fullmatch(size)):
        raise invalid("size", "expected WIDTHxHEIGHT in pixels, such as '1280x720'")
    if values.get("input_reference") is not None:
        _check_reference(an_object(values["input_reference"], "input_reference"))
    return replace(asked, background=True)


def parse_speech(values: Values, *, prefers_async: bool = False) -> Asked:
    """A request for speech. Raises as `parse_embeddings` does."""
    _refuse_stream(values)
    asked = Asked.read(values, prefers_async=prefers_async)
    a_text(required(values, "input"), "input", most=MAX_SPOKEN)
    voice = required(values, "voice")
    if type(voice) is dict:
        a_text(required(voice, "id", "voice"), "voice.id")
    else:
        a_text(voice, "voice")
    if values.get("response_format") is not None:
        a_choice(values["response_format"], "response_format", SPEECH_FORMATS)
    if values.get("stream_format") not in (None, "audio"):
        raise invalid("stream_format", "only 'audio' is there: the sound comes whole")
    number(values, "speed", 0.25, 4)
    return asked


def parse_transcription(values: Values, *, prefers_async: bool = False) -> Asked:
    """A request for a transcription; `file` is the recording's bytes. Raises as `parse_embeddings` does."""
    _refuse_stream(values)
    asked = Asked.read(values, prefers_async=prefers_async)
    data = required(values, "file")
    if type(data) is not bytes:
        raise wrong_type("file", "a file in a form", data)
    if not data:
        raise InvalidRequestError("Invalid 'file': it is empty.", "file", "empty_file")
    if not is_sound(data):
        raise InvalidRequestError(
            "Invalid 'file': it does not begin as a recording does. Send flac, mp3, mp4, m4a, ogg, wav or webm.",
            "file",
            "unsupported_format",
        )
    wanted = values.get("response_format") or "json"
    a_choice(wanted, "response_format", TRANSCRIPTION_FORMATS)
    number(values, "temperature", 0, 1)
    if values.get("language") is not None:
        a_text(values["language"], "language", most=MAX_LANGUAGE)
    if (granularities := values.get("timestamp_granularities")) is not None:
        granularities = an_array(granularities, "timestamp_granularities")
        for each in granularities:
            a_choice(each, "timestamp_granularities", ("word", "segment"))
        if "word" in granularities and wanted != "verbose_json":  # segments are what is meant if nothing is said
            raise invalid("timestamp_granularities", "'word' needs \"response_format\": 'verbose_json'")
    return asked


def _refuse_stream(values: Values) -> None:
    if flag(values, "stream"):
        raise invalid("stream", "this endpoint answers whole; leave it out")


def _check_reference(image: Values) -> None:
    """The image that a video begins with. Nothing is fetched for a client."""
    path = "input_reference.image_url"
    if image.get("file_id") is not None:
        raise invalid("input_reference.file_id", "send the image itself, as a file of the form or a data URL")
    url = a_text(required(image, "image_url", "input_reference"), path)
    if not url.startswith("data:"):
        raise invalid(path, "send the image itself, as a file of the form or a data URL")
    check_data_url(url, "image/", path)


def _check_inputs(given: object) -> None:
    """A text, the tokens of one, or a list of either; none of them empty."""
    if type(given) is str:
        _check_text(given, "input")
        return
    inputs = an_array(given, "input")
    if not inputs:
        raise InvalidRequestError("Invalid 'input': empty array.", "input", "empty_array")
    if type(inputs[0]) is int:
        _check_tokens(inputs, "input")
        return
    if len(inputs) > MAX_INPUTS:
        raise invalid("input", f"at most {MAX_INPUTS} inputs, but got {len(inputs)}")
    kind = type(inputs[0])
    for index, each in enumerate(inputs):
        path = f"input[{index}]"
        if type(each) is not kind or kind not in (str, list):
            raise wrong_type(path, "all strings, or all arrays of tokens", each)
        if type(each) is str:
            _check_text(each, path)
        else:
            _check_tokens(an_array(each, path), path)


def _check_text(text: str, path: str) -> None:
    a_text(text, path, most=MAX_CHARACTERS)


def _check_tokens(tokens: list[object], path: str) -> None:
    if not tokens:
        raise InvalidRequestError(f"Invalid '{path}': empty array.", path, "empty_array")
    for token in tokens:
        if type(token) is not int:
            raise wrong_type(path, "an array of tokens, which are integers", token)
        if not 0 <= token < LARGEST_TOKEN:
            raise invalid(path, "a token is a number from 0 on")
