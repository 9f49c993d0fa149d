"""Ids → the text that a server would return: is what we hold what came over the wire, byte for byte?

Belongs here: decoding a turn into fields, comparing them under the known ways in which servers bend text, canonicity of fields.
Does not belong here: which way a provider bends (`wire_profiles.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.search.edges import EDGES
from eagle3_assets.exact.search.habits import runs_of
from eagle3_assets.exact.search.leaks import read_leak
from eagle3_assets.targets.grammar import Ids, Parts
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.targets.turn_text import read_call
from eagle3_assets.wire.fields import Fields


def compare_text(profile: Profile, parts: Parts, fields: Fields, evidence: Mapping[str, Any]) -> str | None:
    """None when the ids, decoded and bent as the row's evidence says, are the wire's text; else the first difference. Of the
    evidence: `edits` {edge: [whitespace on the wire, whitespace that the model wrote]}, `leaked` (markers stood in the text),
    `arguments` other than "wire" (written anew by the server: the same JSON)."""
    texts = {
        "reasoning": _text(profile.decode, parts.reasoning, fields),
        "content": _text(profile.decode, parts.content, fields),
    }
    if evidence.get("leaked"):
        return _leak_difference(profile, parts, fields)
    edits = evidence.get("edits")
    for edge, edit in edits.items() if isinstance(edits, Mapping) else ():
        name, _, side = str(edge).partition("_")
        if edge not in EDGES or not isinstance(edit, list | tuple) or len(edit) != 2:
            return f"the evidence's edit of {edge} is not [wire, model]"
        wire, model = str(edit[0]), str(edit[1])
        text = texts[name]
        if not (text.startswith(model) if side == "lead" else text.endswith(model)):
            return f"{name} differs: it has not {model!r} at its {side}, where the evidence says so"
        texts[name] = wire + text[len(model) :] if side == "lead" else text[: len(text) - len(model)] + wire
    anew = evidence.get("arguments") not in (None, "wire")
    return _first_difference(texts["reasoning"], texts["content"], fields) or _calls_difference(profile, parts, fields, anew=anew)


def _leak_difference(profile: Profile, parts: Parts, fields: Fields) -> str | None:
    """Marker text came in reasoning or content: all text of the turn stands there, in order."""
    told, at = (fields.reasoning or "") + (fields.content or ""), 0
    for ids in (parts.reasoning, parts.content, *(run for call in parts.calls for run in (call.head, call.arguments or ()))):
        text = profile.decode(ids).strip()
        found = told.find(text, at)
        if found < 0:
            return f"the wire's text lacks {text[:40]!r} behind character {at}"
        at = found + len(text)
    return None


class Texts:
    """The texts of ids that a server returned with its text, each field encoded or decoded once.

    A field whose text encodes to its ids is canonical, and its ids spell that text: nothing is decoded for it.
    """

    def __init__(self, profile: Profile, parts: Parts, fields: Fields) -> None:
        self._profile = profile
        self._known: list[tuple[Ids, str]] = []
        for ids, text in ((parts.reasoning, fields.reasoning or ""), (parts.content, fields.content or "")):
            if _encodes_to(profile, text, ids):
                self._known.append((ids, text))

    def decode(self, ids: Ids) -> str:
        return next((text for known, text in self._known if known is ids), None) or self._profile.decode(ids)

    def canonical(self, ids: Ids) -> bool:
        return any(known is ids for known, _ in self._known) or _encodes_to(self._profile, self._profile.decode(ids), ids)


def matching_spacing(profile: Profile, parts: Parts, fields: Fields, texts: Texts | None = None) -> tuple[str | None, str | None]:
    """(the way in which the server bent the text of known ids, None), or (None, the first difference under verbatim).

    verbatim; injected, injected_inner (a space joined to markers); stripped (whitespace gone at an end). Text in which markers stand
    that no parser took out (`<think>R</think>C` in content) is read as a parser would have.
    """
    decode = texts.decode if texts else profile.decode
    found = _matching_spacing(profile, parts, fields, decode)
    if found[1] and (leak := read_leak(profile, fields, parts.opened or parts.closed)):
        as_parsed = _matching_spacing(profile, parts, leak[0], decode)
        return as_parsed if as_parsed[1] is None else found
    return found


def _matching_spacing(
    profile: Profile, parts: Parts, fields: Fields, decode: Callable[[Ids], str]
) -> tuple[str | None, str | None]:
    reasoning, content = _text(decode, parts.reasoning, fields), _text(decode, parts.content, fields)
    calls = _calls_difference(profile, parts, fields) or _names_difference(profile, parts, fields)
    if calls:
        return None, calls
    if _first_difference(reasoning, content, fields) is None:
        return "verbatim", None
    ways = [*_edge_ways(reasoning, fields.reasoning or ""), *_edge_ways(content, fields.content or "")]
    if "other" in ways:
        return None, _first_difference(reasoning, content, fields)
    if "join" in ways[::2]:
        return ("injected" if ways[0] == "join" else "injected_inner"), None
    return ("stripped" if "strip" in ways else "injected_inner"), None


def _edge_ways(ours: str, wire: str) -> tuple[str, str]:
    """What was done at the front and the back of a field: keep, join, strip, or something other."""
    if ours.strip() != wire.strip():
        return "other", "other"
    (a, b), (x, y) = runs_of(ours) or ("", ""), runs_of(wire) or ("", "")
    return _edge_way(a, x, " " + a, a.lstrip("\r\n")), _edge_way(b, y, b + " ", b.rstrip("\r\n"))


def _edge_way(model: str, wire: str, joined: str, trimmed: str) -> str:
    if wire == model:
        return "keep"
    if wire == joined:
        return "join"
    return "strip" if wire in ("", trimmed) else "other"


def _text(decode: Callable[[Ids], str], ids: Ids, fields: Fields) -> str:
    """Decoded text; servers hold back a character that a cut left incomplete."""
    text = decode(ids)
    return text.rstrip("\ufffd") if fields.finish_reason == "length" else text


def _first_difference(reasoning: str, content: str, fields: Fields) -> str | None:
    for name, ours, theirs in (("reasoning", reasoning, fields.reasoning or ""), ("content", content, fields.content or "")):
        if fields.finish_reason == "length":
            theirs = theirs.rstrip("\ufffd")
        if ours != theirs:
            at = next((k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
            return f"{name} differs at character {at}: ids say {ours[at : at + 20]!r}, the wire {theirs[at : at + 20]!r}"
    return None


def _calls_difference(profile: Profile, parts: Parts, fields: Fields, *, anew: bool = False) -> str | None:
    """Calls agree when names and raw arguments do (outer whitespace of arguments is lost in parsers; ids may be rewritten).
    `anew`: the server wrote the arguments anew, so they agree when they are the same JSON."""
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
        if arguments.strip() != wire.arguments.strip() and not (
            (anew or not profile.writes_call_ids) and _same_json(arguments, wire.arguments)
        ):
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


def canonical_fields(profile: Profile, parts: Parts, texts: Texts | None = None) -> dict[str, Any]:
    """encode(decode(ids)) == ids, field by field: {"canonical": bool, "noncanonical": [field…]}. Measured, never assumed."""
    named = {"reasoning": parts.reasoning, "content": parts.content}
    for k, call in enumerate(parts.calls):
        named |= {f"call {k} id": call.head, f"call {k} arguments": call.arguments or ()}
    canonical = texts.canonical if texts else lambda ids: _encodes_to(profile, profile.decode(ids), ids)
    odd = [name for name, ids in named.items() if not canonical(ids)]
    return {"canonical": not odd, **({"noncanonical": odd} if odd else {})}


def _encodes_to(profile: Profile, text: str, ids: Ids) -> bool:
    try:
        return tuple(profile.encode(text)) == ids
    except ExactError:  # more blanks in a row than any encoder takes: no encoding of it is the canonical one
        return False
