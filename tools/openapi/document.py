"""The document as a whole: each address with what it takes and gives."""

from collections.abc import Mapping
from typing import Any

from gateway import query, render
from gateway.asked import LONGEST_KEY
from gateway.endpoints import batches, files, jobs, responses, videos
from gateway.parsers import PARSERS
from router.files import Purpose
from tools.openapi import answers, requests
from tools.openapi.shapes import ULID, Schema, a_choice, an_integer, ref

JSON, EVENTS, FORM = "application/json", "text/event-stream", "multipart/form-data"
TEXT = {"type": "string"}
BINARY: Schema = {}

Operation = dict[str, Any]


def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pointsman",
            "version": "v1",
            "summary": "OpenAI's API, in which every model call is a job that cannot be lost.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": requests.SCHEMAS | answers.SCHEMAS,
            "responses": {"Error": _error()},
            "headers": HEADERS,
        },
    }


def _paths() -> dict[str, dict[str, Operation]]:
    return {
        **_chat(),
        **_responses(),
        **_media(),
        **_jobs(),
        **_models(),
        **_files(),
        **_batches(),
        **_operators(),
    }


def _chat() -> dict[str, dict[str, Operation]]:
    """Chat completions."""
    return {
        "/v1/chat/completions": {
            "post": _makes_job(
                "createChatCompletion",
                "A chat completion: waits for it, streams it, or leaves with the job.",
                _json("ChatRequest"),
                _ok(_json("ChatCompletion") | _events("ChatEvent"), links=_to_id("getChatCompletion")),
            )
        },
        "/v1/chat/completions/{id}": {
            "get": _reads(
                "getChatCompletion",
                "The finished completion, else the job.",
                JOB_ID,
                _ok(_json("ChatCompletion")),
                later=True,
            )
        },
    }


def _responses() -> dict[str, dict[str, Operation]]:
    """The Responses API."""
    return {
        "/v1/responses": {
            "post": _makes_job(
                "createResponse",
                "A Response: waits for it, streams it, or with background comes back for it.",
                _json("ResponseRequest"),
                _ok(_json("Response") | _events("ResponseEvent"), links=_to_id(*OF_RESPONSES)),
            )
        },
        "/v1/responses/{id}": {
            "get": _reads(
                "getResponse",
                "The Response as it is, or its events.",
                JOB_ID,
                _ok(_json("Response") | _events("ResponseEvent")),
                _query("stream", a_choice(("true", "false"))),
                _query("starting_after", an_integer(0, responses.LARGEST_NUMBER), "Only events after this number."),
            ),
            "delete": _reads("deleteResponse", "Forgets one that has ended.", JOB_ID, _ok(_json("DeletedResponse"))),
        },
        "/v1/responses/{id}/cancel": {
            "post": _reads("cancelResponse", "Ends it; safe to repeat.", JOB_ID, _ok(_json("Response")))
        },
        "/v1/responses/{id}/input_items": {
            "get": _reads(
                "listInputItems",
                "What its model reads.",
                JOB_ID,
                _ok(_json("InputItemPage")),
                _limit(responses.LARGEST_PAGE, responses.PAGE),
                ORDER,
                _query("after", TEXT, "The last item's id of the page before."),
            )
        },
    }


