"""The pieces of a streamed answer on their way to whoever waits for them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from consumers.backend import BackendError, OnChunk
from policies.scripts import BoardUnavailableError
from router.board import Board
from router.job import Job

KEPT_S = 600.0
AWAY_S = 0.2


@asynccontextmanager
async def chunk_writer(board: Board, job: Job, owner: str, attempt: int) -> AsyncGenerator[OnChunk]:
    """A place for the pieces of a stream; on the way out all of them are on the board, in order, each once.

    So after a failure of the backend's as well: what it sent before that is the caller's. Not where this is cancelled.
    Pieces that come while a write is under way share the next one. While the board is away they are kept,
    as many as an answer may have; those of an owner that lost the job are dropped.
    """
    pieces: list[bytes] = []
    come = asyncio.Event()
    closing = False

    async def write() -> None:
        before = 0
        while not (closing and not pieces):
            await come.wait()
            come.clear()
            batch = pieces.copy()
            pieces.clear()
            while batch:
                try:
                    await board.add_chunks(job, owner, attempt, batch, before=before, ttl_s=KEPT_S)
                    break
                except BoardUnavailableError:
                    await asyncio.sleep(AWAY_S)
            before += len(batch)

    async def on_chunk(piece: bytes) -> None:
        pieces.append(piece)
        come.set()

    writer = asyncio.create_task(write())
    failure: BackendError | None = None
    try:
        try:
            yield on_chunk
        except BackendError as error:
            failure = error
        closing = True
        come.set()
        await writer
    finally:
        writer.cancel()
    if failure is not None:
        raise failure
