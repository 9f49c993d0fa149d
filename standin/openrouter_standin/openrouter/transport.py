"""What both faces of the stand-in do with a socket: a JSON answer, SSE events at a pace.

Belongs here: writing. Does not belong here: what is written (`wire`, `vllm_wire`, `sglang_wire`), when (`delivery`, `engine_face`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

from openrouter_standin.openrouter.wire import to_bytes

SLICE_S = 0.05  # shorter waits are joined: a timer per token would cost more than the token


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=to_bytes(value), status=status, content_type="application/json", headers=headers)


async def write_paced(response: web.StreamResponse, chunks: Sequence[bytes], left_s: float) -> int:
    """The chunks, spread evenly over `left_s` real seconds; how many went out until the client left (all, if it stayed)."""
    pace = max(left_s, 0.0) / max(len(chunks), 1)
    batch = max(1, int(SLICE_S / pace)) if pace > 0 else max(len(chunks), 1)
    for at in range(0, len(chunks), batch):
        try:
            await response.write(b"".join(chunks[at : at + batch]))
        except ConnectionError:
            return at
        await asyncio.sleep(pace * batch)
    return len(chunks)
