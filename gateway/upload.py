"""A form with a recording as a job's body: read as it streams in, within bounds; the same bytes for the same form."""

import re
from base64 import b64encode
from collections.abc import Mapping

from starlette.requests import Request

from gateway.body import InvalidRequestError
from gateway.fields import Values, invalid, missing
from gateway.media import media_type_of
from gateway.multipart import FORM, Form, Part
from gateway.reading import BODY_TOTAL_S, Held
from gateway.taking import read_json
from router import forms
from router.compact import encode

LONGEST_NAME = 255  # characters
NAME = "[A-Za-z0-9_.-]"  # characters of a name in brackets
_FIELD = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,63}}(\[{NAME}{{0,64}}\])?")
_NUMBER = re.compile(r"-?\d{1,20}(\.\d{1,20})?")
_FLAGS: Mapping[str, bool] = {"true": True, "false": False, "True": True, "False": False}
IMAGE = "input_reference"  # the one file of a form that is taken as a field
HEAD = 1024  # bytes that tell what a file is
FLAGS = ("async", "store", "stream")
NUMBERS = ("temperature", "deadline_s", "result_ttl_s")


async def read_form(request: Request, held: Held, most: int) -> tuple[bytes, Values]:
    """The form as a job's body, and its values; `file` is the file's bytes. Raises what `multipart.Form` does."""
    data, filename, fields = bytearray(), None, list[tuple[str, str]]()
    async for part in Form(request, most=most, total_s=BODY_TOTAL_S).parts():
        if part.name == "file":
            if filename is not None:
                raise invalid("file", "there are two of them")
            filename = _filename(part)
            async for piece in part.pieces():
                held.add(2 * len(piece))  # by itself, and within the body
                data += piece
        elif not _FIELD.fullmatch(part.name):
            raise InvalidRequestError("The request body has a field whose name cannot be.", code="invalid_form")
        else:
            fields.append((part.name, _clean(await part.text(), part.name)))
    if filename is None:
        raise missing("file")
    form = forms.Form(tuple(fields), filename, bytes(data))
    return form.to_bytes(), {**values_of(fields), "file": form.data}


async def read_fields(request: Request, held: Held, most: int) -> tuple[bytes, Values]:
    """JSON, or a form with at most one file, an image, which is then a body of JSON that has it as a data URL.

    Raises what `read_json` and `multipart.Form` do.
    """
    if not request.headers.get("content-type", "").lower().startswith(FORM):
        return await read_json(request, held, most)
    fields, image = list[tuple[str, str]](), dict[str, object]()
    async for part in Form(request, most=most, total_s=BODY_TOTAL_S).parts():
        if not _FIELD.fullmatch(part.name):
            raise InvalidRequestError("The request body has a field whose name cannot be.", code="invalid_form")
        if part.filename is None:
            text = _clean(await part.text(), part.name)
            held.add(len(text))
            fields.append((part.name, text))
        elif part.name != IMAGE:
            raise invalid(part.name, "no file is taken here")
        elif image:
            raise invalid(part.name, "there are two of them")
        else:
            image[IMAGE] = {"image_url": await _as_data_url(part, held)}
    values = values_of(fields)
    if image and IMAGE in values:
        raise invalid(IMAGE, "it is there twice, in different ways")
    values |= image
    return encode(values), values


async def _as_data_url(part: Part, held: Held) -> str:
    data = bytearray()
    async for piece in part.pieces():
        held.add(5 * len(piece))  # by itself, as base64, and within the body
        data += piece
    kind = media_type_of(bytes(data[:HEAD])) or ""
    if not kind.startswith("image/"):
        raise invalid(part.name, "it does not begin as an image does")
    return f"data:{kind};base64,{b64encode(data).decode()}"


def values_of(fields: list[tuple[str, str]]) -> dict[str, object]:
    """The fields as a JSON body would have them: `a[]` are lists, `a[b]` objects. Raises `InvalidRequestError`."""
    values: dict[str, object] = {}
    for name, text in fields:
        outer, bracket, inner = name.partition("[")
        inner = inner.removesuffix("]")
        if not bracket:
            if outer in values:
                raise invalid(outer, "it is there twice")
            values[outer] = _value(outer, text)
            continue
        inside = values.setdefault(outer, {} if inner else [])
        if isinstance(inside, list) and not inner:
            inside.append(text)
        elif isinstance(inside, dict) and inner and inner not in inside:
            inside[inner] = _value(inner, text) if outer == "pointsman" else text
        else:
            raise invalid(outer, "it is there twice, in different ways")
    return values


def _value(name: str, text: str) -> object:
    if name in FLAGS:
        return _FLAGS.get(text, text)
    if name in NUMBERS and _NUMBER.fullmatch(text):
        return float(text)
    return text


def _filename(part: Part) -> str:
    """What servers tell the format from; nothing of the client's folders."""
    name = re.sub(r"[^\w. -]", "_", (part.filename or "").replace("\\", "/").rpartition("/")[2])
    return name[-LONGEST_NAME:] or "recording"


def _clean(text: str, name: str) -> str:
    if "\0" in text:
        raise InvalidRequestError("The text has a character that cannot be: NUL.", name, "invalid_text")
    return text
