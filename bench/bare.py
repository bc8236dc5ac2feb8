"""The HTTP process without board and log: the same authentication, parsing, routing and answer, and nothing kept.

What `accept` takes longer than this is the price of a job that cannot be lost.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import replace

import uvloop

from gateway import logs, processes, wiring
from gateway.services import Services
from gateway.settings import load
from policies.scripts import Scripts
from router.board import Accepted, Board
from router.job import Job, JobState
from router.log import Log, Record
from router.wakeups import Wakeups


class ForgetfulBoard(Board):
    """Says yes to every job and forgets it."""

    async def accept(
        self,
        job: Job,
        *,
        deadline_s: float,
        idempotency: tuple[str, str] | None,
        most_unfinished: int,
        most_in_class: int = 500,
        channel: str = "",
        headers: Mapping[str, str] | None = None,
        unclaimed: str = "",
    ) -> Accepted:
        """Accepted, by this process' clock."""
        now = time.time()
        return Accepted(now, now + deadline_s, job.queue)

    async def confirm(self, tenant: str, job_id: str) -> JobState:
        """As if a log had it."""
        return JobState.QUEUED


class ForgetfulLog:
    """Confirms every record and drops it."""

    def __init__(self, log: Log) -> None:
        self.subscribe, self.read, self.ping, self.topics = log.subscribe, log.read, log.ping, log.topics
        self.counts, self.troubles = log.counts, log.troubles
        self.create, self.backlog, self.oldest, self.newest = log.create, log.backlog, log.oldest, log.newest

    async def append(self, topic: str, record: Record) -> None:
        """At once."""


def bare(core: wiring.Core, wakeups: Wakeups) -> Services:
    """As the settings say, but for board and log."""
    services = wiring.services(core, wakeups)
    board, log = ForgetfulBoard(Scripts(core.redis)), ForgetfulLog(core.log)
    return replace(services, desk=replace(services.desk, board=board, log=log))


def main() -> None:
    """As `pointsman serve http` does it."""
    logs.configure()
    uvloop.run(processes.http(load(None, os.environ), open_services=bare))


if __name__ == "__main__":
    main()
