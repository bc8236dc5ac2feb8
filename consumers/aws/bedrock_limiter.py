"""How many calls at once a deployment takes, learned from refusals: additive up, multiplicative down. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from consumers.aws.bedrock_errors import Pressure
from consumers.gpu.replicas import Learned, lowered, raised

CEILING = 1000  # calls at once, where no limit is set: what was learned above it is forgotten


@dataclass(slots=True)
class _Deployment:
    ceiling: int
    learned: Learned | None = None
    held: set[str] = field(default_factory=set)


class Limiter:
    """What one worker has learned. Its calls have names; moments are on a steady clock."""

    def __init__(self, concurrency: Mapping[str, int | None]) -> None:
        self._deployments = {name: _Deployment(most or CEILING) for name, most in concurrency.items()}

    def room(self, deployment: str, begun: int) -> int | None:
        """How many more jobs may begin, when `begun` have. None: nothing was learned that says so."""
        found = self._of(deployment)
        return None if found.learned is None else max(0, int(found.learned.cap) - begun)

    def take(self, deployment: str, call: str) -> bool:
        """Whether this call may be made. Asked twice it is the same call."""
        found = self._of(deployment)
        if found.learned is not None and call not in found.held and len(found.held) >= int(found.learned.cap):
            return False
        found.held.add(call)
        return True

    def leave(self, deployment: str, call: str) -> None:
        """It is over, or not made after all."""
        self._of(deployment).held.discard(call)

    def failed(self, deployment: str, pressure: Pressure, now: float) -> None:
        """A call has failed."""
        found = self._of(deployment)
        if pressure is not Pressure.NONE:
            in_flight = max(1, len(found.held))
            found.learned = lowered(found.learned, in_flight=in_flight, now=now, left=pressure.left) or found.learned

    def succeeded(self, deployment: str, now: float) -> None:
        """A call has ended well."""
        found = self._of(deployment)
        higher = raised(found.learned, in_flight=len(found.held), ceiling=found.ceiling, now=now)
        if higher is not None:
            found.learned = higher if higher.cap < found.ceiling else None

    def _of(self, deployment: str) -> _Deployment:
        return self._deployments.setdefault(deployment, _Deployment(CEILING))
