"""A turn's ids taken apart (`Parts`) ↔ the texts that stand in them. Both ways, each field by itself.

Belongs here: encoding the fields of an answer into parts, reading parts back. Does not belong here: how servers bend texts
(`hypotheses.py`, `wire_text.py`), markers and their order (`grammar.py`), how a family writes a call (`calls/`).
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_assets.targets.grammar import CallParts, Encode, Parts
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields, ToolCall


@dataclass(frozen=True, slots=True)
class TurnText:
    """What the model wrote: reasoning, content ("" where nothing), calls with the id that the model wrote ("" where it writes none)."""

    reasoning: str
    content: str
    calls: tuple[ToolCall, ...] = ()


def parts_of(
    profile: Profile, turn: TurnText, *, thinking: bool = True, closed: bool = True, encode: Encode | None = None
) -> Parts:
    """The parts of a whole turn. `closed`: the reasoning has its closing marker (False only where tools end it). Raises ExactError
    for text that has no ids (lone surrogates)."""
    encode = encode or profile.encode
    reasons = thinking and profile.opened_by != "never"
    return Parts(
        reasoning=tuple(encode(turn.reasoning)) if reasons else (),
        content=tuple(encode(turn.content)),
        calls=tuple(call_parts(profile, call, encode) for call in turn.calls),
        opened=reasons and profile.opened_by == "model",
        closed=reasons and closed,
        section=True if turn.calls else None,
        ended=True,
    )


def call_parts(profile: Profile, call: ToolCall, encode: Encode) -> CallParts:
    """One whole call as the model's family writes it (`targets/calls/`). Raises ExactError for one that it cannot write."""
    return profile.grammar.calls.call_parts(call, encode)


def texts_of(profile: Profile, parts: Parts) -> TurnText:
    """The texts behind `parts`; bytes that are not UTF-8 become U+FFFD. A call that was cut before its arguments is left out.

    `texts_of(profile, parts_of(profile, turn)) == turn` where the call's id names its function (form "sections") and its arguments
    have no whitespace at their ends (bodies).
    """
    calls = (read_call(profile, call) for call in parts.calls if call.arguments is not None)
    return TurnText(profile.decode(parts.reasoning), profile.decode(parts.content), tuple(calls))


def read_call(profile: Profile, call: CallParts) -> ToolCall:
    """The call that `call` spells. An id or a body that has not the model's form gives an empty name and the text as it is."""
    return profile.grammar.calls.read_call(call)


def doubt_of(profile: Profile, fields: Fields) -> str | None:
    """Why the ids behind an answer's texts and calls are a guess however well they fit the bill, or None."""
    doubts = [profile.doubts(text) for text in (fields.reasoning, fields.content) if text]
    doubts += [profile.grammar.calls.doubt(call) for call in fields.tool_calls]
    return next((doubt for doubt in doubts if doubt is not None), None)
