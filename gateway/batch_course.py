"""One batch from its claim to its end, a step at a time. Whatever dies between two steps, the next driver goes on."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from gateway import batch_output
from gateway.accept import BatchOverError, Desk, QueueFullError
from gateway.batch_lines import Fault, Input, LineError, Raw, Request, Validator, parse
from gateway.cancel import Cancel
from gateway.delivery import Delivery
from gateway.errors import as_api_error
from gateway.fields import invalid
from gateway.parsers import PARSERS
from policies.deployments import Deployment
from policies.keys import KeyHolder
from policies.tenants import Tenant
from router.batches import Batch, Batches, BatchState, Written, derived_id, event_text
from router.board import Board
from router.choose import names
from router.compact import encode
from router.files import file_path
from router.job import JobState, Line
from router.outbox import Outbox
from router.payloads import PayloadLostError, Payloads

log = structlog.get_logger(__name__)

AT_ONCE = 64  # lines made into jobs at once
AT_ONCE_BYTES = 1024 * 1024
SEGMENT = 200  # lines written at once
SEGMENT_BYTES = 8 * 1024 * 1024
VIEWED = 16  # jobs read at once, each with its result
CANCELLED_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lines of a batch, bytes of a line, and jobs of one batch that have not ended, at most. Seconds."""

    most_lines: int
    longest_line: int
    most_open: int
    file_ttl_s: float


@dataclass(frozen=True, slots=True)
class Tools:
    """What a course works with."""

    batches: Batches
    board: Board
    desk: Desk
    outbox: Outbox
    cancel: Cancel
    payloads: Payloads
    delivery: Delivery
    tenants: Mapping[str, Tenant]
    deployments: Mapping[str, Deployment]
    bounds: Bounds


