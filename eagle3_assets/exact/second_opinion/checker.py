"""A second opinion on rows that are already on disk, from the tokenizer profile and the journal.

Belongs here: `Checker`, which the review of token rows asks (its protocol is the review's; this room knows nothing of it).
Does not belong here: making or mending rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from eagle3_assets.errors import ExactError
from eagle3_assets.exact.prompt_side.hypotheses import is_rendering
from eagle3_assets.exact.prompt_side.render import wants_thinking
from eagle3_assets.exact.search.wire_text import canonical_fields, compare_text, matching_spacing
from eagle3_assets.targets import grammar as turn_grammar
from eagle3_assets.targets.tokenizer import Profile
from eagle3_assets.wire.fields import Fields
from eagle3_assets.wire.wire_answer import WireAnswer


class Row(Protocol):
    """What the checker looks at; `response_ids` int [length]."""

    @property
    def sample_id(self) -> str: ...
    @property
    def turn(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def evidence(self) -> dict[str, Any]: ...
    @property
    def input_ids(self) -> Any: ...
    @property
    def prompt_len(self) -> int: ...
    @property
    def response_ids(self) -> Any: ...


class _Turn(NamedTuple):
    """A row's response, taken apart; without `parts`, why the grammar refuses it."""

    ids: turn_grammar.Ids
    parts: turn_grammar.Parts | None
    fault: str | None


class Checker:
    """Judges rows against the answers they were made from. None: nothing to object; else one short reason."""

    def __init__(self, profile: Profile, answers: Iterable[WireAnswer], *, thinking: bool = True) -> None:
        """`answers` are the journal's best attempts; `thinking` is the campaign's, where a request says nothing."""
        self._profile, self._thinking = profile, thinking
        self._answers = {(answer.sample_id, answer.turn): answer for answer in answers}
        self._last: tuple[Row, _Turn] | None = None  # a row is asked several questions, one behind the other

    def grammar(self, row: Row) -> str | None:
        """Would the model's grammar emit this response, ended as its finish reason says?"""
        return self._turn(row).fault

    def wire_text(self, row: Row) -> str | None:
        """Does decoding the ids under the row's reading of its provider give the returned text, byte for byte? And is the prompt
        what the evidence says it is?"""
        answer = self._answers.get((row.sample_id, row.turn))
        if answer is None or answer.attempt != row.attempt:
            return "the journal has no such answer"
        fields = answer.fields
        turn = self._turn(row)
        if turn.parts is None:
            return turn.fault
        parts = turn.parts
        if row.evidence.get("basis") == "server_ids":
            if fields.output_ids != turn.ids:
                return "the ids are not those that the server returned"
            return matching_spacing(self._profile, parts, fields)[1] or self._prompt(row, answer, fields)
        return compare_text(self._profile, parts, fields, row.evidence) or self._prompt(row, answer, fields)

    def canonical(self, row: Row) -> bool | None:
        """encode(decode(ids)) == ids, field by field; None where the ids cannot be taken apart."""
        parts = self._turn(row).parts
        return None if parts is None else bool(canonical_fields(self._profile, parts)["canonical"])

    def fields(self, sample_id: str, turn: int) -> Fields | None:
        """The answer's fields, for showing it beside its row."""
        answer = self._answers.get((sample_id, turn))
        return answer.fields if answer else None

    def _prompt(self, row: Row, answer: WireAnswer, fields: Fields) -> str | None:
        """The prompt ids are those that the server returned, or the request in one of the forms that the evidence names."""
        ids = tuple(np.asarray(row.input_ids[: row.prompt_len]).tolist())
        if row.evidence.get("prompt_basis") == "server_ids":
            return None if ids == fields.prompt_ids else "the prompt ids are not those that the server returned"
        named = row.evidence.get("prompt_forms")
        forms = [str(form) for form in named] if isinstance(named, list) else None
        thinking = self._thinks(row, answer, "prompt_thinking")
        try:
            same = is_rendering(self._profile, answer.request, ids, thinking=thinking, forms=forms)
        except ExactError as error:
            return f"prompt: {error}"
        return None if same else "the prompt ids are no rendering of the request in the form that the evidence names"

    def _turn(self, row: Row) -> _Turn:
        if self._last is not None and self._last[0] is row:
            return self._last[1]
        ids = tuple(np.asarray(row.response_ids).tolist())
        thinking = self._thinks(row, self._answers.get((row.sample_id, row.turn)))
        try:
            parts = turn_grammar.split(self._profile, ids, thinking=thinking, truncated=row.finish_reason == "length")
            turn = _Turn(ids, parts, None)
        except turn_grammar.GrammarError as error:
            turn = _Turn(ids, None, str(error))
        self._last = row, turn
        return turn

    def _thinks(self, row: Row, answer: WireAnswer | None, key: str = "thinking") -> bool:
        """Whether the turn (or, `prompt_thinking`, the prompt) is one with reasoning: the evidence says it, of older rows the request."""
        told = row.evidence.get(key)
        if isinstance(told, bool):
            return told
        instant = self._profile.instant
        request = answer.request if answer else {}
        return self._profile.opened_by != "never" and (not instant or wants_thinking(request, self._thinking))
