"""A small backlog against a provider with limits of its own: all of it succeeds, and nothing is refused."""

import pytest

from tests.acceptance.drills import GOODBYE_S, drilled

LIMIT_S = 100
# The provider holds 10 requests and gains one a second: there is something to wait for in both backlogs.
DRAIN = ("--first", "14", "--jobs", "16", "--rpm", "60", "--tpm", "500000", "--no-direct")


@pytest.mark.timeout(LIMIT_S + GOODBYE_S + 10)
def test_a_backlog_beyond_the_providers_burst_succeeds_without_one_refused_call() -> None:
    figures = drilled("bench.drain", *DRAIN, within=LIMIT_S)

    for backlog, jobs in ((figures["first"], 14), (figures, 16)):
        assert (backlog["jobs"], backlog["succeeded"], backlog["throttled_share"]) == (jobs, jobs, 0)
