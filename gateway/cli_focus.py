"""`pointsman costs --focus FILE`: the ledger as a table in the columns of FOCUS."""

import csv
import time
from collections import OrderedDict
from pathlib import Path

from gateway import focus, wiring
from gateway.settings import Settings
from router import topics

REMEMBERED = 500_000  # lines, by which a repeat is known; those come soon after
DAY_S = 86_400.0


async def write(settings: Settings, file: Path, *, days: int) -> tuple[int, int]:
    """The charges of so many days, to a CSV file. How many rows it has, and how many lines had no price.

    Raises OSError, and what the log raises.
    """
    seen = OrderedDict[str, None]()
    written = unpriced = 0
    since = f"{time.strftime('%Y-%m-%d', time.gmtime(time.time() - (days - 1) * DAY_S))}T00:00:00Z"
    with file.open("w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(table, focus.COLUMNS, restval="")
        writer.writeheader()
        async with wiring.core(settings) as core:
            async for delivery in core.log.read(topics.CHARGES):
                for row in focus.rows(delivery.record, core.deployments):
                    if row["ChargePeriodStart"] < since or row["x_line_id"] in seen:
                        continue
                    seen[row["x_line_id"]] = None
                    if len(seen) > REMEMBERED:
                        seen.popitem(last=False)
                    if "EffectiveCost" not in row:
                        unpriced += 1
                        continue
                    writer.writerow(row)
                    written += 1
    return written, unpriced
