"""A DOUBLE of SageMaker's runtime on moto: asynchronous endpoints with a queue, instances and a real container.

| what | as the service does it (source) |
|---|---|
| unknown endpoint; both or neither of Body and InputLocation; Body over 128,000 bytes; TTL or timeout out of bounds | \
`ValidationError`, and nothing is queued (API reference of `InvokeEndpointAsync`, botocore's model) |
| an endpoint with `AsyncInferenceConfig` called synchronously, one without called asynchronously | \
`ValidationError` (developer guide) |
| queue | `MaxConcurrentInvocationsPerInstance` x instances at once, oldest first (developer guide) |
| `RequestTTLSeconds` over in the queue | never run, no object, a message with `Expired` (one user's code; unverified) |
| output key | `S3OutputPath` / `S3OutputPathExtension` / `Filename`, else the id with `.out` (composition unverified) |
| failure | the container's body as it is, at the failure location if `S3FailurePath` is set (samples of AWS) |
| messages | to the success or the error topic, in the form that public code logged: see `_message` |
| synchronous calls | 6,291,456 bytes both ways, 60 s; a container's error is `ModelError`, 424 (API reference) |
| figures | in CloudWatch, the backlog once a second; `ModelLatency` and `TimeInBacklog` in microseconds, \
`TotalProcessingTime` in milliseconds (monitoring guide) |

The container is any server over HTTP: `POST URL` with the body and the content type of the call. Where it cannot be
reached the double fails loudly: the call ends with a failure that says so, and `/double/record` counts it.

Tests set one endpoint with `POST /double/endpoint`: `{"name": ..., "container": URL}` and any of

| knob | what it makes happen |
|---|---|
| `instances` | how many there are (0: nothing is taken from the queue); `start_s` how long one takes to come |
| `container_s` | how long a container takes beyond its own time |
| `drop_messages`, `double_messages` | the share of messages that never come, or come twice (by `seed`) |
| `message_with_answer` | the answer lies in the message as well, base64 |
| `upload_fails`, `download_fails`, `topic_fails` | the role may not write the output, read the input, publish |
| `hide_missing` | whoever asks for a key that is not there is told 403, as without `s3:ListBucket` |
| `hide_config` | the endpoint's configuration may not be described |
| `break_answers` | so many GETs of results are cut off in the middle |
| `lose_submit_answers` | the share of submits that are taken and answered with a 500 all the same |
| `names` | how path, extension and name are joined: `joined` by slashes, `appended` without the first, `ending`: \
as `joined`, with `.out` behind the name; AWS does not say |
| `throttle` | the share of submits that are refused with a 429 |

`GET /double/record?` (any method) gives every invocation: id, endpoint, when it was taken, begun, ended, and how.
"""

import base64
import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import boto3
from moto.core.exceptions import JsonRESTError
from moto.s3.models import s3_backends
from moto.sagemaker.models import sagemaker_backends
from moto.sagemaker.responses import SageMakerResponse
from moto.sagemakerruntime.responses import SageMakerRuntimeResponse
from moto.sns.models import sns_backends

ACCOUNT, PARTITION, REGION = "123456789012", "aws", "us-east-1"
INLINE_BYTES = 128_000
SYNC_BYTES = 6_291_456
SYNC_S = 60.0
TTL_S, LONGEST_TTL_S, SHORTEST_TTL_S = 21_600, 21_600, 60
TIMEOUT_S, LONGEST_TIMEOUT_S = 900, 3_600
MESSAGE_BYTES = 128 * 1024
RECORDS = 20_000
FIGURES_AT_ONCE = 150
HEAD = "X-Amzn-SageMaker-"


@dataclass(slots=True)
class Knobs:
    """What a test wants of one endpoint."""

    name: str
    container: str = ""
    instances: int = 1
    start_s: float = 0.0
    container_s: float = 0.0
    drop_messages: float = 0.0
    double_messages: float = 0.0
    message_with_answer: bool = False
    upload_fails: bool = False
    download_fails: bool = False
    topic_fails: bool = False
    hide_missing: bool = False
    hide_config: bool = False
    break_answers: int = 0
    lose_submit_answers: float = 0.0
    throttle: float = 0.0
    ttl_divisor: float = 1.0  # a TTL of 60 s, the shortest, is over in 60 / this
    names: str = "joined"
    seed: int = 1


