"""Chunks of a stream, written down as servers send them."""

from __future__ import annotations

import json
from typing import Any

from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.parse import parse_fields


def delta(finish: str | None = None, /, *, index: Any = 0, more: dict[str, Any] | None = None, **said: Any) -> dict[str, Any]:
    return {"id": "gen-1", "choices": [{"index": index, "delta": said, "finish_reason": finish, **(more or {})}]}


def message(finish: str | None = None, /, **said: Any) -> dict[str, Any]:
    """A chunk that has a whole message in the place of a delta."""
    return {"id": "gen-1", "choices": [{"index": 0, "message": said, "finish_reason": finish}]}


def usage(completion: Any = 7, prompt: Any = 10) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def as_bytes(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def read(*chunks: dict[str, Any]) -> Fields:
    return parse_fields(as_bytes(*chunks), "text/event-stream")


def piece(id: str | None = None, name: str | None = None, arguments: str | None = None, **more: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**({"id": id} if id is not None else {}), "function": function, **more}