def _media() -> dict[str, dict[str, Operation]]:
    """Whose answer is no text, or comes whole."""
    return {
        "/v1/embeddings": {
            "post": _makes_job("createEmbeddings", "Embeddings.", _json("EmbeddingsRequest"), _ok(_json("Embeddings")))
        },
        "/v1/images/generations": {
            "post": _makes_job("createImages", "Images.", _json("ImagesRequest"), _ok(_json("Images")))
        },
        "/v1/videos": {
            "post": _makes_job(
                "createVideo",
                "A video, as it is queued: nobody waits for it.",
                _json("VideoRequest") | {FORM: {"schema": ref("VideoRequest")}},
                _ok(_json("Video")),
            ),
            "get": _operation(
                "listVideos",
                "Videos, the newest first.",
                {"200": _ok(_json("VideoPage"))},
                _limit(videos.LARGEST_PAGE, videos.PAGE),
                ORDER,
                _after(JOB_ID),
            ),
        },
        "/v1/videos/{id}": {
            "get": _reads("getVideo", "The video as it is now.", JOB_ID, _ok(_json("Video"))),
            "delete": _reads("deleteVideo", "Forgets one that has ended.", JOB_ID, _ok(_json("DeletedVideo"))),
        },
        "/v1/videos/{id}/content": {
            "get": _reads(
                "getVideoContent",
                "What was made; 409 until it is there.",
                JOB_ID,
                _ok({"*/*": {"schema": BINARY}}),
                _query("variant", a_choice(("video",))),
            )
        },
        "/v1/audio/speech": {
            "post": _makes_job("createSpeech", "Speech.", _json("SpeechRequest"), _ok({"*/*": {"schema": BINARY}}))
        },
        "/v1/audio/transcriptions": {
            "post": _makes_job(
                "createTranscription",
                "What is said in a recording.",
                {FORM: {"schema": ref("TranscriptionForm")}},
                _ok(_json("Transcription") | {"text/plain": {"schema": TEXT}}),
            )
        },
    }


def _jobs() -> dict[str, dict[str, Operation]]:
    """What every call becomes."""
    return {
        "/v1/jobs": {
            "get": _operation(
                "listJobs",
                "Jobs, the newest first.",
                {"200": _ok(_json("JobPage"))},
                _query("status", a_choice(dict.fromkeys(render.STATES.values()))),
                _limit(jobs.LARGEST_PAGE, jobs.PAGE),
                _after(JOB_ID),
            )
        },
        "/v1/jobs/{id}": {
            "get": _reads(
                "getJob",
                "The job, with its result once it is there.",
                JOB_ID,
                _ok(_json("Job")),
                _query("wait", an_integer(0, jobs.LONGEST_WAIT_S), "Until it has ended, or so many seconds."),
            ),
            "delete": _reads("deleteJob", "Forgets one that has ended.", JOB_ID, _ok(_json("DeletedJob"))),
        },
        "/v1/jobs/{id}/content": {
            "get": _reads(
                "getJobContent", "What it made, by itself.", JOB_ID, _ok({"*/*": {"schema": BINARY}}), later=True
            )
        },
        "/v1/jobs/{id}/cancel": {"post": _reads("cancelJob", "Ends it; safe to repeat.", JOB_ID, _ok(_json("Job")))},
        "/v1/jobs/{id}/events": {
            "get": _reads("followJob", "What happens to it.", JOB_ID, _ok(_events("JobEvent")), *RESUMED)
        },
        "/v1/jobs/{id}/outcome": {
            "post": _reads(
                "createOutcome",
                "How well it was answered, for the router to learn from. The last one counts.",
                JOB_ID,
                _ok(_json("Outcome")),
                body=_json("OutcomeRequest"),
            )
        },
    }


def _models() -> dict[str, dict[str, Operation]]:
    """What may be asked."""
    return {
        "/v1/models": {"get": _operation("listModels", "What may stand in model.", {"200": _ok(_json("ModelPage"))})},
        "/v1/models/{id}": {"get": _reads("getModel", "One of them.", {**TEXT, "minLength": 1}, _ok(_json("Model")))},
    }


def _files() -> dict[str, dict[str, Operation]]:
    """What clients upload, and what batches make."""
    return {
        "/v1/files": {
            "post": _operation(
                "createFile",
                "Stores a file.",
                {"200": _ok(_json("File"), links=_to_id(*OF_FILES) | _BATCH_OF_FILE)},
                body={FORM: {"schema": ref("FileForm")}},
            ),
            "get": _operation(
                "listFiles",
                "Files, the newest first unless said otherwise.",
                {"200": _ok(_json("FilePage"))},
                _query("purpose", a_choice(Purpose)),
                _limit(files.LARGEST_PAGE, files.LARGEST_PAGE),
                ORDER,
                _after(FILE_ID),
            ),
        },
        "/v1/files/{id}": {
            "get": _reads("getFile", "What is known of it.", FILE_ID, _ok(_json("File"))),
            "delete": _reads("deleteFile", "Forgets it, and its bytes.", FILE_ID, _ok(_json("DeletedFile"))),
        },
        "/v1/files/{id}/content": {
            "get": _reads(
                "getFileContent", "Its bytes.", FILE_ID, _ok({"application/octet-stream": {"schema": BINARY}})
            )
        },
        "/v1/files/{id}/routes": {
            "get": _reads(
                "getFileRoutes",
                "Where the request on each of its lines would go; none is made a job.",
                FILE_ID,
                _ok({files.JSONL: {"schema": TEXT}}, "A JSON object a line."),
                _query("endpoint", {**a_choice(PARSERS), "default": files.CHAT}, "Of all requests."),
            )
        },
    }


