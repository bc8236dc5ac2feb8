"""What each endpoint takes. Bounds are those of the parsers; a test tries every one of them on both sides."""

from collections.abc import Mapping
from types import MappingProxyType

from gateway import asked, openai, openai_media, openai_responses, upload
from gateway.endpoints import batches, files
from gateway.fields import MAX_NAME
from gateway.openai import MAX_FILE_ID
from gateway.parsers import PARSERS
from router.responses import ALLOWED_TOOLS, REFERENCE
from tools.openapi.shapes import (
    AN_OBJECT,
    FLAG,
    NOTHING,
    Schema,
    a_choice,
    a_list,
    a_number,
    a_text,
    an_integer,
    an_object,
    any_of,
    maybe,
    ref,
)

DETAILS = a_choice(("auto", "low", "high", "original"))
SOUNDS = a_choice(("wav", "mp3", "flac", "ogg"))

METADATA = {
    **AN_OBJECT,
    "maxProperties": asked.METADATA_PAIRS,
    "propertyNames": {"maxLength": asked.METADATA_KEY},
    "additionalProperties": a_text(asked.METADATA_VALUE, least=0),
}
WISHES = an_object(
    maybe_there={
        "deadline_s": a_number(1, asked.MAX_SECONDS, description="Seconds until the job must be done."),
        "result_ttl_s": a_number(1, asked.MAX_SECONDS, description="Seconds that the result is kept."),
        "max_usd": any_of(
            {"type": "number", "exclusiveMinimum": 0, "maximum": asked.MAX_USD},
            {"type": "string", "pattern": f"^{asked.DOLLARS}$"},
            description='Dollars, best as text such as "0.05"; at most 12 decimals.',
        ),
        "webhook_url": a_text(asked.MAX_URL, description="An https URL that is told of the job's end."),
    },
    open=False,
    description="Limits of this one job.",
)
OF_JOBS = {  # what every request for a job may say
    "async": {**FLAG, "description": "Leave with the job (202) instead of waiting for its answer."},
    "store": {**FLAG, "description": "The job goes on when its waiting caller leaves."},
    "service_tier": {**a_choice(asked.CLASSES), "description": "How urgent it is."},
    "metadata": ref("Metadata"),
    "pointsman": ref("Wishes"),
}
MODEL = a_text(MAX_NAME, description="auto, auto:light, auto:heavy, a deployment's name or an alias of the tenant.")

# Chat


def _either(
    name: str, schema: Schema, required: Mapping[str, Schema] = MappingProxyType({}), **fields: Schema
) -> list[Schema]:
    """A part with its content as this field, or with the id of an uploaded file."""
    return [
        an_object({**required, name: schema}, {**fields, "file_id": NOTHING}),
        an_object(
            {**required, "file_id": a_text(MAX_FILE_ID, description="Of an uploaded file.")}, {**fields, name: NOTHING}
        ),
    ]


_URL = a_text(description="A data URL that is what it claims to be, or an https URL of a public host.")
_IMAGE_URL = a_text(description="A data URL of an image.", pattern="^data:image/")
_CHAT_TEXTS = [
    an_object({"type": {"const": "text"}, "text": {"type": "string"}}),
    an_object({"type": {"const": "refusal"}, "refusal": {"type": "string"}}),
]
_CHAT_MEDIA = [
    an_object({"type": {"const": "image_url"}, "image_url": an_object({"url": _URL}, {"detail": DETAILS})}),
    an_object({"type": {"const": "input_audio"}, "input_audio": an_object({"data": a_text(), "format": SOUNDS})}),
    an_object({"type": {"const": "video_url"}, "video_url": an_object({"url": _URL})}),
    an_object({"type": {"const": "file"}, "file": any_of(*_either("file_data", a_text()))}),
]
_CALLED = an_object({"name": a_text(MAX_NAME), "arguments": {"type": "string"}})
_NO_FUNCTION = {"not": {"const": "function"}}
_TOOL_CALLS = a_list(
    any_of(
        {
            "type": "object",
            "properties": {"id": a_text(), "type": {"const": "function"}, "function": _CALLED},
            "required": ["id", "function"],
        },
        an_object({"id": a_text(), "type": _NO_FUNCTION}),
    )
)
_CALLS = {"tool_calls": maybe(_TOOL_CALLS)}