class Course:
    """Drives one batch, as its owner. It holds one piece of the input and one segment of the output at most."""

    def __init__(self, tools: Tools, owner: str) -> None:
        self._tools = tools
        self._owner = owner
        self._input: Input | None = None
        self._may_be_made = True
        self._is_at_rest = False

    async def step(self, batch: Batch) -> bool:
        """Do what comes next; False when it is to be waited for.

        Raises what Redis, the log and the object store being away raise: then look, and step again.
        """
        try:
            return await self._step(batch)
        except PayloadLostError:
            self._input = None
            if batch.state is not BatchState.IN_PROGRESS:
                raise
            fault = Fault("input_lost", "The input file is not where it was stored.").values()
            return await self._tools.batches.finalize(batch, self._owner, BatchState.FAILED, [fault])

    async def _step(self, batch: Batch) -> bool:
        if batch.total is None:
            return await self._validate(batch)
        if batch.ending is not None:
            return await self._end(batch)
        batches, owner = self._tools.batches, self._owner
        if batch.now >= batch.expires_at:
            return await batches.finalize(batch, owner, BatchState.EXPIRED)
        if not batch.is_read and self._has_room(batch) and await self._feed(batch):
            return True
        if batch.to_write >= SEGMENT or (batch.to_write and not batch.open):
            return await self._write(batch)
        if batch.is_read and not batch.open:
            return await batches.finalize(batch, owner, BatchState.COMPLETED)
        self._rest()
        return False

    async def _end(self, batch: Batch) -> bool:
        if batch.open:
            return await self._cancel_jobs(batch)
        if batch.to_write:
            return await self._write(batch)
        if not batch.is_read and batch.ending is not BatchState.FAILED:
            return await self._write_rest(batch)
        return await self._close(batch)

    def _has_room(self, batch: Batch) -> bool:
        """Whether it is worth while to make more lines jobs."""
        most = self._tools.bounds.most_open
        return most - batch.open >= min(AT_ONCE, max(1, most // 2))

    def _rest(self) -> None:
        """Hold nothing while waiting, which may take hours."""
        self._input = None

    async def _validate(self, batch: Batch) -> bool:
        tools, endpoint = self._tools, batch.order.endpoint
        validator = Validator(
            endpoint=endpoint,
            models=self._models(batch),
            most_lines=tools.bounds.most_lines,
            longest=tools.bounds.longest_line,
        )
        try:
            async for raw in self._input_of(batch, 0).all():
                validator.look(raw)
                if validator.has_enough:
                    break
            validator.end()
        except PayloadLostError:
            validator.faults = [Fault("input_lost", "The input file is not where it was stored.")]
        if validator.faults:
            faults = [fault.values() for fault in validator.faults]
            return await tools.batches.refuse(batch, self._owner, faults, event_text(batch, BatchState.FAILED))
        return await tools.batches.begin(batch, self._owner, total=validator.total)

    async def _feed(self, batch: Batch) -> bool:
        """Make the next lines jobs; False when the tenant's queue has no room for them."""
        lines = min(AT_ONCE, self._tools.bounds.most_open - batch.open)
        if self._input is None or self._input.offset != batch.offset:
            self._input = self._input_of(batch, batch.offset)
        raws = await self._input.take(lines=lines, size=AT_ONCE_BYTES)
        offset = raws[-1].end if raws else batch.order.input_bytes
        try:
            made = await asyncio.gather(*(self._job(batch, raw) for raw in raws), return_exceptions=True)
            for outcome in made:
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException as error:
            self._input, self._may_be_made = None, True
            if isinstance(error, QueueFullError):
                return False
            if isinstance(error, BatchOverError):
                return True
            raise
        self._may_be_made = False
        refused = [outcome for outcome in made if isinstance(outcome, bytes)]
        return await self._tools.batches.advance(batch, self._owner, offset=offset, refused=refused)

    async def _job(self, batch: Batch, raw: Raw) -> bytes | None:
        """Make a line a job, once however often this runs. What cannot become one is a line of the error file."""
        tools = self._tools
        request = self._parse(batch, raw)
        job_id = derived_id(batch.id, "line", request.custom_id)
        if self._may_be_made and await self._is_made(batch, job_id):
            return None
        values = request.values
        try:
            asked = PARSERS[batch.order.endpoint](values)
            if asked.stream:
                raise invalid("stream", "a line of a batch cannot be streamed")
            rest_s = max(1.0, batch.expires_at - batch.now)
            await tools.desk.accept(
                KeyHolder(batch.tenant, batch.order.key_id, batch.order.key_name),
                asked,
                endpoint=batch.order.endpoint,
                raw=encode(values),
                values=values,
                job_id=job_id,
                deadline_s=min(rest_s, asked.wishes.deadline_s or rest_s),
                line=Line(batch.id, request.custom_id),
            )
        except Exception as error:
            if not _is_the_requests_fault(error):
                raise
            return batch_output.refused(job_id, request.custom_id, error)
        return None

    async def _is_made(self, batch: Batch, job_id: str) -> bool:
        """Whether an earlier driver made this job before it could say so."""
        state = await self._tools.board.state(batch.tenant, job_id)
        return state not in (None, JobState.ACCEPTING, JobState.REJECTED)

    def _parse(self, batch: Batch, raw: Raw) -> Request:
        """A line that was found good. Raises `PayloadLostError` where the file is another one by now."""
        try:
            longest = self._tools.bounds.longest_line
            return parse(raw, endpoint=batch.order.endpoint, models=None, longest=longest)
        except LineError:
            raise PayloadLostError("the input is not what it was") from None

    async def _cancel_jobs(self, batch: Batch) -> bool:
        """End what still runs; the last of it says so by itself."""
        tools = self._tools
        for job_id in await tools.batches.unfinished(batch, CANCELLED_AT_ONCE):
            view = await tools.board.view(batch.tenant, job_id)
            if view is not None and not view.state.is_terminal:
                await tools.cancel(view)
        return False

    async def _write(self, batch: Batch) -> bool:
        """Put lines that have ended into segments, and take them off the board."""
        output, error, count = bytearray(), bytearray(), 0
        ended = await self._tools.batches.ended(batch, SEGMENT)
        for start in range(0, len(ended), VIEWED):
            some = ended[start : start + VIEWED]
            for is_good, line in await asyncio.gather(*(self._line(batch, each) for each in some)):
                (output if is_good else error).extend(line)
            count += len(some)
            if len(output) + len(error) >= SEGMENT_BYTES:
                break
        return await self._commit(batch, output, error, count=count, offset=batch.offset)

    async def _line(self, batch: Batch, ended: bytes) -> tuple[bool, bytes]:
        """A line of the output file (True), or of the error file."""
        if ended.startswith(b"{"):
            return False, ended
        view = await self._tools.board.view(batch.tenant, ended.decode(), even_gone=True)
        if view is None:
            raise PayloadLostError("the board has forgotten a line before it was written")
        if view.state is not JobState.COMPLETED:
            return False, batch_output.not_completed(view, batch.ending)
        try:
            return True, batch_output.completed(view, await self._tools.delivery.result(view))
        except PayloadLostError as error:  # its client has deleted the job
            return False, batch_output.refused(view.job.id, batch_output.custom_id(view), error)

    async def _write_rest(self, batch: Batch) -> bool:
        """The lines whose turn did not come."""
        assert batch.ending is not None
        if self._input is None or self._input.offset != batch.offset:
            self._input = self._input_of(batch, batch.offset)
        raws = await self._input.take(lines=5 * SEGMENT, size=SEGMENT_BYTES)
        error = bytearray()
        for number, raw in enumerate(raws):
            custom_id = self._parse(batch, raw).custom_id
            job_id = derived_id(batch.id, "line", custom_id)
            # Who died may have made some of the next lines, which have ended and are written by now.
            if self._is_at_rest or number >= AT_ONCE or not await self._is_made(batch, job_id):
                error += batch_output.never_ran(job_id, custom_id, batch.ending)
        offset = raws[-1].end if raws else batch.order.input_bytes
        is_ours = await self._commit(batch, bytearray(), error, count=0, offset=offset)
        self._is_at_rest = is_ours
        return is_ours

    async def _commit(self, batch: Batch, output: bytearray, error: bytearray, *, count: int, offset: int) -> bool:
        """Store segments under names of this owner's, so that one who lost the batch cannot spoil them."""
        paths = []
        for kind, lines in (("out", output), ("err", error)):
            path = f"{_folder(batch)}{kind}-{batch.written}-{batch.offset}-{self._owner.rpartition('|')[2]}"
            if lines:
                await self._tools.payloads.put(path, bytes(lines))
            paths.append(path if lines else "")
        return await self._tools.batches.commit(
            batch, self._owner, count=count, offset=offset, output=paths[0], error=paths[1]
        )

    async def _close(self, batch: Batch) -> bool:
        """Join the segments to files, and end the batch."""
        assert batch.ending is not None
        segments = await self._tools.batches.segments(batch)
        files = [
            await self._join(batch, kind, paths) for kind, paths in zip(("output", "error"), segments, strict=True)
        ]
        return await self._tools.batches.close(
            batch,
            self._owner,
            batch.ending,
            event_text(batch, batch.ending),
            ttl_s=batch.order.output_ttl_s or self._tools.bounds.file_ttl_s,
            files=files,
        )

    async def _join(self, batch: Batch, kind: str, paths: Sequence[str]) -> Written | None:
        if not paths:
            return None
        file_id = derived_id(batch.id, kind)
        payloads = self._tools.payloads

        async def pieces() -> AsyncIterator[bytes]:
            for path in paths:
                async for piece in payloads.stream(path):
                    yield piece

        stored = await payloads.upload(file_path(batch.tenant, file_id), pieces())
        return Written(file_id, f"batch_{batch.id}_{kind}.jsonl", stored.size)

    async def tidy(self, batch: Batch) -> None:
        """Publish its end, and remove what it left behind."""
        await self._tools.outbox.drain(batch.tenant, job_id=batch.id)
        await self._tools.payloads.remove_all(_folder(batch))
        await self._tools.batches.tidied(batch.tenant, batch.id)
        log.info("batch_ended", batch=batch.id, tenant=batch.tenant, state=batch.state, lines=batch.total)

    def _models(self, batch: Batch) -> set[str]:
        tenant = self._tools.tenants.get(batch.tenant)
        return set(names(tenant, self._tools.deployments)) if tenant else set()

    def _input_of(self, batch: Batch, offset: int) -> Input:
        return Input(
            self._tools.payloads,
            file_path(batch.tenant, batch.order.input),
            size=batch.order.input_bytes,
            offset=offset,
            longest=self._tools.bounds.longest_line,
        )


def _is_the_requests_fault(error: Exception) -> bool:
    """Whether this line can never become a job, whereas others may."""
    status = as_api_error(error, request_id="").status
    return 400 <= status < 500 and status not in (401, 429)


def _folder(batch: Batch) -> str:
    return f"batches/{batch.tenant}/{batch.id}/"
