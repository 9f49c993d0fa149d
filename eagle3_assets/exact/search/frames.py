"""Frames: everything of a completion but the whitespace at the edges of its two texts, in every way that the wire leaves open.

Belongs here: the finite space, each member with the finding that put it there: ids of calls, the spelling of arguments, where
reasoning ended, where a truncated answer was cut, markers that leaked into the text. Does not belong here: edges (`edges.py`),
choosing (`selection.py`).

A frame's `share` is how often a model writes that way where the wire leaves several ways open; the first frame is the text as it
stands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from eagle3_assets.exact.search.edges import FieldText
from eagle3_assets.exact.search.leaks import read_leak
from eagle3_assets.exact.search.offpath import offpath_arguments
from eagle3_assets.targets.grammar import CallParts, Ids, Parts, assemble
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.targets.turn_text import call_parts
from eagle3_assets.wire.fields import Fields, ToolCall

ENDS_TURN = ("stop", "tool_calls")
ToolIds = Literal["none", "wire", "rebuilt"]
# How a model may have spelled arguments that a server wrote anew (docs/research/openrouter-contract.md#4.3-6); `wire` is as
# returned.
STYLES = ("wire", "spaced", "compact", "indented", "plain")
# How likely a server of which nothing is known writes arguments anew: Groq, Together, SiliconFlow and Avian of some 20 recorded endpoints
WRITES_ANEW = 0.2
STYLE_SHARE = {"wire": 0.2, "spaced": 0.5, "compact": 0.15, "indented": 0.1, "plain": 0.05}
# How likely compact arguments leave the encoder's path at a server of which nothing is known, and at one that was seen to return what the
# model sampled (recorded: 31 of 74 compact fields with token-level streams, 28 of them at one endpoint; 3 of 41 elsewhere)
OFF_PATH, LEAVES_PATH, SELDOM_LEAVES_PATH = "off the path", 0.12, 0.03
MOST_OFF_PATH = 3
MOST_SPELLINGS = 125  # of all calls together; where there are more, all calls are taken to be in one style
UNCLOSED = 0.05  # reasoning that a tool section ended without its marker (vllm#32216)
# an id without the model's form, or with another number, is the model's all the same (docs/research/openrouter-contract.md#4.3-7)
ODD_TOOL_ID = 0.05
LEAKED = 0.5  # well-formed marker text and no calls: the markers were sampled and no parser found them, or the model quotes them


@dataclass(frozen=True, slots=True)
class CallHabits:
    """How often the model does what is seldom: ends the reasoning with a tool section and no marker; writes an id that is not its own form
    with the conversation's next number."""

    unclosed: float = UNCLOSED
    odd_id: float = ODD_TOOL_ID


@dataclass(frozen=True, slots=True)
class Frame:
    """`parts` with empty texts; `size` its ids. `reasoning`, `content`: the texts that stand in it, as on the wire. `arguments` a
    style of `STYLES`, or OFF_PATH where `off_path` of the `compact` calls are spelled otherwise than the encoder does; `leaked`: markers
    were read out of the text."""

    parts: Parts
    size: int
    reasoning: FieldText
    content: FieldText
    tool_ids: ToolIds = "none"
    arguments: str = "wire"
    leaked: bool = False
    share: float = 1.0
    off_path: int = 0
    compact: int = 0

    def filled(self, reasoning: tuple[str, str], content: tuple[str, str]) -> Parts:
        """The parts with both texts between these runs."""
        return replace(self.parts, reasoning=self.reasoning.ids(*reasoning), content=self.content.ids(*content))


def enumerate_frames(
    profile: Profile,
    fields: Fields,
    *,
    thinking: bool,
    prior_calls: int,
    numbering: str = "unknown",
    anew: float = 0.0,
    off: float = 0.0,
    habits: CallHabits | None = None,
) -> list[Frame]:
    """All frames of the answer in `fields`. `prior_calls` counts the tool calls of the conversation so far (rebuilt ids continue
    it); `numbering` is what is known of the provider's tool ids (`TOOL_IDS`); `anew` how likely the server wrote the arguments anew (then every style
    is tried); `off` how likely compact arguments are off the encoder's path. Raises
    ExactError for text that has no ids (lone surrogates)."""
    reasons = thinking and profile.opened_by != "never"
    habits = habits or CallHabits()
    out = [
        replace(frame, reasoning=reasoning, content=content)
        for reasoning, content in [(FieldText(profile, fields.reasoning or ""), FieldText(profile, fields.content or ""))]
        for frame in _frames(profile, fields, content, reasons, prior_calls, numbering, anew, off, habits)
    ]
    leaked = read_leak(profile, fields, reasons)
    if leaked is not None:
        bare, closed = leaked
        reasoning, content = FieldText(profile, bare.reasoning or ""), FieldText(profile, bare.content or "")
        for frame in _frames(profile, bare, content, reasons, prior_calls, "verbatim", 0.0, 0.0, habits):
            if frame.tool_ids != "rebuilt" and frame.parts.closed == closed:
                out.append(replace(frame, reasoning=reasoning, content=content, leaked=True, share=LEAKED))
    return out


