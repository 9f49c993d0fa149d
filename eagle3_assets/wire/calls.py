"""Tool calls put together from the pieces that a stream sends, and from whole bodies: the one rule for collector and `exact`.

    a new id, or a name behind finished arguments, opens a call, also at an equal or missing index
    a name equal to or extending the one that is there replaces it; another piece of a name appends while no arguments came
    a piece of arguments appends; one that says finished arguments again is read once
    two calls of a whole body are never merged

Parallel calls all at index 0: plexus#691, dynamo#4723, LibreChat agents#260, gcli2api#406, hass_local_openai_llm#92. Names in fragments:
NVIDIA Switchyard#785. Does not belong here: whether the request declares a name (`declared.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3_assets.wire.fields import ToolCall
from eagle3_assets.wire.pieces import join
from eagle3_assets.wire.values import as_count, as_text


@dataclass(slots=True, eq=False)
class Call:
    """A call as far as it has come. `may_repeat`: it was opened by the name of the call before it alone, and may be that one again."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""
    may_repeat: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether its arguments are whole: one JSON object."""
        if not self.arguments.rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of `tool_calls`, with what is odd about it taken off."""

    index: int | None
    id: str
    name: str
    arguments: str
    was_parsed: bool = False  # the arguments came as an object, not as the model's text

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Piece:
        function = entry.get("function")
        function = function if isinstance(function, dict) else {}
        arguments = function.get("arguments")
        was_parsed = isinstance(arguments, dict | list)
        if was_parsed:
            arguments = json.dumps(arguments, ensure_ascii=False)
        texts = as_text(entry.get("id")) or "", as_text(function.get("name")) or "", as_text(arguments) or ""
        return cls(as_count(entry.get("index")), *texts, was_parsed)


@dataclass(slots=True)
class Calls:
    """The calls of an answer in the order in which they were opened."""

    opened: list[Call] = field(default_factory=list)
    repeats: bool = False  # something came twice and was read once
    changing_ids: bool = False  # pieces of one call came under new ids

    def take_whole(self, pieces: Sequence[Piece]) -> list[tuple[Call, str]]:
        """The calls of a whole body: each entry is one."""
        added = [Call(piece.index, piece.id, piece.name, piece.arguments) for piece in pieces]
        self.opened.extend(added)
        return [(call, call.arguments) for call in added if call.arguments]

    def take_delta(self, pieces: Sequence[Piece]) -> list[tuple[Call, str]]:
        """The entries of one chunk of a stream; returns (call, text that its arguments grew by)."""
        grown = []
        named: list[Call] = []  # by this chunk: a second name for the same call in one chunk is another call's
        for piece in pieces:
            call = self._call_of(piece, named)
            text = self._grow(call, piece)
            if piece.name:
                named.append(call)
            if text:
                grown.append((call, text))
        return grown

    def says_again(self, pieces: Sequence[Piece]) -> bool:
        """Whether the pieces are all calls so far, whole and in order (ids may be missing)."""
        return len(pieces) == len(self.opened) > 0 and all(
            piece.id in ("", call.id) and (piece.name, piece.arguments) == (call.name, call.arguments) and piece.arguments
            for piece, call in zip(pieces, self.opened, strict=True)
        )

    def whole(self) -> list[Call]:
        """The calls in the order of their indices where these tell them apart, else in the order in which they were opened."""
        calls = [call for call in self.opened if not (call.may_repeat and not call.arguments)]
        indices = [call.index for call in calls]
        if None not in indices and len(set(indices)) == len(indices):
            calls.sort(key=lambda call: call.index or 0)
        return calls

    def as_tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(call.id, call.name, join(call.arguments)) for call in self.whole())

    # ------------------------------------------------------------------------------------------ whose piece is it
    def _call_of(self, piece: Piece, named: Sequence[Call]) -> Call:
        call = self._nearest(piece)
        if call is None or (call in named and piece.name) or self._opens(call, piece):
            may_repeat = call is not None and not piece.id and call.name == piece.name
            call = Call(piece.index, may_repeat=may_repeat)
            self.opened.append(call)
        return call

    def _nearest(self, piece: Piece) -> Call | None:
        """The call that the piece would belong to: of its id, else the latest of its index, else (without an index) the latest."""
        if piece.id:
            same = [c for c in self.opened if c.id == piece.id and (piece.index is None or c.index in (None, piece.index))]
            if same:
                return same[-1]
        if piece.index is None:
            return self.opened[-1] if self.opened else None
        return next((call for call in reversed(self.opened) if call.index == piece.index), None)

    def _opens(self, call: Call, piece: Piece) -> bool:
        """Whether the piece begins another call than `call`."""
        if piece.id and call.id and piece.id != call.id:
            # an early vLLM wrote a new random id into every piece of one call
            self.changing_ids |= (is_piece := not piece.name and bool(piece.arguments) and not call.is_finished)
            return not is_piece
        if piece.id and piece.name and not call.id and not call.arguments:
            return call.may_repeat or not piece.name.startswith(call.name)
        if not piece.name or not call.arguments or not call.name:
            return False
        if piece.id and piece.id == call.id and (not piece.arguments or piece.arguments == call.arguments):
            return False  # the name once more (Switchyard#785 sends it in every chunk)
        if call.is_finished:
            return bool(piece.id or piece.name != call.name or not piece.arguments.isspace())
        return not (piece.name == call.name or piece.name.startswith(call.name))

    def _grow(self, call: Call, piece: Piece) -> str:
        call.id = call.id or piece.id
        if piece.name:
            call.name = piece.name if piece.name.startswith(call.name) else call.name + piece.name
        if piece.arguments and piece.arguments == call.arguments and call.is_finished:
            self.repeats = True
            return ""
        call.arguments += piece.arguments
        return piece.arguments
