"""The batch drill in short: 200 lines on a real Kafka, a worker killed twice. `bench/batch.py` is the long one."""

import json
import signal
import subprocess
import sys

import pytest

from tests.acceptance.processes import ROOT
from tests.servers import unavailable
from tools.kafka.broker import missing

LIMIT_S = 150
GOODBYE_S = 60
DRILL = ("--lines", "200", "--kills", "2", "--ones", "0")


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
def test_each_line_comes_out_once_and_all_dollars_agree_though_worker_and_driver_are_killed() -> None:
    if why := missing():
        unavailable(f"the drill needs a Kafka of its own: {why}")
    command = [sys.executable, "-m", "bench.batch", *DRILL]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            output, _ = running.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            output, _ = running.communicate(timeout=GOODBYE_S)
            pytest.fail(f"the drill was not over after {LIMIT_S} s\n{output}", pytrace=False)

    assert running.returncode == 0, output
    [run] = json.loads(output.splitlines()[-1])["runs"]
    assert (run["came_out"], run["came_out_twice"], run["failed"]) == (200, 0, 0)
    assert run["usd"] == run["usd_lines"] == run["usd_ledger"] != "0"
