"""The fleet drill, short: servers lie, die and are restarted, and no job is lost or tried too often."""

import pytest

from tests.acceptance.drills import GOODBYE_S, drilled

LIMIT_S = 180
TRIES = 2  # a machine that stands still for a second fails calls too; a fleet that is tried too often is so each time
SHORT = ("--seconds", "9", "--well", "9", "--faster", "4", "--rate", "4", "--families", "12")


@pytest.mark.timeout(TRIES * (LIMIT_S + GOODBYE_S + 10))
def test_no_job_is_lost_while_servers_fail_and_an_engines_own_queue_stays_empty() -> None:
    retries: list[float] = []
    while len(retries) < TRIES and (not retries or retries[-1] >= 0.2):
        figures = drilled("bench.fleet", *SHORT, within=LIMIT_S)
        retries.append(figures["retries_share"])

        assert figures["jobs"] > 40
        assert figures["lost"] == 0
        assert figures["most_waiting"] <= 1

    assert retries[-1] < 0.2, retries
