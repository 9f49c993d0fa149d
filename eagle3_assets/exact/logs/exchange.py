"""`LoggedExchange`: what a reader of logs hands on. Only the type lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LoggedExchange:
    """One record read. `body`: the response as it would have come over the wire (verbatim where the log kept it as text). `at`: when
    it was answered, unix seconds; `provider`: who answered by the log's own words, the body may know better; `assumed`: what the reader
    had to assume, in words: no such row may be better than C1."""

    id: str | None
    request: Mapping[str, Any]
    body: bytes
    content_type: str
    status: int | None
    at: float | None = None
    provider: str | None = None
    assumed: str | None = None
