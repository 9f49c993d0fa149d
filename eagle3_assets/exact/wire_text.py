"""Ids → the text that a server would return: is what we hold what came over the wire, byte for byte?

Belongs here: decoding a turn into fields, comparing them under the known ways in which servers bend text, canonicity of fields.
Does not belong here: which way a provider bends (`wire_profiles.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eagle3_assets.exact.fields import Fields
from eagle3_assets.exact.grammar import Parts
from eagle3_assets.exact.hypotheses import INJECTED_EDGES, Texts, bend, unbend
from eagle3_assets.exact.tokenizer import Profile
from eagle3_assets.exact.turn_text import read_call


def compare_text(profile: Profile, parts: Parts, fields: Fields, edits: Mapping[str, int]) -> str | None:
    """None when the ids, decoded and bent by `edits` (edge → -1 a space was taken off, +1 one was put back), are the wire's text;
    else the first difference."""
    texts = Texts(_text(profile, parts.reasoning, fields), _text(profile, parts.content, fields), tuple(edits.items()))
    reasoning, content = bend(texts)
    return _first_difference(reasoning, content, fields) or _calls_difference(profile, parts, fields)


def matching_spacing(profile: Profile, parts: Parts, fields: Fields) -> tuple[str | None, str | None]:
    """(the way in which the server bent the text of known ids, None), or (None, the first difference under verbatim).

    verbatim; injected, injected_inner (a space joined to markers); stripped (whitespace gone at both ends of both fields).
    """
    reasoning, content = _text(profile, parts.reasoning, fields), _text(profile, parts.content, fields)
    calls = _calls_difference(profile, parts, fields) or _names_difference(profile, parts, fields)
    if calls:
        return None, calls
    if _first_difference(reasoning, content, fields) is None:
        return "verbatim", None
    for spacing in INJECTED_EDGES:
        wire = unbend(spacing, fields.reasoning or "", fields.content or "", calls=bool(fields.tool_calls))
        if wire is not None and (wire.reasoning, wire.content) == (reasoning, content):
            return spacing, None
    if _first_difference(reasoning.strip(), content.strip(), fields) is None:
        return "stripped", None
    return None, _first_difference(reasoning, content, fields)


def _text(profile: Profile, ids: tuple[int, ...], fields: Fields) -> str:
    """Decoded text; servers hold back a character that a cut left incomplete."""
    text = profile.decode(ids)
    return text.rstrip("\ufffd") if fields.finish_reason == "length" else text


def _first_difference(reasoning: str, content: str, fields: Fields) -> str | None:
    for name, ours, theirs in (("reasoning", reasoning, fields.reasoning or ""), ("content", content, fields.content or "")):
        if fields.finish_reason == "length":
            theirs = theirs.rstrip("\ufffd")
        if ours != theirs:
            at = next((k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
            return f"{name} differs at character {at}: ids say {ours[at : at + 20]!r}, the wire {theirs[at : at + 20]!r}"
    return None


def _calls_difference(profile: Profile, parts: Parts, fields: Fields) -> str | None:
    """Calls agree when names and raw arguments do (outer whitespace of arguments is lost in parsers; ids may be rewritten)."""
    ours = [call for call in parts.calls if call.arguments is not None]
    theirs = fields.tool_calls
    if fields.finish_reason == "length" and len(ours) > len(theirs):
        ours = ours[: len(theirs)]  # a parser shows no unfinished call
    if len(ours) != len(theirs):
        return f"{len(ours)} calls in the ids, {len(theirs)} on the wire"
    for k, (call, wire) in enumerate(zip(ours, theirs, strict=True)):
        told = read_call(profile, call)
        if told.id != wire.id and told.name and told.name != wire.name:
            return f"call {k}: ids say {told.id or told.name!r}, the wire {wire.name!r}"
        arguments = told.arguments.rstrip("\ufffd") if fields.finish_reason == "length" else told.arguments
        if arguments.strip() != wire.arguments.strip() and not (profile.calls_are_json and _same_json(arguments, wire.arguments)):
            return f"arguments of call {k}: ids say {arguments[:40]!r}, the wire {wire.arguments[:40]!r}"
    return None


def _same_json(one: str, other: str) -> bool:
    """Where a call is one JSON object, every parser parses it, and writes its arguments anew."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except (ValueError, RecursionError):
        return False


def _names_difference(profile: Profile, parts: Parts, fields: Fields) -> str | None:
    """A name on the wire can only come from the call's id in the ids, however odd that id is."""
    for k, (call, wire) in enumerate(zip(parts.calls, fields.tool_calls, strict=False)):
        told = read_call(profile, call)
        if told.name != wire.name if told.name else wire.name not in (told.id or told.arguments):
            return f"name of call {k}: ids say {told.id or told.name!r}, the wire {wire.name!r}"
    return None


def canonical_fields(profile: Profile, parts: Parts) -> dict[str, Any]:
    """encode(decode(ids)) == ids, field by field: {"canonical": bool, "noncanonical": [field…]}. Measured, never assumed."""
    named = {"reasoning": parts.reasoning, "content": parts.content}
    for k, call in enumerate(parts.calls):
        named |= {f"call {k} id": call.head, f"call {k} arguments": call.arguments or ()}
    odd = [name for name, ids in named.items() if tuple(profile.encoding.encode_ordinary(profile.decode(ids))) != ids]
    return {"canonical": not odd, **({"noncanonical": odd} if odd else {})}
