"""litellm keeps to itself: it opens no socket and reads no `.env` when it is loaded, and the API never loads it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import sys

def heard(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        print("socket:", event, arguments[-1])

sys.addaudithook(heard)
{before}
import os, threading
print("leaked:", os.environ.get("FROM_A_FILE"))
print("threads:", threading.active_count())
"""


def loaded(tmp_path: Path, before: str) -> list[str]:
    (tmp_path / ".env").write_text("FROM_A_FILE=yes\n")
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(before=before)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return done.stdout.splitlines()


def test_to_load_it_opens_no_socket_and_reads_no_file_of_the_folder(tmp_path: Path) -> None:
    said = loaded(tmp_path, "import consumers.aws.litellm_library")

    assert said == ["leaked: None", "threads: 1"]


def test_a_socket_would_be_heard(tmp_path: Path) -> None:
    said = loaded(tmp_path, "import socket; socket.socket().connect_ex(('127.0.0.1', 1))")

    assert said[0].startswith("socket: socket.connect")