def _content(*parts: Schema) -> Schema:
    return any_of({"type": "string"}, a_list(any_of(*parts), least=1))


def _message(*roles: str, content: Schema, must_speak: bool = True, **more: Schema) -> Schema:
    said = {"content": content} if must_speak else {}
    shape = an_object({"role": a_choice(roles), **said, **more}, {} if must_speak else {"content": content})
    return {**shape, "properties": {**shape["properties"], **_CALLS}}


CHAT_MESSAGE = any_of(
    _message("developer", "system", content=_content(*_CHAT_TEXTS)),
    _message("user", content=_content(*_CHAT_TEXTS, *_CHAT_MEDIA)),
    _message("tool", content=_content(*_CHAT_TEXTS, *_CHAT_MEDIA), tool_call_id=a_text()),
    _message("assistant", "function", content=_content(*_CHAT_TEXTS), must_speak=False),
)
_CHAT_TOOL = any_of(
    an_object(
        {"type": {"const": "function"}, "function": an_object({"name": a_text(MAX_NAME)}, {"parameters": AN_OBJECT})}
    ),
    an_object({"type": {**a_text(), **_NO_FUNCTION}}),
)
CHAT = an_object(
    {"model": MODEL, "messages": a_list(ref("ChatMessage"), least=1)},
    {
        **OF_JOBS,
        "stream": {**FLAG, "description": "Not together with async."},
        "stream_options": an_object(maybe_there={"include_usage": FLAG}, description="Only together with stream."),
        "max_tokens": an_integer(1, openai.MAX_TOKENS),
        "max_completion_tokens": an_integer(1, openai.MAX_TOKENS),
        "n": an_integer(1, openai.MAX_CHOICES),
        "temperature": a_number(0, 2),
        "top_p": a_number(0, 1),
        "presence_penalty": a_number(-2, 2),
        "frequency_penalty": a_number(-2, 2),
        "seed": an_integer(-(2**63), 2**63 - 1),
        "logprobs": FLAG,
        "top_logprobs": an_integer(0, 20),
        "parallel_tool_calls": FLAG,
        "logit_bias": {**AN_OBJECT, "additionalProperties": {"type": "number"}},
        "stop": any_of({"type": "string"}, a_list({"type": "string"}, most=openai.MAX_STOPS)),
        "response_format": any_of(
            an_object({"type": a_choice(each for each in openai.FORMATS if each != "json_schema")}),
            an_object({"type": {"const": "json_schema"}, "json_schema": AN_OBJECT}),
        ),
        "tools": a_list(_CHAT_TOOL, least=1, most=openai.MAX_TOOLS),
        "tool_choice": any_of(a_choice(("none", "auto", "required")), AN_OBJECT, description="It needs tools."),
    },
    description="All other fields go to the model server as they came.",
)

# Responses

_ID = a_text(MAX_NAME)
_TEXTS = [
    an_object({"type": a_choice(("input_text", "output_text", "text")), "text": {"type": "string"}}),
    an_object({"type": {"const": "refusal"}, "refusal": {"type": "string"}}),
]
_MEDIA = [
    *_either("image_url", _URL, {"type": {"const": "input_image"}}, detail=DETAILS),
    *_either("file_data", a_text(), {"type": {"const": "input_file"}}, filename=a_text(MAX_NAME), file_url=NOTHING),
    an_object({"type": {"const": "input_audio"}, "input_audio": an_object({"data": a_text(), "format": SOUNDS})}),
]


def _item(kind: Schema | None, required: Schema) -> Schema:
    named = {"type": kind} if kind else {}
    shape = an_object({**named, **required}, {"id": _ID, "status": _ID})
    return shape if kind else {**shape, "properties": {**shape["properties"], "type": maybe({"const": "message"})}}


