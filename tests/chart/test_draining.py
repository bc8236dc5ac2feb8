"""Fewer pods while jobs run: those that go end their calls first. On a real API server and a real Kafka."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chart.lanes import MOST, Lane, lane
from tests.chart.releases import Release

pytestmark = pytest.mark.timeout(300)

LONG_S = 25  # longer than the lease of a job and the session of a member


@pytest.fixture
async def crowded(release: Release, kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Lane]:
    """As many pods as there are partitions."""
    async with lane(release, kafka_bootstrap, redis_url, tmp_path, {"replicas": MOST}) as opened:
        yield opened


async def test_what_runs_counts_for_the_scaler_and_pods_that_go_end_it_first(crowded: Lane) -> None:
    await crowded.replicas(MOST, "every pod has a worker")
    await crowded.told(workers=MOST)
    jobs = await crowded.send(MOST, seconds=LONG_S)
    await crowded.all_are(jobs, "in_progress")
    await crowded.told(backlog=MOST, running=MOST)

    await crowded.want(1)
    await crowded.completed(jobs)
    await crowded.replicas(1, "one pod is left")

    ended = crowded.kubelet.ended
    assert len(ended) == MOST - 1 and all(each.code == 0 for each in ended)
    assert all(each.took_s < each.grace_s for each in ended)
    assert min(each.took_s for each in ended) > 1, f"a worker left its job: {ended}"
    await crowded.told(backlog=0, running=0)
