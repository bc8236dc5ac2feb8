"""Which waiting job is next: classes by weight, tenants in turn. Pure, driven step by step."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from router.job import JobClass

Item = TypeVar("Item")

WEIGHTS = {JobClass.INTERACTIVE: 14, JobClass.STANDARD: 5, JobClass.BULK: 1}


class FairQueue(Generic[Item]):
    """Waiting jobs of one deployment.

    Of 20 takes with every class waiting, 14 are interactive, 5 standard and 1 bulk; a share that nobody
    uses goes to the others. Inside a class each tenant that waits is served in turn.
    """

    def __init__(self) -> None:
        self._tenants: dict[JobClass, OrderedDict[str, deque[Item]]] = {kind: OrderedDict() for kind in JobClass}
        self._credit = dict.fromkeys(JobClass, 0)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, job_class: JobClass, tenant: str, item: Item) -> None:
        """Behind this tenant's other jobs of the class."""
        self._tenants[job_class].setdefault(tenant, deque()).append(item)
        self._length += 1

    def take(self) -> Item | None:
        """The next one; None when nothing waits."""
        waiting = [kind for kind in JobClass if self._tenants[kind]]
        if not waiting:
            return None
        kind = self._turn(waiting)
        tenants = self._tenants[kind]
        tenant, items = next(iter(tenants.items()))
        item = items.popleft()
        if items:
            tenants.move_to_end(tenant)
        else:
            del tenants[tenant]
        self._length -= 1
        return item

    def _turn(self, waiting: list[JobClass]) -> JobClass:
        """Smooth weighted round robin over the classes that wait (as nginx balances its upstreams)."""
        for kind in waiting:
            self._credit[kind] += WEIGHTS[kind]
        chosen = max(waiting, key=lambda kind: self._credit[kind])
        self._credit[chosen] -= sum(WEIGHTS[kind] for kind in waiting)
        return chosen
