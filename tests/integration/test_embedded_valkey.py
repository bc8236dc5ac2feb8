"""What the embedded start's own Valkey promises about its folder: one at a time, and nothing lost to a kill."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway import valkey
from gateway.valkey import FolderInUseError, ValkeyError
from tests.builders import until
from tests.servers import a_valkey

START_S = 20.0

# Holds the folder as `pointsman up` does, writes something, and waits to be killed.
PARENT = """
import asyncio, sys
from pathlib import Path
from redis.asyncio import Redis
from gateway import valkey

async def main(folder):
    with valkey.locked(folder):
        async with valkey.running(folder / "valkey") as server:
            async with Redis.from_url(server.url) as redis:
                await redis.set("written", "before the kill")
            print(server.pid, flush=True)
            await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
"""


@contextmanager
def a_parent(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process with a Valkey on the folder, and the process id of that Valkey."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            try:
                yield parent, pid
            finally:
                if is_valkey_of(pid, folder):
                    os.kill(pid, signal.SIGKILL)
        finally:
            parent.kill()


@contextmanager
def another_program() -> Iterator["subprocess.Popen[bytes]"]:
    """One whose command line speaks of Valkey."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # valkey"]) as program:
        try:
            yield program
        finally:
            program.kill()


def is_valkey_of(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == folder / "valkey"
    except OSError:
        return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_what_was_written_is_there_after_a_stop(tmp_path: Path) -> None:
    async with valkey.running(tmp_path) as first, Redis.from_url(first.url) as redis:
        await redis.set("a", "1")
    async with valkey.running(tmp_path) as second, Redis.from_url(second.url) as redis:
        found = await redis.get("a")

    assert found == b"1"
    assert (first.taken_over, second.taken_over) == (False, False)
    assert not is_alive(first.pid) and not is_alive(second.pid)
    assert not (tmp_path / "valkey.pid").exists()


async def test_it_is_on_disk_before_it_answers_and_listens_on_no_port(tmp_path: Path) -> None:
    async with valkey.running(tmp_path) as server, Redis.from_url(server.url) as redis:
        settings = await redis.config_get("append*", "port", "maxmemory-policy", "unixsocketperm")

    assert (settings["appendonly"], settings["appendfsync"]) == ("yes", "always")
    assert (settings["port"], settings["maxmemory-policy"]) == ("0", "noeviction")
    assert server.url.startswith("unix://")


def test_a_second_start_on_the_folder_is_refused_with_the_reason(tmp_path: Path) -> None:
    with (
        a_parent(tmp_path) as (_, pid),
        pytest.raises(FolderInUseError, match="--data"),
        valkey.locked(tmp_path),
    ):
        pass

    assert pid  # and its Valkey was left alone


async def test_one_that_outlived_its_parent_is_taken_over_with_its_data(tmp_path: Path) -> None:
    with a_parent(tmp_path) as (parent, pid):
        parent.kill()
        parent.wait()
        assert is_alive(pid)
        assert valkey.url_of_running(tmp_path / "valkey") is not None

        with valkey.locked(tmp_path):
            async with valkey.running(tmp_path / "valkey") as server, Redis.from_url(server.url) as redis:
                found = await redis.get("written")

    assert (server.taken_over, server.pid, found) == (True, pid, b"before the kill")
    assert not is_alive(pid)


async def test_one_that_was_killed_with_its_parent_is_started_again_with_its_data(tmp_path: Path) -> None:
    with a_parent(tmp_path) as (parent, pid):
        parent.kill()
        parent.wait()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_alive(pid))

        async with valkey.running(tmp_path / "valkey") as server, Redis.from_url(server.url) as redis:
            found = await redis.get("written")

    assert (server.taken_over, found) == (False, b"before the kill")


@pytest.mark.parametrize("text", ["", "no number", "-1", "0", "999999999", str(2**70)])
async def test_a_stale_pid_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "valkey.pid").write_text(text)

    async with valkey.running(tmp_path) as server:
        assert not server.taken_over


async def test_a_pid_that_was_given_to_another_program_is_ignored_and_that_program_left_alone(tmp_path: Path) -> None:
    with another_program() as other:
        (tmp_path / "valkey.pid").write_text(f"{other.pid}\n")

        async with valkey.running(tmp_path) as server:
            taken_over = server.taken_over

        still_runs = other.poll() is None
    assert not taken_over
    assert still_runs


async def test_a_pid_that_was_given_to_another_valkey_is_ignored_and_that_one_left_alone(tmp_path: Path) -> None:
    with a_valkey() as other:
        async with Redis.from_url(other.connection_url) as redis:
            (tmp_path / "valkey.pid").write_text(str((await redis.info("server"))["process_id"]))

            async with valkey.running(tmp_path) as server:
                taken_over = server.taken_over

            assert await redis.ping()
    assert not taken_over


async def test_one_that_stands_still_is_taken_over_and_not_joined_by_a_second(tmp_path: Path) -> None:
    with a_parent(tmp_path) as (parent, pid):
        parent.kill()
        parent.wait()
        os.kill(pid, signal.SIGSTOP)
        waking = asyncio.get_running_loop().call_later(2.0, os.kill, pid, signal.SIGCONT)

        async with valkey.running(tmp_path / "valkey") as server, Redis.from_url(server.url) as redis:
            found = await redis.get("written")
        waking.cancel()

    assert (server.taken_over, server.pid, found) == (True, pid, b"before the kill")


async def test_one_whose_pid_file_was_never_written_is_taken_over_too(tmp_path: Path) -> None:
    with a_parent(tmp_path) as (parent, pid):
        (tmp_path / "valkey" / "valkey.pid").unlink()
        parent.kill()
        parent.wait()

        async with valkey.running(tmp_path / "valkey") as server, Redis.from_url(server.url) as redis:
            found = await redis.get("written")

    assert (server.taken_over, server.pid, found) == (True, pid, b"before the kill")


async def test_a_folder_with_a_long_name_works(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)

    async with valkey.running(folder) as server, Redis.from_url(server.url) as redis:
        assert await redis.ping()


async def test_a_valkey_that_does_not_start_is_told_with_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").write_text("a file where Valkey wants a folder")

    with pytest.raises(ValkeyError, match=r"valkey\.log"):
        async with asyncio.timeout(START_S), valkey.running(tmp_path):
            pass
