"""The chart's own ScaledObject, real KEDA, the lag of a real Kafka, and a real worker behind every pod."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chart.lanes import MOST, Lane, idle_lane, lane
from tests.chart.releases import Release
from tools.kubernetes.control_plane import ControlPlane

pytestmark = pytest.mark.timeout(300)

LAG = 6  # records for each pod
OLDEST_S = 3  # of the oldest job, for each pod
PRESET = [0, 1, 3, 6, 10]
STEP_S = 8  # a minute in the preset
LONG_S = 30  # longer than the waits that lead to fewer pods
CALM_S = 12
COOLDOWN_S = 6
POLLING_S = 1
KEDA = {
    "enabled": True,
    "maxReplicas": MOST,
    "pollingSeconds": POLLING_S,
    "lag": LAG,
    "stepSeconds": 2,
    "calmSeconds": CALM_S,
    "downSeconds": 2,
    "cooldownSeconds": COOLDOWN_S,
}


@pytest.fixture
async def scaled(
    keda: ControlPlane, release: Release, kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> AsyncIterator[Lane]:
    """Its worker is scaled by `keda`."""
    async with lane(release, kafka_bootstrap, redis_url, tmp_path, {"keda": KEDA}) as opened:
        yield opened


async def test_keda_takes_workers_from_none_to_many_and_back_as_a_backlog_comes_and_goes(scaled: Lane) -> None:
    await scaled.replicas(0, "there is nothing to do, and no pod")

    first = await scaled.send(1, seconds=1)
    await scaled.replicas(1, "one job wakes one pod")
    await scaled.completed(first)

    many = await scaled.send(MOST * LAG, seconds=2)
    await scaled.replicas(MOST, "a backlog brings more")
    last = await scaled.completed(many)

    none = await scaled.replicas(0, "the work is done, and no pod is left")
    assert none - last > COOLDOWN_S - 2 * POLLING_S, "the last pod went before it had cooled down"
    assert all(ended.code == 0 and ended.took_s < ended.grace_s for ended in scaled.kubelet.ended)


async def test_a_lane_with_long_jobs_in_flight_is_not_scaled_away_under_them(scaled: Lane) -> None:
    """Soon fewer pods are enough for what runs, so that KEDA takes some: with a job that they end first."""
    short = await scaled.send(MOST * LAG, seconds=1)
    await scaled.replicas(MOST, "a backlog brings more")
    await scaled.completed(short)
    long = await scaled.send(MOST, seconds=LONG_S)  # one for each, long before a pod is taken
    sent = time.monotonic()
    last = await scaled.completed(long)
    assert scaled.least(since=sent) >= 1, "no pod was wanted though jobs ran"

    none = await scaled.replicas(0, "the work is done, and no pod is left")
    assert none - last > COOLDOWN_S - 2 * POLLING_S, "the last pod went before it had cooled down"
    ended = scaled.kubelet.ended
    assert all(each.code == 0 and each.took_s < each.grace_s for each in ended)
    assert max(each.took_s for each in ended) > LONG_S / 5, f"no pod was taken while its job ran: {ended}"


async def test_the_age_of_the_oldest_job_alone_brings_more_pods(
    keda: ControlPlane, release: Release, kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> None:
    """A handful of jobs, whose lag asks for one pod all the while: what the sweeper tells of their age decides."""
    by_age = {**KEDA, "lag": 1000, "oldestSeconds": OLDEST_S}
    async with lane(release, kafka_bootstrap, redis_url, tmp_path, {"keda": by_age}) as aged:
        await aged.replicas(0, "there is nothing to do, and no pod")

        jobs = await aged.send(2 * MOST, seconds=5)
        await aged.replicas(MOST, "few jobs that wait for long bring more")
        await aged.completed(jobs)

        await aged.told(oldest_s=0)
        await aged.replicas(0, "the work is done, and no pod is left")


async def test_the_preset_goes_1_3_6_10_and_all_that_are_left_go_together_after_the_cool_down(
    keda: ControlPlane, release: Release, kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> None:
    """The chart's own values but for the times; one worker at the end stands for those of all ten pods."""
    preset = {"enabled": True, "lag": 1, "stepSeconds": STEP_S, "cooldownSeconds": COOLDOWN_S, "pollingSeconds": 1}
    async with idle_lane(
        release, kafka_bootstrap, redis_url, tmp_path, {"keda": preset}, partitions=max(PRESET)
    ) as idle:
        began = await idle.replicas(0, "there is nothing to do, and no pod")

        jobs = await idle.send(max(PRESET), seconds=0.1)
        await idle.stepped(PRESET, since=began)
        idle.kubelet.ours.worker("echo")
        last = await idle.completed(jobs)

        await idle.stepped([*PRESET, 0], since=began)
        assert time.monotonic() - last > COOLDOWN_S - 2 * POLLING_S, "they went before they had cooled down"
