"""Markers that leaked into the text of an answer, read back: a tool section that no parser found, a `</think>` that nobody cut at.

Belongs here: marker text → the fields that a parser would have returned. Does not belong here: ids (`frames.py`), whether they are
believed (`selection.py`).
"""

from __future__ import annotations

import re
from dataclasses import replace

from eagle3_assets.exact.fields import Fields, ToolCall
from eagle3_assets.exact.tokenizer import Profile


def read_leak(profile: Profile, fields: Fields, reasons: bool) -> tuple[Fields, bool] | None:
    """(the fields as a parser would have returned them, whether reasoning was closed) for marker text that reads as a well-formed
    turn (contract 4.3 #4, #11): a tool section that no parser found, a `</think>` that nobody cut at. None without one."""
    if profile.calls_are_json or fields.finish_reason == "length":
        return None
    tools = profile.facts["tools"]
    reasoning, content = fields.reasoning or "", fields.content or ""
    close = str(profile.facts["reasoning"].get("close", "")) if reasons else ""
    closed = bool(content) or not reasons
    found = False
    if reasons and not reasoning and close and close in content:
        reasoning, _, content = content.partition(close)
        found = closed = True
    begin = str(tools["section_begin"])
    text = content if begin in content else reasoning
    calls: tuple[ToolCall, ...] | None = fields.tool_calls
    if begin in text and not fields.tool_calls:
        before, _, section = text.partition(begin)
        calls = _read_calls(profile, section)
        if calls is None:
            return None
        found = True
        if text is content:
            content, closed = before, True
        else:
            reasoning, closed = before, False
    if not found:
        return None
    finish = "tool_calls" if calls else fields.finish_reason
    return replace(
        fields, reasoning=reasoning, content=content, tool_calls=calls or (), finish_reason=finish
    ), closed if reasons else False


def _read_calls(profile: Profile, section: str) -> tuple[ToolCall, ...] | None:
    """The calls of a section's text behind its begin marker; None where it is not well formed. Spaces between markers are those
    that a detokenizer joined (vllm#33457), one at each side."""
    tools = profile.facts["tools"]
    head, arguments = r"(?P<head>.*?)", r"(?P<arguments>.*?)"
    call = re.compile(
        r"\s*"
        + re.escape(tools["call_begin"])
        + head
        + re.escape(tools["argument_begin"])
        + arguments
        + re.escape(tools["call_end"]),
        re.DOTALL,
    )
    calls, at = [], 0
    while match := call.match(section, at):
        joined = section.startswith(" ")
        inner = [
            text[1:-1] if joined and text.startswith(" ") and text.endswith(" ") else text
            for text in match.group("head", "arguments")
        ]
        named = profile.tool_id_pattern.match(inner[0].strip())
        calls.append(ToolCall(inner[0], named["name"] if named else inner[0], inner[1]))
        at = match.end()
    rest = section[at:].strip()
    return tuple(calls) if calls and rest == tools["section_end"] else None
