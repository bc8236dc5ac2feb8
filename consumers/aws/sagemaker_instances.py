"""The instances of one SageMaker endpoint as one machine, whose price is that of all of them together.

AWS does not say which instance runs a call, nor when it begins: a call is there from its submit until its end is known,
its wait included, and calls that are there at once share the instances' time equally. What adds up is exact all the
same: calls and idle time come to price times time, to the last picodollar.
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import structlog

from consumers.gpu.machine_bills import MachineBills
from consumers.gpu.places import Ended, Places, Seen
from policies.machine_time import Phase
from policies.scripts import BoardUnavailableError
from router.log import LogUnavailableError

log = structlog.get_logger(__name__)

MACHINE = "instances"
SEEN_EVERY_S = 10.0  # what nobody has seen for 15 s counts as not known
LOOKED_AT_EVERY = 6  # times that it is seen
_NO_CAP = 1_000_000


class Instances:
    """Of one deployment. `begun` and `ended` never raise: a call that is not noted down makes idle time of its own."""

    def __init__(self, deployment: str, usd_per_hour: Decimal, places: Places, bills: MachineBills) -> None:
        self._deployment = deployment
        self._usd_per_hour = usd_per_hour
        self._places = places
        self._bills = bills
        self._billed = 0  # so many instances, since the last look
        self._phase: Phase | None = None

    async def begun(self, id: str, tenant: str) -> None:
        """The endpoint has a call (or may have); safe to repeat."""
        try:
            await self._places.take(self._deployment, id, [(MACHINE, _NO_CAP)], billed_to=tenant)
        except BoardUnavailableError as error:
            log.warning("instances_not_noted", deployment=self._deployment, error=type(error).__name__)

    async def ended(self, id: str, tokens: int) -> None:
        """It is over there, or nobody waits for it any more; safe to repeat."""
        try:
            await self._places.keep(self._deployment, [], [Ended(MACHINE, id, tokens)])
        except BoardUnavailableError as error:  # its time goes on until its lease is over
            log.warning("instances_not_noted", deployment=self._deployment, error=type(error).__name__)

    async def looked(self, endpoint: Mapping[str, Any]) -> None:
        """What AWS says of it now: bill what was until now, at the price of what was there."""
        if self._phase is not None:
            await self.seen()
            await self._bill()
        self._billed, self._phase = counted(endpoint)
        await self.seen()

    async def seen(self) -> None:
        """It is as it was when it was looked at last."""
        if self._phase is None:
            return
        report = json.dumps({"state": self._phase, "instances": self._billed})
        try:
            await self._places.sync(self._deployment, [Seen(MACHINE, report, phase=self._phase)])
        except BoardUnavailableError as error:
            log.warning("instances_not_noted", deployment=self._deployment, error=type(error).__name__)

    async def _bill(self) -> None:
        try:
            await self._bills.write(self._deployment, MACHINE, self._usd_per_hour * self._billed)
            await self._bills.publish(self._deployment)
        except (BoardUnavailableError, LogUnavailableError) as error:  # the next bill has it
            log.warning("instances_not_billed", deployment=self._deployment, error=type(error).__name__)


def counted(endpoint: Mapping[str, Any]) -> tuple[int, Phase]:
    """How many instances are paid for, and what they do. Those that are coming are counted: AWS does not say when
    their price begins, and so this is the most that it can be."""
    variants = endpoint.get("ProductionVariants", [])
    there = sum(int(each.get("CurrentInstanceCount", 0)) for each in variants)
    wanted = sum(int(each.get("DesiredInstanceCount", each.get("CurrentInstanceCount", 0))) for each in variants)
    if wanted > there:
        return wanted, Phase.UP if there else Phase.WARM_UP
    if there == 0:
        return 0, Phase.OFF
    return there, Phase.COOL_DOWN if wanted < there else Phase.UP