@dataclass(slots=True)
class Invocation:
    """One call as it went."""

    id: str
    endpoint: str
    body: bytes
    input_at: str
    content_type: str
    accept: str
    attributes: str
    output_at: str
    failure_at: str
    ttl_s: float
    timeout_s: float
    taken_at: float
    region: str
    begun_at: float = 0.0
    ended_at: float = 0.0
    outcome: str = "queued"


@dataclass(slots=True)
class Endpoint:
    """Its queue and its instances, which are threads here."""

    knobs: Knobs
    queue: deque[Invocation] = field(default_factory=deque)
    running: int = 0
    instances: int = 0
    taken: int = 0
    draw: random.Random = field(default_factory=random.Random)
    changed: threading.Condition = field(default_factory=threading.Condition)
    at_once: int = 1
    counted: dict[str, float] = field(default_factory=dict)


class Double:
    """All endpoints. Its methods come from moto's request threads."""

    def __init__(self, url: str) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        self._records: deque[Invocation] = deque(maxlen=RECORDS)
        self._figures: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()
        self._cloudwatch = boto3.client(
            "cloudwatch",
            endpoint_url=url,
            region_name=REGION,
            aws_access_key_id="double",
            aws_secret_access_key="double",
        )
        threading.Thread(target=self._report, daemon=True).start()

    def control(self, path: str, given: Any) -> object:
        """What a test sets or asks. Raises KeyError for an address that there is not."""
        match path:
            case "endpoint":
                self._set(given)
                return {}
            case "record":
                return [_shown(each) for each in list(self._records)]
            case "state":
                return {
                    name: {
                        "queued": len(each.queue),
                        "running": each.running,
                        "instances": each.instances,
                        "taken": each.taken,
                    }
                    for name, each in self._endpoints.items()
                }
        raise KeyError(path)

    def _set(self, given: dict[str, Any]) -> None:
        with self._lock:
            known = self._endpoints.get(given["name"])
            knobs = Knobs(**({**asdict(known.knobs), **given} if known else given))
            endpoint = known or Endpoint(knobs)
            endpoint.knobs = knobs
            endpoint.draw.seed(knobs.seed)
            self._endpoints[knobs.name] = endpoint
        missing = knobs.instances - endpoint.instances
        if missing > 0 and knobs.start_s:
            threading.Timer(knobs.start_s, self._scale, (endpoint, knobs.instances)).start()
        else:
            self._scale(endpoint, knobs.instances)

    def _scale(self, endpoint: Endpoint, instances: int) -> None:
        with endpoint.changed:
            endpoint.instances = instances
            endpoint.changed.notify_all()

    def hides(self, bucket: str) -> bool:
        """Whether keys that are not there are denied in this bucket."""
        return any(_writes_to(bucket, each) for each in list(self._endpoints.values()) if each.knobs.hide_missing)

    def hides_config(self, name: str) -> bool:
        """Whether nobody may look at this endpoint's configuration, which has its name."""
        endpoint = self._endpoints.get(name)
        return endpoint is not None and endpoint.knobs.hide_config

    def breaks(self, bucket: str) -> bool:
        """Whether this answer with a result is cut off."""
        with self._lock:
            for each in self._endpoints.values():
                if each.knobs.break_answers > 0 and _writes_to(bucket, each):
                    each.knobs.break_answers -= 1
                    return True
        return False

    def submit(self, name: str, region: str, headers: Mapping[str, str], body: bytes) -> Invocation:
        """Queue one. Raises what the service answers."""
        config = _async_config(name, region)
        endpoint = self._of(name)
        if endpoint.draw.random() < endpoint.knobs.throttle:
            raise _refused("ThrottlingException", "Rate exceeded", 429)
        input_at = headers.get(HEAD + "InputLocation", "")
        if bool(input_at) == bool(body):
            raise _refused("ValidationError", "Exactly one of Body and InputLocation must be given")
        if len(body) > INLINE_BYTES:
            raise _refused("ValidationError", f"Body is {len(body)} bytes; the limit is {INLINE_BYTES}")
        ttl_s = _bounded(headers, "RequestTTLSeconds", TTL_S, SHORTEST_TTL_S, LONGEST_TTL_S)
        timeout_s = _bounded(headers, "InvocationTimeoutSeconds", TIMEOUT_S, 1, LONGEST_TIMEOUT_S)
        id_ = headers.get(HEAD + "Inference-Id") or f"{random.getrandbits(64):016x}"
        output = config["OutputConfig"]
        extension, name_of = headers.get(HEAD + "S3OutputPathExtension", ""), headers.get(HEAD + "Filename", "")
        failures = output.get("S3FailurePath", "")
        taken = Invocation(
            id=id_,
            endpoint=name,
            body=body,
            input_at=input_at,
            content_type=headers.get(HEAD + "Content-Type") or headers.get("Content-Type", ""),
            accept=headers.get(HEAD + "Accept", ""),
            attributes=headers.get(HEAD + "Custom-Attributes", ""),
            output_at=_joined(endpoint.knobs.names, output["S3OutputPath"], extension, name_of, f"{id_}.out"),
            failure_at=_joined(endpoint.knobs.names, failures, extension, name_of, f"{id_}-error.out"),
            ttl_s=ttl_s / endpoint.knobs.ttl_divisor,
            timeout_s=timeout_s,
            taken_at=time.time(),
            region=region,
        )
        self._records.append(taken)
        at_once = config.get("ClientConfig", {}).get("MaxConcurrentInvocationsPerInstance", 1)
        with endpoint.changed:
            endpoint.at_once = at_once
            endpoint.taken += 1
            endpoint.queue.append(taken)
        threading.Thread(target=self._one, args=(endpoint, taken), daemon=True).start()
        if endpoint.draw.random() < endpoint.knobs.lose_submit_answers:
            raise _refused("InternalFailure", "taken, and the answer is lost", 500)
        return taken

    def invoke(self, name: str, region: str, body: bytes, content_type: str) -> tuple[bytes, str]:
        """A synchronous call."""
        if _config(name, region).async_inference_config:
            raise _refused("ValidationError", f"Endpoint {name} only takes asynchronous invocations")
        if len(body) > SYNC_BYTES:
            raise _refused("ValidationError", f"Body is over {SYNC_BYTES} bytes", 413)
        endpoint = self._of(name)
        status, answer, kind = _container(endpoint.knobs, body, content_type, "", SYNC_S)
        if status != 200:
            raise _refused("ModelError", f"Received server error ({status}) from model: {answer[:1000]!r}", 424)
        if len(answer) > SYNC_BYTES:
            raise _refused("ModelError", "The answer is too large", 424)
        return answer, kind

    def _of(self, name: str) -> Endpoint:
        with self._lock:
            if name not in self._endpoints:
                raise _refused("ValidationError", f"the double has no container for {name}: POST /double/endpoint")
            return self._endpoints[name]

    def _one(self, endpoint: Endpoint, call: Invocation) -> None:
        with endpoint.changed:
            endpoint.changed.wait_for(
                lambda: endpoint.running < endpoint.instances * endpoint.at_once and endpoint.queue[0] is call,
                timeout=max(0.0, call.taken_at + call.ttl_s - time.time()),
            )
            endpoint.queue.remove(call)
            endpoint.changed.notify_all()
            if time.time() >= call.taken_at + call.ttl_s:
                self._end(endpoint, call, "expired", "")
                return
            endpoint.running += 1
            call.begun_at = time.time()
        try:
            self._run(endpoint, call)
        finally:
            with endpoint.changed:
                endpoint.running -= 1
                endpoint.changed.notify_all()

    def _run(self, endpoint: Endpoint, call: Invocation) -> None:
        knobs = endpoint.knobs
        try:
            body = call.body or (_object(call.input_at) if not knobs.download_fails else None)
        except KeyError:
            body = None
        if body is None:
            self._count(endpoint, "RequestDownloadFailures", 1, "Count")
            self._end(endpoint, call, "failed", "ClientError: the input could not be read")
            return
        began = time.time()
        time.sleep(min(knobs.container_s, call.timeout_s))
        left_s = call.timeout_s - (time.time() - began)
        if left_s <= 0:
            self._end(endpoint, call, "failed", "ClientError: Invocation timed out")
            return
        status, answer, kind = _container(knobs, body, call.content_type, call.attributes, left_s)
        self._count(endpoint, "ModelLatency", (time.time() - began) * 1e6, "Microseconds")
        if status == 200:
            if knobs.upload_fails:
                self._count(endpoint, "ResponseUploadFailures", 1, "Count")
                self._end(endpoint, call, "failed", "ClientError: the output could not be written")
                return
            _put(call.output_at, answer, kind)
            self._end(endpoint, call, "completed", "", answer)
        else:
            if call.failure_at and not knobs.upload_fails:
                _put(call.failure_at, answer, kind)
            why = f"ClientError: Received server error ({status}) from model. See the SageMaker Endpoint logs"
            self._end(endpoint, call, "failed", why)

    def _end(self, endpoint: Endpoint, call: Invocation, outcome: str, why: str, answer: bytes = b"") -> None:
        call.ended_at, call.outcome, call.body = time.time(), outcome, b""
        waited = (call.begun_at or call.ended_at) - call.taken_at
        self._count(endpoint, "TimeInBacklog", waited * 1e6, "Microseconds")
        self._count(endpoint, "TotalProcessingTime", (call.ended_at - call.taken_at) * 1e3, "Milliseconds")
        if outcome == "expired":
            self._count(endpoint, "ExpiredRequests", 1, "Count")
        config = _async_config(endpoint.knobs.name, call.region)["OutputConfig"].get("NotificationConfig", {})
        topic = config.get("SuccessTopic" if outcome == "completed" else "ErrorTopic")
        if not topic:
            return
        if endpoint.knobs.topic_fails:
            self._count(endpoint, "NotificationFailures", 1, "Count")
            return
        text = json.dumps(_message(call, outcome, why, answer if endpoint.knobs.message_with_answer else b""))
        with self._lock:
            if endpoint.draw.random() < endpoint.knobs.drop_messages:
                return
            times = 2 if endpoint.draw.random() < endpoint.knobs.double_messages else 1
        for _ in range(times):
            sns_backends[ACCOUNT][call.region].publish(message=text, arn=topic)

    def _count(self, endpoint: Endpoint, name: str, value: float, unit: str) -> None:
        self._figure(endpoint.knobs.name, name, value, unit, [{"Name": "VariantName", "Value": "AllTraffic"}])

    def _figure(self, endpoint: str, name: str, value: float, unit: str, variant: list[dict[str, str]]) -> None:
        self._figures.append(
            {
                "MetricName": name,
                "Dimensions": [{"Name": "EndpointName", "Value": endpoint}, *variant],
                "Value": value,
                "Unit": unit,
                "Timestamp": datetime.now(UTC),
            }
        )

    def _report(self) -> None:
        """The figures, once a second."""
        while True:
            time.sleep(1.0)
            for name, each in list(self._endpoints.items()):
                backlog = len(each.queue) + each.running
                lacks = float(backlog > 0 and each.instances == 0)
                self._figure(name, "ApproximateBacklogSize", backlog, "Count", [])
                self._figure(name, "HasBacklogWithoutCapacity", lacks, "Count", [])
                if each.instances:
                    self._figure(name, "ApproximateBacklogSizePerInstance", backlog / each.instances, "Count", [])
            while self._figures:
                some = [self._figures.popleft() for _ in range(min(FIGURES_AT_ONCE, len(self._figures)))]
                self._cloudwatch.put_metric_data(Namespace="AWS/SageMaker", MetricData=some)


