"""A member of a group that takes one record and then does nothing, until it is killed.

Arguments: kind, address, prefix, topic, group. Prints "took POSITION".
"""

import asyncio
import sys

from tests.servers import LogPlace


async def _main() -> None:
    kind, address, prefix, topic, group = sys.argv[1:]
    async with LogPlace(kind, address, prefix).open() as log, log.subscribe([topic], group=group) as member:
        taken = False
        while True:
            for delivery in await member.take(0 if taken else 1):
                print("took", delivery.position, flush=True)
                taken = True


asyncio.run(_main())
