"""The published OpenAPI document is what the code does: addresses, parameters, fields and their bounds."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema.protocols import Validator
from openapi_spec_validator import validate
from starlette.routing import Route

from gateway import wiring
from gateway.app import routes
from gateway.body import InvalidRequestError
from gateway.endpoints.batches import KNOWN
from gateway.endpoints.document import DOCUMENT
from gateway.parsers import PARSERS
from gateway.settings import Settings
from router.wakeups import Wakeups
from tools.openapi.__main__ import text

DOC: dict[str, Any] = json.loads(DOCUMENT.read_text(encoding="utf-8"))
SCHEMAS = DOC["components"]["schemas"]
JSON_BODIES = {
    "/v1/chat/completions": "ChatRequest",
    "/v1/responses": "ResponseRequest",
    "/v1/embeddings": "EmbeddingsRequest",
    "/v1/images/generations": "ImagesRequest",
    "/v1/videos": "VideoRequest",
    "/v1/audio/speech": "SpeechRequest",
}
LEAST: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "auto", "messages": [{"role": "user", "content": "Hello"}]},
    "/v1/responses": {"model": "auto", "input": "Hello"},
    "/v1/embeddings": {"model": "auto", "input": "Hello"},
    "/v1/images/generations": {"model": "auto", "prompt": "Hello"},
    "/v1/videos": {"model": "auto", "prompt": "Hello"},
    "/v1/audio/speech": {"model": "auto", "input": "Hello", "voice": "alloy"},
    "/v1/audio/transcriptions": {"model": "auto", "file": b"RIFF\0\0\0\0WAVEfmt "},
}
# Fields that are right or wrong only together with others.
WITH: Mapping[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "tool_choice": {"tools": [{"type": "function", "name": "f", "function": {"name": "f"}}]},
}
VALIDATORS: Mapping[str, Validator] = {
    endpoint: jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": DOC["components"]})
    for endpoint, name in JSON_BODIES.items()
}
LONGEST_TRIED = 40_000  # characters; what may be longer is tried at the least length only


@pytest.fixture
async def served(tmp_path: Path) -> list[Route]:
    settings = Settings(redis="redis://127.0.0.1:1/0", data=tmp_path)  # nobody is asked
    async with wiring.core(settings) as core:
        return routes(wiring.services(core, Wakeups(core.redis, role="http")))


def test_the_shipped_document_is_the_one_that_is_made() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == text(), "run: python -m tools.openapi"


def test_the_document_is_valid() -> None:
    validate(DOC)
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_part_of_the_document_is_used() -> None:
    used = set(re.findall(r'"#/components/(\w+/[\w-]+)"', DOCUMENT.read_text(encoding="utf-8")))

    assert used == {
        f"{kind}/{name}" for kind in ("schemas", "responses", "headers") for name in DOC["components"][kind]
    }


def test_the_document_has_each_address_and_no_other(served: list[Route]) -> None:
    described = {(method.upper(), path) for path, item in DOC["paths"].items() for method in item}

    assert described == {(method, a_path(route)) for route in served for method in (route.methods or set()) - {"HEAD"}}


def test_the_document_has_each_parameter_that_an_address_reads_and_no_other(served: list[Route]) -> None:
    read: dict[str, dict[str, set[str]]] = {a_path(route): {} for route in served}
    for route in served:
        [method] = (route.methods or set()) - {"HEAD"}
        read[a_path(route)][method.lower()] = set(re.findall(r"{(\w+)", route.path)) | set(queried(route))
    described = {
        path: {
            method: {each["name"] for each in operation.get("parameters", []) if each["in"] != "header"}
            for method, operation in item.items()
        }
        for path, item in DOC["paths"].items()
    }

    assert described == read


def test_only_what_the_operator_asks_needs_no_key() -> None:
    free = {path for path, item in DOC["paths"].items() for each in item.values() if each.get("security") == []}

    assert free == {"/healthz", "/readyz", "/metrics", "/openapi.json"}


@pytest.mark.parametrize("endpoint", JSON_BODIES)
def test_a_request_has_the_fields_that_its_parser_reads(endpoint: str) -> None:
    asked = Recorded(LEAST[endpoint])
    PARSERS[endpoint](asked)

    documented = set(SCHEMAS[JSON_BODIES[endpoint]]["properties"])
    assert asked.read | set(LEAST[endpoint]) == documented


def test_a_form_has_the_fields_that_its_parser_reads() -> None:
    asked = Recorded(LEAST["/v1/audio/transcriptions"])
    PARSERS["/v1/audio/transcriptions"](asked)

    documented = {re.split(r"\[", name)[0] for name in SCHEMAS["TranscriptionForm"]["properties"]}
    assert asked.read | set(LEAST["/v1/audio/transcriptions"]) == documented | {"metadata"}


def test_a_batch_has_the_fields_that_are_known() -> None:
    assert set(SCHEMAS["BatchRequest"]["properties"]) == set(KNOWN)


@pytest.mark.parametrize("endpoint", JSON_BODIES)
def test_the_least_request_is_one_by_the_document_and_nothing_of_it_can_go(endpoint: str) -> None:
    body = LEAST[endpoint]

    assert is_right(endpoint, body) and is_taken(endpoint, body)
    for name in body:
        less = {each: value for each, value in body.items() if each != name}
        assert not is_right(endpoint, less) and not is_taken(endpoint, less), name


@pytest.mark.parametrize("endpoint", JSON_BODIES)
def test_each_field_is_taken_where_the_document_says_so_and_nowhere_else(endpoint: str) -> None:
    """Values at, below and above every bound, every word and wrong types, in each field and each field of a field."""
    tried = 0
    for place, value in trials(SCHEMAS[JSON_BODIES[endpoint]]):
        body = put(deepcopy(LEAST[endpoint]) | WITH.get(place[0], {}), place, value)
        if body is None:
            continue
        tried += 1
        assert is_taken(endpoint, body) == is_right(endpoint, body), f"{place}: {str(value)[:80]!r}"
    assert tried > 60


class Recorded(dict[str, object]):
    """A request that remembers which of its fields were read."""

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: object = None) -> object:
        self.read.add(key)
        return super().get(key, default)


def is_taken(endpoint: str, body: Mapping[str, object]) -> bool:
    try:
        PARSERS[endpoint](body)
    except InvalidRequestError:
        return False
    return True


def is_right(endpoint: str, body: dict[str, Any]) -> bool:
    return VALIDATORS[endpoint].is_valid(body)


Place = tuple[str, ...]


def trials(schema: Mapping[str, Any], inside: Place = ()) -> Iterator[tuple[Place, object]]:
    """Values for each property of an object, right ones and wrong ones alike."""
    for name, of in schema.get("properties", {}).items():
        for alternative in alternatives(of):
            for value in values(alternative):
                yield (*inside, name), value
            if alternative.get("type") == "object":
                yield from trials(alternative, (*inside, name))


def alternatives(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "$ref" in schema:
        yield from alternatives(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from alternatives(each)
    else:
        yield schema


def values(schema: Mapping[str, Any]) -> Iterator[object]:
    """At its bounds and beyond them, and of every other type."""
    yield from (None, True, False, 1.5, "", [], {}, [None], "no-such-word")
    yield from schema.get("enum", ())
    if "const" in schema:
        yield schema["const"]
    for bound, beyond in (("minimum", -1), ("maximum", 1)):
        if bound in schema:
            yield from (schema[bound], schema[bound] + beyond)
    if schema.get("maximum", 1) > 1:
        yield schema.get("maximum", 0)
    for length in {schema.get("minLength", 0), schema.get("maxLength", 0), schema.get("maxLength", 0) + 1}:
        if schema.get("type") == "string" and "pattern" not in schema and length < LONGEST_TRIED:
            yield "x" * length
    if (most := schema.get("maxItems")) is not None:
        for item in items(schema["items"]):
            yield from ([item] * most, [item] * (most + 1))
    if (most := schema.get("maxProperties")) is not None:
        yield from ({str(n): "x" for n in range(count)} for count in (most, most + 1))
        longest = schema["propertyNames"]["maxLength"]
        yield from ({"x" * length: "x"} for length in (longest, longest + 1))
        longest = schema["additionalProperties"]["maxLength"]
        yield from ({"x": "x" * length} for length in (longest, longest + 1))


def items(schema: Mapping[str, Any]) -> Iterator[object]:
    """Something that may stand in an array."""
    for each in alternatives(schema):
        if each.get("type") == "string":
            yield "x"
        elif each.get("type") == "integer":
            yield 1
        elif each.get("type") == "object" and "name" in each.get("properties", {}):
            yield {"type": "function", "name": "f"}
        elif "function" in each.get("properties", {}):
            yield {"type": "function", "function": {"name": "f"}}


def put(body: dict[str, Any], place: Place, value: object) -> dict[str, Any] | None:
    """With the value there; None where something else than an object is in the way."""
    at = body
    for name in place[:-1]:
        at = at.setdefault(name, {})
        if not isinstance(at, dict):
            return None
    at[place[-1]] = value
    return body


def a_path(route: Route) -> str:
    return re.sub(r":\w+}", "}", route.path)


def queried(route: Route) -> Iterator[str]:
    """Which parameters its endpoint reads, as its source says."""
    yield from read_by(route.app._answer)  # type: ignore[attr-defined]


def read_by(function: Callable[..., object]) -> Iterator[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        match ast.unparse(call.func):
            case "query.whole" | "query.choice":
                yield str(ast.literal_eval(call.args[1]))
            case "request.query_params.get":
                yield str(ast.literal_eval(call.args[0]))
            case "query.event_number":
                yield "starting_after"
