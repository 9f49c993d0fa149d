"""`WireAnswer`: one attempt as it came, and its body read once. Only the type lives here; `journal.py` stores it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.parse import parse_fields

Outcome = Literal["finished", "failed", "ambiguous"]
RetryClass = Literal["permanent", "transient", "content"]


@dataclass(frozen=True)  # no slots: what is read of the body is kept with it
class WireAnswer:
    """One attempt that reached a final body, or one whose outcome is known to be lost.

    `body` is the response as received, byte for byte (keep-alive whitespace and SSE lines included; content-encoding undone).
    `outcome`: finished = a usable answer; failed = a final refusal (`reason`, `retry_class`); ambiguous = sent, and the answer was
    lost: it may have been billed, its reservation stays. `cost_usd` is settled money (0.0 for engines and imports), None while unknown.
    Times are unix seconds. `headers` holds only those that matter (content-type, x-generation-id, retry-after, x-ratelimit-*).
    """

    request_id: str
    sample_id: str
    turn: int
    attempt: int
    dataset: str
    shard: str
    source: Literal["openrouter", "engine", "import"]
    request: dict[str, Any]
    status: int
    body: bytes
    outcome: Outcome
    headers: dict[str, str] = field(default_factory=dict)
    provider: str | None = None
    model: str | None = None
    generation_id: str | None = None
    started_at: float = 0.0
    finished_at: float = 0.0
    cost_usd: float | None = None
    reason: str | None = None
    retry_class: RetryClass | None = None
    server: str | None = (
        None  # who was asked: `openrouter.ai`, `loopback`, `embedded`, an engine's address; None in older records
    )
    completion_tokens: int | None = None  # as billed in `body`; None where nobody counted yet: a resume then parses the body

    @property
    def key(self) -> tuple[str, int]:
        return self.sample_id, self.turn

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "application/json")

    @cached_property
    def fields(self) -> Fields:
        """The body taken apart, once for everybody who holds this answer. Never raises (`Fields.problems`)."""
        return parse_fields(self.body, self.content_type)

    @cached_property
    def body_sha256(self) -> str:
        return hashlib.sha256(self.body).hexdigest()