def install(url: str) -> Double:
    """Put the double in the place of moto's canned answers. `url` is where it is served."""
    double = Double(url)

    def invoke_endpoint_async(self: Any) -> tuple[int, dict[str, Any], str]:
        taken = double.submit(_endpoint_of(self.path), self.region, self.headers, _sent(self.raw_body))
        headers: dict[str, Any] = {"status": 202, HEAD + "OutputLocation": taken.output_at}
        if taken.failure_at:
            headers[HEAD + "FailureLocation"] = taken.failure_at
        return 202, headers, json.dumps({"InferenceId": taken.id})

    def invoke_endpoint(self: Any) -> tuple[int, dict[str, str], bytes]:
        kind = self.headers.get("Content-Type", "")
        answer, answered = double.invoke(_endpoint_of(self.path), self.region, _sent(self.raw_body), kind)
        return 200, {"Content-Type": answered, "x-Amzn-Invoked-Production-Variant": "AllTraffic"}, answer

    described = SageMakerResponse.describe_endpoint_config

    def describe_endpoint_config(self: Any) -> Any:
        if double.hides_config(self._get_param("EndpointConfigName")):
            raise _refused("AccessDeniedException", "not authorized to perform: sagemaker:DescribeEndpointConfig")
        return described(self)

    SageMakerResponse.describe_endpoint_config = describe_endpoint_config  # type: ignore[method-assign]
    SageMakerRuntimeResponse.invoke_endpoint_async = invoke_endpoint_async  # type: ignore[method-assign]
    SageMakerRuntimeResponse.invoke_endpoint = invoke_endpoint  # type: ignore[method-assign]
    return double


