"""A small backlog against a provider with limits of its own: all of it succeeds, and nothing is refused."""

import json
import signal
import subprocess
import sys

import pytest

from tests.acceptance.processes import ROOT

LIMIT_S = 100
GOODBYE_S = 20
# The provider holds 10 requests and gains one a second: there is something to wait for in both backlogs.
DRAIN = ("--first", "14", "--jobs", "16", "--rpm", "60", "--tpm", "500000", "--no-direct")


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
def test_a_backlog_beyond_the_providers_burst_succeeds_without_one_refused_call() -> None:
    command = [sys.executable, "-m", "bench.drain", *DRAIN]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            output, _ = running.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            output, _ = running.communicate(timeout=GOODBYE_S)
            pytest.fail(f"the backlog was not done after {LIMIT_S} s\n{output}", pytrace=False)

    assert running.returncode == 0, output
    figures = json.loads(output.splitlines()[-1])
    for backlog, jobs in ((figures["first"], 14), (figures, 16)):
        assert (backlog["jobs"], backlog["succeeded"], backlog["throttled_share"]) == (jobs, jobs, 0)
