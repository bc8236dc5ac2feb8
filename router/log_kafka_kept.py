"""How long brokers keep what we need of them, and where that is too short."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import ceil, inf
from typing import Any

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from policies.values import dataclass
from router.topics import kept_s

OFFSETS = "offsets.retention.minutes"
RECORDS = "retention.ms"


@dataclass(frozen=True, slots=True)
class Kept:
    """Seconds, by broker and by topic (with its prefix); what a cluster does not show is not there."""

    commits: Mapping[str, float]
    records: Mapping[str, float]

    @classmethod
    def of(cls, answers: Iterable[Any]) -> "Kept":
        """As aiokafka gives them."""
        shown = [*_shown(answers)]
        return cls(
            {name: 60 * int(value) for kind, name, key, value in shown if (kind, key) == (_BROKER, OFFSETS)},
            {name: _seconds(value) for kind, name, key, value in shown if (kind, key) == (_TOPIC, RECORDS)},
        )

    def troubles(self, topics: Collection[str], *, prefix: str, retention_s: float) -> Iterator[str]:
        """What to mend, for people. `topics` are those that ought to keep what we need, without their prefix."""
        minutes = ceil(retention_s / 60)
        short = {name: kept for name, kept in self.commits.items() if kept < retention_s}
        if not self.commits:
            yield f"the brokers do not show {OFFSETS} to us; have it at {minutes} at least"
        for name, kept in sorted(short.items()):
            yield (
                f"{OFFSETS} of broker {name} is {kept / 60:.0f}, and records stay for {minutes}: who was away for"
                f" longer begins again at the oldest record; set {minutes} at least"
            )
        for topic in topics:
            least, kept = kept_s(topic, retention_s), self.records.get(prefix + topic, inf)
            if kept < least:
                wanted = "-1" if least == inf else f"{least * 1000:.0f}"
                yield f"{RECORDS} of {prefix}{topic} is {kept * 1000:.0f}: too short by our settings; set {wanted}"


def questions(brokers: Iterable[int], topics: Iterable[str]) -> list[ConfigResource]:
    """For `describe_configs`; topics with their prefix."""
    return [
        *(ConfigResource(ConfigResourceType.BROKER, str(each), {OFFSETS: None}) for each in brokers),
        *(ConfigResource(ConfigResourceType.TOPIC, each, {RECORDS: None}) for each in topics),
    ]


_BROKER, _TOPIC = int(ConfigResourceType.BROKER), int(ConfigResourceType.TOPIC)


def _shown(answers: Iterable[Any]) -> Iterator[tuple[int, str, str, str]]:
    for answer in answers:
        for error, _, kind, name, entries in answer.resources:
            for key, value, *_ in entries if error == 0 else ():
                if value is not None:
                    yield kind, name, key, value


def _seconds(milliseconds: str) -> float:
    return inf if int(milliseconds) < 0 else int(milliseconds) / 1000