def _batches() -> dict[str, dict[str, Operation]]:
    """Many requests in one file."""
    return {
        "/v1/batches": {
            "post": _operation(
                "createBatch",
                "A batch of the requests in a file.",
                {"200": _ok(_json("Batch"), links=_to_id(*OF_BATCHES))},
                IDEMPOTENCY_KEY,
                body=_json("BatchRequest"),
            ),
            "get": _operation(
                "listBatches",
                "Batches, the newest first.",
                {"200": _ok(_json("BatchPage"))},
                _limit(batches.LARGEST_PAGE, batches.PAGE),
                _after(BATCH_ID),
            ),
        },
        "/v1/batches/{id}": {"get": _reads("getBatch", "The batch as it is.", BATCH_ID, _ok(_json("Batch")))},
        "/v1/batches/{id}/cancel": {
            "post": _reads("cancelBatch", "Ends it; what is done is kept.", BATCH_ID, _ok(_json("Batch")))
        },
        "/v1/batches/{id}/events": {
            "get": _reads("followBatch", "What happens to it.", BATCH_ID, _ok(_events("BatchEvent")), *RESUMED)
        },
    }


def _operators() -> dict[str, dict[str, Operation]]:
    """The operator's, without a key."""
    return {
        "/healthz": {"get": _open("health", "Whether the process answers.", {"200": _ok(_json("Health"))})},
        "/readyz": {
            "get": _open(
                "readiness",
                "Whether log and board answer.",
                {"200": _ok(_json("Readiness")), "503": _ok(_json("Readiness"), "Not ready, and why.")},
            )
        },
        "/metrics": {
            "get": _open("metrics", "In Prometheus' text format.", {"200": _ok({"text/plain": {"schema": TEXT}})})
        },
        "/openapi.json": {
            "get": _open("openapi", "This document.", {"200": _ok({JSON: {"schema": {"type": "object"}}})})
        },
    }


# What the addresses have in common

OF_JOBS = ("getJob", "cancelJob", "deleteJob", "getJobContent", "followJob", "createOutcome")
OF_RESPONSES = ("getResponse", "cancelResponse", "deleteResponse", "listInputItems")
OF_FILES = ("getFile", "getFileContent", "getFileRoutes", "deleteFile")
OF_BATCHES = ("getBatch", "cancelBatch", "followBatch")

JOB_ID = {**TEXT, "pattern": f"^(job_|chatcmpl-|resp_|video_)?{ULID}$"}
FILE_ID = {**TEXT, "pattern": f"^({render.FILE})?{ULID}$"}
BATCH_ID = {**TEXT, "pattern": f"^({render.BATCH})?{ULID}$"}

HEADERS: Mapping[str, Schema] = {
    "x-request-id": {"required": True, "schema": TEXT, "description": "The caller's own, or one that was made."},
    "x-should-retry": {"required": True, "schema": a_choice(("true", "false"))},
    "retry-after": {"schema": an_integer(1, 10**9), "description": "Seconds."},
    "retry-after-ms": {"schema": an_integer(1, 10**12), "description": "Milliseconds."},
    "location": {"required": True, "schema": TEXT, "description": "The job's address."},
    **{
        f"x-ratelimit-{what}-{of}": {"schema": TEXT, "description": "Of the tightest limit, where there is one."}
        for of in ("requests", "tokens")
        for what in ("limit", "remaining", "reset")
    },
    "x-pointsman-lane": {"schema": TEXT},
    "x-pointsman-model": {"schema": TEXT, "description": "The deployment's name."},
    "x-pointsman-cost-usd": {"schema": TEXT, "description": "Absent where the price is unknown."},
}
OF_LIMITS = tuple(name for name in HEADERS if name.startswith("x-ratelimit-"))
OF_ANSWERS = (*OF_LIMITS, "x-pointsman-lane", "x-pointsman-model", "x-pointsman-cost-usd")


