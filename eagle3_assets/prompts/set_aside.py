"""Why a source row is set aside: the table of reasons, and the exception that carries one out of a mapping.

Belongs here: the names, what each means, text made safe to show.
Does not belong here: the checks themselves (`mapping.py` finds what cannot be mapped, `screen.py` what must not be sent).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

REASONS: dict[str, str] = {
    "not_json": "the line, or a JSON column of the row, is not JSON (or holds NaN, bytes, dates)",
    "missing_column": "a column that the mapping names is missing or null",
    "unsupported_content": "message content that is neither text nor text parts (images, audio)",
    "wrong_roles": "an unknown role, a system message in the middle, or an order that no chat template accepts",
    "ends_wrong": "after the turns policy the conversation does not end in a user or tool message",
    "empty": "no messages, or a user message without text",
    "no_answer": "backend = import, but the row has neither a final assistant message nor output ids",
    "bad_ids": "output or prompt ids that are not non-negative 32-bit integers",
    "bad_tool_call": "a tool call without a name, or with arguments that are neither text nor an object",
    "invalid_tool_schema": "a tool name outside [A-Za-z0-9_-]{1,64}, parameters that are no object schema, or a name twice",
    "tool_result_without_call": "a tool result whose id belongs to no open call of the assistant turn before it",
    "call_without_result": "a tool call of the history that was never answered",
    "lone_surrogate": "a lone UTF-16 surrogate: encoders replace or refuse it (docs/research/tokenizers.md#2)",
    "nul": "a NUL character",
    "control_marker": "text that a server would read as a control token of the chat grammar",
    "too_long": "more characters than the dataset's max_chars",
    "duplicate": "the same prompt as another selected row; the rows are merged",
}

EXAMPLES_PER_REASON = 20
EXAMPLE_CHARS = 200


class BadRow(Exception):
    """One row cannot become a prompt. Not a user's mistake: it is counted, never shown as an error."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def shown(text: str, limit: int = EXAMPLE_CHARS) -> str:
    """`text` on one line, at most `limit` characters, with everything unprintable (terminal escapes, surrogates) escaped."""
    out = ""
    for char in text[:limit]:
        piece = char if char.isprintable() else char.encode("unicode_escape").decode()
        if len(out) + len(piece) > limit - 1:
            return out + "…"
        out += piece
    return out + "…" if len(text) > limit else out


@dataclass(slots=True)
class SetAside:
    """Counts by reason, with the first few examples of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def add(self, reason: str, source_row: str, text: str) -> None:
        self.counts[reason] += 1
        kept = self.examples.setdefault(reason, [])
        if len(kept) < EXAMPLES_PER_REASON:
            kept.append({"source_row": shown(source_row), "text": shown(text)})

    def as_json(self) -> dict[str, Any]:
        return {
            reason: {"count": count, "meaning": REASONS[reason], "examples": self.examples.get(reason, [])}
            for reason, count in sorted(self.counts.items())
        }
