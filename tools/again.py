"""Runs what fetches from elsewhere, and again where it failed: a server may be away for a moment.

    python -m tools.again COMMAND...

For commands that keep what they have got, and do not try again by themselves: Go's and Maven's. No Python packages.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TRIES = 3
WAIT_S = 5.0
# A Go that is older than a go.mod wants fetches the one that it wants, unless it was told otherwise.
DEFAULTS = {"GOTOOLCHAIN": "auto"}


def run(
    command: Sequence[str], *, cwd: Path | None = None, wait_s: float = WAIT_S
) -> "subprocess.CompletedProcess[str]":
    """The last try's end, and what that printed on its standard output."""
    for left in reversed(range(TRIES)):
        done = subprocess.run(
            command, cwd=cwd, env={**DEFAULTS, **os.environ}, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode == 0 or not left:
            break
        print(f"{command[0]} failed; once more in {wait_s:.0f} s", file=sys.stderr, flush=True)
        time.sleep(wait_s)
    return done


if __name__ == "__main__":
    ended = run(sys.argv[1:])
    print(ended.stdout, end="")
    sys.exit(ended.returncode)
