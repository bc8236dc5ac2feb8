"""Where the lines of a file would go, decided as for jobs and without making any: what a pilot counts with."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from gateway.accept import Desk
from gateway.batch_lines import Input, LineError, Raw, parse
from gateway.errors import as_api_error
from gateway.parsers import PARSERS
from policies.keys import KeyHolder
from policies.scripts import BoardUnavailableError
from router.compact import encode
from router.files import File
from router.ledger import plain
from router.payloads import Payloads, PayloadUnavailableError

AT_ONCE = 200
AT_ONCE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Forecast:
    """Reads files as batches do. Lines longer than `longest` bytes are no requests."""

    desk: Desk
    payloads: Payloads
    longest: int

    async def routes(self, holder: KeyHolder, file: File, endpoint: str) -> AsyncGenerator[bytes]:
        """A JSON line for each line with something on it, in order, some at a time.

        Each tells the next what the heavy share still allows, as jobs would, but nothing of it is told to jobs.
        Raises `PayloadUnavailableError`, `PayloadLostError`, `BoardUnavailableError`.
        """
        apart = replace(self, desk=replace(self.desk, shares=self.desk.shares.copy()))
        lines = Input(self.payloads, file.path, size=file.size, offset=0, longest=self.longest)
        while raws := await lines.take(lines=AT_ONCE, size=AT_ONCE_BYTES):
            told = []
            for raw in raws:
                told.append(encode({"line": raw.number} | await apart._line(holder, raw, endpoint)) + b"\n")
                await asyncio.sleep(0)  # others have their turn
            yield b"".join(told)

    async def _line(self, holder: KeyHolder, raw: Raw, endpoint: str) -> dict[str, object]:
        try:
            request = parse(raw, endpoint=endpoint, models=None, longest=self.longest)
        except LineError as error:
            return {"fault": {"code": error.code, "message": error.message}}
        try:
            asked = PARSERS[endpoint](request.values)
            chosen = await self.desk.where(holder, asked, endpoint, request.values, size=len(raw.text or b""))
        except (BoardUnavailableError, PayloadUnavailableError):
            raise
        except Exception as error:
            refusal = as_api_error(error, request_id="")
            if refusal.status >= 500:
                raise
            return {"error": {"code": refusal.code, "message": refusal.message}}
        route, usd = chosen.route, chosen.estimate.usd
        return {
            "deployment": route.deployment,
            "lane": route.lane,
            "rule": route.rule,
            "estimate_usd": None if usd is None else plain(usd),
        }
