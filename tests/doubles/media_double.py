"""A DOUBLE of a server for embeddings, images, speech and transcription: no model, but answers that can be checked.

Part of `tests.doubles.openai_double`. The behaviours `delay-N`, `mute`, `reset`, `error-N`, `once-N`, `html` are those
of chat, named in the model or at the start of an input, a prompt or a transcription's `prompt`. Besides:

| behaviour | what it does |
|---|---|
| `guilty` | in an input: status 400 for the whole call, with the param `input`; `guilty-long` for its length |
| `deadly` | in an input: status 500 for the whole call |
| `most-N` | status 422 for more than N inputs |
| `floats`, `base64` | embeddings in that form, whatever was asked for |
| `few`, `twice` | one embedding is missing; two have the same index |
| `backwards` | embeddings in the wrong order, under their right indices |
| `no-usage` | leaves that out |

An embedding's numbers are [length of the input, its first byte or token, then zeros]; its usage is the sum of the
lengths. An image is one pixel, speech is a second of silence for each word, a transcription says what it got.
"""

import base64
import io
import json
import re
import struct
import wave
from typing import Any

from aiohttp import web

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="


def embeddings(body: dict[str, Any], asked: Any) -> web.Response:
    given = body["input"]
    inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    texts = [each for each in inputs if isinstance(each, str)]
    if any("double:guilty-long" in text for text in texts):
        return _error(400, "This model's maximum context length is 8 tokens.", "input")
    if any("double:guilty" in text for text in texts):
        return _error(400, "this input cannot be", "input")
    if any("double:deadly" in text for text in texts):
        return _error(500, "the server fell over", None)
    if (most := asked.number("most")) is not None and len(inputs) > most:
        return _error(422, f"batch size {len(inputs)} > {most}", None)
    is_base64 = (body.get("encoding_format") == "base64" or "base64" in asked) and "floats" not in asked
    vectors = [_vector(each, body) for each in inputs]
    rows: list[dict[str, Any]] = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if is_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    if "few" in asked:
        rows.pop()
    if "twice" in asked:
        rows[-1]["index"] = 0
    if "backwards" in asked:
        rows.reverse()
    tokens = sum(len(each) for each in inputs)
    usage = {} if "no-usage" in asked else {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    return web.json_response({"object": "list", "data": rows, "model": "double", **usage})


def _vector(given: Any, body: dict[str, Any]) -> list[float]:
    first = given[0] if isinstance(given, list) else given.encode()[0]
    return [float(len(given)), float(first), *([0.1] * (body.get("dimensions", 4) - 2))]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def images(body: dict[str, Any], asked: Any) -> web.Response:
    details = {"text_tokens": 7, "image_tokens": 0}
    counted = {"input_tokens": 7, "output_tokens": 100, "total_tokens": 107, "input_tokens_details": details}
    usage = {} if "no-usage" in asked else {"usage": counted}
    data = [{"b64_json": PIXEL} for _ in range(body.get("n") or 1)]
    return web.json_response({"created": 1796000000, "data": data, **usage})


def speech(body: dict[str, Any], asked: Any) -> web.Response:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(bytes(len(body["input"].split()) * 32_000))
    return web.Response(body=file.getvalue(), content_type="audio/wav")


def transcription(form: dict[str, Any], asked: Any) -> web.Response:
    told = {name: value for name, value in form.items() if name != "file"}
    told |= {"filename": form["file"].filename, "bytes": len(form["file"].file.read())}
    text = json.dumps(told, sort_keys=True)
    match form.get("response_format", "json"):
        case "text":
            return web.Response(text=text)
        case "srt":
            return web.Response(text=f"1\n00:00:00,000 --> 00:00:01,000\n{text}\n")
        case "vtt":
            return web.Response(text=f"WEBVTT\n\n00:00.000 --> 00:01.000\n{text}\n")
        case "verbose_json":
            return web.json_response({"task": "transcribe", "text": text, "language": "english", "duration": 2.5})
    usage = {} if "no-usage" in asked else {"usage": {"type": "duration", "seconds": 3}}
    return web.json_response({"text": text, **usage})


def text_of(body: dict[str, Any]) -> str:
    """Where behaviours are named besides the model: the first input that names one, or the prompt."""
    given = body.get("input", body.get("prompt"))
    texts = [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)]
    return next((each for each in texts if re.match(r"double:(?!guilty|deadly)", each)), "")


def _error(status: int, message: str, param: str | None) -> web.Response:
    error = {"message": message, "type": "double_error", "param": param, "code": "double_error"}
    return web.json_response({"error": error}, status=status)
