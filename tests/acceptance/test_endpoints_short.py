"""The drill of asynchronous endpoints in short, through a DOUBLE of AWS. `bench/endpoints.py` is the long one."""

import pytest

from tests.acceptance.drills import GOODBYE_S, drilled

LIMIT_S = 240
DRILL = ("--jobs", "120", "--kills", "2")


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
def test_nothing_is_lost_or_done_twice_while_messages_vanish_and_submitters_and_collectors_are_killed() -> None:
    figures = drilled("bench.endpoints", *DRILL, within=LIMIT_S)

    assert (figures["jobs"], figures["completed"], figures["large"]) == (120, 120, 30)
    wrong = ("lost", "completed_twice", "past_deadline", "messages_left")
    assert {name: figures[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert figures["dollars_off"] == "0"
    assert figures["repeated"] <= figures["open_at_kills"]
