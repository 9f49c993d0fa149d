"""Calls in one section (Kimi, DeepSeek V3.1): <section_begin> (<call_begin> HEAD <argument_begin> ARGUMENTS <call_end>)+ <section_end>.

Belongs here: that form as ids and as text. The head is what `id_format` says: Kimi's id with the conversation's number, or the bare name
of the function. Does not belong here: bodies of other forms, ids that servers write anew (`exact/search/frames.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from eagle3_assets.targets.facts import SectionCalls
from eagle3_assets.targets.grammar import CallParts, Encode, Ids, Moves, Parts
from eagle3_assets.targets.marked_turns import Automaton
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import ToolCall


class Sections:
    """The `CallForm` of sections."""

    def __init__(self, profile: Profile, tools: SectionCalls) -> None:
        self._profile = profile
        self._tools = tools
        self.first: str | None = tools.section_begin

    def moves(self, turn: Automaton) -> Moves:
        tool = self._profile.tool_ids
        return {
            ("content", tool["section_begin"]): turn.begin_section,
            ("between", tool["call_begin"]): turn.begin_call,
            ("head", tool["argument_begin"]): turn.begin_arguments,
            ("arguments", tool["call_end"]): turn.end_call,
            ("between", tool["section_end"]): turn.end_section,
        }

    def between(self, turn: Automaton, run: Ids) -> Ids:
        return run

    def finished(self, turn: Automaton) -> None:
        return

    def ids(self, parts: Parts) -> Iterator[int]:
        tool = self._profile.tool_ids
        yield tool["section_begin"]
        for call in parts.calls:
            yield from (tool["call_begin"], *call.head)
            if call.arguments is not None:
                yield from (tool["argument_begin"], *call.arguments)
            if call.closed:
                yield tool["call_end"]
        if parts.section:
            yield tool["section_end"]

    def call_parts(self, call: ToolCall, encode: Encode) -> CallParts:
        return CallParts(tuple(encode(call.id)), tuple(encode(call.arguments)))

    def read_call(self, call: CallParts) -> ToolCall:
        head = self._profile.decode(call.head)
        match = self._profile.tool_id_pattern.match(head)
        return ToolCall(head, match["name"] if match else "", self._profile.decode(call.arguments or ()))

    def read_text(self, text: str) -> tuple[ToolCall, ...] | None:
        """Spaces between markers are those that a detokenizer joined (vllm#33457), one at each side."""
        tools, section = self._tools, text.removeprefix(self._tools.section_begin)
        call = re.compile(
            r"\s*"
            + re.escape(tools.call_begin)
            + r"(?P<head>.*?)"
            + re.escape(tools.argument_begin)
            + r"(?P<arguments>.*?)"
            + re.escape(tools.call_end),
            re.DOTALL,
        )
        calls, at = [], 0
        while match := call.match(section, at):
            joined = section.startswith(" ")
            head, arguments = (
                part[1:-1] if joined and part.startswith(" ") and part.endswith(" ") else part
                for part in match.group("head", "arguments")
            )
            named = self._profile.tool_id_pattern.match(head.strip())
            calls.append(ToolCall(head, named["name"] if named else head, arguments))
            at = match.end()
        return tuple(calls) if calls and section[at:].strip() == tools.section_end else None

    def doubt(self, call: ToolCall) -> str | None:
        return None