def _frames(
    profile: Profile,
    fields: Fields,
    content: FieldText,
    reasons: bool,
    prior_calls: int,
    numbering: str,
    anew: float,
    off: float,
    habits: CallHabits,
) -> Iterator[Frame]:
    truncated = fields.finish_reason == "length"
    base = Parts(opened=reasons and profile.opened_by == "model", ended=not truncated)
    encode = _remembering(profile)
    for tool_ids, heads, id_share in _call_ids(profile, fields.tool_calls, prior_calls, numbering, habits.odd_id):
        for style, arguments, style_share in _spellings(fields.tool_calls, anew):
            calls = [
                ToolCall(head, call.name, text) for head, call, text in zip(heads, fields.tool_calls, arguments, strict=True)
            ]
            for parts in _sections(profile, base, calls, encode, truncated):
                for spelled, path_share, left, compact in _paths(profile, parts, arguments, off):
                    for closed, share in _closings(profile, spelled, bool(content.text), reasons, truncated, habits.unclosed):
                        whole = replace(spelled, closed=closed)
                        share *= id_share * style_share * path_share
                        named = OFF_PATH if left and style == "wire" else style
                        size = len(assemble(profile, whole))
                        yield Frame(whole, size, content, content, tool_ids, named, share=share, off_path=left, compact=compact)


def _paths(profile: Profile, parts: Parts, arguments: Sequence[str], off: float) -> Iterator[tuple[Parts, float, int, int]]:
    """(the parts, their share, how many calls are off the encoder's path, how many could be): compact arguments on and off it. Of many
    calls all or none."""
    ways: list[list[tuple[Ids, float, bool]]] = []
    for call, text in zip(parts.calls, arguments, strict=False):
        others = offpath_arguments(profile, text) if off and call.arguments and profile.writes_call_ids else []
        on = [(call.arguments or (), 1.0 - off if others else 1.0, False)]
        ways.append([*on, *((other.ids, off * other.share, True) for other in others)])
    compact = sum(len(way) > 1 for way in ways)
    if not compact:
        yield parts, 1.0, 0, 0
        return
    chosen = (
        list(product(*ways))
        if compact <= MOST_OFF_PATH
        else [tuple(w[0] for w in ways), tuple(w[min(1, len(w) - 1)] for w in ways)]
    )
    for options in chosen:
        calls = [replace(call, arguments=ids) for call, (ids, _, _) in zip(parts.calls, options, strict=False)]
        spelled = replace(parts, calls=(*calls, *parts.calls[len(calls) :]))
        yield spelled, math.prod(share for _, share, _ in options), sum(left for _, _, left in options), compact


def _closings(
    profile: Profile, parts: Parts, has_content: bool, reasons: bool, truncated: bool, unclosed: float
) -> tuple[tuple[bool, float], ...]:
    """Whether the closing marker was emitted. Without content a tool section may have ended the reasoning (vllm#32216), and a
    truncated answer may have been cut inside it."""
    if not reasons:
        return ((False, 1.0),)
    if has_content:
        return ((True, 1.0),)
    if parts.section is not None:
        return ((True, 1 - unclosed), (False, unclosed)) if profile.facts.tools.ends_reasoning else ((True, 1.0),)
    return ((False, 0.95), (True, 0.05)) if truncated else ((True, 1.0),)


# ---------------------------------------------------------------------------------------------------- ids of calls
# What is known of a provider's tool ids: verbatim (the model's own), running (renumbered over the conversation, or the model's
# own: the same where it counts well), local (anew in each answer), unknown.
TOOL_IDS = ("verbatim", "running", "local", "unknown")


def _call_ids(
    profile: Profile, calls: Sequence[ToolCall], prior_calls: int, numbering: str, odd: float
) -> Iterator[tuple[ToolIds, list[str], float]]:
    """The id texts that the model may have written: the wire's where it has the model's form and the conversation's next number,
    else rebuilt from the counter and (models do write odd ids) as on the wire. For a foreign id the bill decides, it costs 9 to
    31 more; a native id with another number costs the same, so both survive until `numbering` is known
    (docs/research/openrouter-contract.md#4.3-7)."""
    if not calls or not profile.writes_call_ids:
        yield "none", [""] * len(calls), 1.0
        return
    if not profile.numbers_calls:
        yield "rebuilt", [profile.tool_id(call.name, 0) for call in calls], 1.0
        return
    wire = [call.id for call in calls]
    rebuilt = [profile.tool_id(call.name, prior_calls + k) for k, call in enumerate(calls)]
    matches = [profile.tool_id_pattern.match(call.id) for call in calls]
    native = all(m is not None and m["name"] == call.name for m, call in zip(matches, calls, strict=True))
    if native and rebuilt == wire:
        yield "wire", wire, 1.0
        return
    if not native:
        share = 1 - odd
    else:
        share = {"verbatim": 0.05, "local": 1 - odd}.get(numbering, 0.5)
    ways: list[tuple[ToolIds, list[str], float]] = [("rebuilt", rebuilt, share)]
    if all(wire):
        ways.append(("wire", wire, 1 - share))
    yield from ways if not native else reversed(ways)


