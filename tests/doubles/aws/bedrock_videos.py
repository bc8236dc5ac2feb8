"""A DOUBLE of Bedrock's asynchronous calls on moto's S3: StartAsyncInvoke and its like, whose videos are an empty film.

| what | as the service does it (source) |
|---|---|
| a member that is not in botocore's model, or is missing | `ValidationException` (botocore) |
| the same `clientRequestToken` again | the same call (botocore: an idempotency token) |
| that token with another body | `ConflictException` (botocore) |
| an input that the model does not have | `ValidationException` (user guide, parameters of Nova Reel) |
| a bucket that is not there | `ValidationException` (unverified) |
| states | InProgress, Completed, Failed with a `failureMessage` (botocore) |
| output | `PLACE/CALL/output.mp4`, and Nova Reel's `manifest.json` beside it (user guide) |

Errors of a model's calls are set as for Converse: `/double/bedrock/model`. Beyond that a test sets with
`POST /double/videos/model`: `{"model": ID}` and any of

| knob | what it makes happen |
|---|---|
| `hold` | it stays InProgress until this is changed |
| `fails` | it ends as Failed with that message |
| `nothing` | it ends as Completed, and no video lies there |
| `lose_answers` | so many calls are begun and answered with a 500 all the same |

`/double/videos/record` gives all calls: token, ARN, model, status, input, and how often each was asked for.
"""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from moto.s3.models import s3_backends

from tests.doubles.aws.bedrock import SERVICE, STATUS, Bedrock, Refused
from tests.doubles.aws.shapes import faults

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

ACCOUNT, PARTITION = "123456789012", "aws"
REEL_LENGTHS = range(6, 121, 6)
SCALE = 1000  # of a film's clock


@dataclass(slots=True)
class Knobs:
    """What a test wants of one model."""

    model: str
    hold: bool = False
    fails: str = ""
    nothing: bool = False
    lose_answers: int = 0


@dataclass(slots=True)
class Invocation:
    """One call."""

    id: str
    asked: dict[str, Any]
    submitted: float
    status: str = "InProgress"
    message: str = ""
    ended: float = 0.0

    @property
    def arn(self) -> str:
        """Its name."""
        return f"arn:aws:bedrock:us-east-1:{ACCOUNT}:async-invoke/{self.id}"


@dataclass(slots=True)
class AsyncInvokes:
    """All calls. Its methods come from the server's threads."""

    bedrock: Bedrock
    _calls: dict[str, Invocation] = field(default_factory=dict)
    _knobs: dict[str, Knobs] = field(default_factory=dict)
    _starts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def control(self, path: str, given: Any) -> object:
        """What a test sets or asks. Raises KeyError for an address that there is not."""
        match path:
            case "model":
                known = self._knobs.get(given["model"])
                self._knobs[given["model"]] = Knobs(**{**(asdict(known) if known else {}), **given})
                return {}
            case "record":
                return [self._shown(call) for call in list(self._calls.values())]
        raise KeyError(path)

    def takes(self, environ: "WSGIEnvironment") -> bool:
        """Whether this is one of the asynchronous calls."""
        path: str = environ["PATH_INFO"]
        return path.startswith("/async-invoke")

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        try:
            operation, answer = self._answer(environ["REQUEST_METHOD"], unquote(environ["PATH_INFO"]), body)
            wrong = faults(answer, SERVICE.operation_model(operation).output_shape)
            assert not wrong, wrong  # what is sent parses under botocore's own model
            status, headers = "200 OK", [("content-type", "application/json")]
        except Refused as refused:
            status = f"{STATUS.get(refused.code, 403)} {refused.code}"
            headers = [("content-type", "application/json"), ("x-amzn-errortype", refused.code)]
            answer = {"message": str(refused)}
        start_response(status, headers)
        return [json.dumps(answer).encode()]

    def _answer(self, method: str, path: str, body: bytes) -> tuple[str, dict[str, Any]]:
        if path == "/async-invoke" and method == "POST":
            return "StartAsyncInvoke", self._start(json.loads(body))
        if path == "/async-invoke":
            return "ListAsyncInvokes", {"asyncInvokeSummaries": [_described(each) for each in self._calls.values()]}
        call = self._calls.get(path.rpartition("/")[2])
        if call is None:
            raise Refused("ValidationException", "there is no such invocation")
        self._go_on(call)
        return "GetAsyncInvoke", _described(call)

    def _start(self, asked: dict[str, Any]) -> dict[str, Any]:
        wrong = faults(asked, SERVICE.operation_model("StartAsyncInvoke").input_shape) or _wrong_input(asked)
        if wrong:
            raise Refused("ValidationException", "; ".join(wrong[:5]))
        self.bedrock.allowed(asked["modelId"])
        token, knobs = asked.get("clientRequestToken", ""), self._of(asked["modelId"])
        with self._lock:
            self._starts[token] += 1
            known = next((each for each in self._calls.values() if each.asked.get("clientRequestToken") == token), None)
            if known is not None and known.asked != asked:
                raise Refused("ConflictException", "this token came with another request")
            if known is None:
                known = Invocation(f"{len(self._calls):012x}", asked, time.time())
                self._calls[known.id] = known
            if knobs.lose_answers > 0:
                knobs.lose_answers -= 1
                raise Refused("InternalServerException", "done, and the answer is lost")
        return {"invocationArn": known.arn}

    def _go_on(self, call: Invocation) -> None:
        knobs = self._of(call.asked["modelId"])
        with self._lock:
            if call.status != "InProgress" or knobs.hold:
                return
            call.ended = time.time()
            if knobs.fails:
                call.status, call.message = "Failed", knobs.fails
                return
            call.status = "Completed"
            bucket, prefix = _place(call.asked)
            s3 = s3_backends[ACCOUNT][PARTITION]
            s3.put_object(bucket, f"{prefix}/{call.id}/manifest.json", b"{}")
            if not knobs.nothing:
                s3.put_object(bucket, f"{prefix}/{call.id}/output.mp4", film(_length(call.asked["modelInput"])))

    def _of(self, model: str) -> Knobs:
        return self._knobs.setdefault(model, Knobs(model))

    def _shown(self, call: Invocation) -> dict[str, Any]:
        token = call.asked.get("clientRequestToken", "")
        return {
            "arn": call.arn,
            "token": token,
            "model": call.asked["modelId"],
            "input": call.asked["modelInput"],
            "status": call.status,
            "starts": self._starts[token],
        }