def _query(name: str, schema: Schema, description: str = "") -> Schema:
    about = {"description": description} if description else {}
    return {"name": name, "in": "query", "schema": schema, **about}


def _limit(most: int, usual: int) -> Schema:
    return _query("limit", {**an_integer(1, most), "default": usual})


def _after(of: Schema) -> Schema:
    pattern = of["pattern"].removeprefix("^").removesuffix("$")
    return _query("after", {**TEXT, "pattern": f"^({pattern})?$"}, "The last id of the page before.")


ORDER = _query("order", {**a_choice(("desc", "asc")), "default": "desc"})
RESUMED = (
    _query("starting_after", an_integer(0, query.LARGEST_NUMBER), "Only events after this number."),
    {"name": "Last-Event-ID", "in": "header", "schema": TEXT, "description": "The same; it wins."},
)
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {**TEXT, "maxLength": LONGEST_KEY, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    "description": "The same key and body: the same job or batch, and no new work.",
}
OF_MAKERS = (
    IDEMPOTENCY_KEY,
    {"name": "Prefer", "in": "header", "schema": TEXT, "description": 'respond-async: as "async": true.'},
    {"name": "traceparent", "in": "header", "schema": TEXT, "description": "W3C Trace Context; handed on."},
)


def _json(name: str) -> Schema:
    return {JSON: {"schema": ref(name)}}


def _events(name: str) -> Schema:
    """The schema is that of each event."""
    return {EVENTS: {"schema": ref(name)}}


def _headers(*names: str) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("x-request-id", *names)}


def _ok(
    content: Schema, description: str = "Done.", *, headers: tuple[str, ...] = (), links: Schema | None = None
) -> Schema:
    answer = {"description": description, "headers": _headers(*headers), "content": content}
    return {**answer, "links": links} if links else answer


def _to_id(*operations: str) -> Schema:
    return {name: {"operationId": name, "parameters": {"id": "$response.body#/id"}} for name in operations}


_BATCH_OF_FILE = {
    "createBatch": {
        "operationId": "createBatch",
        "requestBody": {
            "input_file_id": "$response.body#/id",
            "endpoint": next(iter(PARSERS)),
            "completion_window": "24h",
        },
    }
}


def _error() -> Schema:
    return {
        "description": "An error in OpenAI's shape. Its message says what to do, its code what it is.",
        "headers": _headers("x-should-retry", "retry-after", "retry-after-ms", *OF_LIMITS),
        "content": _json("Error"),
    }


def _operation(
    name: str, summary: str, answered: Schema, *parameters: Schema, body: Schema | None = None, errors: bool = True
) -> Operation:
    operation: Operation = {"operationId": name, "summary": summary}
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    refused = {status: {"$ref": "#/components/responses/Error"} for status in ("4XX", "5XX")} if errors else {}
    return {**operation, "responses": {**answered, **refused}}


def _open(name: str, summary: str, answered: Schema) -> Operation:
    """For the operator: no key."""
    return {**_operation(name, summary, answered, errors=False), "security": []}


def _makes_job(name: str, summary: str, body: Schema, done: Schema) -> Operation:
    done = {**done, "headers": _headers(*OF_ANSWERS)}
    links = _to_id(*OF_JOBS, *(("getChatCompletion",) if name == "createChatCompletion" else ()))
    left = _ok(
        _json("Job"), "The job, which the log has.", headers=("location", "retry-after", *OF_LIMITS), links=links
    )
    return _operation(name, summary, {"200": done, "202": left}, *OF_MAKERS, body=body)


def _reads(
    name: str,
    summary: str,
    id: Schema,
    done: Schema,
    *parameters: Schema,
    later: bool = False,
    body: Schema | None = None,
) -> Operation:
    """`later`: the job with 202 until it has ended."""
    at = {"name": "id", "in": "path", "required": True, "schema": id}
    answered = {"200": done}
    if later:
        answered["202"] = _ok(_json("Job"), "Not yet: the job.", headers=("retry-after",))
    return _operation(name, summary, answered, at, *parameters, body=body)
