"""How long queued jobs are likely to wait: what workers and sweepers tell, and the estimate that follows from it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import cast

from policies.scripts import Script, Scripts
from router.ledger import plain

KEPT_S = 15.0  # what is older is not known any more
WORKING = "queues:working"
BACKLOG = "queues:backlog"


@dataclass(frozen=True, slots=True)
class Working:
    """What a worker does on one topic: jobs that run, and how many it begins a second while some wait.

    `per_s` None: none has waited lately. `head` is the moment at which the job that it began last was accepted.
    """

    running: int
    per_s: float | None
    head: float | None


@dataclass(frozen=True, slots=True)
class Cold:
    """Nothing of a deployment runs; in so many seconds something does once a job is there. `usd` is what its machine
    costs until then, None where that is not known."""

    seconds: float
    usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What one worker tells: of each topic that it works off, and the deployments of which no replica runs as yet.

    `cold` are deployments of which nothing runs, but for which something can be started.
    """

    topics: Mapping[str, Working] = field(default_factory=dict)
    warming: Sequence[str] = ()
    cold: Mapping[str, Cold] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heard:
    """What all of them tell. `backlog` are records that are not done, and when they were counted, on Redis' clock."""

    now: float = 0.0
    workers: Sequence[Told] = ()
    backlog: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    def is_warming(self, deployment: str) -> bool:
        """Whether its replicas are loading, as far as any worker knows."""
        return any(deployment in told.warming for told in self.workers)

    def cold(self, deployment: str) -> Cold | None:
        """When it can run what comes now, by who says the latest; None: nobody says that it cannot."""
        said = [told.cold[deployment] for told in self.workers if deployment in told.cold]
        return max(said, key=lambda each: each.seconds, default=None)

    def starts_in(self, topic: str, accepted_at: float, now: float) -> float | None:
        """Seconds until a job of the topic begins; None: nobody knows."""
        working = [told.topics[topic] for told in self.workers if topic in told.topics]
        counted = self.backlog.get(topic)
        if not working or counted is None:
            return None
        at, backlog = counted
        ahead = max(0, backlog - sum(each.running for each in working))
        rates = [each.per_s for each in working if each.per_s]
        heads = [each.head for each in working if each.head is not None]
        ahead_of_it = ahead * _share(accepted_at, max(heads, default=None), at)
        if ahead_of_it == 0:
            return 0.0
        if not rates:
            return None
        return max(0.0, ahead_of_it / sum(rates) - (now - at))


class Queues:
    """Tells and hears. Every method raises `BoardUnavailableError`."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._tell = Script.load("router", "queues_tell")
        self._hear = Script.load("router", "queues_hear")

    async def tell(self, worker: str, told: Told) -> None:
        """What this worker does now."""
        text = json.dumps(
            {
                "topics": {name: [each.running, each.per_s, each.head] for name, each in told.topics.items()},
                "warming": list(told.warming),
                "cold": {name: _cold_values(each) for name, each in told.cold.items()},
            },
            separators=(",", ":"),
        )
        await self._scripts.run(self._tell, [WORKING], [int(KEPT_S * 1000), worker, text])

    async def count(self, backlog: Mapping[str, int]) -> None:
        """Records that are not done, by topic, as a sweeper counted them."""
        if backlog:
            pairs = [value for topic, records in backlog.items() for value in (topic, records)]
            await self._scripts.run(self._tell, [BACKLOG], [int(KEPT_S * 1000), *pairs])

    async def hear(self) -> Heard:
        """What is known now."""
        now, workers = await self._heard(WORKING)
        _, backlog = await self._heard(BACKLOG)
        return Heard(
            now,
            [_told(text) for _, text in workers.values()],
            {topic: (at, int(text)) for topic, (at, text) in backlog.items()},
        )

    async def _heard(self, key: str) -> tuple[float, dict[str, tuple[float, str]]]:
        answer = cast("list[bytes]", await self._scripts.run(self._hear, [key], [int(KEPT_S * 1000)]))
        rows = zip(answer[1::3], answer[2::3], answer[3::3], strict=True)
        return int(answer[0]) / 1000, {name.decode(): (int(at) / 1000, text.decode()) for name, at, text in rows}


def _share(accepted_at: float, head: float | None, counted_at: float) -> float:
    """The part of what waited that was accepted before it, if jobs came evenly."""
    if head is None or accepted_at >= counted_at:
        return 1.0
    if accepted_at <= head or counted_at <= head:
        return 0.0
    return (accepted_at - head) / (counted_at - head)


def _cold_values(cold: Cold) -> tuple[float, str | None]:
    return cold.seconds, None if cold.usd is None else plain(cold.usd)


def _told(text: str) -> Told:
    said = json.loads(text)
    cold = {
        name: Cold(seconds, None if usd is None else Decimal(usd))
        for name, (seconds, usd) in said.get("cold", {}).items()
    }
    return Told({name: Working(*each) for name, each in said["topics"].items()}, said["warming"], cold)
