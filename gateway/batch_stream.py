"""A batch told as events: its states, and how far it is."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from gateway import render
from gateway.delivery import KEEP_ALIVE_S, LOOK_S, Caller, Delivery
from gateway.errors import ApiError, UnknownBatchError
from router.batches import Batch, Batches
from router.compact import encode


@dataclass(frozen=True, slots=True)
class BatchStream:
    """Tells the events after number `after`, until the batch has ended or `seconds` are over.

    Their numbers are the board's, so that any process can go on with them. Of a long batch the oldest are forgotten;
    each says by itself how far the batch was.
    """

    delivery: Delivery
    batches: Batches
    batch: Batch
    seconds: float
    after: int

    async def told(self, caller: Caller) -> AsyncGenerator[bytes]:
        """See `EventStream`. A caller who leaves changes nothing."""
        now = asyncio.get_running_loop().time
        ends, spoke, after, batch = now() + self.seconds, now(), self.after, self.batch
        with self.delivery.following(batch.name, caller):
            while not caller.is_gone and now() < ends:
                caller.woken.clear()
                # In this order, so that a batch that has ended has all its events in the second answer.
                view = await self.batches.view(batch.tenant, batch.id, channel=self.delivery.channel)
                if view is None:
                    raise UnknownBatchError
                while events := await self.batches.events(batch.tenant, batch.id, after):
                    after, spoke = events[-1][0], now()
                    yield b"".join(_frame(number, text) for number, text in events)
                if view.state.is_terminal:
                    return
                if now() - spoke >= KEEP_ALIVE_S:
                    yield render.KEEP_ALIVE
                    spoke = now()
                await caller.sleep(LOOK_S)

    def failed(self, error: ApiError) -> bytes:
        """An error that ends the stream; the batch goes on."""
        return b"event: error\ndata: %b\n\n" % encode(error.body)


def _frame(number: int, text: bytes) -> bytes:
    kind = text.partition(b'"type":"')[2].partition(b'"')[0]
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, kind, text)