def _sent(body: object) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body or b"")  # type: ignore[call-overload]


def _endpoint_of(path: str) -> str:
    return path.split("/")[2]


def _config(name: str, region: str) -> Any:
    control_plane = sagemaker_backends[ACCOUNT][region]
    endpoint = control_plane.endpoints.get(name)
    if endpoint is None:
        raise _refused("ValidationError", f"Endpoint {name} of account {ACCOUNT} not found.")
    return control_plane.endpoint_configs[endpoint.endpoint_config_name]


def _writes_to(bucket: str, endpoint: Endpoint) -> bool:
    path: str = _async_config(endpoint.knobs.name, REGION)["OutputConfig"]["S3OutputPath"]
    return path.startswith(f"s3://{bucket}/")


def _async_config(name: str, region: str) -> dict[str, Any]:
    config: dict[str, Any] = _config(name, region).async_inference_config
    if not config:
        raise _refused("ValidationError", f"Endpoint {name} only takes synchronous invocations")
    return config


def _refused(code: str, message: str, status: int = 400) -> JsonRESTError:
    error = JsonRESTError(code, message)
    error.code = status
    return error


def _bounded(headers: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    value = float(headers.get(HEAD + name) or default)
    if not least <= value <= most:
        raise _refused("ValidationError", f"{name} must be from {least} to {most}")
    return value


def _joined(how: str, path: str, extension: str, name: str, unnamed: str) -> str:
    if not path:
        return ""
    head = path.rstrip("/") + ("" if how == "appended" or not extension else "/") + extension.strip("/")
    return f"{head}/{name or unnamed}" + (".out" if how == "ending" and name else "")


def _object(location: str) -> bytes:
    """Raises KeyError where there is none."""
    bucket, _, key = location.removeprefix("s3://").partition("/")
    found = s3_backends[ACCOUNT][PARTITION].buckets[bucket].keys[key]
    value: bytes = found.value
    return value


def _put(location: str, value: bytes, kind: str) -> None:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    s3_backends[ACCOUNT][PARTITION].put_object(bucket, key, value).set_metadata({"Content-Type": kind})


def _container(knobs: Knobs, body: bytes, kind: str, attributes: str, within_s: float) -> tuple[int, bytes, str]:
    """What the container answers: status, body, content type. One that cannot be reached is a 500 that says so."""
    headers = {"content-type": kind or "application/json", HEAD + "Custom-Attributes": attributes}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(knobs.container, body, headers, method="POST"), timeout=within_s
        ) as answer:
            return answer.status, answer.read(), answer.headers.get("content-type", "application/json")
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers.get("content-type", "text/plain")
    except (OSError, ValueError) as error:
        print(f"DOUBLE: no container at {knobs.container!r}: {error}", file=sys.stderr, flush=True)
        return 500, f"DOUBLE: no container at {knobs.container!r}".encode(), "text/plain"


