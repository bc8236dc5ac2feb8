"""`kill -9` in the middle of fifty jobs on the embedded engine: all complete once, every dollar accounted for."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.fifty import JOBS, Fifty, settings
from tests.acceptance.processes import Pointsman, is_alive, kill, pointsman, until
from tests.doubles import OpenAIDouble
from tools.kafka.broker import free_ports

pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def ours(tmp_path: Path, upstream: OpenAIDouble) -> Iterator[Pointsman]:
    with pointsman(tmp_path, settings(upstream), POINTSMAN_WORKER__LEASE_S="2") as ours:
        yield ours


async def test_all_jobs_complete_once_after_the_process_was_killed_and_started_again(
    ours: Pointsman, upstream: OpenAIDouble
) -> None:
    [port] = free_ports(1)
    up = await ours.up(port).ready()
    private_valkey = ours.valkey_pid()
    children = ours.children(up).keys() - {private_valkey}
    assert len(children) == 3
    async with Fifty.on(ours, upstream, up.url) as fifty:
        await fifty.submit(*range(JOBS))
        await fifty.completed(JOBS // 2)
        await fifty.calling()

        up.kill()
        gone_s = await until(lambda: not any(map(is_alive, children)), "its children end by themselves", within=20)
        assert is_alive(private_valkey)
        up = await ours.up(port).ready()

        counted = await fifty.all_completed_once()
    assert "valkey_taken_over" in up.output.read_text(encoding="utf-8")
    assert counted["repeated"] == 0  # its worker had ended in good order, when it saw that its parent was gone
    print(f"its children were gone after {gone_s:.1f} s")


async def test_all_jobs_complete_once_after_the_worker_was_killed(ours: Pointsman, upstream: OpenAIDouble) -> None:
    [port] = free_ports(1)
    up = await ours.up(port).ready()
    [worker] = [pid for pid, command in ours.children(up).items() if "serve worker" in command]
    async with Fifty.on(ours, upstream, up.url) as fifty:
        await fifty.submit(*range(JOBS))
        await fifty.completed(JOBS // 2)
        await fifty.calling()

        kill(worker)

        counted = await fifty.all_completed_once()
    assert 0 < counted["repeated"] <= counted["lost"]


async def test_all_jobs_complete_once_after_everything_was_killed_at_once(
    ours: Pointsman, upstream: OpenAIDouble
) -> None:
    [port] = free_ports(1)
    up = await ours.up(port).ready()
    everything = [up.pid, *ours.children(up), ours.valkey_pid()]
    async with Fifty.on(ours, upstream, up.url) as fifty:
        await fifty.submit(*range(JOBS))
        await fifty.completed(JOBS // 2)
        await fifty.calling()

        kill(*everything)
        up.kill()
        await until(lambda: not any(map(is_alive, everything)), "everything is gone", within=10)
        began = time.monotonic()
        await ours.up(port).ready()
        print(f"ready again after {time.monotonic() - began:.1f} s")

        counted = await fifty.all_completed_once()
    assert 0 < counted["repeated"] <= counted["lost"]
