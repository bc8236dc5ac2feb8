"""Sends what has been gathered as batch jobs of the provider, follows these, and tells which records are over.

Any number may run: a shipment is leased to one at a time, and each of its steps may be done twice. Its name is on the
board before anything is asked of the provider, who knows it as the job's token, so that whoever comes after a crash
finds the job and makes no second one. A board that was lost finds all of them again, before anything else goes out.
"""

import asyncio
import tempfile
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import structlog
from ulid import ULID

from consumers.asked_jobs import AskedJobs
from consumers.aws import bedrock_records
from consumers.aws.bedrock_jobs import AwsError, BedrockJobs, RefusedError
from consumers.aws.bedrock_records import NotCarriedError, Output
from consumers.aws.shipments import How, Phase, Shipment, Shipments, job_of
from consumers.backend import Notice
from policies.deployments import Deployment
from policies.shipping import Close, GiveBack, Shipping, decide
from router.payloads import PayloadUnavailableError

log = structlog.get_logger(__name__)

LEASE_S = 20.0
POLL_S = 10.0
AWAY_S = 10.0  # after AWS could not be asked
PASS_S = 5.0  # between two readings of an output
AT_ONCE = 4  # shipments of a deployment that one process looks after in one round
NOTICES = 50  # told at once
BODIES = 16  # read at once
LARGEST_INPUT = 512 * 1024 * 1024  # bytes; the rest goes with another shipment
STRANGERS_S = 1500.0  # after a loss of the board every job has come again by then: its record goes round in ten minutes
REMEMBERED = 10_000  # records that were told and not concluded yet


@dataclass(slots=True)
class Told:
    """What is known of a record. Without an `output` it is to be called live, for the `reason`.

    `how` is what became of it, which whoever concludes it says.
    """

    deployment: str
    record: str
    output: Output | None
    reason: str
    how: How = How.LATE


@dataclass(slots=True)
class _Unloading:
    """A shipment that has come back, as far as it is read."""

    deployment: Deployment
    shipment: Shipment
    left: Mapping[str, str]
    lines: BinaryIO | None
    seen: set[str] = field(default_factory=set)
    not_before: float = 0.0
    since: float = 0.0


