"""The AsyncAPI document says what the code does: headers and payloads of real records are as it describes them."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from jsonschema.protocols import Validator
from ulid import ULID

from gateway import inbox
from router import topics
from router.batches import BatchState, Created, Order, event_text
from router.files import Purpose
from router.log import Record
from tests.builders import a_body
from tests.integration.test_inbox import CHAT, Door, a_door, opened
from tests.servers import LogPlace

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "reference" / "asyncapi.yaml").read_text(encoding="utf-8"))
ADDRESSES = {"inbox": topics.INBOX, "replies": "acme.replies", "events": topics.EVENTS}


@pytest.fixture
async def door(redis_url: str, redis: object, tmp_path: Path) -> AsyncIterator[Door]:
    async with a_door(LogPlace("streams", redis_url, ""), redis_url, tmp_path) as door:
        yield door


def at(pointer: str) -> Any:
    """What a reference leads to."""
    found: Any = DOCUMENT
    for step in pointer.removeprefix("#/").split("/"):
        found = found[step]
    return found["$ref"] and at(found["$ref"]) if isinstance(found, dict) and "$ref" in found else found


def references(node: Any) -> list[str]:
    if isinstance(node, Mapping):
        return [*([node["$ref"]] if "$ref" in node else []), *(r for each in node.values() for r in references(each))]
    return [r for each in node for r in references(each)] if isinstance(node, list) else []


def validator(schema: Mapping[str, Any]) -> Validator:
    jsonschema.Draft202012Validator.check_schema(dict(schema))
    return jsonschema.Draft202012Validator(dict(schema))


def faults(channel: str, record: Record) -> dict[str, list[str]]:
    """What is wrong with a record, seen as each of the channel's messages: nothing for the one that it is."""
    described = {}
    for name, message in DOCUMENT["channels"][channel]["messages"].items():
        known = at(message["$ref"])
        parts = (known["headers"], dict(record.headers)), (known["payload"], json.loads(record.value))
        described[name] = [
            error.message for schema, value in parts for error in validator(at(schema["$ref"])).iter_errors(value)
        ]
    return described


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    assert DOCUMENT["asyncapi"].startswith("3.")
    for reference in references(DOCUMENT):
        assert at(reference) is not None
    for schema in DOCUMENT["components"]["schemas"].values():
        validator(schema)


def test_the_document_has_each_topic_endpoint_and_header_of_the_inbox() -> None:
    headers = DOCUMENT["components"]["schemas"]["RequestHeaders"]["properties"]

    assert {channel["address"] for channel in DOCUMENT["channels"].values()} == {
        "{replyTopic}",
        topics.INBOX,
        topics.EVENTS,
    }
    assert set(headers) == {*inbox.KEPT, "authorization", "tenant"}
    assert set(headers["endpoint"]["enum"]) == set(inbox.ENDPOINTS)


async def test_the_end_of_a_batch_is_as_the_document_says(door: Door) -> None:
    file_id = str(ULID())
    await door.core.files.add("acme", file_id, name="in.jsonl", purpose=Purpose.BATCH, size=1)
    order = Order(CHAT, file_id, 1, 3600.0, {"order": "7"}, "", "")
    made = await door.core.batches.create("acme", str(ULID()), order, idempotency=None)
    assert isinstance(made, Created)
    batch = await door.core.batches.view("acme", made.id)
    assert batch is not None

    record = Record(event_text(batch, BatchState.COMPLETED).encode(), {"version": "1", "id": "x", "at-ms": "1"})

    assert not faults("events", record)["batch"]


async def test_real_records_are_as_the_document_says(door: Door) -> None:
    named = {"reply_topic": "acme.replies", "correlation_id": "7"}
    responses = json.dumps({"model": "auto", "input": "Hello", "metadata": {"order": "7"}}).encode()
    async with opened(door):
        await door.put(a_body("Hello", metadata={"a": "b"}), None, **named)
        await door.put(a_body("fail:rejected"), None, **named)
        await door.put(a_body("Hello", model="nobody"), None, **named)
        await door.put(responses, None, endpoint="/v1/responses", **named)
        await door.put()
        await door.put(authorization="Bearer nobody's")
        answers = await door.answers(4)
        await door.answers(5, topic=topics.EVENTS)

    assert len(answers) == 4
    seen = {channel: set[str]() for channel in ADDRESSES}
    for channel, topic in ADDRESSES.items():
        async for delivery in door.core.log.read(topic):
            found = faults(channel, delivery.record)
            fitting = {name for name, wrong in found.items() if not wrong}
            assert len(fitting) == 1, found
            seen[channel] |= fitting
    described = {channel: set(DOCUMENT["channels"][channel]["messages"]) - {"batch"} for channel in ADDRESSES}
    assert seen == described
