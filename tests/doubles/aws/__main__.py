"""A DOUBLE of AWS in a process of its own: moto, with SageMaker's asynchronous endpoints made to work.

    python -m tests.doubles.aws [--port 0]

prints `double listening on http://127.0.0.1:PORT` and ends when its standard input does. What moto does well (S3, SQS,
SNS, CloudWatch, Application Auto Scaling, SageMaker's control plane) is moto's. What is added is described where it
is: `sagemaker.py`, `bedrock.py`, `bedrock_batches.py`, `bedrock_videos.py`. Tests set and read it under `/double/...`
of the same port.
"""

import argparse
import json
import logging
import sys
from collections.abc import Iterable
from threading import Thread
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tests.doubles.aws import sagemaker
from tests.doubles.aws.bedrock import Bedrock
from tests.doubles.aws.bedrock_batches import Batches
from tests.doubles.aws.bedrock_videos import AsyncInvokes

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

CONTROL = "/double/"
LARGEST_CONTROL = 1024 * 1024
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class _App:
    """Moto, and the double's own addresses beside it."""

    def __init__(self) -> None:
        self.double: sagemaker.Double | None = None
        self.bedrock = Bedrock()
        self.batches = Batches()
        self.videos = AsyncInvokes(self.bedrock)
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path: str = environ["PATH_INFO"]
        if self.bedrock.takes(environ):
            return self.bedrock(environ, start_response)
        if self.batches.takes(environ):
            return self.batches(environ, start_response)
        if self.videos.takes(environ):
            return self.videos(environ, start_response)
        if not path.startswith(CONTROL):
            return self._of_s3(environ, start_response)
        length = min(int(environ.get("CONTENT_LENGTH") or 0), LARGEST_CONTROL)
        given = json.loads(environ["wsgi.input"].read(length) or b"null")
        try:
            assert self.double is not None
            where = path.removeprefix(CONTROL)
            if where.startswith("bedrock/"):
                told = self.bedrock.control(where.removeprefix("bedrock/"), given)
            elif where.startswith("batches/"):
                told = self.batches.control(where.removeprefix("batches/"), given)
            elif where.startswith("videos/"):
                told = self.videos.control(where.removeprefix("videos/"), given)
            else:
                told = self.double.control(where, given)
            status, body = "200 OK", json.dumps(told).encode()
        except (KeyError, TypeError, ValueError) as error:
            status, body = "400 Bad Request", json.dumps({"error": str(error)}).encode()
        start_response(status, [("content-type", "application/json"), ("content-length", str(len(body)))])
        return [body]

    def _of_s3(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Who may not list a bucket is told 403 of a key that is not there (S3's reference of GetObject)."""
        bucket, method = environ["PATH_INFO"].split("/")[1], environ["REQUEST_METHOD"]
        hides = self.double is not None and method in ("GET", "HEAD") and self.double.hides(bucket)
        is_result = method == "GET" and environ["PATH_INFO"].startswith((f"/{bucket}/out/", f"/{bucket}/failures/"))
        if not hides and not is_result:
            answer: Iterable[bytes] = self._moto(environ, start_response)
            return answer
        said: list[Any] = []

        def start(status: str, headers: Any, *more: Any) -> Any:
            said[:] = [status, headers]
            return lambda data: None

        body = b"".join(self._moto(environ, start))
        status, headers = said
        if is_result and status.startswith("200") and self.double is not None and self.double.breaks(bucket):
            body = body[: len(body) // 2]
        if hides and status.startswith("404"):
            status, headers = "403 Forbidden", [("content-type", "application/xml")]
            body = b"" if environ["REQUEST_METHOD"] == "HEAD" else DENIED
            headers.append(("content-length", str(len(body))))
        start_response(status, headers)
        return [body]


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = _App()
    server = make_server("127.0.0.1", given.port, app, threaded=True, request_handler=MotoRequestHandler)
    app.double = sagemaker.install(f"http://127.0.0.1:{server.port}")
    app.batches.url = f"http://127.0.0.1:{server.port}"
    Thread(target=server.serve_forever, daemon=True).start()
    print(f"double listening on http://127.0.0.1:{server.port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
