"""Drills of `bench/`, run in short as whole processes."""

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.acceptance.processes import ROOT

GOODBYE_S = 60


def drilled(module: str, *arguments: str, within: float) -> dict[str, Any]:
    """The figures of one that ended well. One that takes more than `within` seconds is told to clean up, and failed.

    The test's own time-out must leave it `GOODBYE_S` for that.
    """
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            out, err = running.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=GOODBYE_S)
            pytest.fail(f"{module} was not over after {within:.0f} s\n{err}{out}", pytrace=False)
    assert running.returncode == 0, err + out
    figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    return figures
