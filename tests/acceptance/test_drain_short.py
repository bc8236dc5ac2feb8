"""A small backlog against a provider with limits of its own: all of it succeeds, and nothing is refused."""

import pytest

from tests.acceptance.drills import GOODBYE_S, drilled

LIMIT_S = 150
# The provider holds 10 requests and gains one a second: there is something to wait for in both backlogs.
DRAIN = ("--first", "14", "--jobs", "16", "--rpm", "60", "--tpm", "500000", "--no-direct")
# Requests are what there is to wait for in the first, and tokens, of 20 pages each, in the second.
BEDROCK = ("--backend", "bedrock", "--first", "45", "--jobs", "22", "--efficiency", "0")


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
@pytest.mark.parametrize(("arguments", "first", "jobs"), [(DRAIN, 14, 16), (BEDROCK, 45, 22)], ids=["gpu", "bedrock"])
def test_a_backlog_beyond_the_providers_burst_succeeds_without_one_refused_call(
    arguments: tuple[str, ...], first: int, jobs: int
) -> None:
    figures = drilled("bench.drain", *arguments, within=LIMIT_S)

    for backlog, wanted in ((figures["first"], first), (figures, jobs)):
        assert (backlog["jobs"], backlog["succeeded"], backlog["throttled_share"]) == (wanted, wanted, 0)
