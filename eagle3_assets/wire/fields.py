"""`Fields`: the body of an answer taken apart, nothing changed.

Belongs here: the record and its texts' storable form. Does not belong here: reading it from bytes (`parse.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as returned; `arguments` is the raw string (docs/design.md#rule-7: never parsed and dumped)."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Fields:
    """What a server returned. None means absent on the wire; "" means an empty string was sent.

    `billed_*` are token counts from `usage`; `reasoning_tokens` of 0 is kept as 0 here (whether it counts as absent is a matter of
    the wire profile). `prompt_ids` / `output_ids` only where an engine returned ids. `deltas` are the stream's text pieces in order:
    (channel, text) with channel reasoning, content or tool:<index>. `problems` say why the answer cannot be believed; `notes` name
    what was odd and changes nothing (a repeated chunk, a float that is a count).
    """

    reasoning: str | None
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    native_finish_reason: str | None = None
    provider: str | None = None
    model: str | None = None
    generation_id: str | None = None
    billed_prompt: int | None = None
    billed_completion: int | None = None
    billed_reasoning: int | None = None
    cost_usd: float | None = None
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None
    logprobs: tuple[dict[str, Any], ...] | None = None
    deltas: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())


def storable(text: str | None) -> str | None:
    """`text` as UTF-8 can hold it: a lone surrogate becomes `?`. Names and ids only, never text that has token ids."""
    return None if text is None else text.encode("utf-8", "replace").decode()
