"""A receiver of OpenTelemetry's protocol in a process of its own: decodes what comes and tells it as JSON.

    python -m tests.otlp_receiver

prints `receiver listening on http://127.0.0.1:PORT` and ends when its standard input does. `POST /v1/traces` takes
OTLP over HTTP; `GET /spans` is all that came.
"""

import gzip
import json
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.doubles import ANSWER_S, START_S, started


@dataclass(frozen=True, slots=True)
class Span:
    """As it came; ids in hex."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    process: str
    attributes: dict[str, Any]
    is_error: bool
    text: str


@dataclass(frozen=True, slots=True)
class OtlpReceiver:
    """A running one."""

    url: str

    def spans(self) -> list[Span]:
        """All that came so far."""
        with urllib.request.urlopen(f"{self.url}/spans", timeout=ANSWER_S) as answer:
            return [Span(**each) for each in json.load(answer)]


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """One that ends with the block; it also ends when this process dies."""
    with started([sys.executable, "-m", "tests.otlp_receiver"], within=START_S) as line:
        yield OtlpReceiver(line.split()[-1])


class _Handler(BaseHTTPRequestHandler):
    seen: "list[dict[str, Any]]"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            self.seen.extend(_spans(ExportTraceServiceRequest.FromString(body)))
        self._answer(b"", "application/x-protobuf")

    def do_GET(self) -> None:
        self._answer(json.dumps(self.seen).encode(), "application/json")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test looks at the spans."""

    def _answer(self, body: bytes, media_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _spans(request: ExportTraceServiceRequest) -> Iterator[dict[str, Any]]:
    for of_process in request.resource_spans:
        process = _values(of_process.resource.attributes).get("pointsman.process", "")
        for scope in of_process.scope_spans:
            for span in scope.spans:
                yield {
                    "name": span.name,
                    "kind": span.kind,
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "process": process,
                    "attributes": _values(span.attributes),
                    "is_error": span.status.code == span.status.STATUS_CODE_ERROR,
                    "text": str(span),
                }


def _values(pairs: "Any") -> dict[str, Any]:
    found = {}
    for pair in pairs:
        assert isinstance(pair, KeyValue)
        found[pair.key] = getattr(pair.value, str(pair.value.WhichOneof("value")))
    return found


def main() -> None:
    """Serve until standard input ends."""
    _Handler.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"receiver listening on http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
