"""Replicas that DNS or a folder names. The name server is a double; the clock is the test's."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from consumers.gpu.discovery import RETRY_S, Discovery, Replica, discovery
from policies.fleets import Fleet, Folder, Listed, Named, Served, Source
from tests.doubles import ROOT


@dataclass(frozen=True, slots=True)
class Names:
    """The double."""

    process: "subprocess.Popen[str]"
    address: tuple[str, int]

    def say(self, line: object) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def names() -> Iterator[Names]:
    command = [sys.executable, "-m", "tests.doubles.dns_double"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip().rpartition(":")[2]
        yield Names(process, ("127.0.0.1", int(port)))
        process.stdin.close()  # type: ignore[union-attr]


def finding(source: Source, names: Names | None = None, *, lookup_s: float = 5.0) -> Discovery:
    return discovery(Fleet(source, resolver=None if names is None else names.address), lookup_s=lookup_s)


async def test_those_in_the_settings_are_told_apart_by_host_port_and_path() -> None:
    found = await finding(Listed(("http://gpu-1:8000/v1", "http://user:pw@gpu-2:8000", "http://one/a/v1"))).find(0.0)

    assert [each.name for each in found] == ["gpu-1:8000", "gpu-2:8000", "one/a"]


async def test_each_address_of_a_name_is_a_replica_until_its_record_is_too_old(names: Names) -> None:
    names.say(["vllm.test", "A", 30, ["10.0.0.2", "10.0.0.1"]])
    found = finding(Named("http://vllm.test:8000/v1"), names)
    first = await found.find(0.0)
    assert first == [
        Replica("10.0.0.1:8000", "http://10.0.0.1:8000/v1"),
        Replica("10.0.0.2:8000", "http://10.0.0.2:8000/v1"),
    ]

    names.say(["vllm.test", "A", 30, ["10.0.0.3"]])
    assert await found.find(29.9) == first
    assert [each.name for each in await found.find(30.0)] == ["10.0.0.3:8000"]
    assert names.say("count") == "2"


async def test_a_service_record_names_hosts_and_ports(names: Names) -> None:
    names.say(["_http._tcp.vllm.test", "SRV", 5, ["0 0 8001 a.vllm.test.", "0 0 8002 b.vllm.test."]])

    found = await finding(Served("http://_http._tcp.vllm.test/v1"), names).find(0.0)

    assert [each.url for each in found] == ["http://a.vllm.test:8001/v1", "http://b.vllm.test:8002/v1"]


async def test_behind_an_address_the_certificate_is_still_the_names(names: Names) -> None:
    names.say(["vllm.test", "A", 5, ["10.0.0.1"]])
    [found] = await finding(Named("https://vllm.test/v1"), names).find(0.0)
    assert found.host == "vllm.test"


async def test_a_name_without_records_has_no_replicas(names: Names) -> None:
    names.say(["vllm.test", "A", 1, ["10.0.0.1"]])
    found = finding(Named("http://vllm.test/v1"), names)
    assert await found.find(0.0)

    names.say(["vllm.test", "A", 1, []])
    assert not await found.find(1.0)
    names.say(["vllm.test", "A", 1, ["10.0.0.1"]])
    assert await found.find(1.0 + RETRY_S)


async def test_a_name_server_that_is_silent_changes_nothing(names: Names) -> None:
    names.say(["vllm.test", "A", 1, ["10.0.0.1"]])
    found = finding(Named("http://vllm.test/v1"), names, lookup_s=0.3)
    known = await found.find(0.0)

    names.say(None)
    assert await found.find(5.0) == known != []


async def test_a_folder_is_read_again_as_it_changes_and_a_broken_file_stays_what_it_was(tmp_path: Path) -> None:
    found = finding(Folder(str(tmp_path)))
    assert await found.find(0.0) == []

    (tmp_path / "a.yaml").write_text("url: http://a:1/v1\nusd_per_hour: '2.50'\n", encoding="utf-8")
    (tmp_path / "b.json").write_text('{"url": "http://b:1", "cap": 3, "drain": true}', encoding="utf-8")
    (tmp_path / "notes.txt").write_text("not a replica", encoding="utf-8")
    both = [
        Replica("a", "http://a:1/v1", usd_per_hour=Decimal("2.50")),
        Replica("b", "http://b:1", cap=3, drains=True),
    ]
    assert await found.find(1.0) == both

    for broken in ("{", "url: 5", "url: ftp://x", "url: http://a\nfree: true", "- 1", "", "a: " * 40_000):
        (tmp_path / "b.json").write_text(broken, encoding="utf-8")
        assert await found.find(2.0) == both
    (tmp_path / "a.yaml").unlink()
    assert [each.name for each in await found.find(3.0)] == ["b"]


async def test_a_folder_that_is_not_there_has_no_replicas(tmp_path: Path) -> None:
    assert await finding(Folder(str(tmp_path / "missing"))).find(0.0) == []
