"""A call as one JSON object that is the whole content, without any marker (Llama 3.1 and later).

Belongs here: when a content is a call: as the family's parsers see it, where all of it has the form of one. Does not belong here:
bodies between markers (`bodies.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.calls.json_bodies import json_string
from eagle3_assets.targets.facts import BareJsonCalls
from eagle3_assets.targets.grammar import CallParts, Encode, Ids, Moves, Parts
from eagle3_assets.targets.marked_turns import Automaton
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import ToolCall


class BareJson:
    """The `CallForm` of bare JSON: one call a turn, and no content beside it."""

    first: str | None = None

    def __init__(self, profile: Profile, tools: BareJsonCalls) -> None:
        self._profile = profile
        self._tools = tools
        self._pattern = re.compile(tools.body_pattern, re.DOTALL)

    def moves(self, turn: Automaton) -> Moves:
        # until the turn is read nothing tells a call from a content: the end that stands behind calls may stand behind it, too
        return {("content", self._profile.calls_end_id): turn.end}

    def between(self, turn: Automaton, run: Ids) -> Ids:
        return run

    def finished(self, turn: Automaton) -> None:
        body = tuple(turn.content)
        if turn.ended and body and self._read(self._profile.decode(body)) is not None:
            turn.content, turn.calls, turn.section = [], [CallParts((), body)], True

    def ids(self, parts: Parts) -> Iterator[int]:
        if len(parts.calls) != 1 or parts.content:
            raise ExactError(
                f"profile {self._profile.name}: a call is the whole content of a turn; {len(parts.calls)} calls were given"
            )
        yield from parts.calls[0].arguments or ()

    def call_parts(self, call: ToolCall, encode: Encode) -> CallParts:
        return CallParts((), tuple(encode(self._written(call))))

    def read_call(self, call: CallParts) -> ToolCall:
        body = self._profile.decode(call.arguments or ())
        return self._read(body) or ToolCall("", "", body)

    def read_text(self, text: str) -> tuple[ToolCall, ...] | None:
        call = self._read(text)
        return (call,) if call is not None and self._written(call) == text else None

    def doubt(self, call: ToolCall) -> str | None:
        return None

    def _written(self, call: ToolCall) -> str:
        return self._tools.body_format.format(name=json.dumps(call.name, ensure_ascii=False), arguments=call.arguments)

    def _read(self, body: str) -> ToolCall | None:
        match = self._pattern.match(body)
        name = json_string(match["name"]) if match else None
        if match is None or name is None:
            return None
        try:
            is_object = isinstance(json.loads(match["arguments"]), dict)
        except (ValueError, RecursionError):
            return None
        return ToolCall("", name, match["arguments"].strip()) if is_object else None
