"""For how long this worker has held none of a deployment's places, although it asked. Pure."""

from dataclasses import dataclass, field

LONG_S = 1.0  # those who give a place back take the next one at once, so that who looks now and then may never get one
FORGOTTEN_S = 2.0  # after the last refusal: nothing of its own waits any more


@dataclass(slots=True)
class Placeless:
    """By deployment, since when, and when it was last refused. Moments are on a steady clock."""

    _refused: dict[str, tuple[float, float]] = field(default_factory=dict)

    def is_long(self, deployment: str, now: float) -> bool:
        """Whether the next place is to be kept for this worker."""
        since, last = self._refused.get(deployment, (now, now))
        return now - since >= LONG_S and now - last < FORGOTTEN_S

    def refused(self, deployment: str, now: float) -> None:
        """It holds none, and got none."""
        since, last = self._refused.get(deployment, (now, now))
        self._refused[deployment] = (since if now - last < FORGOTTEN_S else now, now)

    def has_one(self, deployment: str) -> None:
        """It holds one, or has got one."""
        self._refused.pop(deployment, None)
