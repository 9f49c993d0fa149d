"""A model that was not taught to call tools.

Belongs here: the refusal of calls. Does not belong here: anything else.
"""

from __future__ import annotations

from collections.abc import Iterator

from eagle3_assets.errors import ExactError
from eagle3_assets.targets.grammar import CallParts, Encode, Ids, Moves, Parts
from eagle3_assets.targets.marked_turns import Automaton
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import ToolCall


class NoCalls:
    """The `CallForm` without calls."""

    first: str | None = None

    def __init__(self, profile: Profile) -> None:
        self._name = profile.name

    def moves(self, turn: Automaton) -> Moves:
        return {}

    def between(self, turn: Automaton, run: Ids) -> Ids:
        return run

    def finished(self, turn: Automaton) -> None:
        return

    def ids(self, parts: Parts) -> Iterator[int]:
        raise self._refusal()

    def call_parts(self, call: ToolCall, encode: Encode) -> CallParts:
        raise self._refusal()

    def read_call(self, call: CallParts) -> ToolCall:
        raise self._refusal()

    def read_text(self, text: str) -> tuple[ToolCall, ...] | None:
        return None

    def doubt(self, call: ToolCall) -> str | None:
        return None

    def _refusal(self) -> ExactError:
        return ExactError(f"profile {self._name}: its model writes no tool calls (tools.form is 'none'), and the answer has one")
