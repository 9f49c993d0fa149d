"""What a source says of its answers beside their text: the ids that were sampled, the prompt ids, the finish reason.

Belongs here: finding them, for the final answer and for every assistant message. Does not belong here: texts (`mapping.py`),
whether the ids are believed (`exact/search/server_ids.py`).

They stand in a column of the row (one value: the final answer's; a list of values: one an assistant message) or, under the same
name, in each assistant message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_assets.campaign import Mapping
from eagle3_assets.prompts.columns import Row, find, from_json, text_or_none
from eagle3_assets.prompts.set_aside import BadRow


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What the source says of one assistant message beside its text; None where it says nothing."""

    output_ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None


NOTHING_SAID = AnswerFacts()


def final_and_each(
    row: Row, sources: Sequence[Row], mapping: Mapping, *, ends_with_answer: bool
) -> tuple[AnswerFacts, tuple[AnswerFacts, ...]]:
    """(facts of the final answer, facts of each assistant message). `sources` are the assistant messages as the source has them.

    What a column says goes over what a message says. The final answer is the last assistant message's where the conversation
    ends with one; else it exists as ids only. Raises BadRow (`bad_ids`, `not_json`).
    """
    output_ids, output_each = _column_of_ids(row, mapping.output_ids, len(sources))
    prompt_ids, prompt_each = _column_of_ids(row, mapping.prompt_ids, len(sources))
    reason, reason_each = _column_of_reasons(row, mapping.finish_reason, len(sources))
    each = [
        _over(AnswerFacts(output, prompt, ended), _facts_in(source, mapping))
        for source, output, prompt, ended in zip(sources, output_each, prompt_each, reason_each, strict=True)
    ]
    final = AnswerFacts(output_ids, prompt_ids, reason)
    if ends_with_answer:
        final = each[-1] = _over(final, each[-1])
    return final, tuple(each)


def _over(first: AnswerFacts, second: AnswerFacts) -> AnswerFacts:
    """`first`, and `second` where it says nothing."""
    return AnswerFacts(
        second.output_ids if first.output_ids is None else first.output_ids,
        second.prompt_ids if first.prompt_ids is None else first.prompt_ids,
        first.finish_reason or second.finish_reason,
    )


def _column_of_ids(row: Row, column: str | None, n: int) -> tuple[tuple[int, ...] | None, list[tuple[int, ...] | None]]:
    """(ids of the final answer, ids of each of the `n` assistant messages) that a column holds."""
    value = find(row, column) if column else None
    value = from_json(value, column or "") if value is not None else None
    if not (isinstance(value, list) and value and all(v is None or isinstance(v, list) for v in value)):
        return _ids(value, column), [None] * n
    if len(value) != n:
        raise BadRow("bad_ids", f"column {column!r} holds ids of {len(value)} answers, the row has {n} assistant messages")
    return None, [_ids(v, column) for v in value]


def _column_of_reasons(row: Row, column: str | None, n: int) -> tuple[str | None, list[str | None]]:
    value = find(row, column) if column else None
    if isinstance(value, list) and len(value) == n:
        return None, [text_or_none(v) for v in value]
    return text_or_none(value), [None] * n


def _facts_in(message: Row, mapping: Mapping) -> AnswerFacts:
    """What an assistant message of the source says under the names of the mapping."""

    def ids(column: str | None) -> tuple[int, ...] | None:
        value = find(message, column) if column else None
        return _ids(from_json(value, column or ""), column) if value is not None else None

    reason = text_or_none(find(message, mapping.finish_reason)) if mapping.finish_reason else None
    return AnswerFacts(ids(mapping.output_ids), ids(mapping.prompt_ids), reason)


def _ids(value: Any, column: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(v) is int and 0 <= v < 2**31 for v in value):
        raise BadRow("bad_ids", f"column {column!r}: {str(value)[:120]}")
    return tuple(value)
