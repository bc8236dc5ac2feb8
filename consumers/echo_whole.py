"""What the echo backend answers where an answer comes whole: numbers, pictures and sounds that stand for nothing."""

import binascii
import io
import json
import struct
import wave
import zlib
from hashlib import sha256

from consumers.embeddings import inputs_of
from consumers.gathered import Object, compact
from consumers.whole import EMBEDDINGS, IMAGES, SPEECH, WRITTEN

DIMENSIONS, MOST_DIMENSIONS = 8, 4096
MOST_IMAGES = 10
RATE = 8_000  # samples a second
CHARACTERS_PER_SECOND = 15
LONGEST_S = 60


def text_of(asked: Object) -> str:
    """The text that an echo reads its orders from: the first input, the prompt."""
    given = asked.get("input", asked.get("prompt"))
    first = given[0] if isinstance(given, list) and given else given
    return first if isinstance(first, str) else ""


def answer(endpoint: str, asked: Object) -> tuple[bytes, str]:
    """The bytes that a server would send, and as what."""
    if endpoint == EMBEDDINGS:
        return compact(_embeddings(asked)), "application/json"
    if endpoint == IMAGES:
        return compact(_images(asked)), "application/json"
    if endpoint == SPEECH:
        return _speech(text_of(asked)), "audio/wav"
    return _transcription(asked)


def _embeddings(asked: Object) -> Object:
    """Equal inputs have equal vectors of length 1."""
    wanted = asked.get("dimensions")
    size = wanted if isinstance(wanted, int) and 0 < wanted <= MOST_DIMENSIONS else DIMENSIONS
    inputs = inputs_of(asked)
    rows = [{"index": index, "embedding": _vector(each, size)} for index, each in enumerate(inputs)]
    tokens = sum(len(each) if isinstance(each, list) else len(str(each).split()) for each in inputs)
    return {"data": rows, "usage": {"prompt_tokens": max(1, tokens), "total_tokens": max(1, tokens)}}


def _vector(given: object, size: int) -> list[float]:
    seed, numbers = json.dumps(given).encode(), list[float]()
    while len(numbers) < size:
        seed = sha256(seed).digest()
        numbers += [number / 2**31 - 1 for number in struct.unpack("<8I", seed)]
    length = sum(number * number for number in numbers[:size]) ** 0.5
    return [number / length for number in numbers[:size]]


def _images(asked: Object) -> Object:
    n = asked.get("n")
    picture = binascii.b2a_base64(_png(), newline=False).decode()
    return {"created": 0, "data": [{"b64_json": picture}] * (min(n, MOST_IMAGES) if isinstance(n, int) else 1)}


def _png() -> bytes:
    """One grey pixel."""
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\x80")),
        (b"IEND", b""),
    )
    body = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def _speech(text: str) -> bytes:
    """As long a silence as the text would take."""
    seconds = min(LONGEST_S, max(1, -(-len(text) // CHARACTERS_PER_SECOND)))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(1)
        writer.setframerate(RATE)
        writer.writeframes(b"\x80" * (seconds * RATE))
    return file.getvalue()


def _transcription(asked: Object) -> tuple[bytes, str]:
    data, wanted = asked.get("file"), asked.get("response_format")
    text = f"{len(data) if isinstance(data, bytes) else 0} bytes of sound"
    if isinstance(wanted, str) and wanted in WRITTEN:
        head = {"srt": "1\n00:00:00,000 --> 00:00:01,000\n", "vtt": "WEBVTT\n\n00:00.000 --> 00:01.000\n"}.get(
            wanted, ""
        )
        return f"{head}{text}\n".encode(), "text/plain"
    more = {"task": "transcribe", "language": "english", "duration": 1.0, "segments": []}
    return compact({"text": text, **(more if wanted == "verbose_json" else {})}), "application/json"
