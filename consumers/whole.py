"""What is sent and what comes back where an answer comes whole: embeddings, images, recordings, speech. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from consumers import embeddings
from consumers.backend import Answer, BackendError
from consumers.gathered import Object, compact, is_count
from consumers.upstream import OURS, parsed
from policies.deployments import Deployment
from policies.pricing import Basis, Usage
from policies.retries import Failure
from router import sounds
from router.forms import Form, NotAFormError, content_type
from router.job import JSON, Job

EMBEDDINGS = "/v1/embeddings"
IMAGES = "/v1/images/generations"
SPEECH = "/v1/audio/speech"
TRANSCRIPTIONS = "/v1/audio/transcriptions"

# What a client gets, where the server does not say what it sends.
SPOKEN: Mapping[str, str] = MappingProxyType(
    {
        "mp3": "audio/mpeg",
        "opus": "audio/ogg",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "wav": "audio/wav",
        "pcm": "audio/pcm",
    }
)
PCM_BYTES_PER_SECOND = 48_000
WRITTEN: Mapping[str, str] = MappingProxyType(
    {"text": "text/plain; charset=utf-8", "srt": "text/plain; charset=utf-8", "vtt": "text/plain; charset=utf-8"}
)


@dataclass(frozen=True, slots=True)
class Request:
    """The bytes to send to `path` below the server's base, and as what. `asked` is the client's, for the answer."""

    path: str
    body: bytes
    media_type: str
    asked: Object


Reader = Callable[[Request, Job, Deployment, bytes, str], Answer]


def request(job: Job, deployment: Deployment) -> Request:
    """The job's call to the deployment. Raises `BackendError` for a body that is none, or an unknown endpoint."""
    path = job.endpoint.removeprefix("/v1")
    if job.endpoint not in _READERS:
        raise BackendError(Failure.REJECTED, "this deployment has no such endpoint", code="unknown_endpoint")
    if job.endpoint == TRANSCRIPTIONS:
        return _form(path, job.body, deployment)
    asked = parsed(job.body)
    if job.endpoint == EMBEDDINGS:
        embeddings.inputs_of(asked)
    sent = {name: value for name, value in asked.items() if name not in OURS} | {"model": deployment.model}
    try:
        return Request(path, compact(sent), JSON, asked)
    except RecursionError as error:
        raise BackendError(Failure.REJECTED, "the body is nested too deeply", code="invalid_json") from error


def answer(sent: Request, job: Job, deployment: Deployment, data: bytes, media_type: str) -> Answer:
    """What a server's 200 means. Raises `BackendError`."""
    return _READERS[job.endpoint](sent, job, deployment, data, media_type)


def _form(path: str, body: bytes, deployment: Deployment) -> Request:
    try:
        form = Form.from_bytes(body)
    except NotAFormError as error:
        raise BackendError(Failure.REJECTED, "the body is no form with a file", code="invalid_form") from error
    fields = [(name, value) for name, value in form.fields if name.partition("[")[0] not in OURS and name != "model"]
    sent = replace(form, fields=(("model", deployment.model), *fields)).to_bytes()
    return Request(path, sent, content_type(sent), {**dict(form.fields), "file": form.data})


def _embeddings(sent: Request, job: Job, deployment: Deployment, data: bytes, media_type: str) -> Answer:
    return embeddings.answer(parsed_answer(data), sent.asked, deployment.name, job.estimate.owed)


def _images(sent: Request, job: Job, deployment: Deployment, data: bytes, media_type: str) -> Answer:
    whole = parsed_answer(data)
    made = whole.get("data")
    if not isinstance(made, list) or not made:
        raise _malformed("images")
    tokens = _tokens(whole.get("usage"))
    return Answer(data, replace(tokens or Usage(), images=len(made)))


def _speech(sent: Request, job: Job, deployment: Deployment, data: bytes, media_type: str) -> Answer:
    wanted = sent.asked.get("response_format")
    wanted = wanted if isinstance(wanted, str) and wanted in SPOKEN else "mp3"
    if not data or media_type == JSON:
        raise _malformed("speech")
    text = sent.asked.get("input")
    seconds = (
        -(-len(data) // PCM_BYTES_PER_SECOND) if wanted == "pcm" else sounds.seconds(data[: sounds.HEAD], len(data))
    )
    usage = Usage(characters=len(text) if isinstance(text, str) else 1, audio_seconds=seconds)
    return Answer(data, usage, media_type if media_type.startswith("audio/") else SPOKEN[wanted])


def _transcription(sent: Request, job: Job, deployment: Deployment, data: bytes, media_type: str) -> Answer:
    wanted = sent.asked.get("response_format")
    if isinstance(wanted, str) and wanted in WRITTEN:
        return Answer(data, _heard(sent, None), WRITTEN[wanted])
    whole = parsed_answer(data)
    if not isinstance(whole.get("text"), str):
        raise _malformed("a transcription")
    return Answer(data, _heard(sent, whole))


def _heard(sent: Request, whole: Object | None) -> Usage:
    """What the server reports: tokens or seconds. Else the recording's own length, which we looked up."""
    usage = (whole or {}).get("usage")
    tokens = _tokens(usage)
    if tokens is not None:
        return replace(tokens, audio_seconds=_length(sent))
    for told, name in ((usage, "seconds"), (whole, "duration")):
        seconds = told.get(name) if isinstance(told, dict) else None
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds <= sounds.LONGEST_S:
            return Usage(audio_seconds=-int(-seconds // 1))
    return Usage(audio_seconds=_length(sent), basis=Basis.ESTIMATED)


def _length(sent: Request) -> int:
    data = sent.asked["file"]
    assert isinstance(data, bytes)
    return sounds.seconds(data[: sounds.HEAD], len(data))


def _tokens(usage: object) -> Usage | None:
    """Tokens under any of the names that OpenAI gives them."""
    if not isinstance(usage, dict):
        return None
    read, made = usage.get("input_tokens", usage.get("prompt_tokens")), usage.get("output_tokens", 0)
    return Usage(input=read, output=made) if is_count(read) and is_count(made) and read + made else None


def parsed_answer(data: bytes) -> Object:
    """A server's JSON object. Raises `BackendError`."""
    try:
        return parsed(data)
    except BackendError:
        raise _malformed("an object") from None


def _malformed(what: str) -> BackendError:
    return BackendError(Failure.BACKEND_ERROR, f"the backend's answer is not {what}", code="malformed_answer")


_READERS: Mapping[str, Reader] = MappingProxyType(
    {EMBEDDINGS: _embeddings, IMAGES: _images, SPEECH: _speech, TRANSCRIPTIONS: _transcription}
)
