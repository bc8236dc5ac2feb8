"""What fetches is run again where it failed, and what it prints is told."""

import sys
from pathlib import Path

from tools import again

FAILS_AT_FIRST = """
import pathlib, sys
tries = pathlib.Path(sys.argv[1])
before = len(tries.read_text())
tries.write_text("x" * (before + 1))
print(before)
sys.exit(before < int(sys.argv[2]))
"""


def test_what_fails_for_a_moment_comes_in_the_end(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    tries.write_text("", encoding="utf-8")

    done = again.run([sys.executable, "-c", FAILS_AT_FIRST, str(tries), "2"], wait_s=0)

    assert (done.returncode, done.stdout) == (0, "2\n")


def test_what_keeps_failing_is_given_up(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    tries.write_text("", encoding="utf-8")

    done = again.run([sys.executable, "-c", FAILS_AT_FIRST, str(tries), "99"], wait_s=0)

    assert done.returncode == 1
    assert len(tries.read_text(encoding="utf-8")) == again.TRIES
