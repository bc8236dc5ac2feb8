"""The chaos drill in short: 500 jobs and 8 faults on three real brokers. `bench/chaos.py` is the long one."""

import pytest

from tests.acceptance.drills import GOODBYE_S, drilled
from tests.servers import unavailable
from tools.kafka.broker import missing

LIMIT_S = 230
DRILL = ("--jobs", "490", "--long", "10", "--faults", "8", "--seconds", "48", "--seed", "7")


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
def test_nothing_is_lost_or_done_twice_while_workers_gateways_brokers_and_the_board_fail() -> None:
    if why := missing():
        unavailable(f"the drill needs a Kafka of its own: {why}")

    figures = drilled("bench.chaos", *DRILL, within=LIMIT_S)

    wrong = ("lost", "completed_twice", "calls_off_ledger", "charged_unseen", "misquoted")
    assert {name: figures[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert (figures["jobs"], figures["faults"], figures["dollars_off"]) == (500, 8, "0")
    assert figures["duplicate_calls"] <= figures["duplicate_calls_allowed"]
