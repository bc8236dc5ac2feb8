"""What brokers show of how long they keep things."""

from types import SimpleNamespace
from typing import Any

from router.log_kafka_kept import Kept

BROKER, TOPIC, REFUSED = 4, 2, 31
DAY_S = 86_400.0


def answer(error: int, kind: int, name: str, *entries: tuple[str, str | None]) -> Any:
    """As aiokafka decodes it."""
    return SimpleNamespace(resources=[(error, None, kind, name, [(*each, False, 1, False, []) for each in entries])])


def troubles(*answers: Any) -> list[str]:
    return [*Kept.of(answers).troubles(["jobs", "keys.changes"], prefix="p.", retention_s=3 * DAY_S)]


def test_what_is_kept_for_as_long_as_records_stay_is_well() -> None:
    assert (
        troubles(
            answer(0, BROKER, "1", ("offsets.retention.minutes", "4320")),
            answer(0, TOPIC, "p.jobs", ("retention.ms", "-1")),
            answer(0, TOPIC, "p.keys.changes", ("retention.ms", "-1")),
        )
        == []
    )


def test_one_broker_that_forgets_commits_sooner_than_records_is_named_with_what_to_set() -> None:
    [found] = troubles(
        answer(0, BROKER, "1", ("offsets.retention.minutes", "10080")),
        answer(0, BROKER, "2", ("offsets.retention.minutes", "1440")),
    )

    assert "of broker 2 is 1440" in found and "set 4320 at least" in found


def test_what_a_cluster_does_not_show_is_no_failure_and_said() -> None:
    [found] = troubles(answer(REFUSED, BROKER, "1"), answer(REFUSED, TOPIC, "p.jobs"))
    [hidden] = troubles(answer(0, BROKER, "1", ("offsets.retention.minutes", None)))

    assert found == hidden
    assert "do not show offsets.retention.minutes to us; have it at 4320 at least" in found


def test_a_topic_that_is_to_be_kept_for_ever_must_be() -> None:
    [found] = troubles(
        answer(0, BROKER, "1", ("offsets.retention.minutes", "10080")),
        answer(0, TOPIC, "p.keys.changes", ("retention.ms", "604800000")),
    )

    assert found == "retention.ms of p.keys.changes is 604800000: too short by our settings; set -1"
