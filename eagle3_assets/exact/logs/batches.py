"""The request file of an OpenAI batch: one request a line, found again by its `custom_id`.

Belongs here: the index (a file of 100,000 requests does not stand in memory). Does not belong here: the answers (`shapes.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class BatchRequests:
    """Where in `path` each request starts."""

    path: Path
    offsets: Mapping[str, int]

    def request_of(self, custom_id: str) -> Any:
        """The body of one request; None for an id that the file does not have."""
        if custom_id not in self.offsets:
            return None
        with self.path.open("rb") as handle:
            handle.seek(self.offsets[custom_id])
            return json.loads(handle.readline()).get("body")


def index_batch(path: Path) -> BatchRequests | None:
    """The index of a batch's request file; None where the file is not one. Raises ValueError for one that is damaged or names an id
    twice, OSError where it cannot be read."""
    offsets: dict[str, int] = {}
    at = 0
    with path.open("rb") as handle:
        for number, line in enumerate(handle, start=1):
            if line.strip():
                name = _custom_id(line)
                if name is None and not offsets:
                    return None
                if name is None:
                    raise ValueError(f"line {number} has no custom_id and body, the lines before do")
                if name in offsets:
                    raise ValueError(f"custom_id {name!r} stands there twice")
                offsets[name] = at
            at += len(line)
    return BatchRequests(path, offsets) if offsets else None


def _custom_id(line: bytes) -> str | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    fits = isinstance(record, dict) and isinstance(record.get("custom_id"), str) and isinstance(record.get("body"), dict)
    return record["custom_id"] if fits else None