RESPONSE_ITEM = any_of(
    _item(None, {"role": {"const": "user"}, "content": _content(*_TEXTS, *_MEDIA)}),
    _item(None, {"role": a_choice(("assistant", "system", "developer")), "content": _content(*_TEXTS)}),
    _item({"const": "function_call"}, {"call_id": _ID, "name": _ID, "arguments": {"type": "string"}}),
    _item({"const": "function_call_output"}, {"call_id": _ID, "output": _content(*_TEXTS, *_MEDIA)}),
    _item({"const": "reasoning"}, {}),
    an_object({"type": {"const": REFERENCE}, "id": _ID}),
)
_RESPONSE_TOOL = an_object(
    {"type": {"const": "function"}, "name": a_text(MAX_NAME)},
    {"description": {"type": "string"}, "parameters": AN_OBJECT, "strict": FLAG},
)
RESPONSE = an_object(
    {"model": MODEL, "input": any_of(a_text(), a_list(ref("ResponseItem"), least=1))},
    {
        **OF_JOBS,
        "store": {**FLAG, "description": "true if not said; false: it cannot be read later."},
        "stream": {**FLAG, "description": "Not together with async."},
        "background": {**FLAG, "description": "Come back for it; it needs store."},
        "stream_options": an_object(maybe_there={"include_obfuscation": FLAG}),
        "instructions": a_text(openai_responses.MAX_INSTRUCTIONS),
        "previous_response_id": a_text(MAX_NAME),
        "prompt_cache_key": a_text(MAX_NAME),
        "safety_identifier": a_text(MAX_NAME),
        "user": a_text(MAX_NAME),
        "temperature": a_number(0, 2),
        "top_p": a_number(0, 1),
        "top_logprobs": an_integer(0, 20),
        "max_output_tokens": an_integer(1, openai.MAX_TOKENS),
        "max_tool_calls": an_integer(1, openai.MAX_TOKENS),
        "parallel_tool_calls": FLAG,
        "truncation": {"const": "disabled"},
        "include": a_list(a_choice(openai_responses.INCLUDED)),
        "reasoning": an_object(
            maybe_there={
                "effort": a_choice(openai_responses.EFFORTS),
                "summary": a_choice(openai_responses.SUMMARIES),
            }
        ),
        "text": an_object(
            maybe_there={
                "verbosity": a_choice(openai_responses.VERBOSITIES),
                "format": any_of(
                    an_object({"type": a_choice(each for each in openai.FORMATS if each != "json_schema")}),
                    an_object({"type": {"const": "json_schema"}, "name": a_text(MAX_NAME), "schema": AN_OBJECT}),
                ),
            }
        ),
        "tools": a_list(_RESPONSE_TOOL, most=openai.MAX_TOOLS),
        "tool_choice": any_of(
            a_choice(("none", "auto", "required")),
            an_object({"type": {"const": "function"}, "name": a_text(MAX_NAME)}),
            an_object(
                {
                    "type": {"const": ALLOWED_TOOLS},
                    "mode": a_choice(("auto", "required")),
                    "tools": a_list(an_object({"type": {"const": "function"}, "name": a_text(MAX_NAME)}), least=1),
                }
            ),
            description="It needs tools.",
        ),
        **{name: {**NOTHING, "description": why} for name, why in openai_responses.NOT_HERE.items()},
        **{name: {**NOTHING, "description": "Of chat completions only."} for name in openai_responses.OF_CHAT},
    },
)

# Embeddings, images, sound

