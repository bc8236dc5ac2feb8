"""How long a job will hold its slot, learnt from those that ended. Pure."""

from collections import OrderedDict

FIRST_S = 2.0  # for a deployment that has not finished a job yet
NEWEST = 0.2  # how much the newest job counts
MOST_PAIRS = 10_000


class Expected:
    """Moving averages of seconds per tenant and deployment; those longest without a job are forgotten first."""

    def __init__(self, *, most: int = MOST_PAIRS) -> None:
        self._most = most
        self._averages: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._averages)

    def seconds(self, tenant: str, deployment: str) -> float:
        """Of a new tenant what others' jobs take there."""
        others = self._averages.get(_others(deployment), FIRST_S)
        return self._averages.get((tenant, deployment), others)

    def add(self, tenant: str, deployment: str, seconds: float) -> None:
        """A job of the tenant's held a slot for so long."""
        for pair in (_others(deployment), (tenant, deployment)):
            known = self._averages.pop(pair, seconds)
            self._averages[pair] = known + NEWEST * (seconds - known)
        while len(self._averages) > self._most:
            self._averages.popitem(last=False)


def _others(deployment: str) -> tuple[str, str]:
    return "", deployment  # no tenant's name