# ---------------------------------------------------------------------------------------------------- arguments
def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_WRITERS: Mapping[str, Callable[[Any], str]] = {
    "spaced": lambda value: json.dumps(value, ensure_ascii=False),
    "compact": lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    "indented": lambda value: json.dumps(value, ensure_ascii=False, indent=2),
    "plain": lambda value: json.dumps(value),
}


def respelled(arguments: str, style: str) -> str | None:
    """Arguments as a model would have written them in `style`; None for what is no JSON, or cannot be written."""
    if style == "wire":
        return arguments
    try:
        text = _WRITERS[style](json.loads(arguments, parse_constant=_no_constant))
        text.encode()
    except (ValueError, RecursionError):
        return None
    return text


def _spellings(calls: Sequence[ToolCall], anew: float) -> list[tuple[str, tuple[str, ...], float]]:
    """(style, arguments of all calls, its share): each spelling once, under the first style that has it ("mixed": one call so, another
    so). Calls are spelled each by itself where that is few ways. `anew`: P(the server wrote them anew); what it did not, stands."""
    sent = tuple(call.arguments for call in calls)
    if not anew or not calls:
        return [("wire", sent, 1.0)]
    ways = [
        [(style, text, STYLE_SHARE[style]) for style in STYLES if (text := respelled(call.arguments, style)) is not None]
        for call in calls
    ]
    if len(STYLES) ** len(calls) <= MOST_SPELLINGS:
        chosen: Iterable[Sequence[tuple[str, str, float]]] = product(*ways)
    else:
        chosen = ([way for options in ways for way in options if way[0] == style] for style in STYLES)
    out: dict[tuple[str, ...], tuple[str, float]] = {}
    for options in chosen:
        if len(options) == len(calls):
            texts, named = tuple(text for _, text, _ in options), {style for style, _, _ in options}
            first, share = out.get(texts, (min(named) if len(named) == 1 else "wire" if not named else "mixed", 0.0))
            out[texts] = first, share + math.prod(share for _, _, share in options)
    whole = sum(share for _, share in out.values()) or 1.0
    spellings = {texts: (style, anew * share / whole) for texts, (style, share) in out.items()}
    stands = "wire", spellings.get(sent, ("wire", 0.0))[1] + 1 - anew
    return [
        (stands[0], sent, stands[1]),
        *((style, texts, share) for texts, (style, share) in spellings.items() if texts != sent),
    ]


def styles_of(arguments: str) -> frozenset[str]:
    """The styles that `arguments` may be written in; empty for another one and for what is no JSON."""
    return frozenset(style for style in STYLES[1:] if respelled(arguments, style) == arguments)


def _sections(
    profile: Profile, base: Parts, calls: Sequence[ToolCall], encode: Callable[[str], Ids], truncated: bool
) -> Iterator[Parts]:
    """The tool section; a truncated one may lack its end, or have begun one more call, or lack the last call's end or arguments."""
    if not calls:
        yield base
        return
    parts = tuple(call_parts(profile, call, encode) for call in calls)
    yield replace(base, calls=parts, section=True)
    if truncated and profile.writes_call_ids:
        yield replace(base, calls=parts, section=False)
        yield replace(base, calls=(*parts, CallParts((), None, closed=False)), section=False)
        yield replace(base, calls=(*parts[:-1], replace(parts[-1], closed=False)), section=False)
        if not parts[-1].arguments:
            yield replace(base, calls=(*parts[:-1], CallParts(parts[-1].head, None, closed=False)), section=False)


def count_calls(messages: Sequence[Mapping[str, Any]]) -> int:
    """Tool calls in a conversation's history."""
    return sum(len(m["tool_calls"]) for m in messages if isinstance(m.get("tool_calls"), list | tuple))


def _remembering(profile: Profile) -> Callable[[str], Ids]:
    seen: dict[str, Ids] = {}

    def encode(text: str) -> Ids:
        if text not in seen:
            seen[text] = tuple(profile.encode(text))
        return seen[text]

    return encode
