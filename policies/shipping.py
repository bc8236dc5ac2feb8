"""Which jobs that wait together go out as one batch job of the provider, and which had better be called live."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shipping:
    """How a deployment's patient jobs are gathered. Seconds; `least` and `most` are records of one batch job.

    A job is gathered when it has `patience_s` until its deadline. One whose deadline is nearer than `live_before_s` is
    called live, wherever it is by then. The provider is told to give up after `timeout_h` hours. `role` is what it
    works as, `place` is `s3://bucket/prefix`.
    """

    role: str
    place: str
    least: int = 100
    most: int = 10_000
    quiet_s: float = 30.0
    wait_s: float = 1800.0
    patience_s: float = 6 * 3600.0
    live_before_s: float = 3600.0
    timeout_h: int = 24


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits to be gathered, and since when."""

    record: str
    joined: float


@dataclass(frozen=True, slots=True)
class Close:
    """These go out together."""

    records: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GiveBack:
    """These have waited long enough for others."""

    records: tuple[str, ...]


def decide(waiting: Sequence[Waiting], now: float, rule: Shipping) -> Close | GiveBack | None:
    """What is to be done with those that wait, the oldest first. None: they wait on.

    As soon as there are enough, a short quiet lets a burst go out whole.
    """
    if not waiting:
        return None
    is_old = now - waiting[0].joined >= rule.wait_s
    if len(waiting) < rule.least:
        late = tuple(each.record for each in waiting if now - each.joined >= rule.wait_s)
        return GiveBack(late) if late else None
    is_quiet = now - waiting[-1].joined >= rule.quiet_s
    if is_old or is_quiet or len(waiting) >= rule.most:
        return Close(tuple(each.record for each in waiting[: rule.most]))
    return None
