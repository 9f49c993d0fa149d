"""A turn's ids taken apart (`Parts`) ↔ the texts that stand in them. Both ways, each field by itself.

Belongs here: encoding the fields of an answer into parts, reading parts back, the text of one call in the profile's form. Does not
belong here: how servers bend texts (`hypotheses.py`, `wire_text.py`), markers and their order (`grammar.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eagle3_assets.targets.grammar import CallParts, Ids, Parts
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import ToolCall

Encode = Callable[[str], Sequence[int]]


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
    """One whole call as the model writes it: id and raw arguments, or (form "json") one object of name and raw arguments."""
    tools = profile.facts.tools
    if tools.form != "json":
        return CallParts(tuple(encode(call.id)), tuple(encode(call.arguments)))
    name = json.dumps(call.name, ensure_ascii=False)
    body = tools.body_format.format(name=name, arguments=call.arguments)
    return CallParts((), tuple(encode(body)))


def texts_of(profile: Profile, parts: Parts) -> TurnText:
    """The texts behind `parts`; bytes that are not UTF-8 become U+FFFD. A call that was cut before its arguments is left out.

    `texts_of(profile, parts_of(profile, turn)) == turn` where the call's id names its function (form "sections") and its arguments
    have no whitespace at their ends (form "json").
    """
    calls = (read_call(profile, call) for call in parts.calls if call.arguments is not None)
    return TurnText(profile.decode(parts.reasoning), profile.decode(parts.content), tuple(calls))


def read_call(profile: Profile, call: CallParts) -> ToolCall:
    """The call that `call` spells. An id or a body that has not the model's form gives an empty name and the text as it is."""
    arguments: Ids = call.arguments or ()
    tools = profile.facts.tools
    if tools.form != "json":
        head = profile.decode(call.head)
        match = profile.tool_id_pattern.match(head)
        return ToolCall(head, match["name"] if match else "", profile.decode(arguments))
    body = profile.decode(arguments)
    match = re.match(tools.body_pattern, body, re.DOTALL)
    name = _json_string(match["name"]) if match else None
    return ToolCall("", name, match["arguments"].strip()) if match and name is not None else ToolCall("", "", body)


def _json_string(text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
