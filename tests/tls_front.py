"""Ends TLS in front of a server that speaks none, as stunnel would: the Valkey that tests install is such a one.

    python -m tests.tls_front CERTIFICATE.pem PORT

prints `front listening on HOST:PORT` and ends when its standard input does.
"""

import asyncio
import ssl
import sys
from contextlib import suppress

HOST = "127.0.0.1"


async def front(certificate: str, behind: int) -> None:
    """Serve until standard input ends."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(HOST, behind)
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    async with await asyncio.start_server(connected, HOST, 0, ssl=context) as server:
        print(f"front listening on {HOST}:{server.sockets[0].getsockname()[1]}", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, ssl.SSLError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(front(sys.argv[1], int(sys.argv[2])))
