"""The fleet drill, short: servers lie, die and are restarted, and no job is lost or tried too often."""

import json
import signal
import subprocess
import sys

import pytest

from tests.acceptance.processes import ROOT

LIMIT_S = 180
GOODBYE_S = 20


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
def test_no_job_is_lost_while_servers_fail_and_an_engines_own_queue_stays_empty() -> None:
    command = [sys.executable, "-m", "bench.fleet", "--seconds", "9", "--rate", "3", "--workers", "2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            output, _ = running.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            output, _ = running.communicate(timeout=GOODBYE_S)
            pytest.fail(f"the drill was not over after {LIMIT_S} s\n{output}", pytrace=False)

    assert running.returncode == 0, output
    figures = json.loads(output.splitlines()[-1])
    assert figures["jobs"] > 40
    assert figures["lost"] == 0
    assert figures["retries_share"] < 0.2
    assert figures["most_waiting"] <= 1
    assert figures["hit_rate"] > figures["random_hit_rate"]
