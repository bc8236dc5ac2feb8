"""Replicas that are slow, lie, die and are restarted, in virtual time, against an oracle that knows every queue."""

from bench.fleet import arguments
from bench.fleet_simulated import simulated


def test_what_is_chosen_is_nearly_as_good_as_an_oracle_and_finds_most_of_what_is_in_caches() -> None:
    figures = simulated(arguments("test", None, ["--seconds", "30", "--well", "60"]))

    assert figures["jobs"] > 300
    assert figures["lost"] == 0
    assert figures["p95_over_oracle"] < 1.3
    assert figures["retries_share"] < 0.2
    assert figures["hit_rate_over_random"] >= 3
    assert figures["uneven_with_affinity"] < figures["uneven_by_chance"]
    assert figures["most_waiting"] <= 1
