"""Calls as bodies between two markers: <call_begin> BODY <call_end> (SEPARATOR <call_begin> BODY <call_end>)*. The model writes no id.

Belongs here: where bodies stand in a turn. Does not belong here: what stands in a body (`json_bodies.py`, `parameters.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.facts import JsonCalls, ParameterCalls
from eagle3_assets.targets.grammar import CallParts, Encode, Ids, Moves, Parts
from eagle3_assets.targets.marked_turns import Automaton
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import ToolCall


class Bodies:
    """What the forms of bodies share. A form gives `body_ids`, `read_body` and `written`."""

    inner: tuple[str, ...] = ()  # names of control tokens that stand inside a body

    def __init__(self, profile: Profile, tools: JsonCalls | ParameterCalls) -> None:
        self._profile = profile
        self._markers = tools
        self.first: str | None = tools.call_begin
        self._separator = tuple(profile.encoding.encode_ordinary(tools.separator))
        if len(self._separator) > 1:
            raise ExactError(f"profile {profile.name}: tools.separator is {len(self._separator)} tokens, expected one or none")

    def moves(self, turn: Automaton) -> Moves:
        begin, end = self._profile.special(self._markers.call_begin), self._profile.special(self._markers.call_end)
        return {
            ("content", begin): turn.begin_body,
            ("arguments", end): turn.end_body,
            ("separated" if self._separator else "after", begin): turn.begin_body,
            **{("arguments", self._profile.special(name)): turn.keep for name in self.inner},
        }

    def between(self, turn: Automaton, run: Ids) -> Ids:
        if self._separator and run[:1] == self._separator:
            turn.section, turn.state = False, "separated"
            return run[1:]
        return run

    def finished(self, turn: Automaton) -> None:
        return

    def ids(self, parts: Parts) -> Iterator[int]:
        begin, end = self._profile.special(self._markers.call_begin), self._profile.special(self._markers.call_end)
        for k, call in enumerate(parts.calls):
            if k:
                yield from self._separator
            yield from (begin, *(call.arguments or ()))
            if call.closed:
                yield end
        if not parts.section and parts.calls and parts.calls[-1].closed:
            yield from self._separator

    def call_parts(self, call: ToolCall, encode: Encode) -> CallParts:
        return CallParts((), tuple(self.body_ids(call, encode)))

    def read_call(self, call: CallParts) -> ToolCall:
        body = self._profile.decode(call.arguments or ())
        return self.read_body(body) or ToolCall("", "", body)

    def read_text(self, text: str) -> tuple[ToolCall, ...] | None:
        begin, end, separator = self._markers.call_begin, self._markers.call_end, self._markers.separator
        text = text.rstrip()
        if not text.startswith(begin) or not text.endswith(end):
            return None
        calls = []
        for body in text.removeprefix(begin).removesuffix(end).split(end + separator + begin):
            call = self.read_body(body)
            if call is None or self.written(call) != body:
                return None
            calls.append(call)
        return tuple(calls)

    def doubt(self, call: ToolCall) -> str | None:
        return None

    # ------------------------------------------------------------------------------------------ what a form gives
    def body_ids(self, call: ToolCall, encode: Encode) -> Ids:
        return tuple(encode(self.written(call)))

    def written(self, call: ToolCall) -> str:
        """The body of `call` as text."""
        raise NotImplementedError

    def read_body(self, body: str) -> ToolCall | None:
        """The call of a body; None where it has not the model's form."""
        raise NotImplementedError
