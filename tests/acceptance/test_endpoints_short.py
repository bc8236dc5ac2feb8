"""The drill of asynchronous endpoints in short, through a DOUBLE of AWS. `bench/endpoints.py` is the long one."""

import json
import signal
import subprocess
import sys

import pytest

from tests.acceptance.processes import ROOT

LIMIT_S = 240
GOODBYE_S = 30
DRILL = ("--jobs", "120", "--kills", "2")


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
def test_nothing_is_lost_or_done_twice_while_messages_vanish_and_submitters_and_collectors_are_killed() -> None:
    command = [sys.executable, "-m", "bench.endpoints", *DRILL]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            out, err = running.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=GOODBYE_S)
            pytest.fail(f"the drill was not over after {LIMIT_S} s\n{err}{out}", pytrace=False)

    assert running.returncode == 0, err + out
    figures = json.loads(out.splitlines()[-1])
    assert (figures["jobs"], figures["completed"], figures["large"]) == (120, 120, 30)
    wrong = ("lost", "completed_twice", "past_deadline", "messages_left")
    assert {name: figures[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert figures["dollars_off"] == "0"
    assert figures["repeated"] <= figures["open_at_kills"]