NO_STREAM = {"const": False, "description": "This endpoint answers whole."}
_TOKENS = a_list(an_integer(0, openai_media.LARGEST_TOKEN - 1), least=1)
_INPUT = a_text(openai_media.MAX_CHARACTERS)
EMBEDDINGS = an_object(
    {
        "model": MODEL,
        "input": any_of(
            _INPUT,
            _TOKENS,
            a_list(_INPUT, least=1, most=openai_media.MAX_INPUTS),
            a_list(_TOKENS, least=1, most=openai_media.MAX_INPUTS),
        ),
    },
    {
        **OF_JOBS,
        "stream": NO_STREAM,
        "dimensions": an_integer(1, openai_media.MAX_DIMENSIONS),
        "encoding_format": a_choice(("float", "base64")),
    },
)
IMAGES = an_object(
    {"model": MODEL, "prompt": a_text(openai_media.MAX_PROMPT)},
    {
        **OF_JOBS,
        "stream": NO_STREAM,
        "n": an_integer(1, openai_media.MAX_IMAGES),
        "size": {"type": "string", "pattern": "^(auto|[1-9][0-9]{1,4}x[1-9][0-9]{1,4})$"},
        "response_format": a_choice(("url", "b64_json")),
        "output_format": a_choice(("png", "jpeg", "webp")),
    },
)
VIDEO = an_object(
    {"model": MODEL, "prompt": a_text(openai_media.MAX_PROMPT)},
    {
        **OF_JOBS,
        "stream": NO_STREAM,
        "seconds": any_of(
            an_integer(1, openai_media.MAX_VIDEO_S), {"type": "string", "pattern": "^([1-9][0-9]?|1[01][0-9]|120)$"}
        ),
        "size": {"type": "string", "pattern": "^[1-9][0-9]{1,4}x[1-9][0-9]{1,4}$"},
        "input_reference": an_object({"image_url": _IMAGE_URL}, {"file_id": NOTHING}),
    },
)
SPEECH = an_object(
    {
        "model": MODEL,
        "input": a_text(openai_media.MAX_SPOKEN),
        "voice": any_of(a_text(), an_object({"id": a_text()})),
    },
    {
        **OF_JOBS,
        "stream": NO_STREAM,
        "response_format": a_choice(openai_media.SPEECH_FORMATS),
        "stream_format": {"const": "audio"},
        "speed": a_number(0.25, 4),
    },
)
_METADATA = rf"^metadata\[{upload.NAME}{{1,{asked.METADATA_KEY}}}\]$"
_FORM_FLAG = a_choice(("true", "false"))
TRANSCRIPTION: Schema = {
    "type": "object",
    "required": ["file", "model"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "It must begin as a recording does."},
        "model": MODEL,
        "response_format": a_choice(openai_media.TRANSCRIPTION_FORMATS),
        "temperature": a_number(0, 1),
        "language": a_text(openai_media.MAX_LANGUAGE),
        "timestamp_granularities[]": {
            **a_list(a_choice(("word", "segment"))),
            "description": "`word` needs the response_format verbose_json.",
        },
        "stream": a_choice(("false",)),
        "async": _FORM_FLAG,
        "store": _FORM_FLAG,
        "service_tier": a_choice(asked.CLASSES),
        **{f"pointsman[{name}]": wish["anyOf"][0] for name, wish in WISHES["properties"].items()},
    },
    "patternProperties": {_METADATA: a_text(asked.METADATA_VALUE, least=0)},
}

# Files and batches

FILE: Schema = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": a_choice(files.UPLOADED),
        "expires_after[anchor]": a_choice(("created_at",)),
        "expires_after[seconds]": an_integer(files.SHORTEST_S, files.LONGEST_S),
    },
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
}
_HOURS = batches.LONGEST_WINDOW_H
BATCH = an_object(
    {
        "input_file_id": a_text(64),
        "endpoint": a_choice(PARSERS),
        "completion_window": a_choice(f"{hours}h" for hours in range(1, _HOURS + 1)),
    },
    {
        "metadata": ref("Metadata"),
        "output_expires_after": an_object(
            {"anchor": {"const": "created_at"}, "seconds": an_integer(files.SHORTEST_S, files.LONGEST_S)}
        ),
    },
    open=False,
)
OUTCOME = an_object({"score": a_number(0, 1)}, open=False)

SCHEMAS = {
    "Metadata": METADATA,
    "Wishes": WISHES,
    "ChatMessage": CHAT_MESSAGE,
    "ResponseItem": RESPONSE_ITEM,
    "ChatRequest": CHAT,
    "ResponseRequest": RESPONSE,
    "EmbeddingsRequest": EMBEDDINGS,
    "ImagesRequest": IMAGES,
    "VideoRequest": VIDEO,
    "SpeechRequest": SPEECH,
    "TranscriptionForm": TRANSCRIPTION,
    "FileForm": FILE,
    "BatchRequest": BATCH,
    "OutcomeRequest": OUTCOME,
}
