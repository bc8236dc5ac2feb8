"""A DOUBLE of Bedrock's batch jobs on moto's S3: `CreateModelInvocationJob` and its like, whose records are really run.

| what | as the service does it (source) |
|---|---|
| a member that is not in botocore's model or is missing; no input | `ValidationException` (botocore) |
| the same `clientRequestToken` again | the same job (botocore: an idempotency token) |
| a name that another job has | `ConflictException` (botocore) |
| states | Submitted, Validating, Scheduled, InProgress, and one of the last ones; Stopping, Stopped (botocore) |
| fewer records than the model's minimum | the job fails while it is validated (user guide; the words are made up) |
| output | `OUTPUT/JOB/INPUT.jsonl.out` and `OUTPUT/JOB/manifest.json.out`; records in any order (user guide) |
| a record that fails | `error` with `errorCode` and `errorMessage` in the place of `modelOutput` (user guide) |
| a record with `toolConfig` | fails with 400 (user guide) |

Each record goes to the double of Converse in this process, and so to a real server. Where that refuses, the record
fails with what it said.

Tests set all jobs of a role with `POST /double/batches/role`: `{"role": ARN}` and any of

| knob | what it makes happen |
|---|---|
| `step_s` | how long it is in each state before the last one |
| `least` | the model's minimum of records |
| `hold` | it stays in that state until this is changed |
| `ends` | its last state; what has not been run by then is not in its output: see `runs` |
| `runs` | the share of its records that are run |
| `fails` | the share of its records that fail |
| `drops` | the share of its records that are missing in the output |
| `lose_create_answers` | so many creations are done and answered with a 500 all the same |
| `seed` | of all these, and of the order of the output |

`/double/batches/record` gives all jobs: name, token, ARN, role, status, how many creations there were, records.
"""

import json
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote

from botocore.session import Session
from moto.s3.models import s3_backends

from tests.doubles.aws.shapes import faults

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

ACCOUNT, PARTITION = "123456789012", "aws"
SERVICE = Session().get_service_model("bedrock")
CONVERSE = Session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape
ONE = re.compile(r"^/model-invocation-job/(?:arn:[^/]+/)?([a-z0-9]{12})(/stop)?$")
STEPS = ("Submitted", "Validating", "Scheduled", "InProgress")
LAST = frozenset({"Completed", "PartiallyCompleted", "Failed", "Stopped", "Expired"})
RECORDS_AT_ONCE = 8
SERVER_S = 60.0


@dataclass(slots=True)
class Knobs:
    """What a test wants of the jobs of one role."""

    role: str
    step_s: float = 0.0
    least: int = 1
    hold: str = ""
    ends: str = ""
    runs: float = 1.0
    fails: float = 0.0
    drops: float = 0.0
    lose_create_answers: int = 0
    seed: int = 1


@dataclass(slots=True)
class BatchJob:
    """One job as it went. Moments are seconds since the epoch."""

    id: str
    asked: dict[str, Any]
    region: str
    submitted: float
    status: str = "Submitted"
    message: str = ""
    ended: float = 0.0
    counts: dict[str, int] = field(default_factory=Counter)

    @property
    def arn(self) -> str:
        """Its name among all."""
        return f"arn:aws:bedrock:{self.region}:{ACCOUNT}:model-invocation-job/{self.id}"


