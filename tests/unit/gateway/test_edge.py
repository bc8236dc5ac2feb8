"""What stands around every request: ids, errors as answers, and nothing of a request in the log."""

import json
from dataclasses import dataclass, field

import pytest
import structlog
from starlette.types import Message, Receive, Scope, Send

from gateway.edge import Edge
from gateway.metrics import Metrics
from gateway.reading import HungUpError, Inflight
from router.shares import Shares

SECRET = "the patient has"


@dataclass(slots=True)
class Client:
    """Sends a request and keeps the answer's messages."""

    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    answer: list[Message] = field(default_factory=list)

    async def receive(self) -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        self.answer.append(message)

    async def call(self, edge: Edge) -> None:
        await edge({"type": "http", "headers": self.headers}, self.receive, self.send)

    @property
    def answer_headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.answer[0]["headers"]}


def an_edge(error: Exception, *, begins: bool = False) -> Edge:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    return Edge(app, metrics=Metrics(Inflight(most_requests=1, most_bytes=1), lambda: 0, Shares()))


async def test_what_nobody_expected_is_a_500_whose_content_is_nowhere() -> None:
    client = Client()

    with structlog.testing.capture_logs() as logs:
        await client.call(an_edge(KeyError(SECRET)))

    assert client.answer[0]["status"] == 500
    body = json.loads(client.answer[1]["body"])
    assert client.answer_headers["x-request-id"] in body["error"]["message"]
    assert [entry["error"] for entry in logs] == ["KeyError"]
    assert SECRET not in str(logs) + str(body)


async def test_an_answer_that_had_begun_breaks_off_without_its_content() -> None:
    with structlog.testing.capture_logs() as logs, pytest.raises(RuntimeError) as caught:
        await Client().call(an_edge(KeyError(SECRET), begins=True))

    assert SECRET not in str(logs) + str(caught.value)
    assert caught.value.__suppress_context__


async def test_a_caller_who_is_gone_gets_no_answer_and_is_no_error() -> None:
    client = Client()

    with structlog.testing.capture_logs() as logs:
        await client.call(an_edge(HungUpError("gone")))

    assert (client.answer, logs) == ([], [])


@pytest.mark.parametrize(("given", "kept"), [(b"order-17", True), (b"a b", False), (b"x" * 200, False), (b"", False)])
async def test_a_request_id_of_the_callers_is_kept_when_it_is_sound(given: bytes, kept: bool) -> None:
    client = Client(headers=[(b"x-request-id", given)])

    await client.call(an_edge(ValueError()))

    assert (client.answer_headers["x-request-id"] == given.decode()) is kept
