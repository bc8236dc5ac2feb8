"""What the addresses give, as `gateway/render.py` and the model servers make it."""

from gateway import render
from policies.pricing import Basis
from router.batches import BatchState
from router.files import Purpose
from router.job import JobClass
from router.response_object import STATUSES
from tools.openapi.shapes import (
    AN_OBJECT,
    FLAG,
    ULID,
    Schema,
    a_choice,
    a_list,
    an_object,
    any_of,
    maybe,
    ref,
)

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
DOLLARS: Schema = {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$", "description": "Exact dollars, as text."}
MOMENT: Schema = {"type": "integer", "description": "Seconds since the epoch."}


def _id(prefix: str) -> Schema:
    return {"type": "string", "pattern": f"^{prefix}{ULID}$"}


def _page(of: str) -> Schema:
    return an_object(
        {
            "object": {"const": "list"},
            "data": a_list(ref(of)),
            "first_id": maybe(TEXT),
            "last_id": maybe(TEXT),
            "has_more": FLAG,
        }
    )


def _deleted(kind: str, prefix: str) -> Schema:
    return an_object({"id": _id(prefix), "object": {"const": kind}, "deleted": {"const": True}})


ERROR = an_object({"error": an_object({"message": TEXT, "type": TEXT, "param": maybe(TEXT), "code": maybe(TEXT)})})
FAILURE = an_object({"message": TEXT, "type": TEXT, "code": maybe(TEXT)}, {"param": TEXT})
USAGE = an_object({"basis": a_choice(Basis)}, description="What was used, and how that is known.")
CHARGE = an_object(
    {
        "attempt": COUNT,
        "meter": TEXT,
        "quantity": NUMBER,
        "usd_per_million": maybe(DOLLARS),
        "usd": maybe(DOLLARS),
        "basis": a_choice(Basis),
        "outcome": TEXT,
    }
)
JOB = an_object(
    {
        "id": _id(render.JOB),
        "object": {"const": "job"},
        "status": a_choice(dict.fromkeys(render.STATES.values())),
        "endpoint": TEXT,
        "created_at": MOMENT,
        "expires_at": MOMENT,
        "started_at": maybe(MOMENT),
        "finished_at": maybe(MOMENT),
        "model": TEXT,
        "metadata": ref("Metadata"),
        "usage": maybe(USAGE),
        "error": maybe(FAILURE),
        "pointsman": an_object(
            {
                "lane": TEXT,
                "deployment": TEXT,
                "class": a_choice(JobClass),
                "reasons": a_list(TEXT),
                "score": maybe(NUMBER),
                "threshold": maybe(NUMBER),
                "rule": maybe(TEXT),
                "queue": a_choice(("main", "overflow")),
                "estimate_usd": maybe(DOLLARS),
                "starts_in_s": maybe(NUMBER),
                "warming": FLAG,
                "waited_s": maybe(NUMBER),
                "attempts": COUNT,
                "microbatch": maybe(TEXT),
                "usd": maybe(DOLLARS),
                "charges": a_list(ref("Charge")),
            },
            {
                "batch": _id(render.BATCH),
                "custom_id": TEXT,
                "endpoint_s": NUMBER,
                "endpoint_waited_s": maybe(NUMBER),
                "endpoint_running_s": maybe(NUMBER),
                "machine_usd": DOLLARS,
                "wake_estimate_usd": DOLLARS,
                "wake_usd": DOLLARS,
            },
        ),
        "result": maybe({**AN_OBJECT, "description": "What its endpoint gives, or a job.content that says where."}),
    },
)
COMPLETION = an_object(
    {
        "id": _id("chatcmpl-"),
        "object": {"const": "chat.completion"},
        "created": MOMENT,
        "model": TEXT,
        "choices": a_list(
            an_object({"index": COUNT, "message": an_object({"role": TEXT}, {"content": TEXT}), "finish_reason": TEXT}),
            least=1,
        ),
        "usage": an_object({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT}),
    }
)
_READ_AND_MADE = {"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT}
VIDEO = an_object(
    {
        "id": _id(render.VIDEO),
        "object": {"const": "video"},
        "created_at": MOMENT,
        "completed_at": maybe(MOMENT),
        "expires_at": maybe(MOMENT),
        "status": a_choice(("queued", "in_progress", "completed", "failed")),
        "progress": COUNT,
        "model": TEXT,
        "prompt": maybe(TEXT),
        "seconds": TEXT,
        "size": maybe(TEXT),
        "remixed_from_video_id": {"type": "null"},
        "error": maybe(an_object({"code": maybe(TEXT), "message": maybe(TEXT)})),
    }
)
RESPONSE = an_object(
    {
        "id": _id("resp_"),
        "object": {"const": "response"},
        "created_at": MOMENT,
        "completed_at": maybe(MOMENT),
        "status": a_choice([*dict.fromkeys(STATUSES.values()), "incomplete"]),
        "error": maybe(an_object({"code": TEXT, "message": TEXT})),
        "incomplete_details": maybe(an_object({"reason": TEXT})),
        "model": TEXT,
        "output": a_list(an_object({"id": TEXT, "type": a_choice(("message", "function_call", "reasoning"))})),
        "usage": maybe(an_object({**_READ_AND_MADE})),
        "metadata": ref("Metadata"),
        "background": FLAG,
        "store": FLAG,
        "previous_response_id": maybe(TEXT),
        "parallel_tool_calls": FLAG,
        "tools": a_list(AN_OBJECT),
        "text": AN_OBJECT,
    }
)
OUTCOME = an_object(
    {"id": _id(render.JOB), "object": {"const": "job.outcome"}, "score": NUMBER, "kept": FLAG}, open=False
)
INPUT_ITEM = an_object({"id": TEXT, "type": TEXT})
EMBEDDINGS = an_object(
    {
        "object": {"const": "list"},
        "data": a_list(
            an_object({"object": {"const": "embedding"}, "index": COUNT, "embedding": any_of(a_list(NUMBER), TEXT)})
        ),
        "model": TEXT,
        "usage": an_object({"prompt_tokens": COUNT, "total_tokens": COUNT}),
    }
)
IMAGES = an_object({"data": a_list(an_object(maybe_there={"b64_json": TEXT, "url": TEXT}))}, {"created": WHOLE})
TRANSCRIPTION = an_object({"text": TEXT})
FILE = an_object(
    {
        "id": _id(render.FILE),
        "object": {"const": "file"},
        "bytes": COUNT,
        "created_at": MOMENT,
        "expires_at": MOMENT,
        "filename": TEXT,
        "purpose": a_choice(Purpose),
        "status": {"const": "processed"},
        "status_details": {"type": "null"},
    }
)
BATCH_ERROR = an_object({"code": TEXT, "message": TEXT, "line": maybe(COUNT), "param": maybe(TEXT)})
BATCH = an_object(
    {
        "id": _id(render.BATCH),
        "object": {"const": "batch"},
        "endpoint": TEXT,
        "status": a_choice(BatchState),
        "input_file_id": _id(render.FILE),
        "output_file_id": maybe(_id(render.FILE)),
        "error_file_id": maybe(_id(render.FILE)),
        "errors": maybe(an_object({"object": {"const": "list"}, "data": a_list(BATCH_ERROR)})),
        "completion_window": TEXT,
        "created_at": MOMENT,
        "expires_at": MOMENT,
        **{f"{state}_at": maybe(MOMENT) for state in BatchState if state is not BatchState.VALIDATING},
        "request_counts": an_object({"total": COUNT, "completed": COUNT, "failed": COUNT}),
        "metadata": ref("Metadata"),
        "usage": an_object({**_READ_AND_MADE, "input_tokens_details": AN_OBJECT, "output_tokens_details": AN_OBJECT}),
        "pointsman": an_object(
            {
                "usd": maybe(DOLLARS),
                "estimate_usd": maybe(DOLLARS),
                "items_per_minute": maybe(NUMBER),
                "retries": COUNT,
                "cancelled": COUNT,
                "expired": COUNT,
            },
            open=False,
        ),
    },
    open=False,
)


def _event(data: Schema, *names: str) -> Schema:
    """A server-sent event: its fields, of which `data` is JSON."""
    named = {"event": a_choice(names)} if names else {}
    return an_object({**named, "data": _json(data)})


def _json(schema: Schema) -> Schema:
    return {**TEXT, "contentMediaType": "application/json", "contentSchema": schema}


_NUMBERED = an_object({"type": TEXT, "sequence_number": COUNT})
_ENDS = [state for state in render.STATES.values() if state not in ("queued", "in_progress")]
CHAT_EVENT = an_object(
    {"data": any_of({"const": "[DONE]"}, _json(AN_OBJECT))}, description="A chunk, or an error; at last [DONE]."
)
RESPONSE_EVENT = {**_event(_NUMBERED), "description": "An event of OpenAI's Responses API."}
JOB_EVENT = _event(
    any_of(_NUMBERED, ref("Error")),
    *(f"job.{name}" for name in ("queued", "in_progress", "chunk", *dict.fromkeys(_ENDS))),
    "error",
)
BATCH_EVENT = _event(
    any_of(_NUMBERED, ref("Error")), *(f"batch.{state}" for state in (*BatchState, "progress")), "error"
)
MODEL = an_object({"id": TEXT, "object": {"const": "model"}, "created": WHOLE, "owned_by": TEXT})

SCHEMAS = {
    "Error": ERROR,
    "Charge": CHARGE,
    "Job": JOB,
    "JobPage": _page("Job"),
    "Outcome": OUTCOME,
    "DeletedJob": _deleted("job.deleted", render.JOB),
    "ChatCompletion": COMPLETION,
    "Response": RESPONSE,
    "Video": VIDEO,
    "DeletedVideo": _deleted("video.deleted", render.VIDEO),
    "InputItem": INPUT_ITEM,
    "InputItemPage": _page("InputItem"),
    "DeletedResponse": _deleted("response", "resp_"),
    "Embeddings": EMBEDDINGS,
    "Images": IMAGES,
    "Transcription": TRANSCRIPTION,
    "File": FILE,
    "FilePage": _page("File"),
    "DeletedFile": _deleted("file", render.FILE),
    "Batch": BATCH,
    "VideoPage": _page("Video"),
    "BatchPage": _page("Batch"),
    "ChatEvent": CHAT_EVENT,
    "ResponseEvent": RESPONSE_EVENT,
    "JobEvent": JOB_EVENT,
    "BatchEvent": BATCH_EVENT,
    "Model": MODEL,
    "ModelPage": an_object({"object": {"const": "list"}, "data": a_list(ref("Model"))}),
    "Health": an_object({"status": {"const": "ok"}}, open=False),
    "Readiness": an_object({"ready": FLAG, "faults": {**AN_OBJECT, "additionalProperties": TEXT}}, open=False),
}