def _message(call: Invocation, outcome: str, why: str, answer: bytes) -> dict[str, object]:
    message: dict[str, object] = {
        "awsRegion": call.region,
        "eventTime": _moment(call.ended_at),
        "receivedTime": _moment(call.taken_at),
        "invocationStatus": {"completed": "Completed", "expired": "Expired"}.get(outcome, "Failed"),
        "requestParameters": {
            "accept": call.accept or "*/*",
            "contentType": call.content_type,
            "endpointName": call.endpoint,
            **({"inputLocation": call.input_at} if call.input_at else {}),
        },
        "inferenceId": call.id,
        "eventVersion": "1.0",
        "eventSource": "aws:sagemaker",
        "eventName": "InferenceResult",
    }
    if outcome == "completed":
        message["responseParameters"] = {"contentType": "application/json", "outputLocation": call.output_at}
        if answer and len(answer) <= MESSAGE_BYTES:
            content = base64.b64encode(answer).decode()
            message["responseBody"] = {"content": content, "message": "", "encoding": "BASE64"}
    else:
        message["failureReason"] = why or "ClientError: the request expired in the queue"
        if call.failure_at and outcome == "failed":
            message["responseParameters"] = {"failureLocation": call.failure_at}
    return message


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(call: Invocation) -> dict[str, object]:
    return {
        "id": call.id,
        "endpoint": call.endpoint,
        "input_at": call.input_at,
        "output_at": call.output_at,
        "ttl_s": call.ttl_s,
        "timeout_s": call.timeout_s,
        "taken_at": call.taken_at,
        "begun_at": call.begun_at,
        "ended_at": call.ended_at,
        "outcome": call.outcome,
    }
