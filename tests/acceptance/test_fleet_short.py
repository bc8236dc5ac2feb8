"""The fleet drill, short: servers lie, die and are restarted, and no job is lost or tried too often."""

import pytest

from tests.acceptance.drills import GOODBYE_S, drilled

LIMIT_S = 180


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
def test_no_job_is_lost_while_servers_fail_and_an_engines_own_queue_stays_empty() -> None:
    short = "--seconds", "9", "--well", "9", "--faster", "4", "--rate", "4", "--families", "12"
    figures = drilled("bench.fleet", *short, within=LIMIT_S)

    assert figures["jobs"] > 40
    assert figures["lost"] == 0
    assert figures["retries_share"] < 0.2
    assert figures["most_waiting"] <= 1
