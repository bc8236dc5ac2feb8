"""Spans without a collector: what a trace's next step is told, and that nobody waits for who does not answer."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from router.traces import LAST_EXPORT_S, Traces
from tests.builders import a_job
from tests.receiver import receiving

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


@pytest.fixture
async def collector() -> AsyncIterator[str]:
    """The address of one that takes everything."""
    async with receiving() as receiver:
        yield receiver.url("/v1/traces")


async def told(url: str, parent: str | None, *, share: float = 1.0) -> list[str]:
    """The parts of what the next step gets."""
    async with Traces.exported(url, process="http", share=share, log="kafka") as traces:
        with traces.accepting("/v1/chat/completions", "1", "acme", parent) as span:
            return span.traceparent.split("-")


async def test_the_next_step_is_in_the_callers_trace_and_follows_from_ours(collector: str) -> None:
    version, trace, span, flags = await told(collector, CALLER + "01")

    assert (version, trace, flags) == ("00", CALLER.split("-")[1], "01")
    assert span != CALLER.split("-")[2]


@pytest.mark.parametrize(
    ("parent", "share", "is_kept"), [(CALLER + "00", 1.0, False), (None, 0.0, False), (None, 1.0, True)]
)
async def test_what_a_caller_does_not_keep_is_not_kept_and_of_ours_a_share(
    collector: str, parent: str | None, share: float, is_kept: bool
) -> None:
    flags = int((await told(collector, parent, share=share))[3], 16)

    assert bool(flags & 1) == is_kept


async def test_a_traceparent_that_is_none_begins_a_trace(collector: str) -> None:
    trace = (await told(collector, "00-nonsense"))[1]

    assert len(trace) == 32 and trace != CALLER.split("-")[1]


async def test_nobody_waits_for_a_collector_that_does_not_answer_and_an_end_is_bounded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/v1/traces"
        async with Traces.exported(url, process="http", share=1.0, log="kafka") as traces:
            for _ in range(5000):
                with traces.appending(a_job()):
                    pass
            await asyncio.sleep(0)
            began = time.monotonic()

    assert time.monotonic() - began < LAST_EXPORT_S + 5
