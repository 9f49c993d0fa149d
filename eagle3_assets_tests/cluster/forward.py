"""A TCP forwarder: `python forward.py LISTEN:PORT TARGET:PORT`. A host's loopback leads to the one server that all hosts share.

Belongs here: bytes both ways. Does not belong here: what they say. Standard library only: it runs inside a network namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.close()


async def serve(listen: str, target: str) -> None:
    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = target.rsplit(":", 1)
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    host, port = listen.rsplit(":", 1)
    server = await asyncio.start_server(joined, host, int(port), backlog=4096)
    print("listening", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
