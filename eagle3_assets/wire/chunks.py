"""Bytes → the JSON objects in them: one for a whole body, one an event for a stream.

Belongs here: what a stream is, server-sent events, JSON that servers send although it is none. Does not belong here: what the objects
say (`answer.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

DONE = b"[DONE]"


def is_stream(body: bytes, content_type: str) -> bool:
    """Whether the body is server-sent events. A JSON object under the header of a stream (an error, mostly) is none."""
    start = body[:4096].lstrip() or body.lstrip()
    return not start.startswith(b"{") and (
        "event-stream" in content_type.lower() or start.startswith((b"data:", b":", b"event:", b"id:", b"retry:"))
    )


def read_json(data: bytes) -> Any:
    """Parsed JSON, or None. orjson refuses lone surrogates and NaN; the standard library reads them, later stages judge them."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            return None


def events(body: bytes) -> Iterator[bytes]:
    """The data of each server-sent event; comments (`: OPENROUTER PROCESSING`) and other fields are skipped."""
    lines: list[bytes] = []
    for raw in [*body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"), b""]:
        if raw.startswith(b"data:"):
            lines.append(raw[5:].removeprefix(b" "))
        elif not raw.strip() and lines:
            joined = b"\n".join(lines)
            # some servers leave out the blank line between events
            yield from [joined] if len(lines) == 1 or read_json(joined) is not None else lines
            lines = []
