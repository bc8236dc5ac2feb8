"""How fast jobs begin: counted only while some wait, since an idle lane's rate is that of its callers."""

from consumers.gpu.pace import MEMORY_S, Pace
from router.queues import Working

TOPIC = "jobs.gpu.text.light.standard"


def run(pace: Pace, jobs: int, *, at: float) -> None:
    for _ in range(jobs):
        pace.began(TOPIC, at)
        pace.ended(TOPIC)
        pace.left(TOPIC)


def test_a_lane_on_which_nobody_waits_has_no_rate() -> None:
    pace = Pace()
    for second in range(5):
        pace.took(TOPIC)
        run(pace, 1, at=float(second))
        assert pace.look(float(second))[TOPIC].per_s is None


def test_while_some_wait_the_rate_is_what_begins_in_a_second() -> None:
    pace = Pace()
    for _ in range(100):
        pace.took(TOPIC)
    pace.look(0.0)
    for second in range(1, 10):
        run(pace, 4, at=50.0 + second)
        found = pace.look(float(second))

    assert found[TOPIC] == Working(0, 4.0, 59.0)


def test_what_was_long_ago_is_forgotten() -> None:
    pace = Pace()
    for _ in range(1000):
        pace.took(TOPIC)
    pace.look(0.0)
    for second in range(1, 100):
        run(pace, 8 if second < 20 else 1, at=0.0)
        found = pace.look(float(second))

    rate = found[TOPIC].per_s
    assert rate is not None and 1.0 <= rate < 1.1, f"after {80 / MEMORY_S:.1f} memories"


def test_what_runs_is_told() -> None:
    pace = Pace()
    pace.took(TOPIC)
    pace.began(TOPIC, 5.0)
    assert pace.look(0.0)[TOPIC] == Working(1, None, 5.0)
