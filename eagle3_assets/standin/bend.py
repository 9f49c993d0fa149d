"""Truth ids -> what a provider returns: text pieces, tool calls, finish reason, and the bill. Pure functions.

Belongs here: the effect of `[provider.text]` and `[provider.billing]`. Does not belong here: bodies (`wire`), prompts (`render`).
Everything works on *pieces* (one string per id, empty where an id shows nothing), so that a stream's deltas and a whole body are the same
text by construction, and a delta knows its ids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_assets.standin import chance
from eagle3_assets.standin.schema.provider import Billing, Provider, Text
from eagle3_assets.standin.vocabulary import Ids, Parts, Vocabulary

Pieces = tuple[str, ...]
_NATIVE_ID = re.compile(r"functions\.(.+):(\d+)")


@dataclass(frozen=True)
class BentCall:
    """A tool call as returned."""

    id: str
    name: str
    arguments: Pieces


@dataclass(frozen=True)
class Bent:
    """The answer as returned. `edits` names each change that the profile made (for the truth file)."""

    reasoning: Pieces
    content: Pieces
    calls: tuple[BentCall, ...]
    finish_reason: str
    edits: tuple[str, ...]

    @property
    def reasoning_text(self) -> str | None:
        """None when empty, as on the wire."""
        return "".join(self.reasoning) or None

    @property
    def content_text(self) -> str | None:
        return "".join(self.content) or None


@dataclass(frozen=True)
class Bill:
    """Token counts by the provider's convention; money in picodollars."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    prompt_pico: int
    completion_pico: int

    @property
    def total_pico(self) -> int:
        return self.prompt_pico + self.completion_pico


def strip_pieces(pieces: Sequence[str]) -> Pieces:
    """`str.strip` over the joined text, done in the pieces; as many come back."""
    seen = [k for k, piece in enumerate(pieces) if piece.strip()]
    if not seen:
        return ("",) * len(pieces)
    out = ["" if k < seen[0] or k > seen[-1] else piece for k, piece in enumerate(pieces)]
    out[seen[0]] = out[seen[0]].lstrip()
    out[seen[-1]] = out[seen[-1]].rstrip()
    return tuple(out)


def inject_pieces(pieces: Sequence[str], *, leading: bool, trailing: bool) -> Pieces:
    """One space in front of the first text, one behind the last; an empty run stays empty (there is nothing to join)."""
    out = list(pieces)
    shown = [k for k, piece in enumerate(pieces) if piece]
    if shown and leading:
        out[shown[0]] = " " + out[shown[0]]
    if shown and trailing:
        out[shown[-1]] += " "
    return tuple(out)


def finish_reason(parts: Parts) -> str:
    """length without an end token, tool_calls with calls, else stop."""
    if not parts.ended:
        return "length"
    return "tool_calls" if parts.calls else "stop"


def bend_answer(parts: Parts, text: Text, vocabulary: Vocabulary, *, salt: str, calls_so_far: int = 0) -> Bent:
    """The answer's parts as this profile returns them; `salt` makes rewritten tool ids unique and reproducible, `calls_so_far` are the
    calls of the history, from which a server that renumbers goes on."""
    edits: list[str] = []
    runs = {"reasoning": vocabulary.pieces(parts.reasoning), "content": vocabulary.pieces(parts.content)}
    edges = {
        "reasoning": (text.inject_reasoning_leading, text.inject_reasoning_trailing and (parts.closed or parts.section)),
        "content": (text.inject_content_leading, False),
    }
    for name, raw in runs.items():
        whole = "".join(raw)
        pieces: Pieces = raw
        if text.strip:
            pieces = strip_pieces(pieces)
            if "".join(pieces) != whole:
                edits.append(f"strip:{name}")
        leading, trailing = edges[name]
        runs[name] = inject_pieces(pieces, leading=leading, trailing=trailing)
        if any(pieces):
            edits += [f"inject_leading:{name}"] * leading + [f"inject_trailing:{name}"] * trailing
    calls = tuple(
        _bend_call(vocabulary.text(c.header), vocabulary.pieces(c.arguments), text, f"{salt}:{k}", calls_so_far + k)
        for k, c in enumerate(parts.calls)
    )
    if any(bent.id != vocabulary.text(true.header) for bent, true in zip(calls, parts.calls, strict=True)):
        edits.append(f"tool_ids:{text.tool_ids}")
    if any("".join(bent.arguments) != vocabulary.text(true.arguments) for bent, true in zip(calls, parts.calls, strict=True)):
        edits.append("strip:arguments")
    if parts.stray:
        edits.append("dropped:stray_tool_text")
    return Bent(runs["reasoning"], runs["content"], calls, finish_reason(parts), tuple(edits))


def _bend_call(header: str, arguments: Pieces, text: Text, salt: str, number: int) -> BentCall:
    native = _NATIVE_ID.fullmatch(header.strip())
    name = native.group(1) if native else header.strip()
    call_id = {
        "native": header,
        "renumbered": f"functions.{name}:{number}",
        "call_hex": f"call_{chance.hexadecimal(24, 'tool id', salt)}",
    }[text.tool_ids]
    return BentCall(call_id, name, strip_pieces(arguments) if text.strip else arguments)


def count_completion(completion: Ids, parts: Parts, billing: Billing) -> int:
    """completion_tokens by the provider's convention, from the true ids."""
    return len(completion) - (parts.ended and not billing.counts_end)


def count_reasoning(parts: Parts, bent: Bent, billing: Billing) -> int:
    """reasoning_tokens by the provider's convention."""
    match billing.reasoning_tokens:
        case "with_close":
            return len(parts.reasoning) + parts.closed
        case "text":
            return len(parts.reasoning)
        case "estimate":
            return math.ceil(len(bent.reasoning_text or "") / 4)
        case _:
            return 0


def make_bill(prompt: Ids, completion: Ids, parts: Parts, bent: Bent, provider: Provider) -> Bill:
    """What OpenRouter charges for this answer of this provider."""
    completion_tokens = count_completion(completion, parts, provider.billing)
    return Bill(
        prompt_tokens=len(prompt),
        completion_tokens=completion_tokens,
        reasoning_tokens=count_reasoning(parts, bent, provider.billing),
        prompt_pico=len(prompt) * provider.prompt_pico,
        completion_pico=completion_tokens * provider.completion_pico,
    )
