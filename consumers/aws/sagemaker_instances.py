"""The instances of one SageMaker endpoint as one machine, which there is as many times as it has instances.

AWS does not say which instance runs a call, nor when it begins. When it ended is known, and about how long it ran: so
much of the instances' time is its share, equally with the calls that ran at once, and what it waited there is not. What
adds up is exact all the same: calls and idle time come to price times time, to the last picodollar.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
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
KNOWN_S = 180.0  # after the end of a call it is known, at the latest
_NO_CAP = 1_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """Between two moments."""

    since: float
    until: float


class Instances:
    """Of one deployment. `begun` and `ended` never raise: a call that is not noted down makes idle time of its own."""

    def __init__(
        self, deployment: str, usd_per_hour: Decimal, places: Places, bills: MachineBills, *, lag_s: float | None
    ) -> None:
        """Bills wait `lag_s` at most for the ends of calls; None: calls run from `begun` to `ended`."""
        self._deployment = deployment
        self._lag_s = lag_s
        self._usd_per_hour = usd_per_hour
        self._places = places
        self._bills = bills
        self._phase: str | None = None

    async def begun(self, id: str, tenant: str) -> None:
        """The endpoint has a call (or may have); safe to repeat."""
        try:
            await self._places.take(self._deployment, id, [(MACHINE, _NO_CAP)], billed_to=tenant)
        except BoardUnavailableError as error:
            log.warning("instances_not_noted", deployment=self._deployment, error=type(error).__name__)

    async def ended(self, id: str, tokens: int, ran: Span | None = None) -> None:
        """It is over there; where that is known, it `ran` in that time only. Safe to repeat."""
        ended = Ended(MACHINE, id, tokens)
        try:
            if ran is None:
                await self._places.keep(self._deployment, [], [ended])
            else:
                await self._places.ran(self._deployment, ended, since=ran.since, until=ran.until)
        except BoardUnavailableError as error:  # its time goes on until its lease is over
            log.warning("instances_not_noted", deployment=self._deployment, error=type(error).__name__)

    async def looked(self, endpoint: Mapping[str, Any]) -> None:
        """What AWS says of it now; and bill what is known."""
        number, phase = counted(endpoint)
        self._phase = f"{phase}*{number}" if number else phase
        await self.seen()
        await self._bill()

    async def seen(self) -> None:
        """It is as it was when it was looked at last."""
        if self._phase is None:
            return
        phase, _, number = self._phase.partition("*")
        report = json.dumps({"state": phase, "instances": int(number or 0)})
        try:
            await self._places.sync(self._deployment, [Seen(MACHINE, report, phase=self._phase)])
        except BoardUnavailableError as error:
            log.warning("instances_not_noted", deployment=self._deployment, error=type(error).__name__)

    async def _bill(self) -> None:
        try:
            await self._bills.write(self._deployment, MACHINE, self._usd_per_hour, lag_s=self._lag_s)
            await self._bills.publish(self._deployment)
        except (BoardUnavailableError, LogUnavailableError) as error:  # the next bill has it
            log.warning("instances_not_billed", deployment=self._deployment, error=type(error).__name__)


NEVER = Span(0.0, 0.0)


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
