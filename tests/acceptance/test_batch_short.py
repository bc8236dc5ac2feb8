"""The batch drill in short: 200 lines on a real Kafka, a worker killed twice. `bench/batch.py` is the long one."""

import pytest

from tests.acceptance.drills import GOODBYE_S, drilled
from tests.servers import unavailable
from tools.kafka.broker import missing

LIMIT_S = 240  # most of it is Kafka's wait for a member that was killed, twice
DRILL = ("--lines", "200", "--kills", "2", "--ones", "0")


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
def test_each_line_comes_out_once_and_all_dollars_agree_though_worker_and_driver_are_killed() -> None:
    if why := missing():
        unavailable(f"the drill needs a Kafka of its own: {why}")

    [run] = drilled("bench.batch", *DRILL, within=LIMIT_S)["runs"]

    assert (run["came_out"], run["came_out_twice"], run["failed"]) == (200, 0, 0)
    assert run["usd"] == run["usd_lines"] == run["usd_ledger"] != "0"
