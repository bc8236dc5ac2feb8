"""The chaos drill in short: 500 jobs and 8 faults on three real brokers. `bench/chaos.py` is the long one."""

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.acceptance.processes import ROOT
from tests.servers import unavailable
from tools.kafka.broker import missing

LIMIT_S = 230
GOODBYE_S = 60
DRILL = ("--jobs", "490", "--long", "10", "--faults", "8", "--seconds", "48", "--seed", "7")


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
def test_nothing_is_lost_or_done_twice_while_workers_gateways_brokers_and_the_board_fail() -> None:
    if why := missing():
        unavailable(f"the drill needs a Kafka of its own: {why}")

    code, figures, output = drill()

    assert code == 0, output
    wrong = ("lost", "completed_twice", "calls_off_ledger", "charged_unseen", "misquoted")
    assert {name: figures[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert (figures["jobs"], figures["faults"], figures["dollars_off"]) == (500, 8, "0")
    assert figures["duplicate_calls"] <= figures["duplicate_calls_allowed"]


def drill() -> tuple[int, dict[str, Any], str]:
    """Its exit code, its figures, and everything it printed. One that takes too long is told to clean up."""
    command = [sys.executable, "-m", "bench.chaos", *DRILL]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            out, err = running.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=GOODBYE_S)
            pytest.fail(f"the drill was not over after {LIMIT_S} s\n{err}{out}", pytrace=False)
    lines = out.splitlines()
    return running.returncode, json.loads(lines[-1]) if lines else {}, err + out