def film(seconds: int) -> bytes:
    """An MP4 of that length with nothing in it."""
    head = b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom"
    clock = b"\0" * 12 + SCALE.to_bytes(4) + (seconds * SCALE).to_bytes(4)
    moov = b"mvhd" + clock + b"\0" * 80
    inner = (len(moov) + 4).to_bytes(4) + moov
    return head + (len(inner) + 8).to_bytes(4) + b"moov" + inner + b"\0" * 1000 * seconds


def _wrong_input(asked: dict[str, Any]) -> list[str]:
    given, model = asked["modelInput"], asked["modelId"]
    if _place(asked)[0] not in s3_backends[ACCOUNT][PARTITION].buckets:
        return ["Invalid Output Config/Credentials"]
    if "luma.ray" in model:
        unknown = set(given) - {"prompt", "aspect_ratio", "loop", "duration", "resolution", "keyframes"}
        return [f"modelInput.{name}: is no parameter" for name in unknown] or (
            [] if given.get("duration") in ("5s", "9s") else ["modelInput.duration: must be 5s or 9s"]
        )
    config = given.get("videoGenerationConfig", {})
    params = {"TEXT_VIDEO": ("textToVideoParams", 512), "MULTI_SHOT_AUTOMATED": ("multiShotAutomatedParams", 4000)}
    name, most = params.get(given.get("taskType"), ("", 0))
    text = given.get(name, {}).get("text", "")
    if not 1 <= len(text) <= most:
        return [f"modelInput: text must have 1 to {most} characters"]
    for image in given.get(name, {}).get("images", []):
        if (
            given["taskType"] != "TEXT_VIDEO"
            or image.get("format") not in ("png", "jpeg")
            or not image["source"]["bytes"]
        ):
            return ["modelInput.images: one PNG or JPEG, for TEXT_VIDEO"]
    if (config.get("fps"), config.get("dimension")) != (24, "1280x720"):
        return ["modelInput.videoGenerationConfig: must have 24 frames of 1280x720"]
    allowed = (6,) if given["taskType"] == "TEXT_VIDEO" else REEL_LENGTHS[1:]
    return [] if config.get("durationSeconds") in allowed else ["durationSeconds: is not allowed"]


def _length(given: dict[str, Any]) -> int:
    return int(str(given.get("duration", "")).rstrip("s") or given["videoGenerationConfig"]["durationSeconds"])


def _place(asked: dict[str, Any]) -> tuple[str, str]:
    uri: str = asked["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"]
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return bucket, prefix.rstrip("/")


def _described(call: Invocation) -> dict[str, Any]:
    bucket, prefix = _place(call.asked)
    model = re.sub(r"^[a-z]{2,6}\.(?=[a-z]+\.)", "", call.asked["modelId"])
    return {
        "invocationArn": call.arn,
        "modelArn": f"arn:aws:bedrock:us-east-1::foundation-model/{model}",
        "clientRequestToken": call.asked.get("clientRequestToken", "none"),
        "status": call.status,
        "submitTime": _moment(call.submitted),
        "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": f"s3://{bucket}/{prefix}/{call.id}"}},
        **({"failureMessage": call.message} if call.message else {}),
        **({"endTime": _moment(call.ended)} if call.ended else {}),
    }


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