class RefusedError(Exception):
    """The service's error."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class Batches:
    """All jobs. Its methods come from the server's threads."""

    def __init__(self) -> None:
        self.url = ""
        self._jobs: dict[str, BatchJob] = {}
        self._creations: Counter[str] = Counter()
        self._knobs: dict[str, Knobs] = {}
        self._lock = threading.Lock()

    def control(self, path: str, given: Any) -> object:
        """What a test sets or asks. Raises KeyError for an address that there is not."""
        match path:
            case "role":
                known = self._knobs.get(given["role"])
                self._knobs[given["role"]] = Knobs(**{**(asdict(known) if known else {}), **given})
                return {}
            case "record":
                return [self._shown(job) for job in list(self._jobs.values())]
        raise KeyError(path)

    def takes(self, environ: "WSGIEnvironment") -> bool:
        """Whether this is one of the calls about batch jobs."""
        path: str = environ["PATH_INFO"]
        return path.startswith("/model-invocation-job")

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        try:
            operation, answer = self._answer(environ, body)
            shape = SERVICE.operation_model(operation).output_shape
            wrong = faults(answer, shape)
            assert not wrong, wrong  # what is sent parses under botocore's own model
            status, headers = "200 OK", [("content-type", "application/json")]
        except RefusedError as refused:
            status = f"{refused.status} {refused.code}"
            headers = [("content-type", "application/json"), ("x-amzn-errortype", refused.code)]
            answer = {"message": str(refused)}
        start_response(status, headers)
        return [json.dumps(answer).encode()]

    def _answer(self, environ: "WSGIEnvironment", body: bytes) -> tuple[str, dict[str, Any]]:
        method, path = environ["REQUEST_METHOD"], unquote(environ["PATH_INFO"])
        if path == "/model-invocation-job" and method == "POST":
            region = environ.get("HTTP_AUTHORIZATION", "").split("/")[2:3] or ["us-east-1"]
            return "CreateModelInvocationJob", self._create(json.loads(body), region[0])
        if path == "/model-invocation-jobs":
            part = parse_qs(environ.get("QUERY_STRING", "")).get("nameContains", [""])[0]
            found = [job for job in list(self._jobs.values()) if part in job.asked["jobName"]]
            return "ListModelInvocationJobs", {"invocationJobSummaries": [_described(job) for job in found]}
        found_one = ONE.match(path)
        job = self._jobs.get(found_one[1]) if found_one else None
        if found_one is None or job is None:
            raise RefusedError("ResourceNotFoundException", "there is no such job", 404)
        if not found_one[2]:
            return "GetModelInvocationJob", _described(job)
        with self._lock:
            if job.status in LAST:
                raise RefusedError("ConflictException", f"the job is {job.status}", 400)
            job.status = "Stopping"
        return "StopModelInvocationJob", {}

    def _create(self, asked: dict[str, Any], region: str) -> dict[str, Any]:
        wrong = faults(asked, SERVICE.operation_model("CreateModelInvocationJob").input_shape)
        if not re.fullmatch(r"arn:aws(-[^:]+)?:iam::([0-9]{12})?:role/.+", asked.get("roleArn", "")):
            wrong.append("roleArn: is no ARN of a role")
        if not 24 <= asked.get("timeoutDurationInHours", 24) <= 168:
            wrong.append("timeoutDurationInHours: must be from 24 to 168")
        if wrong:
            raise RefusedError("ValidationException", "; ".join(wrong[:5]))
        token = asked.get("clientRequestToken", "")
        knobs = self._of(asked["roleArn"])
        with self._lock:
            self._creations[token] += 1
            known = next(
                (job for job in self._jobs.values() if token and job.asked["clientRequestToken"] == token), None
            )
            if known is None and any(job.asked["jobName"] == asked["jobName"] for job in self._jobs.values()):
                raise RefusedError("ConflictException", f"there is a job {asked['jobName']}")
            if known is None:
                _object(asked["inputDataConfig"]["s3InputDataConfig"]["s3Uri"])
                known = BatchJob(f"{random.getrandbits(62):012x}"[:12], asked, region, time.time())
                self._jobs[known.id] = known
                threading.Thread(target=self._run, args=(known,), daemon=True).start()
            if knobs.lose_create_answers > 0:
                knobs.lose_create_answers -= 1
                raise RefusedError("InternalServerException", "done, and the answer is lost", 500)
        return {"jobArn": known.arn}

    def _of(self, role: str) -> Knobs:
        return self._knobs.setdefault(role, Knobs(role))

    def _run(self, job: BatchJob) -> None:
        role = job.asked["roleArn"]
        source = job.asked["inputDataConfig"]["s3InputDataConfig"]["s3Uri"]
        lines = [json.loads(line) for line in _object(source).splitlines() if line.strip()]
        job.counts["total"] = len(lines)
        for step in STEPS:
            if not self._goes_on(job, step):
                self._end(job, "Stopped", "")
                return
            if step == "Validating" and len(lines) < self._of(role).least:
                self._end(job, "Failed", f"The input has {len(lines)} records; the minimum is {self._of(role).least}")
                return
        knobs = self._of(role)
        draw = random.Random(knobs.seed)
        chosen = [line for line in lines if draw.random() < knobs.runs]
        fated = [(line, draw.random() < knobs.fails) for line in chosen]
        with ThreadPoolExecutor(RECORDS_AT_ONCE) as threads:
            done = list(threads.map(lambda pair: self._record(job, *pair), fated))
        draw.shuffle(done)
        kept = [line for line in done if draw.random() >= knobs.drops]
        job.counts["success"] = sum("modelOutput" in line for line in done)
        job.counts["error"] = len(done) - job.counts["success"]
        folder = job.asked["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"].rstrip("/") + f"/{job.id}"
        _put(f"{folder}/{source.rpartition('/')[2]}.out", b"".join(json.dumps(line).encode() + b"\n" for line in kept))
        manifest = {
            "totalRecordCount": len(lines),
            "processedRecordCount": len(done),
            "successRecordCount": job.counts["success"],
            "errorRecordCount": job.counts["error"],
        }
        _put(f"{folder}/manifest.json.out", json.dumps(manifest).encode())
        self._end(job, knobs.ends or ("PartiallyCompleted" if job.counts["error"] else "Completed"), "")

    def _goes_on(self, job: BatchJob, step: str) -> bool:
        """Let it be in this state for a while; False: somebody stops it."""
        with self._lock:
            if job.status == "Stopping":
                return False
            job.status = step
        until = time.monotonic() + self._of(job.asked["roleArn"]).step_s
        while time.monotonic() < until or self._of(job.asked["roleArn"]).hold == step:
            if job.status == "Stopping":
                return False
            time.sleep(0.02)
        return job.status != "Stopping"

    def _record(self, job: BatchJob, line: dict[str, Any], fails: bool) -> dict[str, Any]:
        asked = line["modelInput"]
        wrong = faults({**asked, "modelId": job.asked["modelId"]}, CONVERSE)
        error: tuple[int, str] | None = None
        if fails:
            error = 500, "the double was told to"
        elif "toolConfig" in asked:
            error = 400, "toolConfig is not supported in batch jobs"
        elif wrong:
            error = 400, "; ".join(wrong[:5])
        else:
            try:
                return {**line, "modelOutput": self._converse(job.asked["modelId"], asked)}
            except urllib.error.HTTPError as refused:
                error = refused.code, refused.read().decode("utf-8", "replace")[:500]
        return {**line, "error": {"errorCode": error[0], "errorMessage": error[1]}}

    def _converse(self, model: str, asked: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.url}/model/{quote(model, safe='')}/converse",
            json.dumps(asked).encode(),
            {"content-type": "application/json", "authorization": "AWS4-HMAC-SHA256 the double itself"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=SERVER_S) as answer:
            return json.load(answer)

    def _end(self, job: BatchJob, status: str, message: str) -> None:
        with self._lock:
            job.status, job.message, job.ended = status, message, time.time()

    def _shown(self, job: BatchJob) -> dict[str, Any]:
        token = job.asked.get("clientRequestToken", "")
        return {
            "arn": job.arn,
            "name": job.asked["jobName"],
            "token": token,
            "role": job.asked["roleArn"],
            "model": job.asked["modelId"],
            "status": job.status,
            "creations": self._creations[token],
            **{f"{name}_records": count for name, count in job.counts.items()},
        }


def _described(job: BatchJob) -> dict[str, Any]:
    counts = {
        "totalRecordCount": job.counts["total"],
        "processedRecordCount": job.counts["success"] + job.counts["error"],
        "successRecordCount": job.counts["success"],
        "errorRecordCount": job.counts["error"],
    }
    names = ("jobName", "modelId", "roleArn", "clientRequestToken", "inputDataConfig", "outputDataConfig")
    return {
        "jobArn": job.arn,
        "status": job.status,
        "submitTime": _moment(job.submitted),
        "modelInvocationType": job.asked.get("modelInvocationType", "InvokeModel"),
        **{name: job.asked[name] for name in names if name in job.asked},
        **({"message": job.message} if job.message else {}),
        **({"endTime": _moment(job.ended), **counts} if job.ended else {}),
    }


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _object(location: str) -> bytes:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    try:
        value: bytes = s3_backends[ACCOUNT][PARTITION].buckets[bucket].keys[key].value
    except KeyError:
        raise RefusedError("ValidationException", f"there is no object {location}") from None
    return value


def _put(location: str, value: bytes) -> None:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    s3_backends[ACCOUNT][PARTITION].put_object(bucket, key, value)
