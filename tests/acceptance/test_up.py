"""`pointsman up` on a machine where something else has its port, and with a server of one's own."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gateway.listening import must_be_free
from gateway.settings import SettingsError
from tests.acceptance.processes import READY_S, pointsman, until
from tests.doubles import openai_double
from tools.kafka.broker import free_ports


class Everything(BaseHTTPRequestHandler):
    """Answers 200, as another Pointsman would."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody reads it."""


@contextmanager
def somebody() -> Generator[int]:
    """The port of a server that answers to everything."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Everything) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


async def test_whoever_has_its_port_is_not_taken_for_it_and_is_waited_for(tmp_path: Path) -> None:
    light = {"backend": "echo", "model": "echo", "tier": "light"}
    with pointsman(tmp_path, {"data": str(tmp_path / "data"), "deployments": {"light": light}}) as ours:
        with somebody() as port:
            up = ours.up(port)
            await until(lambda: "is taken; waiting" in up.tail(), "to say that the port is taken", within=20)
            assert "is ready" not in up.tail()
        await up.ready()
        await until(lambda: "is ready" in up.tail(), "to say that it is ready", within=20)


async def test_a_server_of_ones_own_is_asked_with_its_key_which_is_in_no_file(tmp_path: Path) -> None:
    key, [port] = "sk-of-the-upstream-" + "k" * 20, free_ports(1)
    with (
        openai_double() as double,
        pointsman(tmp_path, {"data": str(tmp_path / "data")}, POINTSMAN_UPSTREAM_KEY=key) as ours,
    ):
        await ours.up(port, "--upstream", f"{double.url}/v1", "--model", "words-3").ready()
        async with ours.refusals.async_sdk(f"http://127.0.0.1:{port}", ours.key, max_retries=0) as client:
            answer = await client.chat.completions.create(
                model="words-3", messages=[{"role": "user", "content": "hello"}], timeout=READY_S
            )
        _, headers = await asyncio.to_thread(double.last)

    assert answer.choices[0].message.content
    assert headers["authorization"] == f"Bearer {key}"
    assert await asyncio.to_thread(files_with, tmp_path, key) == []


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with somebody() as port, pytest.raises(SettingsError, match=f"port {port}: .* Set another port, or stop"):
        must_be_free("127.0.0.1", port)

    must_be_free("127.0.0.1", 0)