class Shipper:
    """Its `round` is done again and again; `told` is of the records that were told about and are not concluded yet."""

    def __init__(
        self,
        shipments: Shipments,
        jobs: BedrockJobs,
        asked: AskedJobs,
        deployments: Sequence[Deployment],
        epoch: Callable[[], Awaitable[str | None]],
        *,
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.told: OrderedDict[str, Told] = OrderedDict()
        self._shipments = shipments
        self._jobs = jobs
        self._asked = asked
        self._deployments = [each for each in deployments if each.shipping is not None]
        self._epoch = epoch
        self._whole: dict[str, str] = {}
        self._poll_s = poll_s
        self._clock = clock
        self._unloading: dict[str, _Unloading] = {}

    async def round(self) -> list[Notice]:
        """One step with everything that is to be looked at. Raises `BoardUnavailableError`."""
        notices: list[Notice] = []
        if (epoch := await self._epoch()) is None:  # nothing is known before the board is made anew
            return notices
        for deployment in self._deployments:
            assert deployment.shipping is not None
            if not await self._has_all(deployment, epoch):
                continue
            notices += await self._gathered(deployment, deployment.shipping)
            for shipment in await self._shipments.take(deployment.name, lease_s=LEASE_S, most=AT_ONCE):
                try:
                    await self._step(deployment, deployment.shipping, shipment)
                except (AwsError, PayloadUnavailableError) as error:
                    log.error("shipment_put_off", deployment=deployment.name, shipment=shipment.id, error=str(error))
                    await self._shipments.note(deployment.name, shipment.id, look_s=AWAY_S)
        for unloading in list(self._unloading.values()):
            notices += await self._unloaded(unloading)
        return notices

    def deployment(self, name: str) -> Deployment:
        """The one of that name, which notices name."""
        return next(each for each in self._deployments if each.name == name)

    def close(self) -> None:
        """Forget what is being read; another goes on with it."""
        for unloading in self._unloading.values():
            if unloading.lines is not None:
                unloading.lines.close()
        self._unloading.clear()

    async def _has_all(self, deployment: Deployment, epoch: str) -> bool:
        """Whether the board knows all batch jobs of the deployment: those that a lost one knew are found at AWS."""
        if self._whole.get(deployment.name) == epoch:
            return True
        try:
            if await self._shipments.epoch(deployment.name) != epoch:
                for id, arn in (await self._jobs.lately(deployment)).items():
                    records = await self._jobs.names(deployment, id)
                    if records and (size := await self._shipments.adopt(deployment.name, id, arn, records)):
                        log.warning("shipment_found_again", deployment=deployment.name, shipment=id, records=size)
                await self._shipments.epoch(deployment.name, epoch)
        except AwsError as error:
            log.error("shipments_not_looked_for", deployment=deployment.name, error=str(error))
            return False
        self._whole[deployment.name] = epoch
        return True

    async def _gathered(self, deployment: Deployment, rule: Shipping) -> list[Notice]:
        now, waiting = await self._shipments.waiting(deployment.name, most=rule.most)
        match decide(waiting, now, rule):
            case Close(records):
                size = await self._shipments.close(deployment.name, str(ULID()), records, least=rule.least)
                if size:
                    log.info("shipment_closed", deployment=deployment.name, records=size)
            case GiveBack(records):
                tenants = await self._shipments.tenants(deployment.name, records[:NOTICES])
                return [
                    self._telling(deployment, record, tenant, None, "too_few_for_a_batch_job")
                    for record, tenant in tenants.items()
                ]
        return []

    async def _step(self, deployment: Deployment, rule: Shipping, shipment: Shipment) -> None:
        match shipment.phase:
            case Phase.CLOSED:
                await self._send(deployment, rule, shipment)
            case Phase.SENT:
                await self._follow(deployment, shipment)
            case Phase.ENDED if shipment.id not in self._unloading:
                lines = await self._jobs.output(deployment, shipment.id) if shipment.arn else None
                left = await self._shipments.records(deployment.name, shipment.id)
                self._unloading[shipment.id] = _Unloading(deployment, shipment, left, lines, since=self._clock())

    async def _send(self, deployment: Deployment, rule: Shipping, shipment: Shipment) -> None:
        arn = await self._jobs.find(deployment, shipment.id)
        if arn is None:
            with tempfile.TemporaryFile() as lines:
                if await self._fill(lines, deployment, shipment) < rule.least:
                    await self._ended(deployment, shipment, "TooFew", "")
                    return
                lines.seek(0)
                await self._jobs.put_names(deployment, shipment.id, await self._names(deployment, shipment))
                await self._jobs.put_input(deployment, shipment.id, lines)
            try:
                arn = await self._jobs.create(deployment, shipment.id)
            except RefusedError as error:
                await self._ended(deployment, shipment, "Refused", str(error))
                return
        await self._shipments.note(
            deployment.name, shipment.id, look_s=self._poll_s, phase=Phase.SENT, arn=arn, status="Submitted"
        )
        log.info("shipment_sent", deployment=deployment.name, shipment=shipment.id, records=shipment.size)

    async def _fill(self, lines: BinaryIO, deployment: Deployment, shipment: Shipment) -> int:
        """Write its records that are still wanted; the others leave. How many were written."""
        written, renewed = 0, self._clock()
        records = sorted((await self._shipments.records(deployment.name, shipment.id)).items())
        for start in range(0, len(records), BODIES):
            some = records[start : start + BODIES]
            for (record, _), text in zip(
                some, await asyncio.gather(*(self._line(deployment, *pair) for pair in some)), strict=True
            ):
                if text is None or lines.tell() + len(text) > LARGEST_INPUT:
                    await self._shipments.leave(deployment.name, record, How.LIVE)
                    continue
                lines.write(text)
                written += 1
            if self._clock() - renewed > LEASE_S / 3:
                renewed = self._clock()
                await self._shipments.note(deployment.name, shipment.id, look_s=LEASE_S)
        return written

    async def _names(self, deployment: Deployment, shipment: Shipment) -> Sequence[str]:
        return sorted(await self._shipments.records(deployment.name, shipment.id))

    async def _line(self, deployment: Deployment, record: str, tenant: str) -> bytes | None:
        job = await self._asked.of_attempt(tenant, *job_of(record))
        try:
            return None if job is None else bedrock_records.line(record, job, deployment)
        except NotCarriedError:
            return None

    async def _follow(self, deployment: Deployment, shipment: Shipment) -> None:
        status = await self._jobs.status(deployment, shipment.arn)
        if status.is_over:
            await self._ended(deployment, shipment, status.name, status.message)
            return
        if not await self._shipments.records(deployment.name, shipment.id):  # all were cancelled, or are called live
            await self._jobs.stop(deployment, shipment.arn)
        await self._shipments.note(deployment.name, shipment.id, look_s=self._poll_s, status=status.name)

    async def _ended(self, deployment: Deployment, shipment: Shipment, status: str, message: str) -> None:
        say = log.info if status == "Completed" else log.warning
        say("shipment_ended", deployment=deployment.name, shipment=shipment.id, status=status, message=message)
        await self._shipments.note(deployment.name, shipment.id, look_s=0.0, phase=Phase.ENDED, status=status)

    async def _unloaded(self, unloading: _Unloading) -> list[Notice]:
        """The next records that are over; at the end of the output those that are not in it, then who is left."""
        deployment, shipment = unloading.deployment, unloading.shipment
        if self._clock() < unloading.not_before:
            return []
        if not await self._shipments.note(deployment.name, shipment.id, look_s=LEASE_S):
            self._drop(unloading)
            return []
        notices = await asyncio.to_thread(self._read, unloading)
        if notices:
            return notices
        left = await self._shipments.records(deployment.name, shipment.id)
        if not left:
            await self._shipments.end(deployment.name, shipment.id)
            self._drop(unloading)
            return []
        strangers = [record for record, tenant in left.items() if not tenant]
        if self._clock() - unloading.since > STRANGERS_S:
            for record in strangers:  # concluded before the board was lost
                await self._shipments.leave(deployment.name, record, How.LATE)
        missing = [(record, tenant) for record, tenant in left.items() if tenant and record not in unloading.seen]
        if not missing:  # told, and not concluded: told again; or its job is still to come
            unloading.seen.clear()
            unloading.left, unloading.not_before = left, self._clock() + PASS_S
            if unloading.lines is not None:
                unloading.lines.seek(0)
            return []
        unloading.seen.update(record for record, _ in missing[:NOTICES])
        return [
            self._telling(deployment, record, tenant, None, f"not_in_batch_output_{shipment.status.lower()}")
            for record, tenant in missing[:NOTICES]
        ]

    def _read(self, unloading: _Unloading) -> list[Notice]:
        notices: list[Notice] = []
        while unloading.lines is not None and len(notices) < NOTICES and (text := unloading.lines.readline()):
            found = bedrock_records.output(text)
            tenant = unloading.left.get(found.record) if found is not None else None
            if found is None or not tenant or found.record in unloading.seen:
                continue
            unloading.seen.add(found.record)
            notices.append(self._telling(unloading.deployment, found.record, tenant, found, found.error))
        return notices

    def _telling(self, deployment: Deployment, record: str, tenant: str, output: Output | None, reason: str) -> Notice:
        self.told[record] = Told(deployment.name, record, output, reason)
        while len(self.told) > REMEMBERED:
            self.told.popitem(last=False)
        return Notice(tenant, *job_of(record), (deployment.name, record))

    def _drop(self, unloading: _Unloading) -> None:
        if unloading.lines is not None:
            unloading.lines.close()
        self._unloading.pop(unloading.shipment.id, None)
