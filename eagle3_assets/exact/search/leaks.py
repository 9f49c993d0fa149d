"""Markers that leaked into the text of an answer, read back: a tool section that no parser found, reasoning that nobody split off, an
end of turn left standing.

Belongs here: marker text → the fields that a parser would have returned, where the grammar allows exactly one reading; which marker text
may be a quotation. Does not belong here: ids (`frames.py`), whether they are believed (`selection.py`).

Known from vllm#33457 (`<think>R</think>C` in content, with a space at each side of a marker, as detokenizers join control tokens),
sglang#21377, opencode#8851, TorchSpec#115 and agent-data-protocol#195 (rows for import), Ollama and Groq's raw form (Qwen3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields, ToolCall

QUOTES = "`'\""


@dataclass(slots=True)
class _Turn:
    """The turn as far as it is read. `closed`: whether the closing marker was seen (None: nothing said so); `found`: a marker was."""

    reasoning: str
    content: str
    calls: tuple[ToolCall, ...]
    closed: bool | None = None
    found: bool = False
    is_open: bool = False  # the opening marker stood in front: reasoning goes on until something ends it


def read_leak(profile: Profile, fields: Fields, reasons: bool) -> tuple[Fields, bool] | None:
    """(the fields as a parser would have returned them, whether reasoning was closed) for marker text that reads as a turn in exactly one
    way (docs/research/openrouter-contract.md#4.3-4, #4.3-11). None without marker text, and where it can be read in several ways
    or in none.

    `reasons`: whether the model thinks in this turn. Whitespace beside a marker stays in the fields: edges are decided elsewhere.
    """
    texts, marks = (fields.reasoning or "", fields.content or ""), _turn_markers(profile)
    if not any(mark in text for text in texts for mark in marks):
        return None
    is_cut = fields.finish_reason == "length"
    turn = _Turn(*texts, fields.tool_calls)
    if not is_cut:
        _take_end(profile, turn)
    if reasons:
        _take_reasoning(profile, turn)
    if not turn.calls and not is_cut and not _take_calls(profile, turn):
        return None
    left = (turn.reasoning, turn.content, *(text for call in turn.calls for text in (call.id, call.arguments)))
    if not turn.found or any(mark in text for text in left for mark in marks):
        return None
    if turn.is_open and turn.closed is None and not is_cut:
        return None  # reasoning that nothing ended, in a turn that ended
    closed = turn.closed if turn.closed is not None else bool(turn.content) or not is_cut
    finish = "tool_calls" if turn.calls else fields.finish_reason
    bare = replace(fields, reasoning=turn.reasoning, content=turn.content, tool_calls=turn.calls, finish_reason=finish)
    return bare, closed and reasons


def bare_fields(profile: Profile, fields: Fields, reasons: bool) -> Fields:
    """The fields as a parser would have returned them; as they came where nothing leaked, or nobody can say what."""
    leaked = read_leak(profile, fields, reasons and profile.opened_by != "never")
    return leaked[0] if leaked is not None else fields


def _turn_markers(profile: Profile) -> tuple[str, ...]:
    """The control tokens that a model may write in a turn."""
    return profile.facts.turn_markers


def _take_end(profile: Profile, turn: _Turn) -> None:
    """The end of turn at the end of the last text."""
    name = "content" if turn.content.strip() else "reasoning"
    text, end = getattr(turn, name).rstrip(), profile.facts.turn.end
    if text.endswith(end):
        setattr(turn, name, text.removesuffix(end))
        turn.found = True


def _take_reasoning(profile: Profile, turn: _Turn) -> None:
    """The opening marker in front of the first text, and the closing one behind the reasoning. Where a marker stands elsewhere it is left
    for the caller to find."""
    begin, close = profile.facts.reasoning.open or "", profile.facts.reasoning.close or ""
    if turn.reasoning.lstrip().startswith(begin):
        turn.reasoning, turn.found = turn.reasoning.lstrip().removeprefix(begin), True
    elif not turn.reasoning.strip() and turn.content.lstrip().startswith(begin):
        turn.reasoning, turn.content = turn.content.lstrip().removeprefix(begin), ""
        turn.found = turn.is_open = True
    elif not turn.reasoning.strip() and turn.content.count(close) == 1:
        turn.reasoning, turn.content = turn.content, ""
    before, mark, behind = turn.reasoning.partition(close)
    if mark and not (behind.strip() and turn.content.strip()):
        turn.reasoning, turn.content = before, turn.content if turn.content.strip() else behind
        turn.closed = turn.found = True
    elif turn.reasoning.strip() and turn.content.lstrip().startswith(close):
        turn.content = turn.content.lstrip().removeprefix(close)
        turn.closed = turn.found = True


def _take_calls(profile: Profile, turn: _Turn) -> bool:
    """The tool section at the end of the last text. False where there is one that is not well formed, or not where one may stand."""
    begin = profile.grammar.calls.first
    if begin is None:
        return True
    if begin in turn.content:
        before, _, behind = turn.content.partition(begin)
    elif begin in turn.reasoning:
        if turn.content.strip() or not profile.facts.tools.ends_reasoning:
            return False
        before, _, behind = turn.reasoning.partition(begin)
    else:
        return True
    calls = profile.grammar.calls.read_text(begin + behind)
    if calls is None:
        return False
    if begin in turn.content:
        turn.content = before
        turn.closed = True if turn.closed is None else turn.closed
    else:
        turn.reasoning, turn.closed = before, False
    turn.calls, turn.found = calls, True
    return True


# ---------------------------------------------------------------------------------------------------- without a bill
def unquoted_markers(markers: re.Pattern[str], fields: Fields) -> tuple[str, ...]:
    """The control tokens whose names stand in the answer's texts outside quotation marks, each once. `markers`: the profile's."""
    found: dict[str, None] = {}
    for text in (fields.reasoning or "", fields.content or ""):
        for match in markers.finditer(text):
            around = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
            if around[0] != around[1] or not around[0] or around[0] not in QUOTES:
                found[match[0]] = None
    return tuple(found)


def is_spaced(profile: Profile, fields: Fields) -> bool:
    """Whether a space stands in front of a marker of a leaked turn: a detokenizer's (vllm#33457) or the model's own, only a bill tells."""
    return any(f" {mark}" in text for text in (fields.reasoning or "", fields.content or "") for mark in _turn_markers(profile))
